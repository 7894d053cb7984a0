"""The stored statistics of batch and weight norm: a number or two for each channel or vector."""

import functools
from typing import Any

import numpy as np

from numnorm.arguments import (
    ColumnLayout,
    RowLayout,
    as_plain_array,
    check_float,
    check_on_host,
    check_shape,
)
from numnorm.backends.cpu.arrays import Array, as_statistic
from numnorm.backends.cpu.storage import storage_of
from numnorm.backends.cpu.stored_statistics_kernels import (
    make_moving_average,
    make_reciprocal_deviations,
)

_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
_reciprocal_deviations = functools.cache(make_reciprocal_deviations)
_moving_average = functools.cache(make_moving_average)


def reciprocal(name: str, value: Any, x: Array, layout: RowLayout) -> Array:
    """Return 1 over a saved statistic of each row of x, and 0 for 0."""
    values = as_statistic(name, value, layout.statistic_shape, "one for each row")
    with np.errstate(divide="ignore", over="ignore"):
        found = np.where(values == 0, 0.0, 1 / values)
    return found.reshape(layout.statistic_shape)


def reciprocal_deviation(variance: Any, eps: float) -> Array:
    """Return 1 / sqrt(variance + eps): 0 for a division by 0, NaN outside the range of float64."""
    if variance.dtype is not _FLOAT64 or not variance.flags.carray:
        variance = np.array(variance, np.float64, order="C")
    rstd = np.empty(variance.shape)
    _reciprocal_deviations().serial(variance, eps, rstd, 0, variance.size)
    return rstd


def saved(statistic: Array, x: Array) -> Array:
    """Return a new array of the dtype in which the statistics of x are returned."""
    return np.array(statistic, storage_of(x.dtype).saved)


def running_statistics(
    mean: Any, variance: Any, x: Array, layout: ColumnLayout, update: bool
) -> tuple[Array, Array]:
    """Return the running statistics, checked: the caller's own arrays if they will be updated."""
    given = {"running_mean": mean, "running_var": variance}
    if update:
        for name, array in given.items():
            check_updatable(name, array)
    for name, value in given.items():
        if type(value) is not np.ndarray or value.dtype is not _FLOAT32:
            given[name] = _float_array(name, value)
        if given[name].shape != (layout.channels,):
            check_shape(name, given[name].shape, (layout.channels,), "the channels of x")
    if update and np.shares_memory(mean, variance):
        raise ValueError("running_var must not share memory with running_mean, got such an array")
    return given["running_mean"], given["running_var"]


def _float_array(name: str, value: Any) -> Array:
    array = as_plain_array(name, value)
    check_float(name, array.dtype)
    return array


def step_statistics(name: str, value: Any, x: Array, update: bool) -> Array:
    """Return running statistics of any shape: the caller's own array if they will be updated."""
    if update:
        check_updatable(name, value)
    return _float_array(name, value)


def share_memory(one: Array, other: Array) -> bool:
    """Return whether two arrays share memory."""
    return np.shares_memory(one, other)


def check_updatable(name: str, array: Any) -> None:
    """Raise unless running statistics can be updated in place."""
    if not isinstance(array, np.ndarray):
        check_on_host(name, array)
        raise TypeError(f"{name} must be an array to be updated, got {type(array).__name__}")
    if array.dtype.kind in "biu":
        raise TypeError(f"{name} must have a float dtype to be updated, got {array.dtype}")
    if not array.flags.writeable:
        raise ValueError(f"{name} must be writable to be updated, got a read-only array")


def update_running(running: Array, new: Array, share: float) -> None:
    """Move running statistics towards those of a new batch by its share."""
    if running.dtype in (_FLOAT32, _FLOAT64) and running.flags.carray and new.flags.carray:
        _moving_average().serial(running, new, share, 0, running.size)
        return
    moved = running.astype(np.float64)
    _moving_average().serial(moved, np.ascontiguousarray(new), share, 0, moved.size)
    running[...] = moved
