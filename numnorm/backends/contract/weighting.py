"""What a call says about missing values and weights."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Weighting(NamedTuple):
    """Which elements of x count in its statistics, and how much.

    An element that is not kept is left out: its weight is 0, its result is a fill value, and it
    passes no gradient. An element that is kept, with a weight of 0, is normalized all the same.

    Attributes
    ----------
    keep : array of bool, optional
        It broadcasts against x; None keeps all elements.
    weights : array of float64, optional
        At least 0; it broadcasts against x. None is a weight of 1 for each element. For statistics
        of channels on the CPU it may be float32.
    omit : bool
        Whether NaN is left out, too.
    fill : float
        The result where `keep` is false.
    fill_missing : float
        The result where NaN is left out.
    """

    keep: Any
    weights: Any
    omit: bool
    fill: float
    fill_missing: float


KEEP_ALL = Weighting(keep=None, weights=None, omit=False, fill=0.0, fill_missing=0.0)


class WeightedInput(NamedTuple):
    """An array with its weighting: what norms get in place of x. It has a backend of its own.

    Attributes
    ----------
    x : array
        The array as the caller gave it.
    weighting : Weighting
        Which of its elements count, and how much.
    """

    x: Any
    weighting: Weighting

    def folded(self, x: Any, fold: Callable[[str, Any], Any]) -> "WeightedInput":
        """Return it for an x in another shape, into which `fold` brings arrays of the old shape."""
        keep, weights = (
            None if value is None else fold("x", np.broadcast_to(value, np.shape(self.x)))
            for value in self.weighting[:2]
        )
        return WeightedInput(x, self.weighting._replace(keep=keep, weights=weights))
