"""The only place where Numba's compilation options are chosen."""

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

# NaN and infinity still propagate: `nnan` and `ninf` are not among them. Nor is `reassoc`, which
# would undo what keeps deviations exact: what is summed in which order is told with lanes.
_FASTMATH = {"contract", "nsz"}
# Python's error model puts a branch into every division, which keeps a loop from vectorizing.
_COMMON = {"error_model": "numpy", "nogil": True}

Function = Callable[..., Any]


@functools.cache
def inlined(function: Function) -> Function:
    """Compile a helper of kernels, once for all that ask for it."""
    # Forced into the kernel: a helper on its own would be optimized once more in each kernel
    # that links it, and which of the copies is called would be the loader's choice.
    options = {"forceinline": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return numba.njit(fastmath=_FASTMATH, pipeline_class=HelperCompiler, **options, **_COMMON)(
        function
    )


class Kernel(NamedTuple):
    """One kernel to be run serially or in parallel, with the same machine code in both.

    Attributes
    ----------
    serial : callable
        ``serial(*arguments, first, last)`` does the parts of the work from first to last.
    parallel : callable
        ``parallel(parts, *arguments)`` does all parts, each by calling the serial kernel. The
        loader binds that call to the serial kernel if that one has been loaded before.
    """

    serial: Function
    parallel: Function

    def machine_code(self, arguments: tuple[Any, ...], alone: bool) -> "MachineCode | None":
        """Return the code of one of the twins for arguments of these types; None if not compiled.

        The serial one works `alone`, takes its arguments as one tuple and is entered as
        ``((*arguments, first, last),)``, the other as ``(parts, arguments)``.
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
    """A compiled kernel, which its dispatcher keeps for as long as the process lives.

    Attributes
    ----------
    address : int
        Where it is entered.
    kinds : tuple
        The Numba types of its arguments.
    alone : bool
        Whether it is the serial twin.
    """

    address: int
    kinds: tuple[Any, ...]
    alone: bool


@functools.cache
def make_call(kinds: tuple[Any, ...]) -> Function:
    """Return a compiled ``call(address, arguments)`` of a kernel with arguments of these types.

    Unlike a call by name it does not bring the kernel's code along, to be compiled once more.
    """

    @intrinsic
    def call(typing_context, address, arguments):
        if tuple(arguments) != kinds:
            raise TypeError(f"a kernel takes {kinds}, not {arguments}")

        def generate(context, builder, signature, values):
            convention = context.call_conv
            function = convention.get_function_type(types.none, kinds).as_pointer()
            status, _ = convention.call_function(
                builder,
                builder.inttoptr(values[0], function),
                types.none,
                kinds,
                cgutils.unpack_tuple(builder, values[1]),
            )
            with cgutils.if_unlikely(builder, status.is_error):
                convention.return_status_propagate(builder, status)
            return context.get_dummy_value()

        return types.void(types.intp, arguments), generate

    return call


def make_kernel(name: str, kernel: Function) -> Kernel:
    """Compile a kernel ``kernel(*arguments, first, last)``, kept on disk under `name`."""
    serial = _entry(name + ".serial", kernel)

    def parallel(parts, *arguments):
        for p in prange(parts):
            # Numba counts a parallel loop without a sign: that would be another serial kernel.
            first = np.int64(p)
            serial(*arguments, first, first + 1)

    return Kernel(serial, _entry(name + ".parallel", parallel, parallel=True))


def entry(name: str, function: Function, kinds: tuple[Any, ...]) -> Function:
    """Compile a function for arguments of these types, which a call does not compare."""
    return _entry(name, function).compile(kinds)  # type: ignore[attr-defined]


def _entry(name: str, kernel: Function, *, parallel: bool = False) -> Function:
    # The symbol in the machine code follows from this name and a count of the functions of the
    # process that compiled it: another kernel from another process could have the same one.
    kernel.__name__ = kernel.__qualname__ = "numnorm_" + name.replace(".", "_")
    compiled = numba.njit(fastmath=_FASTMATH, parallel=parallel, **_COMMON)(kernel)
    if hasattr(compiled, "_cache"):  # it is the plain function when NUMBA_DISABLE_JIT is set
        compiled._cache = KernelCache(name)
    return compiled


def mark_noinline() -> None:
    """Keep the serial kernel out of the parallel one, called in its first line.

    Inlined there, it would be optimized again, and its sums might come in another order.
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
