"""The interface of the kernels to their compiler.

Kernels use only the names of this module. For a simulation of a device, replace this module by one
with the same names. Another compiler has a module like `numba_cuda` beside this one.
"""

from typing import Any

import numpy as np

from numnorm.backends.cuda.compiler.chosen import compiler
from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.launches import (
    Kernel,
    check_available,
    device_limits,
    on_device,
    synchronize,
)
from numnorm.backends.cuda.compiler.memory import (
    load_flag,
    load_index,
    make_load,
    make_load_one,
    make_store,
    make_store_one,
    shared_memory,
    store_flag,
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
    "store_flag",
    "synchronize",
    "times_power_of_two",
]

cuda, device, libdevice = compiler.cuda, compiler.device, compiler.libdevice


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


@device
def grid_barrier() -> None:
    """Wait for all threads of all blocks. Then each of them sees all earlier writes to memory.

    A kernel that calls this is launched with `Kernel.launch_cooperative`.
    """
    cuda.cg.this_grid().sync()
