"""Batch norm of features: a standard scaler that is exact at any offset."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real
from typing import Any, NamedTuple, Self

import numpy as np
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import (
    _check_sample_weight,
    check_is_fitted,
)

import numnorm
from numnorm import Moments
from numnorm.arguments import check_shape
from numnorm.norms.labels import checked_labels, members_of
from numnorm.norms.moments import rows_of
from numnorm.norms.sparse import is_sparse
from numnorm.sklearn.base import (
    Array,
    Normalizer,
    as_numpy,
    check_same_library,
    exponents_of_largest,
    float_dtypes,
    in_chunks,
    like,
)
from numnorm.sklearn.moments import moments_of
from numnorm.sklearn.sparse import sparse_array, sparse_moments_of, times_scales

# Squares of numbers between 2**-300 and 2**300, and sums of them, are in the range of float64.
_MODERATE = 300
_LARGEST_EXPONENT = 1000


class BatchNormalizer(Normalizer):
    """Bring each feature to mean 0 and variance 1, as `StandardScaler`, at any offset.

    Parameters
    ----------
    with_mean : bool, default=True
        Whether to subtract the mean of the feature. Sparse matrices, in CSR or CSC, need False.
    with_std : bool, default=True
        Whether to divide by the standard deviation of the feature.
    eps : float, default=0.0
        Added to the variance. With 0 a constant feature is divided by 1.
    nan_policy : {"omit", "propagate", "raise"}, default="omit"
        Whether a NaN is left out of the statistics and stays NaN, as in `StandardScaler`, makes
        its feature NaN, or is an error.
    handle_unknown : {"error", "all"}, default="error"
        What `transform` and `inverse_transform` do with a sample whose label was not there in
        `fit`: raise an error, or take the statistics of all samples.
    copy : bool, default=True
        False writes into X where that is possible.

    Attributes
    ----------
    mean_ : ndarray of shape (n_features,)
        The mean of each feature, in float64; as all below it is of all samples, whatever their
        labels.
    var_ : ndarray of shape (n_features,)
        The variance of each feature, divided by the number of its values.
    scale_ : ndarray of shape (n_features,) or None
        What the features are divided by; None if `with_std` is False.
    n_samples_seen_ : int, float or ndarray of shape (n_features,)
        The number of values, or the sum of their weights; an array if it differs.
    labels_ : ndarray of shape (n_labels,) or None
        The labels that were there in `fit`, sorted; None if it had none.
    label_mean_, label_var_, label_scale_ : ndarray of shape (n_labels, n_features) or None
        What `mean_`, `var_` and `scale_` are, for the samples of each label.
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

    With labels, such as the session or the subject of each sample, samples are normalized by the
    statistics of their label. In a pipeline they are metadata: request them by
    ``set_fit_request(labels=True)`` and ``set_transform_request(labels=True)``.

    Examples
    --------
    >>> from numnorm.sklearn import BatchNormalizer
    >>> normalizer = BatchNormalizer().partial_fit([[1.0, 4.0]]).partial_fit([[3.0, 4.0]])
    >>> normalizer.transform([[1.0, 4.0], [5.0, 5.0]])
    array([[-1.,  0.],
           [ 3.,  1.]])
    >>> normalizer.inverse_transform([[3.0, 1.0]])
    array([[5., 5.]])

    Features of two sessions:

    >>> X, sessions = [[1.0], [3.0], [10.0], [50.0]], ["a", "a", "b", "b"]
    >>> normalizer.fit_transform(X, labels=sessions).ravel()
    array([-1.,  1., -1.,  1.])
    >>> normalizer.transform([[50.0]], labels=["a"])
    array([[48.]])
    """

    _parameter_constraints = {
        **Normalizer._parameter_constraints,
        "with_mean": ["boolean"],
        "with_std": ["boolean"],
        "eps": [Interval(Real, 0, None, closed="left")],
        "handle_unknown": [StrOptions({"error", "all"})],
    }

    labels_: Any
    _learned: _Learned
    _of_labels: list[_Learned]

    def __init__(
        self,
        *,
        with_mean: bool = True,
        with_std: bool = True,
        eps: float = 0.0,
        nan_policy: str = "omit",
        handle_unknown: str = "error",
        copy: bool = True,
    ) -> None:
        self.with_mean = with_mean
        self.with_std = with_std
        self.eps = eps
        self.nan_policy = nan_policy
        self.handle_unknown = handle_unknown
        self.copy = copy

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, labels: Any = None) -> Self:
        """Learn the mean and the variance of each feature.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The training data.
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), default=None
            The weight of each sample, at least 0.
        labels : array-like of shape (n_samples,), default=None
            The label of each sample, which has statistics of its own.

        Returns
        -------
        self : object
            This estimator.
        """
        return self._learn(X, sample_weight, labels, more=False)

    def partial_fit(
        self, X: Any, y: Any = None, sample_weight: Any = None, labels: Any = None
    ) -> Self:
        """Learn from more samples.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The next samples.
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), default=None
            The weight of each sample, at least 0.
        labels : array-like of shape (n_samples,), default=None
            The label of each sample, which has statistics of its own.

        Returns
        -------
        self : object
            This estimator.
        """
        return self._learn(X, sample_weight, labels, more=hasattr(self, "_learned"))

    def fit_transform(
        self, X: Any, y: Any = None, sample_weight: Any = None, labels: Any = None
    ) -> Any:
        """Learn from X, and normalize it.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The training data.
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), default=None
            The weight of each sample, at least 0.
        labels : array-like of shape (n_samples,), default=None
            The label of each sample, which has statistics of its own.

        Returns
        -------
        X_transformed : ndarray of shape (n_samples, n_features)
            The normalized data, in the dtype of X.
        """
        return self.fit(X, y, sample_weight, labels).transform(X, labels)

    def _checked(self, X: Any, dtype: Any) -> Any:
        """Return X as floats, sparse if it is and if no mean is subtracted."""
        if self.with_mean or not is_sparse(X):
            return super()._checked(X, dtype)
        return sparse_array(self, X, dtype, takes_nan=self._takes_nan())

    def _learn(self, X: Any, sample_weight: Any, labels: Any, *, more: bool) -> Self:
        self._validate_params()
        values = self._validated(X, reset=not more)
        weights = None
        if sample_weight is not None:
            weights = _check_sample_weight(as_numpy(sample_weight), values, dtype=np.float64)
            if np.any(weights < 0):
                raise ValueError("sample_weight must not be negative")
        if more and (labels is None) != (self.labels_ is None):
            raise ValueError("labels must be given in all calls of partial_fit, or in none")
        omit = self.nan_policy == "omit"
        kinds, parts = None, []
        if labels is not None:
            before = dict(zip(self.labels_, self._of_labels, strict=True)) if more else {}
            new, members = _members(labels, values.shape[0])
            if more:
                rows_of(self.labels_, new)  # raises for labels of another type
            for label, rows in zip(new, members, strict=True):
                own = None if weights is None else weights[rows]
                before[label] = _learned(values[rows], own, before.get(label), omit=omit)
            kinds = np.union1d(self.labels_, new) if more else new
            parts = [before[label] for label in kinds]
        self._learned = _learned(values, weights, self._learned if more else None, omit=omit)
        self._of_labels = parts
        self.labels_ = kinds
        counts, mean, var, scale = self._described(self._learned)
        self.n_samples_seen_ = counts[0] if np.all(counts == counts[0]) else like(X, counts)
        self.mean_, self.var_ = like(X, mean), like(X, var)
        self.scale_ = like(X, scale) if self.with_std else None
        self.label_mean_ = self.label_var_ = self.label_scale_ = None
        if parts:
            _, mean, var, scale = map(np.stack, zip(*map(self._described, parts), strict=True))
            self.label_mean_, self.label_var_ = like(X, mean), like(X, var)
            self.label_scale_ = like(X, scale) if self.with_std else None
        return self

    def _described(self, learned: _Learned) -> tuple[Array, Array, Array, Array]:
        """Return the count, the mean, the variance and the scale of each feature."""
        (count, mean, m2, _), exponents = learned
        counts = np.broadcast_to(count, mean.shape)
        with np.errstate(all="ignore"):
            var = m2 / counts
            eps = np.ldexp(self.eps**0.5, -exponents)
            scale = np.where(exponents == 0, np.sqrt(var + self.eps), np.hypot(np.sqrt(var), eps))
            mean, scale = np.ldexp(mean, exponents), np.ldexp(scale, exponents)
            var = np.ldexp(var, 2 * exponents)
        scale[scale == 0] = 1.0
        return counts, np.where(counts == 0, np.nan, mean), var, scale

    def transform(self, X: Any, labels: Any = None) -> Any:
        """Subtract the mean of each feature, and divide by its scale.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The data.
        labels : array-like of shape (n_samples,), default=None
            The label of each sample, as in `fit`.

        Returns
        -------
        X_transformed : ndarray of shape (n_samples, n_features)
            The normalized data, in the dtype of X.
        """
        check_is_fitted(self)
        check_same_library(X, self, "mean_")
        values = self._validated(X, reset=False)
        return like(X, self._by_label(_normalized, values, labels))

    def inverse_transform(self, X: Any, labels: Any = None) -> Any:
        """Multiply by the scale of each feature, and add its mean.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Normalized data.
        labels : array-like of shape (n_samples,), default=None
            The label of each sample, as in `transform`.

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
        return like(X, self._by_label(_original, values, labels))

    def _by_label(self, function: _Function, values: Any, labels: Any) -> Any:
        """Return ``function(x, *statistics, out)`` of the samples of each label."""
        if (labels is None) != (self.labels_ is None):
            state = "given, as fit had them" if labels is None else "None, as fit had none"
            raise ValueError(f"labels must be {state}")
        sparse = is_sparse(values)
        if labels is None and sparse:
            scales = self._statistics(None)[2][None]
            return times_scales(values, None, scales, inverse=function is _original, copy=self.copy)
        if labels is None:
            return function(values, *self._statistics(None), self._out(values))
        kinds, members = _members(labels, values.shape[0])
        rows, there = rows_of(self.labels_, kinds)
        if not there.all() and self.handle_unknown == "error":
            label = str(kinds[there.argmin()])
            raise ValueError(f"labels must have labels that fit had, got {label!r}")
        if sparse:
            rows_known = zip(rows, there, strict=True)
            scales = np.stack(
                [self._statistics(r if known else None)[2] for r, known in rows_known]
            )
            own = checked_labels(as_numpy(labels))
            return times_scales(values, own, scales, inverse=function is _original, copy=self.copy)
        out = self._out(values)
        result = np.empty_like(values) if out is None else out
        for samples, row, known in zip(members, rows, there, strict=True):
            statistics = self._statistics(row if known else None)
            result[samples] = function(values[samples], *statistics, None)
        return result

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = not self.with_mean
        return tags

    def _statistics(self, row: Any) -> tuple[Array, Array, Array]:
        """Return the mean, what it lost by rounding, and the scale, as they are to be used.

        They are those of a label, by its row, or of all samples.
        """
        learned, mean, scale = self._learned, self.mean_, self.scale_
        if row is not None:
            learned, mean, scale = self._of_labels[row], self.label_mean_, self.label_scale_
        mean = np.asarray(as_numpy(mean))
        scale = np.ones_like(mean) if scale is None else np.asarray(as_numpy(scale))
        if row is not None:
            mean, scale = mean[row], scale[row]
        lost = np.ldexp(learned.moments.mean_lo, learned.exponents)
        return (mean, lost, scale) if self.with_mean else (0 * mean, 0 * lost, scale)


