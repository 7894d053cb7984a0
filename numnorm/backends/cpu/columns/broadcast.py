"""Batch norm with parameters that broadcast against x: the kernels compute the rest."""

from typing import Any

from numnorm.array_likes import check_out
from numnorm.backends.contract.norms import Detached
from numnorm.backends.cpu.memory.host_arrays import (
    Array,
    as_float_array,
    gradient_dtype,
    rounded,
)
from numnorm.backends.cpu.simd.element_type import element_type_of
from numnorm.backends.cpu.statistics.broadcast_parameters import (
    Parameter,
    View,
    axes_of_channels,
    check_any,
    parameter_gradients,
    scale_and_shift,
    scaled,
)
from numnorm.layouts import ColumnLayout


def forward(
    column_forward: Any,
    error: ValueError,
    x: Array,
    mean: Array,
    m2: Array,
    divisor: float,
    eps: float,
    gamma: Any,
    beta: Any,
    layout: ColumnLayout,
    out: Any,
) -> tuple[Array, Array]:
    """Return what `column_forward` returns; raise its error if no parameter broadcasts."""
    parameters = _parameters(gamma, beta, layout)
    check_any(parameters, x.shape, error)
    compute_dtype = element_type_of(x.dtype).compute_dtype
    view = View(x.shape, None, layout.channels, layout.inner)
    arrays = [view.parameter(parameter, compute_dtype) for parameter in parameters]
    if out is not None:
        check_out(out, x, "x")
    wide = x.astype(compute_dtype, copy=False)
    y, rstd = column_forward(wide, mean, m2, divisor, eps, None, None, layout, None)
    scale_and_shift(y, *arrays)
    return rounded(y, x.dtype, out), rstd


def backward(
    column_backward: Any,
    error: ValueError,
    dy: Any,
    x: Array,
    mean: Array,
    rstd: Array,
    gamma: Any,
    layout: ColumnLayout,
    detached: Detached,
    out: Any,
    *,
    keep: Array | None = None,
) -> tuple[Array, Array, Array]:
    """Return what `column_backward` returns; raise its error if gamma does not broadcast.

    `keep` is a mask of the shape of x, False where an element is left out.
    """
    parameters = _parameters(gamma, None, layout)
    check_any(parameters, x.shape, error)
    dtype = gradient_dtype("gamma", gamma, x.dtype)
    compute_dtype = element_type_of(x.dtype).compute_dtype
    if out is not None:
        check_out(out, x, "x")
    view = View(x.shape, None, layout.channels, layout.inner)
    weight = view.parameter(parameters[0], compute_dtype)
    assert weight is not None
    dy = as_float_array("dy", dy)
    axes = axes_of_channels(x.shape, layout.outer, layout.channels)
    gradients = parameter_gradients(dy, x, keep, (mean, rstd), weight, dtype, axes)
    grad = scaled(dy, weight, compute_dtype)
    wide = x.astype(compute_dtype, copy=False)
    dx = column_backward(grad, wide, mean, rstd, None, layout, detached, grad)[0]
    return rounded(dx, x.dtype, out), *gradients


def _parameters(gamma: Any, beta: Any, layout: ColumnLayout) -> list[Parameter]:
    shape, meaning = (layout.channels,), "the channels of x"
    return [Parameter("gamma", gamma, shape, meaning), Parameter("beta", beta, shape, meaning)]
