"""Batch norm of lazy arrays: the moments of all blocks, then each block with these statistics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import numnorm
from numnorm._dask.blocks import block_sum, each_block, each_object, read_again, rounded, take
from numnorm._dask.moments import (
    Channels,
    aligned,
    channels_of,
    fields_of,
    of_channels,
    total_moments,
)
from numnorm._dask.parameters import (
    Parameter,
    aligned_parameter,
    as_divided,
    check_assignable,
    lost_of,
    made_lazy,
)
from numnorm.arguments import check_flag, check_shape, result_dtype
from numnorm.array_likes import is_on_device
from numnorm.backends.contract.norms import ChannelSums
from numnorm.norms.batch import (
    bessel_correction,
    given_statistics,
    moved_statistic,
    new_batch_weight,
    part_gradient,
)
from numnorm.norms.results import Gradients, Normalized

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


# The backward pass of batch norm for lazy arrays: the sums of all blocks, then each block


_FLOAT64 = np.dtype(np.float64)

# Rounding a float64 mean of more deviations than this loses digits that the gradients need.
_FAR = 16.0


def batch_norm_backward(
    dy: Any,
    x: Any,
    mean: Any,
    rstd: Any,
    gamma: Any,
    channel_axis: Any,
    training: bool,
    out: Any,
) -> Gradients[Any]:
    """Return dx, dgamma and dbeta, lazily."""
    training = check_flag("training", training)
    arrays = made_lazy({"dy": dy, "x": x, "mean": mean, "rstd": rstd, "gamma": gamma}, out)
    dy, x = arrays["dy"], arrays["x"]
    channels = channels_of(x, channel_axis)
    check_shape("dy", dy.shape, x.shape, "the shape of the input")
    gains = parameters_of(x, channels, {name: arrays[name] for name in ("mean", "rstd", "gamma")})
    axis = channels.axis
    dtypes = dtypes_of(numnorm.batch_norm_backward, arrays, channel_axis=axis, training=training)
    given = as_divided(dy, x.chunks), x, *(channels.spread(arrays[n]) for n in ("mean", "rstd"))
    gain = [each.array for each in gains]
    options = {"usual": all(each.usual for each in gains), "axes": channels.axes, "axis": axis}
    if training:
        dx, *sums = _trained(given, gain, channels, options, dtypes[0])
    else:
        dx, *sums = _frozen(given, gain, channels, options, dtypes[0])
    if options["usual"]:
        sums = [channels.public(each) for each in sums]
    return Gradients(dx, *(rounded(each, dtypes[1]) for each in sums))


def _trained(
    given: tuple[Any, ...], gain: list[Any], channels: Channels, options: dict[str, Any], dtype: Any
) -> list[Any]:
    """Return dx and the gradients of gain and bias in float64, with as many axes as x."""
    dy, x, *statistics = given
    objects = each_object(_sums, read_again(dy), read_again(x), *statistics, *gain, **options)
    ones = _ones(channels, x)
    products, sum_g, deviations = (_sum_over_ones(objects, m, x, ones) for m in (0, 1, 2))
    like = {"dtype": _FLOAT64, "chunks": products.chunks}
    shift = each_block(_shift, deviations, *statistics, count=channels.count, **like)
    moved = each_block(_times, sum_g, shift, **like)
    sums = [each_block(_less, products, moved, **like), sum_g]
    options = {**options, "count": channels.count, "dtype": dtype, "chunks": x.chunks}
    dx = each_block(_input_gradient, *given, *sums, shift, *gain, **options)
    if not options["usual"]:
        sums = _of_broadcast_gain(objects, x, ones, gain[0].shape, shift)
    return [dx, *sums]


def _of_broadcast_gain(
    objects: Any, x: Any, ones: tuple[int, ...], shape: tuple[int, ...], shift: Any
) -> list[Any]:
    """Return the gradients of a gain and a bias of a shape that broadcasts against x."""
    wide = tuple(map(max, ones, shape))
    dgamma = _sum_over_ones(objects, 3, x, shape)
    sum_dy = _sum_over_ones(objects, 4, x, wide)
    summed = tuple(axis for axis, (n, own) in enumerate(zip(wide, shape, strict=True)) if n > own)
    dbeta = sum_dy.sum(axis=summed, keepdims=True) if summed else sum_dy
    moved = each_block(_times, sum_dy, shift, dtype=_FLOAT64, chunks=sum_dy.chunks)
    moved = moved.sum(axis=summed, keepdims=True) if summed else moved
    return [each_block(_less, dgamma, moved, dtype=_FLOAT64, chunks=dgamma.chunks), dbeta]


def _frozen(
    given: tuple[Any, ...], gain: list[Any], channels: Channels, options: dict[str, Any], dtype: Any
) -> list[Any]:
    """Return the same for statistics that are constants."""
    x = given[1]
    objects = each_object(_frozen_gradients, *given, *gain, **options)
    shape = _ones(channels, x) if options["usual"] else gain[0].shape
    dx = take(objects, 0, dtype=dtype, chunks=x.chunks)
    return [dx, *(_sum_over_ones(objects, member, x, shape) for member in (1, 2))]


def _ones(channels: Channels, x: Any) -> tuple[int, ...]:
    """Return the shape of a statistic with as many axes as x."""
    return tuple(n if axis in channels.axes else 1 for axis, n in enumerate(x.shape))


def _sum_over_ones(objects: Any, member: int, x: Any, shape: tuple[int, ...]) -> Any:
    """Return the sum of one member of all objects over the axes in which the shape has length 1."""
    return block_sum(
        objects, member, x.chunks, [a for a, length in enumerate(shape) if length == 1]
    )


def _frozen_gradients(
    dy: Any,
    x: Any,
    mean: Any,
    rstd: Any,
    *gain: Any,
    usual: bool,
    axes: tuple[int, ...],
    axis: int | tuple[int, ...],
) -> tuple[Any, ...]:
    """Return dx of constant statistics, and the sums of dgamma and dbeta in float64."""
    mean, rstd = of_channels(mean, axes), of_channels(rstd, axes)
    # Sums get the dtype of gamma.
    gamma = gain[0].astype(np.float64) if gain else np.ones_like(mean, np.float64)
    gamma = of_channels(gamma, axes) if gain and usual else gamma
    dx, *sums = numnorm.batch_norm_backward(
        dy, x, mean, rstd, gamma, channel_axis=axis, training=False
    )
    return dx, *(aligned(each, axes, x.ndim) if usual else each for each in sums)


def _sums(dy: Any, x: Any, mean: Any, rstd: Any, *gain: Any, **options: Any) -> tuple[Any, ...]:
    """Return the sums of g * xhat, of g and of x less its mean in each channel.

    g is dy, times a gain that broadcasts. With such a gain also dgamma, and the sums of dy in each
    channel and for each number of the gain.
    """
    deviations = _deviations(dy, x, mean, rstd, options["axes"], options["axis"])
    if options["usual"]:
        return *_frozen_gradients(dy, x, mean, rstd, **options)[1:], deviations
    given = _gradient(dy, x, gain[0]), x, mean, rstd
    _, dgamma, _ = _frozen_gradients(dy, x, mean, rstd, *gain, **options)
    wide = zip(mean.shape, gain[0].shape, strict=True)
    summed = tuple(axis for axis, lengths in enumerate(wide) if lengths == (1, 1))
    sum_dy = dy.sum(axis=summed, keepdims=True, dtype=_FLOAT64)
    sums = _frozen_gradients(*given, **{**options, "usual": True})[1:]
    return *sums, deviations, dgamma, sum_dy


def _deviations(dy: Any, x: Any, mean: Any, rstd: Any, axes: tuple[int, ...], axis: Any) -> Any:
    """Return the sums of x less the saved mean; 0 where rounding that mean lost nothing."""
    with np.errstate(all="ignore"):
        far = np.abs(mean) * rstd > _FAR
        if is_on_device(x) or _wide_dtype(dy, x) != _FLOAT64 or not far.any():
            return np.zeros_like(mean, dtype=_FLOAT64)
        moments = numnorm.batch_moments(x.astype(_FLOAT64, copy=False), channel_axis=axis)
        own, rest = (aligned(a, axes, x.ndim) for a in (moments.mean, moments.mean_lo))
        return np.where(far, moments.count * ((own - mean) + rest), 0.0)


def _shift(deviations: Any, mean: Any, rstd: Any, *, count: int) -> Any:
    """Return how much rounding the saved mean has moved the normalized x."""
    with np.errstate(all="ignore"):
        return lost_of(deviations, count, mean) * rstd


def _times(sums: Any, shift: Any) -> Any:
    with np.errstate(all="ignore"):
        return sums * shift


def _less(sums: Any, moved: Any) -> Any:
    with np.errstate(all="ignore"):
        return sums - moved


def _gradient(dy: Any, x: Any, gain: Any) -> Any:
    """Return dy times a gain that broadcasts, in the type in which dx is computed."""
    wide = _wide_dtype(dy, x)
    with np.errstate(all="ignore"):
        return dy.astype(wide, copy=False) * gain.astype(wide, copy=False)


def _wide_dtype(dy: Any, x: Any) -> np.dtype[Any]:
    """Return the type in which dx is computed."""
    given = result_dtype("dy", dy.dtype), result_dtype("x", x.dtype)
    return _FLOAT64 if _FLOAT64 in given else np.dtype(np.float32)


def _input_gradient(
    dy: Any,
    x: Any,
    mean: Any,
    rstd: Any,
    products: Any,
    sum_g: Any,
    shift: Any,
    *gain: Any,
    usual: bool,
    axes: tuple[int, ...],
    axis: int | tuple[int, ...],
    count: int,
) -> Any:
    """Return dx of a block from the sums over all blocks."""
    # dx takes the xhat of the saved mean; what that is off by goes into the sum of g.
    statistics = mean, rstd, products, _less(sum_g, _times(products, shift))
    mean, rstd, *sums = (of_channels(array, axes) for array in statistics)
    gamma = of_channels(gain[0], axes) if gain and usual else None
    g = dy if usual else _gradient(dy, x, gain[0])
    return part_gradient(g, x, mean, rstd, gamma, axis, ChannelSums(count, *sums))
