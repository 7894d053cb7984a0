"""Moving normalization: each step by the statistics of a window around it or before it."""

from __future__ import annotations

import dataclasses
from sys import modules
from typing import Any, Never

from numnorm.arguments import brief, check_eps, check_flag, check_integer
from numnorm.array_likes import any_lazy, as_plain_array, lazily
from numnorm.array_types import (
    Array,
    ArrayLike,
    Closed,
    Duration,
    Input,
    Integer,
    NanPolicy,
    Number,
)
from numnorm.backends.contract.moving import MovingBackend, MovingState, Windows, windows_by
from numnorm.keywords import unexpected
from numnorm.layouts import MovingLayout
from numnorm.norms.axes import resolve_moving
from numnorm.norms.results import Normalized
from numnorm.norms.spec import Example, NormSpec
from numnorm.norms.times import checked_duration, joined_times, resolve_timed, window_bounds
from numnorm.norms.weighted import of_steps, weighted_input


def moving_norm(
    x: Input[Array],
    window: Integer | Number | Duration,
    *,
    times: ArrayLike | None = None,
    closed: Closed = "right",
    axis: Integer = -1,
    center: bool = False,
    min_window: Integer = 1,
    subtract_mean: bool = True,
    with_std: bool = True,
    eps: Number = 0.0,
    out: Any = None,
    where: ArrayLike | bool | None = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
    **others: Never,
) -> Array:
    r"""Normalize each step by the mean and the deviation of a window of steps.

    .. math:: y_t = \frac{x_t - \mu_t}{\sqrt{\sigma_t^2 + \epsilon}}

    with the mean and the biased variance of the window of step t along `axis`; each sequence along
    it is a channel of its own. In speech this is sliding-window CMVN.

    Parameters
    ----------
    x : array_like
        Any shape; float16, bfloat16, float32 or float64. Integers and bool become float64.
        An array that is not C-contiguous is copied once.
        An array of Dask, in any chunks, gives a lazy result.
    window : int, or float or timedelta
        The number of steps of a window. If x is shorter, the window is all of x. With `times`, the
        duration of a window, above 0: a number, or ``timedelta64`` or ``timedelta``.
    times : array_like, optional
        The times of the steps, where these are irregular: one for each step, none before the one
        before it; numbers, or ``datetime64``. The windows are then those of ``rolling`` of pandas.
    closed : {"right", "left", "both", "neither"}, default "right"
        Which ends of a window by duration belong to it. A trailing window that is closed at the
        right holds its own step, and never a step after it, even of the same time; another one
        holds what is before the time of its step. A step whose window holds no step gives NaN.
    axis : int, default -1
        The axis of time. A table with time in rows, as of pandas, needs 0, and features of Kaldi
        and torchaudio, (..., time, frequency), need -2.
    center : bool, default False
        Whether the window of step t begins with step ``t - window // 2``, or else ends with t.
        Near the ends of x a centred window moves inwards and keeps its length. With `times` it
        lasts half of its duration before its step and half behind it, also near the ends.
    min_window : int, default 1
        The least number of steps of a trailing window. The first steps share the first window
        of that length, which then also holds steps after them. Steps that `where` leaves out are
        steps, too: pandas' ``min_periods`` counts values. With `times` it stays 1.
    subtract_mean : bool, default True
        Whether to subtract the mean. Without it, x is divided by the root mean square of the
        window, as `rms_norm` does: an automatic gain control.
    with_std : bool, default True
        Whether to divide. Without it, only the mean is subtracted: sliding-window CMN.
    eps : float, default 0
        Added to the variance. The default suits data of any unit, and lifts a window of nothing
        but tiny noise to a deviation of 1. Kaldi's variance is at least 1e-10.
    out : array, optional
        Where to write the result, an array of its shape and dtype. It may be `x` itself.
    where : array_like of bool, or of 0 and 1, optional
        Which steps count; it broadcasts against x. The others get `fill`, whatever they are.
    nan_policy : {"propagate", "omit", "raise"}
        What to do with NaN: make the windows that hold it NaN, leave it out as `where` does, or
        raise an error.
    fill : float, optional
        The result of what is left out. Default: 0 where `where` is false, and NaN for NaN.

    Returns
    -------
    array
        Of the shape and dtype of x. A constant window and a window of one step give 0.

    Raises
    ------
    TypeError, ValueError
        If an argument has an unsupported type or dtype, or a wrong shape or value.

    See Also
    --------
    moving_norm_step : The same for a stream in chunks.
    exponential_norm : Statistics in which old steps fade.

    Notes
    -----
    The windows are as in ``apply-cmvn-sliding`` of Kaldi and ``sliding_window_cmn`` of
    torchaudio, with two differences. Their trailing windows hold one step more: for their
    ``cmn_window=600`` pass 601. And they divide by the deviation only if asked to
    (``norm_vars``), and by default use a `min_window` of 100.

    The sums of a window are taken around one of its own values and nothing is ever subtracted
    from them. So the result is as exact at an offset of 1e7 as at 0, does not drift, and a NaN, an
    infinity or an outlier changes only the windows that hold it. The time does not depend on the
    window. Squares of deviations, and their sums, are float64: deviations beyond 1e150 may
    overflow, those below 1e-150 lose digits, and those below 1e-154 count as 0.

    Examples
    --------
    >>> import numnorm
    >>> numnorm.moving_norm([1.0, 3.0, 5.0, 5.0, 5.0], 2)
    array([0., 1., 1., 0., 0.])
    >>> numnorm.moving_norm([0.0, 3.0, 0.0, 6.0], 3, center=True, with_std=False)
    array([-1.,  2., -3.,  3.])
    >>> numnorm.moving_norm([1.0, 3.0, 99.0, 5.0], 3, where=[True, True, False, True])
    array([0., 1., 0., 1.])
    >>> numnorm.moving_norm([1.0, 3.0, 5.0, 5.0], 2.0, times=[0.0, 1.0, 10.0, 11.5])
    array([0., 1., 0., 0.])
    """
    if others:
        raise unexpected(moving_norm, others)
    if "dask" in modules and any_lazy(x, where):
        return lazily(moving_norm, locals())
    if where is not None or nan_policy != "propagate" or fill is not None:
        x = weighted_input(of_steps, x, axis, where, None, nan_policy, fill)
    options = window, center, min_window, subtract_mean, with_std, eps
    backend, x, layout, windows, _ = _resolved(x, axis, options, times, closed)
    return backend.moving_forward(x, layout, windows, out, False)[0]


