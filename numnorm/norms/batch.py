"""Batch normalization (Ioffe and Szegedy 2015) with running statistics."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from sys import modules
from typing import Any, Literal, Never, cast, overload

import numpy as np

from numnorm.arguments import (
    Axis,
    check_eps,
    check_flag,
    check_integer,
    check_shape,
    result_dtype,
)
from numnorm.array_likes import any_lazy, is_on_device, lazily, results_like, writable_view
from numnorm.array_types import Array, ArrayLike, Convention, Input, NanPolicy, Number
from numnorm.backends import backend_for, backend_of, with_weighting
from numnorm.backends.contract.backend import BlockBackend, BlockMoments, ColumnBackend
from numnorm.backends.contract.norms import ChannelSums, Detached
from numnorm.backends.contract.weighting import WeightedInput
from numnorm.keywords import unexpected
from numnorm.layouts import ColumnLayout, column_layout, normalized_axes
from numnorm.norms.axes import channel_axes, merged_shape
from numnorm.norms.labels import (
    checked_labels,
    gradients_by_label,
    means_of,
    moments_by_label,
    no_labels,
    normalized_by_label,
)
from numnorm.norms.moments import (
    GroupMoments,
    Moments,
    check_moments,
    has_counts,
    merged_after,
    of_no_label,
)
from numnorm.norms.results import Gradients, Normalized
from numnorm.norms.running import RunningOptions, running_options
from numnorm.norms.sparse import (
    check_dense_gradient,
    checked_clip,
    is_sparse,
    sparse_moments,
    sparse_normalized,
)
from numnorm.norms.spec import Example, NormSpec
from numnorm.norms.weighted import counted, of_channels, of_moments, weighted_input

# The statistics that are constants for the gradient, in training and in inference.
_TRAINED, _FROZEN = Detached(), Detached(mean=True, scale=True)


def batch_norm(
    x: Input[Array],
    gamma: ArrayLike | None = None,
    beta: ArrayLike | None = None,
    *,
    channel_axis: Axis = 1,
    running_mean: ArrayLike | None = None,
    running_var: ArrayLike | None = None,
    training: bool = True,
    momentum: Number | Literal["cumulative"] | None = None,
    batches: int | None = None,
    convention: Convention = "torch",
    unbiased: bool | None = None,
    eps: Number = 1e-5,
    with_mean: bool = True,
    clip: Number | None = None,
    out: Any = None,
    where: ArrayLike | bool | None = None,
    weights: ArrayLike | Number | None = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
    labels: ArrayLike | None = None,
    statistics: GroupMoments | None = None,
    **others: Never,
) -> Array:
    r"""Normalize each channel over the batch and all spatial axes, then scale and shift it.

    .. math:: y = \gamma_c \, \frac{x - \mu_c}{\sqrt{\sigma_c^2 + \epsilon}} + \beta_c

    In training, the mean and the biased variance are computed from `x`; in inference they are
    the running statistics.

    Parameters
    ----------
    x : array_like
        Any shape; float16, bfloat16, float32 or float64. Integers and bool become float64.
        An array that is not C-contiguous is copied once. An array of Dask, in any chunks, gives a
        lazy result. A sparse array or matrix of SciPy, CSR or CSC, needs ``with_mean=False`` and
        gives one of the same format.
    gamma, beta : array_like, optional
        Gain and bias of each channel, of shape ``(C,)``; or with as many axes as x, to broadcast
        against it: ``(N, C, 1)`` is a gain for each sample and channel. Default: 1 and 0.
    channel_axis : int or tuple of int, default 1
        The axis of the channels. With several axes, each combination of their indices is a
        channel, and ``(C,)`` below is the shape of these axes.
    running_mean, running_var : array, optional
        Of shape ``(C,)``, both or neither. In training they are updated in place; in inference
        they are required and only read. A lazy call updates arrays of Dask, by assignment.
    training : bool, default True
        Whether to normalize with the statistics of `x`.
    momentum : float or "cumulative", optional
        In the convention "torch" the weight of the new batch, by default 0.1; in the convention
        "keras" the weight of the old running statistics, by default 0.99. "cumulative" weights
        all batches equally.
    batches : int, optional
        The number of batches averaged so far; required with ``momentum="cumulative"``.
    convention : {"torch", "keras"}
        The meaning of `momentum`, and whether `running_var` gets the unbiased variance (torch)
        or the biased one (keras). Flax and ONNX do as Keras.
    unbiased : bool, optional
        Whether `running_var` gets the variance with Bessel's correction; overrides the
        convention.
    eps : float, default 1e-5
        Added to the variance. With 0, a constant channel is normalized to 0.
    with_mean : bool, default True
        Whether to subtract the mean. False divides by the same deviation, about the mean, and
        keeps zeros zero: a sparse x requires it. It has no backward pass.
    clip : float, optional
        The largest absolute value of a result: what is beyond is set to it, or to its negative. It
        has no backward pass.
    out : array, optional
        Where to write the result, an array of its shape and dtype. It may be `x` itself.
    where : array_like of bool, or of 0 and 1, optional
        Which elements count; it broadcasts against x. The others get `fill`, whatever they are.
    weights : array_like, optional
        How often each element counts: `numpy.cov`'s `fweights`, but any numbers from 0 on, one for
        each sample, of shape ``(N,)``, or broadcasting against x.
    nan_policy : {"propagate", "omit", "raise"}
        What to do with NaN: make its channel NaN, leave it out as `where` does, or raise an error.
    fill : float, optional
        The result of what is left out. Default: 0 where `where` is false, and NaN for NaN.
    labels : array_like, optional
        A label for each sample, of shape ``(N,)``: a speaker, a session. Samples are normalized by
        the statistics of their label, `mean` and `rstd` have a first axis of labels in sorted
        order, and there are no running statistics. Lazy labels are computed by the call.
    statistics : GroupMoments, optional
        With `labels`: statistics of labels as `batch_moments` returned them, in the place of those
        of x. A label that is not there is an error. The backward pass has ``training=False``.

    Returns
    -------
    array
        Of the shape and dtype of x.

    Raises
    ------
    TypeError, ValueError
        If an argument has an unsupported type or dtype, or a wrong shape or value. The running
        statistics then stay unchanged.

    Notes
    -----
    Mean and variance of a channel are float64 numbers. A variance that overflows float64, or that
    is less than 1e-301 but not 0 and has no larger `eps` beside it, makes the channel NaN. For a
    float64 `x`, rounding the mean adds an error of up to half a unit in the last place of the mean.
    In training, arrays of Dask give the same bytes as NumPy's if their chunks are multiples of
    `chunk_multiple` along the first axis, and divided along no others but the channels'. An x that
    comes straight from storage is read twice. Dask keeps any other x from its first pass to its
    second: write it to storage first, if it is larger than memory.

    An empty batch leaves the running statistics unchanged. A negative running variance is an error
    in inference; on a device, whose numbers are not read, it gives NaN.

    References
    ----------
    S. Ioffe, C. Szegedy, "Batch Normalization", ICML 2015.

    Examples
    --------
    >>> import numpy as np
    >>> import numnorm
    >>> running_mean, running_var = np.zeros(2), np.ones(2)
    >>> numnorm.batch_norm(
    ...     [[1.0, 10.0], [3.0, 30.0]], running_mean=running_mean, running_var=running_var, eps=0
    ... )
    array([[-1., -1.],
           [ 1.,  1.]])
    >>> running_mean, running_var
    (array([0.2, 2. ]), array([ 1.1, 20.9]))
    """
    if others:
        raise unexpected(batch_norm, others)
    if type(x) is not np.ndarray and is_sparse(x):
        return sparse_normalized(locals()).y
    if "dask" in modules and any_lazy(
        x, gamma, beta, running_mean, running_var, where, weights, labels, means_of(statistics)
    ):
        return lazily(batch_norm, locals())
    if labels is not None:
        return normalized_by_label(batch_norm_forward, locals()).y
    if statistics is not None:
        raise no_labels()
    if where is not None or weights is not None or nan_policy != "propagate" or fill is not None:
        x = weighted_input(of_channels, x, channel_axis, where, weights, nan_policy, fill)
    running, momentums = (running_mean, running_var), (momentum, batches, convention)
    limits = with_mean, clip
    given = x, gamma, beta, channel_axis, running, training, momentums, unbiased, eps, limits, out
    return _normalized(*given, False)[0]


def batch_norm_forward(
    x: Input[Array],
    gamma: ArrayLike | None = None,
    beta: ArrayLike | None = None,
    *,
    channel_axis: Axis = 1,
    running_mean: ArrayLike | None = None,
    running_var: ArrayLike | None = None,
    training: bool = True,
    momentum: Number | Literal["cumulative"] | None = None,
    batches: int | None = None,
    convention: Convention = "torch",
    unbiased: bool | None = None,
    eps: Number = 1e-5,
    with_mean: bool = True,
    clip: Number | None = None,
    out: Any = None,
    where: ArrayLike | bool | None = None,
    weights: ArrayLike | Number | None = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
    labels: ArrayLike | None = None,
    statistics: GroupMoments | None = None,
    **others: Never,
) -> Normalized[Array]:
    """Return `batch_norm` together with the statistics that its backward pass needs.

    Parameters
    ----------
    x, gamma, beta, channel_axis, running_mean, running_var, training, momentum, batches, \
