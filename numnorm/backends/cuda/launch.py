"""How many threads work on a row, and how many rows on a block."""

from numnorm.backends.cuda.elements import Element
from numnorm.backends.cuda.row_shape import RowShape
from numnorm.backends.cuda.team_sums import WARP

# Of a block of several rows: few enough that many blocks share a multiprocessor.
_BLOCK = 128

# A thread's elements are in registers: so many numbers of the working type at ease, and at most.
_EASY, _MOST = 16, 32
_PIECES = 8  # in flight for each thread, at most

# Teams of more than a warp, whose sums need barriers. Neither they nor the pieces depend on how
# many rows there are: so a row's result does not.
_WIDE_TEAMS = ((128, _EASY), (256, _EASY), (256, _MOST), (512, _MOST), (1024, _MOST))


def widest_row(element: Element, *, whole: bool) -> int:
    """Return the number of elements up to which a row fits the registers of a block."""
    team, numbers = _WIDE_TEAMS[-1]
    capacity = team * _pieces(element, numbers) * element.vector
    return capacity if whole else capacity - element.vector + 1


def row_shape(width: int, element: Element, *, whole: bool) -> RowShape:
    """Return the shape for rows of so many elements.

    Raises
    ------
    NotImplementedError
        If they do not fit the registers.
    """
    vector = element.vector
    # A row that begins anywhere may touch one more piece than it fills.
    needed = -(-(width if whole else width + vector - 1) // vector)
    for team, numbers in _teams():
        pieces = -(-needed // team)
        if pieces <= _pieces(element, numbers):
            teams = max(1, _BLOCK // team) if team <= WARP else 1
            return RowShape(team, teams, pieces, whole)
    raise NotImplementedError(
        f"rows of {width} elements of {element.name} are wider than the "
        f"{widest_row(element, whole=whole)} that are normalized on a device"
    )


def blocks_of(rows: int, shape: RowShape) -> int:
    """Return the number of blocks for so many rows."""
    return -(-rows // shape.teams)


def _teams() -> tuple[tuple[int, int], ...]:
    """Return teams from narrow to wide, each with the most numbers that its threads may hold."""
    narrow = tuple((1 << k, _EASY // 2) for k in range(WARP.bit_length()))
    return (*narrow, (WARP, _EASY), *_WIDE_TEAMS)


def _pieces(element: Element, numbers: int) -> int:
    return min(_PIECES, numbers // element.vector)
