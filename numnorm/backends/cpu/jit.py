"""The only place where Numba's compilation options are chosen."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numba
from numba.core import types
from numba.extending import intrinsic, overload

from numnorm.backends.cpu.cache import KernelCache

# NaN and infinity still propagate: `nnan` and `ninf` are not in either set. `reassoc` lets a
# sum use vector lanes; nothing else may use it, because it would undo `centre`.
_ELEMENTWISE = {"contract", "nsz"}
_SUMS = _ELEMENTWISE | {"reassoc", "arcp", "afn"}
# Python's error model puts a branch into every division, which keeps a loop from vectorizing.
_COMMON = {"error_model": "numpy", "nogil": True}

Function = Callable[..., Any]


def elementwise(function: Function) -> Function:
    """Compile a helper whose arithmetic must keep its order."""
    return numba.njit(fastmath=_ELEMENTWISE, **_COMMON)(function)


def sums(function: Function) -> Function:
    """Compile a helper whose sums may be taken in any order that the compiler fixes."""
    return numba.njit(fastmath=_SUMS, **_COMMON)(function)


class Twins(NamedTuple):
    """One kernel compiled twice: the results are the same to the bit."""

    serial: Function
    parallel: Function


def twins(name: str, kernel: Function) -> Twins:
    """Compile a kernel that Python calls, kept on disk under `name`.

    Its `prange` is a plain loop in the serial twin.
    """
    return Twins(_entry(name + ".serial", kernel), _entry(name + ".parallel", kernel, True))


def _entry(name: str, kernel: Function, parallel: bool = False) -> Function:
    compiled = numba.njit(fastmath=_ELEMENTWISE, parallel=parallel, **_COMMON)(kernel)
    if hasattr(compiled, "_cache"):  # it is the plain function when NUMBA_DISABLE_JIT is set
        compiled._cache = KernelCache(name)
    return compiled


def stand_alone() -> None:
    """Keep the calling kernel from being inlined, called in its first line.

    The serial and the parallel entry then run the very same machine code, so that their
    results are the same to the bit whatever the compiler does around them.
    """


@intrinsic
def _mark_noinline(typing_context):
    def generate(context, builder, signature, arguments):
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), generate


@overload(stand_alone, inline="always")
def _stand_alone() -> Function:
    return lambda: _mark_noinline()
