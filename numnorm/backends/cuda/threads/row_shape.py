"""How the threads of a block share rows."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class RowShape:
    """How the threads of a block share its rows.

    The threads of a team share a row by vectors of 16 bytes or, if it is not `whole`, by single
    elements. This does not depend on the row's address, so no result does.

    Parameters
    ----------
    team : int
        The number of threads that share one row, a power of two. If several teams read a row in a
        loop, each of them has one segment of the row at a time.
    teams : int
        The number of teams of a block; 1 for teams that are wider than a warp.
    vectors : int
        The number of vectors of 16 bytes that a thread holds; 0 if it reads the row twice, in a
        loop.
    whole : bool
        Whether every row, or every segment, fills a multiple of 16 bytes.
    aligned : bool
        Whether rows and segments begin at multiples of 16 bytes in every array. Otherwise a
        thread loads elements one by one.
    single : bool
        Whether a thread has one element of a row, or of each of its sections, instead of vectors.
    """

    team: int
    teams: int
    vectors: int
    whole: bool
    aligned: bool = True
    single: bool = False

    @property
    def threads(self) -> int:
        """The number of threads of a block."""
        return self.team * self.teams
