"""The norms of rows for lazy arrays; the functions of `numnorm` with their names call them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numnorm
from numnorm.arguments import check_eps, check_flag, check_number
from numnorm.backends.contract.norms import scaling_by
from numnorm.dask import row_norms
from numnorm.dask.parameters import made_lazy
from numnorm.dask.row_axes import Rows
from numnorm.dask.split_rows import row_norm
from numnorm.layouts import RowLayout, normalized_axes, row_layout, vector_layout
from numnorm.norms import ada, weight
from numnorm.norms.layer import detached_by
from numnorm.norms.standard import check_ddof


def layer_norm(
    x: Any, gamma: Any = None, beta: Any = None, *, axis: Any = -1, eps: Any = 1e-5, out: Any = None
) -> Any:
    """Return `numnorm.layer_norm` of lazy arrays."""
    arrays = {"x": x, "gamma": gamma, "beta": beta}
    return _forward(numnorm.layer_norm, arrays, axis, out, eps)


def layer_norm_forward(
    x: Any, gamma: Any = None, beta: Any = None, *, axis: Any = -1, eps: Any = 1e-5, out: Any = None
) -> Any:
    """Return `numnorm.layer_norm_forward` of lazy arrays."""
    arrays = {"x": x, "gamma": gamma, "beta": beta}
    return _forward(numnorm.layer_norm_forward, arrays, axis, out, eps)


def layer_norm_backward(
    dy: Any,
    x: Any,
    mean: Any,
    rstd: Any,
    gamma: Any = None,
    *,
    axis: Any = -1,
    detach: Any = None,
    out: Any = None,
) -> Any:
    """Return `numnorm.layer_norm_backward` of lazy arrays."""
    lazy = made_lazy({"dy": dy, "x": x, "mean": mean, "rstd": rstd, "gamma": gamma}, out)
    layout, rows = _rows(lazy["x"], axis)
    norm = row_norm(True, scaling_by(0.0), detached=detached_by(detach))
    options = {"axis": rows.axes, "detach": detach}
    return row_norms.backward(numnorm.layer_norm_backward, lazy, layout, rows, options, norm)


def rms_norm(x: Any, gamma: Any = None, *, axis: Any = -1, eps: Any = 1e-5, out: Any = None) -> Any:
    """Return `numnorm.rms_norm` of lazy arrays."""
    return _forward(numnorm.rms_norm, {"x": x, "gamma": gamma}, axis, out, eps, centred=False)


def rms_norm_forward(
    x: Any, gamma: Any = None, *, axis: Any = -1, eps: Any = 1e-5, out: Any = None
) -> Any:
    """Return `numnorm.rms_norm_forward` of lazy arrays."""
    arrays = {"x": x, "gamma": gamma}
    return _forward(numnorm.rms_norm_forward, arrays, axis, out, eps, centred=False)


def rms_norm_backward(
    dy: Any, x: Any, rstd: Any, gamma: Any = None, *, axis: Any = -1, out: Any = None
) -> Any:
    """Return `numnorm.rms_norm_backward` of lazy arrays."""
    lazy = made_lazy({"dy": dy, "x": x, "rstd": rstd, "gamma": gamma}, out)
    layout, rows = _rows(lazy["x"], axis)
    norm, options = row_norm(False, scaling_by(0.0)), {"axis": rows.axes}
    return row_norms.backward(numnorm.rms_norm_backward, lazy, layout, rows, options, norm)


def standard_normal_variate(x: Any, *, axis: Any = -1, ddof: Any = 0, out: Any = None) -> Any:
    """Return `numnorm.standard_normal_variate` of lazy arrays."""
    lazy = made_lazy({"x": x}, out)
    layout, rows = _rows(lazy["x"], axis)
    norm = row_norm(True, scaling_by(0.0, 0.0, check_ddof(ddof, layout)))
    options = {"axis": rows.axes, "ddof": ddof}
    return row_norms.forward(numnorm.standard_normal_variate, lazy, layout, rows, options, norm)


def ada_norm(
    x: Any, axis: Any, scale: Any, k: Any, eps: Any, eps_in: Any, ddof: Any, out: Any
) -> Any:
    """Return `numnorm.ada_norm` of lazy arrays."""
    options = {"scale": scale, "k": k, "eps": eps, "eps_in": eps_in, "ddof": ddof}
    return _adaptive(numnorm.ada_norm, row_norms.forward, {"x": x}, axis, out, options)


def ada_norm_forward(
    x: Any, axis: Any, scale: Any, k: Any, eps: Any, eps_in: Any, ddof: Any, out: Any
) -> Any:
    """Return `numnorm.ada_norm_forward` of lazy arrays."""
    options = {"scale": scale, "k": k, "eps": eps, "eps_in": eps_in, "ddof": ddof}
    return _adaptive(numnorm.ada_norm_forward, row_norms.forward, {"x": x}, axis, out, options)


def ada_norm_backward(
    dy: Any,
    x: Any,
    mean: Any,
    rstd: Any,
    axis: Any,
    scale: Any,
    k: Any,
    eps: Any,
    eps_in: Any,
    ddof: Any,
    detach_factor: Any,
    out: Any,
) -> Any:
    """Return `numnorm.ada_norm_backward` of lazy arrays."""
    arrays = {"dy": dy, "x": x, "mean": mean, "rstd": rstd}
    options = {"scale": scale, "k": k, "eps": eps, "eps_in": eps_in, "ddof": ddof}
    options["detach_factor"] = detach_factor
    return _adaptive(numnorm.ada_norm_backward, row_norms.backward, arrays, axis, out, options)


def weight_norm(v: Any, g: Any = None, *, axis: Any = -1, out: Any = None) -> Any:
    """Return `numnorm.weight_norm` of lazy arrays."""
    arrays = {"v": v, "g": g}
    return _vectors(numnorm.weight_norm, row_norms.forward, arrays, axis, out)


def weight_norm_forward(v: Any, g: Any = None, *, axis: Any = -1, out: Any = None) -> Any:
    """Return `numnorm.weight_norm_forward` of lazy arrays."""
    arrays = {"v": v, "g": g}
    return _vectors(numnorm.weight_norm_forward, row_norms.forward, arrays, axis, out)


def weight_norm_backward(
    dw: Any, v: Any, norm: Any, g: Any = None, *, axis: Any = -1, out: Any = None
) -> Any:
    """Return `numnorm.weight_norm_backward` of lazy arrays."""
    arrays = {"dw": dw, "v": v, "norm": norm, "g": g}
    return _vectors(numnorm.weight_norm_backward, row_norms.backward, arrays, axis, out)


def _forward(
    function: Callable[..., Any],
    arrays: dict[str, Any],
    axis: Any,
    out: Any,
    eps: Any,
    centred: bool = True,
) -> Any:
    """Return layer norm or RMS norm."""
    lazy = made_lazy(arrays, out)
    layout, rows = _rows(lazy["x"], axis)
    norm, options = row_norm(centred, scaling_by(check_eps(eps))), {"axis": rows.axes, "eps": eps}
    return row_norms.forward(function, lazy, layout, rows, options, norm)


def _adaptive(
    function: Callable[..., Any],
    row_pass: Callable[..., Any],
    arrays: dict[str, Any],
    axis: Any,
    out: Any,
    options: dict[str, Any],
) -> Any:
    """Return a pass of AdaNorm."""
    lazy = made_lazy(arrays, out)
    layout, rows = _rows(lazy["x"], axis)
    scaling = ada.scaling_of(options["eps"], options["eps_in"], options["ddof"], layout)
    k = check_number("k", options["k"])
    if not check_flag("detach_factor", options.get("detach_factor", True)):
        k *= 2.0
    norm = row_norm(True, scaling, factors=(ada.check_scale(options["scale"]), k))
    return row_pass(function, lazy, layout, rows, {"axis": rows.axes, **options}, norm)


def _vectors(
    function: Callable[..., Any],
    row_pass: Callable[..., Any],
    arrays: dict[str, Any],
    axis: Any,
    out: Any,
) -> Any:
    """Return a pass of weight norm, whose parameter lies along the other axes."""
    lazy = made_lazy(arrays, out)
    v = lazy["v"]
    layout = vector_layout(v.shape, axis)
    rows = _along(v, axis)
    rows = rows._replace(own=rows.kept)
    norm = row_norm(False, weight.scaling_of(layout), length=True)
    return row_pass(function, lazy, layout, rows, {"axis": rows.axes}, norm)


def _rows(x: Any, axis: Any) -> tuple[RowLayout, Rows]:
    return row_layout(x.shape, axis), _along(x, axis)


def _along(x: Any, axis: Any) -> Rows:
    axes = normalized_axes(axis, x.ndim)
    return Rows(axes, tuple(a for a in range(x.ndim) if a not in axes), axes)
