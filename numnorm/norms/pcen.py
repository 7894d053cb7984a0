"""Per-channel energy normalization (PCEN): a gain control and a root, for spectrograms."""

from __future__ import annotations

import numbers
from sys import modules
from typing import Any, Generic, NamedTuple, Never

import numpy as np

from numnorm.arguments import Shape, check_float, check_number, check_shape
from numnorm.array_likes import (
    any_lazy,
    as_plain_array,
    check_norm_on_host,
    check_out,
    lazily,
    writable_view,
)
from numnorm.array_types import Array, ArrayLike, Input, Integer, NanPolicy, Number
from numnorm.backends import backend_for
from numnorm.backends.contract.moving import Decay, ExponentialState
from numnorm.backends.contract.weighting import WeightedInput, Weighting
from numnorm.keywords import unexpected
from numnorm.layouts import MovingLayout, moving_layout
from numnorm.norms.exponential import decay_of
from numnorm.norms.spec import Example, NormSpec
from numnorm.norms.weighted import check_broadcasts, of_steps, weighted_input


class PCENNormalized(NamedTuple, Generic[Array]):
    """An array after PCEN, and the moving mean that its backward pass needs.

    Attributes
    ----------
    y : array
        Of the shape and dtype of x.
    mean : array of float64
        The moving mean at each step, of the shape of x.

    Examples
    --------
    >>> import numnorm
    >>> numnorm.pcen_forward([1.0, 3.0, 3.0], 0.5).mean
    array([1. , 2. , 2.5])
    """

    y: Array
    mean: Any


class PCENGradients(NamedTuple, Generic[Array]):
    """The gradients of PCEN.

    Attributes
    ----------
    dx : array
        Of the shape and dtype of x.
    dalpha, dgain, dbias, dpower : array
        Of the shape and dtype of the parameter; float64 for a number, without axes.

    Examples
    --------
    >>> import numnorm
    >>> y, mean = numnorm.pcen_forward([1.0, 3.0], 0.5, gain=1, bias=0, power=1, eps=1)
    >>> numnorm.pcen_backward([0.0, 1.0], [1.0, 3.0], mean, 0.5, 1, 0, 1, eps=1).dbias
    array(0.)
    """

    dx: Array
    dalpha: Any
    dgain: Any
    dbias: Any
    dpower: Any


