"""The gradients of the row norms on device arrays: checks, plan and launches."""

from typing import Any

from numnorm.backends.contract.norms import Detached, Norm, Scaling
from numnorm.backends.cuda.arrays.device_array import (
    DeviceArray,
    as_parameter,
    in_order,
    output_like,
    result,
)
from numnorm.backends.cuda.arrays.launch import launch, on_device_of
from numnorm.backends.cuda.arrays.wider_dtype import in_wider_dtype
from numnorm.backends.cuda.compiler.element_type import FLOAT32, FLOAT64, ElementType
from numnorm.backends.cuda.rows.arguments import PartialSums, RowParameters, SavedStatistics
from numnorm.backends.cuda.rows.backward_coefficients import COEFFICIENTS
from numnorm.backends.cuda.rows.backward_plans import GradientPlan, gradient_plan
from numnorm.backends.cuda.rows.forward import all_aligned, weight_of
from numnorm.backends.cuda.rows.parameter_gradient_kernel import COLUMNS
from numnorm.backends.cuda.statistics.stored import Statistic
from numnorm.backends.cuda.threads.row_parameters import Weights
from numnorm.layouts import RowLayout


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
        grad = as_parameter(norm.names.dy, dy, x.shape, "the shape of the input", x)
        others = mean, rstd, gamma, beta, layout, scaling, detached, x.element
        if grad.element == x.element:
            return _row_backward(norm, grad, x, *others, out)
        return in_wider_dtype(
            grad, x, out, lambda dy, x, out: _row_backward(norm, dy, x, *others, out)
        )


def _row_backward(
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
) -> tuple[Any, ...]:
    """Return the same for a dy of the dtype of x; without gamma its gradient is an `element`."""
    of_rstd = _statistic(norm.names.rstd, rstd, layout, x)
    of_mean = _statistic("mean", mean, layout, x) if norm.formula.centred else of_rstd
    if of_mean.element != of_rstd.element:
        raise TypeError(
            f"mean and {norm.names.rstd} must have one dtype, got {of_mean.element.name} "
            f"and {of_rstd.element.name}"
        )
    scale = weight_of(norm, norm.names.gamma, gamma, 1.0, layout, x)
    shift = weight_of(norm, "beta", beta, 0.0, layout, x)
    source, grads = in_order(x, layout.order), in_order(grad, layout.order)
    inputs = grads, source, of_mean.array, of_rstd.array, scale.array, shift.array
    output = output_like(x, layout.order, out, inputs)
    weights = Weights(scale.element, shift.element, layout.shared)
    gradient = scale.element or element
    if not layout.rows * layout.width:
        return result(output, x, layout.order), *_no_gradients(norm, layout, x, gradient)
    aligned = all_aligned(x, layout, (grads, source, output.target), scale, shift)
    plan = gradient_plan(
        norm, x.element, of_rstd.element, weights, gradient, layout, scaling, detached, aligned
    )
    partials = _partial_sums(norm, plan, x)
    statistics = SavedStatistics(of_mean.array, of_rstd.array)
    parameters = RowParameters(scale.parameter, shift.parameter)
    results, numbers = (output.target, partials), (plan.sizes, plan.parts)
    if plan.coefficients is None:
        arrays: Any = grads, source, statistics, parameters, *results
        launch(plan.kernel, plan.blocks, x, arrays, (*numbers, plan.scaling))
    else:
        shape = layout.rows, COEFFICIENTS
        coefficients = x.lib.empty(x.array, shape, x.element.compute_name)
        arrays = grads, source, statistics, parameters, coefficients
        launch(plan.coefficients, layout.rows, x, arrays, (plan.sizes, plan.scaling))
        arrays = grads, source, parameters, coefficients, *results
        launch(plan.kernel, plan.blocks, x, arrays, numbers)
    gradients = _gradients(norm, plan, layout, x, gradient, partials.sums)
    return result(output, x, layout.order), *gradients


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


def _gradients(
    norm: Norm,
    plan: GradientPlan,
    layout: RowLayout,
    x: DeviceArray,
    gradient: ElementType,
    sums: Any,
) -> tuple[Any, Any]:
    """Return dgamma and dbeta from partial sums; None for a parameter that the norm lacks."""
    if not norm.parameters:
        return None, None
    name = gradient.name
    dgamma = x.lib.empty(x.array, layout.parameter_shape, name)
    dbeta = x.lib.empty(x.array, layout.parameter_shape, name) if norm.parameters > 1 else None
    blocks = norm.parameters * -(-plan.table[1] // COLUMNS)
    launch(plan.finish, blocks, x, (sums, dgamma, dbeta), plan.table)
    return dgamma, dbeta


def _no_gradients(
    norm: Norm, layout: RowLayout, x: DeviceArray, gradient: ElementType
) -> tuple[Any, Any]:
    """Return the gradients of the parameters for an empty x: zeros."""
    nothing = layout.parameter_shape, gradient.name, 0.0
    zeros = [x.lib.full(x.array, *nothing) for _ in range(norm.parameters)]
    return (*zeros, None, None)[:2]
