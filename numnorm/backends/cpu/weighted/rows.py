"""The norms with statistics of each row, with weights: the callers of the kernels."""

import functools
from typing import Any

import numpy as np

from numnorm.arguments import check_shape
from numnorm.backends.contract.norms import Detached, Norm
from numnorm.backends.contract.norms import Scaling as NormScaling
from numnorm.backends.contract.weighting import Weighting
from numnorm.backends.cpu.compiler.parallel import row_parts, run, summed_parts
from numnorm.backends.cpu.memory.grouped_kernel import flattened
from numnorm.backends.cpu.memory.host_arrays import (
    Array,
    as_float_array,
    as_kernel_array,
    as_parameter,
    as_statistic,
    gradient_dtype,
    in_wider_dtype,
    wider_dtype,
)
from numnorm.backends.cpu.memory.left_out import filling_of, kept_by
from numnorm.backends.cpu.rows import broadcast
from numnorm.backends.cpu.rows.rows import gradient_parameters, kernel_parameters
from numnorm.backends.cpu.simd.element_type import element_type_of
from numnorm.backends.cpu.statistics.broadcast_parameters import View
from numnorm.backends.cpu.weighted.broadcast import cleared
from numnorm.backends.cpu.weighted.loops import LANES, Fill
from numnorm.backends.cpu.weighted.masked_rows import (
    divisor_of,
    is_one_segment,
    masked_row_backward,
    masked_row_forward,
)
from numnorm.backends.cpu.weighted.results import output_for, result_of
from numnorm.backends.cpu.weighted.row_kernels import (
    Gradients,
    Outputs,
    Parameters,
    Rows,
    Scaling,
    Through,
    make_weighted_backward,
    make_weighted_forward,
)
from numnorm.backends.cpu.weighted.selection import selection_of
from numnorm.layouts import RowLayout

_FLOAT64 = np.dtype(np.float64)
_forward_kernel = functools.cache(make_weighted_forward)
_backward_kernel = functools.cache(make_weighted_backward)


def weighted_row_forward(
    weighting: Weighting,
    norm: Norm,
    x: Array,
    gamma: Any,
    beta: Any,
    layout: RowLayout,
    scaling: NormScaling,
    out: Any,
    save: bool,
) -> tuple[Array, Array | None, Array | None]:
    """Return what `row_forward` returns, with statistics of what a weighting keeps."""
    forward = _forward if weighting.weights is not None else masked_row_forward
    try:
        if weighting.weights is not None:
            parameters: Any = _parameters(norm, gamma, beta, layout)
        else:
            element_type = element_type_of(x.dtype)
            parameters = kernel_parameters(norm, gamma, beta, layout, element_type)
    except ValueError as error:
        of_all = functools.partial(weighted_row_forward, weighting)
        refill = filling_of(weighting, x)
        given = norm, x, gamma, beta, layout, scaling, out, save
        y, mean, rstd = broadcast.forward(of_all, error, *given)
        return refill(y), mean, rstd
    return forward(weighting, norm, x, parameters, layout, scaling, out, save)


def _forward(
    weighting: Weighting,
    norm: Norm,
    x: Array,
    parameters: Parameters,
    layout: RowLayout,
    scaling: NormScaling,
    out: Any,
    save: bool,
) -> tuple[Array, Array | None, Array | None]:
    dtype, saved = element_type_of(x.dtype).compute_dtype, element_type_of(x.dtype).saved
    wide, size = x.astype(dtype, copy=False), (layout.rows, layout.width)
    source = as_kernel_array(wide, element_type_of(dtype), layout.order, size)
    selection = selection_of(weighting, x.shape, layout.order, *size)
    inputs = selection.keep, selection.weights, *parameters
    target = output_for(source, wide, x, out, inputs, name=norm.names.x, order=layout.order)
    mean, rstd = np.full((2, layout.rows if save else 0), scaling.for_empty_row)
    if source.size:
        arguments = (
            source.reshape(-1), selection, _rows(norm, layout), parameters,
            _scaling(norm, scaling), Fill(weighting.fill, weighting.fill_missing),
            Outputs(target.reshape(-1), mean, rstd),
        )  # fmt: skip
        parts = row_parts(layout.rows, source.size)
        kernel = _forward_kernel(norm.formula, dtype.name)
        run(kernel, (*flattened(arguments), parts), 2 * source.nbytes, parts)
    y = result_of(target, wide, x, out, order=layout.order)
    if not save:
        return y, None, None
    with np.errstate(over="ignore"):  # a reciprocal may leave the range of float32
        mean, rstd = (s.astype(saved).reshape(layout.statistic_shape) for s in (mean, rstd))
    return y, mean, rstd


