"""The groups of arguments that the kernels of rows take."""

from typing import Any, NamedTuple


class Parameters(NamedTuple):
    """What normalized elements are mapped by: matrices, numbers or None."""

    gamma: Any
    beta: Any


class Segments(NamedTuple):
    """The width of the segments that rows are cut into, each of a channel, and all channels."""

    segment: int
    channels: int


class Scaling(NamedTuple):
    """Both epsilons, and the divisor of the squares."""

    eps: float
    eps_on_deviation: float
    divisor: float


class Statistics(NamedTuple):
    """The mean and the reciprocal deviation of each row."""

    mean: Any
    rstd: Any


class GradientCoefficients(NamedTuple):
    """1 over the number of elements for each statistic, 0 if it is detached, and an epsilon."""

    inv_count: float
    inv_divisor: float
    eps_on_deviation: float
