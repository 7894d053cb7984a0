"""The gradients of the row norms on device arrays: checks, plan and launches."""

import functools
from typing import Any, NamedTuple

from numnorm.backends.contract.gains import parameters_of_rows
from numnorm.backends.contract.norms import Detached, Norm, Scaling
from numnorm.backends.contract.weighting import Weighting
from numnorm.backends.cuda.arrays.device_array import (
    DeviceArray,
    as_parameter,
    in_order,
    output_like,
    result,
)
from numnorm.backends.cuda.arrays.gather_rows import in_wider_dtype
from numnorm.backends.cuda.arrays.known_calls import repeats
from numnorm.backends.cuda.arrays.launch import launch, on_device_of
from numnorm.backends.cuda.compiler.element_type import FLOAT32, FLOAT64, ElementType
from numnorm.backends.cuda.compiler.target import Kernel
from numnorm.backends.cuda.rows.arguments import (
    PartialSums,
    RowParameters,
    RowScaling,
    RowSizes,
    SavedStatistics,
)
from numnorm.backends.cuda.rows.backward_kernel import make_row_backward
from numnorm.backends.cuda.rows.backward_loop_kernel import (
    COEFFICIENTS,
    make_row_backward_coefficients,
    make_row_backward_columns,
    make_row_backward_loop,
)
from numnorm.backends.cuda.rows.forward import all_aligned, weight_of
from numnorm.backends.cuda.rows.parameter_sums import (
    COLUMNS,
    ROWS_BETWEEN_FLUSHES,
    make_parameter_gradients,
)
from numnorm.backends.cuda.statistics import broadcast_parameters
from numnorm.backends.cuda.statistics.stored import Statistic
from numnorm.backends.cuda.threads.row_columns import Weights
from numnorm.backends.cuda.threads.row_shape import (
    backward_parts,
    backward_shape,
    segment_shape,
    strip_shape,
    strips_of,
)
from numnorm.layouts import RowLayout

# Plans


class GradientPlan(NamedTuple):
    """The kernels and their launches, which depend on norm, elements and layout alone.

    Attributes
    ----------
    coefficients : Kernel or None
        For wide rows whose columns have parameters: the kernel that stores the coefficients of
        each row. It is launched first.
    kernel, finish : Kernel
        The kernel that stores dx and partial sums, and the kernel that adds up these sums.
    blocks : int
        The number of blocks of `kernel`.
    sizes, parts, scaling
        Arguments of the kernels.
    table : tuple of int
        The shape of the partial sums of each parameter.
    long : bool
        Whether a part has more rows than `ROWS_BETWEEN_FLUSHES` for each team.
    """

    coefficients: Kernel | None
    kernel: Kernel
    finish: Kernel
    blocks: int
    sizes: RowSizes
    parts: int
    scaling: RowScaling
    table: tuple[int, int]
    long: bool


# Norms that differ only in their layouts share kernels.
_in_registers = functools.cache(make_row_backward)
_by_segments = functools.cache(make_row_backward_loop)
_coefficients = functools.cache(make_row_backward_coefficients)
_by_columns = functools.cache(make_row_backward_columns)
_finish = functools.cache(make_parameter_gradients)


@functools.lru_cache(maxsize=1024)
def gradient_plan(
    norm: Norm,
    element: ElementType,
    saved: ElementType,
    weights: Weights,
    gradient: ElementType,
    layout: RowLayout,
    scaling: Scaling,
    detached: Detached,
    aligned: bool,
    adds: bool,
) -> GradientPlan:
    """Return the plan for elements of this type, `aligned` if all arrays begin at 16 bytes.

    The gradients of the parameters have the type `gradient`. A plan that `adds` to dx is of rows
    that fit the registers.
    """
    formula, parameters = norm.formula, norm.parameters
    shape = backward_shape(layout.width, element, aligned=aligned)
    by_segment = layout.shared and parameters > 0
    channels = layout.channels if parameters else 1
    coefficients, strips = None, 1
    if shape.vectors:
        kernel = _in_registers(formula, element, saved, weights, parameters, shape, adds=adds)
        parts = backward_parts(layout.rows, shape, 1 if by_segment else channels)
    elif by_segment or not parameters:
        shape, parts = segment_shape(layout.width, layout.segment, element, shape), layout.rows
        kernel = _by_segments(formula, element, saved, weights, parameters, shape)
    else:
        coefficients = _coefficients(formula, element, saved, weights, shape)
        shape = strip_shape(shape)
        kernel = _by_columns(formula, element, weights, parameters, shape)
        strips = strips_of(layout.width, element, shape)
        parts = backward_parts(layout.rows, shape, channels, strips)
    inv_count = 1.0 / layout.width if formula.centred and not detached.mean else 0.0
    inv_divisor = 0.0 if detached.scale else 1.0 / (layout.width - scaling.ddof)
    if by_segment:
        table = layout.rows * layout.width // layout.segment // channels, channels
    else:
        table = parts // channels, channels * layout.width
    return GradientPlan(
        coefficients,
        kernel,
        _finish(element, gradient),
        parts * strips,
        RowSizes(layout.rows, layout.width, layout.segment, channels),
        parts,
        RowScaling(inv_count, inv_divisor, scaling.eps_on_deviation),
        table,
        layout.rows > ROWS_BETWEEN_FLUSHES * shape.teams * parts and not by_segment,
    )