def pcen(
    x: Input[Array],
    alpha: ArrayLike | Number,
    gain: ArrayLike | Number = 0.98,
    bias: ArrayLike | Number = 2.0,
    power: ArrayLike | Number = 0.5,
    *,
    axis: Integer = -1,
    eps: Number = 1e-6,
    out: Any = None,
    where: ArrayLike | bool | None = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
    **others: Never,
) -> Array:
    r"""Divide each step by a power of a moving mean, add a bias and take a root.

    .. math:: y_t = \left(\frac{x_t}{(\epsilon + \mu_t)^g} + b\right)^p - b^p, \quad
        \mu_t = (1 - \alpha) \mu_{t-1} + \alpha x_t, \quad \mu_0 = x_0

    along `axis`, with the gain g, the bias b and the power p; each sequence along the axis is a
    channel of its own. In librosa this is ``pcen``.

    Parameters
    ----------
    x : array_like
        Magnitudes or energies, at least 0, of any shape; float16, bfloat16, float32 or float64.
        Integers and bool become float64. An array of Dask, in any chunks, gives a lazy result; its
        blocks are computed one after the other along the axis.
    alpha : float
        The weight of a new step, above 0 and at most 1: librosa's ``b``. A number for all channels.
    gain : float or array_like, default 0.98
        The power of the mean that x is divided by: 0 leaves the level as it is, 1 removes it. An
        array broadcasts against x, such as one of (channels, 1) with a number for each channel.
    bias : float or array_like, default 2
        What is added before the root, at least 0: small values change in proportion.
    power : float or array_like, default 0.5
        The power at the end, above 0.
    axis : int, default -1
        The axis of time.
    eps : float, default 1e-6
        Added to the mean, in the unit of x; above 0.
    out : array, optional
        Where to write the result, an array of its shape and dtype. It may be `x` itself.
    where : array_like of bool, or of 0 and 1, optional
        Which steps count; it broadcasts against x. The others get `fill`, whatever they are.
    nan_policy : {"propagate", "omit", "raise"}
        What to do with NaN: make all later steps of its channel NaN, leave it out as `where`
        does, or raise an error.
    fill : float, optional
        The result of what is left out. Default: 0 where `where` is false, and NaN for NaN.

    Returns
    -------
    array
        Of the shape and dtype of x, computed in float64 and rounded once.

    Raises
    ------
    TypeError, ValueError
        If an argument has an unsupported type or dtype, or a wrong shape or value. The elements of
        arrays are not checked: a root of a negative number is NaN.

    See Also
    --------
    pcen_step : The same for a stream in chunks.
    exponential_norm : The moving mean subtracted, and divided by the deviation.

    Notes
    -----
    The mean is that of ``exponential_norm(x, alpha, adjust=False)``, missing steps included.

    References
    ----------
    Y. Wang et al., "Trainable frontend for robust and far-field keyword spotting", ICASSP 2017.

    Examples
    --------
    >>> import numnorm
    >>> numnorm.pcen([1.0, 1.0, 100.0, 100.0], 0.5).round(3)
    array([0.318, 0.318, 0.621, 0.443])
    """
    if others:
        raise unexpected(pcen, others)
    if "dask" in modules and any_lazy(x, alpha, gain, bias, power, where):
        return lazily(pcen, locals())
    call = _checked(x, axis, alpha, eps, where, nan_policy, fill)
    mean, _ = call.step(None)
    return _normalized(call, mean, gain, bias, power, out)


def pcen_forward(
    x: Input[Array],
    alpha: ArrayLike | Number,
    gain: ArrayLike | Number = 0.98,
    bias: ArrayLike | Number = 2.0,
    power: ArrayLike | Number = 0.5,
    *,
    axis: Integer = -1,
    eps: Number = 1e-6,
    out: Any = None,
    where: ArrayLike | bool | None = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
    **others: Never,
) -> PCENNormalized[Array]:
    """Return `pcen` together with the mean that its backward pass needs.

    Parameters
    ----------
    x, alpha, gain, bias, power, axis, eps, out, where, nan_policy, fill
        As for `pcen`.

    Returns
    -------
    PCENNormalized
        ``(y, mean)``, both of the shape of x. A step that is left out has the mean of the step
        before it, NaN before the first step that counts.

    Examples
    --------
    >>> import numnorm
    >>> y, mean = numnorm.pcen_forward([1.0, 3.0], 0.5, gain=1, bias=0, power=1, eps=1)
    >>> y, mean
    (array([0.5, 1. ]), array([1., 2.]))
    """
    if others:
        raise unexpected(pcen_forward, others)
    if "dask" in modules and any_lazy(x, alpha, gain, bias, power, where):
        return lazily(pcen_forward, locals())
    call = _checked(x, axis, alpha, eps, where, nan_policy, fill)
    mean, _ = call.step(None)
    y = _normalized(call, mean, gain, bias, power, out)
    return PCENNormalized(y, call.backend.saved(mean, call.x))


