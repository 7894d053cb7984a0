"""The gradients of the norms whose statistics are shared by a row, on arrays of a device."""

import functools
from typing import Any, NamedTuple

from numnorm.arguments import RowLayout
from numnorm.backends.contract import Detached, Formula, Norm, Scaling
from numnorm.backends.cuda.arrays import (
    DeviceArray,
    as_parameter,
    in_order,
    output_like,
    result,
)
from numnorm.backends.cuda.column_sums import ROWS_BETWEEN_FLUSHES
from numnorm.backends.cuda.elements import FLOAT32, FLOAT64, Element
from numnorm.backends.cuda.launch import backward_parts, backward_shape
from numnorm.backends.cuda.parameter_gradients_kernel import COLUMNS, make_parameter_gradients
from numnorm.backends.cuda.queues import on_device_of, queue
from numnorm.backends.cuda.row_backward_kernel import make_row_backward
from numnorm.backends.cuda.row_shape import RowShape
from numnorm.backends.cuda.row_weights import Weights
from numnorm.backends.cuda.rows import all_whole, weight_of
from numnorm.backends.cuda.statistics import Statistic
from numnorm.backends.cuda.target import Kernel


class _Plan(NamedTuple):
    """What follows from norm, elements and layout alone, found once for all calls like it.

    Attributes
    ----------
    kernel, finish : Kernel
        The one of the rows, and the one that makes gradients of what it leaves for gamma and beta.
    parts : int
        How many blocks there are.
    sizes, constants : tuple
        The kernel's numbers.
    table : tuple of int
        How many sums there are for a column, and how many columns, of each parameter.
    long : bool
        Whether a part has more rows than are summed up in one go.
    """

    kernel: Kernel
    finish: Kernel
    parts: int
    sizes: tuple[int, ...]
    constants: tuple[float, ...]
    table: tuple[int, int]
    long: bool


@functools.cache
def _kernel(
    formula: Formula,
    element: Element,
    saved: Element,
    weights: Weights,
    parameters: int,
    shape: RowShape,
) -> Kernel:
    return make_row_backward(formula, element, saved, weights, parameters, shape)


@functools.cache
def _finish(element: Element, of: Element) -> Kernel:
    return make_parameter_gradients(element, of)


@functools.lru_cache(maxsize=1024)
def _plan(
    norm: Norm,
    element: Element,
    saved: Element,
    weights: Weights,
    layout: RowLayout,
    scaling: Scaling,
    detached: Detached,
    whole: bool,
) -> _Plan:
    shape = backward_shape(layout.width, element, whole=whole)
    by_run = layout.shared and norm.parameters > 0
    channels = layout.channels if norm.parameters else 1
    parts = backward_parts(layout.rows, shape, 1 if by_run else channels)
    mean_share = 1.0 / layout.width if norm.formula.centred and not detached.mean else 0.0
    scale_share = 0.0 if detached.scale else 1.0 / (layout.width - scaling.ddof)
    runs = layout.rows * layout.width // layout.run
    return _Plan(
        _kernel(norm.formula, element, saved, weights, norm.parameters, shape),
        _finish(element, weights.gamma or element),
        parts,
        (layout.rows, layout.width, layout.run, channels, parts),
        (mean_share, scale_share, scaling.eps_on_deviation),
        (runs // channels, channels) if by_run else (parts // channels, channels * layout.width),
        layout.rows > ROWS_BETWEEN_FLUSHES * shape.teams * parts and not by_run,
    )


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
) -> tuple[Any, Any, Any]:
    """Return dx and, for a norm with parameters, dgamma and dbeta."""
    with on_device_of(x):
        slope = _like_input(norm.names.dy, dy, x)
        of_rstd = _statistic(norm.names.rstd, rstd, layout, x)
        of_mean = _statistic("mean", mean, layout, x) if norm.formula.centred else of_rstd
        if of_mean.element != of_rstd.element:
            raise TypeError(
                f"mean and {norm.names.rstd} must have one dtype, got {of_mean.element.name} "
                f"and {of_rstd.element.name}"
            )
        scale = weight_of(norm, norm.names.gamma, gamma, 1.0, layout, x)
        shift = weight_of(norm, "beta", beta, 0.0, layout, x)
        source, slopes = in_order(x, layout.order), in_order(slope, layout.order)
        inputs = slopes, source, of_mean.array, of_rstd.array, scale.array, shift.array
        output = output_like(x, layout.order, out, inputs)
        weights = Weights(scale.element, shift.element, layout.shared)
        if not layout.rows * layout.width:
            return result(output, x, layout.order), *_no_gradients(norm, layout, x, weights)
        whole = all_whole(x, layout, (slopes, source, output.target), scale, shift)
        plan = _plan(norm, x.element, of_rstd.element, weights, layout, scaling, detached, whole)
        sums, rests = _tables(norm, plan, x)
        numbers = scale.number, shift.number, *plan.constants
        queue(
            plan.kernel,
            plan.parts,
            x,
            (*inputs, output.target, sums, rests),
            (*plan.sizes, *numbers),
        )
        gradients = _gradients(norm, plan, layout, x, weights, sums)
        return result(output, x, layout.order), *gradients


