"""Which steps count in moving statistics, and the results of the other steps."""

from typing import Any

import numpy as np

from numnorm.array_likes import check_out
from numnorm.backends.contract.weighting import Weighting
from numnorm.backends.cpu.memory.host_arrays import Array, rounded
from numnorm.backends.cpu.memory.left_out import kept_by
from numnorm.backends.cpu.moving.arrays import given_statistics, in_one_dtype
from numnorm.backends.cpu.simd.element_type import element_type_of

# Vectors are loaded from arrays of floats, so kernels take masks as numbers: 1 for what is kept.
MASK = element_type_of(np.dtype(np.float32))
HALF = 0.5


def as_mask(keep: Array) -> Array:
    """Return a mask as kernels take it."""
    return keep.astype(MASK.storage_dtype, order="C").reshape(-1)


def prepared_gradient(
    weighting: Weighting, dy: Any, x: Array, mean: Any, rstd: Any, axis: int, out: Any
) -> tuple[Array, Array, Array, Array, Array]:
    """Return `keep`, and dy, x, mean and rstd in float64, finite where nothing counts.

    The mean of no value is that of a step nearby, so that its distance from x is small.
    """
    statistics = given_statistics(mean, rstd, x)
    keep = kept_by(weighting, x)
    if out is not None:
        check_out(out, x, "x")
    gradient, x = (a.astype(np.float64, copy=False) for a in in_one_dtype(dy, x))
    mean, rstd = (statistic.reshape(x.shape) for statistic in statistics)
    mean = np.where(keep | ~np.isnan(mean), mean, _nearby(mean, axis))
    rstd = np.where(keep | ~np.isnan(rstd), rstd, 0.0)
    return keep, np.where(keep, gradient, 0.0), np.where(keep, x, mean), mean, rstd


def gradient_of(dx: Array, keep: Array, dtype: Any, out: Any) -> Any:
    """Return dx for the caller: 0 for what does not count."""
    dx[~keep] = 0.0
    return rounded(dx, dtype, out)


def _nearby(values: Array, axis: int) -> Array:
    """Return the last value before each step that is not NaN, or the first one; 0 if all are."""
    if not values.size:
        return values
    known = ~np.isnan(values)
    shape = [-1 if a == axis else 1 for a in range(values.ndim)]
    numbers = np.arange(values.shape[axis]).reshape(shape)
    last = np.maximum.accumulate(np.where(known, numbers, 0), axis=axis)
    first = np.expand_dims(known.argmax(axis=axis), axis)
    nearby = np.take_along_axis(values, np.maximum(last, first), axis)
    return np.nan_to_num(nearby, nan=0.0, posinf=np.inf, neginf=-np.inf)
