"""The norms with statistics of each row, on NumPy arrays: the callers of the kernels."""

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from numnorm.backends.contract.norms import Detached, Formula, Norm, Scaling
from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.compiler.jit import Function, Kernel
from numnorm.backends.cpu.compiler.parallel import is_small, row_parts, run, summed_parts
from numnorm.backends.cpu.memory.alignment import peels_to_alignment
from numnorm.backends.cpu.memory.host_arrays import (
    Array,
    as_kernel_array,
    as_parameter,
    as_statistic,
    both_or_neither,
    gradient_dtype,
    in_wider_dtype,
    like_input,
    output_like,
    result,
    wider_dtype,
)
from numnorm.backends.cpu.memory.placement import empty_like
from numnorm.backends.cpu.rows.backward_kernel import (
    make_row_backward,
    make_row_backward_added,
    make_row_totals,
)
from numnorm.backends.cpu.rows.fast_path import FastPath, make_fast_backward, make_fast_forward
from numnorm.backends.cpu.rows.forward_kernel import make_row_forward
from numnorm.backends.cpu.rows.tiles import widest
from numnorm.backends.cpu.simd.element_type import ElementType, element_type_of
from numnorm.backends.cpu.statistics import broadcast_parameters
from numnorm.layouts import RowLayout

_NOTHING = np.empty(0)
_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)


class Plan(NamedTuple):
    """What follows from norm, dtype and layout alone, computed once for all such calls."""

    kernel: Kernel
    # The key: the classes of a mean, gamma and beta.
    fast_path: dict[tuple[Any, ...], FastPath | None]
    element_type: ElementType
    size: tuple[int, int]
    elements: int
    # The bytes that the kernel reads and writes.
    work: int
    parts: int
    constants: tuple[Any, ...]
    # Whether the kernel takes contiguous arrays as they are, and they are too small for threads.
    usual: bool
    # Whether the call is too small for aligned outputs.
    small: bool


@functools.cache
def _forward_kernel(formula: Formula, element_type: ElementType, narrow: bool) -> Kernel:
    return make_row_forward(formula, element_type, narrow=narrow)


@functools.cache
def _backward_kernel(formula: Formula, element_type: ElementType) -> Kernel:
    return make_row_backward(formula, element_type)


@functools.cache
def _added_kernel(formula: Formula, element_type: ElementType) -> Kernel:
    return make_row_backward_added(formula, element_type)


@functools.cache
def _totals_kernel() -> Function:
    return make_row_totals()


@functools.lru_cache(maxsize=1024)
def forward_plan(norm: Norm, dtype: Any, layout: RowLayout, scaling: Scaling) -> Plan:
    """Return the plan of forward passes."""
    element_type = element_type_of(dtype)
    count = float(layout.width - scaling.ddof)
    work = 2 * layout.rows * layout.width * dtype.itemsize
    return Plan(
        _forward_kernel(norm.formula, element_type, layout.width <= widest(element_type)),
        {},
        element_type,
        (layout.rows, layout.width),
        layout.rows * layout.width,
        work,
        row_parts(layout.rows, layout.rows * layout.width),
        (layout.segment, layout.channels, scaling.eps, scaling.eps_on_deviation, count),
        _is_usual(dtype, element_type, layout, work),
        is_small(layout.rows * layout.width),
    )


@functools.lru_cache(maxsize=1024)
def backward_plan(
    norm: Norm, dtype: Any, layout: RowLayout, scaling: Scaling, detached: Detached
) -> Plan:
    """Return the plan of backward passes."""
    element_type = element_type_of(dtype)
    count = layout.width - scaling.ddof
    inv_count = 1.0 / layout.width if norm.formula.centred and layout.width else 0.0
    inv_divisor = 1.0 / count if count else 0.0
    inv_counts = 0.0 if detached.mean else inv_count, 0.0 if detached.scale else inv_divisor
    summed = math.prod(layout.kernel_shape) if norm.parameters else 0
    work = 3 * layout.rows * layout.width * dtype.itemsize
    return Plan(
        _backward_kernel(norm.formula, element_type),
        {},
        element_type,
        (layout.rows, layout.width),
        layout.rows * layout.width,
        work,
        summed_parts(layout.rows, layout.width, summed),
        (layout.segment, layout.channels, *inv_counts, scaling.eps_on_deviation),
        _is_usual(dtype, element_type, layout, work),
        is_small(layout.rows * layout.width),
    )


