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
    if "numnorm.public" in sys.modules:
        _register()


@functools.cache
def _register() -> None:
    from numnorm.numba import registration

    registration.register()