def moving_norm_forward(
    x: Input[Array],
    window: Integer | Number | Duration,
    *,
    times: ArrayLike | None = None,
    closed: Closed = "right",
    axis: Integer = -1,
    center: bool = False,
    min_window: Integer = 1,
    subtract_mean: bool = True,
    with_std: bool = True,
    eps: Number = 0.0,
    out: Any = None,
    where: ArrayLike | bool | None = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
    **others: Never,
) -> Normalized[Array]:
    """Return `moving_norm` together with the statistics that its backward pass needs.

    Parameters
    ----------
    x, window, times, closed, axis, center, min_window
        As for `moving_norm`.
    subtract_mean, with_std, eps, out, where, nan_policy, fill
        As for `moving_norm`.

    Returns
    -------
    Normalized
        ``(y, mean, rstd)``, all of the shape of x. A mean that is not subtracted is 0, and without
        `with_std` rstd is 1. Both are NaN for windows in which no step counts.

    Examples
    --------
    >>> import numnorm
    >>> numnorm.moving_norm_forward([1.0, 3.0, 5.0], 2, eps=0).mean
    array([1., 2., 4.])
    """
    if others:
        raise unexpected(moving_norm_forward, others)
    if "dask" in modules and any_lazy(x, where):
        return lazily(moving_norm_forward, locals())
    if where is not None or nan_policy != "propagate" or fill is not None:
        x = weighted_input(of_steps, x, axis, where, None, nan_policy, fill)
    options = window, center, min_window, subtract_mean, with_std, eps
    backend, x, layout, windows, _ = _resolved(x, axis, options, times, closed)
    return Normalized(*backend.moving_forward(x, layout, windows, out, True))