def _is_usual(dtype: Any, element_type: ElementType, layout: RowLayout, work: int) -> bool:
    # Unpickled arrays have a dtype object of their own, so dtypes are compared by value.
    is_plain = dtype == element_type.storage_dtype and layout.order is None
    return is_plain and work < tuning.PARALLEL_LEAST_WORK


def _weight(name: str, value: Any, layout: RowLayout, compute_type: np.dtype[Any]) -> Any:
    """Return a parameter, None included, as a kernel takes it."""
    if value is None:
        return None
    shape, meaning = layout.parameter_shape, layout.parameter_meaning
    return as_parameter(name, value, shape, meaning, compute_type, layout.kernel_shape)


def kernel_parameters(
    norm: Norm, gamma: Any, beta: Any, layout: RowLayout, element_type: ElementType
) -> tuple[Any, Any]:
    """Return gamma and beta as a kernel takes them."""
    if not norm.parameters:
        return element_type.compute_type(gamma), element_type.compute_type(beta)
    compute_type = element_type.compute_dtype
    gamma = _weight(norm.names.gamma, gamma, layout, compute_type)
    beta = _weight("beta", beta, layout, compute_type)
    return both_or_neither(gamma, beta) if norm.parameters == 2 else (gamma, beta)


def gradient_parameters(
    norm: Norm, gamma: Any, beta: Any, layout: RowLayout, element_type: ElementType
) -> tuple[Any, Any]:
    """Return gamma and beta as a backward kernel takes them: no gradient needs an array beta."""
    if not norm.parameters:
        return element_type.compute_type(gamma), element_type.compute_type(beta)
    return _weight(norm.names.gamma, gamma, layout, element_type.compute_dtype), None


def row_forward(
    norm: Norm,
    x: Array,
    gamma: Any,
    beta: Any,
    layout: RowLayout,
    scaling: Scaling,
    out: Any,
    save: bool,
) -> tuple[Array, Array | None, Array | None]:
    """Return y and, where `save` is true, mean (or root mean square) and rstd of each row."""
    plan = forward_plan(norm, x.dtype, layout, scaling)
    classes = type(gamma), type(beta)
    fast_path = plan.fast_path.get(classes)
    if fast_path is not None and (out is None or type(out) is np.ndarray):
        y = new_output(plan, x) if out is None else out
        mean, rstd = new_statistics(layout) if save else (_NOTHING, _NOTHING)
        arrays = x, gamma, beta, y, mean, rstd, layout.rows if save else 0
        if fast_path(*arrays):
            return y, mean, rstd
    element_type = plan.element_type
    try:
        weights = kernel_parameters(norm, gamma, beta, layout, element_type)
    except ValueError as error:
        given = norm, x, gamma, beta, layout, scaling, out, save
        return broadcast_parameters.forward_of_rows(row_forward, error, *given)
    source = as_kernel_array(x, element_type, layout.order, plan.size)
    if out is None:
        target = new_output(plan, source)
    else:
        target = output_like(source, x, norm.names.x, out, element_type, layout.order, weights)
    mean, rstd = np.empty((2, layout.rows)) if save else (_NOTHING, _NOTHING)
    if plan.elements:
        arguments = source, *weights, *plan.constants, target, mean, rstd, plan.parts
        run(plan.kernel, arguments, plan.work, plan.parts)
        if plan.usual and classes not in plan.fast_path:
            plan.fast_path[classes] = make_fast_forward(
                plan.kernel.machine_code(arguments), element_type, layout,
                (*plan.constants, plan.parts), (gamma, beta), weights,
            )  # fmt: skip
    else:
        mean[...] = rstd[...] = scaling.for_empty_row
    y = result(target, x, out, layout.order)
    if not save:
        return y, None, None
    return y, saved_as(mean, layout, element_type), saved_as(rstd, layout, element_type)