def weighted_row_backward(
    weighting: Weighting,
    norm: Norm,
    dy: Any,
    x: Array,
    mean: Any,
    rstd: Any,
    gamma: Any,
    beta: Any,
    layout: RowLayout,
    scaling: NormScaling,
    detached: Detached,
    out: Any,
) -> tuple[Array, Array | None, Array | None]:
    """Return what `row_backward` returns, with statistics of what a weighting keeps."""
    grad, statistics = _checked(norm, dy, x, mean, rstd, layout)
    wide = wider_dtype(norm.names.dy, grad, x) if weighting.weights is None else None
    if wide is not None:
        others = beta, layout, scaling, detached, None
        return in_wider_dtype(
            wide, x, norm.names.x, gamma, layout.parameter_shape, out,
            lambda x, gamma: weighted_row_backward(
                weighting, norm, grad, x, mean, rstd, gamma, *others
            ),
        )  # fmt: skip
    masked = weighting.weights is None and is_one_segment(norm, layout)
    try:
        parameters: Any = (
            gradient_parameters(norm, gamma, beta, layout, element_type_of(x.dtype))
            if masked
            else _parameters(norm, gamma, beta, layout)
        )
    except ValueError as error:
        given = norm, grad, x, *statistics, gamma, layout, scaling, detached, out
        return _broadcast_backward(weighting, error, *given)
    backward = masked_row_backward if masked else _backward
    arrays = grad, x, statistics, parameters
    dx, totals = backward(weighting, norm, *arrays, layout, scaling, detached, out)
    return dx, *_of_parameters(norm, totals, gamma, x, layout)


