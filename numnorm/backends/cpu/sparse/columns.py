"""Moments and scaling of the columns of a sparse matrix: the callers of the kernels."""

import functools

import numpy as np

from numnorm.backends.contract.sparse import Samples, Stored
from numnorm.backends.cpu.columns.moments import Counted, merge_counted
from numnorm.backends.cpu.columns.moments_kernels import SMALLEST_M2
from numnorm.backends.cpu.compiler.parallel import row_parts, run, summed_parts
from numnorm.backends.cpu.memory.host_arrays import Array
from numnorm.backends.cpu.sparse.kernels import (
    make_first_across,
    make_first_along,
    make_plain_sums_along,
    make_scaled_across,
    make_scaled_along,
    make_sums_across,
    make_sums_along,
)
from numnorm.backends.formulas.norms import split_sum

# Sums around a pivot keep nearly all digits of a variance if the pivot is at most so many
# deviations from the mean, squared. Around 0 they do where most values are implicit zeros.
_FAR_FROM_ZERO, _FAR_FROM_FIRST = 4.0, 16.0
# Squares with a smaller mean may have lost digits.
_LEAST_SQUARE = 1e-290

# Which sums the kernels make: see their file.
_WEIGHT, _DEVIATION, _SQUARE, _MISSING, _NUMBER = range(5)

_NO_PIVOTS = np.empty(0)

_sums_across, _sums_along = functools.cache(make_sums_across), functools.cache(make_sums_along)
_plain_sums_along = functools.cache(make_plain_sums_along)
_first_across, _first_along = functools.cache(make_first_across), functools.cache(make_first_along)
_scaled_across = functools.cache(make_scaled_across)
_scaled_along = functools.cache(make_scaled_along)


def sparse_moments(x: Stored, samples: Samples) -> Counted:
    """Return the sum of the weights, mean, m2 and mean_lo of each group and column.

    They have the shape ``(groups, columns)``. Where nothing counts they are 0.
    """
    shape = samples.groups, x.shape[1]
    with np.errstate(all="ignore"):
        sums = _sums(x, samples, _NO_PIVOTS)
        stored, missing = sums[..., _WEIGHT], sums[..., _MISSING]
        total = _weights_of_groups(x, samples)[:, None] - missing
        divisor = np.where(total > 0.0, total, 1.0)
        mean = sums[..., _DEVIATION] / divisor
        m2 = sums[..., _SQUARE] - sums[..., _DEVIATION] * mean
        variance = m2 / divisor
        near = (mean * mean <= _FAR_FROM_ZERO * variance) & (variance >= _LEAST_SQUARE)
        far = (stored > 0.0) & np.isfinite(sums[..., _DEVIATION]) & ~(near & (m2 < np.inf))
        moments = total, mean, m2, np.zeros(shape)
        if far.any():
            exact = _of_far_columns(x, samples, far, total)
            moments = tuple(
                np.where(far, new, old) for new, old in zip(exact, moments, strict=True)
            )  # type: ignore[assignment]
    return moments


def _of_far_columns(x: Stored, samples: Samples, far: Array, total: Array) -> Counted:
    """Return the moments of columns whose mean is far from 0: of stored values, then of zeros."""
    pivots = np.where(far, np.nan, 0.0)
    arrays = x.values, x.indices, x.ends, samples.weights, samples.codes
    (_first_along if x.along else _first_across)()(*arrays, pivots.reshape(-1), x.shape[1])
    moments, sums = _around(x, samples, pivots)
    _, mean, m2, _ = moments
    squared = np.square(mean - pivots) * moments[0]
    again = far & (moments[0] > 0.0) & ~(squared <= _FAR_FROM_FIRST * m2) & (squared > 0.0)
    if again.any():
        moments = _around(x, samples, np.where(again, mean, pivots))[0]
    stored, mean, m2, mean_lo = moments
    zeros = np.where(_has_zeros(x, samples, sums), np.maximum(total - stored, 0.0), 0.0)
    nothing = np.zeros_like(mean)
    merged = merge_counted((stored, mean, m2, mean_lo), (zeros, nothing, nothing, nothing))
    differ = (sums[..., _DEVIATION] != 0.0) | ((zeros > 0.0) & (mean != 0.0))
    m2 = np.where(differ & (merged[2] <= 0.0), SMALLEST_M2, np.maximum(merged[2], 0.0))
    return total, merged[1], m2, merged[3]


