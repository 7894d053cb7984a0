"""Exponential moving standardization: each step by statistics in which old steps fade."""

from __future__ import annotations

import dataclasses
import math
from sys import modules
from typing import Any, Never

import numpy as np

from numnorm.arguments import check_eps, check_flag, check_integer, check_number
from numnorm.array_likes import any_lazy, as_plain_array, lazily
from numnorm.array_types import Array, ArrayLike, Duration, Input, Integer, NanPolicy, Number
from numnorm.backends.contract.moving import Decay, ExponentialState, MovingBackend, decay_by
from numnorm.keywords import unexpected
from numnorm.layouts import MovingLayout
from numnorm.norms.axes import resolve_moving
from numnorm.norms.results import Normalized
from numnorm.norms.spec import Example, NormSpec
from numnorm.norms.times import checked_times, fading_by, last_time, resolve_timed
from numnorm.norms.weighted import of_steps, weighted_input


def exponential_norm(
    x: Input[Array],
    alpha: Number | None = None,
    *,
    span: Number | None = None,
    com: Number | None = None,
    halflife: Number | Duration | None = None,
    times: ArrayLike | None = None,
    axis: Integer = -1,
    adjust: bool = True,
    initial: Integer = 0,
    eps: Number = 1e-4,
    out: Any = None,
    where: ArrayLike | bool | None = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
    **others: Never,
) -> Array:
    r"""Normalize each step by exponentially weighted statistics of the steps up to it.

    .. math:: y_t = \frac{x_t - \mu_t}{\max(\epsilon, \sigma_t)}, \quad
        \mu_t = \mathrm{ewm}(x)_t, \quad \sigma_t^2 = \mathrm{ewm}\big((x - \mu)^2\big)_t

    along `axis`; each sequence along it is a channel of its own. In braindecode this is
    ``exponential_moving_standardize``.

    Parameters
    ----------
    x : array_like
        Any shape; float16, bfloat16, float32 or float64. Integers and bool become float64.
        An array that is not C-contiguous is copied once.
        An array of Dask, in any chunks, gives a lazy result; its blocks are computed one after the
        other along the axis.
    alpha : float, optional
        The weight of a new step, above 0 and at most 1: braindecode's ``factor_new``. Half of the
        weight lies on the last ``0.7 / alpha`` steps. Exactly one of `alpha`, `span`, `com` and
        `halflife` is given, as for ``ewm`` of pandas.
    span : float, optional
        At least 1: ``alpha`` is ``2 / (span + 1)``.
    com : float, optional
        The centre of mass, at least 0: ``alpha`` is ``1 / (1 + com)``.
    halflife : float or timedelta, optional
        The number of steps in which a weight fades to its half, above 0: ``alpha`` is
        ``1 - exp(-log(2) / halflife)``. With `times` it is the time in which it does.
    times : array_like, optional
        The times of the steps, where these are irregular: one for each step, none before the one
        before it. They are numbers, and `halflife` one of the same unit, or ``datetime64``, and
        `halflife` a ``timedelta64`` or ``timedelta``. A time :math:`\Delta t` later, a weight is
        :math:`0.5^{\Delta t / h}` of what it was.
    axis : int, default -1
        The axis of time. A table with time in rows, as of pandas, needs 0.
    adjust : bool, default True
        Whether the weights :math:`(1 - \alpha)^k` of all steps so far are divided by their sum, or
        else the first step counts as if it had lasted forever. As for ``ewm`` of pandas.
    initial : int, default 0
        The number of first steps that are normalized by the mean and the deviation of their
        block: braindecode's ``init_block_size``. Later steps are the same with any number.
    eps : float, default 1e-4
        The least deviation to divide by, in the unit of x.
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
        Of the shape and dtype of x. Without `initial` the first step gives 0.

    Raises
    ------
    TypeError, ValueError
        If an argument has an unsupported type or dtype, or a wrong shape or value.

    See Also
    --------
    exponential_norm_step : The same for a stream in chunks.
    moving_norm : Statistics of a window that moves.

    Notes
    -----
    The squares are of deviations from the mean at their own step. That is not the variance
    ``x.ewm(alpha=alpha).var()`` of pandas, whose deviations are from the present mean.

    The mean is kept as two numbers, so the result is as exact at an offset of 1e7 as at 0. The
    weight of an outlier fades, as the definition has it. A NaN or an infinity makes all later
    steps of its channel NaN. pandas skips a NaN, as ``nan_policy="omit"`` does: the weights of
    the steps before what is left out fade on, as with its ``ignore_na=False``.

    With `times` the means are those of ``ewm(halflife=, times=)`` of pandas: with `adjust`, steps
    at one time have equal weights; without it, the weight of a step is 1 less what its time has
    left of the older ones, so a step at the time of the one before it has none.

    Examples
    --------
    >>> import numnorm
    >>> numnorm.exponential_norm([1.0, 3.0, 3.0], 0.5).round(3)
    array([0.   , 1.225, 0.686])
    >>> nan = float("nan")
    >>> numnorm.exponential_norm([1.0, nan, 3.0], 0.5, nan_policy="omit").round(3)
    array([0.   ,   nan, 1.118])
    >>> numnorm.exponential_norm([1.0, 3.0], halflife=2.0, times=[0.0, 2.0]).round(3)
    array([0.   , 1.225])
    """
    if others:
        raise unexpected(exponential_norm, others)
    if "dask" in modules and any_lazy(x, where):
        return lazily(exponential_norm, locals())
    if where is not None or nan_policy != "propagate" or fill is not None:
        x = weighted_input(of_steps, x, axis, where, None, nan_policy, fill)
    rate = alpha, span, com, halflife
    backend, x, layout, decay = _resolved(x, axis, rate, times, (adjust, initial, eps))
    return backend.exponential_forward(x, layout, decay, out, False)[0]


