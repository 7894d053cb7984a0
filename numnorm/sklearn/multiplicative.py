"""Multiplicative scatter correction by a reference spectrum."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_array, check_is_fitted

import numnorm
from numnorm.sklearn.base import (
    Normalizer,
    as_numpy,
    centred,
    check_constant,
    check_same_library,
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
    constant : {"mean", "nan", "raise"}, default="mean"
        What a row becomes whose slope b is 0, such as a flat one: the mean of the reference at
        each feature, NaN, or an error.
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
    The regression is that of the deviations from the means, so that no offset costs digits. NaN
    is an error.

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
        **Normalizer._parameter_constraints,
        "reference": ["array-like", None],
        "constant": [StrOptions({"mean", "nan", "raise"})],
    }

    def __init__(self, reference: Any = None, *, constant: str = "mean", copy: bool = True) -> None:
        self.reference = reference
        self.constant = constant
        self.copy = copy

    def _takes_nan(self) -> bool:
        return False

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
            reference = moments_of(values).mean
        else:
            given = as_numpy(self.reference)
            reference = check_array(
                given, ensure_2d=False, dtype=np.float64, input_name="reference"
            )
        width = values.shape[1]
        if reference.shape != (width,):
            raise ValueError(f"reference must have the shape ({width},), got {reference.shape}")
        if np.ptp(reference) == 0:
            hint = "1 feature(s) in X" if width == 1 else f"{reference[0]} at each feature"
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
        deviations, mean = centred(np.asarray(as_numpy(self.reference_))[np.newaxis])
        direction = deviations[0] / np.sum(deviations**2)
        # The normalized rows have the slopes of the rows, divided by their deviations.
        out = None if self.constant == "raise" else self._out(values)
        result = numnorm.standard_normal_variate(values, out=out)
        for rows in row_chunks(result):
            normalized = result[rows].astype(np.float64)
            # A matrix product would round otherwise for another number of rows.
            slope = np.einsum("ij,j->i", normalized, direction)[:, np.newaxis]
            without = slope[:, 0] == 0
            check_constant(without, self.constant, "rows with the slope 0")
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                normalized /= slope
                normalized[without] = 0.0 if self.constant == "mean" else np.nan
                normalized += mean
                result[rows] = normalized
        return like(X, result)
