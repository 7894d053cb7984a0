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

# Differences of times, and twice these, are whole numbers of 64 bits.
_MOST_SPAN = 2**61


def resolve_timed(norm: str, x: Any, axis: Any) -> tuple[Any, Any, MovingLayout]:
    """Return the backend of x, x in a float dtype, and its sequences, for a call with times."""
    check_norm_on_host(f"times of {norm}", x.x if isinstance(x, WeightedInput) else x)
    backend, x = backend_for(x, "x")
    return backend, x, moving_layout(x.shape, axis)


def checked_times(times: Any, steps: int) -> Any:
    """Return the times of the steps as an array of datetime64, timedelta64, int64 or float64."""
    array = as_plain_array("times", times)
    kind = array.dtype.kind
    if kind == "u" and array.size and array.max() >= 2**63:
        raise ValueError(f"times must be below 2**63, got {array.max()}")
    if kind in "biu":
        array = array.astype(np.int64)
    elif kind == "f":
        array = array.astype(np.float64)
    elif kind not in "mM":
        got = f"got dtype {array.dtype.name}"
        if array.dtype == object and hasattr(times, "to_numpy"):
            got += ": of pandas, without a time zone or as timestamps, as in times.tz_convert(None)"
        raise TypeError(f"times must be numbers, datetime64 or timedelta64, {got}")
    if kind in "mM" and np.datetime_data(array.dtype)[0] in ("Y", "M"):
        if kind == "m":
            raise TypeError(f"times must have a unit of a fixed length, got {array.dtype}")
        array = array.astype("M8[D]")
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
    if before is None or not len(before):
        return array
    _check_follows(array, before[-1:])
    return np.concatenate((before, array))


def _check_follows(times: Any, before: Any) -> None:
    """Raise unless times have the kind of a time before them, and do not come before it."""
    kinds = [array.dtype.kind.replace("i", "f") for array in (times, before)]
    if kinds[0] != kinds[1]:
        raise TypeError(f"times must be {before.dtype} like the state's times, got {times.dtype}")
    if times.size and times[0] < before[0]:
        raise ValueError(f"times must not be before the last time of the state, {before[0]}")


def in_one_unit(name: str, duration: Any, times: Any) -> tuple[Any, Any]:
    """Return times and a duration above 0 as numbers of one unit.

    Whole times become whole numbers from the first time on, so that differences are exact.
    """
    if times.dtype == np.float64:
        numbers, number = times, checked_duration(name, duration, times)
    else:
        length, factor = checked_duration(name, duration, times), 1
        if times.dtype.kind in "mM":
            length, factor = _in_common_unit(name, length, times)
        whole = times.view(np.int64)
        if whole.size and (int(whole[-1]) - int(whole[0])) * factor >= _MOST_SPAN:
            raise ValueError(f"times must span less than 2**61 units of {name}")
        numbers, number = (whole - whole[:1]) * factor, length
        if isinstance(number, float) and number.is_integer():
            number = int(number)
    return numbers, number


def checked_duration(name: str, duration: Any, times: Any) -> Any:
    """Return a duration above 0: a timedelta64 if times are datetime64 or timedelta64."""
    if times.dtype.kind in "mM":
        length = _timedelta(name, duration)
        if length.astype(np.int64) <= 0:
            raise ValueError(f"{name} must be above 0, got {length}")
        return length
    if isinstance(duration, np.timedelta64 | datetime.timedelta):
        raise TypeError(f"{name} must be a number, as times are, got {brief(duration)}")
    return check_number(name, duration, above=0.0)


def _in_common_unit(name: str, length: Any, times: Any) -> tuple[int, int]:
    """Return a duration as a number of units, and how many of these a unit of times has."""
    unit = np.dtype(f"m8[{''.join(map(str, reversed(np.datetime_data(times.dtype))))}]")
    try:
        common = np.promote_types(unit, length.dtype)
    except (OverflowError, TypeError):
        raise ValueError(f"{name} must have a unit nearer to that of times, {unit}") from None
    factor, own = (
        int(np.ones(1, kind).astype(common).view(np.int64)[0]) for kind in (unit, length.dtype)
    )
    return int(length.astype(np.int64)) * own, factor


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
    if numbers.dtype == np.int64:
        if isinstance(length, float):  # no step lies at such an end
            length, left, right = math.floor(length), True, right or center
        length = min(length, 2 * _MOST_SPAN)
    passed = numbers[-1:] - numbers
    later = int(np.count_nonzero(passed > length if left else passed >= length))
    if center:
        numbers = 2 * numbers  # so that half a window is whole
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
        first = np.asarray([before])
        _check_follows(times, first)
        times = np.concatenate((first, times))
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
