"""What a norm hands to a backend, and what a backend must offer."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from numnorm.arguments import ColumnLayout, RowLayout, Shape


class Names(NamedTuple):
    """What a norm's arguments are called, for messages."""

    x: str = "x"
    dy: str = "dy"
    rstd: str = "rstd"
    gamma: str = "gamma"


_DEFAULT_NAMES = Names()


@dataclasses.dataclass(frozen=True, eq=False)
class Formula:
    """What a kernel is made from; norms with one formula share their kernels.

    Parameters
    ----------
    name : str
        Names the compiled kernels in the cache.
    centred : bool
        Whether the mean is subtracted.
    forward : callable
        ``forward(xhat, gamma, beta)``, the map of the normalized value, a plain scalar function.
    backward : callable
        ``backward(dy, xhat, gamma, beta)``, the gradient with respect to `xhat`.
    """

    name: str
    centred: bool
    forward: Callable[..., Any]
    backward: Callable[..., Any]


@dataclasses.dataclass(frozen=True, eq=False)
class Norm:
    """A norm: a formula, and what its arguments are.

    Parameters
    ----------
    formula : Formula
        Which statistics it uses, and its map of the normalized value.
    parameters : int
        How many learned parameters it has: 0, 1 (gamma) or 2 (gamma and beta).
    names : Names
        What its arguments are called where they are not called that.
    """

    formula: Formula
    parameters: int
    names: Names = _DEFAULT_NAMES


@dataclasses.dataclass(frozen=True, eq=False)
class Scaling:
    """How a row's scale follows from its squares: the denominator and both places of epsilon."""

    eps: float
    eps_on_deviation: float = 0.0
    ddof: int = 0


@functools.lru_cache(maxsize=1024)
def scaling_by(eps: float, eps_on_deviation: float = 0.0, ddof: int = 0) -> Scaling:
    """Return the one `Scaling` of these numbers, which is a fast key."""
    return Scaling(eps, eps_on_deviation, ddof)


class Detached(NamedTuple):
    """Which statistics are constants in the backward pass."""

    mean: bool = False
    scale: bool = False


class Backend(Protocol):
    """The functions of a backend's package; arrays are of that backend's own type.

    Every `x` has been through `as_float_array`.
    """

    def as_float_array(self, name: str, value: Any) -> Any:
        """Return an array of a supported float dtype; integers and bool become float64."""

    def as_statistic(self, name: str, value: Any, expected: Shape, meaning: str) -> Any:
        """Return a saved statistic, checked, as a 1-D array of float64."""

    def row_forward(
        self,
        norm: Norm,
        x: Any,
        gamma: Any,
        beta: Any,
        layout: RowLayout,
        scaling: Scaling,
        out: Any,
        save: bool,
    ) -> tuple[Any, Any, Any]:
        """Return y and, where `save` is true, mean and rstd of each row.

        An uncentred row's root mean square, 1 / rstd, takes the place of its mean.
        """

    def row_backward(
        self,
        norm: Norm,
        dy: Any,
        x: Any,
        mean: Any,
        rstd: Any,
        gamma: Any,
        beta: Any,
        layout: RowLayout,
        scaling: Scaling,
        detached: Detached,
        out: Any,
    ) -> tuple[Any, Any, Any]:
        """Return dx and, where the layout has parameters, dgamma and dbeta."""

    def column_moments(
        self, x: Any, layout: ColumnLayout, after: tuple[int, Any, Any] | None
    ) -> tuple[int, Any, Any]:
        """Return (count, mean, m2) of each channel, going on from `after`."""

    def column_forward(
        self,
        norm: Norm,
        x: Any,
        mean: Any,
        rstd: Any,
        gamma: Any,
        beta: Any,
        layout: ColumnLayout,
        out: Any,
    ) -> Any:
        """Return x normalized by the given statistics of each channel."""

    def column_backward(
        self,
        norm: Norm,
        dy: Any,
        x: Any,
        mean: Any,
        rstd: Any,
        gamma: Any,
        layout: ColumnLayout,
        detached: Detached,
        out: Any,
    ) -> tuple[Any, Any, Any]:
        """Return dx, dgamma, dbeta."""
