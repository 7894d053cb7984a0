"""Group and instance norm of lazy arrays: rows are groups of a sample's channels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numnorm
from numnorm.arguments import check_eps, check_flag
from numnorm.backends.contract.norms import scaling_by
from numnorm.dask import row_norms
from numnorm.dask.parameters import made_lazy
from numnorm.dask.row_axes import Rows
from numnorm.dask.running import checked_running, update_running
from numnorm.dask.split_rows import row_norm
from numnorm.layouts import RowLayout, group_layout, instance_layout, normalized_axes
from numnorm.norms.batch import bessel_correction, given_statistics, new_batch_weight


def group_norm(x: Any, gamma: Any, beta: Any, *, out: Any, **options: Any) -> Any:
    """Return `numnorm.group_norm` of lazy arrays."""
    return _group_norm(numnorm.group_norm, x, gamma, beta, out, options)


def group_norm_forward(x: Any, gamma: Any, beta: Any, *, out: Any, **options: Any) -> Any:
    """Return `numnorm.group_norm_forward` of lazy arrays."""
    return _group_norm(numnorm.group_norm_forward, x, gamma, beta, out, options)


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


def instance_norm_forward(
    x: Any,
    gamma: Any,
    beta: Any,
    channel_axis: Any,
    running: tuple[Any, Any],
    training: Any,
    momentums: tuple[Any, Any, Any],
    unbiased: Any,
    eps: Any,
    out: Any,
    save: bool,
) -> Any:
    """Return `numnorm.instance_norm_forward` of lazy arrays, or only y if not `save`."""
    given = given_statistics(*running, check_flag("training", training))
    lazy = made_lazy({"x": x, "gamma": gamma, "beta": beta}, out)
    layout = instance_layout(lazy["x"].shape, channel_axis)
    weight = new_batch_weight(*momentums)
    unbiased = momentums[2] == "torch" if unbiased is None else check_flag("unbiased", unbiased)
    if not training:
        normalized = numnorm.batch_norm_forward(
            x, gamma, beta, channel_axis=channel_axis, running_mean=running[0],
            running_var=running[1], training=False, eps=eps,
        )  # fmt: skip
        return normalized if save else normalized.y
    function: Any = numnorm.instance_norm_forward if save else numnorm.instance_norm
    options = {"channel_axis": channel_axis, "eps": eps}
    if given is not None:
        correction = bessel_correction(unbiased, layout.width, given)
        statistics = checked_running(given, layout)
    results = _forward(function, lazy, layout, options)
    if given is not None and lazy["x"].size:
        rows, x = _groups(lazy["x"], layout, channel_axis)
        update_running(statistics, x, rows, correction, weight)
    return results


def instance_norm_backward(
    dy: Any,
    x: Any,
    mean: Any,
    rstd: Any,
    gamma: Any,
    channel_axis: Any,
    training: Any,
    out: Any,
) -> Any:
    """Return `numnorm.instance_norm_backward` of lazy arrays."""
    lazy = made_lazy({"dy": dy, "x": x, "mean": mean, "rstd": rstd, "gamma": gamma}, out)
    layout = instance_layout(lazy["x"].shape, channel_axis)
    if not check_flag("training", training):
        given = dy, x, mean, rstd, gamma
        return numnorm.batch_norm_backward(*given, channel_axis=channel_axis, training=False)
    return _backward(numnorm.instance_norm_backward, lazy, layout, {"channel_axis": channel_axis})


def _group_norm(
    function: Callable[..., Any],
    x: Any,
    gamma: Any,
    beta: Any,
    out: Any,
    options: Mapping[str, Any],
) -> Any:
    lazy = made_lazy({"x": x, "gamma": gamma, "beta": beta}, out)
    layout = group_layout(lazy["x"].shape, options["channel_axis"], options["groups"])
    return _forward(function, lazy, layout, options)


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
    groups = layout.statistic_shape[1]
    if groups and not x.shape[channel]:
        raise ValueError(f"x must have channels in its lazy groups, got shape {x.shape}")
    size = max(x.shape[channel] // max(groups, 1), 1)
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