def exponential_norm_forward(
    x: Input[Array],
    alpha: Number | None = None,
    *,
    span: Number | None = None,
    com: Number | None = None,
    halflife: Number | Duration | None = None,
    times: ArrayLike | None = None,
    axis: Integer = -1,
    adjust: bool = True,
    initial: Integer = 0,
    eps: Number = 1e-4,
    out: Any = None,
    where: ArrayLike | bool | None = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
    **others: Never,
) -> Normalized[Array]:
    """Return `exponential_norm` together with the statistics that its backward pass needs.

    Parameters
    ----------
    x, alpha, span, com, halflife, times, axis, adjust, initial, eps, out, where, nan_policy, fill
        As for `exponential_norm`.

    Returns
    -------
    Normalized
        ``(y, mean, rstd)``, all of the shape of x: the statistics at every step. A step that is
        left out has the statistics of the step before it, NaN before the first step that counts.

    Examples
    --------
    >>> import numnorm
    >>> numnorm.exponential_norm_forward([1.0, 4.0, 4.0], 0.5).mean.round(3)
    array([1.   , 3.   , 3.571])
    """
    if others:
        raise unexpected(exponential_norm_forward, others)
    if "dask" in modules and any_lazy(x, where):
        return lazily(exponential_norm_forward, locals())
    if where is not None or nan_policy != "propagate" or fill is not None:
        x = weighted_input(of_steps, x, axis, where, None, nan_policy, fill)
    rate = alpha, span, com, halflife
    backend, x, layout, decay = _resolved(x, axis, rate, times, (adjust, initial, eps))
    return Normalized(*backend.exponential_forward(x, layout, decay, out, True))


def exponential_norm_backward(
    dy: ArrayLike,
    x: Input[Array],
    mean: ArrayLike,
    rstd: ArrayLike,
    alpha: Number | None = None,
    *,
    span: Number | None = None,
    com: Number | None = None,
    halflife: Number | Duration | None = None,
    times: ArrayLike | None = None,
    axis: Integer = -1,
    adjust: bool = True,
    initial: Integer = 0,
    eps: Number = 1e-4,
    out: Any = None,
    where: ArrayLike | bool | None = None,
    nan_policy: NanPolicy = "propagate",
    **others: Never,
) -> Array:
    """Return the gradient of `exponential_norm` with respect to x.

    Parameters
    ----------
    dy : array_like
        The gradient of the loss with respect to y, of the shape of x and any float dtype.
    x : array_like
        The input of the forward pass, with the values that it had then.
    mean, rstd : array_like
        As `exponential_norm_forward` returned them.
    alpha, span, com, halflife, times, axis, adjust, initial, eps
        As in the forward pass.
    out : array, optional
        Where to write dx; it may be `dy` or `x`.
    where, nan_policy
        As in the forward pass. What was left out passes no gradient.

    Returns
    -------
    array
        dx, of the shape and dtype of x. A deviation of less than `eps` is a constant.

    Raises
    ------
    TypeError, ValueError
        As `exponential_norm` does.

    Examples
    --------
    >>> import numnorm
    >>> x = [1.0, 3.0, 3.0]
    >>> y, mean, rstd = numnorm.exponential_norm_forward(x, 0.5, eps=10)
    >>> numnorm.exponential_norm_backward([0.0, 3.0, 0.0], x, mean, rstd, 0.5, eps=10)
    array([-0.1,  0.1,  0. ])
    """
    if others:
        raise unexpected(exponential_norm_backward, others)
    if "dask" in modules and any_lazy(dy, x, mean, rstd, where):
        return lazily(exponential_norm_backward, locals())
    if where is not None or nan_policy != "propagate":
        x = weighted_input(of_steps, x, axis, where, None, nan_policy, None)
    rate = alpha, span, com, halflife
    backend, x, layout, decay = _resolved(x, axis, rate, times, (adjust, initial, eps))
    return backend.exponential_backward(dy, x, mean, rstd, layout, decay, out)