def pcen_backward(
    dy: ArrayLike,
    x: Input[Array],
    mean: ArrayLike,
    alpha: ArrayLike | Number,
    gain: ArrayLike | Number = 0.98,
    bias: ArrayLike | Number = 2.0,
    power: ArrayLike | Number = 0.5,
    *,
    axis: Integer = -1,
    eps: Number = 1e-6,
    out: Any = None,
    where: ArrayLike | bool | None = None,
    nan_policy: NanPolicy = "propagate",
    **others: Never,
) -> PCENGradients[Array]:
    """Return the gradients of `pcen` with respect to x and its four parameters.

    Parameters
    ----------
    dy : array_like
        The gradient of the loss with respect to y, of the shape of x and any float dtype.
    x : array_like
        The input of the forward pass, with the values that it had then.
    mean : array_like
        As `pcen_forward` returned it.
    alpha, gain, bias, power, axis, eps
        As in the forward pass.
    out : array, optional
        Where to write dx; it may be `dy` or `x`.
    where, nan_policy
        As in the forward pass. What was left out passes no gradient.

    Returns
    -------
    PCENGradients
        ``(dx, dalpha, dgain, dbias, dpower)``. The gradient of an array is a sum over the axes in
        which it broadcasts.

    Raises
    ------
    TypeError, ValueError
        As `pcen` does.

    Examples
    --------
    >>> import numnorm
    >>> x = [1.0, 3.0]
    >>> y, mean = numnorm.pcen_forward(x, 0.5, gain=1, bias=0, power=1, eps=1)
    >>> dx, dalpha, *_ = numnorm.pcen_backward([0.0, 3.0], x, mean, 0.5, 1, 0, 1, eps=1)
    >>> dx, dalpha
    (array([-0.5,  0.5]), array(-2.))
    """
    if others:
        raise unexpected(pcen_backward, others)
    if "dask" in modules and any_lazy(dy, x, mean, alpha, gain, bias, power, where):
        return lazily(pcen_backward, locals())
    call = _checked(x, axis, alpha, eps, where, nan_policy, None)
    kept, shape = call.kept(), call.x.shape
    given = as_plain_array("dy", dy), as_plain_array("mean", mean)
    for name, array in zip(("dy", "mean"), given, strict=True):
        check_float(name, array.dtype)
        check_shape(name, array.shape, shape, "the shape of x")
    gradient, level = (array.astype(np.float64) for array in given)
    level += call.eps
    u = call.wide
    if kept is not None:  # any numbers without effect
        gradient, level, u = (
            np.where(kept, array, of_missing)
            for array, of_missing in ((gradient, 0.0), (level, 1.0), (u, 1.0))
        )
    g, b, p = _parameters(gain, bias, power, shape)
    with np.errstate(all="ignore"):
        scale = level**-g
        u = u * scale
        of_u = gradient * p * (u + b) ** (p - 1.0)
        through, dalpha = _through_mean(call, of_u * u * -g / level, given[1], kept)
        dx = of_u * scale + through
        dgain = -of_u * u * np.log(level)
        dbias = gradient * p * _rise(u, b, p - 1.0)
        dpower = gradient * _rise_by_power(u, b, p)
    sums: dict[str, tuple[Any, Any]] = {
        "alpha": (alpha, dalpha),
        "gain": (gain, dgain),
        "bias": (bias, dbias),
        "power": (power, dpower),
    }
    gradients = (
        call.backend.parameter_gradient(name, _sum_to(np.shape(value), total), value, call.x)
        for name, (value, total) in sums.items()
    )
    return PCENGradients(call.result(dx, out), *gradients)


def pcen_step(
    x: Input[Array],
    alpha: ArrayLike | Number,
    state: ExponentialState | None = None,
    gain: ArrayLike | Number = 0.98,
    bias: ArrayLike | Number = 2.0,
    power: ArrayLike | Number = 0.5,
    *,
    axis: Integer = -1,
    eps: Number = 1e-6,
    out: Any = None,
    where: ArrayLike | bool | None = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
    **others: Never,
) -> tuple[Array, ExponentialState]:
    """Normalize the next chunk of a stream as `pcen` does.

    Parameters
    ----------
    x : array_like
        A chunk of any number of steps, of one shape but for the steps.
    alpha : float
        As for `pcen`.
    state : ExponentialState, optional
        What the call for the previous chunk returned; None for the first one. It can be pickled.
    gain, bias, power
        As for `pcen`; arrays broadcast against the chunk.
    axis, eps, out, where, nan_policy, fill
        As for `pcen`; `where` is for the chunk.

    Returns
    -------
    y : array
        Of the shape and dtype of x: for all chunks together what one call of `pcen` gives.
    state : ExponentialState
        For the next chunk.

    Raises
    ------
    TypeError, ValueError
        If an argument has an unsupported type or dtype, or a wrong shape or value.

    Examples
    --------
    >>> import numnorm
    >>> y, state = numnorm.pcen_step([1.0, 1.0, 100.0], 0.5)
    >>> y, state = numnorm.pcen_step([100.0], 0.5, state)
    >>> y.round(3)
    array([0.443])
    """
    if others:
        raise unexpected(pcen_step, others)
    call = _checked(x, axis, alpha, eps, where, nan_policy, fill)
    if state is not None and not isinstance(state, ExponentialState):
        raise TypeError(f"state must be an ExponentialState, got {type(state).__name__}")
    if state is not None and state.time is not None:
        raise ValueError("state must be of steps without times, got one of steps with times")
    mean, after = call.step(state)
    return _normalized(call, mean, gain, bias, power, out), after


