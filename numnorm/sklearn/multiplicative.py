"""Multiplicative scatter correction by a reference spectrum."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_array, check_is_fitted

import numnorm
from numnorm.sklearn.base import (
    Array,
    Normalizer,
    as_numpy,
    centred,
    check_constant,
    check_same_library,
    constraints_of,
    exponents_of_largest,
    like,
    row_chunks,
)
from numnorm.sklearn.moments import moments_of


class MultiplicativeScatterCorrection(Normalizer):
    r"""Take from each row the offset and the gain of its regression on a reference spectrum [1]_.

    A row is fitted as :math:`x \approx a + b r` by least squares, and becomes
    :math:`(x - a) / b`.

    Parameters
    ----------
    reference : array-like of shape (n_features,), default=None
        The spectrum r. None: the mean spectrum of the training data.
    weights : array-like of shape (n_features,), default=None
        How often each feature counts in the regression, any numbers from 0 on. A feature of weight
        0 does not count, but is corrected as the others.
    constant : {"mean", "nan", "raise"}, default="mean"
        What a row becomes whose slope b is 0, such as a flat one: the mean of the reference at
        each feature, NaN, or an error.
    nan_policy : {"raise", "omit", "propagate"}, default="raise"
        Whether a NaN is an error, is left out of the regression and of the mean spectrum and stays
        NaN, or makes its row NaN and, in training data, all rows.
    copy : bool, default=True
        False writes into X where that is possible.

    Attributes
    ----------
    reference_ : ndarray of shape (n_features,)
        The reference spectrum.
    n_features_in_ : int
        The number of features seen during `fit`.
    feature_names_in_ : ndarray of shape (n_features,)
        Their names, if X had names that are all strings.

    Notes
    -----
    The regression is that of the deviations from the (weighted) means, so that no offset costs
    digits.

    References
    ----------
    .. [1] P. Geladi, D. MacDougall, H. Martens, "Linearization and Scatter-Correction for
       Near-Infrared Reflectance Spectra of Meat", 1985.

    Examples
    --------
    >>> from numnorm.sklearn import MultiplicativeScatterCorrection
    >>> corrected = MultiplicativeScatterCorrection().fit_transform([[1.0, 2, 4], [3.0, 5, 11]])
    >>> corrected.round(3)
    array([[1.846, 3.712, 7.442],
           [2.056, 3.423, 7.521]])
    """

    _parameter_constraints = {
        **constraints_of("emsc"),
        "reference": ["array-like", None],
        "constant": [StrOptions({"mean", "nan", "raise"})],
    }

    def __init__(
        self,
        reference: Any = None,
        *,
        weights: Any = None,
        constant: str = "mean",
        nan_policy: str = "raise",
        copy: bool = True,
    ) -> None:
        self.reference = reference
        self.weights = weights
        self.constant = constant
        self.nan_policy = nan_policy
        self.copy = copy

    def fit(self, X: Any, y: Any = None) -> Self:
        """Keep the reference, or the mean of X.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The training spectra.
        y : None
            Ignored.

        Returns
        -------
        self : object
            This estimator.
        """
        self._validate_params()
        values = self._validated(X, reset=True)
        if self.reference is None:
            omit = self.nan_policy == "omit"
            if omit and (missing := np.isnan(values).all(axis=0)).any():
                raise ValueError(f"feature {int(np.argmax(missing))} of X has no values")
            reference = moments_of(values, omit=omit).mean
        else:
            given = as_numpy(self.reference)
            reference = check_array(
                given, ensure_2d=False, dtype=np.float64, input_name="reference"
            )
        width = values.shape[1]
        if reference.shape != (width,):
            raise ValueError(f"reference must have the shape ({width},), got {reference.shape}")
        weights = self._weights_of(width)
        counting = reference if weights is None else reference[weights > 0]
        if np.ptp(counting) == 0:
            hint = "1 feature(s) in X" if width == 1 else f"{counting[0]} at each feature"
            if weights is not None:
                hint += " of a weight above 0"
            raise ValueError(f"the reference spectrum must not be constant, got {hint}")
        self.reference_ = like(X, reference)
        return self

    def transform(self, X: Any) -> Any:
        """Correct each row.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The spectra.

        Returns
        -------
        X_transformed : ndarray of shape (n_samples, n_features)
            The corrected spectra, in the dtype of X.
        """
        check_is_fitted(self)
        check_same_library(X, self, "reference_")
        values = self._validated(X, reset=False)
        reference = np.asarray(as_numpy(self.reference_))
        weights, _ = self._relative_weights(len(reference))
        with np.errstate(all="ignore"):
            deviations, mean = centred(reference[np.newaxis], weights)
            exponent = exponents_of_largest(np.where(weights > 0, deviations, 0.0), axis=1)
            deviations = np.ldexp(deviations, -exponent)
            direction = (deviations * weights / np.sum(deviations**2 * weights))[0]
        # The normalized rows have the slopes of the rows, divided by their deviations.
        out = None if self.constant == "raise" else self._out(values)
        result = numnorm.standard_normal_variate(values, out=out, **self._counting(values))
        for rows in row_chunks(result):
            normalized = result[rows].astype(np.float64)
            # A matrix product would round otherwise for another number of rows.
            with np.errstate(all="ignore"):
                slope = np.einsum("ij,j->i", normalized, direction)[:, np.newaxis]
            level, exponents = (np.repeat(a, len(slope), axis=0) for a in (mean, exponent))
            missing = np.isnan(normalized)
            if self.nan_policy == "omit" and missing.any():
                lacking = missing.any(axis=1)
                slope[lacking], level[lacking], exponents[lacking] = _regression(
                    normalized[lacking], ~missing[lacking], reference, weights
                )
            without = slope[:, 0] == 0
            check_constant(without, self.constant, "rows with the slope 0")
            with np.errstate(all="ignore"):
                normalized = np.ldexp(normalized / slope, exponents)
                normalized[without] = 0.0 if self.constant == "mean" else np.nan
                normalized += level
                normalized[missing] = np.nan
                result[rows] = normalized
        return like(X, result)


def _regression(
    x: Array, valid: Array, reference: Array, weights: Array
) -> tuple[Array, Array, Array]:
    """Return the slope of each row, by its valid values, and the mean of the reference there.

    The slope is that against the reference times ``2.0**-exponents``, which are returned, too.
    """
    with np.errstate(all="ignore"):
        deviations, mean = centred(np.broadcast_to(reference, x.shape), weights, valid)
        counts = valid & (weights > 0)
        exponents = exponents_of_largest(np.where(counts, deviations, 0.0), axis=1)
        deviations = np.ldexp(deviations, -exponents)
        slope = np.sum(x * deviations * weights, axis=1, keepdims=True, where=counts)
        slope /= np.sum(deviations**2 * weights, axis=1, keepdims=True, where=counts)
    # A row whose only value lies on any line counts as flat.
    flat = counts.any(axis=1, keepdims=True) & np.isnan(slope)
    return np.where(flat, 0.0, slope), mean, exponents