def exponential_norm_step(
    x: Input[Array],
    alpha: Number | None = None,
    state: ExponentialState | None = None,
    *,
    span: Number | None = None,
    com: Number | None = None,
    halflife: Number | Duration | None = None,
    times: ArrayLike | None = None,
    axis: Integer = -1,
    adjust: bool = True,
    eps: Number = 1e-4,
    out: Any = None,
    where: ArrayLike | bool | None = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
    **others: Never,
) -> tuple[Array, ExponentialState]:
    """Normalize the next chunk of a stream as `exponential_norm` does.

    Parameters
    ----------
    x : array_like
        A chunk of any number of steps, of one shape but for the steps.
    alpha : float, optional
        As for `exponential_norm`.
    state : ExponentialState, optional
        What the call for the previous chunk returned; None for the first one. It can be pickled.
    span, com, halflife, times, axis, adjust, eps, out, where, nan_policy, fill
        As for `exponential_norm`; `times` and `where` are for the chunk.

    Returns
    -------
    y : array
        Of the shape and dtype of x: for all chunks together the same bytes as from one call of
        `exponential_norm`, if `where` or ``nan_policy="omit"`` are given from the first chunk on or
        in none; ``where=True`` keeps all. Given later, they may change the last digit.
    state : ExponentialState
        For the next chunk.

    Raises
    ------
    TypeError, ValueError
        If an argument has an unsupported type or dtype, or a wrong shape or value.

    Notes
    -----
    There is no `initial`: its first step needs steps that are still to come.

    Examples
    --------
    >>> import numnorm
    >>> y, state = numnorm.exponential_norm_step([1.0, 3.0], 0.5)
    >>> y, state = numnorm.exponential_norm_step([3.0], 0.5, state)
    >>> y.round(3)
    array([0.686])
    """
    if others:
        raise unexpected(exponential_norm_step, others)
    if where is not None or nan_policy != "propagate" or fill is not None:
        x = weighted_input(of_steps, x, axis, where, None, nan_policy, fill)
    if state is not None and not isinstance(state, ExponentialState):
        raise TypeError(f"state must be an ExponentialState, got {type(state).__name__}")
    rate, before = (alpha, span, com, halflife), None if state is None else state.time
    # A state that saw no step has no time, either.
    if (times is None and before is not None) or (
        times is not None and before is None and state is not None and _has_steps(state)
    ):
        raise ValueError("times must be given for all chunks of a stream, or for none")
    backend, x, layout, decay = _resolved(x, axis, rate, times, (adjust, 0, eps), before)
    results, after = backend.exponential_step(x, state, layout, decay, out, False)
    if times is not None:
        after = after._replace(time=last_time(times, before))
    return results[0], after


def _has_steps(state: ExponentialState) -> bool:
    return bool(np.any(as_plain_array("state.weight", state.weight) != 0))


def decay_of(alpha: Any, adjust: Any, initial: Any, eps: Any) -> Decay:
    """Return the checked weights."""
    number = check_number("alpha", alpha, above=0.0, most=1.0)
    first = check_integer("initial", initial, 0)
    return decay_by(number, check_flag("adjust", adjust), first, check_eps(eps))


def _resolved(
    x: Any,
    axis: Any,
    rate: tuple[Any, ...],
    times: Any,
    options: tuple[Any, ...],
    before: Any = None,
) -> tuple[MovingBackend, Any, MovingLayout, Decay]:
    """Return the backend of x, x in a float dtype, its sequences and the weights.

    `before` is the time of the step before the first one.
    """
    if times is None:
        return resolve_moving(x, axis, _decay, (*rate, *options))
    *others, halflife = rate
    if halflife is None or others != [None] * 3:
        raise ValueError("halflife alone must be given with times, not alpha, span or com")
    backend, x, layout = resolve_timed("exponential_norm", x, axis)
    decay = decay_of(1.0, *options)  # a rate that passes the checks, and has no meaning
    times = checked_times(times, layout.steps)
    fading = fading_by(times, halflife, before, gone=not decay.adjust)
    return backend, x, layout, dataclasses.replace(decay, fading=fading)


def _decay(
    alpha: Any, span: Any, com: Any, halflife: Any, adjust: Any, initial: Any, eps: Any
) -> Decay:
    """Return the checked weights, whose rate one of four numbers gives."""
    rates = {"alpha": alpha, "span": span, "com": com, "halflife": halflife}
    given = [name for name, value in rates.items() if value is not None]
    if len(given) != 1:
        got = " and ".join(given) or "none of them"
        raise ValueError(f"exactly one of {', '.join(rates)} must be given, got {got}")
    if span is not None:
        alpha = 2.0 / (check_number("span", span, least=1.0) + 1.0)
    elif com is not None:
        alpha = 1.0 / (1.0 + check_number("com", com, least=0.0))
    elif halflife is not None:
        number = check_number("halflife", halflife, above=0.0)
        alpha = -math.expm1(-math.log(2.0) / number)
    return decay_of(alpha, adjust, initial, eps)


SPEC = NormSpec(
    exponential_norm,
    exponential_norm_forward,
    exponential_norm_backward,
    step=exponential_norm_step,
    family="decay",
    counts=of_steps,
    example=Example(
        "[[1.0, 3.0, 3.0]]",
        "0.5",
        "[[0.     1.2247 0.6857]]",
        "[[ 0.     -0.7522  0.7522]]",
    ),
)
