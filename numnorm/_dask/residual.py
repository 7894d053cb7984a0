"""Norms of the sum with a residual, for lazy arrays: the sum, and its norm, are lazy, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numnorm._dask.blocks import rounded
from numnorm._dask.parameters import made_lazy
from numnorm.arguments import check_float, check_shape, result_dtype
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
    outs = [arguments.pop(name) for name in ("out", "total_out") if name in arguments]
    out = next((each for each in outs if each is not None), None)
    options = {name: arguments.pop(name) for name in _OPTIONS if name in arguments}
    arrays = made_lazy(arguments, out, (*_PARAMETERS, "dtotal"))
    if made is None:
        return _gradients(norm, arrays, options)
    x, residual = (_as_float(name, arrays.pop(name)) for name in ("x", "residual"))
    check_shape("residual", residual.shape, x.shape, "the shape of x")
    total = x + residual
    normalized = norm(total, **arrays, **options)
    y, *saved = normalized if isinstance(normalized, tuple) else (normalized,)
    return made(y, total, *saved)


def _as_float(name: str, array: Any) -> Any:
    return array.astype(result_dtype(name, array.dtype))


def _gradients(norm: Callable[..., Any], arrays: dict[str, Any], options: dict[str, Any]) -> Any:
    """Return the gradients of a norm of a sum."""
    total, dtotal = arrays.pop("total"), arrays.pop("dtotal")
    gradients = norm(arrays.pop("dy"), total, **arrays, **options)
    if dtotal is None:
        return gradients
    dx = gradients.dx
    check_shape("dtotal", dtotal.shape, dx.shape, "the shape of the sum")
    check_float("dtotal", dtotal.dtype)
    return gradients._replace(dx=dx + rounded(dtotal.rechunk(dx.chunks), dx.dtype))
