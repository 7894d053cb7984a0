"""The stored statistics of batch and weight norm: a handful of numbers, worked on by NumPy."""

import math
from typing import Any

import numpy as np

from numnorm.arguments import ColumnLayout, RowLayout, as_plain_array, check_float, check_shape
from numnorm.backends.cpu.arrays import Array, as_statistic
from numnorm.backends.cpu.storage import storage_of

# Below this a float64 number has lost digits of its squares.
_SMALLEST_VARIANCE = 1e-290


def reciprocal(name: str, value: Any, x: Array, layout: RowLayout) -> Array:
    """Return 1 over a saved statistic of each row of x, and 0 for 0."""
    values = as_statistic(name, value, layout.statistic_shape, "one for each row")
    with np.errstate(divide="ignore", over="ignore"):
        found = np.where(values == 0, 0.0, 1 / values)
    return found.reshape(layout.statistic_shape)


def reciprocal_deviation(variance: Any, eps: float) -> Array:
    """Return 1 / sqrt(variance + eps): 0 for a division by 0, NaN outside the range of float64."""
    variance = np.asarray(variance, np.float64)
    total = variance + eps
    if total.size and total.min() >= _SMALLEST_VARIANCE and total.max() < math.inf:
        return np.asarray(1.0 / np.sqrt(total))
    with np.errstate(divide="ignore", invalid="ignore"):
        rstd = 1.0 / np.sqrt(total)
    rstd[total == 0.0] = 0.0
    rstd[(total == math.inf) | ((variance > 0.0) & (total < _SMALLEST_VARIANCE))] = math.nan
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
        array = given[name] = as_plain_array(name, value)
        check_shape(name, array.shape, (layout.channels,), "the channels of x")
        check_float(name, array.dtype)
    if update and np.shares_memory(mean, variance):
        raise ValueError("running_var must not share memory with running_mean, got such an array")
    return given["running_mean"], given["running_var"]


def check_updatable(name: str, array: Any) -> None:
    """Raise unless running statistics can be updated in place."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{name} must be an array to be updated, got {type(array).__name__}")
    if array.dtype.kind in "biu":
        raise TypeError(f"{name} must have a float dtype to be updated, got {array.dtype}")
    if not array.flags.writeable:
        raise ValueError(f"{name} must be writable to be updated, got a read-only array")


def update_running(running: Array, new: Array, share: float) -> None:
    """Move running statistics towards those of a new batch by its share."""
    moved = running.astype(np.float64)
    moved *= 1.0 - share
    moved += new * share
    running[...] = moved
