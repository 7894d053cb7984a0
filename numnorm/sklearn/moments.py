"""Moments of features with weights and missing values, as `numnorm.Moments` with a count each."""

from __future__ import annotations

from typing import Any

import numpy as np

import numnorm
from numnorm import Moments
from numnorm.sklearn.base import Array, row_chunks


def moments_of(X: Array, weights: Array | None = None, before: Moments | None = None) -> Moments:
    """Return the moments of X and of the rows before, merged.

    The count is an integer, or a number for each feature if rows have weights or a value is
    missing.
    """
    if weights is None and not np.isnan(X).any():
        uniform = before is None or isinstance(before.count, int)
        moments = _complete(X, before if uniform else None)
        return moments if uniform else _merged(before, moments)
    total = before
    for rows in row_chunks(X):
        part = _weighted(X[rows].astype(np.float64), None if weights is None else weights[rows])
        total = part if total is None else _merged(total, part)
    assert total is not None
    return total


def _complete(X: Array, before: Moments | None) -> Moments:
    """Return the moments of X with squares taken in float64."""
    if X.dtype == np.float64:
        return numnorm.batch_moments(X, after=before)
    total = before
    for rows in row_chunks(X, numnorm.stream_step(X.shape)):
        total = numnorm.batch_moments(X[rows].astype(np.float64), after=total)
    assert total is not None
    return total


def _weighted(x: Array, weights: Array | None) -> Moments:
    valid = ~np.isnan(x)
    weight = valid if weights is None else weights[:, np.newaxis] * valid
    # A value of the feature: the deviations of a constant feature are exactly 0.
    pivot = np.take_along_axis(x, np.argmax(weight > 0, axis=0)[np.newaxis], axis=0)[0]
    count = np.sum(weight, axis=0)
    divisor = np.where(count > 0, count, 1)
    deviations = np.where(weight > 0, x - pivot, 0.0)
    from_pivot = np.sum(weight * deviations, axis=0) / divisor
    deviations -= from_pivot
    lost = np.sum(weight * deviations, axis=0) / divisor
    m2 = np.sum(weight * deviations**2, axis=0) - count * lost**2
    seen = count > 0
    mean, mean_lo = _two_sum(np.where(seen, pivot, 0.0), np.where(seen, from_pivot + lost, 0.0))
    return Moments(count, mean, np.maximum(m2, 0.0), mean_lo)


def _merged(left: Any, right: Any) -> Moments:
    """Return the moments of both, by Chan, Golub and LeVeque (1979), for each feature."""
    count = np.asarray(left.count + right.count)
    delta = (right.mean - left.mean) + (right.mean_lo - left.mean_lo)
    step = delta * (right.count / np.where(count > 0, count, 1))
    mean, lost = _two_sum(left.mean, step)
    m2 = left.m2 + right.m2 + delta * step * left.count
    parts = _two_sum(mean, lost + left.mean_lo)
    first = np.asarray(left.count) == 0
    mean, mean_lo = (np.where(first, a, b) for a, b in zip(right[1::2], parts, strict=True))
    return Moments(np.broadcast_to(count, mean.shape), mean, m2, mean_lo)  # type: ignore[arg-type]


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Return the rounded sum, and what it lost (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)