class _Learned(NamedTuple):
    """The moments of features that were multiplied by ``2.0**-exponents``."""

    moments: Moments
    exponents: Array


_Function = Callable[[Array, Array, Array, Array, Array | None], Array]


def _members(labels: Any, samples: int) -> tuple[Array, tuple[Array, ...]]:
    """Return the labels without repetition, sorted, and the samples of each."""
    own = checked_labels(as_numpy(labels))
    check_shape("labels", own.shape, (samples,), "one label for each sample")
    return members_of(own)


def _learned(
    values: Array, weights: Array | None, before: _Learned | None, *, omit: bool
) -> _Learned:
    """Return the moments of samples, merged with the moments of earlier samples."""
    known, exponents = before or (None, np.zeros(values.shape[1], int))
    if is_sparse(values):
        return _Learned(sparse_moments_of(values, weights, known, omit=omit), exponents)
    moments = moments_of(_scaled(values, exponents), weights, known, omit=omit)
    if before is None and not _is_moderate(moments):
        exponents = _scaling_exponents(exponents_of_largest(values, axis=0)[0])
        moments = moments_of(_scaled(values, exponents), weights, known, omit=omit)
    return _Learned(moments, exponents)


def _normalized(values: Array, mean: Array, lost: Array, scale: Array, out: Array | None) -> Array:
    exponents = _scaling_exponents(np.frexp(scale)[1])
    with np.errstate(all="ignore"):
        offset, moderate = -lost / scale, np.ldexp(scale, -exponents)
    return numnorm.batch_norm(
        values,
        gamma=np.ldexp(1.0, -exponents) if exponents.any() else None,
        beta=offset,
        running_mean=mean,
        running_var=moderate**2,
        training=False,
        eps=0.0,
        out=out,
    )


def _original(values: Array, mean: Array, lost: Array, scale: Array, out: Array | None) -> Array:
    return in_chunks(lambda x: (x * scale + lost) + mean, values, out)


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