# Checks and launches


@repeats("dy", "mean", "rstd", "gamma", "beta", "out")
def row_backward(
    norm: Norm,
    dy: Any,
    x: DeviceArray,
    mean: Any,
    rstd: Any,
    gamma: Any,
    beta: Any,
    layout: RowLayout,
    scaling: Scaling,
    detached: Detached,
    out: Any,
) -> tuple[Any, ...]:
    """Return dx and, for a norm with parameters, dgamma and dbeta."""
    with on_device_of(x):
        grad = as_parameter(norm.names.dy, dy, x.shape, f"the shape of {x.name}", x)
        others = mean, rstd, gamma, beta, layout, scaling, detached, x.element
        if grad.element == x.element:
            return backward_of_one_dtype(norm, grad, x, *others, out)
        return in_wider_dtype(
            grad, x, out, lambda dy, x, out: backward_of_one_dtype(norm, dy, x, *others, out)
        )


def backward_of_one_dtype(
    norm: Norm,
    grad: DeviceArray,
    x: DeviceArray,
    mean: Any,
    rstd: Any,
    gamma: Any,
    beta: Any,
    layout: RowLayout,
    scaling: Scaling,
    detached: Detached,
    element: ElementType,
    out: Any,
    dtotal: Any = None,
) -> tuple[Any, ...]:
    """Return the same for a dy of the dtype of x; without gamma its gradient is an `element`.

    `dtotal` is added to dx. Then rows must fit the registers, and gamma must not broadcast.
    """
    of_mean, of_rstd = saved_statistics(norm, mean, rstd, layout, x)
    try:
        scale = weight_of(norm, norm.names.gamma, gamma, 1.0, layout, x)
        shift = weight_of(norm, "beta", beta, 0.0, layout, x)
    except ValueError as error:

        def without_gamma(dy: Any) -> Any:
            given = norm, dy, x, mean, rstd, None, None, layout, scaling, detached, out
            return row_backward(*given)[0]

        saved = of_mean, of_rstd
        return broadcast_backward(without_gamma, error, norm, grad, x, *saved, gamma, layout)
    source, grads = in_order(x, layout.order), in_order(grad, layout.order)
    inputs = grads, source, of_mean.array, of_rstd.array, scale.array, shift.array
    added = None if dtotal is None else in_order(dtotal, layout.order)
    output = output_like(x, layout.order, out, (*inputs, added))
    weights = Weights(scale.element, shift.element, layout.shared)
    gradient = scale.element or element
    if not layout.rows * layout.width:
        return result(output, x, layout.order), *_no_gradients(norm, layout, x, gradient)
    rows = grads, source, output.target, *(() if added is None else (added,))
    options = layout, scaling, detached, all_aligned(x, layout, rows, scale, shift)
    elements = x.element, of_rstd.element, weights, gradient
    plan = gradient_plan(norm, *elements, *options, added is not None)
    partials = _partial_sums(norm, plan, x)
    statistics = SavedStatistics(of_mean.array, of_rstd.array)
    parameters = RowParameters(scale.parameter, shift.parameter)
    numbers = plan.sizes, plan.parts
    if plan.coefficients is None:
        arrays: Any = grads, source, statistics, parameters, output.target, added, partials
        launch(plan.kernel, plan.blocks, x, arrays, (*numbers, plan.scaling))
    else:
        shape = layout.rows, COEFFICIENTS
        coefficients = x.lib.empty(x.array, shape, x.element.compute_name)
        arrays = grads, source, statistics, parameters, coefficients
        launch(plan.coefficients, layout.rows, x, arrays, (plan.sizes, plan.scaling))
        arrays = grads, source, parameters, coefficients, output.target, partials
        launch(plan.kernel, plan.blocks, x, arrays, numbers)
    gradients = summed_gradients(norm, plan.finish, plan.table, layout, x, gradient, partials.sums)
    return result(output, x, layout.order), *gradients


