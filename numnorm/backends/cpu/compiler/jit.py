"""Compiling helpers and kernels: the only place that sets Numba's options."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numba
import numpy as np
from numba import prange
from numba.core import cgutils, types
from numba.extending import intrinsic, overload

from numnorm.backends.cpu.compiler.cache import KernelCache
from numnorm.backends.cpu.compiler.helper_compiler import HelperCompiler

# Without `nnan` and `ninf`, so that NaN and infinity propagate, and without `reassoc`, which would
# make deviations inexact: explicit vectors choose the order of sums instead.
_FASTMATH = {"contract", "nsz"}
# Python's error model puts a branch into every division, which keeps a loop from vectorizing.
_COMMON = {"error_model": "numpy", "nogil": True}

Function = Callable[..., Any]


@functools.cache
def inlined(function: Function) -> Function:
    """Compile a helper that kernels inline."""
    # Inlining is forced: otherwise each kernel would link its own copy of the helper, and the
    # loader would choose which copy runs.
    options = {"forceinline": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return numba.njit(fastmath=_FASTMATH, pipeline_class=HelperCompiler, **options, **_COMMON)(
        function
    )


class Kernel(NamedTuple):
    """A compiled kernel with a serial and a parallel variant, which give the same bytes.

    Attributes
    ----------
    serial : callable
        ``serial(*arguments, first, last)`` does parts `first` to `last` - 1 of the work.
    parallel : callable
        ``parallel(parts, *arguments)`` does all parts: its threads call ``serial`` once a part.
        Load ``serial`` first, so that the loader binds these calls to it.
    """

    serial: Function
    parallel: Function

    def machine_code(self, arguments: tuple[Any, ...], alone: bool) -> "MachineCode | None":
        """Return the code of one variant for arguments of these types; None if not compiled.

        It is the serial variant if `alone` is true. Its arguments for `make_call` are then
        ``((*arguments, first, last),)``; those of the parallel variant ``(parts, arguments)``.
        """
        kernel: Any = self.serial if alone else self.parallel
        if not hasattr(kernel, "compile"):  # a plain function when NUMBA_DISABLE_JIT is set
            return None
        one = kernel.typeof_pyval((*arguments, 0, 0) if alone else arguments)
        kinds = (one,) if alone else (types.intp, one)
        kernel.compile(kinds)
        compiled = kernel.overloads[kinds]
        # Numba's result of a compilation is a named tuple.
        code = compiled._asdict()["library"]
        address = code.get_pointer_to_function(compiled.fndesc.llvm_func_name)
        return MachineCode(address, kinds, alone)


class MachineCode(NamedTuple):
    """The machine code of one variant of a kernel, which its dispatcher keeps alive.

    Attributes
    ----------
    address : int
        The address of its entry point.
    kinds : tuple
        The Numba types of its arguments.
    alone : bool
        Whether it is the serial variant.
    """

    address: int
    kinds: tuple[Any, ...]
    alone: bool


@functools.cache
def make_call(kinds: tuple[Any, ...]) -> Function:
    """Return a compiled ``call(address, arguments)`` of a kernel with arguments of these types.

    A call by name would link the kernel's code into the caller, and optimize it again.
    """

    @intrinsic
    def call(typing_context, address, arguments):
        if tuple(arguments) != kinds:
            raise TypeError(f"a kernel takes {kinds}, not {arguments}")

        def generate(context, builder, signature, values):
            convention = context.call_conv
            function = convention.get_function_type(types.none, kinds).as_pointer()
            status, _ = convention.call_function(
                builder, builder.inttoptr(values[0], function), types.none, kinds,
                cgutils.unpack_tuple(builder, values[1]),
            )  # fmt: skip
            with cgutils.if_unlikely(builder, status.is_error):
                convention.return_status_propagate(builder, status)
            return context.get_dummy_value()

        return types.void(types.intp, arguments), generate

    return call


def make_kernel(name: str, kernel: Function) -> Kernel:
    """Return both variants of ``kernel(*arguments, first, last)``, cached on disk under `name`.

    The function does parts `first` to `last` - 1 of the work and calls `mark_noinline` first.
    """
    serial = _entry(name + ".serial", kernel)

    def parallel(parts, *arguments):
        for p in prange(parts):
            # Numba counts a parallel loop in an unsigned integer: another type of argument.
            first = np.int64(p)
            serial(*arguments, first, first + 1)

    return Kernel(serial, _entry(name + ".parallel", parallel, parallel=True))


def entry(name: str, function: Function, kinds: tuple[Any, ...]) -> Function:
    """Compile a function for arguments of these types, which its calls do not check."""
    return _entry(name, function).compile(kinds)  # type: ignore[attr-defined]


def _entry(name: str, kernel: Function, *, parallel: bool = False) -> Function:
    # The symbol in the machine code consists of this name and a counter of the compiling process.
    # Without a name of its own, a kernel from another process could have the same symbol.
    kernel.__name__ = kernel.__qualname__ = "numnorm_" + name.replace(".", "_")
    compiled = numba.njit(fastmath=_FASTMATH, parallel=parallel, **_COMMON)(kernel)
    if hasattr(compiled, "_cache"):  # a plain function when NUMBA_DISABLE_JIT is set
        compiled._cache = KernelCache(name)
    return compiled


def mark_noinline() -> None:
    """Keep the serial variant, which calls this first, out of the parallel one.

    If it were inlined there, it would be optimized again, perhaps with other roundings.
    """


@intrinsic
def _set_noinline(typing_context):
    def generate(context, builder, signature, arguments):
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), generate


@overload(mark_noinline, inline="always")
def _mark_noinline_in_kernel() -> Function:
    return lambda: _set_noinline()
