"""The description of a norm for a backend: formula, parameters, scaling."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple


class Names(NamedTuple):
    """The names of a norm's arguments in error messages."""

    x: str = "x"
    dy: str = "dy"
    rstd: str = "rstd"
    gamma: str = "gamma"


_DEFAULT_NAMES = Names()

SMALLEST_VARIANCE = 1e-301
"""Below this variance squares have lost digits to underflow in float64."""


@dataclasses.dataclass(frozen=True, eq=False)
class Formula:
    """The formula of a kernel; norms with the same formula share their kernels.

    A centred norm uses the mean and the squared deviations of a row or column, any other norm the
    squares. The gradients of gamma and beta are ``sum(dy * xhat)`` and ``sum(dy)``.

    Parameters
    ----------
    name : str
        Part of the names of compiled kernels in the cache.
    centred : bool
        Whether the mean is subtracted.
    forward : callable
        ``forward(xhat, gamma, beta)``: the output, a plain scalar function.
    backward : callable
        ``backward(dy, xhat, gamma, beta)``: the gradient of `xhat`.
    """

    name: str
    centred: bool
    forward: Callable[..., Any]
    backward: Callable[..., Any]


@dataclasses.dataclass(frozen=True, eq=False)
class Norm:
    """A norm: its formula and its parameters.

    Parameters
    ----------
    formula : Formula
        Its statistics and its output.
    parameters : int
        The number of learned parameters: 1 (gamma) or 2 (gamma and beta). With 0, gamma and beta
        are fixed numbers.
    names : Names
        The names of its arguments in error messages.
    of_length : bool
        Whether a row is divided by the root of its sum of squares in place of their mean.
    """

    formula: Formula
    parameters: int
    names: Names = _DEFAULT_NAMES
    of_length: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Scaling:
    """The numbers in the scale of a row: ``sqrt(m2 / (n - ddof) + eps) + eps_on_deviation``."""

    eps: float
    eps_on_deviation: float = 0.0
    ddof: int = 0

    @property
    def for_empty_row(self) -> float:
        """The statistics of an empty row: NaN (0 / 0), but 0 if ddof is negative.

        With a negative ddof the divisor 0 - ddof is positive.
        """
        return 0.0 if self.ddof < 0 else math.nan


@functools.lru_cache(maxsize=1024)
def scaling_by(eps: float, eps_on_deviation: float = 0.0, ddof: int = 0) -> Scaling:
    """Return the only `Scaling` with these numbers: it is compared and hashed by identity."""
    return Scaling(eps, eps_on_deviation, ddof)


class Detached(NamedTuple):
    """Which statistics the backward pass treats as constants."""

    mean: bool = False
    scale: bool = False


class ChannelSums(NamedTuple):
    """Sums over each channel of all data, for the gradient of a part of them.

    Attributes
    ----------
    per_channel : int
        The number of values in a channel.
    products : array of float64
        The sum of ``dy * xhat``. This xhat is of the mean as rounded to the compute type.
    dy : array of float64
        The sum of dy.
    """

    per_channel: int
    products: Any
    dy: Any
