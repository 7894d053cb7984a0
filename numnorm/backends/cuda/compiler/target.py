"""Everything that is specific to one CUDA compiler: here numba-cuda.

The kernels are written in terms of this module alone. Another compiler, or a simulation of a
device, is another module with the same names.
"""

import contextlib
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from cuda.core import Stream
from llvmlite import ir
from numba import cuda
from numba.cuda import cgutils, libdevice, types
from numba.cuda.cudadrv import driver, libs
from numba.cuda.extending import intrinsic

from numnorm.backends.cuda.compiler.device_limits import DeviceLimits
from numnorm.backends.cuda.compiler.element_type import Element

__all__ = [
    "Kernel",
    "check_available",
    "constant",
    "cuda",
    "device",
    "device_limits",
    "exponent",
    "exponential",
    "grid_barrier",
    "load_flag",
    "load_index",
    "make_load",
    "make_load_one",
    "make_store",
    "make_store_one",
    "on_device",
    "reciprocal",
    "shared_memory",
    "square_root",
    "synchronize",
    "tangent",
    "times_power_of_two",
]

_I8, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_HALF, _FLOAT, _DOUBLE = ir.HalfType(), ir.FloatType(), ir.DoubleType()
_WORDS = ir.VectorType(_I32, 4)
_GLOBAL, _SHARED = 1, 3  # the address spaces of a device's memory, and of what a block shares

_TYPES = {
    "address": types.int64,
    "index": types.int64,
    "float32": types.float32,
    "float64": types.float64,
}


def _type_of(kind: Any) -> Any:
    """Return the type of a parameter of a kernel, or of a group of them."""
    if isinstance(kind, str):
        return _TYPES[kind]
    group, kinds = kind
    return types.BaseTuple.from_types(tuple(map(_type_of, kinds)), group)


def device(function: Callable[..., Any]) -> Any:
    """Return a plain function as one that kernels can call, and that becomes a part of them."""
    return cuda.jit(device=True, forceinline=True)(function)


def constant(element: Element, value: float) -> Any:
    """Return a number of the type that elements are computed in, for a kernel to close over."""
    return element.working(value)


def square_root(element: Element) -> Any:
    """Return the correctly rounded root, of the working type."""
    return libdevice.fsqrt_rn if element.working is np.float32 else libdevice.dsqrt_rn


def reciprocal(element: Element) -> Any:
    """Return the correctly rounded reciprocal, of the working type."""
    return libdevice.frcp_rn if element.working is np.float32 else libdevice.drcp_rn


def exponent(element: Element) -> Any:
    """Return a function for the exponent of a positive number, of the working type."""
    return libdevice.ilogbf if element.working is np.float32 else libdevice.ilogb


def times_power_of_two(element: Element) -> Any:
    """Return ``function(value, exponent)`` for values of the working type."""
    return libdevice.scalbnf if element.working is np.float32 else libdevice.scalbn


def exponential(element: Element) -> Any:
    """Return exp, of the working type, within 2 units in the last place."""
    return libdevice.expf if element.working is np.float32 else libdevice.exp


def tangent(element: Element) -> Any:
    """Return tanh, of the working type, within 2 units in the last place."""
    return libdevice.tanhf if element.working is np.float32 else libdevice.tanh


class Kernel:
    """A kernel of addresses, indices and numbers, compiled for each device when it is launched.

    Parameters
    ----------
    function : callable
        Its source.
    parameters : tuple
        The kind of each parameter: "address", "index", "float32" or "float64", or a group of them,
        ``(class of a NamedTuple, kinds of its fields)``.
    threads : int
        How many threads a block has.
    """

    def __init__(
        self, function: Callable[..., Any], parameters: tuple[Any, ...], threads: int
    ) -> None:
        self.function = function
        self.signature = types.void(*map(_type_of, parameters))
        self.threads = threads
        self._dispatcher = cuda.jit(launch_bounds=threads)(function)

    def launch(self, blocks: int, stream: int, *arguments: Any) -> None:
        """Run so many blocks on a stream of the current device, given by its handle."""
        self._launch(blocks, stream, 0, arguments)

    def launch_together(self, blocks: int, stream: int, memory: int, *arguments: Any) -> None:
        """Run blocks that meet at `grid_barrier`, with so many bytes of `shared_memory` each.

        They must be no more than `most_together` are.
        """
        self._launch(blocks, stream, memory, arguments)

    def most_together(self, memory: int) -> int:
        """Return how many blocks, each with so many bytes, the current device runs at a time."""
        kernel = self._compiled()
        function = kernel._codelibrary.get_cufunc()
        device_number = function.device.id
        # Without leave, a block has 48 KB of it at most. It is given leave for all that there is,
        # so that no other thread's call takes it back.
        leave = device_limits(device_number).shared_of_block - kernel.shared_mem_per_block
        attribute = driver.binding.CUfunction_attribute
        driver.driver.cuKernelSetAttribute(
            attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
            leave,
            function.handle,
            device_number,
        )
        return int(kernel.max_cooperative_grid_blocks(self.threads, memory))

    def _compiled(self) -> Any:
        kernel = self._dispatcher.overloads.get(self.signature.args)
        return self._dispatcher.compile(self.signature.args) if kernel is None else kernel

    def _launch(self, blocks: int, stream: int, memory: int, arguments: tuple[Any, ...]) -> None:
        # A launch takes no 0 for the default stream: a configured dispatcher converts it, too.
        queue, kernel = Stream.from_handle(stream), self._compiled()
        kernel.launch(arguments, (blocks, 1, 1), (self.threads, 1, 1), queue, memory)