# Checked arguments


class _Call(NamedTuple):
    """The checked arguments of a call, without the parameters that may be arrays.

    Attributes
    ----------
    backend : backend
        Its results are arrays of the library of x.
    x, wide : array
        The array as one of NumPy, and the same in float64.
    weighting : Weighting or None
        Which steps count; None if all do.
    layout : MovingLayout
    decay : Decay
    eps : float
    """

    backend: Any
    x: Any
    wide: Any
    weighting: Weighting | None
    layout: MovingLayout
    decay: Decay
    eps: float

    def of_means(self) -> tuple[Any, Any]:
        """Return the backend for the moving mean, and x as it takes it."""
        wide = self.wide if self.weighting is None else WeightedInput(self.wide, self.weighting)
        return backend_for(wide, "x")

    def step(self, state: ExponentialState | None) -> tuple[Any, ExponentialState]:
        """Return the mean at each step, and the state after the last one."""
        backend, wide = self.of_means()
        (_, mean, _), after = backend.exponential_step(
            wide, state, self.layout, self.decay, None, True
        )
        return mean, after

    def kept(self) -> Any:
        """Return a mask of the elements that count; None if all do."""
        if self.weighting is None:
            return None
        keep = True if self.weighting.keep is None else self.weighting.keep
        left = keep & ~np.isnan(self.wide) if self.weighting.omit else keep
        return np.broadcast_to(left, self.x.shape)

    def result(self, array: Any, out: Any) -> Any:
        """Return an array of float64 in the dtype of x, in `out` if that is given."""
        if out is not None:
            check_out(writable_view("out", out), self.x, "x")
        return self.backend.rounded(array, self.x.dtype, out)


def _checked(
    x: Any, axis: Any, alpha: Any, eps: Any, where: Any, nan_policy: Any, fill: Any
) -> _Call:
    check_norm_on_host("pcen", x)
    weighting = None
    if where is not None or nan_policy != "propagate" or fill is not None:
        x = weighted_input(of_steps, x, axis, where, None, nan_policy, fill)
        weighting = x.weighting if isinstance(x, WeightedInput) else None
    backend: Any
    backend, x = backend_for(x, "x")
    layout = moving_layout(x.shape, axis)
    if not isinstance(alpha, numbers.Real) and hasattr(alpha, "dtype") and np.size(alpha) == 1:
        alpha = as_plain_array("alpha", alpha).astype(np.float64).item()
    least = check_number("eps", eps, least=0.0)
    if least == 0.0:
        raise ValueError("eps must be above 0, got 0")
    decay = decay_of(alpha, False, 0, 1.0)
    return _Call(backend, x, x.astype(np.float64, copy=False), weighting, layout, decay, least)


def _parameters(gain: Any, bias: Any, power: Any, shape: Shape) -> tuple[Any, Any, Any]:
    """Return gain, bias and power as numbers, or as arrays of float64 that broadcast against x."""
    if isinstance(power, numbers.Real) and power == 0:
        raise ValueError("power must be above 0, got 0")
    return (
        _parameter("gain", gain, shape),
        _parameter("bias", bias, shape),
        _parameter("power", power, shape),
    )


