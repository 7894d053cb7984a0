"""Moments of features with weights and missing values, as `numnorm.Moments` with a count each."""

from __future__ import annotations

import numpy as np

import numnorm
from numnorm import Moments
from numnorm.array_types import NanPolicy
from numnorm.sklearn.base import Array, row_chunks


def moments_of(
    X: Array, weights: Array | None = None, before: Moments | None = None, *, omit: bool
) -> Moments:
    """Return the moments of X and of the rows before, merged.

    The count is an integer, or a number for each feature if rows have weights or a value is
    left out.
    """
    uniform = before is None or isinstance(before.count, int)
    if uniform and weights is None and not (omit and np.isnan(X).any()):
        return _complete(X, before)
    policy: NanPolicy = "omit" if omit else "propagate"
    return numnorm.batch_moments(X, weights=weights, nan_policy=policy, after=before)


def _complete(X: Array, before: Moments | None) -> Moments:
    """Return the moments of X with squares taken in float64."""
    if X.dtype == np.float64:
        return numnorm.batch_moments(X, after=before)
    total = before
    for rows in row_chunks(X, numnorm.chunk_multiple(X.shape)):
        total = numnorm.batch_moments(X[rows].astype(np.float64), after=total)
    assert total is not None
    return total
