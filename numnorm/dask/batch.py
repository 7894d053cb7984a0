"""Batch norm of lazy arrays: the moments of all blocks, then each block with these statistics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import numnorm
from numnorm.arguments import check_flag, check_shape
from numnorm.dask.batch_channels import Channels, aligned, channels_of, of_channels
from numnorm.dask.blocks import each_block, read_again
from numnorm.dask.moments import fields_of, total_moments
from numnorm.dask.parameters import (
    Parameter,
    aligned_parameter,
    check_assignable,
    made_lazy,
)
from numnorm.norms.batch import (
    bessel_correction,
    given_statistics,
    moved_statistic,
    new_batch_weight,
)
from numnorm.norms.results import Normalized

_RUNNING = ("running_mean", "running_var")


def batch_norm_forward(
    x: Any,
    gamma: Any,
    beta: Any,
    channel_axis: Any,
    running_mean: Any,
    running_var: Any,
    training: Any,
    momentum: Any,
    batches: Any,
    convention: Any,
    unbiased: Any,
    eps: Any,
    out: Any,
) -> Normalized[Any]:
    """Return y, mean and rstd, lazily; in training, assign the moved running statistics."""
    training = check_flag("training", training)
    given = given_statistics(running_mean, running_var, training)
    running_arrays = {} if given is None else dict(zip(_RUNNING, given, strict=True))
    if training and running_arrays:
        check_assignable(running_arrays)
    arrays = made_lazy({"x": x, "gamma": gamma, "beta": beta, **running_arrays}, out)
    x = arrays.pop("x")
    channels = channels_of(x, channel_axis)
    parameters = parameters_of(x, channels, arrays)
    moving = {"momentum": momentum, "batches": batches, "convention": convention}
    options = {"training": training, "unbiased": unbiased, "eps": eps, **moving}
    dtypes = dtypes_of(
        numnorm.batch_norm_forward, {"x": x, **arrays}, channel_axis=channels.axis, **options
    )
    statistics = [channels.spread(arrays[name]) for name in running_arrays]
    if training:
        unbiased = convention == "torch" if unbiased is None else unbiased
        correction = bessel_correction(unbiased, channels.count, given)
        mean, m2, _ = fields_of(total_moments(read_again(x), channels), channels)
        if given is not None and channels.count:
            weight, divisor = new_batch_weight(**moving), channels.count - correction
            moments = (mean, 1), (m2, divisor)
            for array, old, (new, by) in zip(given, statistics, moments, strict=True):
                moved = _moved_statistic(old, new, by, weight, array.dtype, channels)
                # dask_array 0.7 assigns no array in other chunks.
                array[...] = moved.rechunk(array.chunks)
        statistics = [mean, m2 / max(channels.count, 1)]
    y = each_block(
        _normalized,
        x,
        *statistics,
        *(parameter.array for parameter in parameters),
        dtype=dtypes[0],
        chunks=x.chunks,
        usual=[(parameter.name, parameter.usual) for parameter in parameters],
        axes=channels.axis,
        eps=float(eps),
    )
    return Normalized(y, *_saved(statistics, x, dtypes[1], channels, float(eps)))


def parameters_of(x: Any, channels: Channels, arrays: Mapping[str, Any]) -> list[Parameter]:
    """Return gain and bias with as many axes as x; raise if a shape is wrong."""
    given = [(name, array) for name, array in arrays.items() if array is not None]
    for name, array in given:
        if name not in ("gamma", "beta"):
            check_shape(name, array.shape, channels.shape, "the channels of x")
    usual = channels.axes, channels.shape, "the channels of x"
    return [
        aligned_parameter(name, array, x, *usual)
        for name, array in given
        if name in ("gamma", "beta")
    ]


def dtypes_of(function: Any, arrays: Mapping[str, Any], **options: Any) -> list[Any]:
    """Return the dtypes of the results for arrays without elements.

    So wrong options and dtypes are errors of the call. Shapes are checked elsewhere.
    """
    empty = {n: a if a is None else np.empty((0,) * a.ndim, a.dtype) for n, a in arrays.items()}
    return [result.dtype for result in function(**empty, **options)]


def _moved_statistic(
    old: Any, new: Any, divisor: int, weight: float, dtype: Any, channels: Channels
) -> Any:
    options = {"dtype": dtype, "chunks": channels.chunks, "divisor": divisor, "weight": weight}
    return channels.public(each_block(_moved, old, new, **options))


def _saved(
    statistics: list[Any], x: Any, dtype: Any, channels: Channels, eps: float
) -> tuple[Any, Any]:
    """Return mean and rstd as `batch_norm_forward` does, lazily."""
    options = {"axes": channels.axes, "eps": eps, "x_dtype": x.dtype, "dtype": dtype}
    return tuple(
        channels.public(
            each_block(_saved_field, *statistics, chunks=channels.chunks, field=field, **options)
        )
        for field in ("mean", "rstd")
    )


def _normalized(
    x: Any,
    mean: Any,
    variance: Any,
    *parameters: Any,
    usual: list[tuple[str, bool]],
    axes: int | tuple[int, ...],
    eps: float,
) -> Any:
    own = (axes,) if isinstance(axes, int) else axes
    given = {
        name: of_channels(array, own) if reduced else array
        for (name, reduced), array in zip(usual, parameters, strict=True)
    }
    return numnorm.batch_norm(
        x,
        **given,
        channel_axis=axes,
        running_mean=of_channels(mean, own),
        running_var=of_channels(variance, own),
        training=False,
        eps=eps,
    )


def _moved(old: Any, new: Any, *, divisor: int, weight: float) -> Any:
    return moved_statistic(old.reshape(-1), new.reshape(-1), divisor, weight).reshape(old.shape)


def _saved_field(
    mean: Any, variance: Any, *, axes: tuple[int, ...], eps: float, x_dtype: Any, field: str
) -> Any:
    mean, variance, ndim = of_channels(mean, axes), of_channels(variance, axes), mean.ndim
    saved = numnorm.batch_norm_forward(
        mean[None][:0].astype(x_dtype),
        channel_axis=tuple(range(1, 1 + len(axes))) if len(axes) > 1 else 1,
        running_mean=mean,
        running_var=variance,
        training=False,
        eps=eps,
    )
    return aligned(getattr(saved, field), axes, ndim)
