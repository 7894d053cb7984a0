"""What a call says about missing values and weights."""

from typing import Any, NamedTuple


class Weighting(NamedTuple):
    """Which elements of x count in its statistics, and how much.

    An element that is not kept is left out: its weight is 0, its result is a fill value, and it
    passes no gradient. An element that is kept, with a weight of 0, is normalized all the same.

    Attributes
    ----------
    keep : array of bool, optional
        It broadcasts against x; None keeps all elements.
    weights : array of float64, optional
        At least 0; it broadcasts against x. None is a weight of 1 for each element.
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
