"""The interface of the kernels to their compiler, numba-cuda.

Kernels use only the names of this module. For another compiler, or for a simulation of a device,
replace this module by one with the same names.
"""

import contextlib
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from cuda.core import Stream
from numba import cuda
from numba.cuda import libdevice, types
from numba.cuda.cudadrv import driver, libs

from numnorm.backends.cuda.compiler.device_limits import DeviceLimits
from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.memory_access import (
    load_flag,
    load_index,
    make_load,
    make_load_one,
    make_store,
    make_store_one,
    shared_memory,
)

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
    "synchronize",
    "times_power_of_two",
]

_TYPES = {
    "address": types.int64,
    "index": types.int64,
    "float32": types.float32,
    "float64": types.float64,
}


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
    """A kernel of addresses, indices and numbers, compiled for each device when it is launched.

    Parameters
    ----------
    function : callable
        The Python function that is compiled.
    parameters : tuple
        The kind of each parameter: "address", "index", "float32" or "float64", or for a group
        ``(class of a NamedTuple, kinds of its fields)``.
    threads : int
        The number of threads of a block.
    """

    def __init__(
        self, function: Callable[..., Any], parameters: tuple[Any, ...], threads: int
    ) -> None:
        self.function = function
        self.signature = types.void(*map(_type_of, parameters))
        self.threads = threads
        self._dispatcher = cuda.jit(launch_bounds=threads)(function)

    def launch(self, blocks: int, stream: int, *arguments: Any) -> None:
        """Launch blocks on a stream of the current device, given by its handle."""
        self._launch(blocks, stream, 0, arguments)

    def launch_cooperative(self, blocks: int, stream: int, memory: int, *arguments: Any) -> None:
        """Launch blocks that wait for each other at `grid_barrier`.

        Each block has `memory` bytes of `shared_memory`. `most_cooperative` is the limit of blocks.
        """
        self._launch(blocks, stream, memory, arguments)

    def most_cooperative(self, memory: int) -> int:
        """Return how many blocks with `memory` bytes each the current device runs at a time."""
        kernel = self._compiled()
        function = kernel._codelibrary.get_cufunc()
        device_number = function.device.id
        # A block has 48 KB of dynamic shared memory at most, unless the limit is raised. It is
        # always raised to the device's own limit, so that calls of other threads cannot lower it.
        limit = device_limits(device_number).shared_of_block - kernel.shared_mem_per_block
        attribute = driver.binding.CUfunction_attribute
        driver.driver.cuKernelSetAttribute(
            attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
            limit,
            function.handle,
            device_number,
        )
        return int(kernel.max_cooperative_grid_blocks(self.threads, memory))

    def _compiled(self) -> Any:
        kernel = self._dispatcher.overloads.get(self.signature.args)
        return self._dispatcher.compile(self.signature.args) if kernel is None else kernel

    def _launch(self, blocks: int, stream: int, memory: int, arguments: tuple[Any, ...]) -> None:
        # _Kernel.launch takes no 0 for the default stream, so every handle becomes a Stream.
        cuda_stream, kernel = Stream.from_handle(stream), self._compiled()
        kernel.launch(arguments, (blocks, 1, 1), (self.threads, 1, 1), cuda_stream, memory)


# Devices


@functools.cache
def check_available() -> None:
    """Raise an error unless numba-cuda finds a device, its driver and a compiler."""
    if not cuda.is_available():
        raise RuntimeError(
            "numba-cuda finds no CUDA driver with a device, or no compiler: install "
            "'numnorm[cu13]' or, for a driver of CUDA 12, 'numnorm[cu12]'"
        )


def on_device(number: int) -> Any:
    """Return a context in which the device of this number is the current device."""
    # Calls of the driver are slow, and a single device is always the current one.
    return cuda.gpus[number] if len(cuda.gpus) > 1 else contextlib.nullcontext()


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
        cooperative=bool(gpu.COOPERATIVE_LAUNCH) and _can_link_barriers(),
    )


def _can_link_barriers() -> bool:
    # A barrier of all blocks is a call into CUDA's library cudadevrt, which some installations
    # lack.
    return Path(libs.get_cudalib("cudadevrt", static=True)).is_file()


# Barriers


@device
def grid_barrier() -> None:
    """Wait for all threads of all blocks. Then each of them sees all earlier writes to memory.

    A kernel that calls this is launched with `Kernel.launch_cooperative`.
    """
    cuda.cg.this_grid().sync()
