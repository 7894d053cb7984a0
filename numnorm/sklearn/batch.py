"""Batch norm of features: a standard scaler that is exact at any offset."""

from __future__ import annotations

from numbers import Real
from typing import Any, Self

import numpy as np
from sklearn.utils._param_validation import Interval
from sklearn.utils.validation import (
    _check_sample_weight,
    check_is_fitted,
)

import numnorm
from numnorm import Moments
from numnorm.sklearn.base import (
    Array,
    Normalizer,
    as_numpy,
    check_same_library,
    float_dtypes,
    in_chunks,
    like,
    power_of_two,
)
from numnorm.sklearn.moments import moments_of

# Squares of numbers between 2**-300 and 2**300, and sums of them, are in the range of float64.
_MODERATE = 300
_LARGEST_EXPONENT = 1000


class BatchNormalizer(Normalizer):
    """Bring each feature to mean 0 and variance 1, as `StandardScaler`, at any offset.

    Parameters
    ----------
    with_mean : bool, default=True
        Whether to subtract the mean of the feature.
    with_std : bool, default=True
        Whether to divide by the standard deviation of the feature.
    eps : float, default=0.0
        Added to the variance. With 0 a constant feature is divided by 1.
    nan_policy : {"omit", "propagate", "raise"}, default="omit"
        Whether a NaN is left out of the statistics and stays NaN, as in `StandardScaler`, makes
        its feature NaN, or is an error.
    copy : bool, default=True
        False writes into X where that is possible.

    Attributes
    ----------
    mean_ : ndarray of shape (n_features,)
        The mean of each feature, in float64.
    var_ : ndarray of shape (n_features,)
        The variance of each feature, divided by the number of its values.
    scale_ : ndarray of shape (n_features,) or None
        What the features are divided by; None if `with_std` is False.
    n_samples_seen_ : int, float or ndarray of shape (n_features,)
        The number of values, or the sum of their weights; an array if it differs.
    n_features_in_ : int
        The number of features seen during `fit`.
    feature_names_in_ : ndarray of shape (n_features,)
        Their names, if X had names that are all strings.

    See Also
    --------
    numnorm.batch_moments : The moments that it learns, in chunks or distributed.

    Notes
    -----
    Features may have any scale. Features beyond 1e90 or below 1e-90 are scaled by powers of two,
    chosen from the first samples; `var_` may be infinite or 0 where `scale_` is not.

    Only a feature whose values are all equal is constant; `StandardScaler` takes one of small
    variance at a large mean for constant.

    Examples
    --------
    >>> from numnorm.sklearn import BatchNormalizer
    >>> normalizer = BatchNormalizer().partial_fit([[1.0, 4.0]]).partial_fit([[3.0, 4.0]])
    >>> normalizer.transform([[1.0, 4.0], [5.0, 5.0]])
    array([[-1.,  0.],
           [ 3.,  1.]])
    >>> normalizer.inverse_transform([[3.0, 1.0]])
    array([[5., 5.]])
    """

    _parameter_constraints = {
        **Normalizer._parameter_constraints,
        "with_mean": ["boolean"],
        "with_std": ["boolean"],
        "eps": [Interval(Real, 0, None, closed="left")],
    }

    def __init__(
        self,
        *,
        with_mean: bool = True,
        with_std: bool = True,
        eps: float = 0.0,
        nan_policy: str = "omit",
        copy: bool = True,
    ) -> None:
        self.with_mean = with_mean
        self.with_std = with_std
        self.eps = eps
        self.nan_policy = nan_policy
        self.copy = copy

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn the mean and the variance of each feature.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The training data.
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), default=None
            The weight of each sample, at least 0.

        Returns
        -------
        self : object
            This estimator.
        """
        return self._learn(X, sample_weight, None)

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn from more samples.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The next samples.
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), default=None
            The weight of each sample, at least 0.

        Returns
        -------
        self : object
            This estimator.
        """
        return self._learn(X, sample_weight, getattr(self, "_learned", None))

    def _learn(self, X: Any, sample_weight: Any, before: tuple[Moments, Array] | None) -> Self:
        self._validate_params()
        values = self._validated(X, reset=before is None)
        weights = None
        if sample_weight is not None:
            weights = _check_sample_weight(as_numpy(sample_weight), values, dtype=np.float64)
            if np.any(weights < 0):
                raise ValueError("sample_weight must not be negative")
        omit = self.nan_policy == "omit"
        known, exponents = before or (None, np.zeros(values.shape[1], int))
        moments = moments_of(_scaled(values, exponents), weights, known, omit=omit)
        if before is None and not _is_moderate(moments):
            exponents = _scaling_exponents(power_of_two(values, axis=0)[0])
            moments = moments_of(_scaled(values, exponents), weights, known, omit=omit)
        count, mean, m2, _ = moments
        counts = np.broadcast_to(count, mean.shape)
        with np.errstate(all="ignore"):
            var = m2 / counts
            eps = np.ldexp(self.eps**0.5, -exponents)
            scale = np.where(exponents == 0, np.sqrt(var + self.eps), np.hypot(np.sqrt(var), eps))
            mean, scale = np.ldexp(mean, exponents), np.ldexp(scale, exponents)
            var = np.ldexp(var, 2 * exponents)
        scale[scale == 0] = 1.0
        self.n_samples_seen_ = counts[0] if np.all(counts == counts[0]) else like(X, counts)
        self.mean_ = like(X, np.where(counts == 0, np.nan, mean))
        self.var_ = like(X, var)
        self.scale_ = like(X, scale) if self.with_std else None
        self._learned = moments, exponents
        return self

    def transform(self, X: Any) -> Any:
        """Subtract the mean of each feature, and divide by its scale.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The data.

        Returns
        -------
        X_transformed : ndarray of shape (n_samples, n_features)
            The normalized data, in the dtype of X.
        """
        check_is_fitted(self)
        check_same_library(X, self, "mean_")
        values = self._validated(X, reset=False)
        mean, lost, scale = self._statistics()
        exponents = _scaling_exponents(np.frexp(scale)[1])
        with np.errstate(all="ignore"):
            offset, moderate = -lost / scale, np.ldexp(scale, -exponents)
        result = numnorm.batch_norm(
            values,
            gamma=np.ldexp(1.0, -exponents) if exponents.any() else None,
            beta=offset,
            running_mean=mean,
            running_var=moderate**2,
            training=False,
            eps=0.0,
            out=self._out(values),
        )
        return like(X, result)

    def inverse_transform(self, X: Any) -> Any:
        """Multiply by the scale of each feature, and add its mean.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Normalized data.

        Returns
        -------
        X_original : ndarray of shape (n_samples, n_features)
            The data as they were, in the dtype of X.
        """
        check_is_fitted(self)
        values = self._checked(as_numpy(X), float_dtypes(X))
        width = values.shape[1]
        if width != self.n_features_in_:
            raise ValueError(f"X must have {self.n_features_in_} features, got {width}")
        mean, lost, scale = self._statistics()
        result = in_chunks(lambda x: (x * scale + lost) + mean, values, self._out(values))
        return like(X, result)

    def _statistics(self) -> tuple[Array, Array, Array]:
        """Return the mean, what it lost by rounding, and the scale, as they are to be used."""
        mean = np.asarray(as_numpy(self.mean_))
        moments, exponents = self._learned
        lost = np.ldexp(moments.mean_lo, exponents)
        scale = np.ones_like(mean) if self.scale_ is None else np.asarray(as_numpy(self.scale_))
        return (mean, lost, scale) if self.with_mean else (0 * mean, 0 * lost, scale)


def _scaled(values: Array, exponents: Array) -> Array:
    """Return ``values * 2.0**-exponents``."""
    if not exponents.any():
        return values
    with np.errstate(under="ignore"):
        return np.ldexp(values, -exponents)


def _is_moderate(moments: Moments) -> bool:
    """Return whether the squares of all values and deviations but zeros are in range."""
    mean, m2 = abs(moments.mean), moments.m2
    most = 2.0**_MODERATE
    moderate_mean = (mean == 0.0) | ((mean > 1 / most) & (mean < most))
    moderate_m2 = (m2 == 0.0) | ((m2 > most**-2) & (m2 < most**2))
    return bool(np.all(moderate_mean & moderate_m2))


def _scaling_exponents(exponents: Array) -> Array:
    """Return exponents, with 0 where the number can be squared as it is."""
    moderate = abs(exponents) <= _MODERATE
    return np.where(moderate, 0, np.clip(exponents, -_LARGEST_EXPONENT, _LARGEST_EXPONENT))
