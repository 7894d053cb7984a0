"""RMS norm of each row."""

from __future__ import annotations

from numbers import Real
from typing import Any

from sklearn.utils._param_validation import Interval

import numnorm
from numnorm.sklearn.base import Array, RowNormalizer, constraints_of


class RMSNormalizer(RowNormalizer):
    """Divide each row by its root mean square, as RMS norm without gain does.

    Parameters
    ----------
    eps : float, default=1e-5
        Added to the mean square, so that small signals stay small.
    weights : array-like of shape (n_features,), default=None
        How often each feature counts in the statistics of a row, any numbers from 0 on. A feature
        of weight 0 does not count, but is normalized by those that do.
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
    sklearn.preprocessing.Normalizer : Divides by the root of the sum of squares.

    Examples
    --------
    >>> from numnorm.sklearn import RMSNormalizer
    >>> RMSNormalizer(eps=0.0).fit_transform([[1.0, 7.0]])
    array([[0.2, 1.4]])
    """

    _parameter_constraints = {
        **constraints_of("rms_norm"),
        "eps": [Interval(Real, 0, None, closed="left")],
    }

    def __init__(
        self,
        *,
        eps: float = 1e-5,
        weights: Any = None,
        nan_policy: str = "propagate",
        copy: bool = True,
    ) -> None:
        self.eps = eps
        self.weights = weights
        self.nan_policy = nan_policy
        self.copy = copy

    def _normalized(self, X: Array, out: Array | None) -> Array:
        return numnorm.rms_norm(X, eps=self.eps, out=out, **self._counting(X))
