"""Calls of the row kernels from XLA: the handlers, and the numbers that they get.

A handler is compiled code that reads a call frame and enters the kernel. A call has groups of rows.
They share gamma and beta, or each group has its own: that is how an axis that `jax.vmap` maps comes
here. Each group has gradients of gamma and beta of its own.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba.core import config

from numnorm.backends.contract.norms import Detached, Norm, Scaling
from numnorm.backends.cpu.compiler.jit import Kernel, inlined, make_call, make_function
from numnorm.backends.cpu.memory.kernel_arrays import release
from numnorm.backends.cpu.memory.ndarray_struct import NDARRAY_STRUCT
from numnorm.backends.cpu.rows import rows
from numnorm.backends.cpu.rows.fast_path import make_totals
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.xla import frames
from numnorm.backends.cpu.xla.frames import make_array_at, real, word
from numnorm.backends.cpu.xla.handlers import compiled_handler, python_handler
from numnorm.layouts import RowLayout

# Handlers


# The index of each number of a call. Indices 6 to 8 mean something else in each pass.
_GROUPS, _PARAMETER_GROUPS, _ROWS, _WIDTH, _SEGMENT, _CHANNELS = range(6)
_PARTS, _SCALE, _K, _SAVE = range(9, 13)


@inlined
def numbers_of(frame):
    """Return the address of the numbers of a call, its only attribute."""
    return word(word(word(frame, frames.ATTRIBUTES), 0), frames.ARRAY_DATA)


@inlined
def whole(numbers, k):
    """Return a number of a call as an integer."""
    return np.int64(real(numbers, 8 * k))


@inlined
def argument(frame, k):
    """Return the address of the data of an argument."""
    return word(word(word(frame, frames.ARGUMENTS), 8 * k), frames.DATA)


@inlined
def result(frame, k):
    """Return the address of the data of a result."""
    return word(word(word(frame, frames.RESULTS), 8 * k), frames.DATA)


def _make_parameter(kind: Any, how: str, index: int, which: int, shared: bool) -> Any:
    """Return a compiled ``parameter(frame, numbers, g)``: gamma or beta of a group.

    It is argument `index` of the call, number `which` of its attribute, or None.
    """
    array_at, itemsize = make_array_at(kind, 1 if shared else 2), np.dtype(kind).itemsize

    @inlined
    def vector(frame, numbers, g):
        channels = whole(numbers, _CHANNELS)
        of_group = g * channels if whole(numbers, _PARAMETER_GROUPS) > 1 else 0
        return array_at(argument(frame, index) + of_group * itemsize, (channels,))

    @inlined
    def matrix(frame, numbers, g):
        channels, segment = whole(numbers, _CHANNELS), whole(numbers, _SEGMENT)
        of_group = g * channels * segment if whole(numbers, _PARAMETER_GROUPS) > 1 else 0
        return array_at(argument(frame, index) + of_group * itemsize, (channels, segment))

    @inlined
    def number(frame, numbers, g):
        return kind(real(numbers, 8 * which))

    @inlined
    def nothing(frame, numbers, g):
        return None

    if how == "array":
        return vector if shared else matrix
    return number if how == "number" else nothing


def _make_gradient(kind: Any, present: bool, index: int, shared: bool) -> Any:
    """Return a compiled ``gradient(frame, numbers, g)``: dgamma or dbeta of a group, or None."""
    array_at, itemsize = make_array_at(kind, 1), np.dtype(kind).itemsize

    @inlined
    def vector(frame, numbers, g):
        size = whole(numbers, _CHANNELS) * (1 if shared else whole(numbers, _SEGMENT))
        return array_at(result(frame, index) + g * size * itemsize, (size,))

    @inlined
    def nothing(frame, numbers, g):
        return None

    return vector if present else nothing


def _make_statistic(index: int, present: bool) -> Any:
    """Return a compiled ``statistic(frame, rows, g)``: a statistic of a group's rows, or None."""
    array_at = make_array_at(np.float64, 1)

    @inlined
    def array(frame, rows, g):
        return array_at(argument(frame, index) + g * rows * 8, (rows,))

    @inlined
    def nothing(frame, rows, g):
        return None

    return array if present else nothing


