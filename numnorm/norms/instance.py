"""Instance normalization (Ulyanov, Vedaldi and Lempitsky 2016): a group for each channel."""

from __future__ import annotations

from sys import modules
from typing import Any, Literal, Never

import numpy as np

from numnorm.arguments import Shape, check_eps, check_flag
from numnorm.array_likes import any_lazy, lazily
from numnorm.array_types import Array, ArrayLike, Convention, Input, Integer, NanPolicy, Number
from numnorm.backends import backend_for
from numnorm.backends.contract.norms import Detached, Scaling, scaling_by
from numnorm.keywords import unexpected
from numnorm.layouts import RowLayout, column_layout, instance_layout
from numnorm.norms.group import GROUP
from numnorm.norms.results import Gradients, Normalized
from numnorm.norms.running import RunningOptions, running_options
from numnorm.norms.spec import Example, NormSpec, RowCall
from numnorm.norms.weighted import keyword_given, of_instances, weighted_input

_TORCH = "torch"  # the default, the same object in every call
_FAR = 64  # The exponent of a power of two: sums of fewer than 2**64 numbers times it are in range.


def instance_norm(
    x: Input[Array],
    gamma: ArrayLike | None = None,
    beta: ArrayLike | None = None,
    *,
    channel_axis: Integer = 1,
    running_mean: ArrayLike | None = None,
    running_var: ArrayLike | None = None,
    training: bool = True,
    momentum: Number | Literal["cumulative"] | None = None,
    batches: int | None = None,
    convention: Convention = "torch",
    unbiased: bool | None = None,
    eps: Number = 1e-5,
    out: Any = None,
    where: ArrayLike | bool | None = None,
    weights: ArrayLike | Number | None = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
    **others: Never,
) -> Array:
    r"""Normalize each channel of each sample over space, then scale and shift each channel.

    .. math:: y = \gamma_c \, \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta_c

    with the mean and the biased variance over all spatial axes. In inference they are the running
    statistics, which all samples share.

    Parameters
    ----------
    x : array_like
        ``(N, ...)`` with a channel axis; float16, bfloat16, float32 or float64. Integers and
        bool become float64. An array that is not C-contiguous with the channels second is
        copied once. An array of Dask, in any chunks, gives a lazy result.
    gamma, beta : array_like, optional
        Gain and bias of each channel, of shape ``(C,)``; or with as many axes as x, to broadcast
        against it: ``(N, C, 1)`` is a gain for each sample and channel. Default: 1 and 0.
    channel_axis : int, default 1
        The axis of the channels; not 0, the axis of the samples.
    running_mean, running_var : array, optional
        Of shape ``(C,)``, both or neither. In training they are updated in place with the averages
        of the samples' means and variances, for arrays of the host; in inference they are required
        and only read. For a lazy x they are lazy, too, to be updated.
    training : bool, default True
        Whether to normalize with the statistics of `x`.
    momentum, batches, convention, unbiased
        How the running statistics are updated, as for `batch_norm`. PyTorch's InstanceNorm with
        ``track_running_stats`` does as the defaults do.
    eps : float, default 1e-5
        Added to the variance. With 0, a constant channel is normalized to 0.
    out : array, optional
        Where to write the result, an array of its shape and dtype. It may be `x` itself.
    where : array_like of bool, or of 0 and 1, optional
        Which elements count; it broadcasts against x. The others get `fill`, whatever they are.
    weights : array_like, optional
        How often each element counts: `numpy.cov`'s `fweights`, but any numbers from 0 on. They
        broadcast against x.
    nan_policy : {"propagate", "omit", "raise"}
        What to do with NaN: make its channel NaN, leave it out as `where` does, or raise an error.
    fill : float, optional
        The result of what is left out. Default: 0 where `where` is false, and NaN for NaN.

    Returns
    -------
    array
        Of the shape and dtype of x. Without spatial axes every channel is one value, and y is
        beta.

    Raises
    ------
    TypeError, ValueError
        If an argument has an unsupported type or dtype, or a wrong shape or value.

    References
    ----------
    D. Ulyanov, A. Vedaldi, V. Lempitsky, "Instance Normalization", 2016.

    Examples
    --------
    >>> import numnorm
    >>> numnorm.instance_norm([[[1.0, 3.0], [10.0, 30.0]]], eps=0)
    array([[[-1.,  1.],
            [-1.,  1.]]])
    """
    if others:
        raise unexpected(instance_norm, others)
    if "dask" in modules and any_lazy(x, gamma, beta, running_mean, running_var, where, weights):
        return lazily(instance_norm, locals())
    if where is not None or weights is not None or nan_policy != "propagate" or fill is not None:
        if running_mean is not None and training is not False:
            keyword = keyword_given(where, weights, nan_policy, fill)
            raise NotImplementedError(f"{keyword} is not supported with running statistics")
        x = weighted_input(of_instances, x, channel_axis, where, weights, nan_policy, fill)
    backend, x = backend_for(x, "x")
    layout, scaling = instance_layout(x.shape, channel_axis), scaling_by(check_eps(eps))
    nothing = running_mean is running_var is None and momentum is batches is unbiased is None
    if nothing and training is True and convention is _TORCH:  # other checks would take long
        return backend.row_forward(GROUP, x, gamma, beta, layout, scaling, out, False)[0]
    running, momentums = (running_mean, running_var), (momentum, batches, convention)
    return _normalized(
        backend, x, gamma, beta, layout, scaling, channel_axis, running, training, momentums,
        unbiased, out, False,
    )[0]  # fmt: skip


