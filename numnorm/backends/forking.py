"""Whether this process is the forked child of one whose Numba threads had been started.

Those threads do not exist in the child, and GNU OpenMP kills it at its first parallel region.
This is noticed from `import numnorm` on, whoever started the threads, and without Numba.
"""

import os
import sys

_threads_are_gone = False


def threads_are_gone() -> bool:
    """Return whether a parallel region could end this process."""
    return _threads_are_gone


def _after_fork_in_child() -> None:
    global _threads_are_gone
    numba_parallel = sys.modules.get("numba.np.ufunc.parallel")
    if numba_parallel is not None and getattr(numba_parallel, "_is_initialized", True):
        _threads_are_gone = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
