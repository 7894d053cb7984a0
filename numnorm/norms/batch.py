"""Batch normalization (Ioffe and Szegedy 2015) with running statistics."""

from __future__ import annotations

import functools
from sys import modules
from typing import Any, Literal, Unpack

import numpy as np

from numnorm.arguments import (
    Axis,
    brief,
    check_choice,
    check_eps,
    check_flag,
    check_integer,
    check_number,
    result_dtype,
)
from numnorm.array_types import Array, ArrayLike, Convention, GroupFilling, Grouping, Input, Number
from numnorm.backends import backend_for, backend_of
from numnorm.backends.contract.backend import ColumnBackend
from numnorm.backends.contract.norms import Detached
from numnorm.layouts import ColumnLayout, column_layout
from numnorm.lazy_arrays import any_lazy, lazy_twin
from numnorm.norms.channel_axes import channel_axes
from numnorm.norms.results import Gradients, Normalized
from numnorm.norms.weighted import with_weights

# In PyTorch momentum is the weight of the new batch and the running variance is unbiased; in
# Keras, Flax and ONNX momentum is the weight of the old statistics and the variance is biased.
_DEFAULT_MOMENTUM = {"torch": 0.1, "keras": 0.99}

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
    out: Any = None,
    **others: Unpack[GroupFilling],
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
        lazy result.
    gamma, beta : array_like, optional
        Gain and bias of each channel, of shape ``(C,)``; or with as many axes as x, to broadcast
        against it: ``(N, C, 1)`` is a gain for each sample and channel. Default: 1 and 0.
    channel_axis : int or tuple of int, default 1
        The axis of the channels. With several axes, each combination of their indices is a
        channel, and ``(C,)`` below is the shape of these axes; on a device there may be only one.
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
    groups : array_like, optional
        A label for each sample, of shape ``(N,)``: a speaker, a session. Samples are normalized by
        the statistics of their label, `mean` and `rstd` have a first axis of labels in sorted
        order, and there are no running statistics.
    statistics : GroupMoments, optional
        With `groups`: statistics of labels as `batch_moments` returned them, in the place of those
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
    `stream_step` along the first axis, and divided along no others but the channels'. An x that
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
        return with_weights(batch_norm, locals())
    running, momentums = (running_mean, running_var), (momentum, batches, convention)
    given = x, gamma, beta, channel_axis, running, training, momentums, unbiased, eps, out
    if "dask" in modules and any_lazy(x, gamma, beta, *running):
        return lazy_twin("batch_norm_forward")(*given)[0]
    return _normalized(*given)[0]


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
    out: Any = None,
    **others: Unpack[GroupFilling],
) -> Normalized[Array]:
    """Return `batch_norm` together with the statistics that its backward pass needs.

    Parameters
    ----------
    x, gamma, beta, channel_axis, running_mean, running_var, training, momentum, batches, \
convention, unbiased, eps, out, where, weights, nan_policy, fill, groups, statistics
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
        return with_weights(batch_norm_forward, locals())
    running, momentums = (running_mean, running_var), (momentum, batches, convention)
    given = x, gamma, beta, channel_axis, running, training, momentums, unbiased, eps, out
    if "dask" in modules and any_lazy(x, gamma, beta, *running):
        return lazy_twin("batch_norm_forward")(*given)
    y, mean, rstd, backend, x = _normalized(*given)
    return Normalized(y, backend.saved(mean, x), backend.saved(rstd, x))


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
    out: Any,
) -> tuple[Any, Any, Any, ColumnBackend, Any]:
    """Return y, mean and rstd as the backend has them, the backend, and x as its array."""
    axes, target = None if type(channel_axis) is int else channel_axes(x, channel_axis), out
    if axes is not None:
        x, channel_axis, target = axes.x, axes.axis, axes.folded_out(out)
        gamma, beta = axes.flat_gain("gamma", gamma), axes.flat_gain("beta", beta)
        running = axes.flat_running(running, training)
    backend, x, layout = _over_channels(x, channel_axis)
    eps = check_eps(eps)
    weight = new_batch_weight(*momentums)
    unbiased = momentums[2] == "torch" if unbiased is None else check_flag("unbiased", unbiased)
    training = check_flag("training", training)
    given = given_statistics(*running, training)
    if given is not None:
        given = backend.running_statistics(*given, x, layout, training)
    if given is not None and not training:
        count, unit, (mean, m2) = 0, 1.0, given
    else:
        correction = bessel_correction(unbiased, layout.per_channel, given)
        count, mean, m2, unit = backend.column_moments(x, layout)
    divisor = max(count, 1) * unit
    y, rstd = backend.column_forward(x, mean, m2, divisor, eps, gamma, beta, layout, target)
    if given is not None and count:
        backend.update_running(given, mean, m2, (count - correction) * unit, weight)
    if axes is not None:
        y, mean, rstd = axes.write(y, target, out), axes.unflat(mean), axes.unflat(rstd)
        backend = axes.backend
    return y, mean, rstd, backend, x


def batch_norm_backward(
    dy: ArrayLike,
    x: Input[Array],
    mean: ArrayLike,
    rstd: ArrayLike,
    gamma: ArrayLike | None = None,
    *,
    channel_axis: Axis = 1,
    training: bool = True,
    out: Any = None,
    **others: Unpack[Grouping],
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
    out : array, optional
        Where to write dx; it may be `dy` or `x`.
    where, weights, nan_policy, groups
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
        return with_weights(batch_norm_backward, locals())
    if "dask" in modules and any_lazy(dy, x, mean, rstd, gamma):
        given = dy, x, mean, rstd, gamma, channel_axis, training, out
        return lazy_twin("batch_norm_backward")(*given)
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
    if type(x) is np.ndarray and type(channel_axis) is int:
        try:
            backend, layout = _known(x.shape, x.dtype, channel_axis)
            return backend, x, layout
        except (TypeError, ValueError):
            pass  # the code below converts x or raises the right error
    backend, x = backend_for(x, "x")
    return backend, x, column_layout(x.shape, channel_axis)


@functools.lru_cache(maxsize=1024)
def _known(shape: Any, dtype: np.dtype[Any], channel_axis: int) -> tuple[Any, ColumnLayout]:
    """Return backend and layout for a NumPy array that needs no conversion."""
    if result_dtype("x", dtype) != dtype:
        raise TypeError("converted")
    return backend_of(np.ndarray), column_layout(shape, channel_axis)


def new_batch_weight(momentum: Any, batches: Any, convention: Any) -> float:
    """Return the weight of the new batch in the running statistics."""
    if momentum is None and batches is None and type(convention) is str and convention == "torch":
        return _DEFAULT_MOMENTUM["torch"]
    check_choice("convention", convention, tuple(_DEFAULT_MOMENTUM))
    if isinstance(momentum, str) and momentum == "cumulative":
        if batches is None:
            raise ValueError("batches must be given with momentum='cumulative', got None")
        return 1.0 / (check_integer("batches", batches, 0) + 1)
    if batches is not None:
        raise ValueError(f"batches must be None unless momentum='cumulative', got {brief(batches)}")
    if isinstance(momentum, str):
        raise ValueError(f"momentum must be a number, 'cumulative' or None, got {brief(momentum)}")
    weight = _DEFAULT_MOMENTUM[convention]
    if momentum is not None:
        weight = check_number("momentum", momentum, least=0.0, most=1.0)
    return weight if convention == "torch" else 1.0 - weight


def given_statistics(mean: Any, variance: Any, training: bool) -> tuple[Any, Any] | None:
    """Return both running statistics, or None if there are none and none are needed."""
    if training and mean is None and variance is None:
        return None
    for name, array, other in (
        ("running_mean", mean, "running_var"),
        ("running_var", variance, "running_mean"),
    ):
        if array is None:
            when = f"with {other}" if training else "when training is False"
            raise ValueError(f"{name} must be given {when}, got None")
    return mean, variance


def bessel_correction(unbiased: bool, count: int, running: Any) -> int:
    """Return what is subtracted from the number of values of a channel for a running variance."""
    if running is not None and unbiased and count == 1:
        raise ValueError(
            "x must have at least 2 values in each channel for an unbiased running_var, got 1"
        )
    return int(unbiased)
