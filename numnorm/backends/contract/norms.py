"""What a norm hands to a backend: its formula, its parameters, its scaling."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple


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

    The statistics are those of a row or column: mean and squared deviations or, if it is not
    centred, the squares alone. The gradients of gamma and beta are ``sum(dy * xhat)`` and
    ``sum(dy)``; a formula that needs others needs another kernel.

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
        How many learned parameters it has: 1 (gamma), 2 (gamma and beta), or 0: then gamma and
        beta are numbers, the norm's own.
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

    @property
    def for_empty_row(self) -> float:
        """The statistics of a row without elements: sums of nothing, over 0 or over a number."""
        return 0.0 if self.ddof < 0 else math.nan


@functools.lru_cache(maxsize=1024)
def scaling_by(eps: float, eps_on_deviation: float = 0.0, ddof: int = 0) -> Scaling:
    """Return the one `Scaling` of these numbers, which is a fast key."""
    return Scaling(eps, eps_on_deviation, ddof)


class Detached(NamedTuple):
    """Which statistics are constants in the backward pass."""

    mean: bool = False
    scale: bool = False
