"""The norms of the sum of two device arrays, and their gradients.

Rows that fit the registers are added by the kernel of the norm, others by a kernel of their own.
"""

import math
from typing import Any

from numnorm.array_likes import check_apart
from numnorm.backends.contract.gains import check_all, parameters_of_rows
from numnorm.backends.contract.norms import Detached, Norm, Scaling
from numnorm.backends.cuda.arrays.device_array import (
    DeviceArray,
    as_parameter,
    check_out,
    output_like,
    result,
    sharing,
    with_array,
)
from numnorm.backends.cuda.arrays.known_calls import repeats
from numnorm.backends.cuda.arrays.launch import launch, on_device_of
from numnorm.backends.cuda.compiler.element_type import ELEMENT_TYPES
from numnorm.backends.cuda.rows.arguments import Addition, RowParameters, SavedStatistics
from numnorm.backends.cuda.rows.backward import backward_of_one_dtype, row_backward
from numnorm.backends.cuda.rows.forward import (
    Weight,
    all_aligned,
    forward_plan,
    new_statistics,
    row_forward,
    weight_of,
)
from numnorm.backends.cuda.statistics.broadcast_parameters import (
    contiguous,
    given_parameter,
    write_sum,
)
from numnorm.backends.cuda.threads.row_columns import Weights
from numnorm.backends.cuda.threads.row_shape import backward_shape, launch_shape
from numnorm.layouts import RowLayout


@repeats("residual", "gamma", "beta", "out", "total_out")
def added_forward(
    norm: Norm,
    x: DeviceArray,
    residual: Any,
    gamma: Any,
    beta: Any,
    layout: RowLayout,
    scaling: Scaling,
    out: Any,
    total_out: Any,
    save: bool,
) -> tuple[Any, Any, Any, Any]:
    """Return y, the sum and, where `save` is true, mean (or root mean square) and rstd."""
    with on_device_of(x):
        other = _in_dtype_of("residual", residual, x).array
        source = x.lib.contiguous(x.array)
        # All is checked before anything is written.
        for name, array in (("out", out), ("total_out", total_out)):
            if array is not None:
                check_out(name, array, x)
        if out is not None and total_out is not None:
            check_apart("out", "total_out", sharing(x.lib, out, total_out))
        gamma, beta, weights = _parameters(norm, gamma, beta, layout, x)
        inputs = source, other, gamma, beta
        total = output_like(x, None, total_out, inputs, name="total_out")
        in_registers = layout.order is None and _in_registers(launch_shape, x, layout)
        if weights is None or not in_registers:
            if math.prod(x.shape):
                write_sum(x, source, other, total.target)
            sums = with_array(x, total.target)
            of_sums = row_forward(norm, sums, gamma, beta, layout, scaling, out, save)
            return of_sums[0], result(total, x, None), *of_sums[1:]
        y = output_like(x, None, out, inputs)
        scale, shift = weights
        saved = ELEMENT_TYPES[x.lib.statistic_name(x.element.name)]
        statistics = new_statistics(x, layout, saved) if save else SavedStatistics(None, None)
        rows = source, other, total.target, y.target
        types = x.element, saved, Weights(scale.element, shift.element, layout.shared)
        aligned = all_aligned(x, layout, rows, scale, shift)
        plan = forward_plan(norm.formula, *types, layout, scaling, aligned, adds=True)
        addition = Addition(other, total.target)
        parameters = RowParameters(scale.parameter, shift.parameter)
        arrays = source, addition, parameters, y.target, statistics
        launch(plan.kernel, plan.blocks, x, arrays, plan.arguments)
        return result(y, x, None), result(total, x, None), *statistics


def _in_dtype_of(name: str, value: Any, x: DeviceArray) -> DeviceArray:
    """Return an argument of the shape and dtype of x, checked, C-contiguous."""
    array = as_parameter(name, value, x.shape, f"the shape of {x.name}", x)
    if array.element != x.element:
        wanted, got = x.element.name, array.element.name
        raise TypeError(f"{name} must have dtype {wanted}, as {x.name} has, got {got}")
    return array


def _parameters(
    norm: Norm, gamma: Any, beta: Any, layout: RowLayout, x: DeviceArray
) -> tuple[Any, Any, tuple[Weight, Weight] | None]:
    """Return gamma and beta, checked and C-contiguous, and as weights unless one broadcasts."""
    try:
        scale = weight_of(norm, norm.names.gamma, gamma, 1.0, layout, x)
        shift = weight_of(norm, "beta", beta, 0.0, layout, x)
    except ValueError as error:
        parameters = parameters_of_rows(norm, gamma, beta, layout, given_parameter(x))
        check_all(parameters, x.shape, error)
        scales, shifts = map(contiguous, parameters)
        return scales, shifts, None
    return scale.array, shift.array, (scale, shift)


def _in_registers(shape_of: Any, x: DeviceArray, layout: RowLayout) -> bool:
    """Return whether there are rows, which fit the registers of a team."""
    size = layout.rows * layout.width
    return bool(size and shape_of(layout.width, x.element, aligned=True).vectors)


@repeats("dy", "dtotal", "mean", "rstd", "gamma", "out")
def added_backward(
    norm: Norm,
    dy: Any,
    dtotal: Any,
    x: DeviceArray,
    mean: Any,
    rstd: Any,
    gamma: Any,
    layout: RowLayout,
    scaling: Scaling,
    detached: Detached,
    out: Any,
) -> tuple[Any, ...]:
    """Return dx and the gradients of the parameters, where x is the sum."""
    options = layout, scaling, detached
    if dtotal is None:
        return row_backward(norm, dy, x, mean, rstd, gamma, None, *options, out)
    with on_device_of(x):
        dtotal = _in_dtype_of("dtotal", dtotal, x)
        grad = as_parameter("dy", dy, x.shape, f"the shape of {x.name}", x)
        gamma, _, weights = _parameters(norm, gamma, None, layout, x)
        usual = weights is not None and grad.element == x.element
        if usual and _in_registers(backward_shape, x, layout):
            given = norm, grad, x, mean, rstd, gamma, None, *options, x.element, out
            return backward_of_one_dtype(*given, dtotal=dtotal)
        output = output_like(x, None, out, (dtotal.array,))
        dx, *gradients = row_backward(norm, dy, x, mean, rstd, gamma, None, *options, None)
        if math.prod(x.shape):
            write_sum(x, x.lib.contiguous(dx), dtotal.array, output.target)
        return result(output, x, None), *gradients