def _make_rounded(saved: np.dtype[Any]) -> Any:
    """Return a compiled ``rounded(array)``, which rounds statistics as NumPy's callers get them."""
    single = saved == np.float32

    @inlined
    def rounded(array):
        if single:
            for i in range(array.size):
                array[i] = np.float64(np.float32(array[i]))

    return rounded


def forward_handler(
    name: str, kernel: Kernel, element_type: ElementType, kinds: tuple[str, str], shared: bool
) -> int:
    """Return the address of the handler of `forward_call`."""
    storage, real_type = element_type.storage_dtype, element_type.compute_type
    rows_at, itemsize = make_array_at(storage, 2), storage.itemsize
    each_at = make_array_at(np.float64, 1)
    gamma_of = _make_parameter(real_type, kinds[0], 1, _SCALE, shared)
    beta_of = _make_parameter(real_type, kinds[1], 2, _K, shared)
    rounded = _make_rounded(element_type.saved)

    def make(enter):
        def handler(address, frame):
            numbers = numbers_of(frame)
            size = whole(numbers, _ROWS), whole(numbers, _WIDTH)
            segment, channels = whole(numbers, _SEGMENT), whole(numbers, _CHANNELS)
            parts, nbytes = whole(numbers, _PARTS), size[0] * size[1] * itemsize
            x, y, save = argument(frame, 0), result(frame, 0), whole(numbers, _SAVE) > 0
            saved, mean, rstd = size[0] if save else 0, y, y
            if save:
                mean, rstd = result(frame, 1), result(frame, 2)
            for g in range(whole(numbers, _GROUPS)):
                means = each_at(mean + g * saved * 8, (saved,))
                rstds = each_at(rstd + g * saved * 8, (saved,))
                arguments = (
                    rows_at(x + g * nbytes, size),
                    gamma_of(frame, numbers, g), beta_of(frame, numbers, g), segment, channels,
                    real(numbers, 48), real(numbers, 56), real(numbers, 64),
                    rows_at(y + g * nbytes, size), means, rstds, parts, 0, parts,
                )  # fmt: skip
                enter(address, (0, arguments))
                rounded(means)
                rounded(rstds)

        return handler

    weights = (_example(how, real_type, 1 if shared else 2) for how in kinds)
    rows_like, each = np.empty((0, 0), storage), np.empty(0)
    example = rows_like, *weights, 0, 0, 0.0, 0.0, 0.0, rows_like, each, each, 0
    return _finished(name, kernel, example, make)


def backward_handler(
    name: str,
    kernel: Kernel,
    element_type: ElementType,
    kinds: tuple[str, str],
    shared: bool,
    centred: bool,
    parameters: int,
) -> int:
    """Return the address of the handler of `backward_call`."""
    storage, real_type = element_type.storage_dtype, element_type.compute_type
    rows_at, itemsize = make_array_at(storage, 2), storage.itemsize
    gamma_of = _make_parameter(real_type, kinds[0], 4, _SCALE, shared)
    beta_of = _make_parameter(real_type, kinds[1], 4, _K, shared)
    dgamma_of, dbeta_of = (
        _make_gradient(real_type, k < parameters, 1 + k, shared) for k in range(2)
    )
    totals_kinds = tuple(NDARRAY_STRUCT if k < parameters else None for k in range(2))
    gamma_totals, beta_totals = (make_totals(kind, shared) for kind in totals_kinds)

    mean_of, rstd_of = _make_statistic(2, centred), _make_statistic(3, True)

    def make(enter):
        def handler(address, frame):
            numbers = numbers_of(frame)
            size = whole(numbers, _ROWS), whole(numbers, _WIDTH)
            segment, channels = whole(numbers, _SEGMENT), whole(numbers, _CHANNELS)
            parts, nbytes = whole(numbers, _PARTS), size[0] * size[1] * itemsize
            dy, x, dx = argument(frame, 0), argument(frame, 1), result(frame, 0)
            shape = channels, 1 if shared else segment
            for g in range(whole(numbers, _GROUPS)):
                totals = gamma_totals(0, shape), beta_totals(0, shape)
                arguments = (
                    rows_at(dy + g * nbytes, size), rows_at(x + g * nbytes, size),
                    mean_of(frame, size[0], g), rstd_of(frame, size[0], g),
                    gamma_of(frame, numbers, g), beta_of(frame, numbers, g), segment, channels,
                    real(numbers, 48), real(numbers, 56), real(numbers, 64),
                    rows_at(dx + g * nbytes, size), totals[0], totals[1],
                    dgamma_of(frame, numbers, g), dbeta_of(frame, numbers, g), parts, 0, parts,
                )  # fmt: skip
                enter(address, (0, arguments))
                release(totals)

        return handler

    ndim, rows_like, each = 1 if shared else 2, np.empty((0, 0), storage), np.empty(0)
    weights = (_example(how, real_type, ndim) for how in kinds)
    gradients = (np.empty(0, real_type) if k < parameters else None for k in range(2))
    totals = (np.empty((0,) * (1 + ndim)) if k < parameters else None for k in range(2))
    example = (
        rows_like, rows_like, each if centred else None, each, *weights, 0, 0, 0.0, 0.0, 0.0,
        rows_like, *totals, *gradients, 0,
    )  # fmt: skip
    return _finished(name, kernel, example, make)


