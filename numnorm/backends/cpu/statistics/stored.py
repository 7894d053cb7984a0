"""Statistics that the caller stores: running statistics of batch norm, saved ones of rows.

Loops over the channels are compiled: NumPy would need a call for every operation. For a small batch
these calls take longer than the work on its elements.
"""

import functools
import math
from typing import Any

import numpy as np

from numnorm.arguments import check_float, check_shape
from numnorm.array_likes import as_plain_array, check_on_host, check_writable, writable_view
from numnorm.backends.contract.norms import SMALLEST_VARIANCE
from numnorm.backends.cpu.compiler.jit import Function, inlined, make_function
from numnorm.backends.cpu.memory.host_arrays import Array, as_statistic
from numnorm.backends.cpu.memory.kernel_arrays import window
from numnorm.backends.cpu.simd.element_type import element_type_of
from numnorm.backends.cpu.statistics.saved import FAR, MOST_LOST, make_sum_of_deviations
from numnorm.backends.formulas.norms import moved
from numnorm.layouts import ColumnLayout, RowLayout

# Loops over channels


_moved = inlined(moved)

# Weights of the sum 1, the commonest, may add up to a little more: W - 1 is rounding then.
_ROUNDED_UP = 1.0 + 1e-9


@inlined
def fill_reciprocal_deviations(m2: Any, divisor: float, eps: float, rstd: Any) -> bool:
    """Store ``1 / sqrt(m2 / divisor + eps)`` of each channel in `rstd`.

    It is 0 if the sum under the root is 0, NaN if it is negative, infinite, or so small that the
    squares in m2 have lost digits. Return whether any m2 is negative.
    """
    negative = 0
    for c in range(rstd.size):
        variance = np.float64(m2[c]) / divisor
        total = variance + eps
        lost = (m2[c] > 0.0) & (total < SMALLEST_VARIANCE)
        outside = lost | (total < 0.0) | (total == np.inf)
        reciprocal = 1.0 / math.sqrt(1.0 if outside | (total == 0.0) else total)
        rstd[c] = 0.0 if total == 0.0 else (np.nan if outside else reciprocal)
        negative += 1 if m2[c] < 0.0 else 0
    return negative > 0


@inlined
def _move(running: Any, new: Any, divisor: float, momentum: float) -> None:
    for c in range(running.size):
        running[c] = _moved(np.float64(running[c]), new[c] / divisor, momentum)


def make_moving_averages() -> Function:
    """Return the kernel ``(running_mean, running_var, mean, m2, divisor, momentum)``.

    It moves both running statistics towards the mean and the variance, m2 / divisor, of a new
    batch, whose weight is `momentum`.
    """

    def kernel(running_mean, running_var, mean, m2, divisor, momentum):
        _move(running_mean, mean, 1.0, momentum)
        _move(running_var, m2, divisor, momentum)

    return make_function("stored_statistics.moving_averages", kernel)


def make_counted_averages() -> Function:
    """Return the kernel of `update_counted`.

    Its arguments are ``running_mean, running_var, mean, variance, total, correction, momentum``. It
    moves running statistics of channels of which each has a `total` weight: the mean if that is
    not 0, the variance if it is more than the correction, and then multiplied by
    ``total / (total - correction)``.
    """
    rounded_up = _ROUNDED_UP

    def kernel(running_mean, running_var, mean, variance, total, correction, momentum):
        for c in range(mean.size):
            weight = total[c]
            if weight > 0.0:
                running_mean[c] = _moved(np.float64(running_mean[c]), mean[c], momentum)
            if weight > correction[c] * rounded_up and weight > 0.0:
                unbiased = variance[c] * (weight / (weight - correction[c]))
                running_var[c] = _moved(np.float64(running_var[c]), unbiased, momentum)

    return make_function("stored_statistics.counted_averages", kernel)


