"""The interface of the kernels to their compiler, numba-cuda.

Kernels use only the names of this module. For another compiler, or for a simulation of a device,
replace this module by one with the same names.
"""

import contextlib
import ctypes
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from cuda.core import LaunchConfig, ObjectCode, Stream, launch
from llvmlite import ir
from numba import cuda
from numba.cuda import cgutils, libdevice, types
from numba.cuda.cudadrv import driver
from numba.cuda.extending import intrinsic

from numnorm.backends.cuda.compiler import machine_code
from numnorm.backends.cuda.compiler.device_limits import CooperativeLaunchRefused, DeviceLimits
from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.machine_code import MachineCode, compiled, device_runtime

__all__ = [
    "Kernel",
    "check_available",
    "constant",
    "cuda",
    "device",
    "device_limits",
    "exponent",
    "grid_barrier",
    "load_flag",
    "load_index",
    "make_exp",
    "make_load",
    "make_load_one",
    "make_sqrt",
    "make_store",
    "make_store_one",
    "make_tanh",
    "on_device",
    "reciprocal",
    "shared_memory",
    "store_flag",
    "synchronize",
    "times_power_of_two",
]

_TYPES = {
    "address": types.int64,
    "index": types.int64,
    "float32": types.float32,
    "float64": types.float64,
}


# A launch takes an integer as 8 bytes.
_CONVERTERS: dict[str, Callable[[Any], Any]] = {
    "address": int,
    "index": int,
    "float32": ctypes.c_float,
    "float64": ctypes.c_double,
}
# What the driver answers if the blocks cannot run at the same time.
_REFUSED = "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE"
# The option of a cooperative launch, which has another name before cuda.core 1.0.
_COOPERATIVE = "is_cooperative" if hasattr(LaunchConfig, "is_cooperative") else "cooperative_launch"


def _kinds_in(kinds: tuple[Any, ...]) -> Iterator[str]:
    """Yield the kinds of a kernel's parameters, those in groups one by one."""
    for kind in kinds:
        if isinstance(kind, str):
            yield kind
        else:
            yield from _kinds_in(kind[1])


def _type_of(kind: Any) -> Any:
    """Return Numba's type of a kernel's parameter, which may be a group."""
    if isinstance(kind, str):
        return _TYPES[kind]
    group, kinds = kind
    return types.BaseTuple.from_types(tuple(map(_type_of, kinds)), group)


def device(function: Callable[..., Any]) -> Any:
    """Return a plain function as a device function, which is inlined in kernels."""
    return cuda.jit(device=True, forceinline=True)(function)


def constant(element: ElementType, value: float) -> Any:
    """Return a number of the compute type, for a kernel to close over."""
    return element.compute_type(value)


def make_sqrt(element: ElementType) -> Any:
    """Return the correctly rounded square root of the compute type."""
    return libdevice.fsqrt_rn if element.compute_type is np.float32 else libdevice.dsqrt_rn


def reciprocal(element: ElementType) -> Any:
    """Return the correctly rounded reciprocal of the compute type."""
    return libdevice.frcp_rn if element.compute_type is np.float32 else libdevice.drcp_rn


def exponent(element: ElementType) -> Any:
    """Return a function of the exponent of a positive number of the compute type."""
    return libdevice.ilogbf if element.compute_type is np.float32 else libdevice.ilogb


def times_power_of_two(element: ElementType) -> Any:
    """Return ``function(value, exponent)`` for values of the compute type."""
    return libdevice.scalbnf if element.compute_type is np.float32 else libdevice.scalbn


def make_exp(element: ElementType) -> Any:
    """Return exp of the compute type, within 2 units in the last place."""
    return libdevice.expf if element.compute_type is np.float32 else libdevice.exp


def make_tanh(element: ElementType) -> Any:
    """Return tanh of the compute type, within 2 units in the last place."""
    return libdevice.tanhf if element.compute_type is np.float32 else libdevice.tanh


