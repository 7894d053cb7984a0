"""Robust normal variates: a row's percentile or median in place of its mean."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np
from sklearn.utils._param_validation import Interval, StrOptions

import numnorm
from numnorm.sklearn.base import (
    CONSTANT,
    Array,
    Normalizer,
    RowNormalizer,
    check_constant,
    exponents_of_largest,
    in_chunks,
)

# The deviation of a normal distribution, as a multiple of its median absolute deviation: to the
# five digits that R's `mad` has. The factor "normal" of `robust_norm` is exact.
NORMAL = 1.4826


class RobustNormalVariate(RowNormalizer):
    """Centre and scale each row by statistics that its strongest bands do not move.

    Parameters
    ----------
    method : {"percentile", "mad"}, default="percentile"
        "percentile" [1]_: subtract the percentile, and divide by the standard deviation of the
        values at or below it. "mad": subtract the median, and divide by 1.4826 times the median
        absolute deviation.
    percentile : float, default=25
        Between 0 and 100, for the method "percentile".
    eps : float, default=0.0
        Added to the divisor.
    constant : {"zero", "nan", "raise"}, default="zero"
        What a row becomes whose divisor without `eps` is 0.
    nan_policy : {"propagate", "omit", "raise"}, default="propagate"
        Whether a NaN makes its row NaN, is left out and stays NaN, or is an error.
    copy : bool, default=True
        False writes into X where that is possible.

    Attributes
    ----------
    n_features_in_ : int
        The number of features seen during `fit`.
    feature_names_in_ : ndarray of shape (n_features,)
        Their names, if X had names that are all strings.

    Notes
    -----
    The percentile lies between two values as in `numpy.percentile`. "mad" is
    `numnorm.robust_norm` with ``factor=1.4826``, the constant of R's `mad`. Its
    ``factor="normal"`` is the exact number, which is larger by 1.5 millionths.

    References
    ----------
    .. [1] Q. Guo, W. Wu, D. L. Massart, "The robust normal variate transform for pattern
       recognition with near-infrared data", 1999.

    Examples
    --------
    >>> from numnorm.sklearn import RobustNormalVariate
    >>> RobustNormalVariate().fit_transform([[1.0, 3.0, 5.0, 9.0, 100.0]])
    array([[-2.,  0.,  2.,  6., 97.]])
    >>> RobustNormalVariate(method="mad").fit_transform([[1.0, 3.0, 5.0, 9.0, 100.0]]).round(2)
    array([[-0.67, -0.34,  0.  ,  0.67, 16.02]])
    """

    _parameter_constraints = {
        **Normalizer._parameter_constraints,
        "method": [StrOptions({"percentile", "mad"})],
        "percentile": [Interval(Real, 0, 100, closed="both")],
        "eps": [Interval(Real, 0, None, closed="left")],
        "constant": [StrOptions(set(CONSTANT))],
    }

    def __init__(
        self,
        *,
        method: str = "percentile",
        percentile: float = 25,
        eps: float = 0.0,
        constant: str = "zero",
        nan_policy: str = "propagate",
        copy: bool = True,
    ) -> None:
        self.method = method
        self.percentile = percentile
        self.eps = eps
        self.constant = constant
        self.nan_policy = nan_policy
        self.copy = copy

    def _normalized(self, X: Array, out: Array | None) -> Array:
        if self.constant == "raise":
            out = None  # an error leaves X as it was
        if self.method == "mad":
            return self._by_median(X, out)
        return in_chunks(self._by_percentile, X, out)

    def _by_median(self, X: Array, out: Array | None) -> Array:
        policy: Any = "omit" if self.nan_policy == "omit" else "propagate"
        result: Array
        result, _, scale = numnorm.robust_norm_forward(
            X, factor=NORMAL, eps=float(self.eps), nan_policy=policy, out=out
        )
        constant = scale == 0
        check_constant(constant, self.constant, "rows without spread")
        value = 0.0 if self.constant == "zero" else np.nan
        result[constant] = np.where(np.isnan(result[constant]), np.nan, value)
        return result

    def _by_percentile(self, x: Array) -> Array:
        missing = np.isnan(x)
        if self.nan_policy != "omit" or not missing.any():
            return self._of_complete_rows(x)
        result = np.full_like(x, np.nan)
        complete = ~missing.any(axis=1)
        result[complete] = self._of_complete_rows(x[complete])
        for row in np.flatnonzero(~complete & ~missing.all(axis=1)):
            result[row, ~missing[row]] = self._of_complete_rows(x[[row]][:, ~missing[row]])[0]
        return result

    def _of_complete_rows(self, x: Array) -> Array:
        percentile, divisor = self._low_values(x)
        deviations = x - percentile
        constant = divisor == 0
        check_constant(constant[:, 0], self.constant, "rows without spread")
        deviations /= divisor + self.eps
        deviations[constant[:, 0]] = 0.0 if self.constant == "zero" else np.nan
        return deviations

    def _low_values(self, x: Array) -> tuple[Array, Array]:
        """Return the percentile of each row, and the deviation of the values at or below it."""
        place = self.percentile / 100 * (x.shape[1] - 1)
        last = int(place)
        above = min(last + 1, x.shape[1] - 1)
        ordered = np.partition(x, (last, above), axis=1)
        low, low_end, high = ordered[:, : last + 1], ordered[:, [last]], ordered[:, [above]]
        percentile = low_end + (place - last) * (high - low_end)
        percentile[np.isnan(np.max(x, axis=1))] = np.nan
        # More values may equal the percentile: they count, and add 0 to both sums.
        deviations = low - percentile
        count = np.sum(x <= percentile, axis=1, keepdims=True)
        exponents = exponents_of_largest(deviations, axis=1)
        deviations = np.ldexp(deviations, -exponents)
        mean = np.sum(deviations, axis=1, keepdims=True) / count
        deviations -= mean
        squares = np.sum(deviations**2, axis=1, keepdims=True)
        squares += (count - deviations.shape[1]) * mean**2
        return percentile, np.ldexp(np.sqrt(squares / count), exponents)
