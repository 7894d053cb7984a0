"""Layer norm of each row."""

from __future__ import annotations

from numbers import Real
from typing import Any

from sklearn.utils._param_validation import Interval

import numnorm
from numnorm.sklearn.base import Array, RowNormalizer, constraints_of


class LayerNormalizer(RowNormalizer):
    """Normalize each row to mean 0 and variance 1, as layer norm without gain and bias does.

    Parameters
    ----------
    eps : float, default=1e-5
        Added to the variance, so that small signals stay small.
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
    StandardNormalVariate : The same without epsilon, for data of any scale.

    Examples
    --------
    >>> from numnorm.sklearn import LayerNormalizer
    >>> LayerNormalizer().fit_transform([[1.0, 2.0, 3.0]]).round(4)
    array([[-1.2247,  0.    ,  1.2247]])
    """

    _parameter_constraints = {
        **constraints_of("layer_norm"),
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
        return numnorm.layer_norm(X, eps=self.eps, out=out, **self._counting(X))