def _parameter(name: str, value: Any, shape: Shape) -> Any:
    if isinstance(value, numbers.Real):
        return np.float64(check_number(name, value, least=0.0))
    array = as_plain_array(name, value)
    check_float(name, array.dtype)
    check_broadcasts(name, array.shape, shape)
    return array.astype(np.float64)


# The formula, in float64


def _normalized(call: _Call, mean: Any, gain: Any, bias: Any, power: Any, out: Any) -> Any:
    """Return y for the caller."""
    g, b, p = _parameters(gain, bias, power, call.x.shape)
    with np.errstate(all="ignore"):
        y = _rise(call.wide * (call.eps + mean) ** -g, b, p)
    if call.weighting is not None:
        if call.weighting.omit:
            y[np.isnan(call.wide)] = call.weighting.fill_missing
        if call.weighting.keep is not None:
            y[np.broadcast_to(~call.weighting.keep, y.shape)] = call.weighting.fill
    return call.result(y, out)


def _rise(u: Any, b: Any, power: Any) -> Any:
    """Return ``(u + b)**power - b**power``, exact also for a u far below b."""
    ratio = u / b
    near = b**power * np.expm1(power * np.log1p(ratio))
    far = (u + b) ** power - b**power
    return np.where(u == 0.0, 0.0, np.where(ratio < np.inf, near, far))


def _rise_by_power(u: Any, b: Any, power: Any) -> Any:
    """Return the derivative of `_rise` with respect to the power."""
    own = np.where(u + b == 0.0, 0.0, _rise(u, b, power) * np.log(u + b))
    return own + np.where(b == 0.0, 0.0, b**power * np.log1p(u / b))


# Gradients


def _through_mean(call: _Call, of_mean: Any, mean: Any, kept: Any) -> tuple[Any, Any]:
    """Return the gradients of x and of alpha through the mean, given those of the means."""
    backend, wide = call.of_means()
    # With a deviation of 1, as a constant, the gradient of the exponential norm is dy less what
    # passes through the mean.
    deviation = np.ones_like(call.wide)
    passed = backend.exponential_backward(
        -of_mean, wide, mean, deviation, call.layout, call.decay, None
    )
    through = passed + of_mean
    alpha, axis = call.decay.alpha, call.layout.axis
    x, means, each = (np.moveaxis(a, axis, -1) for a in (call.wide, mean, through))
    steps = np.arange(x.shape[-1])
    counted = np.ones(x.shape, bool) if kept is None else np.moveaxis(kept, axis, -1)
    last = np.maximum.accumulate(np.where(counted, steps, -1), axis=-1)
    later = counted[..., 1:] & (last[..., :-1] >= 0)
    # The share of a step in its mean, k steps after the one before it, is a / (a + (1 - a)**k).
    k = np.maximum(steps[1:] - last[..., :-1], 1)
    rest = (1.0 - alpha) ** k
    share = alpha / (alpha + rest)
    slope = (rest + alpha * k * (1.0 - alpha) ** (k - 1)) / (alpha + rest) ** 2
    terms = each[..., 1:] / share * slope * (x[..., 1:] - means[..., :-1])
    return through, np.where(later, terms, 0.0).sum(keepdims=True)


def _sum_to(shape: Shape, gradient: Any) -> Any:
    """Return the sums over the axes in which an array of a shape broadcasts."""
    full = (1,) * (gradient.ndim - len(shape)) + shape
    summed = tuple(axis for axis, length in enumerate(full) if length == 1)
    with np.errstate(all="ignore"):
        return gradient.sum(axis=summed).reshape(shape)


SPEC = NormSpec(
    pcen,
    pcen_forward,
    pcen_backward,
    step=pcen_step,
    family="decay",
    counts=of_steps,
    parameters={"alpha": "number", "gain": "elements", "bias": "elements", "power": "elements"},
    example=Example(
        "[[1.0, 1.0, 100.0]]",
        "0.5",
        "[[0.3178 0.3178 0.6209]]",
        "[[-0.0026 -0.0026  0.0002]]",
    ),
)
