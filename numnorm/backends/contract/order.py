"""What the backend of norms by order statistics is handed, and what it offers."""

from typing import Any, Literal, NamedTuple, Protocol

from numnorm.backends.contract.weighting import Weighting
from numnorm.layouts import RowLayout


class Spread(NamedTuple):
    """The scale of a norm by order statistics.

    Attributes
    ----------
    kind : {"mad", "quantiles", "range"} or None
        The median absolute deviation, the distance of two quantiles, that of the least and the
        largest element, or none.
    low, high : float
        The quantiles; 0 and 1 for the other kinds.
    factor : float
        By which the scale is multiplied.
    """

    kind: Literal["mad", "quantiles", "range"] | None
    low: float
    high: float
    factor: float


class QuantileRule(NamedTuple):
    """A method of `numpy.quantile`: numbers that compiled code takes, too.

    Attributes
    ----------
    alpha, beta : float
        Those of Hyndman and Fan (1996): the place of a quantile is
        ``n q + alpha + q (1 - alpha - beta) - 1``.
    rounding : int
        What becomes of a place between two elements: a number of `formulas.order`.
    """

    alpha: float
    beta: float
    rounding: int


class OrderScaling(NamedTuple):
    """How rows are centred and scaled by their order statistics.

    Attributes
    ----------
    center : {"median", "mean"} or float
    spread : Spread
        The scale, with its factor.
    eps : float
        Added to the scale.
    rule : QuantileRule
        Of all quantiles, the median included.
    """

    center: Literal["median", "mean"] | float
    spread: Spread
    eps: float
    rule: QuantileRule


class OrderBackend(Protocol):
    """Norms by order statistics of rows: the CPU's alone."""

    def order_forward(
        self,
        x: Any,
        layout: RowLayout,
        scaling: OrderScaling,
        weighting: Weighting | None,
        out: Any,
    ) -> tuple[Any, Any, Any]:
        """Return y, and the center and the scale of each row."""

    def order_backward(
        self,
        dy: Any,
        x: Any,
        scale: Any,
        layout: RowLayout,
        scaling: OrderScaling,
        weighting: Weighting | None,
        out: Any,
    ) -> Any:
        """Return dx."""