def instance_norm_forward(
    x: Input[Array],
    gamma: ArrayLike | None = None,
    beta: ArrayLike | None = None,
    *,
    channel_axis: Integer = 1,
    running_mean: ArrayLike | None = None,
    running_var: ArrayLike | None = None,
    training: bool = True,
    momentum: Number | Literal["cumulative"] | None = None,
    batches: int | None = None,
    convention: Convention = "torch",
    unbiased: bool | None = None,
    eps: Number = 1e-5,
    out: Any = None,
    where: ArrayLike | bool | None = None,
    weights: ArrayLike | Number | None = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
    **others: Never,
) -> Normalized[Array]:
    """Return `instance_norm` together with the statistics that its backward pass needs.

    Parameters
    ----------
    x, gamma, beta, channel_axis, running_mean, running_var, training, momentum, batches, \
convention, unbiased, eps, out, where, weights, nan_policy, fill
        As for `instance_norm`.

    Returns
    -------
    Normalized
        ``(y, mean, rstd)``, the last two of shape ``(N, C)``, or ``(C,)`` in inference.

    Examples
    --------
    >>> import numnorm
    >>> numnorm.instance_norm_forward([[[1.0, 3.0], [10.0, 30.0]]], eps=0).mean
    array([[ 2., 20.]])
    """
    if others:
        raise unexpected(instance_norm_forward, others)
    if "dask" in modules and any_lazy(x, gamma, beta, running_mean, running_var, where, weights):
        return lazily(instance_norm_forward, locals())
    if where is not None or weights is not None or nan_policy != "propagate" or fill is not None:
        if running_mean is not None and training is not False:
            keyword = keyword_given(where, weights, nan_policy, fill)
            raise NotImplementedError(f"{keyword} is not supported with running statistics")
        x = weighted_input(of_instances, x, channel_axis, where, weights, nan_policy, fill)
    backend, x = backend_for(x, "x")
    layout, scaling = instance_layout(x.shape, channel_axis), scaling_by(check_eps(eps))
    nothing = running_mean is running_var is None and momentum is batches is unbiased is None
    if nothing and training is True and convention is _TORCH:  # other checks would take long
        return Normalized(*backend.row_forward(GROUP, x, gamma, beta, layout, scaling, out, True))
    running, momentums = (running_mean, running_var), (momentum, batches, convention)
    return _normalized(
        backend, x, gamma, beta, layout, scaling, channel_axis, running, training, momentums,
        unbiased, out, True,
    )  # fmt: skip


def _normalized(
    backend: Any,
    x: Any,
    gamma: Any,
    beta: Any,
    layout: RowLayout,
    scaling: Scaling,
    channel_axis: Any,
    running: tuple[Any, Any],
    training: Any,
    momentums: tuple[Any, Any, Any],
    unbiased: Any,
    out: Any,
    save: bool,
) -> Normalized[Any]:
    """Return y, mean and rstd, and update the running statistics; maybe None if not `save`."""
    options = running_options(momentums, unbiased, running, check_flag("training", training))
    if options.given is None:
        return Normalized(*backend.row_forward(GROUP, x, gamma, beta, layout, scaling, out, save))
    given = backend, x, gamma, beta, layout, scaling, channel_axis
    rest = running, options, bool(training), out
    if momentums[1] is not None:  # a cumulative average has another weight in each call
        return _with_running(*given, *rest)
    arrays, key = (gamma, beta, *running, out), (layout, scaling, *options[:2], bool(training))
    found: Normalized[Any] = backend.repeated(_with_running, (*given, *rest), x, arrays, key)
    return found


def _with_running(
    backend: Any,
    x: Any,
    gamma: Any,
    beta: Any,
    layout: RowLayout,
    scaling: Scaling,
    channel_axis: Any,
    running: tuple[Any, Any],
    options: RunningOptions,
    training: bool,
    out: Any,
) -> Normalized[Any]:
    """Return y, mean and rstd, and update the running statistics."""
    channels = column_layout(x.shape, channel_axis)
    given = backend.running_statistics(*running, x, channels, training)
    if not training:
        y, rstd = backend.column_forward(x, *given, 1.0, scaling.eps, gamma, beta, channels, out)
        return Normalized(y, backend.saved(given[0], x), backend.saved(rstd, x))
    correction = options.correction(layout.width)
    averages = None
    if layout.rows * layout.width:  # before a result is written over x
        averages = _averages(backend, x, channel_axis, layout)
    normalized = Normalized(*backend.row_forward(GROUP, x, gamma, beta, layout, scaling, out, True))
    if averages is not None:
        mean, m2, unit = averages
        backend.update_running(given, mean, m2, (layout.width - correction) * unit, options.weight)
    return normalized


