"""The functions of gates, in the working type."""

import functools
from typing import Any

from numnorm.backends.cuda.elements import Element
from numnorm.backends.cuda.target import constant, device, exponential, reciprocal


@functools.cache
def make_sigmoid(element: Element) -> Any:
    """Return a device function ``sigmoid(x)``, 1 / (1 + exp(-x)).

    It is made of exp(-|x|), which cannot overflow.
    """
    exp, inverse = exponential(element), reciprocal(element)
    zero, one = constant(element, 0.0), constant(element, 1.0)

    @device
    def sigmoid(x):
        e = exp(-abs(x))
        return (one if x >= zero else e) * inverse(one + e)

    return sigmoid
