"""Kernels that are loaded and launched, and the devices that they are launched on."""

import contextlib
import ctypes
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

from cuda.core import LaunchConfig, ObjectCode, Stream, launch

from numnorm.backends.cuda.compiler import machine_code
from numnorm.backends.cuda.compiler.chosen import compiler
from numnorm.backends.cuda.compiler.device_limits import CooperativeLaunchRefused, DeviceLimits
from numnorm.backends.cuda.compiler.machine_code import MachineCode, compiled, device_runtime

cuda, driver, types = compiler.cuda, compiler.driver, compiler.types

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
# What the driver, or cuda.core before it, answers if the blocks cannot run at the same time.
_REFUSED = "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "exceeds the limit"
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
        device = _current_device()
        launch(_stream(stream, device), self._configured(blocks), self._on(device), *numbers)

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
            device, numbers = _current_device(), self.numbers(arguments)
            launch(_stream(stream, device), configuration, self._on(device), *numbers)
        except Exception as error:
            if any(text in str(error) for text in _REFUSED):
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

    def is_loaded(self, device: int) -> bool:
        """Return whether a device has the kernel."""
        return device in self._loaded

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
def _stream(handle: int, device: int) -> Stream:
    # It remembers its device, and each device has a stream of handle 0.
    return Stream.from_handle(handle)


# Devices


@functools.cache
def check_available() -> None:
    """Raise an error unless the compiler finds a device, its driver and a compiler."""
    if not cuda.is_available():
        raise RuntimeError(
            f"{compiler.NAME} finds no CUDA driver with a device, or no compiler: install "
            f"'numnorm[cu13{compiler.EXTRA}]' or, for a driver of CUDA 12, "
            f"'numnorm[cu12{compiler.EXTRA}]'"
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
