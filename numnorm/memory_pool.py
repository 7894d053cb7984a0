"""Pools of freed memory: of results, empty unless somebody asks for it, and of working memory.

Memory that the system hands out fresh has to be zeroed first, page by page, which takes longer
than to normalize as much.
"""

import os
import threading
from typing import Any

import numpy as np

from numnorm.arguments import check_integer

Array = np.ndarray[Any, Any]

# A block may be so much larger than what is asked for.
_SLACK = 1.25


class _Memory(np.ndarray[Any, Any]):
    """Memory of a pool. Of a class of its own, or arrays would refer to it past their block."""


class _Block(np.ndarray[Any, Any]):
    """Memory under the array of a result; when the last array on it is gone, the pool has it."""

    # A view of a block has none: it refers to the block.
    pool: "MemoryPool | None" = None

    def __del__(self) -> None:
        if self.pool is not None and self.base is not None:
            self.pool.give(self.base)


class MemoryPool:
    """Freed blocks of memory, up to a number of bytes in all, the last freed at the end."""

    def __init__(self, limit: int = 0) -> None:
        self.limit = limit
        self._free: list[Array] = []
        # Where it is taken nobody waits: a thread that holds it may be interrupted by the end of
        # an array, which wants it too.
        self._lock = threading.Lock()

    def take(self, nbytes: int) -> Array:
        """Return uninitialized bytes, at least so many."""
        if self.limit == 0:
            return np.empty(nbytes, np.uint8)
        memory = self._found(nbytes)
        if memory is None:
            memory = np.empty(nbytes, np.uint8).view(_Memory)
        block = memory.view(_Block)
        block.pool = self
        return block

    def _found(self, nbytes: int) -> Array | None:
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
        """Keep freed memory, if there is room for it; what was freed first makes room."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._free.append(memory)
            self._shrink()
        finally:
            self._lock.release()

    def set_limit(self, nbytes: int) -> int:
        """Change the limit; return the one before."""
        with self._lock:
            before, self.limit = self.limit, nbytes
            self._shrink()
        return before

    def _shrink(self) -> None:
        total = sum(memory.nbytes for memory in self._free)
        while total > self.limit:
            total -= self._free.pop(0).nbytes

    def forget_threads(self) -> None:
        """Replace the lock: a thread of the parent that held it does not exist in a child."""
        self._lock = threading.Lock()


POOL = MemoryPool()
# What a recurrent cell works in, which no caller sees: small beside what a training loop holds,
# and without it a short sequence's page faults would take longer than its products.
WORKING_MEMORY = MemoryPool(1 << 27)

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=POOL.forget_threads)
    os.register_at_fork(after_in_child=WORKING_MEMORY.forget_threads)


def set_memory_pool(nbytes: int) -> int:
    """Keep the memory of freed results on the CPU for the next ones.

    Fresh memory is zeroed by the operating system before it is handed out, which takes longer
    than to normalize it. With a pool, a result that nobody holds any more makes room for the
    next of about the same size; `out` does the same without a pool. Without either, results of
    up to some 32 MB are placed in memory that the process has already, as a rule.

    Parameters
    ----------
    nbytes : int
        The most bytes of freed results to keep, at least 0. With 0, which is how numnorm starts,
        there is no pool and all memory goes back at once.

    Returns
    -------
    int
        The limit before.

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
