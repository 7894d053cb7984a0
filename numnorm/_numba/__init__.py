"""The norms and cells inside functions that Numba compiles with ``@njit``.

There is nothing to import: Numba itself calls `init`, the entry point ``numba_extensions``, before
it compiles its first function.
"""

import functools
import sys


def init() -> None:
    """Register the public functions with Numba, if they have been imported.

    Otherwise `numnorm` calls this once they are. A process that does not use numnorm thus pays
    next to nothing.
    """
    for module in ("numnorm._public", "numnorm.rnn"):
        if module in sys.modules:
            _register(module)


@functools.cache
def _register(module: str) -> None:
    from numnorm._numba import registration

    registration.register(module)