# Devices


@functools.cache
def check_available() -> None:
    """Raise unless there is a device, a driver for it, and what compiles for it."""
    if not cuda.is_available():
        raise RuntimeError(
            "numba-cuda finds no CUDA driver with a device, or no compiler: install "
            "'numnorm[cu13]' or, for a driver of CUDA 12, 'numnorm[cu12]'"
        )


def on_device(number: int) -> Any:
    """Return a context in which the device of this number is the current one."""
    # With one device there is no other: to ask the driver would cost some microseconds.
    return cuda.gpus[number] if len(cuda.gpus) > 1 else contextlib.nullcontext()


def synchronize(stream: int) -> None:
    """Wait for all work on a stream of the current device, given by its handle."""
    cuda.external_stream(stream).synchronize()


@functools.cache
def device_limits(number: int) -> DeviceLimits:
    """Return what blocks of the device of this number can have."""
    found = cuda.gpus[number]
    return DeviceLimits(
        multiprocessors=int(found.MULTIPROCESSOR_COUNT),
        shared_of_block=int(found.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
        shared=int(found.MAX_SHARED_MEMORY_PER_MULTIPROCESSOR),
        threads=int(found.MAX_THREADS_PER_MULTIPROCESSOR),
        registers=int(found.MAX_REGISTERS_PER_MULTIPROCESSOR),
        cooperative=bool(found.COOPERATIVE_LAUNCH) and _can_link_barriers(),
    )


def _can_link_barriers() -> bool:
    # A barrier of all blocks is a call into a library of CUDA's own, which not every installation
    # of a compiler has.
    return Path(libs.get_cudalib("cudadevrt", static=True)).is_file()


# What blocks and threads share


@device
def grid_barrier() -> None:
    """Wait for all threads of all blocks: each then sees what the others wrote to memory before.

    A kernel that has one is launched with `Kernel.launch_together`.
    """
    cuda.cg.this_grid().sync()


@intrinsic
def shared_memory(context):
    """Return the address of what a block's threads share, so many bytes as it is launched with.

    It begins at a multiple of 16 bytes, and only loads and stores that are `shared` take it.
    """

    def generate(context, builder, signature, arguments):
        kind = ir.ArrayType(ir.IntType(8), 0)
        memory = cgutils.add_global_variable(builder.module, kind, "shared_memory", _SHARED)
        memory.linkage, memory.align = "external", 16
        return builder.ptrtoint(memory, _I64)

    return types.int64(), generate


# Elements in memory


def _place(
    builder: Any, address: Any, index: Any, itemsize: int, kind: Any, *, shared: bool = False
) -> Any:
    """Return where an element lies, as a pointer to a type of LLVM."""
    shift = _I64(itemsize.bit_length() - 1)
    place = builder.add(address, builder.shl(index, shift))
    return builder.inttoptr(place, ir.PointerType(kind, _SHARED if shared else _GLOBAL))


def _widened(builder: Any, name: str, bits: Any) -> Any:
    """Return a 16-bit number, as an integer, in float32."""
    if name == "float16":
        return builder.fpext(builder.bitcast(bits, _HALF), _FLOAT)
    word = builder.shl(builder.zext(bits, _I32), _I32(16))
    return builder.bitcast(word, _FLOAT)


def _narrowed(builder: Any, name: str, value: Any) -> Any:
    """Return a float32 rounded to 16 bits, to even at a tie, as an integer."""
    if name == "float16":
        return builder.bitcast(builder.fptrunc(value, _HALF), _I16)
    bits = builder.bitcast(value, _I32)
    last = builder.and_(builder.lshr(bits, _I32(16)), _I32(1))
    rounded = builder.add(builder.add(bits, _I32(0x7FFF)), last)
    quiet = builder.or_(bits, _I32(0x400000))  # rounding could carry a NaN to infinity
    chosen = builder.select(builder.fcmp_unordered("uno", value, value), quiet, rounded)
    return builder.trunc(builder.lshr(chosen, _I32(16)), _I16)


def _unpacked(builder: Any, name: str, word: Any) -> list[Any]:
    """Return the elements in 32 bits, in the type that they are computed in."""
    if name == "float32":
        return [builder.bitcast(word, _FLOAT)]
    halves = word, builder.lshr(word, _I32(16))
    return [_widened(builder, name, builder.trunc(half, _I16)) for half in halves]


def _packed(builder: Any, name: str, values: list[Any]) -> Any:
    """Return 32 bits of elements."""
    if name == "float32":
        return builder.bitcast(values[0], _I32)
    low, high = (builder.zext(_narrowed(builder, name, value), _I32) for value in values)
    return builder.or_(low, builder.shl(high, _I32(16)))


def _working(element: Element) -> Any:
    return _TYPES[element.working_name]


@functools.cache
def make_load(element: Element, *, unchanging: bool = False, shared: bool = False) -> Any:
    """Return a device function ``load(address, index)`` of 16 bytes of elements, as a tuple.

    They begin at a multiple of 16 bytes. What is `unchanging` while the kernel runs may be read
    by another path. The address is one of `shared_memory` or, if it is not `shared`, of a device's.
    """

    @intrinsic
    def load(context, address, index):
        result = types.UniTuple(_working(element), element.vector)

        def generate(context, builder, signature, arguments):
            double = element.name == "float64"
            kind = ir.VectorType(_DOUBLE, 2) if double else _WORDS
            place = _place(
                builder, arguments[0], arguments[1], element.itemsize, kind, shared=shared
            )
            found = builder.load(place)
            found.align = 16
            if unchanging:
                found.set_metadata("invariant.load", builder.module.add_metadata([]))
            parts = [builder.extract_element(found, _I32(k)) for k in range(kind.count)]
            if not double:
                parts = [v for word in parts for v in _unpacked(builder, element.name, word)]
            return context.make_tuple(builder, signature.return_type, parts)

        return result(types.int64, types.int64), generate

    return load


@functools.cache
def make_store(element: Element, *, shared: bool = False) -> Any:
    """Return a device function ``store(address, index, values)`` of 16 bytes of elements."""

    @intrinsic
    def store(context, address, index, values):
        kind = types.UniTuple(_working(element), element.vector)

        def generate(context, builder, signature, arguments):
            values = cgutils.unpack_tuple(builder, arguments[2], element.vector)
            double = element.name == "float64"
            vector = ir.VectorType(_DOUBLE, 2) if double else _WORDS
            if not double:
                each = element.vector // vector.count
                values = [
                    _packed(builder, element.name, values[k * each : (k + 1) * each])
                    for k in range(vector.count)
                ]
            whole = ir.Constant(vector, ir.Undefined)
            for k, value in enumerate(values):
                whole = builder.insert_element(whole, value, _I32(k))
            place = _place(
                builder, arguments[0], arguments[1], element.itemsize, vector, shared=shared
            )
            builder.store(whole, place, align=16)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, kind), generate

    return store


