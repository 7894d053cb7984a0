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
    Normalizer,
    RowNormalizer,
    centred,
    check_constant,
    in_chunks,
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
        The variance divides by the number of features less `ddof`.
    eps : float, default=0.0
        Added to the variance. With 0 a row of any scale comes out with deviation 1.
    constant : {"zero", "nan", "raise"}, default="zero"
        What a row becomes whose values are all equal, if `with_std`.
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
        **Normalizer._parameter_constraints,
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
        constant: str = "zero",
        nan_policy: str = "propagate",
        copy: bool = True,
    ) -> None:
        self.with_mean = with_mean
        self.with_std = with_std
        self.ddof = ddof
        self.eps = eps
        self.constant = constant
        self.nan_policy = nan_policy
        self.copy = copy

    def _normalized(self, X: Array, out: Array | None) -> Array:
        width = X.shape[1]
        if self.ddof >= width:
            raise ValueError(f"ddof must be less than the {width} features of X, got {self.ddof}")
        constant = self._constant(X)
        if self.with_mean and self.with_std:
            result = self._by_norm(X, out)
        else:
            result = in_chunks(self._by_definition, X, out)
        result[constant] = np.nan
        return result

    def _constant(self, X: Array) -> Array:
        """Return which rows are to be NaN because they are constant."""
        if self.constant == "zero" or not self.with_std:
            return np.empty(0, np.intp)
        omit = self.nan_policy == "omit"
        least, most = (np.fmin, np.fmax) if omit else (np.minimum, np.maximum)
        constant = least.reduce(X, axis=1) == most.reduce(X, axis=1)
        check_constant(constant, self.constant, "constant rows")
        return np.flatnonzero(constant)

    def _by_norm(self, X: Array, out: Array | None) -> Array:
        options: dict[str, Any] = {"ddof": self.ddof, "out": out, **self._missing()}
        if self.eps == 0:
            return numnorm.standard_normal_variate(X, **options)
        # AdaNorm without its factor: a layer norm with a ddof.
        return numnorm.ada_norm(X, k=0.0, eps=self.eps, **options)

    def _by_definition(self, x: Array) -> Array:
        """Return the result of one step without the other for rows of float64."""
        omit = self.nan_policy == "omit"
        valid = ~np.isnan(x)
        deviations, _ = centred(x, valid if omit else None)
        result = deviations if self.with_mean else x
        if not self.with_std:
            return result
        # Squares of values up to 1 can neither overflow nor vanish.
        largest = np.max(abs(deviations), axis=1, keepdims=True, where=valid, initial=0)
        count = np.sum(valid, axis=1, keepdims=True)
        squares = np.sum((deviations / largest) ** 2, axis=1, keepdims=True, where=valid)
        divisor = np.where(count > self.ddof, count - self.ddof, np.nan)
        std = np.hypot(largest * np.sqrt(squares / divisor), self.eps**0.5)
        return np.where((largest == 0) & valid & (count > self.ddof), 0.0, result / std)
