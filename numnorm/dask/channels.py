"""Group and instance norm of lazy arrays: rows are groups of a sample's channels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numnorm
from numnorm.arguments import check_eps
from numnorm.backends.contract.norms import scaling_by
from numnorm.dask import row_norms
from numnorm.dask.parameters import made_lazy
from numnorm.dask.row_axes import Rows
from numnorm.dask.split_rows import row_norm
from numnorm.layouts import RowLayout, group_layout, normalized_axes


def group_norm(
    x: Any,
    gamma: Any = None,
    beta: Any = None,
    *,
    groups: Any,
    channel_axis: Any = 1,
    eps: Any = 1e-5,
    out: Any = None,
) -> Any:
    """Return `numnorm.group_norm` of lazy arrays."""
    lazy = made_lazy({"x": x, "gamma": gamma, "beta": beta}, out)
    layout = group_layout(lazy["x"].shape, channel_axis, groups)
    options = {"groups": groups, "channel_axis": channel_axis, "eps": eps}
    return _forward(numnorm.group_norm, lazy, layout, options)


def group_norm_forward(
    x: Any,
    gamma: Any = None,
    beta: Any = None,
    *,
    groups: Any,
    channel_axis: Any = 1,
    eps: Any = 1e-5,
    out: Any = None,
) -> Any:
    """Return `numnorm.group_norm_forward` of lazy arrays."""
    lazy = made_lazy({"x": x, "gamma": gamma, "beta": beta}, out)
    layout = group_layout(lazy["x"].shape, channel_axis, groups)
    options = {"groups": groups, "channel_axis": channel_axis, "eps": eps}
    return _forward(numnorm.group_norm_forward, lazy, layout, options)


def group_norm_backward(
    dy: Any,
    x: Any,
    mean: Any,
    rstd: Any,
    gamma: Any = None,
    *,
    groups: Any,
    channel_axis: Any = 1,
    out: Any = None,
) -> Any:
    """Return `numnorm.group_norm_backward` of lazy arrays."""
    lazy = made_lazy({"dy": dy, "x": x, "mean": mean, "rstd": rstd, "gamma": gamma}, out)
    layout = group_layout(lazy["x"].shape, channel_axis, groups)
    options = {"groups": groups, "channel_axis": channel_axis}
    return _backward(numnorm.group_norm_backward, lazy, layout, options)


def _forward(
    function: Callable[..., Any],
    lazy: dict[str, Any],
    layout: RowLayout,
    options: Mapping[str, Any],
) -> Any:
    rows, lazy["x"] = _groups(lazy["x"], layout, options["channel_axis"])
    norm = row_norm(True, scaling_by(check_eps(options["eps"])))
    return row_norms.forward(function, lazy, layout, rows, options, norm)


def _backward(
    function: Callable[..., Any],
    lazy: dict[str, Any],
    layout: RowLayout,
    options: Mapping[str, Any],
) -> Any:
    rows, lazy["x"] = _groups(lazy["x"], layout, options["channel_axis"])
    norm = row_norm(True, scaling_by(0.0))
    return row_norms.backward(function, lazy, layout, rows, options, norm)


def _groups(x: Any, layout: RowLayout, channel_axis: Any) -> tuple[Rows, Any]:
    """Return the rows of x, and x in chunks that hold whole groups of channels."""
    (channel,) = normalized_axes(channel_axis, x.ndim)
    size = max(x.shape[channel] // max(layout.statistic_shape[1], 1), 1)
    spatial = tuple(axis for axis in range(1, x.ndim) if axis != channel)
    rows = Rows(spatial, (0, channel), (channel,), size)
    whole = _at_borders(x.chunks[channel], size)
    return rows, x if whole == x.chunks[channel] else x.rechunk({channel: whole})


def _at_borders(chunks: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Return chunks of whole groups that end near the ends of the given ones."""
    found: list[int] = []
    end = last = 0
    for length in chunks:
        end += length
        border = min(-(-end // size) * size, sum(chunks))
        if border > last or not found:
            found.append(border - last)
            last = border
    return tuple(found)
