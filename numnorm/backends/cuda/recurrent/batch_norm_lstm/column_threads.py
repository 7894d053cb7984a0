"""The threads of a block that read some columns of all rows, and what they find together.

Neighbours read neighbouring columns, and so many strips of threads every so manieth row.
"""

import functools
from collections.abc import Callable
from typing import Any

from numnorm.backends.cuda.compiler.element_type import Element
from numnorm.backends.cuda.compiler.target import cuda, device
from numnorm.backends.cuda.threads.group_reductions import WARP

LANES = 8  # as many columns as fill the least piece of memory that is fetched
WARPS = 8  # of a block
THREADS = WARPS * WARP
STRIPS = THREADS // LANES
STRIPS_OF_WARP = WARP // LANES
_STEPS = STRIPS_OF_WARP.bit_length() - 1
_ALL = 0xFFFFFFFF


def blocks_for(columns: int) -> int:
    """Return how many blocks there are for so many columns."""
    return -(-columns // LANES)


def room_for_folds(count: int) -> int:
    """Return how many numbers a block's threads share for so many sums of each column."""
    return count * WARPS * LANES


def _sum(a, b):
    return a + b


def _larger(a, b):
    return b if a < b else a


def make_column_sums(element: Element, count: int, warps: int = WARPS) -> Any:
    """Return a device function ``sums(values, room)`` of so many sums for each column.

    Each of a thread's `values`, an array, becomes the sum over the strips, in the same order on
    any device: over those of a warp, which needs no room, or of all of the block's. All their
    threads take part.
    """
    return _make_folds(element, count, warps, _sum)


def make_largest_of_columns(element: Element, count: int, warps: int = WARPS) -> Any:
    """Return the like of `make_column_sums` for the largest of numbers."""
    return _make_folds(element, count, warps, _larger)


@functools.cache
def _make_folds(element: Element, count: int, warps: int, fold: Callable[..., Any]) -> Any:
    fold = device(fold)

    @device
    def in_warp(values, room):
        for k in range(count):
            for step in range(_STEPS):
                values[k] = fold(values[k], cuda.shfl_xor_sync(_ALL, values[k], LANES << step))

    if warps == 1:
        return in_warp

    @device
    def in_block(values, room):
        thread = cuda.threadIdx.x
        warp, lane = thread // WARP, thread % WARP
        in_warp(values, room)
        for k in range(count):
            if lane < LANES:
                room[(k * WARPS + warp) * LANES + lane] = values[k]
        cuda.syncthreads()
        for k in range(count):
            values[k] = room[k * WARPS * LANES + lane % LANES]
            for other in range(1, WARPS):
                values[k] = fold(values[k], room[(k * WARPS + other) * LANES + lane % LANES])
        cuda.syncthreads()  # the next ones take the same room

    return in_block