def moving_norm_backward(
    dy: ArrayLike,
    x: Input[Array],
    mean: ArrayLike,
    rstd: ArrayLike,
    window: Integer | Number | Duration,
    *,
    times: ArrayLike | None = None,
    closed: Closed = "right",
    axis: Integer = -1,
    center: bool = False,
    min_window: Integer = 1,
    subtract_mean: bool = True,
    with_std: bool = True,
    out: Any = None,
    where: ArrayLike | bool | None = None,
    nan_policy: NanPolicy = "propagate",
    **others: Never,
) -> Array:
    r"""Return the gradient of `moving_norm` with respect to x.

    .. math:: dx_s = r_s \, dy_s - \sum_t \frac{r_t \, dy_t}{n_t}
        \left(1 + (x_t - \mu_t) (x_s - \mu_t) r_t^2 \right)

    over the windows t that hold step s, of :math:`n_t` steps each, with :math:`r_t` = rstd.

    Parameters
    ----------
    dy : array_like
        The gradient of the loss with respect to y, of the shape of x and any float dtype.
    x : array_like
        The input of the forward pass, with the values that it had then.
    mean, rstd : array_like
        As `moving_norm_forward` returned them.
    window, times, closed, axis, center, min_window, subtract_mean, with_std
        As in the forward pass.
    out : array, optional
        Where to write dx; it may be `dy` or `x`.
    where, nan_policy
        As in the forward pass. What was left out passes no gradient.

    Returns
    -------
    array
        dx, of the shape and dtype of x.

    Raises
    ------
    TypeError, ValueError
        As `moving_norm` does.

    Examples
    --------
    >>> import numnorm
    >>> x = [1.0, 3.0, 5.0, 9.0]
    >>> y, mean, rstd = numnorm.moving_norm_forward(x, 2, with_std=False)
    >>> numnorm.moving_norm_backward([0.0, 1.0, 0.0, 2.0], x, mean, rstd, 2, with_std=False)
    array([-0.5,  0.5, -1. ,  1. ])
    """
    if others:
        raise unexpected(moving_norm_backward, others)
    if "dask" in modules and any_lazy(dy, x, mean, rstd, where):
        return lazily(moving_norm_backward, locals())
    if where is not None or nan_policy != "propagate":
        x = weighted_input(of_steps, x, axis, where, None, nan_policy, None)
    options = window, center, min_window, subtract_mean, with_std, 0.0
    backend, x, layout, windows, _ = _resolved(x, axis, options, times, closed)
    return backend.moving_backward(dy, x, mean, rstd, layout, windows, out)


def moving_norm_step(
    x: Input[Array],
    window: Integer | Number | Duration,
    state: MovingState | None = None,
    *,
    times: ArrayLike | None = None,
    closed: Closed = "right",
    axis: Integer = -1,
    subtract_mean: bool = True,
    with_std: bool = True,
    eps: Number = 0.0,
    out: Any = None,
    where: ArrayLike | bool | None = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
    **others: Never,
) -> tuple[Array, MovingState]:
    """Normalize the next chunk of a stream as `moving_norm` with trailing windows does.

    Parameters
    ----------
    x : array_like
        A chunk of any number of steps, of one dtype and shape but for the steps.
    window : int, or float or timedelta
        As for `moving_norm`, the same for all chunks.
    state : MovingState, optional
        What the call for the previous chunk returned; None for the first one. It can be pickled.
    times, closed, axis, subtract_mean, with_std, eps, out, where, nan_policy, fill
        As for `moving_norm`; `times` and `where` are for the chunk.

    Returns
    -------
    y : array
        Of the shape and dtype of x: for all chunks together the same bytes as from one call of
        `moving_norm`, if `where` or ``nan_policy="omit"`` are given from the first chunk on or in
        none; ``where=True`` keeps all. Given later, they may change the last digit.
    state : MovingState
        For the next chunk.

    Raises
    ------
    TypeError, ValueError
        If an argument has an unsupported type or dtype, or a wrong shape or value.

    Notes
    -----
    There is no `center` and no `min_window`: both look at steps that are still to come. A call
    sums the window before the chunk again, so the time for short chunks grows with the window.

    Examples
    --------
    >>> import numnorm
    >>> y, state = numnorm.moving_norm_step([1.0, 3.0], 2)
    >>> y, state = numnorm.moving_norm_step([5.0, 5.0], 2, state)
    >>> y
    array([1., 0.])
    """
    if others:
        raise unexpected(moving_norm_step, others)
    if where is not None or nan_policy != "propagate" or fill is not None:
        x = weighted_input(of_steps, x, axis, where, None, nan_policy, fill)
    if state is not None and not isinstance(state, MovingState):
        raise TypeError(f"state must be a MovingState, got {type(state).__name__}")
    if state is not None and (state.times is None) != (times is None):
        raise ValueError("times must be given for all chunks of a stream, or for none")
    options = window, False, 1, subtract_mean, with_std, eps
    before = None if state is None else _times_of(state)
    backend, x, layout, windows, joined = _resolved(x, axis, options, times, closed, before)
    if times is None:
        return backend.moving_step(x, state, layout, windows, out)
    own = checked_duration("window", window, joined), closed
    if state is not None and state.window not in (None, own):
        raise ValueError(f"window and closed must stay {state.window} in a stream, got {own}")
    y, after = backend.moving_step(x, state, layout, windows, out)
    return y, after._replace(times=joined[windows.bounds.later :].copy(), window=own)