def make_restored_means() -> Function:
    """Return the kernel ``(x, inner, sums, table)`` of `restore_means`.

    The array x of float64 is flat; its channels have `inner` contiguous elements. The `sums` of the
    channels are 0 at first.
    """
    sum_of_deviations = make_sum_of_deviations(element_type_of(np.dtype(np.float64)))
    far, most_lost = FAR, MOST_LOST

    def kernel(x, inner, sums, table):
        scale, mean, rstd, mean_lo = table[0], table[1], table[2], table[3]
        channels = sums.size
        for j in range(0, x.size, channels * inner):
            for c in range(channels):
                if inner == 1:
                    sums[c] += x[j + c] * scale[c] - mean[c]
                else:
                    values = window(x, j + c * inner, inner)
                    sums[c] += sum_of_deviations(values, scale[c], mean[c])
        for c in range(channels):
            lost = sums[c] / (x.size // channels)
            # A channel near 0 keeps its mean, whatever other channels are.
            if abs(mean[c]) * rstd[c] > far and abs(lost) <= most_lost * abs(mean[c]):
                mean_lo[c] = lost

    return make_function("stored_statistics.restored_means", kernel)


# The caller's arrays


_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
_SHARED = "running_var must not share memory with running_mean, got such an array"

moving_averages = functools.cache(make_moving_averages)
_counted_averages = functools.cache(make_counted_averages)
_restored_means = functools.cache(make_restored_means)


def reciprocal(name: str, value: Any, x: Array, layout: RowLayout) -> Array:
    """Return the reciprocal of a saved statistic of each row of x, 0 for 0, NaN for infinity."""
    values = as_statistic(name, value, layout.statistic_shape, "one for each row")
    with np.errstate(all="ignore"):
        inverse = np.where(values == 0, 0.0, 1 / np.where(values == np.inf, np.nan, values))
    return inverse.reshape(layout.statistic_shape)


def restore_means(x: Array, layout: ColumnLayout, table: Array) -> None:
    """Store as `mean_lo` of each channel what rounding its saved mean to float64 lost.

    The first rows of `table` are scale, mean_hi, rstd and mean_lo, as `make_centre_coefficients`
    makes them. A mean that the caller changed stays as it is.
    """
    _restored_means()(x.reshape(-1), layout.inner, np.zeros(layout.channels), table)


def saved(statistic: Array, x: Array) -> Array:
    """Return a copy of a statistic in the dtype in which statistics of x are returned."""
    with np.errstate(all="ignore"):  # running statistics may leave the range of float32
        return np.array(statistic, element_type_of(x.dtype).saved)


def running_statistics(
    mean: Any, variance: Any, x: Array, layout: ColumnLayout, update: bool
) -> tuple[Array, Array]:
    """Check and return the running statistics: the caller's own arrays if they will be updated."""
    shape = (layout.channels,)
    if _is_usual(mean, shape) and _is_usual(variance, shape):
        if update and share_memory(mean, variance):
            raise ValueError(_SHARED)
        return mean, variance
    given = {"running_mean": mean, "running_var": variance}
    for name, value in given.items():
        given[name] = _updatable(name, value) if update else _float_array(name, value)
    for name in given:
        if given[name].shape != shape:
            check_shape(name, given[name].shape, shape, "the channels of x")
        if not update and not _is_usual(given[name], shape):
            given[name] = np.array(given[name], np.float64, order="C")
    mean, variance = given["running_mean"], given["running_var"]
    if update and share_memory(mean, variance):
        raise ValueError(_SHARED)
    return mean, variance


def _is_usual(value: Any, shape: tuple[int]) -> bool:
    """Return whether kernels can read and write an array without a copy."""
    if type(value) is not np.ndarray or value.shape != shape:
        return False
    dtype = value.dtype
    return (dtype is _FLOAT32 or dtype is _FLOAT64) and value.flags.carray


def _updatable(name: str, value: Any) -> Array:
    """Return running statistics in memory that will be updated."""
    array = writable_view(name, value)
    check_updatable(name, array)
    return _float_array(name, array)


def _float_array(name: str, value: Any) -> Array:
    array = as_plain_array(name, value)
    check_float(name, array.dtype)
    return array


def step_statistics(name: str, value: Any, x: Array, update: bool) -> Array:
    """Return running statistics of any shape: the caller's own array if they will be updated."""
    return _updatable(name, value) if update else _float_array(name, value)


def share_memory(one: Array, other: Array) -> bool:
    """Return whether two arrays share memory."""
    if one is not other and one.flags.owndata and other.flags.owndata:
        return False  # NumPy would take longer for this answer
    return np.shares_memory(one, other)


def check_updatable(name: str, array: Any) -> None:
    """Raise unless running statistics can be updated in place."""
    if not isinstance(array, np.ndarray):
        check_on_host(name, array)
        raise TypeError(f"{name} must be an array to be updated, got {type(array).__name__}")
    if array.dtype.kind in "biu":
        raise TypeError(f"{name} must have a float dtype to be updated, got {array.dtype}")
    check_writable(name, array, " to be updated")


def update_running(
    running: tuple[Array, Array], mean: Array, m2: Array, divisor: float, momentum: float
) -> None:
    """Move a running mean and variance towards the mean and m2 / divisor of a new batch."""
    usual = _as_usual(running, mean.shape)
    moving_averages()(*usual, mean, m2, divisor, momentum)
    _write_back(usual, running)


def update_counted(
    running: tuple[Array, Array],
    mean: Array,
    variance: Array,
    total: Array,
    correction: Any,
    momentum: float,
) -> None:
    """Move a running mean and variance as `make_counted_averages` says.

    The correction is one number, or one for each channel.
    """
    correction = np.full(mean.shape, correction, np.float64)
    usual = _as_usual(running, mean.shape)
    _counted_averages()(*usual, mean, variance, total, correction, momentum)
    _write_back(usual, running)


def _as_usual(running: tuple[Array, Array], shape: tuple[int]) -> list[Array]:
    return [a if _is_usual(a, shape) else a.astype(np.float64) for a in running]


def _write_back(usual: list[Array], running: tuple[Array, Array]) -> None:
    for array, new in zip(running, usual, strict=True):
        if new is not array:
            with np.errstate(all="ignore"):  # a variance may leave the range of float32
                array[...] = new
