"""Fork handlers that keep a forked child safe from the state of Numba in its parent.

Numba's threads do not exist in the child, and GNU OpenMP kills it at its first parallel region.
A parent's thread that was compiling does not exist there either and would never release Numba's
compiler lock. So a fork takes that lock first and releases it in both processes.
"""

import sys
from typing import Any

from numnorm.operating_system import at_fork

_threads_are_gone = False
_lock: Any = None


def threads_are_gone() -> bool:
    """Return whether a parallel region could end this process."""
    return _threads_are_gone


def _hold_compilation() -> None:
    global _lock
    module = sys.modules.get("numba.core.compiler_lock")
    _lock = getattr(module, "global_compiler_lock", None)
    if _lock is not None:
        _lock.acquire()


def _release_compilation() -> None:
    if _lock is not None:
        _lock.release()


def _after_fork_in_child() -> None:
    global _threads_are_gone
    numba_parallel = sys.modules.get("numba.np.ufunc.parallel")
    if numba_parallel is not None and getattr(numba_parallel, "_is_initialized", True):
        _threads_are_gone = True
    _release_compilation()


at_fork(
    before=_hold_compilation,
    after_in_parent=_release_compilation,
    after_in_child=_after_fork_in_child,
)
