"""Norms of the sum with a residual, for lazy arrays: the sum, and its norm, are lazy, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm._dask.blocks import rounded
from numnorm._dask.parameters import check_not_written, made_lazy
from numnorm.arguments import (
    broadcasts,
    check_float,
    check_parameter_shape,
    check_shape,
    result_dtype,
    wider_float,
)
from numnorm.array_likes import library_of
from numnorm.layouts import row_layout
from numnorm.norms.layer import layer_norm, layer_norm_backward, layer_norm_forward
from numnorm.norms.residual import (
    Added,
    AddedNormalized,
    AddedRMSNormalized,
    add_layer_norm,
    add_layer_norm_backward,
    add_layer_norm_forward,
    add_rms_norm,
    add_rms_norm_backward,
    add_rms_norm_forward,
)
from numnorm.norms.rms import rms_norm, rms_norm_backward, rms_norm_forward

_OPTIONS = "axis", "eps", "detach"
_PARAMETERS = "gamma", "beta"
# The norm of the sum, and the class of the results.
NORMS: dict[Callable[..., Any], tuple[Callable[..., Any], Any]] = {
    add_layer_norm: (layer_norm, Added),
    add_layer_norm_forward: (layer_norm_forward, AddedNormalized),
    add_layer_norm_backward: (layer_norm_backward, None),
    add_rms_norm: (rms_norm, Added),
    add_rms_norm_forward: (rms_norm_forward, AddedRMSNormalized),
    add_rms_norm_backward: (rms_norm_backward, None),
}


def call(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Return the lazy results of a norm of a sum, or its gradients, given the arguments by name."""
    norm, made = NORMS[function]
    for name in ("out", "total_out"):
        check_not_written(name, arguments.pop(name, None))
    options = {name: arguments.pop(name) for name in _OPTIONS if name in arguments}
    arrays = made_lazy(arguments, optional=(*_PARAMETERS, "dtotal"))
    if made is None:
        return _gradients(norm, arrays, options)
    x, residual = (_as_float(name, arrays.pop(name)) for name in ("x", "residual"))
    check_shape("residual", residual.shape, x.shape, "the shape of x")
    wide = wider_float(x.dtype, residual.dtype)
    total = _sum_of(x.astype(wide), residual.astype(wide))
    normalized = norm(total, **arrays, **options)
    y, *saved = normalized if isinstance(normalized, tuple) else (normalized,)
    return made(y, total, *saved)


def _sum_of(x: Any, residual: Any) -> Any:
    """Return the sum of two lazy arrays of one shape and dtype."""
    axes = tuple(range(x.ndim))
    return library_of(x).blockwise(_added, axes, x, axes, residual, axes, dtype=x.dtype)


def _added(x: Any, residual: Any) -> Any:
    with np.errstate(all="ignore"):  # a sum may leave the range of the dtype
        return x + residual


def _as_float(name: str, array: Any) -> Any:
    return array.astype(result_dtype(name, array.dtype))


def _gradients(norm: Callable[..., Any], arrays: dict[str, Any], options: dict[str, Any]) -> Any:
    """Return the gradients of a norm of a sum."""
    total, dtotal = _as_float("total", arrays.pop("total")), arrays.pop("dtotal")
    dy, gamma = arrays.pop("dy"), arrays["gamma"]
    # What the norm alone would check, and say of an x.
    layout = row_layout(total.shape, options["axis"], "total")
    for name, array in (("dy", dy), ("dtotal", dtotal)):
        if array is not None:
            check_shape(name, array.shape, total.shape, "the shape of total")
            check_float(name, array.dtype)
    usual, meaning = layout.parameter_shape, layout.parameter_meaning
    if gamma is not None and not broadcasts(gamma.shape, usual, total.shape):
        check_parameter_shape("gamma", gamma.shape, usual, meaning, total.shape)
    gradients = norm(dy, total, **arrays, **options)
    if dtotal is None:
        return gradients
    dx = gradients.dx
    return gradients._replace(dx=_sum_of(dx, rounded(dtotal, dx.dtype)))