convention, unbiased, eps, with_mean, clip, out, where, weights, nan_policy, fill, labels, \
statistics
        As for `batch_norm`.

    Returns
    -------
    Normalized
        ``(y, mean, rstd)``, the last two of shape ``(C,)``.

    Examples
    --------
    >>> import numnorm
    >>> numnorm.batch_norm_forward([[1.0], [3.0]], eps=0).mean
    array([2.])
    """
    if others:
        raise unexpected(batch_norm_forward, others)
    if type(x) is not np.ndarray and is_sparse(x):
        return sparse_normalized(locals())
    if "dask" in modules and any_lazy(
        x, gamma, beta, running_mean, running_var, where, weights, labels, means_of(statistics)
    ):
        return lazily(batch_norm_forward, locals())
    if labels is not None:
        return normalized_by_label(batch_norm_forward, locals())
    if statistics is not None:
        raise no_labels()
    if where is not None or weights is not None or nan_policy != "propagate" or fill is not None:
        x = weighted_input(of_channels, x, channel_axis, where, weights, nan_policy, fill)
    running, momentums = (running_mean, running_var), (momentum, batches, convention)
    limits = with_mean, clip
    given = x, gamma, beta, channel_axis, running, training, momentums, unbiased, eps, limits, out
    return Normalized(*_normalized(*given, True))


def _normalized(
    x: Any,
    gamma: Any,
    beta: Any,
    channel_axis: Any,
    running: tuple[Any, Any],
    training: Any,
    momentums: tuple[Any, Any, Any],
    unbiased: Any,
    eps: Any,
    limits: tuple[Any, Any],
    out: Any,
    save: bool,
) -> tuple[Any, Any, Any]:
    """Return y and, if `save` is true, mean and rstd; otherwise None."""
    axes, target = None if type(channel_axis) is int else channel_axes(x, channel_axis), out
    if axes is not None:
        x, channel_axis, target = axes.x, axes.axis, axes.folded_out(out)
        gamma, beta = axes.flat_gain("gamma", gamma), axes.flat_gain("beta", beta)
        running = axes.flat_running(running, training)
    eps, (with_mean, clip) = check_eps(eps), limits
    with_mean = check_flag("with_mean", with_mean)
    most = math.inf if clip is None else checked_clip(clip)
    if not with_mean or clip is not None:
        _check_limits(x.x if type(x) is WeightedInput else x, with_mean)
    backend, x, layout = _over_channels(x, channel_axis)
    training = check_flag("training", training)
    options = running_options(momentums, unbiased, running, training)
    flags = training, with_mean, save
    given = backend, x, gamma, beta, layout, eps, options, flags, target
    # No key: a small call would spend time on it, and a cumulative average has another weight in
    # each call.
    if type(x) is np.ndarray or momentums[1] is not None:
        y, mean, rstd = _computed(*given)
    else:
        key = layout, eps, options.weight, options.unbiased, flags
        arrays = gamma, beta, *running, target
        y, mean, rstd = backend.repeated(_computed, given, x, arrays, key)
    if axes is not None:
        y = axes.write(y, target, out)
        if save:
            mean, rstd = axes.unflat(mean), axes.unflat(rstd)
    return y if most == math.inf else _clipped(y, most), mean, rstd


def _computed(
    backend: Any,
    x: Any,
    gamma: Any,
    beta: Any,
    layout: ColumnLayout,
    eps: float,
    options: RunningOptions,
    flags: tuple[bool, bool, bool],
    out: Any,
) -> tuple[Any, Any, Any]:
    """Return y, and the saved mean and rstd or None, and update the running statistics.

    The flags are `training`, `with_mean`, and whether to save.
    """
    (training, with_mean, save), given = flags, options.given
    if given is not None:
        given = backend.running_statistics(*given, x, layout, training)
    if given is not None and not training:
        count, unit, (mean, m2) = 0, 1.0, given
    else:
        correction = options.correction(layout.per_channel)
        count, mean, m2, unit = backend.column_moments(x, layout)
    divisor = max(count, 1) * unit
    subtracted = mean if with_mean else np.zeros_like(mean)
    y, rstd = backend.column_forward(x, subtracted, m2, divisor, eps, gamma, beta, layout, out)
    if given is not None and count:
        backend.update_running(given, mean, m2, (count - correction) * unit, options.weight)
    return (y, backend.saved(mean, x), backend.saved(rstd, x)) if save else (y, None, None)


def _check_limits(x: Any, with_mean: bool) -> None:
    """Raise if x is on a device, before anything is computed."""
    if is_on_device(x):
        if not with_mean:
            raise NotImplementedError("with_mean must be True on a device, got False")
        raise NotImplementedError("clip must be None on a device: clip the result")


def _clipped(y: Any, most: float) -> Any:
    """Return a new result with what is beyond -most and most set to these."""
    array = writable_view("y", y)
    if not array.flags.writeable:  # of a library whose arrays do not change
        like: Any = results_like(y)
        return like(np.maximum(np.minimum(array, most), -most))
    np.minimum(array, most, out=array)
    np.maximum(array, -most, out=array)
    return y


def batch_norm_backward(
    dy: ArrayLike,
    x: Input[Array],
    mean: ArrayLike,
    rstd: ArrayLike,
    gamma: ArrayLike | None = None,
    *,
    channel_axis: Axis = 1,
    training: bool = True,
    with_mean: bool = True,
    clip: Number | None = None,
    out: Any = None,
    where: ArrayLike | bool | None = None,
    weights: ArrayLike | Number | None = None,
    nan_policy: NanPolicy = "propagate",
    labels: ArrayLike | None = None,
    **others: Never,
) -> Gradients[Array]:
    r"""Return the gradients of `batch_norm`.

    With :math:`\hat x = (x - \mu_c) / \sigma_c` and the sums over the M values of a channel,
    :math:`d\gamma_c = \sum dy \, \hat x`, :math:`d\beta_c = \sum dy` and

    .. math:: dx = \frac{\gamma_c}{\sigma_c}
              \left( dy - \frac{d\beta_c}{M} - \hat x \, \frac{d\gamma_c}{M} \right)

    In inference the statistics are constants, and only the first term remains.

    Parameters
    ----------
    dy : array_like
        The gradient of the loss with respect to y, of the shape of x and any float dtype.
    x : array_like
        The input of the forward pass, with the values that it had then.
    mean, rstd : array_like
        As `batch_norm_forward` returned them.
    gamma : array_like, optional
        As in the forward pass.
    channel_axis : int or tuple of int, default 1
        As in the forward pass.
    training : bool, default True
        As in the forward pass.
    with_mean, clip
        As in the forward pass: no other values than True and None.
    out : array, optional
        Where to write dx; it may be `dy` or `x`.
    where, weights, nan_policy, labels
        As in the forward pass.

    Returns
    -------
    Gradients
        ``(dx, dgamma, dbeta)``.

    Raises
    ------
    TypeError, ValueError
        As `batch_norm` does.

    Examples
    --------
    >>> import numnorm
    >>> x = [[1.0], [2.0], [4.0]]
    >>> y, mean, rstd = numnorm.batch_norm_forward(x)
    >>> dx, dgamma, dbeta = numnorm.batch_norm_backward([[1.0], [0.0], [0.0]], x, mean, rstd)
    >>> dx.ravel().round(4), dbeta
    (array([ 0.2291, -0.3436,  0.1145]), array([1.]))
    """
    if others:
        raise unexpected(batch_norm_backward, others)
    check_dense_gradient(x, with_mean, clip)
    if "dask" in modules and any_lazy(dy, x, mean, rstd, gamma, where, weights, labels):
        return lazily(batch_norm_backward, locals())
    if labels is not None:
        return gradients_by_label(batch_norm_backward, locals())
    if where is not None or weights is not None or nan_policy != "propagate":
        x = weighted_input(of_channels, x, channel_axis, where, weights, nan_policy, None)
    axes, target = None if type(channel_axis) is int else channel_axes(x, channel_axis), out
    weight = gamma
    if axes is not None:
        dy, x, channel_axis = axes.fold("dy", dy), axes.x, axes.axis
        mean, rstd = axes.flat("mean", mean), axes.flat("rstd", rstd)
        weight, target = axes.flat_gain("gamma", gamma), axes.folded_out(out)
    backend, x, layout = _over_channels(x, channel_axis)
    detached = _TRAINED if check_flag("training", training) else _FROZEN
    gradients = backend.column_backward(dy, x, mean, rstd, weight, layout, detached, target)
    if axes is None:
        return Gradients(*gradients)
    dx, *sums = gradients
    return Gradients(
        axes.write(dx, target, out), *(axes.gain_gradient(array, gamma) for array in sums)
    )


def _over_channels(x: Any, channel_axis: Any) -> tuple[ColumnBackend, Any, ColumnLayout]:
    """Return the backend of x, x in a float dtype, and its channels."""
    # One cached lookup: a small call would spend much of its time on the separate checks.
    array = x.x if type(x) is WeightedInput else x
    if type(array) is np.ndarray and type(channel_axis) is int:
        try:
            backend, layout = _known(array.shape, array.dtype, channel_axis)
        except (TypeError, ValueError):
            pass  # the code below converts x or raises the right error
        else:
            return backend if array is x else with_weighting(backend, x.weighting), array, layout
    backend, x = backend_for(x, "x")
    return backend, x, column_layout(x.shape, channel_axis)


@functools.lru_cache(maxsize=1024)
def _known(shape: Any, dtype: np.dtype[Any], channel_axis: int) -> tuple[Any, ColumnLayout]:
    """Return backend and layout for a NumPy array that needs no conversion."""
    if result_dtype("x", dtype) != dtype:
        raise TypeError("converted")
    return backend_of(np.ndarray), column_layout(shape, channel_axis)


# Moments


@overload
def batch_moments(
    x: ArrayLike,
    *,
    channel_axis: Axis = ...,
    after: Moments | None = ...,
    where: ArrayLike | bool | None = ...,
    weights: ArrayLike | Number | None = ...,
    nan_policy: NanPolicy = ...,
) -> Moments: ...


@overload
def batch_moments(
    x: ArrayLike,
    *,
    labels: ArrayLike,
    channel_axis: Axis = ...,
    after: GroupMoments | None = ...,
    where: ArrayLike | bool | None = ...,
    weights: ArrayLike | Number | None = ...,
    nan_policy: NanPolicy = ...,
) -> GroupMoments: ...


def batch_moments(
    x: ArrayLike,
    *,
    channel_axis: Axis = 1,
    after: Any = None,
    where: ArrayLike | bool | None = None,
    weights: ArrayLike | Number | None = None,
    nan_policy: NanPolicy = "propagate",
    labels: ArrayLike | None = None,
    **others: Never,
) -> Any:
    """Return the count, the mean and the squared deviations of each channel.

    Parameters
    ----------
    x : array_like
        Any shape; float16, bfloat16, float32 or float64. Integers and bool become float64.
        An array that is not C-contiguous is copied once. An array of Dask, in any chunks, gives
        moments with an int and lazy arrays. Columns may be those of a sparse array or matrix of
        SciPy, CSR or CSC, whose zeros count.
    channel_axis : int or tuple of int, default 1
        The axis of the channels; the statistics are taken over all other axes. With several axes,
        the moments have the shape of these axes.
    after : Moments or GroupMoments, optional
        The moments of the previous chunks, to be merged in; on the device of x.
    where : array_like of bool, or of 0 and 1, optional
        Which elements count; it broadcasts against x.
    weights : array_like, optional
        How often each element counts: `numpy.cov`'s `fweights`, but any numbers from 0 on, one for
        each sample, of shape ``(N,)``, or broadcasting against x.
    nan_policy : {"propagate", "omit", "raise"}
        What to do with NaN: make its channel NaN, leave it out as `where` does, or raise an error.
    labels : array_like, optional
        A label for each sample, of shape ``(N,)``, which has moments of its own. Lazy labels are
        computed by the call.

    Returns
    -------
    Moments or GroupMoments
        The moments of x, or of all chunks up to x. With labels, the moments of each label; a chunk
        without samples has no labels, and `after` stays as it is.

    Raises
    ------
    TypeError, ValueError
        If an argument has an unsupported type or dtype, or a wrong shape or value.

    Notes
    -----
    The moments of blocks of a fixed size along the first axis are merged in order. So the result
    depends neither on the number of threads nor on the chunks, if the number of entries of each
    chunk but the last is a multiple of `chunk_multiple`. With missing values or weights the chunks
    make a difference of rounding.

    Examples
    --------
    >>> import numnorm
    >>> total = None
    >>> for chunk in ([[1.0], [2.0]], [[6.0]]):
    ...     total = numnorm.batch_moments(chunk, after=total)
    >>> total
    Moments(count=3, mean=array([3.]), m2=array([14.]), mean_lo=array([0.]))
    """
    if others:
        raise unexpected(batch_moments, others)
    if type(x) is not np.ndarray and is_sparse(x):
        return sparse_moments(locals())
    if "dask" in modules and any_lazy(
        x, *(after if isinstance(after, Moments) else ()), where, weights, labels
    ):
        return lazily(batch_moments, locals())
    if labels is not None and has_no_samples(x, channel_axis):
        moments = batch_moments(
            x, channel_axis=channel_axis, where=where, weights=weights, nan_policy=nan_policy
        )
        return moments_of_no_label(moments, labels, after)
    if labels is not None:
        return moments_by_label(batch_moments, locals())
    if where is not None or weights is not None or nan_policy != "propagate":
        x = weighted_input(of_moments, x, channel_axis, where, weights, nan_policy, None)
    axes = None if type(channel_axis) is int else channel_axes(x, channel_axis)
    if axes is not None:
        if after is not None:
            check_moments("after", after, axes.shape, "the channels of x")
            after = _of_each(after, axes.flat)
        moments = batch_moments(axes.x, channel_axis=axes.axis, after=after)
        return _of_each(moments, lambda _, array: axes.unflat(array))
    if after is not None and isinstance(after, Moments) and has_counts(after):
        x = counted(x)
    backend, x = backend_for(x, "x")
    layout = column_layout(x.shape, channel_axis)
    if after is not None:
        check_moments("after", after, (layout.channels,), "the channels of x")
    return Moments(*backend.streamed_moments(x, layout, after))


def has_no_samples(x: Any, channel_axis: Any) -> bool:
    """Return whether the first axis of x that is none of the channels has length 0."""
    shape = tuple(x.shape) if hasattr(x, "shape") else np.shape(x)
    channels = normalized_axes(channel_axis, len(shape), "channel_axis")
    return next((n for axis, n in enumerate(shape) if axis not in channels), None) == 0


def moments_of_no_label(moments: Moments, labels: Any, after: Any) -> GroupMoments:
    """Return `after`, or moments of no label for None.

    Parameters
    ----------
    moments : Moments
        Those of a chunk without samples.
    labels, after
        As for `batch_moments`.
    """
    labels = checked_labels(labels)
    check_shape("labels", labels.shape, (0,), "one label for each sample")
    return merged_after(after, of_no_label(moments, labels))


def _of_each(after: Moments, function: Callable[[str, Any], Any]) -> Moments:
    """Return moments with the function's result for the name and the array of each field."""
    arrays = {field: array for field, array in after._asdict().items() if array is not None}
    if not has_counts(after):
        del arrays["count"]
    return after._replace(**{f: function(f"after.{f}", array) for f, array in arrays.items()})


