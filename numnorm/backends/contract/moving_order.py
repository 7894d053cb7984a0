"""Order statistics in moving windows: what a backend is handed."""

from typing import Any, NamedTuple, Protocol

from numnorm.backends.contract.moving import MovingState, Windows
from numnorm.backends.contract.order import QuantileRule, Spread
from numnorm.backends.contract.weighting import Weighting
from numnorm.layouts import MovingLayout


class OrderWindows(NamedTuple):
    """Windows of which the median is subtracted, and by what the rest is divided.

    Attributes
    ----------
    windows : Windows
        Where they lie, and the number that is added to the scale.
    spread : Spread
        The scale, with its factor.
    rule : QuantileRule
        Of all quantiles, the median included.
    """

    windows: Windows
    spread: Spread
    rule: QuantileRule


class MovingOrderBackend(Protocol):
    """Norms by order statistics of moving windows: the CPU's alone.

    x and the results are arrays of NumPy; a weighting of None keeps all steps.
    """

    def moving_order_forward(
        self,
        weighting: Weighting | None,
        x: Any,
        layout: MovingLayout,
        windows: OrderWindows,
        out: Any,
        save: bool,
    ) -> tuple[Any, Any, Any]:
        """Return y and, if `save` is true, median and scale of each step."""

    def moving_order_backward(
        self,
        weighting: Weighting | None,
        dy: Any,
        x: Any,
        median: Any,
        scales: Any,
        layout: MovingLayout,
        windows: OrderWindows,
        out: Any,
    ) -> Any:
        """Return dx."""

    def moving_order_step(
        self,
        weighting: Weighting | None,
        x: Any,
        state: MovingState | None,
        layout: MovingLayout,
        windows: OrderWindows,
        out: Any,
    ) -> tuple[Any, MovingState]:
        """Return y of the next chunk, and the state after it."""
