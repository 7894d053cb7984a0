"""What a forked child must know of Numba in its parent; noticed from `import numnorm` on.

Numba's threads do not exist in the child, and GNU OpenMP kills it at its first parallel region.
A thread of the parent that was compiling does not exist either, and never gives back the lock
that it held: so a fork waits for it.
"""

import os
import sys
from typing import Any

_threads_are_gone = False
_held: Any = None


def threads_are_gone() -> bool:
    """Return whether a parallel region could end this process."""
    return _threads_are_gone


def _hold_compilation() -> None:
    global _held
    module = sys.modules.get("numba.core.compiler_lock")
    _held = getattr(module, "global_compiler_lock", None)
    if _held is not None:
        _held.acquire()


def _go_on_compiling() -> None:
    if _held is not None:
        _held.release()


def _after_fork_in_child() -> None:
    global _threads_are_gone
    numba_parallel = sys.modules.get("numba.np.ufunc.parallel")
    if numba_parallel is not None and getattr(numba_parallel, "_is_initialized", True):
        _threads_are_gone = True
    _go_on_compiling()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_hold_compilation,
        after_in_parent=_go_on_compiling,
        after_in_child=_after_fork_in_child,
    )