def broadcast_backward(
    without_gamma: Any,
    error: ValueError,
    norm: Norm,
    dy: DeviceArray,
    x: DeviceArray,
    mean: DeviceArray,
    rstd: DeviceArray,
    gamma: Any,
    layout: RowLayout,
    weighting: Weighting | None = None,
) -> tuple[Any, Any, Any]:
    """Return what a backward pass does, for a gamma that broadcasts against x.

    ``without_gamma(dy)`` is dx of the norm without it.
    """
    own = broadcast_parameters.given_parameter(x)
    parameters = parameters_of_rows(norm, gamma, None, layout, own)
    view = broadcast_parameters.view_of_rows(x, layout)
    statistics = mean if norm.formula.centred else None, rstd
    given = without_gamma, error, dy, x, statistics, parameters, view, weighting
    return broadcast_parameters.backward(*given)


def saved_statistics(
    norm: Norm, mean: Any, rstd: Any, layout: RowLayout, x: DeviceArray
) -> tuple[DeviceArray, DeviceArray]:
    """Return mean and rstd of every row, checked; without centring the mean is any array."""
    of_rstd = _statistic(norm.names.rstd, rstd, layout, x)
    of_mean = _statistic("mean", mean, layout, x) if norm.formula.centred else of_rstd
    if of_mean.element != of_rstd.element:
        raise TypeError(
            f"mean and {norm.names.rstd} must have one dtype, got {of_mean.element.name} "
            f"and {of_rstd.element.name}"
        )
    return of_mean, of_rstd


def _statistic(name: str, value: Any, layout: RowLayout, x: DeviceArray) -> DeviceArray:
    """Return a saved statistic of every row, checked unless this package computed it."""
    if isinstance(value, Statistic):
        return value
    if value is None:
        raise TypeError(f"{name} must be an array of shape {layout.statistic_shape}, got None")
    array = as_parameter(name, value, layout.statistic_shape, "one for each row", x)
    if array.element not in (FLOAT32, FLOAT64):
        raise TypeError(f"{name} must have dtype float32 or float64, got {array.element.name}")
    return array


def _partial_sums(norm: Norm, plan: GradientPlan, x: DeviceArray) -> PartialSums:
    """Return new tables for the sums of the kernel, and for what rounding loses of long ones."""
    if not norm.parameters:
        return PartialSums(None, None)
    shape = norm.parameters, *plan.table
    sums = x.lib.empty(x.array, shape, x.element.compute_name)
    lost = x.lib.empty(x.array, shape, x.element.compute_name) if plan.long else None
    return PartialSums(sums, lost)


def summed_gradients(
    norm: Norm,
    finish: Kernel,
    table: tuple[int, int],
    layout: RowLayout,
    x: DeviceArray,
    gradient: ElementType,
    sums: Any,
) -> tuple[Any, Any]:
    """Return dgamma and dbeta from partial sums; None for a parameter that the norm lacks.

    `table` is the shape of the sums of each parameter.
    """
    if not norm.parameters:
        return None, None
    name = gradient.name
    dgamma = x.lib.empty(x.array, layout.parameter_shape, name)
    dbeta = x.lib.empty(x.array, layout.parameter_shape, name) if norm.parameters > 1 else None
    blocks = norm.parameters * -(-table[1] // COLUMNS)
    launch(finish, blocks, x, (sums, dgamma, dbeta), table)
    return dgamma, dbeta


def _no_gradients(
    norm: Norm, layout: RowLayout, x: DeviceArray, gradient: ElementType
) -> tuple[Any, Any]:
    """Return the gradients of the parameters for an empty x: zeros."""
    nothing = layout.parameter_shape, gradient.name, 0.0
    zeros = [x.lib.full(x.array, *nothing) for _ in range(norm.parameters)]
    return (*zeros, None, None)[:2]
