"""Compiling helpers and kernels: the only place that sets Numba's options."""

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple

import numba
import numpy as np
from llvmlite import ir
from numba import prange
from numba.core import cgutils, config, types
from numba.extending import intrinsic, overload

from numnorm.backends.cpu.compiler.cache import KernelCache
from numnorm.backends.cpu.compiler.helper_compiler import (
    HelperCompiler,
    KernelCompiler,
    SharedHelperCompiler,
)

# Without `nnan` and `ninf`, so that NaN and infinity propagate, and without `reassoc`, which would
# make deviations inexact: explicit vectors choose the order of sums instead.
_FASTMATH = {"contract", "nsz"}
# Python's error model puts a branch into every division, which keeps a loop from vectorizing.
_COMMON = {
    "fastmath": _FASTMATH,
    "error_model": "numpy",
    "nogil": True,
    "no_cfunc_wrapper": True,
}
# Inlining is forced: otherwise each kernel would link its own copy of a helper, and the loader
# would choose which copy runs.
_HELPER = {
    **_COMMON,
    "forceinline": True,
    "no_cpython_wrapper": True,
    "_nrt": True,  # without it Numba allows no helper to return an array
    "pipeline_class": HelperCompiler,
}
_SHARED = {**_HELPER, "forceinline": False, "pipeline_class": SharedHelperCompiler}
Function = Callable[..., Any]
_LAUNCHER_KINDS = (types.intp,) * 4
_helpers: dict[Any, Function] = {}


def inlined(function: Function) -> Function:
    """Compile a helper that kernels inline.

    Factories make many functions of one code and equal constants. They are one helper, which is
    compiled once.
    """
    key = _identity(function)
    # The first of several threads makes the one that all get.
    return _helpers.get(key) or _helpers.setdefault(key, numba.njit(**_HELPER)(function))


def shared(function: Function) -> Function:
    """Compile a helper of which a kernel has one copy, however often it is called.

    A call costs some nanoseconds. It is for large helpers outside of the inner loops.
    """
    key = _identity(function), "shared"
    return _helpers.get(key) or _helpers.setdefault(key, numba.njit(**_SHARED)(function))


def _identity(value: Any) -> Any:
    """Return a key that is equal for values which make no difference to compiled code."""
    if isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        return value.__code__, value.__module__, *map(_identity, cells)
    if isinstance(value, tuple):
        return type(value), *map(_identity, value)
    try:
        hash(value)
    except TypeError:
        return id(value)
    return type(value), value


def overloaded(function: Function) -> Callable[[Function], Function]:
    """Return Numba's decorator `overload` for a function of helpers, which kernels inline."""
    return overload(function, jit_options=_HELPER)


class Kernel(NamedTuple):
    """A compiled kernel, which does parts of its work serially, or all parts in parallel.

    Attributes
    ----------
    entry : callable
        ``entry(launcher, *arguments, first, last)`` does parts `first` to `last` - 1: itself if
        `launcher` is 0, with threads if it is the `launcher_address`. Threads enter the same
        machine code, so both ways give the same bytes.
    serial : callable
        ``serial(*arguments, first, last)``: the entry without a launcher.
    """

    entry: Function
    serial: Function

    def machine_code(self, arguments: tuple[Any, ...]) -> "MachineCode | None":
        """Return the entry's code for arguments of these types; None if it is not compiled."""
        kernel: Any = self.entry
        if config.DISABLE_JIT:
            return None
        kinds = types.intp, kernel.typeof_pyval((*arguments, 0, 0))
        kernel.compile(kinds)
        return MachineCode(address_of(kernel, kinds), kinds)


class MachineCode(NamedTuple):
    """The machine code of a kernel, which its dispatcher keeps alive.

    Attributes
    ----------
    address : int
        The address of its entry.
    kinds : tuple
        The Numba types of the launcher and of the tuple of the other arguments, for `make_call`.
    """

    address: int
    kinds: tuple[Any, ...]


def address_of(function: Any, kinds: tuple[Any, ...]) -> int:
    """Return the address of the machine code of a function compiled for these types."""
    compiled = function.overloads[kinds]
    # Numba's result of a compilation is a named tuple.
    code = compiled._asdict()["library"]
    return int(code.get_pointer_to_function(compiled.fndesc.llvm_func_name))


def _call_at(
    context: Any,
    builder: Any,
    address: Any,
    kinds: tuple[Any, ...],
    values: Any,
    returned: Any = types.none,
) -> Any:
    """Generate a call of a compiled function by its address."""
    kind = context.call_conv.get_function_type(returned, kinds)
    function = builder.inttoptr(address, kind.as_pointer())
    return call_compiled(context, builder, function, kinds, values, returned)


def call_compiled(
    context: Any,
    builder: Any,
    function: Any,
    kinds: tuple[Any, ...],
    values: Any,
    returned: Any,
) -> Any:
    """Generate a call of a compiled function, and pass its error on."""
    status, result = context.call_conv.call_function(builder, function, returned, kinds, values)
    with cgutils.if_unlikely(builder, status.is_error):
        context.call_conv.return_status_propagate(builder, status)
    return result


@functools.cache
def make_call(kinds: tuple[Any, ...], returned: Any = types.none) -> Function:
    """Return a compiled ``call(address, arguments)`` of a function with arguments of these types.

    A call by name would link the kernel's code into the caller, and optimize it again.
    """

    @intrinsic
    def call(typing_context, address, arguments):
        if tuple(arguments) != kinds:
            raise TypeError(f"a kernel takes {kinds}, not {arguments}")

        def generate(context, builder, signature, values):
            given = cgutils.unpack_tuple(builder, values[1])
            result = _call_at(context, builder, values[0], kinds, given, returned)
            return context.get_dummy_value() if returned == types.none else result

        return returned(types.intp, arguments), generate

    return call


