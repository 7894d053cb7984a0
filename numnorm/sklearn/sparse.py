"""Sparse matrices as X: they are scaled by features, and stay sparse."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import check_array

import numnorm
from numnorm import Moments
from numnorm.norms.moments import of_numbered_labels
from numnorm.sklearn.base import Array


def sparse_array(estimator: Any, X: Any, dtype: Any, *, takes_nan: bool) -> Any:
    """Return a sparse X in CSR or CSC, in one of the dtypes."""
    values = check_array(
        X,
        accept_sparse=("csr", "csc"),
        dtype=dtype,
        ensure_all_finite="allow-nan",
        estimator=estimator,
        input_name="X",
    )
    if not takes_nan and np.isnan(values.data).any():
        raise ValueError(
            "X must not contain NaN, as nan_policy is 'raise': nan_policy='omit' leaves NaN out"
        )
    return values


def sparse_moments_of(
    X: Any, weights: Array | None, before: Moments | None, *, omit: bool
) -> Moments:
    """Return the moments of a sparse X and of the samples before, merged."""
    leaves_out = omit and bool(np.isnan(X.data).any())
    return numnorm.batch_moments(
        X, weights=weights, nan_policy="omit" if leaves_out else "propagate", after=before
    )


def times_scales(X: Any, labels: Any, scales: Array, *, inverse: bool, copy: bool) -> Any:
    """Return a sparse X divided by the scales of its features, or multiplied by them.

    Parameters
    ----------
    X : sparse matrix
    labels : array or None
        The label of each sample.
    scales : array
        ``(labels, features)``, in the order of the labels.
    inverse : bool
        Whether to multiply.
    copy : bool
        False writes into X.
    """
    out: Any = None if copy else X
    if labels is None:
        gamma = scales[0] if inverse else 1.0 / scales[0]
        ones = np.ones_like(gamma)
        return numnorm.batch_norm(
            X, gamma, running_mean=0 * ones, running_var=ones, training=False, with_mean=False,
            eps=0.0, out=out,
        )  # fmt: skip
    variances = scales**-2.0 if inverse else scales**2
    return numnorm.batch_norm(
        X,
        labels=np.unique(labels, return_inverse=True)[1],
        statistics=of_numbered_labels(np.zeros_like(scales), variances),
        with_mean=False,
        eps=0.0,
        out=out,
    )
