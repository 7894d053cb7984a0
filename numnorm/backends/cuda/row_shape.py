"""How the threads of a block share the rows."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class RowShape:
    """How the threads of a block share its rows.

    Parameters
    ----------
    team : int
        The number of threads that work on one row, a power of two; or on one run of it at a time,
        where a block of several teams reads the row in a loop.
    teams : int
        The number of rows, or of runs at a time, of a block; 1 for teams wider than a warp.
    pieces : int
        How many pieces of 16 bytes a thread holds; 0 if it reads them twice, in a loop.
    whole : bool
        Whether every row, of every array, begins and ends at a multiple of 16 bytes.
    """

    team: int
    teams: int
    pieces: int
    whole: bool

    @property
    def threads(self) -> int:
        """The number of threads of a block."""
        return self.team * self.teams
