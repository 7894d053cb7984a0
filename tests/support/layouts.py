"""Arrays of every memory layout, and at every distance from a cache line."""

import numpy as np


def strided(array):
    """Every second element of each axis of a larger array."""
    wide = np.full([2 * n for n in array.shape], 77, array.dtype)
    view = wide[tuple(slice(None, None, 2) for _ in array.shape)]
    view[...] = array
    return view


def backwards(array):
    """Negative strides."""
    return np.flip(np.flip(array).copy())


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


def unaligned(array):
    """One byte beyond where the elements should lie."""
    memory = np.empty(array.nbytes + 1, np.uint8)
    moved = np.ndarray(array.shape, array.dtype, memory, offset=1)
    moved[...] = array
    return moved


def repeated(array):
    """The first entry for every one, without a copy."""
    return np.broadcast_to(array[:1], array.shape)


def swapped(array):
    """The other byte order."""
    return array.astype(array.dtype.newbyteorder("S"))


LAYOUTS = [strided, backwards, np.asfortranarray, read_only, unaligned, repeated]


def placed(shape, dtype, offset):
    """An array that begins so many bytes after a cache line."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.empty(size + 128, np.uint8)
    start = -memory.ctypes.data % 64 + offset
    return memory[start : start + size].view(dtype).reshape(shape)