@intrinsic
def load_index(context, address, index):
    """Return an int32 number in memory, as an index."""

    def generate(context, builder, signature, arguments):
        found = builder.load(_place(builder, arguments[0], arguments[1], 4, _I32))
        found.align = 4
        return builder.sext(found, _I64)

    return types.int64(types.int64, types.int64), generate


@intrinsic
def load_flag(context, address, index):
    """Return whether a byte in memory is not 0."""

    def generate(context, builder, signature, arguments):
        found = builder.load(_place(builder, arguments[0], arguments[1], 1, _I8))
        found.align = 1
        return builder.icmp_unsigned("!=", found, _I8(0))

    return types.boolean(types.int64, types.int64), generate


@functools.cache
def make_load_one(element: Element, *, shared: bool = False) -> Any:
    """Return a device function ``load_one(address, index)`` of one element."""

    @intrinsic
    def load_one(context, address, index):
        def generate(context, builder, signature, arguments):
            kind = {"float32": _FLOAT, "float64": _DOUBLE}.get(element.name, _I16)
            place = _place(
                builder, arguments[0], arguments[1], element.itemsize, kind, shared=shared
            )
            found = builder.load(place)
            found.align = element.itemsize
            return found if kind is not _I16 else _widened(builder, element.name, found)

        return _working(element)(types.int64, types.int64), generate

    return load_one


@functools.cache
def make_store_one(element: Element, *, shared: bool = False) -> Any:
    """Return a device function ``store_one(address, index, value)`` of one element."""

    @intrinsic
    def store_one(context, address, index, value):
        def generate(context, builder, signature, arguments):
            value = arguments[2]
            kind = {"float32": _FLOAT, "float64": _DOUBLE}.get(element.name, _I16)
            if kind is _I16:
                value = _narrowed(builder, element.name, value)
            place = _place(
                builder, arguments[0], arguments[1], element.itemsize, kind, shared=shared
            )
            builder.store(value, place, align=element.itemsize)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, _working(element)), generate

    return store_one
