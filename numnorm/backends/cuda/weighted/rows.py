"""The norms with statistics of each row, with a selection of elements: checks and launches."""

import functools
import math
from typing import Any

from numnorm.backends.contract.norms import Detached, Norm, Scaling
from numnorm.backends.contract.weighting import Weighting
from numnorm.backends.cuda.arrays.device_array import (
    DeviceArray,
    as_parameter,
    in_order,
    output_like,
    result,
)
from numnorm.backends.cuda.arrays.known_calls import repeats
from numnorm.backends.cuda.arrays.launch import launch, on_device_of
from numnorm.backends.cuda.compiler.element_type import ELEMENT_TYPES, FLOAT64, ElementType
from numnorm.backends.cuda.rows.arguments import RowParameters, RowSizes, SavedStatistics
from numnorm.backends.cuda.rows.backward import (
    broadcast_backward,
    saved_statistics,
    summed_gradients,
)
from numnorm.backends.cuda.rows.forward import broadcast_forward, new_statistics, weight_of
from numnorm.backends.cuda.rows.parameter_sums import make_parameter_gradients
from numnorm.backends.cuda.statistics.stored import float64_memory
from numnorm.backends.cuda.threads.reductions import WARP
from numnorm.backends.cuda.threads.row_columns import Weights
from numnorm.backends.cuda.threads.row_shape import RowShape, backward_parts, blocks_of
from numnorm.backends.cuda.weighted.arrays import selection_of
from numnorm.backends.cuda.weighted.row_kernels import (
    COEFFICIENTS,
    Through,
    Types,
    WeightedScaling,
    make_weighted_coefficients,
    make_weighted_columns,
    make_weighted_forward,
    make_weighted_segments,
)
from numnorm.backends.cuda.weighted.selection import Fill
from numnorm.layouts import RowLayout

# Rows of up to this many elements have a warp each, of which a block has four.
_OF_WARP = 1024
_THREADS = 256
_COLUMNS = RowShape(128, 1, 0, whole=False)

_forward = functools.cache(make_weighted_forward)
_coefficients = functools.cache(make_weighted_coefficients)
_segments = functools.cache(make_weighted_segments)
_columns = functools.cache(make_weighted_columns)
_finish = functools.cache(make_parameter_gradients)


def shape_for(width: int) -> RowShape:
    """Return how threads share rows, or segments, of a width."""
    if width <= _OF_WARP:
        return RowShape(WARP, 4, 0, whole=False)
    return RowShape(_THREADS, 1, 0, whole=False)


def _scaling(norm: Norm, scaling: Scaling) -> WeightedScaling:
    eps, eps_on_deviation = float(scaling.eps), float(scaling.eps_on_deviation)
    share, more = (0.0, 1.0) if norm.of_length else (1.0, -float(scaling.ddof))
    least = max(math.sqrt(eps), eps_on_deviation)
    return WeightedScaling(eps, eps_on_deviation, least, share, more)


def _sizes(norm: Norm, layout: RowLayout) -> RowSizes:
    if not norm.parameters:
        return RowSizes(layout.rows, layout.width, layout.width, 1)
    return RowSizes(layout.rows, layout.width, layout.segment, layout.channels)


@repeats("weighting", "gamma", "beta", "out")
def weighted_row_forward(
    weighting: Weighting,
    norm: Norm,
    x: DeviceArray,
    gamma: Any,
    beta: Any,
    layout: RowLayout,
    scaling: Scaling,
    out: Any,
    save: bool,
) -> tuple[Any, Any, Any]:
    """Return what `row_forward` returns, with statistics of what a weighting keeps; x has rows."""
    order, saved = layout.order, ELEMENT_TYPES[x.lib.statistic_name(x.element.name)]
    with on_device_of(x):
        try:
            scale = weight_of(norm, norm.names.gamma, gamma, 1.0, layout, x)
            shift = weight_of(norm, "beta", beta, 0.0, layout, x)
        except ValueError as error:
            of_all = functools.partial(weighted_row_forward, weighting)
            given = norm, x, gamma, beta, layout, scaling, out, save, weighting
            return broadcast_forward(of_all, error, *given)
        source = in_order(x, order)
        selection, of_weights = selection_of(weighting, x, order, layout.rows, layout.width)
        inputs = source, scale.array, shift.array, selection.keep, selection.weights
        output = output_like(x, order, out, inputs)
        statistics = new_statistics(x, layout, saved) if save else SavedStatistics(None, None)
        weights = Weights(scale.element, shift.element, layout.shared)
        types = Types(x.element, x.element, saved, of_weights, weights)
        shape = shape_for(layout.width)
        parameters = RowParameters(scale.parameter, shift.parameter)
        arrays = source, selection, parameters, output.target, statistics
        numbers = _sizes(norm, layout), _scaling(norm, scaling)
        fill = Fill(weighting.fill, weighting.fill_missing)
        kernel = _forward(norm.formula, types, shape)
        launch(kernel, blocks_of(layout.rows, shape), x, arrays, (*numbers, fill))
        return result(output, x, order), *statistics


