"""The norms of rows for lazy arrays; the functions of `numnorm` with their names call them."""

from __future__ import annotations

from typing import Any

import numnorm
from numnorm.dask import row_norms
from numnorm.dask.parameters import made_lazy
from numnorm.dask.whole_rows import Rows
from numnorm.layouts import RowLayout, normalized_axes, row_layout


def layer_norm(
    x: Any, gamma: Any = None, beta: Any = None, *, axis: Any = -1, eps: Any = 1e-5, out: Any = None
) -> Any:
    """Return `numnorm.layer_norm` of lazy arrays."""
    arrays = {"x": x, "gamma": gamma, "beta": beta}
    return _forward(numnorm.layer_norm, arrays, axis, out, eps=eps)


def layer_norm_forward(
    x: Any, gamma: Any = None, beta: Any = None, *, axis: Any = -1, eps: Any = 1e-5, out: Any = None
) -> Any:
    """Return `numnorm.layer_norm_forward` of lazy arrays."""
    arrays = {"x": x, "gamma": gamma, "beta": beta}
    return _forward(numnorm.layer_norm_forward, arrays, axis, out, eps=eps)


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
    arrays = {"dy": dy, "x": x, "mean": mean, "rstd": rstd, "gamma": gamma}
    return _backward(numnorm.layer_norm_backward, arrays, axis, out, detach=detach)


def _forward(function: Any, arrays: dict[str, Any], axis: Any, out: Any, **options: Any) -> Any:
    lazy = made_lazy(arrays, out)
    layout, rows = _rows(next(iter(lazy.values())), axis)
    return row_norms.forward(function, lazy, layout, rows, {"axis": rows.axes, **options})


def _backward(function: Any, arrays: dict[str, Any], axis: Any, out: Any, **options: Any) -> Any:
    lazy = made_lazy(arrays, out)
    _, x, *_ = lazy.values()
    layout, rows = _rows(x, axis)
    return row_norms.backward(function, lazy, layout, rows, {"axis": rows.axes, **options})


def _rows(x: Any, axis: Any) -> tuple[RowLayout, Rows]:
    layout = row_layout(x.shape, axis)
    axes = normalized_axes(axis, x.ndim)
    return layout, Rows(axes, tuple(a for a in range(x.ndim) if a not in axes), axes)
