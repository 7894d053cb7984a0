"""How the threads of a block share the rows."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class RowShape:
    """How the threads of a block share its rows.

    A row is dealt out to its threads in pieces of 16 bytes or, if it is not `whole`, element by
    element. That does not depend on where it begins in memory, so that no result does.

    Parameters
    ----------
    team : int
        The number of threads that work on one row, a power of two; or on one run of it at a time,
        where a block of several teams reads the row in a loop.
    teams : int
        The number of rows, or of runs at a time, of a block; 1 for teams wider than a warp.
    pieces : int
        How many times 16 bytes a thread holds, no more than the widest rows need; 0 if it reads
        them twice, in a loop.
    whole : bool
        Whether every row, or every run, fills a multiple of 16 bytes.
    aligned : bool
        Whether all of them, in every array, begin at one. Else no piece is read at once.
    single : bool
        Whether a thread has one element of a row, or of each of its sections, instead of pieces.
    """

    team: int
    teams: int
    pieces: int
    whole: bool
    aligned: bool = True
    single: bool = False

    @property
    def threads(self) -> int:
        """The number of threads of a block."""
        return self.team * self.teams
