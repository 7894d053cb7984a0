"""Arrays of every memory layout and alignment."""

import numpy as np


def strided(array):
    """Return a view of every second element along each axis of a larger array."""
    wide = np.full([2 * n for n in array.shape], 77, array.dtype)
    view = wide[tuple(slice(None, None, 2) for _ in array.shape)]
    view[...] = array
    return view


def backwards(array):
    """Return a view with negative strides."""
    return np.flip(np.flip(array).copy())


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


def unaligned(array):
    """Return an array one byte off its alignment."""
    memory = np.empty(array.nbytes + 1, np.uint8)
    moved = np.ndarray(array.shape, array.dtype, memory, offset=1)
    moved[...] = array
    return moved


def repeated(array):
    """Repeat the first entry with a stride of 0."""
    return np.broadcast_to(array[:1], array.shape)


def swapped(array):
    """Return an array in the other byte order."""
    return array.astype(array.dtype.newbyteorder("S"))


LAYOUTS = [strided, backwards, np.asfortranarray, read_only, unaligned, repeated]


def placed(shape, dtype, offset):
    """Return an array that begins `offset` bytes after a cache line boundary."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.empty(size + 128, np.uint8)
    start = -memory.ctypes.data % 64 + offset
    return memory[start : start + size].view(dtype).reshape(shape)