def _times_of(state: MovingState) -> Any:
    """Return the times of a state as an array; None if it has none."""
    if state.times is None:
        return None
    times = as_plain_array("state.times", state.times)
    if times.ndim != 1 or times.dtype.kind not in "ifmM":
        got = f"shape {times.shape} and dtype {times.dtype.name}"
        raise ValueError(f"state.times must have one time for each value, got {got}")
    return times


def _resolved(
    x: Any, axis: Any, options: tuple[Any, ...], times: Any, closed: Any, before: Any = None
) -> tuple[MovingBackend, Any, MovingLayout, Windows, Any]:
    """Return the backend of x, x in a float dtype, its sequences, the windows, and all times.

    `before` are the times of the steps of a state, which come first; without times both are None.
    """
    if times is None:
        if closed != "right":
            raise ValueError("closed must be 'right' without times")
        return *resolve_moving(x, axis, _windows, options), None
    window, center, min_window, *others = options
    if min_window != 1:
        raise ValueError(f"min_window must be 1 with times, got {brief(min_window)}")
    backend, x, layout = resolve_timed("moving_norm", x, axis)
    joined = joined_times(times, layout.steps, before)
    bounds = window_bounds(joined, window, closed, center=check_flag("center", center))
    # A window of one step passes the checks, and has no meaning.
    windows = dataclasses.replace(_windows(1, False, 1, *others), bounds=bounds)
    return backend, x, layout, windows, joined


def _windows(
    window: Any, center: Any, min_window: Any, subtract_mean: Any, with_std: Any, eps: Any
) -> Windows:
    """Return the checked windows."""
    window = check_integer("window", window, 1)
    least = check_integer("min_window", min_window, 1)
    if least > window:
        raise ValueError(f"min_window must be at most the window, {window}, got {least}")
    centred, scaled = check_flag("subtract_mean", subtract_mean), check_flag("with_std", with_std)
    if not centred and not scaled:
        raise ValueError("subtract_mean and with_std must not both be False")
    around, added = check_flag("center", center), check_eps(eps)
    return windows_by(window, around, least, centred=centred, scaled=scaled, eps=added)


# Data in several parts


def steps_around(
    start: int, stop: int, steps: int, window: int, *, center: bool, backward: bool = False
) -> tuple[int, int]:
    """Return the steps from which the results of a part of them follow, to the bit.

    They begin at a multiple of the window: there lie the anchors of the sums. The windows of the
    part lie in them as they lie in all steps.

    Parameters
    ----------
    start, stop : int
        The part.
    steps : int
        The number of all steps.
    window, center
        As for `moving_norm`.
    backward : bool
        Whether the results are gradients, which all windows that hold a step pass on to it.

    Returns
    -------
    tuple of int
        The first step, and the one after the last.
    """
    window = max(1, min(window, steps))
    before, after = (window // 2, window - 1 - window // 2) if center else (window - 1, 0)
    if backward:
        before = after = window  # not in windows that move inwards at other ends
    first = max(0, min(start - before, steps - window)) // window * window
    return first, min(steps, max(stop + after, first + window))


SPEC = NormSpec(
    moving_norm,
    moving_norm_forward,
    moving_norm_backward,
    step=moving_norm_step,
    family="windows",
    counts=of_steps,
    example=Example(
        "[[1.0, 3.0, 5.0, 7.0]]",
        "3",
        "[[0.     1.     1.2247 1.2247]]",
        "[[ 0.      0.1021 -0.2041  0.1021]]",
    ),
)
