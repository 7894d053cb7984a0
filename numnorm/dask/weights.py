"""Norms of lazy arrays with missing values or weights, where a block holds all that counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numnorm import dask
from numnorm.dask import row_norms
from numnorm.dask.parameters import as_broadcast, made_lazy
from numnorm.dask.row_axes import Rows
from numnorm.layouts import normalized_axes, row_layout

_NORMS = "layer_norm", "rms_norm", "ada_norm"
_OF_ROWS = {*_NORMS, *(f"{name}_forward" for name in _NORMS), "standard_normal_variate"}
_MOVING = {f"{name}_norm{kind}" for name in ("moving", "exponential") for kind in ("", "_forward")}
_MOVING |= {"exponential_norm_backward"}
_ARRAYS = ("x", "gamma", "beta", "where", "weights")


def with_weights(function: Callable[..., Any], arguments: dict[str, Any], keyword: str) -> Any:
    """Return the lazy result of a public function, given all its arguments.

    Parameters
    ----------
    function : callable
    arguments : dict
        With `where`, `weights`, `nan_policy` or `fill` among them.
    keyword : str
        One of these, for the message.

    Raises
    ------
    NotImplementedError
        If the function has no such form.
    """
    name = function.__name__
    if name in _OF_ROWS:
        return _of_rows(function, arguments)
    if name in _MOVING:
        return getattr(dask, name)(arguments)
    raise NotImplementedError(f"{keyword} is not supported for lazy arrays in {name}")


def _of_rows(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Return a norm of rows, of which each becomes a part of one block."""
    given = {name: value for name, value in arguments.items() if value is not None}
    arrays = {name: given.pop(name) for name in _ARRAYS if name in given}
    arrays = made_lazy(arrays, given.pop("out", None))
    x = arrays["x"]
    axes = normalized_axes(given.pop("axis"), x.ndim)
    layout = row_layout(x.shape, axes)
    whole = x.rechunk(dict.fromkeys(axes, -1))
    for name in {"where", "weights"} & arrays.keys():
        if name == "where" or arrays[name].shape != layout.parameter_shape:
            arrays[name] = as_broadcast(name, arrays[name], x)
    kept = tuple(axis for axis in range(x.ndim) if axis not in axes)
    rows = Rows(axes, kept, axes)
    options = {"axis": axes, **given}
    # Only divided rows need to know what the norm does.
    norm: Any = None
    results = row_norms.forward(function, {**arrays, "x": whole}, layout, rows, options, norm)
    if not isinstance(results, tuple):
        return results.rechunk(x.chunks)
    return type(results)(results[0].rechunk(x.chunks), *results[1:])