def _plain_ungrouped(arguments: Any) -> Any:
    return arguments


def _ungrouped(typing_context: Any, arguments: Any) -> Any:
    """Return the arguments."""
    return arguments(arguments), lambda context, builder, signature, values: values[0]


ungrouped = _plain_ungrouped if config.DISABLE_JIT else intrinsic(_ungrouped)


def make_kernel(name: str, kernel: Function, grouped: Function = ungrouped) -> Kernel:
    """Return the compiled ``kernel(*arguments, first, last)``, cached on disk under `name`.

    The function does parts `first` to `last` - 1 of the work. It gets the arguments of the entry
    as the compiled ``grouped(arguments)`` returns them.
    """
    body = inlined(kernel)
    launch = _make_launch(body, grouped)

    def entry(launcher, *arguments):
        if launcher == 0:
            body(*grouped(arguments))
        else:
            launch(launcher, arguments)

    compiled = _entry(name, entry, _nrt=False)
    return Kernel(compiled, functools.partial(compiled, 0))


def _make_launch(body: Function, grouped: Function) -> Function:
    """Return a compiled ``launch(launcher, arguments)``, with which an entry does its own parts."""

    def plain(launcher, arguments):
        *others, first, last = arguments
        for part in range(first, last):
            body(*grouped((*others, part, part + 1)))

    def launch(typing_context, launcher, arguments):
        def generate(context, builder, signature, values):
            entry, kinds = builder.function, signature.args
            # Inlined into its callers, the entry would be optimized there again, perhaps with
            # other roundings.
            entry.attributes.add("noinline")
            with builder.goto_entry_block():
                packed = builder.alloca(values[1].type)
            builder.store(values[1], packed)
            thunk = _add_thunk(context, entry, kinds)
            first, last = cgutils.unpack_tuple(builder, values[1])[-2:]
            addresses = [builder.ptrtoint(pointer, first.type) for pointer in (thunk, packed)]
            _call_at(context, builder, values[0], _LAUNCHER_KINDS, [*addresses, first, last])
            return context.get_dummy_value()

        return types.void(launcher, arguments), generate

    return plain if config.DISABLE_JIT else intrinsic(launch)


def _add_thunk(context: Any, entry: Any, kinds: tuple[Any, ...]) -> Any:
    """Add an LLVM function ``thunk(packed, part)`` that does one part of an entry's work.

    The launcher, which knows no types, passes on the address of the packed arguments.
    """
    size = context.get_value_type(types.intp)
    packed_type = context.get_value_type(kinds[1])
    thunk = ir.Function(entry.module, _thunk_type(size), entry.name + ".part")
    thunk.linkage = "internal"
    builder = ir.IRBuilder(thunk.append_basic_block())
    address, part = thunk.args
    packed = builder.load(builder.inttoptr(address, packed_type.as_pointer()))
    count = len(kinds[1])
    packed = builder.insert_value(packed, part, count - 2)
    packed = builder.insert_value(packed, builder.add(part, size(1)), count - 1)
    context.call_conv.call_function(builder, entry, types.none, kinds, [size(0), packed])
    builder.ret_void()
    return thunk


def _thunk_type(size: Any) -> Any:
    return ir.FunctionType(ir.VoidType(), [size, size])


@functools.cache
def _launcher() -> Function:
    """Return the compiled ``launch(thunk, packed, first, last)``, the only parallel loop."""

    @intrinsic
    def call_thunk(typing_context, thunk, packed, part):
        def generate(context, builder, signature, values):
            kind = _thunk_type(values[0].type)
            builder.call(builder.inttoptr(values[0], kind.as_pointer()), values[1:])
            return context.get_dummy_value()

        return types.void(types.intp, types.intp, types.intp), generate

    def launch(thunk, packed, first, last):
        for p in prange(last - first):
            # Numba counts a parallel loop in an unsigned integer.
            call_thunk(thunk, packed, first + np.int64(p))

    compiled = _entry("launcher", launch, parallel=True)
    compiled.compile(_LAUNCHER_KINDS)  # type: ignore[attr-defined]
    return compiled


def launcher_address() -> int:
    """Return the launcher of kernels in parallel."""
    return 1 if config.DISABLE_JIT else address_of(_launcher(), _LAUNCHER_KINDS)


def make_function(name: str, function: Function) -> Function:
    """Return a compiled function without parts, cached on disk under `name`."""
    return _entry(name, function, _nrt=False)


def entry(name: str, function: Function, kinds: tuple[Any, ...]) -> Function:
    """Compile a function for arguments of these types, which its calls do not check."""
    return _entry(name, function, _nrt=False).compile(kinds)  # type: ignore[attr-defined]


def _entry(name: str, function: Function, **options: Any) -> Function:
    # The symbol in the machine code consists of this name and a counter of the compiling process.
    # Without a name of its own, a kernel from another process could have the same symbol.
    function.__name__ = function.__qualname__ = "numnorm_" + name.replace(".", "_")
    if config.DISABLE_JIT:
        # Compiled code has no floating-point errors either.
        return np.errstate(all="ignore")(function)
    compiled: Any = numba.njit(pipeline_class=KernelCompiler, **_COMMON, **options)(function)
    compiled._cache = KernelCache(name)
    return compiled