def chunk_multiple(shape: Sequence[int], *, channel_axis: Axis = 1) -> int:
    """Return the step of a stream: the best lengths of its chunks are multiples of it.

    With chunks of such lengths along the first axis, `batch_moments` with `after` gives the same
    bytes as one call on the whole array.

    Parameters
    ----------
    shape : sequence of int
        The shape of a chunk, or of the whole array; only the lengths of the other axes matter.
    channel_axis : int or tuple of int, default 1
        As for `batch_moments`.

    Returns
    -------
    int
        At least 1. Where the first axis is a channel axis, it is the first number of the shape.

    Raises
    ------
    TypeError, ValueError
        If an argument has an unsupported type or value.

    Examples
    --------
    >>> import numnorm
    >>> numnorm.chunk_multiple((1000, 64))
    1024
    """
    if isinstance(shape, int):
        raise TypeError(f"shape must be a sequence of integers, got {shape}")
    sizes = tuple(check_integer("shape", size, 0) for size in shape)
    if isinstance(channel_axis, tuple | list):
        if 0 in normalized_axes(channel_axis, len(sizes), "channel_axis"):
            return max(sizes[0], 1)
        sizes, channel_axis = merged_shape(sizes, channel_axis)
    layout = column_layout(sizes, channel_axis)
    if not (channel := operator.index(channel_axis) % len(sizes)):
        return max(sizes[0], 1)
    entries = math.prod(sizes[1:channel])
    return layout.block // math.gcd(layout.block, max(entries, 1))


