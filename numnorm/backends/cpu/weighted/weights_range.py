"""The range of weights, in one pass over them."""

import functools

from numnorm.backends.cpu.compiler.jit import Function, make_function
from numnorm.backends.cpu.memory.host_arrays import Array


def make_in_range() -> Function:
    """Return a function ``(weights, least, largest)`` of flat weights.

    It returns whether each of them is 0 or lies between the bounds, which NaN does not.
    """

    def in_range(weights, least, largest):
        others = 0
        for k in range(weights.size):
            weight = weights[k]
            others += 0 if (weight == 0.0) | ((weight >= least) & (weight <= largest)) else 1
        return others == 0

    return make_function("weights.in_range", in_range)


_in_range = functools.cache(make_in_range)


def weights_in_range(weights: Array, least: float, largest: float) -> bool:
    """Return whether C-contiguous weights are 0 or lie between the bounds."""
    return bool(_in_range()(weights.reshape(-1), least, largest))