def _like_input(name: str, value: Any, x: DeviceArray) -> DeviceArray:
    """Return a gradient of the shape and the dtype of x."""
    array = as_parameter(name, value, x.shape, "the shape of the input", x)
    if array.element != x.element:
        wanted, got = x.element.name, array.element.name
        raise TypeError(f"{name} must have dtype {wanted}, that of the input, got {got}")
    return array


def _statistic(name: str, value: Any, layout: RowLayout, x: DeviceArray) -> DeviceArray:
    """Return a saved statistic of every row, as the caller gives it or already found."""
    if isinstance(value, Statistic):
        return value
    if value is None:
        raise TypeError(f"{name} must be an array of shape {layout.statistic_shape}, got None")
    array = as_parameter(name, value, layout.statistic_shape, "one for each row", x)
    if array.element not in (FLOAT32, FLOAT64):
        raise TypeError(f"{name} must have dtype float32 or float64, got {array.element.name}")
    return array


def _tables(norm: Norm, plan: _Plan, x: DeviceArray) -> tuple[Any, Any]:
    """Return where the kernel leaves its sums, and what rounding lost of long ones."""
    if not norm.parameters:
        return None, None
    shape = norm.parameters, *plan.table
    sums = x.owner.empty(x.array, shape, x.element.working_name)
    rests = x.owner.empty(x.array, shape, x.element.working_name) if plan.long else None
    return sums, rests


def _gradients(
    norm: Norm, plan: _Plan, layout: RowLayout, x: DeviceArray, weights: Weights, sums: Any
) -> tuple[Any, Any]:
    """Return dgamma and dbeta of what a kernel has left; None for those that there are not."""
    if not norm.parameters:
        return None, None
    name = (weights.gamma or x.element).name
    dgamma = x.owner.empty(x.array, layout.parameter_shape, name)
    dbeta = x.owner.empty(x.array, layout.parameter_shape, name) if norm.parameters > 1 else None
    blocks = norm.parameters * -(-plan.table[1] // COLUMNS)
    queue(plan.finish, blocks, x, (sums, dgamma, dbeta), plan.table)
    return dgamma, dbeta


def _no_gradients(
    norm: Norm, layout: RowLayout, x: DeviceArray, weights: Weights
) -> tuple[Any, Any]:
    """Return the gradients of the parameters where x is empty: sums of nothing."""
    name = (weights.gamma or x.element).name
    zeros = [
        x.owner.full(x.array, layout.parameter_shape, name, 0.0) for _ in range(norm.parameters)
    ]
    return (*zeros, None, None)[:2]
