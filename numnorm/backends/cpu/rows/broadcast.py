"""Norms of rows whose parameters broadcast against x: the kernels compute the rest."""

from typing import Any

import numpy as np

from numnorm.arguments import check_shape
from numnorm.array_likes import check_out
from numnorm.backends.contract.norms import Detached, Norm, Scaling
from numnorm.backends.cpu.memory.host_arrays import (
    Array,
    as_float_array,
    as_statistic,
    gradient_dtype,
    rounded,
)
from numnorm.backends.cpu.simd.element_type import element_type_of
from numnorm.backends.cpu.statistics.broadcast_parameters import (
    Parameter,
    View,
    axes_of_rows,
    check_any,
    parameter_gradients,
    scale_and_shift,
    scaled,
)
from numnorm.layouts import RowLayout


def forward(
    row_forward: Any,
    error: ValueError,
    norm: Norm,
    x: Array,
    gamma: Any,
    beta: Any,
    layout: RowLayout,
    scaling: Scaling,
    out: Any,
    save: bool,
) -> tuple[Array, Array | None, Array | None]:
    """Return what `row_forward` returns; raise its error if no parameter broadcasts."""
    parameters = _parameters(norm, gamma, beta, layout)
    check_any(parameters, x.shape, error)
    element_type = element_type_of(x.dtype)
    compute_dtype = element_type.compute_dtype
    view = View(x.shape, layout.order, layout.channels, layout.segment)
    arrays = [view.parameter(parameter, compute_dtype) for parameter in parameters]
    if out is not None:
        check_out(out, x, norm.names.x)
    wide = x.astype(compute_dtype, copy=False)
    y, mean, rstd = row_forward(norm, wide, None, None, layout, scaling, None, save)
    scale_and_shift(y, *arrays)
    y = rounded(y, x.dtype, out)
    if not save:
        return y, None, None
    with np.errstate(all="ignore"):
        return y, mean.astype(element_type.saved), rstd.astype(element_type.saved)


def backward(
    row_backward: Any,
    error: ValueError,
    norm: Norm,
    dy: Any,
    x: Array,
    mean: Any,
    rstd: Any,
    gamma: Any,
    layout: RowLayout,
    scaling: Scaling,
    detached: Detached,
    out: Any,
    *,
    keep: Array | None = None,
) -> tuple[Array, Array, Array]:
    """Return what `row_backward` returns; raise its error if gamma does not broadcast.

    `keep` is a mask of the shape of x, False where an element is left out.
    """
    parameters = _parameters(norm, gamma, None, layout)
    check_any(parameters, x.shape, error)
    dtype = gradient_dtype(norm.names.gamma, gamma, x.dtype)
    compute_dtype = element_type_of(x.dtype).compute_dtype
    dy = as_float_array(norm.names.dy, dy)
    check_shape(norm.names.dy, dy.shape, x.shape, "the shape of the input")
    if out is not None:
        check_out(out, x, norm.names.x)
    rows = View(x.shape, layout.order, 1, layout.width)
    weight = rows.parameter(parameters[0], compute_dtype)
    assert weight is not None
    shape, meaning = layout.statistic_shape, "one for each row"
    statistics = (
        None if mean is None else as_statistic("mean", mean, shape, meaning),
        as_statistic(norm.names.rstd, rstd, shape, meaning),
    )
    axes = axes_of_rows(x.shape, layout.order, layout.rows)
    gradients = parameter_gradients(dy, x, keep, statistics, weight, dtype, axes)
    grad = scaled(dy, weight, compute_dtype)
    wide = x.astype(compute_dtype, copy=False)
    dx = row_backward(norm, grad, wide, mean, rstd, None, None, layout, scaling, detached, grad)[0]
    return rounded(dx, x.dtype, out), *gradients


def _parameters(norm: Norm, gamma: Any, beta: Any, layout: RowLayout) -> list[Parameter]:
    if not norm.parameters:
        return []
    shape, meaning = layout.parameter_shape, layout.parameter_meaning
    return [
        Parameter(norm.names.gamma, gamma, shape, meaning),
        Parameter("beta", beta, shape, meaning),
    ]
