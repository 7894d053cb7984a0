"""Batch norm of lazy arrays: the moments of all blocks, then each block with these statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

import numnorm
from numnorm._dask import split_rows, whole_rows
from numnorm._dask.blocks import (
    block_sum,
    each_block,
    each_object,
    emptied,
    only,
    read_again,
    rounded,
    take,
)
from numnorm._dask.keywords import BlockKeywords, Keywords, elements_of
from numnorm._dask.moments import (
    Channels,
    channels_of,
    fields_of,
    keywords_of_channels,
    placed,
    total_moments,
)
from numnorm._dask.parameters import (
    Parameter,
    aligned_parameter,
    along,
    as_divided,
    check_assignable,
    lost_of,
    made_lazy,
    with_axes,
)
from numnorm._dask.row_axes import Rows
from numnorm._dask.row_moments import PLAIN, divided_axes, merged_moments
from numnorm._dask.split_rows import RowNorm
from numnorm.arguments import check_flag, check_shape, result_dtype
from numnorm.array_likes import is_on_device, library_of
from numnorm.backends.contract.norms import ChannelSums
from numnorm.norms.batch import (
    moved_statistic,
    moved_where_seen,
    part_gradient,
)
from numnorm.norms.labels import check_no_running, no_labels, stored_rows
from numnorm.norms.moments import of_numbered_labels, seen_statistics
from numnorm.norms.results import Gradients, Normalized
from numnorm.norms.running import running_options
from numnorm.norms.spec import NormSpec

_RUNNING = ("running_mean", "running_var")
_FLOAT64 = np.dtype(np.float64)


def call(
    spec: NormSpec,
    function: Callable[..., Any],
    arguments: dict[str, Any],
    counting: Mapping[str, Any],
) -> Any:
    """Return the lazy result of a public function of batch norm."""
    if "statistics" in counting and "labels" not in counting:
        raise no_labels()
    if spec.is_backward(function):
        return batch_norm_backward(**arguments, counting=counting)
    normalized = batch_norm_forward(**arguments, counting=counting)
    return normalized if function is spec.forward else normalized.y


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
    with_mean: Any,
    clip: Any,
    out: Any,
    counting: Mapping[str, Any],
) -> Normalized[Any]:
    """Return y, mean and rstd, lazily; in training, assign the moved running statistics."""
    training = check_flag("training", training)
    if "labels" in counting:
        check_no_running({"running_mean": running_mean, "running_var": running_var})
    stored = counting.get("statistics")
    moving = {"momentum": momentum, "batches": batches, "convention": convention}
    running = running_options(
        (momentum, batches, convention), unbiased, (running_mean, running_var),
        training or stored is not None,
    )  # fmt: skip
    given = running.given
    running_arrays = {} if given is None else dict(zip(_RUNNING, given, strict=True))
    if training and running_arrays:
        check_assignable(running_arrays)
    own = {"x": x, "gamma": gamma, "beta": beta, **running_arrays}
    arrays = made_lazy({**own, **elements_of(counting)}, out)
    x = arrays["x"]
    channels = channels_of(x, channel_axis)
    keywords, kinds, of_labels = keywords_of_channels(x, channels, arrays, counting)
    arrays = {name: arrays[name] for name in own if name != "x"}
    parameters = parameters_of(x, channels, arrays)
    limits = {"with_mean": with_mean, "clip": clip}
    options = {"training": training or stored is not None, "unbiased": unbiased, "eps": eps}
    dtypes = dtypes_of(
        numnorm.batch_norm_forward, {"x": x, **arrays, **keywords.elements},
        channel_axis=channels.axis, **options, **limits, **moving, **keywords.options,
    )  # fmt: skip
    if stored is not None:
        statistics = _stored(stored, kinds, x, of_labels)
    elif training:
        correction = running.correction(channels.count)
        moments = _moments(read_again(x), of_labels, keywords)
        if given is not None and channels.count:
            each = moments.moved(given, correction, running.weight)
            for array, moved in zip(given, each, strict=True):
                # dask_array 0.7 assigns no array in other chunks.
                array[...] = moved.rechunk(array.chunks)
        statistics = list(moments.statistics)
    else:
        statistics = [channels.spread(arrays[name]) for name in running_arrays]
    y = each_block(
        _normalized,
        x,
        *statistics,
        *(parameter.array for parameter in parameters),
        *keywords.arrays.values(),
        dtype=dtypes[0],
        chunks=x.chunks,
        parameters=[(parameter.name, parameter.usual) for parameter in parameters],
        axis=channels.axis,
        rows=of_labels.rows,
        eps=float(eps),
        limits=limits,
        in_block=keywords.in_block,
    )
    return Normalized(y, *_saved(statistics, x, dtypes[1], of_labels, float(eps)))


class _Moments(NamedTuple):
    """The mean and the variance of channels, and what moves running statistics towards them.

    Attributes
    ----------
    statistics : tuple
        Lazy arrays of the mean and the variance, with as many axes as x.
    channels : Channels
    total : lazy array or None
        Objects of `Total`, if channels have counts of their own.
    m2 : lazy array or None
        The squared deviations, if all channels have one count.
    """

    statistics: tuple[Any, Any]
    channels: Channels
    total: Any = None
    m2: Any = None

    def moved(self, running: tuple[Any, Any], correction: int, weight: float) -> Iterator[Any]:
        """Yield the running statistics after a batch."""
        channels, count = self.channels, self.channels.count
        each = zip(running, (self.statistics[0], self.m2), (1, count - correction), strict=True)
        for member, (array, new, divisor) in enumerate(each):
            old = channels.spread(array)
            like = {"dtype": array.dtype, "chunks": channels.chunks, "weight": weight}
            if self.total is None:
                yield channels.public(each_block(_moved, old, new, divisor=divisor, **like))
            else:
                like |= {"member": member, "correction": correction}
                yield channels.public(each_block(_moved_where_seen, old, self.total, **like))


def _moments(x: Any, channels: Channels, keywords: Keywords) -> _Moments:
    """Return the statistics of x in training."""
    if channels.labels and not channels.count:  # the same for each label
        lengths = tuple(map(sum, channels.chunks))
        zeros = library_of(x).zeros(lengths, dtype=_FLOAT64, chunks=channels.chunks)
        return _Moments((zeros, zeros), channels)
    counts = keywords.arrays or keywords.in_block.policy != "propagate"
    if not (counts and channels.count):  # without elements as NumPy's batch norm
        mean, m2, _ = fields_of(total_moments(x, channels), channels)
        return _Moments((mean, m2 / max(channels.count, 1)), channels, m2=m2)
    total = merged_moments(x, channels.rows, keywords)
    like: Any = {"dtype": _FLOAT64, "chunks": channels.chunks}
    mean, variance = (each_block(_seen, total, **like, member=member) for member in (0, 1))
    return _Moments((mean, variance), channels, total=total)


def _stored(stored: Any, kinds: Any, x: Any, channels: Channels) -> list[Any]:
    """Return mean and variance of each label from those that `batch_moments` returned."""
    rows = stored_rows(stored, kinds, channels.shape)
    moments = placed(stored.moments, rows, np.ones(len(rows), bool), x)
    return [channels.spread(moments.mean), channels.spread(moments.var())]


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
    return [result.dtype for result in function(**emptied(arrays), **options)]


def _saved(
    statistics: list[Any], x: Any, dtype: Any, channels: Channels, eps: float
) -> tuple[Any, Any]:
    """Return mean and rstd as `batch_norm_forward` does, lazily."""
    options = {"axes": channels.statistic_axes, "eps": eps, "x_dtype": x.dtype, "dtype": dtype}
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
    *others: Any,
    parameters: list[tuple[str, bool]],
    axis: int | tuple[int, ...],
    rows: Rows,
    eps: float,
    limits: Mapping[str, Any],
    in_block: BlockKeywords,
) -> Any:
    given: dict[str, Any] = {
        name: with_axes(array, rows.across) if usual else array
        for (name, usual), array in zip(parameters, others, strict=False)
    }
    given |= in_block.public(others[len(parameters) :])
    mean, variance = rows.public(mean), rows.public(variance)
    if rows.labels:
        given["statistics"] = of_numbered_labels(mean, variance)
    else:
        given |= {"running_mean": mean, "running_var": variance, "training": False}
    return numnorm.batch_norm(x, **given, channel_axis=axis, eps=eps, **limits)


def _moved(old: Any, new: Any, *, divisor: int, weight: float) -> Any:
    return moved_statistic(old.reshape(-1), new.reshape(-1), divisor, weight).reshape(old.shape)


def _seen(total: Any, *, member: int) -> Any:
    """Return the mean or the variance of each channel; NaN where no element counts."""
    mean, m2 = (getattr(only(total).moments, name) for name in ("mean", "m2"))
    count = only(total).moments.count
    return seen_statistics(np.broadcast_to(np.float64(count), mean.shape), mean, m2)[member]


def _moved_where_seen(old: Any, total: Any, *, member: int, correction: int, weight: float) -> Any:
    moments, exponent = only(total)
    count = np.broadcast_to(np.float64(moments.count), moments.mean.shape)
    statistics = seen_statistics(count, moments.mean, moments.m2)
    count, mean, variance = (np.reshape(array, -1) for array in (count, *statistics))
    with np.errstate(all="ignore"):
        corrections = np.ldexp(float(correction), -np.reshape(exponent, -1))
    running = moved_where_seen(old.reshape(-1), count, mean, variance, corrections, weight)
    return running[member].reshape(old.shape)


def _saved_field(
    mean: Any, variance: Any, *, axes: tuple[int, ...], eps: float, x_dtype: Any, field: str
) -> Any:
    mean, variance, ndim = with_axes(mean, axes), with_axes(variance, axes), mean.ndim
    saved = numnorm.batch_norm_forward(
        mean[None][:0].astype(x_dtype),
        channel_axis=tuple(range(1, 1 + len(axes))) if len(axes) > 1 else 1,
        running_mean=mean,
        running_var=variance,
        training=False,
        eps=eps,
    )
    return along(getattr(saved, field), axes, ndim)


# The backward pass of batch norm for lazy arrays: the sums of all blocks, then each block


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
    with_mean: Any,
    clip: Any,
    out: Any,
    counting: Mapping[str, Any],
) -> Gradients[Any]:
    """Return dx, dgamma and dbeta, lazily."""
    training = check_flag("training", training)
    own = {"dy": dy, "x": x, "mean": mean, "rstd": rstd, "gamma": gamma}
    arrays = made_lazy({**own, **elements_of(counting)}, out)
    dy, x = arrays["dy"], arrays["x"]
    channels = channels_of(x, channel_axis)
    check_shape("dy", dy.shape, x.shape, "the shape of x")
    keywords, _, of_labels = keywords_of_channels(x, channels, arrays, counting)
    meaning = "one for each label and channel" if of_labels.labels else "the channels of x"
    for name in ("mean", "rstd"):
        check_shape(name, arrays[name].shape, of_labels.statistic_shape, meaning)
    gains = parameters_of(x, channels, {"gamma": arrays["gamma"]})
    axis = channels.axis
    empty = {n: np.empty((0,) * len(channels.axes), arrays[n].dtype) for n in ("mean", "rstd")}
    given = {**{n: arrays[n] for n in own}, **empty, **keywords.elements}
    dtypes = dtypes_of(
        numnorm.batch_norm_backward, given,
        channel_axis=axis, training=training, **keywords.options,
    )  # fmt: skip
    if training and (keywords.arrays or keywords.in_block.policy != "propagate"):
        kind = {n: arrays[n] for n in ("dy", "x", "mean", "rstd")}
        return Gradients(*_trained_rows(kind, gains, of_labels, axis, dtypes, keywords))
    blocks = as_divided(dy, x.chunks), x, *(of_labels.spread(arrays[n]) for n in ("mean", "rstd"))
    gain = [each.array for each in gains]
    options = {"usual": all(each.usual for each in gains), "rows": of_labels.rows, "axis": axis}
    if training:
        dx, *sums = _trained(blocks, gain, channels, options, dtypes[0])
    else:
        dx, *sums = _frozen(blocks, gain, channels, options, dtypes[0], keywords)
    if options["usual"]:
        sums = [channels.public(each) for each in sums]
    return Gradients(dx, *(rounded(each, dtypes[1]) for each in sums))


def _trained_rows(
    arrays: dict[str, Any],
    gains: list[Parameter],
    channels: Channels,
    axis: Any,
    dtypes: list[Any],
    keywords: Keywords,
) -> list[Any]:
    """Return the gradients by the keywords for missing values, weights and labels."""
    gain, rows, x = gains[0] if gains else None, channels.rows, arrays["x"]
    if rows.labels or divided_axes(x, rows):
        norm = RowNorm(True, (0.0, 0.0, 0))
        return split_rows.backward(norm, arrays, gain, rows, dtypes, keywords, stored=True)
    function, options = numnorm.batch_norm_backward, {"channel_axis": axis}
    return whole_rows.backward(function, arrays, gain, rows, options, dtypes, keywords)


def _trained(
    given: tuple[Any, ...], gain: list[Any], channels: Channels, options: dict[str, Any], dtype: Any
) -> list[Any]:
    """Return dx and the gradients of gain and bias in float64, with as many axes as x."""
    dy, x, *statistics = given
    objects = each_object(_sums, read_again(dy), read_again(x), *statistics, *gain, **options)
    ones = _ones(channels, x)
    products, sum_g, deviations = (_sum_over_ones(objects, m, x, ones) for m in (0, 1, 2))
    like: Any = {"dtype": _FLOAT64, "chunks": products.chunks}
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
    given: tuple[Any, ...],
    gain: list[Any],
    channels: Channels,
    options: dict[str, Any],
    dtype: Any,
    keywords: Keywords,
) -> list[Any]:
    """Return what `_trained` returns, for statistics that are constants."""
    x, arrays = given[1], keywords.arrays.values()
    blocks = *given, *gain, *arrays
    objects = each_object(
        _frozen_gradients, *blocks, **options, gains=len(gain), in_block=keywords.in_block
    )
    shape = _ones(channels, x) if options["usual"] else gain[0].shape
    dx = take(objects, 0, dtype=dtype, chunks=x.chunks)
    return [dx, *(_sum_over_ones(objects, member, x, shape) for member in (1, 2))]


def _ones(channels: Channels, x: Any) -> tuple[int, ...]:
    """Return the shape of a statistic of all labels, with as many axes as x."""
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
    *others: Any,
    usual: bool,
    rows: Rows,
    axis: int | tuple[int, ...],
    gains: int = 0,
    in_block: BlockKeywords = PLAIN.in_block,
) -> tuple[Any, ...]:
    """Return dx of constant statistics, and the sums of dgamma and dbeta in float64."""
    gain, keywords = others[:gains], in_block.public(others[gains:])
    mean, rstd = rows.public(mean), rows.public(rstd)
    if rows.labels:
        present = np.unique(keywords["labels"])
        mean, rstd = mean[present], rstd[present]
    # Sums get the dtype of gamma.
    if gain:
        gamma = gain[0].astype(np.float64)
        gamma = with_axes(gamma, rows.across) if usual else gamma
    else:
        gamma = np.ones_like(mean[0] if rows.labels else mean, np.float64)
    dx, *sums = numnorm.batch_norm_backward(
        dy, x, mean, rstd, gamma, channel_axis=axis, training=False, **keywords
    )
    return dx, *(along(each, rows.across, x.ndim) if usual else each for each in sums)


def _sums(dy: Any, x: Any, mean: Any, rstd: Any, *gain: Any, **options: Any) -> tuple[Any, ...]:
    """Return the sums of g * xhat, of g and of x less its mean in each channel.

    g is dy, times a gain that broadcasts. With such a gain also dgamma, and the sums of dy in each
    channel and for each number of the gain.
    """
    deviations = _deviations(dy, x, mean, rstd, options["rows"].across, options["axis"])
    if options["usual"]:
        return *_frozen_gradients(dy, x, mean, rstd, **options)[1:], deviations
    given = _gradient(dy, x, gain[0]), x, mean, rstd
    _, dgamma, _ = _frozen_gradients(dy, x, mean, rstd, *gain, **options, gains=1)
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
        own, rest = (along(a, axes, x.ndim) for a in (moments.mean, moments.mean_lo))
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
    rows: Rows,
    axis: int | tuple[int, ...],
    count: int,
) -> Any:
    """Return dx of a block from the sums over all blocks."""
    # dx takes the xhat of the saved mean; what that is off by goes into the sum of g.
    statistics = mean, rstd, products, _less(sum_g, _times(products, shift))
    mean, rstd, *sums = (with_axes(array, rows.across) for array in statistics)
    gamma = with_axes(gain[0], rows.across) if gain and usual else None
    g = dy if usual else _gradient(dy, x, gain[0])
    return part_gradient(g, x, mean, rstd, gamma, axis, ChannelSums(count, *sums))
