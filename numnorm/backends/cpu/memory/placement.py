"""Where numnorm puts the outputs that it allocates.

Aligned to a cache line, and away from the inputs modulo 4096 bytes: a store whose address ends
like that of a load close behind it makes the processor wait. NumPy's own large arrays all begin
16 bytes into a page, which is the worst case.
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
# How far, modulo a page, tables begin from each other: an odd number of lines.
_STAGGER = 13 * LINE

Array = np.ndarray[Any, Any]

_byte_of: Any = ctypes.c_char.from_buffer


def address_of(array: Array) -> int:
    """Return the address of an array's first element."""
    try:
        return ctypes.addressof(_byte_of(array))
    except (TypeError, ValueError):  # an array that is strided, read-only or empty: slower
        return int(array.__array_interface__["data"][0])


def peel_bytes(array: Array) -> int:
    """Return how many elements of an array lie before a cache line; 0 if none begins at one."""
    before, itemsize = -address_of(array) % LINE, array.itemsize
    return before // itemsize if before % itemsize == 0 else 0


def empty_like(source: Array, other: Array | None = None, *, aligned: bool = False) -> Array:
    """Return an uninitialized array like a C-contiguous one, placed well for a kernel's output.

    The kernel reads `source` and maybe another array of its size. The output begins on a cache
    line or, if it is to be `aligned`, as far into one as `source`.
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
    """Return an uninitialized table each of whose rows has a cache line begin after its head.

    It has as many columns as that takes.
    """
    aligned = LINE // dtype.itemsize
    width = -(-columns // aligned) * aligned
    memory = np.empty(rows * width + aligned, dtype)
    offset = -(address_of(memory) + peel * dtype.itemsize) % LINE // dtype.itemsize
    return memory[offset : offset + rows * width].reshape(rows, width)


def tables(pool: MemoryPool, dtype: np.dtype[Any], *shapes: tuple[int, ...]) -> list[Array]:
    """Return uninitialized C-contiguous arrays of these shapes, each from a cache line on.

    They are cut from one block of a pool.
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
    """Return how many bytes tables of these shapes take, and where in them each begins."""
    sizes = [math.prod(shape) * itemsize for shape in shapes]
    # A whole number of pages apart, a store in one would be near a load in another, modulo a page.
    room = [-(-size // _PAGE) * _PAGE + _STAGGER for size in sizes]
    return sum(room), tuple(itertools.accumulate(room[:-1], initial=0))


def _far_from(one: int, other: int) -> int:
    """Return the multiple of a cache line, modulo a page, that is farthest from two addresses."""
    start, gap = one, (other - one) % _PAGE
    if 2 * gap < _PAGE:  # the way on from the other to the one is longer
        start, gap = other, _PAGE - gap
    return (start + gap // 2) % _PAGE // LINE * LINE


def writable_alias(array: Array) -> Array:
    """Return the same memory as a writable array, for kernels that only read it.

    Numba compiles a kernel once more for read-only arrays; this spares that and a copy.
    """
    interface = dict(array.__array_interface__)
    interface["data"] = (interface["data"][0], False)
    holder = _Memory()
    holder.__array_interface__ = interface
    holder.owner = array
    return np.asarray(holder)


class _Memory:
    """Memory that belongs to another array, kept alive with it."""

    __array_interface__: dict[str, Any]
    owner: Array