def _averages(backend: Any, x: Any, channel_axis: int, layout: RowLayout) -> tuple[Any, Any, float]:
    """Return the mean and m2 * unit of each channel, averaged over the samples, and the unit.

    It is a power of two that keeps the sum of squares in the range in which the variance is.
    """
    if not isinstance(x, np.ndarray):
        return *backend.averaged_moments(x, layout), 1.0
    moved = np.moveaxis(x, channel_axis, 1)
    each = np.asarray(moved, np.float64).reshape(*moved.shape[:2], -1)
    with np.errstate(all="ignore"):
        found = np.array([each.mean(axis=2).mean(axis=0), each.var(axis=2).mean(axis=0)])
        if not np.isfinite(found).all():  # a sum may leave the range in which the average is
            small = np.ldexp(each, -_FAR)
            mean, variance = small.mean(axis=2).mean(axis=0), small.var(axis=2).mean(axis=0)
            again = np.array([np.ldexp(mean, _FAR), np.ldexp(variance, 2 * _FAR)])
            found = np.where(np.isfinite(found), found, again)
    unit: float = 2.0 ** -layout.width.bit_length()
    return found[0], found[1] * (layout.width * unit), unit


def instance_norm_backward(
    dy: ArrayLike,
    x: Input[Array],
    mean: ArrayLike,
    rstd: ArrayLike,
    gamma: ArrayLike | None = None,
    *,
    channel_axis: Integer = 1,
    training: bool = True,
    out: Any = None,
    where: ArrayLike | bool | None = None,
    weights: ArrayLike | Number | None = None,
    nan_policy: NanPolicy = "propagate",
    **others: Never,
) -> Gradients[Array]:
    r"""Return the gradients of `instance_norm`.

    The formula of `layer_norm_backward` applies, with :math:`g = \gamma_c \, dy` and the means
    over a channel's space; dgamma and dbeta are sums over samples and space.

    Parameters
    ----------
    dy : array_like
        The gradient of the loss with respect to y, of the shape of x and any float dtype.
    x : array_like
        The input of the forward pass, with the values that it had then.
    mean, rstd : array_like
        As `instance_norm_forward` returned them.
    gamma : array_like, optional
        As in the forward pass.
    channel_axis : int, default 1
        As in the forward pass.
    training : bool, default True
        As in the forward pass. In inference the statistics are constants.
    out : array, optional
        Where to write dx; it may be `dy` or `x`.
    where, weights, nan_policy
        As in the forward pass.

    Returns
    -------
    Gradients
        ``(dx, dgamma, dbeta)``: dx has the dtype of x, the others that of gamma if given, or x.

    Raises
    ------
    TypeError, ValueError
        As `instance_norm` does.

    Examples
    --------
    >>> import numnorm
    >>> x = [[[1.0, 2.0], [4.0, 8.0]]]
    >>> y, mean, rstd = numnorm.instance_norm_forward(x)
    >>> numnorm.instance_norm_backward([[[1.0, 0.0], [0.0, 2.0]]], x, mean, rstd).dbeta
    array([1., 2.])
    """
    if others:
        raise unexpected(instance_norm_backward, others)
    if "dask" in modules and any_lazy(dy, x, mean, rstd, gamma, where, weights):
        return lazily(instance_norm_backward, locals())
    if where is not None or weights is not None or nan_policy != "propagate":
        x = weighted_input(of_instances, x, channel_axis, where, weights, nan_policy, None)
    backend, x = backend_for(x, "x")
    layout = instance_layout(x.shape, channel_axis)
    if not check_flag("training", training):
        frozen = Detached(mean=True, scale=True)
        channels = column_layout(x.shape, channel_axis)
        return Gradients(*backend.column_backward(dy, x, mean, rstd, gamma, channels, frozen, out))
    return Gradients(
        *backend.row_backward(
            GROUP, dy, x, mean, rstd, gamma, None, layout, scaling_by(0.0), Detached(), out
        )
    )


def _row_call(shape: Shape, channel_axis: Any, eps: Any = 0.0, training: Any = True) -> RowCall:
    """Return what the backend is handed in training."""
    check_flag("training", training)
    return RowCall(instance_layout(shape, channel_axis), scaling_by(check_eps(eps)))


SPEC = NormSpec(
    instance_norm,
    instance_norm_forward,
    instance_norm_backward,
    family="groups",
    counts=of_instances,
    parameters={"gamma": "channels", "beta": "channels"},
    norm=GROUP,
    row_call=_row_call,
    updates=("running_mean", "running_var"),
    example=Example(
        "[[[1.0, 2.0, 3.0]]]",
        "eps=0",
        "[[[-1.2247  0.      1.2247]]]",
        "[[[ 0.2041 -0.4082  0.2041]]]",
    ),
)