class Kernel:
    """A kernel of addresses, indices and numbers, compiled or loaded when it is first launched.

    Parameters
    ----------
    function : callable
        The Python function that is compiled.
    parameters : tuple
        The kind of each parameter: "address", "index", "float32" or "float64", or for a group
        ``(class of a NamedTuple, kinds of its fields)``.
    threads : int
        The number of threads of a block.
    grid_barriers : bool
        Whether blocks wait for each other at `grid_barrier`.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        parameters: tuple[Any, ...],
        threads: int,
        *,
        grid_barriers: bool = False,
    ) -> None:
        self.function = function
        self.signature = types.void(*map(_type_of, parameters))
        self.threads = threads
        self.grid_barriers = grid_barriers
        self._converters = [_CONVERTERS[kind] for kind in _kinds_in(parameters)]
        self._loaded: dict[int, Any] = {}
        self._configured = functools.lru_cache(maxsize=64)(self._configure)

    def launch(self, blocks: int, stream: int, *arguments: Any) -> None:
        """Launch blocks on a stream of the current device, given by its handle."""
        self.launch_numbers(blocks, stream, self.numbers(arguments))

    def launch_numbers(self, blocks: int, stream: int, numbers: list[Any]) -> None:
        """Do the same with what `numbers` makes of the arguments."""
        kernel = self._on(_current_device())
        launch(_stream(stream), self._configured(blocks), kernel, *numbers)

    def numbers(self, arguments: tuple[Any, ...]) -> list[Any]:
        """Return all numbers of the arguments, in order, as a launch takes them."""
        values: list[Any] = []
        _flatten(arguments, values)
        return [of(value) for of, value in zip(self._converters, values, strict=True)]

    def launch_cooperative(self, blocks: int, stream: int, memory: int, *arguments: Any) -> None:
        """Launch blocks that wait for each other at `grid_barrier`.

        Each block has `memory` bytes of `shared_memory`. `most_cooperative` is the limit of blocks.
        Another program on the device may lower it: then this raises `CooperativeLaunchRefused`.
        """
        configuration = self._configured(blocks, memory, cooperative=True)
        try:
            kernel = self._on(_current_device())
            launch(_stream(stream), configuration, kernel, *self.numbers(arguments))
        except Exception as error:
            if _REFUSED in str(error):
                raise CooperativeLaunchRefused(str(error)) from error
            raise

    def most_cooperative(self, memory: int) -> int:
        """Return how many blocks with `memory` bytes each the current device runs at a time."""
        device = _current_device()
        kernel = self._on(device)
        # A block has 48 KB of dynamic shared memory at most, unless the limit is raised. It is
        # always raised to the device's own limit, so that calls of other threads cannot lower it.
        limits = device_limits(device)
        attribute = driver.binding.CUfunction_attribute
        driver.driver.cuKernelSetAttribute(
            attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
            limits.shared_of_block - kernel.attributes[device].shared_size_bytes,
            kernel.handle,
            device,
        )
        of_one = kernel.occupancy.max_active_blocks_per_multiprocessor(self.threads, memory)
        return int(of_one) * limits.multiprocessors

    def _on(self, device: int) -> Any:
        """Return the kernel, loaded for a device."""
        loaded = self._loaded.get(device)
        if loaded is None:
            capability = _capability(device)
            name = machine_code.file_name(self, capability)
            code = machine_code.load(name) if name is not None else None
            if code is None:
                code = self.compiled(capability)
                if name is not None:
                    machine_code.save(name, code)
            loaded = ObjectCode.from_cubin(code.cubin).get_kernel(code.name)
            self._loaded[device] = loaded
        return loaded

    def compiled(self, capability: tuple[int, int]) -> MachineCode:
        """Return the machine code for a compute capability."""
        return compiled(
            self.function, self.signature, self.threads, capability,
            grid_barriers=self.grid_barriers,
        )  # fmt: skip

    def _configure(self, blocks: int, memory: int = 0, *, cooperative: bool = False) -> Any:
        option = {_COOPERATIVE: cooperative}
        return LaunchConfig(grid=blocks, block=self.threads, shmem_size=memory, **option)


def _flatten(arguments: Any, values: list[Any]) -> None:
    """Append numbers in any groups to a list."""
    for argument in arguments:
        if isinstance(argument, tuple):
            _flatten(argument, values)
        else:
            values.append(argument)


@functools.lru_cache(maxsize=64)
def _stream(handle: int) -> Stream:
    return Stream.from_handle(handle)


# Devices


@functools.cache
def check_available() -> None:
    """Raise an error unless numba-cuda finds a device, its driver and a compiler."""
    if not cuda.is_available():
        raise RuntimeError(
            "numba-cuda finds no CUDA driver with a device, or no compiler: install "
            "'numnorm[cu13]' or, for a driver of CUDA 12, 'numnorm[cu12]'"
        )


_thread = threading.local()


def on_device(number: int) -> Any:
    """Return a context in which the device of this number is the current device."""
    if not hasattr(_thread, "has_device"):
        cuda.current_context()  # a new thread has no current device
        _thread.has_device = True
    # Calls of the driver are slow, and a single device is always the current one.
    return cuda.gpus[number] if _device_count() > 1 else contextlib.nullcontext()


def _current_device() -> int:
    return 0 if _device_count() == 1 else int(cuda.get_current_device().id)


@functools.cache
def _device_count() -> int:
    return len(cuda.gpus)


@functools.cache
def _capability(number: int) -> tuple[int, int]:
    major, minor = cuda.gpus[number].compute_capability
    return int(major), int(minor)


def synchronize(stream: int) -> None:
    """Wait for all work on a stream of the current device, given by its handle."""
    cuda.external_stream(stream).synchronize()


@functools.cache
def device_limits(number: int) -> DeviceLimits:
    """Return the limits of the device of this number."""
    gpu = cuda.gpus[number]
    return DeviceLimits(
        multiprocessors=int(gpu.MULTIPROCESSOR_COUNT),
        shared_of_block=int(gpu.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
        shared=int(gpu.MAX_SHARED_MEMORY_PER_MULTIPROCESSOR),
        threads=int(gpu.MAX_THREADS_PER_MULTIPROCESSOR),
        registers=int(gpu.MAX_REGISTERS_PER_MULTIPROCESSOR),
        # Some installations lack the library for barriers.
        cooperative=bool(gpu.COOPERATIVE_LAUNCH) and device_runtime().is_file(),
    )


# Barriers


@device
def grid_barrier() -> None:
    """Wait for all threads of all blocks. Then each of them sees all earlier writes to memory.

    A kernel that calls this is launched with `Kernel.launch_cooperative`.
    """
    cuda.cg.this_grid().sync()


# Loads and stores of elements
#
# A kernel has addresses instead of arrays, and elements of 16 bits have no type in Numba. So a load
# or store is an intrinsic that converts between the memory's type and the compute type.

_I8, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_HALF, _FLOAT, _DOUBLE = ir.HalfType(), ir.FloatType(), ir.DoubleType()
_WORDS = ir.VectorType(_I32, 4)
_I8_POINTER = ir.PointerType(_I8)
_GLOBAL, _SHARED = 1, 3  # LLVM's address spaces of global and of shared memory


@intrinsic
def shared_memory(context):
    """Return the address of the block's dynamic shared memory, a multiple of 16 bytes.

    Only the loads and stores that are made with `shared` take this address.
    """

    def generate(context, builder, signature, arguments):
        kind = ir.ArrayType(ir.IntType(8), 0)
        memory = cgutils.add_global_variable(builder.module, kind, "shared_memory", _SHARED)
        memory.linkage, memory.align = "external", 16
        return builder.ptrtoint(memory, _I64)

    return types.int64(), generate


def _pointer(
    builder: Any, arguments: Any, itemsize: int, kind: Any, *, shared: bool = False
) -> Any:
    """Return a pointer to the element at the first arguments, ``address, index``."""
    offset = builder.shl(arguments[1], _I64(itemsize.bit_length() - 1))
    address = builder.add(arguments[0], offset)
    return builder.inttoptr(address, ir.PointerType(kind, _SHARED if shared else _GLOBAL))


def _to_compute(builder: Any, name: str, bits: Any) -> Any:
    """Convert 16 bits to float32."""
    if name == "float16":
        return builder.fpext(builder.bitcast(bits, _HALF), _FLOAT)
    word = builder.shl(builder.zext(bits, _I32), _I32(16))
    return builder.bitcast(word, _FLOAT)


def _to_storage(builder: Any, name: str, value: Any) -> Any:
    """Convert a float32 to 16 bits, rounded to the nearest, to even at a tie."""
    if name == "float16":
        return builder.bitcast(builder.fptrunc(value, _HALF), _I16)
    bits = builder.bitcast(value, _I32)
    last = builder.and_(builder.lshr(bits, _I32(16)), _I32(1))
    rounded = builder.add(builder.add(bits, _I32(0x7FFF)), last)
    quiet = builder.or_(bits, _I32(0x400000))  # rounding could carry a NaN to infinity
    chosen = builder.select(builder.fcmp_unordered("uno", value, value), quiet, rounded)
    return builder.trunc(builder.lshr(chosen, _I32(16)), _I16)


def _unpacked(builder: Any, name: str, word: Any) -> list[Any]:
    """Return the elements in 32 bits, in the compute type."""
    if name == "float32":
        return [builder.bitcast(word, _FLOAT)]
    halves = word, builder.lshr(word, _I32(16))
    return [_to_compute(builder, name, builder.trunc(half, _I16)) for half in halves]


def _packed(builder: Any, name: str, values: list[Any]) -> Any:
    """Return 32 bits with elements of the compute type, converted."""
    if name == "float32":
        return builder.bitcast(values[0], _I32)
    with builder.if_else(_has_conversion_of_two(builder)) as (at_once, one_by_one):
        with at_once:
            kind = {"float16": "f16x2", "bfloat16": "bf16x2"}[name]
            operands = ir.FunctionType(_I32, [_FLOAT, _FLOAT])
            convert = f"cvt.rn.{kind}.f32 $0, $2, $1;"
            fast = builder.asm(operands, convert, "=r,f,f", values, False)
            of_fast = builder.block
        with one_by_one:
            low, high = (builder.zext(_to_storage(builder, name, value), _I32) for value in values)
            slow = builder.or_(low, builder.shl(high, _I32(16)))
            of_slow = builder.block
    packed = builder.phi(_I32)
    packed.add_incoming(fast, of_fast)
    packed.add_incoming(slow, of_slow)
    return packed


def _has_conversion_of_two(builder: Any) -> Any:
    """Return whether the GPU converts two numbers in one instruction: from capability 8.0 on.

    The compiler of a kernel knows the answer, and keeps one branch.
    """
    text = bytearray(b"__CUDA_ARCH\0")
    name = ir.Constant(ir.ArrayType(_I8, len(text)), text)
    pointer = cgutils.global_constant(builder.module, "architecture", name).bitcast(_I8_POINTER)
    ask = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(_I32, [_I8_POINTER]), "__nvvm_reflect"
    )
    return builder.icmp_signed(">=", builder.call(ask, [pointer]), _I32(800))


def _compute_type(element: ElementType) -> Any:
    return getattr(types, element.compute_name)


@functools.cache
def make_load(element: ElementType, *, unchanging: bool = False, shared: bool = False) -> Any:
    """Return a device function ``load(address, index)`` of 16 bytes of elements, as a tuple.

    The elements begin at a multiple of 16 bytes. If nothing writes them while the kernel runs they
    are `unchanging`, and the read-only cache may load them. The address is in `shared_memory` if
    `shared`, and in global memory otherwise.
    """

    @intrinsic
    def load(context, address, index):
        result = types.UniTuple(_compute_type(element), element.vector)

        def generate(context, builder, signature, arguments):
            double = element.name == "float64"
            kind = ir.VectorType(_DOUBLE, 2) if double else _WORDS
            pointer = _pointer(builder, arguments, element.itemsize, kind, shared=shared)
            loaded = builder.load(pointer)
            loaded.align = 16
            if unchanging:
                loaded.set_metadata("invariant.load", builder.module.add_metadata([]))
            parts = [builder.extract_element(loaded, _I32(k)) for k in range(kind.count)]
            if not double:
                parts = [v for word in parts for v in _unpacked(builder, element.name, word)]
            return context.make_tuple(builder, signature.return_type, parts)

        return result(types.int64, types.int64), generate

    return load


@functools.cache
def make_store(element: ElementType, *, shared: bool = False) -> Any:
    """Return a device function ``store(address, index, values)`` of 16 bytes of elements."""

    @intrinsic
    def store(context, address, index, values):
        kind = types.UniTuple(_compute_type(element), element.vector)

        def generate(context, builder, signature, arguments):
            values = cgutils.unpack_tuple(builder, arguments[2], element.vector)
            double = element.name == "float64"
            vector = ir.VectorType(_DOUBLE, 2) if double else _WORDS
            if not double:
                per_word = element.vector // vector.count
                values = [
                    _packed(builder, element.name, values[k * per_word : (k + 1) * per_word])
                    for k in range(vector.count)
                ]
            whole = ir.Constant(vector, ir.Undefined)
            for k, value in enumerate(values):
                whole = builder.insert_element(whole, value, _I32(k))
            pointer = _pointer(builder, arguments, element.itemsize, vector, shared=shared)
            builder.store(whole, pointer, align=16)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, kind), generate

    return store


@intrinsic
def load_index(context, address, index):
    """Return an int32 in global memory as an index."""

    def generate(context, builder, signature, arguments):
        loaded = builder.load(_pointer(builder, arguments, 4, _I32))
        loaded.align = 4
        return builder.sext(loaded, _I64)

    return types.int64(types.int64, types.int64), generate


@intrinsic
def load_flag(context, address, index):
    """Return whether a byte in global memory is not 0."""

    def generate(context, builder, signature, arguments):
        loaded = builder.load(_pointer(builder, arguments, 1, _I8))
        loaded.align = 1
        return builder.icmp_unsigned("!=", loaded, _I8(0))

    return types.boolean(types.int64, types.int64), generate


@intrinsic
def store_flag(context, address, index, value):
    """Store a byte in global memory: 1 for True, 0 for False."""

    def generate(context, builder, signature, arguments):
        pointer = _pointer(builder, arguments, 1, _I8)
        builder.store(builder.zext(arguments[2], _I8), pointer, align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.boolean), generate


@functools.cache
def make_load_one(element: ElementType, *, shared: bool = False) -> Any:
    """Return a device function ``load_one(address, index)`` of one element."""

    @intrinsic
    def load_one(context, address, index):
        def generate(context, builder, signature, arguments):
            kind = {"float32": _FLOAT, "float64": _DOUBLE}.get(element.name, _I16)
            pointer = _pointer(builder, arguments, element.itemsize, kind, shared=shared)
            loaded = builder.load(pointer)
            loaded.align = element.itemsize
            return loaded if kind is not _I16 else _to_compute(builder, element.name, loaded)

        return _compute_type(element)(types.int64, types.int64), generate

    return load_one


@functools.cache
def make_store_one(element: ElementType, *, shared: bool = False) -> Any:
    """Return a device function ``store_one(address, index, value)`` of one element."""

    @intrinsic
    def store_one(context, address, index, value):
        def generate(context, builder, signature, arguments):
            value = arguments[2]
            kind = {"float32": _FLOAT, "float64": _DOUBLE}.get(element.name, _I16)
            if kind is _I16:
                value = _to_storage(builder, element.name, value)
            pointer = _pointer(builder, arguments, element.itemsize, kind, shared=shared)
            builder.store(value, pointer, align=element.itemsize)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, _compute_type(element)), generate

    return store_one
