"""What the backend of norms by order statistics is handed, and what it offers."""

from typing import Any, Literal, NamedTuple, Protocol

from numnorm.backends.contract.weighting import Weighting
from numnorm.layouts import RowLayout


class OrderScaling(NamedTuple):
    """How rows are centred and scaled by their order statistics.

    Attributes
    ----------
    center : {"median", "mean"} or float
    kind : {"mad", "quantiles", "range"} or None
    low, high : float
        The quantiles of the kind "quantiles".
    factor, eps : float
        The divisor is ``factor * scale + eps``.
    alpha, beta : float
    rounding : int
        Those of `formulas.order.quantile_place`.
    """

    center: Literal["median", "mean"] | float
    kind: Literal["mad", "quantiles", "range"] | None
    low: float
    high: float
    factor: float
    eps: float
    alpha: float
    beta: float
    rounding: int


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
