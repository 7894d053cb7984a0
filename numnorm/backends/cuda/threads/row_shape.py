"""How the threads of a block share rows, and how row kernels are launched."""

import dataclasses

from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.threads.reductions import WARP


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


# Launch configurations

# Threads of a block of several rows. Small blocks share a multiprocessor.
_BLOCK = 128

# The most registers of 32 bits for a thread's elements: in a part of a warp, in a backward pass,
# and in a team of a warp or more. A warp with many elements needs no barrier for its sums.
_OF_PART, _OF_BACKWARD, _MOST = 8, 16, 32
_VECTORS = 8  # the most vectors of 16 bytes that a thread loads at a time
_LOOP = 1024  # threads of a block that reads a row in a loop

# Teams from narrow to wide, each with the most registers for the elements of a thread. Teams of
# more than a warp need barriers for their sums. The choice does not depend on the number of rows,
# so the result of a row does not.
_TEAMS = (
    *((1 << k, _OF_PART) for k in range(WARP.bit_length())),
    *((WARP << k, _MOST) for k in range(5)),
)

# Backward, a thread also holds dy and sums over rows in registers.
_BACKWARD_TEAMS = (1, 2, 4, 8, 16, WARP, 64, 128, 256, 512)
# Threads of a block that reads a row in a loop: one such block loads while another waits for its
# sums. Threads of a block that reads rows by columns.
_BACKWARD_LOOP, _BACKWARD_STRIP = 512, 128
_ROWS_OF_PART = 8  # the least rows of a part
_THREADS = 1 << 16  # the most threads of a launch; more would not run at the same time


def launch_shape(width: int, element: ElementType, *, aligned: bool) -> RowShape:
    """Return the shape for rows of `width` elements, `aligned` if all begin at 16 bytes."""
    needed = -(-width // element.vector)
    for team, registers in _TEAMS:
        vectors = -(-needed // team)
        if vectors <= _vectors(element, registers):
            return _shape(team, vectors, width, element, aligned)
    return _shape(_LOOP, 0, width, element, aligned)


def backward_shape(width: int, element: ElementType, *, aligned: bool) -> RowShape:
    """Return the shape for the gradients of rows of `width` elements."""
    most = _vectors(element, _OF_BACKWARD)
    needed = -(-width // element.vector)
    for team in _BACKWARD_TEAMS:
        vectors = -(-needed // team)
        if vectors <= most:
            return _shape(team, vectors, width, element, aligned)
    return _shape(_BACKWARD_LOOP, 0, width, element, aligned)


def _shape(team: int, vectors: int, width: int, element: ElementType, aligned: bool) -> RowShape:
    whole = width % element.vector == 0
    several = vectors > 0 and team <= WARP
    teams = max(1, _BLOCK // team) if several else 1
    return RowShape(team, teams, vectors, whole, aligned or not whole)  # one element is aligned


def segment_shape(width: int, segment: int, element: ElementType, shape: RowShape) -> RowShape:
    """Return how a block that reads rows in a loop shares the segments of a row.

    If a row has a segment for each warp, a team is a warp, or a part of one for short segments:
    such teams need no barrier. Otherwise the block is one team.
    """
    whole = shape.whole and segment % element.vector == 0
    team = min(WARP, 1 << (-(-segment // element.vector) - 1).bit_length())
    if width // segment < shape.threads // WARP:
        team = shape.threads
    return RowShape(team, shape.threads // team, 0, whole, shape.aligned or not whole)


def strip_shape(shape: RowShape) -> RowShape:
    """Return the shape of a block that reads a strip of columns of rows."""
    return RowShape(_BACKWARD_STRIP, 1, 1, shape.whole, shape.aligned)


def strips_of(width: int, element: ElementType, shape: RowShape) -> int:
    """Return how many strips of columns a row has, each for a block of this shape."""
    return -(-width // (shape.threads * element.vector))


def backward_parts(rows: int, shape: RowShape, channels: int, strips: int = 1) -> int:
    """Return the number of parts of the rows, a multiple of the channels.

    Each part has one row of sums in the result, and one block for each strip of columns. The
    number depends on the shapes alone, so that no sum depends on the device.
    """
    by_rows = -(-rows // (_ROWS_OF_PART * shape.teams))
    parts = min(by_rows, max(1, _THREADS // (shape.threads * strips)))
    return -(-parts // channels) * channels


def blocks_of(rows: int, shape: RowShape) -> int:
    """Return the number of blocks for the rows."""
    return -(-rows // shape.teams)


def _vectors(element: ElementType, registers: int) -> int:
    words = 2 if element.compute_name == "float64" else 1
    return min(_VECTORS, registers // (element.vector * words))
