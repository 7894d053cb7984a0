"""Fork handlers that keep a forked child safe from the state of Numba in its parent.

Numba's threads do not exist in the child, and GNU OpenMP kills it at its first parallel region.
A parent's thread that was compiling does not exist there either and would never release Numba's
compiler lock. So a fork takes that lock first and releases it in both processes.
"""

import sys
import threading
from typing import Any

from numnorm.operating_system import at_fork

_threads_are_gone = False
# The lock that a thread holds while it forks; another one may fork before there is a lock.
_held = threading.local()


def threads_are_gone() -> bool:
    """Return whether a parallel region could end this process."""
    return _threads_are_gone


def _hold_compilation() -> None:
    module = sys.modules.get("numba.core.compiler_lock")
    _held.lock = getattr(module, "global_compiler_lock", None)
    if _held.lock is not None:
        _held.lock.acquire()


def _release_compilation() -> None:
    lock: Any = getattr(_held, "lock", None)
    if lock is not None:
        lock.release()


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
