"""The standard normal variate in a window that slides along each row."""

from __future__ import annotations

from numbers import Integral

import numpy as np
from sklearn.utils._param_validation import Interval, StrOptions

from numnorm.sklearn.base import Array, RowNormalizer, constraints_of, in_chunks
from numnorm.sklearn.moving import moving_norm_of_any_scale


class LocalStandardNormalVariate(RowNormalizer):
    """Subtract from each value the mean of a window around it, and divide by its deviation.

    Parameters
    ----------
    window : int, default=11
        The number of neighbouring features, odd and at least 3.
    ddof : int, default=0
        The variance divides by `window` less `ddof`.
    pad_mode : {"reflect", "symmetric", "edge"}, default="reflect"
        How a row goes on beyond its ends, as in `numpy.pad`.
    nan_policy : {"propagate", "omit", "raise"}, default="propagate"
        Whether a NaN makes the windows that hold it NaN, is left out of them and stays NaN, or is
        an error.
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
    As exact at any offset as at 0, and an outlier changes only the windows that hold it. The
    middle of a constant window becomes 0. The time does not depend on the window.

    Examples
    --------
    >>> from numnorm.sklearn import LocalStandardNormalVariate
    >>> local = LocalStandardNormalVariate(window=3, pad_mode="edge")
    >>> local.fit_transform([[1.0, 1.0, 1.0, 4.0]]).round(4)
    array([[ 0.    ,  0.    , -0.7071,  0.7071]])
    """

    _parameter_constraints = {
        **constraints_of("moving_norm"),
        "window": [Interval(Integral, 3, None, closed="left")],
        "ddof": [Interval(Integral, 0, None, closed="left")],
        "pad_mode": [StrOptions({"reflect", "symmetric", "edge"})],
    }

    def __init__(
        self,
        window: int = 11,
        *,
        ddof: int = 0,
        pad_mode: str = "reflect",
        nan_policy: str = "propagate",
        copy: bool = True,
    ) -> None:
        self.window = window
        self.ddof = ddof
        self.pad_mode = pad_mode
        self.nan_policy = nan_policy
        self.copy = copy

    def _normalized(self, X: Array, out: Array | None) -> Array:
        if self.window % 2 == 0:
            raise ValueError(f"window must be odd, got {self.window}")
        if self.ddof >= self.window:
            raise ValueError(f"ddof must be less than the window, {self.window}, got {self.ddof}")
        return in_chunks(self._by_definition, X, out)

    def _by_definition(self, x: Array) -> Array:
        beside = self.window // 2
        padded = np.pad(x, ((0, 0), (beside, beside)), mode=self.pad_mode)  # type: ignore[call-overload]
        options = {"center": True, **self._counting(x)}
        windows = moving_norm_of_any_scale(padded, self.window, 0.0, None, options)
        result: Array = windows[:, beside : beside + x.shape[1]]
        if self.ddof:
            count = self._count(padded)
            rest = np.where(count > self.ddof, count - self.ddof, np.nan)
            result *= np.sqrt(rest / count)
        return result

    def _count(self, padded: Array) -> Array:
        """Return the number of values of each window."""
        if self.nan_policy != "omit":
            return np.array(self.window)
        until: Array = np.cumsum(~np.isnan(padded), axis=1)
        counts: Array = (
            until[:, self.window - 1 :] - np.pad(until, ((0, 0), (1, 0)))[:, : -self.window]
        )
        return counts