def row_backward(
    norm: Norm,
    dy: Any,
    x: Array,
    mean: Any,
    rstd: Any,
    gamma: Any,
    beta: Any,
    layout: RowLayout,
    scaling: Scaling,
    detached: Detached,
    out: Any,
) -> tuple[Array, Array | None, Array | None]:
    """Return dx and, for a norm with parameters, dgamma and dbeta."""
    plan = backward_plan(norm, x.dtype, layout, scaling, detached)
    count, classes = norm.parameters, (type(mean), type(gamma), type(beta))
    fast_path = plan.fast_path.get(classes) if type(dy) is type(rstd) is np.ndarray else None
    if fast_path is not None and (out is None or type(out) is np.ndarray):
        dx = new_dx(plan, x, dy) if out is None else out
        gradients = one_each(count, np.empty, layout.parameter_shape, x.dtype)
        arrays = dy, x, rstd, dx, mean, gamma, beta, *gradients
        if fast_path(*arrays):
            return dx, *gradients
    if (wide := wider_dtype(norm.names.dy, dy, x)) is not None:
        others = beta, layout, scaling, detached
        return _in_wider_dtype(wide, norm, dy, x, mean, rstd, gamma, others, out)
    return gradients_of(norm, dy, x, mean, rstd, gamma, beta, layout, scaling, detached, out, None)


def gradients_of(
    norm: Norm,
    dy: Any,
    x: Array,
    mean: Any,
    rstd: Any,
    gamma: Any,
    beta: Any,
    layout: RowLayout,
    scaling: Scaling,
    detached: Detached,
    out: Any,
    dtotal: Array | None,
) -> tuple[Array, Array | None, Array | None]:
    """Return what `row_backward` does, for a dy of the dtype of x.

    `dtotal`, of the shape and dtype of x, is added to dx; then no parameter broadcasts.
    """
    plan = backward_plan(norm, x.dtype, layout, scaling, detached)
    count, classes = norm.parameters, (type(mean), type(gamma), type(beta))
    element_type, order = plan.element_type, layout.order
    try:
        taken = _as_kernel_takes(norm, dy, x, mean, rstd, gamma, beta, layout, plan)
    except ValueError as error:
        given = norm, dy, x, mean, rstd, gamma, layout, scaling, detached, out
        return broadcast_parameters.backward_of_rows(row_backward, error, *given)
    grad, source, statistics, weights, dtype = taken
    kernel, added = plan.kernel, tuple[Array, ...]()
    if dtotal is not None:
        kernel = _added_kernel(norm.formula, element_type)
        added = (as_kernel_array(dtotal, element_type, order, plan.size),)
    inputs = norm.names.x, out, element_type, order, (grad, *added, *statistics, *weights)
    target = new_dx(plan, source, grad) if out is None else output_like(source, x, *inputs)
    # The kernels round to these two dtypes.
    native = dtype if dtype is _FLOAT32 or dtype is _FLOAT64 else _FLOAT64
    gradients = one_each(count, np.empty, layout.parameter_shape, native)
    flat = gradients if len(layout.parameter_shape) == 1 else _of_each(gradients, np.ravel)
    totals = one_each(count, np.zeros, (plan.parts, *layout.kernel_shape), _FLOAT64)
    # The kernel stores gradients of the compute dtype only: others would need another compilation.
    in_kernel = native is element_type.compute_dtype
    results = flat if in_kernel else one_each(count, np.empty, 0, element_type.compute_dtype)
    summed = False
    if plan.elements:
        arguments = (
            grad, *added, source, *statistics, *weights, *plan.constants, target, *totals,
            *results, plan.parts,
        )  # fmt: skip
        summed = run(kernel, arguments, plan.work, plan.parts) and in_kernel
        if plan.usual and dtotal is None and classes not in plan.fast_path:
            plan.fast_path[classes] = make_fast_backward(
                plan.kernel.machine_code(arguments), element_type, layout,
                (*plan.constants, plan.parts),
                (mean, gamma, beta), (statistics[0], *weights), gradients,
            )  # fmt: skip
    dx = result(target, x, out, order)
    if count and not summed:
        _add_up(totals, flat)
    dgamma, dbeta = _of_each(gradients, lambda a: a if native is dtype else _cast(a, dtype))
    return dx, dgamma, dbeta


