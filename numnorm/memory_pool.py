"""Pools that reuse freed memory: one for results, off by default, and one for scratch memory.

The operating system zeroes fresh memory page by page, which takes longer than to normalize as
much.
"""

import threading
from typing import Any

import numpy as np

from numnorm.arguments import check_integer
from numnorm.operating_system import at_fork

Array = np.ndarray[Any, Any]

# The largest ratio of the size of a reused block to the requested size.
_SLACK = 1.25


class _Memory(np.ndarray[Any, Any]):
    """Memory of a pool.

    A subclass, because the views of a block would otherwise refer to a plain ndarray below it.
    """


class _Block(np.ndarray[Any, Any]):
    """The memory of a result; it returns to the pool after the last array that refers to it."""

    # None for a view of a block, whose base is the block.
    pool: "MemoryPool | None" = None

    def __del__(self) -> None:
        if self.pool is not None and self.base is not None:
            self.pool.give(self.base)


class MemoryPool:
    """Freed blocks of memory, at most `limit` bytes in total, the oldest first."""

    def __init__(self, limit: int = 0) -> None:
        self.limit = limit
        self._free: list[Array] = []
        # `take` and `give` never wait for it: garbage collection may call `give` in the thread
        # that holds it.
        self._lock = threading.Lock()

    def take(self, nbytes: int) -> Array:
        """Return at least `nbytes` uninitialized bytes."""
        if self.limit == 0:
            return np.empty(nbytes, np.uint8)
        memory = self._reuse(nbytes)
        if memory is None:
            memory = np.empty(nbytes, np.uint8).view(_Memory)
        block = memory.view(_Block)
        block.pool = self
        return block

    def _reuse(self, nbytes: int) -> Array | None:
        if not self._lock.acquire(blocking=False):
            return None
        try:
            for i in reversed(range(len(self._free))):
                if nbytes <= self._free[i].nbytes <= _SLACK * nbytes:
                    return self._free.pop(i)
            return None
        finally:
            self._lock.release()

    def give(self, memory: Array) -> None:
        """Keep freed memory; drop the oldest blocks beyond the limit."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._free.append(memory)
            self._shrink()
        finally:
            self._lock.release()

    def set_limit(self, nbytes: int) -> int:
        """Change the limit; return the previous one."""
        with self._lock:
            before, self.limit = self.limit, nbytes
            self._shrink()
        return before

    def _shrink(self) -> None:
        total = sum(memory.nbytes for memory in self._free)
        while total > self.limit:
            total -= self._free.pop(0).nbytes

    def forget_threads(self) -> None:
        """Replace the lock in a forked child, which lacks the thread that may have held it."""
        self._lock = threading.Lock()


POOL = MemoryPool()
# Scratch memory of recurrent cells: without it, page faults dominate short sequences.
WORKING_MEMORY = MemoryPool(1 << 27)

at_fork(after_in_child=POOL.forget_threads)
at_fork(after_in_child=WORKING_MEMORY.forget_threads)


def set_memory_pool(nbytes: int) -> int:
    """Keep the memory of freed results on the CPU for the next ones.

    The operating system zeroes fresh memory, which takes longer than to normalize it. With a
    pool, a new result reuses the memory of a freed one of about the same size; `out` does the
    same without a pool. Without either, the allocator usually reuses memory of the process for
    results of up to about 32 MB.

    Parameters
    ----------
    nbytes : int
        The largest number of bytes to keep, at least 0. With 0, the initial limit, there is no
        pool and all memory is freed at once.

    Returns
    -------
    int
        The previous limit.

    Raises
    ------
    TypeError, ValueError
        If `nbytes` is not an int, or negative.

    Examples
    --------
    >>> import numnorm
    >>> before = numnorm.set_memory_pool(1 << 30)
    >>> numnorm.set_memory_pool(before)
    1073741824
    """
    return POOL.set_limit(check_integer("nbytes", nbytes, 0))
