"""The threads of a block that read some columns of all rows, and what they find together.

Neighbours read neighbouring columns, and so many strips of threads every so manieth row.
"""

import functools
from collections.abc import Callable
from typing import Any

from numnorm.backends.cuda.elements import Element
from numnorm.backends.cuda.target import cuda, device
from numnorm.backends.cuda.team_sums import WARP

LANES = 8  # as many columns as fill the least piece of memory that is fetched
STRIPS = 32
THREADS = LANES * STRIPS
_WARPS = THREADS // WARP
_STEPS = (WARP // LANES).bit_length() - 1
_ALL = 0xFFFFFFFF


def blocks_for(columns: int) -> int:
    """Return how many blocks there are for so many columns."""
    return -(-columns // LANES)


def room_for_folds(count: int) -> int:
    """Return how many numbers a block's threads share for so many sums of each column."""
    return count * _WARPS * LANES


def _sum(a, b):
    return a + b


def _larger(a, b):
    return b if a < b else a


def make_column_sums(element: Element, count: int) -> Any:
    """Return a device function ``sums(values, room)`` of so many sums for each column.

    Each of a thread's `values`, an array, becomes the sum over the strips, in the same order on
    any device. All threads of a block take part.
    """
    return _make_folds(element, count, _sum)


def make_largest_of_columns(element: Element, count: int) -> Any:
    """Return the like of `make_column_sums` for the largest of numbers."""
    return _make_folds(element, count, _larger)


@functools.cache
def _make_folds(element: Element, count: int, fold: Callable[..., Any]) -> Any:
    fold = device(fold)

    @device
    def folds(values, room):
        thread = cuda.threadIdx.x
        warp, lane = thread // WARP, thread % WARP
        for k in range(count):
            value = values[k]
            for step in range(_STEPS):
                value = fold(value, cuda.shfl_xor_sync(_ALL, value, LANES << step))
            if lane < LANES:
                room[(k * _WARPS + warp) * LANES + lane] = value
        cuda.syncthreads()
        for k in range(count):
            total = room[k * _WARPS * LANES + lane % LANES]
            for other in range(1, _WARPS):
                total = fold(total, room[(k * _WARPS + other) * LANES + lane % LANES])
            values[k] = total
        cuda.syncthreads()  # the next ones take the same room

    return folds
