"""The times of steps: windows that last a duration, and weights that fade with time.

Times of ``datetime64`` and ``timedelta64`` are counted in whole units, so nothing is rounded.
"""

from __future__ import annotations

import datetime
import math
from typing import Any, get_args

import numpy as np

from numnorm.arguments import brief, check_choice, check_number
from numnorm.array_likes import as_plain_array, check_norm_on_host
from numnorm.array_types import Closed
from numnorm.backends import backend_for, backend_of
from numnorm.backends.contract.moving import Bounds
from numnorm.backends.contract.weighting import WeightedInput
from numnorm.layouts import MovingLayout, moving_layout

CLOSED = get_args(Closed)


def resolve_timed(norm: str, x: Any, axis: Any) -> tuple[Any, Any, MovingLayout]:
    """Return the backend of x, x in a float dtype, and its sequences, for a call with times."""
    check_norm_on_host(f"times of {norm}", x.x if isinstance(x, WeightedInput) else x)
    backend, x = backend_for(x, "x")
    return backend, x, moving_layout(x.shape, axis)


def checked_times(times: Any, steps: int) -> Any:
    """Return the times of the steps as an array of datetime64, timedelta64, int64 or float64."""
    array = as_plain_array("times", times)
    if array.dtype.kind in "biu":
        array = array.astype(np.int64)
    elif array.dtype.kind == "f":
        array = array.astype(np.float64)
    elif array.dtype.kind not in "mM":
        got = f"got dtype {array.dtype.name}"
        raise TypeError(f"times must be numbers, datetime64 or timedelta64, {got}")
    if array.shape != (steps,):
        raise ValueError(f"times must have shape {(steps,)}, the steps of x, got {array.shape}")
    known = np.isfinite(array)
    if not known.all():
        raise ValueError(f"times must be finite, got {array[~known][0]}")
    back = array[1:] < array[:-1]
    if back.any():
        step = int(back.argmax()) + 1
        raise ValueError(f"times must not decrease, got a step back at step {step}")
    return array


def joined_times(times: Any, steps: int, before: Any) -> Any:
    """Return the checked times of the steps, behind those of a state if there are any."""
    array = checked_times(times, steps)
    if before is None:
        return array
    if array.size and len(before) and array[0] < before[-1]:
        raise ValueError(f"times must not be before those of the state, {before[-1]}")
    return np.concatenate((before, array))


def in_one_unit(name: str, duration: Any, times: Any) -> tuple[Any, Any]:
    """Return times and a duration above 0 as numbers of one unit, whole where both are whole."""
    if times.dtype.kind in "mM":
        length = _timedelta(name, duration)
        unit = np.dtype(f"m8[{''.join(map(str, reversed(np.datetime_data(times.dtype))))}]")
        common = np.promote_types(unit, length.dtype)
        kind = common.str.replace("m8", f"{times.dtype.kind}8")
        numbers = times.astype(kind, copy=False).view(np.int64)
        number: float = int(length.astype(common).astype(np.int64))
    else:
        if isinstance(duration, np.timedelta64 | datetime.timedelta):
            raise TypeError(f"{name} must be a number, as times are, got {brief(duration)}")
        numbers, number = times, check_number(name, duration)
        if numbers.dtype == np.int64 and number.is_integer():
            number = int(number)
    if number <= 0:
        raise ValueError(f"{name} must be above 0, got {number}")
    return numbers, number


def _timedelta(name: str, duration: Any) -> Any:
    """Return a duration as a timedelta64 of a fixed length."""
    if hasattr(duration, "to_timedelta64"):  # of pandas, with its nanoseconds
        duration = duration.to_timedelta64()
    if isinstance(duration, datetime.timedelta):
        duration = np.timedelta64(duration)
    expected = "a timedelta64 or timedelta, as times are datetime64"
    if not isinstance(duration, np.timedelta64):
        hint = ": np.timedelta64(7, 'D') is 7 days" if isinstance(duration, str) else ""
        raise TypeError(f"{name} must be {expected}, got {brief(duration)}{hint}")
    if np.isnat(duration) or np.datetime_data(duration.dtype)[0] in ("Y", "M", "generic"):
        raise ValueError(f"{name} must be {expected}, of a fixed length, got {duration!r}")
    return duration


# Windows


def window_bounds(times: Any, window: Any, closed: Any, *, center: bool) -> Bounds:
    """Return the windows of steps: those of ``rolling`` of pandas.

    Parameters
    ----------
    times : array
        As `checked_times` returns them.
    window : number or timedelta
        The duration of a window.
    closed : str
        One of `CLOSED`: which ends of a window belong to it.
    center : bool
        Whether the windows lie around their steps, or else end with them. Those that end with a
        step hold no step after it, even of the same time.
    """
    check_choice("closed", closed, CLOSED)
    numbers, length = in_one_unit("window", window, times)
    left, right = closed in ("left", "both"), closed in ("right", "both")
    side: Any = "left" if left else "right"
    later = int(np.searchsorted(numbers, numbers[-1] - length, side)) if numbers.size else 0
    if center:
        # Twice all times, so that half a window is whole; whole ones from 0 on.
        numbers = 2 * (numbers - numbers[:1] if numbers.dtype == np.int64 else numbers)
    if isinstance(length, float):
        numbers = numbers.astype(np.float64, copy=False)
    cpu: Any = backend_of(np.ndarray)
    return Bounds(cpu.window_bounds(numbers, length, (left, right), center), later)


# Weights that fade


def last_time(times: Any, before: Any) -> Any:
    """Return the time of the last step of a chunk, or that before the chunk if it has no steps."""
    array = as_plain_array("times", times)
    return array[-1] if array.size else before


def fading_by(times: Any, halflife: Any, before: Any, *, gone: bool) -> Any:
    """Return the factor by which each step reduces older weights, and after all 1 less each factor.

    Parameters
    ----------
    times : array
        As `checked_times` returns them.
    halflife : number or timedelta
        The time in which a weight fades to its half.
    before : scalar or None
        The time of the step before the first one; None if there is none.
    gone : bool
        Whether the second half is needed; otherwise it is left empty.
    """
    if before is not None:
        if times.size and times[0] < before:
            raise ValueError(f"times must not be before those of the state, {before}")
        times = np.concatenate((np.asarray([before]), times))
    numbers, half = in_one_unit("halflife", halflife, times)
    passed = np.diff(numbers, prepend=numbers[:1]) / half
    if before is not None:
        passed = passed[1:]
    fading = np.empty(2 * passed.size)
    left, lost = fading[: passed.size], fading[passed.size :]
    with np.errstate(under="ignore"):
        np.exp2(np.negative(passed, out=passed), out=left)
        if gone:
            np.negative(np.expm1(math.log(2.0) * passed), out=lost)
    return fading
