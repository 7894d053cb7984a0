"""How many threads work on a row, and how many rows on a block."""

from numnorm.backends.cuda.compiler.element_type import Element
from numnorm.backends.cuda.threads.group_reductions import WARP
from numnorm.backends.cuda.threads.row_shape import RowShape

# Of a block of several rows: few enough that many blocks share a multiprocessor.
_BLOCK = 128

# A thread's elements are in registers, of 32 bits: so many at ease, and at most.
_EASY, _MOST = 16, 32
_PIECES = 8  # in flight for each thread, at most
_LOOP = 1024  # threads of a block that reads a row in a loop

# Teams from narrow to wide, each with the most registers that its threads may fill. Those of more
# than a warp need barriers for their sums. None of this depends on how many rows there are: so a
# row's result does not.
_TEAMS = (
    *((1 << k, _EASY // 2) for k in range(WARP.bit_length())),
    *((WARP, _EASY), (128, _EASY), (256, _EASY), (256, _MOST), (512, _MOST)),
)


# Sums over rows stay in registers too, beside a row of x and of dy.
_BACKWARD_TEAMS = (1, 2, 4, 8, 16, WARP, 64, 128, 256, 512)
# Threads of a block that reads such a row in a loop: two of them share a multiprocessor, so that
# one reads while the other waits for its sums. Threads of a block that reads it by columns.
_BACKWARD_LOOP, _BACKWARD_STRIP = 512, 128
_ROWS_OF_PART = 8
_THREADS = 1 << 17  # of all blocks together: as many as the largest devices run at a time


def row_shape(width: int, element: Element, *, aligned: bool) -> RowShape:
    """Return the shape for rows of so many elements, in arrays that may all be `aligned`."""
    needed = -(-width // element.vector)
    for team, registers in _TEAMS:
        pieces = -(-needed // team)
        if pieces <= _pieces(element, registers):
            return _shape(team, pieces, width, element, aligned)
    return _shape(_LOOP, 0, width, element, aligned)


def backward_shape(width: int, element: Element, *, aligned: bool) -> RowShape:
    """Return the shape for the gradients of rows of so many elements."""
    most, needed = _pieces(element, _EASY), -(-width // element.vector)
    for team in _BACKWARD_TEAMS:
        pieces = -(-needed // team)
        if pieces <= most:
            return _shape(team, pieces, width, element, aligned)
    return _shape(_BACKWARD_LOOP, 0, width, element, aligned)


def _shape(team: int, pieces: int, width: int, element: Element, aligned: bool) -> RowShape:
    whole, several = width % element.vector == 0, pieces > 0 and team <= WARP
    teams = max(1, _BLOCK // team) if several else 1
    return RowShape(team, teams, pieces, whole, aligned or not whole)  # single elements always are


def run_shape(width: int, run: int, element: Element, shape: RowShape) -> RowShape:
    """Return how the threads of a block that reads rows in a loop share the runs of a row.

    Where there are enough runs for all of its warps, they are dealt out to warps or, if they are
    short, to parts of them: threads that no barrier keeps together.
    """
    whole = shape.whole and run % element.vector == 0
    team = min(WARP, 1 << (-(-run // element.vector) - 1).bit_length())
    if width // run < shape.threads // WARP:
        team = shape.threads
    return RowShape(team, shape.threads // team, 0, whole, shape.aligned or not whole)


def strip_shape(shape: RowShape) -> RowShape:
    """Return the shape of a block that reads some columns of such rows."""
    return RowShape(_BACKWARD_STRIP, 1, 1, shape.whole, shape.aligned)


def strips_of(width: int, element: Element, shape: RowShape) -> int:
    """Return how many blocks share the columns of a row, by the shape of one."""
    return -(-width // (shape.threads * element.vector))


def backward_parts(rows: int, shape: RowShape, channels: int, strips: int = 1) -> int:
    """Return into how many parts the rows are cut, a multiple of the channels.

    It follows from the shapes alone, so that no sum depends on the device. A part has some rows
    for every row of sums that it leaves, and a block for each of so many strips of columns.
    """
    by_rows = -(-rows // (_ROWS_OF_PART * shape.teams))
    parts = min(by_rows, max(1, _THREADS // (shape.threads * strips)))
    return -(-parts // channels) * channels


def blocks_of(rows: int, shape: RowShape) -> int:
    """Return the number of blocks for so many rows."""
    return -(-rows // shape.teams)


def _pieces(element: Element, registers: int) -> int:
    words = 2 if element.working_name == "float64" else 1
    return min(_PIECES, registers // (element.vector * words))
