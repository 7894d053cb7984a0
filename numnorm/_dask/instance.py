"""Instance norm of lazy arrays, whose running statistics a lazy call updates by assignment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import numnorm
from numnorm._dask import rows
from numnorm._dask.blocks import each_block, each_object, in_order, only
from numnorm._dask.keywords import elements_of
from numnorm._dask.parameters import (
    along,
    as_divided,
    check_assignable,
    chunks_of,
    made_lazy,
    with_axes,
)
from numnorm._dask.row_axes import Rows
from numnorm._dask.row_moments import merged_moments
from numnorm.arguments import check_flag, check_float, check_shape
from numnorm.backends.formulas.norms import moved
from numnorm.layouts import RowLayout, instance_layout
from numnorm.norms.running import running_options
from numnorm.norms.spec import NormSpec

_MOVING = ("momentum", "batches", "convention", "unbiased")


def call(
    spec: NormSpec,
    function: Callable[..., Any],
    arguments: dict[str, Any],
    counting: Mapping[str, Any],
) -> Any:
    """Return the lazy result of a public function of instance norm."""
    if spec.is_backward(function):
        return _backward(spec, function, arguments, counting)
    return _forward(spec, function, arguments, counting)


def _forward(
    spec: NormSpec,
    function: Callable[..., Any],
    arguments: dict[str, Any],
    counting: Mapping[str, Any],
) -> Any:
    arguments = dict(arguments)
    channel_axis, training = arguments["channel_axis"], arguments.pop("training")
    mean, variance = (arguments.pop(name) for name in spec.updates)
    momentum, batches, convention, unbiased = (arguments.pop(name) for name in _MOVING)
    options = running_options(
        (momentum, batches, convention), unbiased, (mean, variance),
        check_flag("training", training),
    )  # fmt: skip
    given = {name: arguments[name] for name in ("x", *spec.parameters)}
    x = made_lazy({**given, **elements_of(counting)}, arguments["out"])["x"]
    layout = instance_layout(x.shape, channel_axis)
    if not training:
        frozen = dict(zip(spec.updates, (mean, variance), strict=True))
        given = {**arguments, **frozen, **_of_samples(x, counting)}
        normalized = numnorm.batch_norm_forward(**given, training=False)
        return normalized if function is spec.forward else normalized.y
    statistics: Mapping[str, Any] = {}
    correction = 0
    if options.given is not None:
        if counting:
            keyword = next(iter(counting))
            raise NotImplementedError(f"{keyword} is not supported with running statistics")
        correction = options.correction(layout.width)
        statistics = _checked_running(options.given, layout)
    results = rows.call(spec, function, arguments, counting)
    if statistics and x.size:
        own_rows, x = rows.groups_of(x, layout, channel_axis)
        _update_running(statistics, x, own_rows, correction, options.weight)
    return results


def _backward(
    spec: NormSpec,
    function: Callable[..., Any],
    arguments: dict[str, Any],
    counting: Mapping[str, Any],
) -> Any:
    arguments = dict(arguments)
    arrays = {name: arguments[name] for name in spec.arrays_of(function)}
    x = made_lazy({**arrays, **elements_of(counting)}, arguments["out"])["x"]
    instance_layout(x.shape, arguments["channel_axis"])
    if not check_flag("training", arguments.pop("training")):
        given = {**arguments, **_of_samples(x, counting)}
        return numnorm.batch_norm_backward(**given, training=False)
    return rows.call(spec, function, arguments, counting)


def _of_samples(x: Any, counting: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the keywords for batch norm, for which weights of one axis belong to the samples."""
    weights = counting.get("weights")
    if weights is None or np.ndim(weights) >= x.ndim:
        return counting
    wide = made_lazy({"x": x, "weights": weights})["weights"]
    return {**counting, "weights": wide[(None,) * (x.ndim - wide.ndim)]}


def _checked_running(running: tuple[Any, Any], layout: RowLayout) -> Mapping[str, Any]:
    """Return running mean and variance by name; raise unless they can be updated lazily."""
    statistics = dict(zip(("running_mean", "running_var"), running, strict=True))
    shape, meaning = layout.parameter_shape, layout.parameter_meaning
    check_assignable(statistics)
    for name, array in statistics.items():
        check_shape(name, array.shape, shape, meaning)
        check_float(name, array.dtype)
    return statistics


def _update_running(
    running: Mapping[str, Any], x: Any, rows: Rows, correction: int, weight: float
) -> None:
    """Move running statistics to the averages of the samples' means and variances."""
    total = merged_moments(x, rows)
    sums = in_order(each_object(_over_samples, total), (0,), _added)
    for member, array in enumerate(running.values()):
        old = as_divided(along(array, rows.own, x.ndim), x.chunks)
        chunks = chunks_of(old.shape, x.chunks)
        new = each_block(
            _moved, old, sums,
            dtype=array.dtype, chunks=chunks, member=member, correction=correction, weight=weight,
        )  # fmt: skip
        array[...] = with_axes(new, rows.own).rechunk(array.chunks)


def _over_samples(total: Any) -> tuple[Any, ...]:
    """Return the number of samples and the sums of their means and variances, and the width."""
    moments = only(total).moments
    with np.errstate(all="ignore"):
        fields = moments.mean, moments.m2 / moments.count
        sums = (field.sum(axis=0, keepdims=True) for field in fields)
        return len(moments.mean), *sums, moments.count


def _added(parts: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    *sums, widths = zip(*parts, strict=True)
    return *map(sum, sums), widths[0]


def _moved(old: Any, sums: Any, member: int, correction: int, weight: float) -> Any:
    samples, *each, width = only(sums)
    with np.errstate(all="ignore"):
        new = each[member] / samples
        if member:
            new = new * (width / (width - correction))
        return moved(old.astype(np.float64), new, weight).astype(old.dtype)