def _around(x: Stored, samples: Samples, pivots: Array) -> tuple[Counted, Array]:
    """Return the moments of the stored values by sums around pivots, and these sums."""
    sums = _sums(x, samples, pivots.reshape(-1))
    stored = sums[..., _WEIGHT]
    from_pivot = sums[..., _DEVIATION] / np.where(stored > 0.0, stored, 1.0)
    mean, mean_lo = split_sum(pivots, from_pivot)
    return (stored, mean, sums[..., _SQUARE] - sums[..., _DEVIATION] * from_pivot, mean_lo), sums


def _has_zeros(x: Stored, samples: Samples, sums: Array) -> Array:
    """Return whether a column has implicit zeros that count.

    Sums of weights are rounded: their difference does not tell.
    """
    counts = _weights_of_groups(x, samples._replace(weights=np.empty(0)))
    if not samples.weights.size:
        there: Array = counts[:, None] > sums[..., _WEIGHT] + sums[..., _MISSING]
        return there
    of_weight = samples._replace(weights=(samples.weights > 0.0).astype(np.float64))
    return _weights_of_groups(x, of_weight)[:, None] > sums[..., _NUMBER]


def _weights_of_groups(x: Stored, samples: Samples) -> Array:
    """Return the sum of the weights of the rows of each group."""
    weights = samples.weights if samples.weights.size else None
    if samples.codes.size:
        return np.bincount(samples.codes, weights, samples.groups).astype(np.float64)
    return np.array([x.shape[0] if weights is None else weights.sum()], np.float64)


def _sums(x: Stored, samples: Samples, pivots: Array) -> Array:
    """Return the sums of each group and column that the kernels make."""
    weights, codes, groups, omit = samples
    columns, width = x.shape[1], 5 if weights.size else 4
    parts = _row_parts(x) if x.along else _summed_parts(x, groups)
    sums = np.zeros((1 if x.along else parts, groups, columns, width))
    if not x.size:
        return sums[0]
    bounds = _bounds(x, parts)
    if x.along and not (weights.size or codes.size):
        of_columns = x.values, x.ends, omit, pivots, bounds, sums
        run(_plain_sums_along(), of_columns, x.values.nbytes, parts)
        return sums[0]
    scratch = np.zeros((parts, groups, width)) if x.along else np.zeros_like(sums)
    kernel = _sums_along() if x.along else _sums_across()
    arrays = x.values, x.indices, x.ends, weights, codes, omit, pivots, bounds, scratch, sums
    run(kernel, arrays, x.values.nbytes + x.indices.nbytes, parts)
    total: Array = sums[0]
    for others in sums[1:]:
        total += others
    return total


def _row_parts(x: Stored) -> int:
    """Return the number of parts of kernels that add up nothing of other parts."""
    return row_parts(max(x.ends.size - 1, 1), x.size)


def _summed_parts(x: Stored, groups: int) -> int:
    """Return the number of parts with sums of each group and column."""
    return summed_parts(x.size, 1, groups * x.shape[1]) if x.shape[0] else 1


def _bounds(x: Stored, parts: int) -> Array:
    """Return the first row or column of each part, of about as many stored values, and the end."""
    values = (x.size * np.arange(parts + 1) // parts).astype(x.ends.dtype)
    bounds = np.searchsorted(x.ends, values)
    bounds[0], bounds[-1] = 0, x.ends.size - 1
    return np.minimum(bounds, x.ends.size - 1).astype(np.int64)


def sparse_scaled(x: Stored, codes: Array, scale: Array, most: float, y: Array) -> None:
    """Store the values times the scale of their group and column in y, within -most and most.

    `scale` is ``(groups, columns)``. `y` may be the values themselves.
    """
    if not x.size:
        return
    parts = _row_parts(x)
    kernel = _scaled_along() if x.along else _scaled_across()
    arrays = x.values, x.indices, x.ends, codes, np.ascontiguousarray(scale), most, y
    work = 2 * x.values.nbytes + x.indices.nbytes
    run(kernel, (*arrays, _bounds(x, parts)), work, parts)