def _in_wider_dtype(
    wide: np.dtype[Any],
    norm: Norm,
    dy: Any,
    x: Array,
    mean: Any,
    rstd: Any,
    gamma: Any,
    others: tuple[Any, RowLayout, Scaling, Detached],
    out: Any,
) -> tuple[Array, Array | None, Array | None]:
    """Return what `row_backward` returns, computed in a dtype that holds all digits of dy and x."""
    return in_wider_dtype(
        wide, x, norm.names.x, gamma, others[1].parameter_shape, out,
        lambda x, gamma: row_backward(norm, dy, x, mean, rstd, gamma, *others, None),
    )  # fmt: skip


def _as_kernel_takes(
    norm: Norm,
    dy: Any,
    x: Array,
    mean: Any,
    rstd: Any,
    gamma: Any,
    beta: Any,
    layout: RowLayout,
    plan: Plan,
) -> tuple[Array, Array, tuple[Any, Array], tuple[Any, Any], np.dtype[Any]]:
    """Return dy, x, mean and rstd, both parameters, and the dtype of their gradients."""
    element_type, order, size, names = plan.element_type, layout.order, plan.size, norm.names
    source = as_kernel_array(x, element_type, order, size)
    grad = as_kernel_array(like_input(names.dy, dy, x, names.x), element_type, order, size)
    rstd = as_statistic(names.rstd, rstd, layout.statistic_shape, "one for each row")
    if norm.formula.centred:
        mean = as_statistic("mean", mean, layout.statistic_shape, "one for each row")
    weights = gradient_parameters(norm, gamma, beta, layout, element_type)
    dtype = gradient_dtype(names.gamma, gamma, x.dtype) if norm.parameters else x.dtype
    return grad, source, (mean, rstd), weights, dtype


def new_output(plan: Plan, x: Array) -> Array:
    """Return an uninitialized array like x for a result."""
    return np.empty_like(x) if plan.small else empty_like(x)


def new_dx(plan: Plan, x: Array, dy: Array) -> Array:
    """Return an uninitialized array like x for its gradient.

    If the loops peel, a dx with wide rows begins as far into a cache line as x, so that both have
    the same peel. With narrow rows that costs more than it saves, and dx begins at a line.
    """
    if plan.small:
        return np.empty_like(x)
    wide = plan.size[1] * x.itemsize > tuning.DX_AT_LINE_MOST_ROW_BYTES
    return empty_like(x, dy, aligned=wide and peels_to_alignment(plan.element_type))


def new_statistics(layout: RowLayout) -> tuple[Array, Array]:
    """Return uninitialized arrays for the mean and the rstd of each row."""
    shape = layout.statistic_shape
    return np.empty(shape), np.empty(shape)


def saved_as(statistic: Array, layout: RowLayout, element_type: ElementType) -> Array:
    """Return a statistic of each row in the dtype and the shape for the caller."""
    if element_type.saved is not statistic.dtype:
        with np.errstate(all="ignore"):  # a reciprocal may leave the range of float32
            statistic = statistic.astype(element_type.saved)
    return statistic.reshape(layout.statistic_shape)


def _add_up(totals: tuple[Any, Any], gradients: tuple[Any, Any]) -> None:
    """Add up all parts of both totals, and store the sums in the gradients."""
    rows = _of_each(totals, lambda total: total.reshape(len(total), -1))
    _totals_kernel()(*rows, *gradients)


def _cast(gradient: Array, dtype: np.dtype[Any]) -> Array:
    with np.errstate(all="ignore"):  # a sum may leave the range of the dtype
        return gradient.astype(dtype)


def one_each(count: int, make: Any, shape: Any, dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """Return new arrays for the first `count` of gamma and beta, None for the others."""
    if count == 2:
        return make(shape, dtype), make(shape, dtype)
    return (make(shape, dtype), None) if count else (None, None)


def _of_each(arrays: tuple[Any, Any], function: Any) -> tuple[Any, Any]:
    """Return the function's results for two arrays, None for None."""
    first, second = arrays
    return (
        None if first is None else function(first),
        None if second is None else function(second),
    )
