"""How the threads of a block divide a part of an array, and how blocks divide the array.

The launch configurations of column kernels are cached for equal layouts.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

from numnorm.backends.cuda.arrays.device_array import DeviceArray
from numnorm.backends.cuda.compiler.element_type import VECTOR_BYTES, ElementType
from numnorm.layouts import ColumnLayout

# The most values in one sum of a thread: the rounding error grows with their number.
_MOST_STEPS = 64
# Enough blocks to occupy a device. A small array is divided into smaller parts to get them.
_BLOCKS = 512
_THREADS = 256
# The vectors, or single elements, that a thread loads before it uses the first one. It loads more
# single elements, because they are small.
_AHEAD, _SINGLE_AHEAD = 4, 8
_LANES = 32


@dataclasses.dataclass(frozen=True)
class ColumnShape:
    """How the threads of a block divide a part of an array ``(outer, channels, inner)``.

    If inner is 1, each lane has its own channels. Otherwise a block has one channel, and its lanes
    divide the contiguous elements. Each lane gets 16-byte vectors, or single elements if the array
    is not `whole`. This does not depend on the address of the array, so no sum does.

    Parameters
    ----------
    lanes : int
        The number of threads that work on one outer entry, a power of two.
    teams : int
        The number of outer entries that a block works on at a time, a power of two.
    ahead : int
        The number of entries that a thread loads before it uses the first.
    vectors : int
        The number of vectors of each entry that a thread loads; 1 if inner is 1.
    whole : bool
        Whether the contiguous elements, channels or inner, fill a multiple of 16 bytes.
    aligned : bool
        Whether every array begins at a multiple of 16 bytes. Otherwise a thread loads elements one
        by one.
    """

    lanes: int
    teams: int
    ahead: int
    vectors: int
    whole: bool
    aligned: bool = True

    @property
    def threads(self) -> int:
        """The number of threads of a block."""
        return self.lanes * self.teams

    def vector_length(self, element: ElementType) -> int:
        """Return the number of elements of a vector: 1 if the array is not `whole`."""
        return element.vector if self.whole else 1


@dataclasses.dataclass(frozen=True)
class Partition:
    """The parts of an array. Each block works on one part of some channels.

    Parameters
    ----------
    block : int
        The number of outer entries of a part.
    segment : int
        The number of inner elements of a part.
    parts : int
        The number of parts.
    blocks : int
        The number of blocks for all parts and channels.
    """

    block: int
    segment: int
    parts: int
    blocks: int


def column_shape(
    element: ElementType, layout: ColumnLayout, *, aligned: bool, arrays: int
) -> ColumnShape:
    """Return the shape for a kernel that reads from `arrays` arrays at a time."""
    width = layout.channels if layout.inner == 1 else layout.inner
    whole = width % element.vector == 0
    vectors = width // element.vector if whole else width
    ahead = _AHEAD // arrays if whole else _SINGLE_AHEAD
    aligned = aligned or not whole  # one element is aligned
    if layout.inner == 1:
        lanes = min(_LANES, _power_of_two(vectors))
        return ColumnShape(lanes, _THREADS // lanes, ahead, 1, whole, aligned)
    lanes = min(_THREADS, _power_of_two(vectors))
    of_one = min(ahead, _power_of_two(-(-vectors // lanes)))
    return ColumnShape(lanes, _THREADS // lanes, ahead // of_one, of_one, whole, aligned)


def partition(element: ElementType, layout: ColumnLayout, shape: ColumnShape) -> Partition:
    """Return the parts of an array, which depend on its shape alone."""
    if layout.inner == 1:
        columns = -(-layout.channels // (shape.lanes * shape.vector_length(element)))
        steps = _steps(-(-layout.outer // shape.teams) * columns, shape.ahead)
        block = shape.teams * steps
        parts = -(-layout.outer // block)
        return Partition(block, 1, parts, parts * columns)
    stride = shape.lanes * shape.vector_length(element)
    turns = -(-layout.inner // stride)
    entries = -(-layout.outer // shape.teams)
    steps = _steps(turns * entries * layout.channels, shape.ahead * shape.vectors)
    segment = -(-turns // -(-turns // steps)) * stride
    block = shape.teams * max(1, steps // turns)
    parts = -(-layout.outer // block) * -(-layout.inner // segment)
    return Partition(block, segment, parts, parts * layout.channels)


def stream_shape(element: ElementType, layout: ColumnLayout, *, aligned: bool) -> ColumnShape:
    """Return the shape for the moments of a chunk of streamed data, whose parts may be small."""
    shape = column_shape(element, layout, aligned=aligned, arrays=1)
    if layout.inner == 1:
        return shape
    teams = _power_of_two(-(-layout.block // shape.ahead))
    teams = max(min(shape.teams, teams), _LANES // shape.lanes)
    return dataclasses.replace(shape, teams=teams)


def stream_partition(element: ElementType, layout: ColumnLayout, shape: ColumnShape) -> Partition:
    """Return the parts of a chunk of streamed data.

    If each chunk but the last has a multiple of `layout.block` entries, the parts do not depend on
    the size of the chunks.
    """
    if layout.inner == 1:
        columns = -(-layout.channels // (shape.lanes * shape.vector_length(element)))
        return Partition(layout.block, 1, layout.blocks, layout.blocks * columns)
    stride = shape.lanes * shape.vector_length(element)
    turns = -(-layout.inner // stride)
    segment = -(-turns // -(-turns // _MOST_STEPS)) * stride
    parts = layout.blocks * -(-layout.inner // segment)
    return Partition(layout.block, segment, parts, parts * layout.channels)


def _steps(all_steps: int, least: int) -> int:
    return max(least, min(_MOST_STEPS, all_steps // _BLOCKS))


def _power_of_two(number: int) -> int:
    """Return the least power of two that is at least a number."""
    return 1 << (max(number, 1) - 1).bit_length()


# Plans

# A block that merges parts in a tree: its lanes load neighbouring channels, and the parts are
# divided among its teams.
_FOLD_LANES, _FOLD_THREADS = 8, 256
# A block that merges parts one after the other, from the first to the last.
IN_ORDER = ColumnShape(32, 1, 1, 1, False)


class ColumnPlan(NamedTuple):
    """The launch of a kernel on an array.

    Attributes
    ----------
    shape : ColumnShape
        The threads of one block.
    parts, blocks : int
        The number of parts of the array, and of blocks for all parts.
    sizes : tuple of int
        Arguments of the kernel.
    """

    shape: ColumnShape
    parts: int
    blocks: int
    sizes: tuple[int, ...]


@functools.lru_cache(maxsize=1024)
def _plan(
    element: ElementType, layout: ColumnLayout, aligned: bool, arrays: int, streamed: bool
) -> ColumnPlan:
    if streamed:
        shape = stream_shape(element, layout, aligned=aligned)
        parts = stream_partition(element, layout, shape)
    else:
        shape = column_shape(element, layout, aligned=aligned, arrays=arrays)
        parts = partition(element, layout, shape)
    sizes: tuple[int, ...] = layout.outer, layout.channels, parts.block
    if layout.inner > 1:
        sizes = layout.outer, layout.channels, layout.inner, parts.block, parts.segment
    return ColumnPlan(shape, parts.parts, parts.blocks, sizes)


def plan_of(
    x: DeviceArray, layout: ColumnLayout, *arrays: Any, reads: int = 1, streamed: bool = False
) -> ColumnPlan:
    """Return the plan for a kernel that reads and writes the elements of these arrays.

    It reads from `reads` arrays at a time. With `streamed` x is a chunk of streamed data.
    """
    aligned = not any(x.lib.address(array) % VECTOR_BYTES for array in arrays)
    return _plan(x.element, layout, aligned, reads, streamed)


def fold_shape(channels: int) -> ColumnShape:
    """Return the shape for a kernel that merges parts in a tree."""
    lanes = min(_FOLD_LANES, 1 << (channels - 1).bit_length())
    return ColumnShape(lanes, _FOLD_THREADS // lanes, 1, 1, False)
