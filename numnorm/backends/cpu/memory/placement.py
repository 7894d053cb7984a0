"""Allocation of outputs and tables at addresses that suit the kernels.

They begin on a cache line and at a distance from the inputs modulo 4096 bytes: a load stalls if
its address equals that of an earlier store modulo 4096. NumPy's large arrays are the worst case,
because all begin at the same offset into a page.
"""

import ctypes
import functools
import itertools
import math
from typing import Any

import numpy as np

from numnorm.backends.cpu import tuning
from numnorm.memory_pool import POOL, MemoryPool

LINE = 64
_PAGE = 4096
# The distance between the starts of tables, modulo a page: an odd number of lines.
_STAGGER = 13 * LINE

Array = np.ndarray[Any, Any]

_byte_of: Any = ctypes.c_char.from_buffer


def address_of(array: Array) -> int:
    """Return the address of an array's first element."""
    try:
        return ctypes.addressof(_byte_of(array))
    except (TypeError, ValueError):  # strided, read-only or empty
        return int(array.__array_interface__["data"][0])


def peel_elements(array: Array) -> int:
    """Return the number of elements before the first cache line; 0 if no element begins there."""
    before, itemsize = -address_of(array) % LINE, array.itemsize
    return before // itemsize if before % itemsize == 0 else 0


def empty_like(source: Array, other: Array | None = None, *, aligned: bool = False) -> Array:
    """Return an uninitialized array like a C-contiguous one, for the output of a kernel.

    The kernel reads `source` and maybe `other`, an array of the same size. The output begins on a
    cache line or, if `aligned`, at the same offset into a line as `source`.
    """
    nbytes = source.nbytes
    if nbytes < tuning.PLACE_LEAST_BYTES:
        return np.empty_like(source)
    memory = POOL.take(nbytes + _PAGE + LINE)
    address = address_of(source)
    offset = _far_from(address, address if other is None else address_of(other))
    offset = (offset - address_of(memory)) % _PAGE + (address % LINE if aligned else 0)
    return np.ndarray(source.shape, source.dtype, memory, offset)


def empty_table(rows: int, columns: int, dtype: np.dtype[Any], peel: int = 0) -> Array:
    """Return an uninitialized table with a cache line after the first `peel` elements of each row.

    `columns` is rounded up to whole lines.
    """
    of_line = LINE // dtype.itemsize
    width = -(-columns // of_line) * of_line
    memory = np.empty(rows * width + of_line, dtype)
    offset = -(address_of(memory) + peel * dtype.itemsize) % LINE // dtype.itemsize
    return memory[offset : offset + rows * width].reshape(rows, width)


def tables(pool: MemoryPool, dtype: np.dtype[Any], *shapes: tuple[int, ...]) -> list[Array]:
    """Return uninitialized C-contiguous arrays of these shapes from one block of a pool.

    Each begins on a cache line.
    """
    nbytes, offsets = _offsets(dtype.itemsize, shapes)
    memory = pool.take(nbytes + LINE)
    start = -address_of(memory) % LINE
    return [
        np.ndarray(shape, dtype, memory, start + offset)
        for shape, offset in zip(shapes, offsets, strict=True)
    ]


@functools.lru_cache(maxsize=1024)
def _offsets(itemsize: int, shapes: tuple[tuple[int, ...], ...]) -> tuple[int, tuple[int, ...]]:
    """Return the bytes of a block for tables of these shapes, and the offset of each table."""
    sizes = [math.prod(shape) * itemsize for shape in shapes]
    # Not whole pages apart: stores to one table would stall loads of another.
    spans = [-(-size // _PAGE) * _PAGE + _STAGGER for size in sizes]
    return sum(spans), tuple(itertools.accumulate(spans[:-1], initial=0))


def _far_from(one: int, other: int) -> int:
    """Return the cache line of a page that is farthest, modulo a page, from two addresses."""
    start, gap = one, (other - one) % _PAGE
    if 2 * gap < _PAGE:  # the gap from the other to the one is longer
        start, gap = other, _PAGE - gap
    return (start + gap // 2) % _PAGE // LINE * LINE


def writable_alias(array: Array) -> Array:
    """Return the same memory as a writable array, for kernels that only read it.

    Numba would compile the kernel again for read-only arrays.
    """
    interface = dict(array.__array_interface__)
    interface["data"] = (interface["data"][0], False)
    holder = _Memory()
    holder.__array_interface__ = interface
    holder.owner = array
    return np.asarray(holder)


class _Memory:
    """The memory of another array, which it keeps alive."""

    __array_interface__: dict[str, Any]
    owner: Array