def _example(how: str, kind: Any, ndim: int) -> Any:
    """Return a parameter of the type that a kernel gets."""
    if how == "array":
        return np.empty((0,) * ndim, kind)
    return kind(0) if how == "number" else None


def _finished(name: str, kernel: Kernel, example: tuple[Any, ...], make: Any) -> int:
    """Return the address of a handler that enters the kernel for arguments like the example."""
    if config.DISABLE_JIT:
        handler = make(lambda address, arguments: kernel.entry(arguments[0], *arguments[1]))
        return python_handler(functools.partial(handler, 0))
    code: Any = kernel.machine_code(example)
    handler = make_function(f"xla.{name}", make(make_call(code.kinds)))
    return compiled_handler(handler, (code.address,))


# Calls


class Call(NamedTuple):
    """A call of a handler.

    Attributes
    ----------
    name : str
        The name of the handler.
    numbers : tuple of float
        What the handler reads as the attribute of the call.
    handler : callable
        ``handler()`` returns the address of the C function.
    """

    name: str
    numbers: tuple[float, ...]
    handler: Callable[[], int]


def forward_call(
    norm: Norm,
    dtype: np.dtype[Any],
    layout: RowLayout,
    scaling: Scaling,
    groups: tuple[int, int],
    factors: tuple[float, float],
    parameters: int,
    save: bool,
) -> Call:
    """Return the call with the arguments x and `parameters` of gamma and beta.

    `layout` is that of one group, `groups` are the numbers of groups of x and of the parameters,
    and `factors` are the fixed parameters of a norm that has none. The results are y and, if `save`
    is true, mean and rstd.
    """
    plan = rows.forward_plan(norm, dtype, layout, scaling)
    numbers = *groups, *plan.size, *plan.constants, plan.parts, *factors, save
    kinds = _kinds(norm, parameters)
    name = _name(plan, layout, kinds)
    make = functools.partial(forward_handler, name, plan.kernel, plan.element_type, kinds)
    return Call(name, tuple(map(float, numbers)), functools.partial(make, layout.shared))


def backward_call(
    norm: Norm,
    dtype: np.dtype[Any],
    layout: RowLayout,
    scaling: Scaling,
    detached: Detached,
    groups: tuple[int, int],
    factors: tuple[float, float],
    parameters: int,
) -> Call:
    """Return the call with the arguments dy, x, mean, rstd and, if `parameters` is 1, gamma.

    The results are dx and, for a norm with parameters, dgamma and dbeta.
    """
    plan = rows.backward_plan(norm, dtype, layout, scaling, detached)
    numbers = *groups, *plan.size, *plan.constants, plan.parts, *factors
    kinds = _kinds(norm, parameters)
    name = f"{_name(plan, layout, kinds)}"
    make = functools.partial(backward_handler, name, plan.kernel, plan.element_type, kinds)
    handler = functools.partial(make, layout.shared, norm.formula.centred, norm.parameters)
    return Call(name, tuple(map(float, numbers)), handler)


def _kinds(norm: Norm, parameters: int) -> tuple[str, str]:
    """Return whether gamma and beta are an array, a number or nothing."""
    if not norm.parameters:
        return "number", "number"
    gamma, beta = (("array" if k < parameters else "nothing") for k in range(2))
    return gamma, beta


def _name(plan: rows.Plan, layout: RowLayout, kinds: tuple[str, str]) -> str:
    kernel: Any = plan.kernel.entry
    return ".".join((kernel.__name__, *kinds, "shared" if layout.shared else "each"))