# Data in several arrays: what needs the statistics or the sums of all of them


def block_moments(x: Any, channel_axis: Any, all_channels: int) -> BlockMoments:
    """Return the moments of each block of a part of the data, which is not on a device.

    Parameters
    ----------
    x, channel_axis
        As for `batch_moments`.
    all_channels : int
        The number of channels of all data.
    """
    axes = channel_axes(x, channel_axis)
    if axes is not None:
        blocks = block_moments(axes.x, axes.axis, all_channels)
        table = blocks.table
        return blocks._replace(table=table.reshape(*table.shape[:2], *axes.shape))
    backend, x = backend_for(x, "x")
    layout = column_layout(x.shape, channel_axis, all_channels)
    return cast(BlockBackend, backend).block_moments(x, layout)


def folded_moments(parts: Sequence[BlockMoments | Moments]) -> Moments:
    """Return the moments of all data, merged in order from parts that are not on a device."""
    backend = cast(BlockBackend, backend_of(np.ndarray))
    return Moments(*backend.folded_moments(parts))


def part_gradient(
    dy: Any, x: Any, mean: Any, rstd: Any, gamma: Any, channel_axis: Any, sums: ChannelSums
) -> Any:
    """Return dx of a part of the data.

    Parameters
    ----------
    dy, x, mean, rstd, gamma, channel_axis
        As for `batch_norm_backward`. A gain does not broadcast.
    sums : ChannelSums
        Of all data; `products` is dgamma.
    """
    axes = channel_axes(x, channel_axis)
    if axes is not None:
        mean, rstd, gamma = (axes.flat("gamma", array) for array in (mean, rstd, gamma))
        sums = ChannelSums(sums[0], *(axes.flat("dy", total) for total in sums[1:]))
        dx = part_gradient(axes.fold("dy", dy), axes.x, mean, rstd, gamma, axes.axis, sums)
        return axes.write(dx, None, None)
    backend, x = backend_for(x, "x")
    layout = column_layout(x.shape, channel_axis)
    mean, rstd = mean.astype(np.float64), rstd.astype(np.float64)
    if "float64" not in (result_dtype("dy", dy.dtype).name, x.dtype.name):
        with np.errstate(all="ignore"):
            lost = (mean - mean.astype(np.float32)) * rstd
            sums = sums._replace(products=sums.products + lost * sums.dy)
    given = dy, x, mean, rstd, gamma, layout, Detached(), None
    return backend.column_backward(*given, sums)[0]


