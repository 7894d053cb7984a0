"""The launch configurations of column kernels, cached for equal layouts."""

import functools
from typing import Any, NamedTuple

from numnorm.backends.cuda.arrays.device_array import DeviceArray
from numnorm.backends.cuda.columns.column_shape import (
    ColumnShape,
    column_shape,
    partition,
    stream_partition,
    stream_shape,
)
from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.vector_access import BYTES
from numnorm.layouts import ColumnLayout

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
    aligned = not any(x.lib.address(array) % BYTES for array in arrays)
    return _plan(x.element, layout, aligned, reads, streamed)


def fold_shape(channels: int) -> ColumnShape:
    """Return the shape for a kernel that merges parts in a tree."""
    lanes = min(_FOLD_LANES, 1 << (channels - 1).bit_length())
    return ColumnShape(lanes, _FOLD_THREADS // lanes, 1, 1, False)
