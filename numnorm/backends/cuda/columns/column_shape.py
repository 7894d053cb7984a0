"""How the threads of a block share the channels, and into which parts an array is cut."""

import dataclasses

from numnorm.backends.cuda.compiler.element_type import Element
from numnorm.layouts import ColumnLayout

# The most values that one thread adds up in one sum: what rounding costs grows with their number.
_MOST_STEPS = 64
# So many blocks keep any device busy; a smaller array is cut into smaller parts instead.
_BLOCKS = 512
_THREADS = 256
# The pieces that a thread reads before it uses the first. Reads of single elements are short ones,
# of which more must be under way.
_AHEAD, _SINGLE_AHEAD = 4, 8
_LANES = 32


@dataclasses.dataclass(frozen=True)
class ColumnShape:
    """How the threads of a block share a part of an array ``(outer, channels, inner)``.

    Without inner axes a lane works on channels of its own, with them a block works on one channel,
    and the lanes share its contiguous elements. Either way they are dealt out in pieces: of 16
    bytes, or of a single element if the array is not `whole`. That does not depend on where the
    array lies in memory, so that its sums do not.

    Parameters
    ----------
    lanes : int
        The number of threads side by side in memory, a power of two.
    teams : int
        The number of outer entries that they work on at a time, a power of two.
    ahead : int
        The number of its entries that a thread reads before it uses the first.
    pieces : int
        The number of pieces that it reads of each of them; 1 without inner axes.
    whole : bool
        Whether the channels or, with inner axes, the elements of each fill a multiple of 16 bytes.
    aligned : bool
        Whether every array begins at a multiple of 16 bytes. Else no piece is read at once.
    """

    lanes: int
    teams: int
    ahead: int
    pieces: int
    whole: bool
    aligned: bool = True

    @property
    def threads(self) -> int:
        """The number of threads of a block."""
        return self.lanes * self.teams

    def piece(self, element: Element) -> int:
        """Return how many neighbouring elements a piece has."""
        return element.vector if self.whole else 1


@dataclasses.dataclass(frozen=True)
class Partition:
    """The parts of an array, each of which is one block's work for some of the channels.

    Parameters
    ----------
    block : int
        The number of outer entries of a part.
    segment : int
        The number of inner elements of a part.
    parts : int
        How many parts there are.
    blocks : int
        How many blocks of threads work on all parts.
    """

    block: int
    segment: int
    parts: int
    blocks: int


def column_shape(
    element: Element, layout: ColumnLayout, *, aligned: bool, arrays: int
) -> ColumnShape:
    """Return a shape for a kernel whose threads read from so many arrays at a time."""
    width = layout.channels if layout.inner == 1 else layout.inner
    whole = width % element.vector == 0
    pieces = width // element.vector if whole else width
    ahead = _AHEAD // arrays if whole else _SINGLE_AHEAD
    aligned = aligned or not whole  # single elements always are
    if layout.inner == 1:
        lanes = min(_LANES, _power_of_two(pieces))
        return ColumnShape(lanes, _THREADS // lanes, ahead, 1, whole, aligned)
    lanes = min(_THREADS, _power_of_two(pieces))
    of_one = min(ahead, _power_of_two(-(-pieces // lanes)))
    return ColumnShape(lanes, _THREADS // lanes, ahead // of_one, of_one, whole, aligned)


def partition(element: Element, layout: ColumnLayout, shape: ColumnShape) -> Partition:
    """Return the parts of an array: they follow from its shape and from nothing else."""
    if layout.inner == 1:
        columns = -(-layout.channels // (shape.lanes * shape.piece(element)))
        steps = _steps(-(-layout.outer // shape.teams) * columns, shape.ahead)
        block = shape.teams * steps
        parts = -(-layout.outer // block)
        return Partition(block, 1, parts, parts * columns)
    stride = shape.lanes * shape.piece(element)
    turns = -(-layout.inner // stride)
    entries = -(-layout.outer // shape.teams)
    steps = _steps(turns * entries * layout.channels, shape.ahead * shape.pieces)
    cuts = -(-turns // steps)
    segment = -(-turns // cuts) * stride
    block = shape.teams * max(1, steps // turns)
    cuts = -(-layout.inner // segment)
    parts = -(-layout.outer // block) * cuts
    return Partition(block, segment, parts, parts * layout.channels)


def stream_shape(element: Element, layout: ColumnLayout, *, aligned: bool) -> ColumnShape:
    """Return a shape for the moments of a stream, whose parts may be small."""
    shape = column_shape(element, layout, aligned=aligned, arrays=1)
    if layout.inner == 1:
        return shape
    teams = _power_of_two(-(-layout.block // shape.ahead))
    teams = max(min(shape.teams, teams), _LANES // shape.lanes)
    return dataclasses.replace(shape, teams=teams)


def stream_partition(element: Element, layout: ColumnLayout, shape: ColumnShape) -> Partition:
    """Return the parts of a chunk of a stream.

    Those of the same entries are the same in every chunk, if each but the last has a multiple of
    `layout.block` entries: they do not depend on how many there are.
    """
    if layout.inner == 1:
        columns = -(-layout.channels // (shape.lanes * shape.piece(element)))
        return Partition(layout.block, 1, layout.blocks, layout.blocks * columns)
    stride = shape.lanes * shape.piece(element)
    turns = -(-layout.inner // stride)
    segment = -(-turns // -(-turns // _MOST_STEPS)) * stride
    parts = layout.blocks * -(-layout.inner // segment)
    return Partition(layout.block, segment, parts, parts * layout.channels)


def _steps(all_steps: int, least: int) -> int:
    return max(least, min(_MOST_STEPS, all_steps // _BLOCKS))


def _power_of_two(number: int) -> int:
    """Return the least power of two that is not less."""
    return 1 << (max(number, 1) - 1).bit_length()