def _backward(
    weighting: Weighting,
    norm: Norm,
    grad: Array,
    x: Array,
    statistics: tuple[Array, Array],
    parameters: Parameters,
    layout: RowLayout,
    scaling: NormScaling,
    detached: Detached,
    out: Any,
) -> tuple[Array, Array]:
    """Return dx, and the totals of dgamma and dbeta of each part of the rows."""
    dtype = np.result_type(
        element_type_of(x.dtype).compute_dtype, element_type_of(grad.dtype).compute_dtype
    )
    wide, size = x.astype(dtype, copy=False), (layout.rows, layout.width)
    element_type = element_type_of(dtype)
    source = as_kernel_array(wide, element_type, layout.order, size)
    grad = as_kernel_array(grad.astype(dtype, copy=False), element_type, layout.order, size)
    selection = selection_of(weighting, x.shape, layout.order, *size)
    inputs = grad, selection.keep, selection.weights, *statistics, *parameters
    target = output_for(source, wide, x, out, inputs, name=norm.names.x, order=layout.order)
    rows = _rows(norm, layout)
    parts = summed_parts(*size, parameters.gamma.size)
    totals = np.zeros((2, parts, rows.channels, parameters.gamma.size // rows.channels))
    if source.size:
        arguments = (
            source.reshape(-1), selection, rows, parameters, _scaling(norm, scaling),
            Through(int(norm.formula.centred and not detached.mean), int(not detached.scale)),
            Gradients(grad.reshape(-1), *statistics, target.reshape(-1)),
            Parameters(*totals.reshape(2, -1)),
        )  # fmt: skip
        kernel = _backward_kernel(norm.formula, dtype.name)
        run(kernel, (*flattened(arguments), parts), 3 * source.nbytes, parts)
    return result_of(target, wide, x, out, order=layout.order), totals


def _parameters(norm: Norm, gamma: Any, beta: Any, layout: RowLayout) -> Parameters:
    """Return gamma and beta as kernels take them: see `Rows.spread`."""
    if not norm.parameters:
        return Parameters(np.full(LANES, float(gamma)), np.full(LANES, float(beta)))
    shape, meaning = layout.parameter_shape, layout.parameter_meaning
    arrays = []
    for name, value, missing in ((norm.names.gamma, gamma, 1.0), ("beta", beta, 0.0)):
        if value is None:
            array = np.full(layout.kernel_shape, missing)
        else:
            array = as_parameter(name, value, shape, meaning, _FLOAT64, layout.kernel_shape)
        arrays.append(np.repeat(array, LANES) if layout.shared else array.reshape(-1))
    return Parameters(*arrays)


def _rows(norm: Norm, layout: RowLayout) -> Rows:
    segments = layout.width // layout.segment
    if not norm.parameters:  # the numbers are the same for every element
        return Rows(layout.rows, segments, layout.segment, 1, 0)
    return Rows(layout.rows, segments, layout.segment, layout.channels, int(not layout.shared))


def _scaling(norm: Norm, scaling: NormScaling) -> Scaling:
    numbers = scaling.eps, scaling.eps_on_deviation, *divisor_of(norm, scaling)
    return Scaling(int(norm.formula.centred), *numbers)


def _checked(
    norm: Norm, dy: Any, x: Array, mean: Any, rstd: Any, layout: RowLayout
) -> tuple[Array, tuple[Array, Array]]:
    """Return dy, and mean and rstd as flat arrays; the mean is 0 without centring."""
    names, shape, meaning = norm.names, layout.statistic_shape, "one for each row"
    grad = as_float_array(names.dy, dy)
    check_shape(names.dy, grad.shape, x.shape, "the shape of the input")
    rstd = as_statistic(names.rstd, rstd, shape, meaning)
    if not norm.formula.centred:
        return grad, (np.zeros(layout.rows), rstd)
    return grad, (as_statistic("mean", mean, shape, meaning), rstd)


def _of_parameters(
    norm: Norm, totals: Array, gamma: Any, x: Array, layout: RowLayout
) -> tuple[Array | None, Array | None]:
    """Return dgamma and dbeta from their totals, None for a parameter that the norm lacks."""
    if not norm.parameters:
        return None, None
    sums = totals.sum(1)
    sums = sums.sum(-1) if layout.shared else sums
    dtype = gradient_dtype(norm.names.gamma, gamma, x.dtype)
    with np.errstate(over="ignore"):  # a sum may leave the range of the dtype
        dgamma, dbeta = sums.reshape(2, *layout.parameter_shape).astype(dtype)
    return dgamma, dbeta if norm.parameters == 2 else None


def _broadcast_backward(
    weighting: Weighting,
    error: ValueError,
    norm: Norm,
    dy: Array,
    x: Array,
    mean: Array,
    rstd: Array,
    gamma: Any,
    *others: Any,
) -> tuple[Array, Array, Array]:
    """Return the gradients for a gamma that broadcasts against x: what is left out is 0 in both."""
    layout = others[0]
    keep = kept_by(weighting, x)
    view = View(x.shape, layout.order, 1, layout.width)
    dy, x, (mean, rstd) = cleared(
        keep, dy, x, (mean, rstd), lambda of_rows: view.spread(of_rows[:, None, None])
    )
    of_all = functools.partial(weighted_row_backward, weighting._replace(keep=keep, omit=False))
    shape = layout.statistic_shape
    mean, rstd = mean.reshape(shape), rstd.reshape(shape)
    return broadcast.backward(
        of_all, error, norm, dy, x, mean if norm.formula.centred else None, rstd, gamma, *others
    )