def moved_statistic(old: Any, new: Any, divisor: int, weight: float) -> Any:
    """Return a running statistic of channels, moved towards ``new / divisor`` as batch norm does.

    Parameters
    ----------
    old, new : array
        With one axis; `new` is of float64.
    divisor : int
        The divisor of `new`.
    weight : float
        The weight of `new`.
    """
    backend, _ = backend_for(old, "running_var")
    running = old.copy(), old.copy()
    backend.update_running(running, new, new, divisor, weight)
    return running[1]


def moved_where_seen(
    old: Any, total: Any, mean: Any, variance: Any, correction: Any, weight: float
) -> tuple[Any, Any]:
    """Return what becomes of `old`, as a running mean and as a running variance.

    Parameters
    ----------
    old : array
        With one axis.
    total : array
        The sum of the weights of each channel.
    mean, variance : array
        As `moments.seen_statistics` returns them.
    correction : array
        What is subtracted from `total` for the running variance.
    weight : float
        The weight of the new statistics.
    """
    backend: Any
    backend, old = backend_for(counted(old), "running_var")
    running = old.copy(), old.copy()
    total = np.array(total)  # a writable copy, as kernels take it
    backend.update_counted(running, mean, variance, total, correction, weight)
    return running


SPEC = NormSpec(
    batch_norm,
    batch_norm_forward,
    batch_norm_backward,
    family="channels",
    counts=of_channels,
    parameters={"gamma": "channels", "beta": "channels"},
    updates=("running_mean", "running_var"),
    example=Example(
        "[[1.0], [2.0], [3.0]]",
        "eps=0",
        "[[-1.2247]\n [ 0.    ]\n [ 1.2247]]",
        "[[ 0.2041]\n [-0.4082]\n [ 0.2041]]",
    ),
)
