"""The groups of arguments that the kernels of rows take."""

from typing import Any, NamedTuple


class Parameters(NamedTuple):
    """Gamma and beta, or their gradients or sums: arrays, numbers or None."""

    gamma: Any
    beta: Any


class Segments(NamedTuple):
    """The width of a row's segments, which each belong to a channel, and the number of channels."""

    segment: int
    channels: int


class Scaling(NamedTuple):
    """Both epsilons, and the divisor of the sum of squares."""

    eps: float
    eps_on_deviation: float
    divisor: float


class Statistics(NamedTuple):
    """The mean and the reciprocal deviation of each row."""

    mean: Any
    rstd: Any


class GradientCoefficients(NamedTuple):
    """The factors of the gradients through mean and scale, 0 if detached, and an epsilon."""

    inv_count: float
    inv_divisor: float
    eps_on_deviation: float
