"""The standard normal variate in a window that slides along each row."""

from __future__ import annotations

from numbers import Integral

import numpy as np
from sklearn.utils._param_validation import Interval, StrOptions

from numnorm.sklearn.base import Array, Normalizer, RowNormalizer, in_chunks


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
    It squares deviations, so that no offset of the data costs digits, and an outlier
    or a NaN changes only the windows that hold it. The middle of a constant window becomes 0.

    Examples
    --------
    >>> from numnorm.sklearn import LocalStandardNormalVariate
    >>> local = LocalStandardNormalVariate(window=3, pad_mode="edge")
    >>> local.fit_transform([[1.0, 1.0, 1.0, 4.0]]).round(4)
    array([[ 0.    ,  0.    , -0.7071,  0.7071]])
    """

    _parameter_constraints = {
        **Normalizer._parameter_constraints,
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
        copy: bool = True,
    ) -> None:
        self.window = window
        self.ddof = ddof
        self.pad_mode = pad_mode
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
        neighbours = [padded[:, k : k + x.shape[1]] for k in range(self.window)]
        # Deviations from the value in the middle: small where the row is far from 0.
        mean, squares = np.zeros_like(x), np.zeros_like(x)
        for neighbour in neighbours:
            mean += neighbour - x
        mean /= self.window
        for neighbour in neighbours:
            squares += (neighbour - x - mean) ** 2
        return np.where(squares == 0, 0.0, -mean / np.sqrt(squares / (self.window - self.ddof)))