@repeats("weighting", "dy", "mean", "rstd", "gamma", "beta", "out")
def weighted_row_backward(
    weighting: Weighting,
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
    """Return what `row_backward` returns, with statistics of what a weighting keeps."""
    order = layout.order
    with on_device_of(x):
        grad = as_parameter(norm.names.dy, dy, x.shape, f"the shape of {x.name}", x)
        of_mean, of_rstd = saved_statistics(norm, mean, rstd, layout, x)
        try:
            scale = weight_of(norm, norm.names.gamma, gamma, 1.0, layout, x)
            shift = weight_of(norm, "beta", beta, 0.0, layout, x)
        except ValueError as error:

            def without_gamma(dy: Any) -> Any:
                given = weighting, norm, dy, x, mean, rstd, None, None
                return weighted_row_backward(*given, layout, scaling, detached, out)[0]

            given = norm, grad, x, of_mean, of_rstd, gamma, layout, weighting
            return broadcast_backward(without_gamma, error, *given)
        source, grads = in_order(x, order), in_order(grad, order)
        selection, of_weights = selection_of(weighting, x, order, layout.rows, layout.width)
        inputs = grads, source, of_mean.array, of_rstd.array, scale.array, shift.array
        output = output_like(x, order, out, (*inputs, selection.keep, selection.weights))
        weights = Weights(scale.element, shift.element, layout.shared and norm.parameters > 0)
        types = Types(x.element, grad.element, of_rstd.element, of_weights, weights)
        parameters = RowParameters(scale.parameter, shift.parameter)
        sizes, shape = _sizes(norm, layout), shape_for(layout.width)
        through = Through(int(norm.formula.centred and not detached.mean), int(not detached.scale))
        table = float64_memory(x, COEFFICIENTS * layout.rows)
        statistics = SavedStatistics(of_mean.array, of_rstd.array)
        arrays: Any = grads, source, selection, statistics, parameters, table
        kernel = _coefficients(norm.formula, types, shape)
        numbers = sizes, _scaling(norm, scaling), through
        launch(kernel, blocks_of(layout.rows, shape), x, arrays, numbers)
        arrays = grads, source, selection, parameters, table, output.target
        gradients = _write_dx(norm, types, x, arrays, sizes, layout, scale.element or x.element)
        return result(output, x, order), *gradients


def _write_dx(
    norm: Norm,
    types: Types,
    x: DeviceArray,
    arrays: Any,
    sizes: RowSizes,
    layout: RowLayout,
    gradient: ElementType,
) -> tuple[Any, Any]:
    """Launch the kernels of dx, dgamma and dbeta; return the last two, None without parameters."""
    count, of_columns = norm.parameters, norm.parameters > 0 and not layout.shared
    segments = sizes.rows * (sizes.width // sizes.segment)
    if of_columns:
        strips = -(-sizes.width // _COLUMNS.threads)
        parts = backward_parts(sizes.rows, _COLUMNS, sizes.channels, strips)
        table = parts // sizes.channels, sizes.channels * sizes.width
    else:
        table = segments // sizes.channels, sizes.channels
    sums = float64_memory(x, count * table[0] * table[1]) if count else None
    if of_columns:
        kernel = _columns(norm.formula, types, count, _COLUMNS)
        launch(kernel, parts * strips, x, (*arrays, sums), (sizes, parts))
    else:
        shape = shape_for(sizes.segment)
        kernel = _segments(norm.formula, types, count, shape)
        launch(kernel, blocks_of(segments, shape), x, (*arrays, sums), (sizes,))
    return summed_gradients(norm, _finish(FLOAT64, gradient), table, layout, x, gradient, sums)
