"""Arrays beside memory that no process may read: a read outside of one ends the process."""

import ctypes
import mmap

import numpy as np

PAGE = mmap.PAGESIZE
_LIBRARY = ctypes.CDLL(None, use_errno=True)
_NO_ACCESS = 0


class GuardedMemory:
    """Copies of arrays, each of which begins after a guard page, or ends before one.

    The memory stays mapped as long as this object lives.
    """

    def __init__(self):
        self._mappings = []

    def after_guard(self, values, offset):
        """Return a copy that begins `offset` bytes after a guard page, as malloc's arrays do."""
        return self._copy(values, offset, ends=False)

    def before_guard(self, values):
        """Return a copy that ends at a guard page."""
        return self._copy(values, 0, ends=True)

    def _copy(self, values, offset, *, ends):
        values = np.asarray(values, order="C")
        body = -(-max(values.nbytes + offset, 1) // PAGE) * PAGE
        mapping = mmap.mmap(-1, body + 2 * PAGE)
        self._mappings.append(mapping)
        first = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
        for guard in (first, first + PAGE + body):
            if _LIBRARY.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(PAGE), _NO_ACCESS):
                raise OSError(ctypes.get_errno(), "mprotect")
        start = PAGE + (body - values.nbytes if ends else offset)
        copy = np.frombuffer(mapping, np.uint8, values.nbytes, start).view(values.dtype)
        copy = copy.reshape(values.shape)
        copy[...] = values
        return copy
