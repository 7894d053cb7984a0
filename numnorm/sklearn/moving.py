"""Moving norm of each row: sequences and spectra by a window that slides along them."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.utils._param_validation import Interval

import numnorm
from numnorm.sklearn.base import Array, RowNormalizer, constraints_of, row_chunks

# Windows of values between these have deviations whose squares are in the range of float64.
_SMALL, _LARGE = 1e-130, 1e140


class MovingNormalizer(RowNormalizer):
    """Normalize each value by the mean and the deviation of a window of its row.

    Parameters
    ----------
    window : int, default=11
        The number of neighbouring features. In a shorter row the window is the row.
    center : bool, default=False
        Whether the window lies around its feature, or else ends with it. Near the ends of a row
        a centred window moves inwards and keeps its length.
    min_window : int, default=1
        The least number of features of a window that is not centred: the first features share the
        first window of that length.
    subtract_mean : bool, default=True
        Whether to subtract the mean. Without it, values are divided by the root mean square of the
        window.
    with_std : bool, default=True
        Whether to divide.
    eps : float, default=0.0
        Added to the variance.
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

    See Also
    --------
    numnorm.moving_norm : The same as a function.
    LocalStandardNormalVariate : Rows go on beyond their ends, and there is a `ddof`.

    Notes
    -----
    As exact at any offset as at 0, and an outlier changes only the windows that hold it. The time
    does not depend on the window.

    Examples
    --------
    >>> from numnorm.sklearn import MovingNormalizer
    >>> MovingNormalizer(window=2).fit_transform([[1.0, 3.0, 5.0, 5.0]])
    array([[0., 1., 1., 0.]])
    >>> centred = MovingNormalizer(window=3, center=True, with_std=False)
    >>> centred.fit_transform([[0.0, 3.0, 0.0, 6.0]])
    array([[-1.,  2., -3.,  3.]])
    """

    _parameter_constraints = {
        **constraints_of("moving_norm"),
        "window": [Interval(Integral, 1, None, closed="left")],
        "center": ["boolean"],
        "min_window": [Interval(Integral, 1, None, closed="left")],
        "subtract_mean": ["boolean"],
        "with_std": ["boolean"],
        "eps": [Interval(Real, 0, None, closed="left")],
    }

    def __init__(
        self,
        window: int = 11,
        *,
        center: bool = False,
        min_window: int = 1,
        subtract_mean: bool = True,
        with_std: bool = True,
        eps: float = 0.0,
        nan_policy: str = "propagate",
        copy: bool = True,
    ) -> None:
        self.window = window
        self.center = center
        self.min_window = min_window
        self.subtract_mean = subtract_mean
        self.with_std = with_std
        self.eps = eps
        self.nan_policy = nan_policy
        self.copy = copy

    def _validate_params(self) -> None:
        super()._validate_params()
        if self.min_window > self.window:
            most = f"at most the window, {self.window}"
            raise ValueError(f"min_window must be {most}, got {self.min_window}")
        if not self.subtract_mean and not self.with_std:
            raise ValueError("subtract_mean and with_std must not both be False")

    def _normalized(self, X: Array, out: Array | None) -> Array:
        options = {
            "center": self.center,
            "min_window": self.min_window,
            "subtract_mean": self.subtract_mean,
            "with_std": self.with_std,
            **self._counting(X),
        }
        return moving_norm_of_any_scale(X, self.window, self.eps, out, options)


def moving_norm_of_any_scale(
    x: Array, window: int, eps: float, out: Array | None, options: dict[str, Any]
) -> Array:
    """Return `moving_norm` of x, also where squares of deviations leave the range of float64."""
    if not options.get("with_std", True) or x.dtype != np.float64 or _is_moderate(x):
        return numnorm.moving_norm(x, window, eps=eps, out=out, **options)
    y: Array
    y, _, rstd = numnorm.moving_norm_forward(x, window, eps=eps, **options)
    exact = (rstd > 1 / _LARGE) & (rstd < 1 / _SMALL)
    for exponent in (-600, 700):
        with np.errstate(all="ignore"):
            scaled = np.ldexp(x, exponent)
            scaled_eps = min(np.ldexp(eps, 2 * exponent), np.finfo(np.float64).max)
        given = {"eps": float(scaled_eps), **options}
        found, _, rstd = numnorm.moving_norm_forward(scaled, window, **given)
        better = ~exact & (rstd > 1 / _LARGE) & (rstd < 1 / _SMALL)
        y[better] = found[better]
        exact |= better
    if out is None:
        return y
    out[...] = y
    return out


def _is_moderate(x: Array) -> bool:
    """Return whether all values but zeros and NaN lie between `_SMALL` and `_LARGE`."""
    for rows in row_chunks(x):
        sizes = abs(x[rows])
        sizes[sizes == 0.0] = 1.0
        if np.fmin.reduce(sizes, None) < _SMALL or np.fmax.reduce(sizes, None) > _LARGE:
            return False
    return True
