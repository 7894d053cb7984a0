"""The standard normal variate of each row."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.utils._param_validation import Interval, StrOptions

import numnorm
from numnorm.sklearn.base import (
    CONSTANT,
    Array,
    RowNormalizer,
    centred,
    check_constant,
    constraints_of,
    in_chunks,
    weight_of,
)


class StandardNormalVariate(RowNormalizer):
    """Bring each row to mean 0 and standard deviation 1: the scatter correction of spectra [1]_.

    Parameters
    ----------
    with_mean : bool, default=True
        Whether to subtract the mean of the row.
    with_std : bool, default=True
        Whether to divide by the standard deviation of the row.
    ddof : int, default=0
        The variance divides by the number of features, or the sum of `weights`, less `ddof`.
    eps : float, default=0.0
        Added to the variance. With 0 a row of any scale comes out with deviation 1.
    weights : array-like of shape (n_features,), default=None
        How often each feature counts in the statistics of a row, any numbers from 0 on. A feature
        of weight 0 does not count, but is normalized by those that do.
    constant : {"zero", "nan", "raise"}, default="zero"
        What a row becomes whose counting values are all equal, if `with_std`.
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

    See Also
    --------
    numnorm.standard_normal_variate : The same as a function.
    LayerNormalizer : The same with the epsilon of networks.

    Notes
    -----
    float16, float32 and float64 stay what they are. Exact at any offset and scale.

    References
    ----------
    .. [1] R. J. Barnes, M. S. Dhanoa, S. J. Lister, "Standard Normal Variate Transformation and
       De-trending of Near-Infrared Diffuse Reflectance Spectra", 1989.

    Examples
    --------
    >>> from numnorm.sklearn import StandardNormalVariate
    >>> StandardNormalVariate(ddof=1).fit_transform([[1.0, 2.0, 3.0], [5.0, 5.0, 5.0]])
    array([[-1.,  0.,  1.],
           [ 0.,  0.,  0.]])
    """

    _parameter_constraints = {
        **constraints_of("standard_normal_variate"),
        "with_mean": ["boolean"],
        "with_std": ["boolean"],
        "ddof": [Interval(Integral, 0, None, closed="left")],
        "eps": [Interval(Real, 0, None, closed="left")],
        "constant": [StrOptions(set(CONSTANT))],
    }

    def __init__(
        self,
        *,
        with_mean: bool = True,
        with_std: bool = True,
        ddof: int = 0,
        eps: float = 0.0,
        weights: Any = None,
        constant: str = "zero",
        nan_policy: str = "propagate",
        copy: bool = True,
    ) -> None:
        self.with_mean = with_mean
        self.with_std = with_std
        self.ddof = ddof
        self.eps = eps
        self.weights = weights
        self.constant = constant
        self.nan_policy = nan_policy
        self.copy = copy

    def _normalized(self, X: Array, out: Array | None) -> Array:
        weights = self._weights_of(X.shape[1])
        total: Any = X.shape[1]
        what = f"the {total} features of X"
        if weights is not None:
            with np.errstate(over="ignore"):
                total = np.sum(weights)
            what = f"the sum of the weights, {total:g}"
        if self.ddof >= total:
            raise ValueError(f"ddof must be less than {what}, got {self.ddof}")
        constant = self._constant(X, weights)
        if self.with_mean and self.with_std:
            result = self._by_norm(X, out)
        else:
            result = in_chunks(self._by_definition, X, out)
        value = 0.0 if self.constant == "zero" else np.nan
        result[constant] = np.where(np.isnan(result[constant]), np.nan, value)
        return result

    def _constant(self, X: Array, weights: Array | None) -> Array:
        """Return which rows are to become 0 or NaN because they are constant."""
        # A row of deviation 0 already is 0, but with `eps` where its weights are 0.
        already = self.constant == "zero" and (weights is None or self.eps == 0)
        if already or not self.with_std:
            return np.empty(0, np.intp)
        if weights is not None:
            X = X[:, weights > 0]
        omit = self.nan_policy == "omit"
        least, most = (np.fmin, np.fmax) if omit else (np.minimum, np.maximum)
        constant = least.reduce(X, axis=1) == most.reduce(X, axis=1)
        check_constant(constant, self.constant, "constant rows")
        return np.flatnonzero(constant)

    def _by_norm(self, X: Array, out: Array | None) -> Array:
        options: dict[str, Any] = {"ddof": self.ddof, "out": out, **self._counting(X)}
        if self.eps == 0:
            return numnorm.standard_normal_variate(X, **options)
        # AdaNorm without its factor: a layer norm with a ddof.
        return numnorm.ada_norm(X, k=0.0, eps=self.eps, **options)

    def _by_definition(self, x: Array) -> Array:
        """Return the result of one step without the other for rows of float64."""
        omit = self.nan_policy == "omit"
        valid = ~np.isnan(x)
        weights, exponent = self._relative_weights(x.shape[1])
        ddof = np.ldexp(self.ddof, -exponent)
        counts = weights > 0
        deviations, _ = centred(x, weights, counts & valid if omit else counts)
        result = deviations if self.with_mean else x
        if not self.with_std:
            return result
        # Squares of values up to 1 can neither overflow nor vanish.
        counts = valid & counts
        largest = np.max(abs(deviations), axis=1, keepdims=True, where=counts, initial=0)
        count = weight_of(weights, x.shape, counts)
        squares = np.sum((deviations / largest) ** 2 * weights, axis=1, keepdims=True, where=counts)
        divisor = np.where(count > ddof, count - ddof, np.nan)
        std = np.hypot(largest * np.sqrt(squares / divisor), self.eps**0.5)
        return np.where((largest == 0) & valid & (count > ddof), 0.0, result / std)
