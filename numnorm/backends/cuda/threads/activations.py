"""The activation functions of gates and states, in the compute type."""

import functools
from typing import Any, NamedTuple

from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import constant, device, make_exp, make_tanh, reciprocal
from numnorm.backends.formulas.cells import tanh_gradient


@functools.cache
def make_sigmoid(element: ElementType) -> Any:
    """Return a device function ``sigmoid(x)``, 1 / (1 + exp(-x)).

    It uses exp(-|x|), which cannot overflow.
    """
    exp, inverse = make_exp(element), reciprocal(element)
    zero, one = constant(element, 0.0), constant(element, 1.0)

    @device
    def sigmoid(x):
        e = exp(-abs(x))
        return (one if x >= zero else e) * inverse(one + e)

    return sigmoid


class Activation(NamedTuple):
    """The activation of a plain recurrent network.

    Attributes
    ----------
    value : callable
        ``value(x)``
    gradient : callable
        ``gradient(grad, value)``: the gradient of x, from the gradient of the value.
    """

    value: Any
    gradient: Any


@functools.cache
def make_activation(element: ElementType, *, rectified: bool) -> Activation:
    """Return ReLU if `rectified`, otherwise tanh."""
    zero, one = constant(element, 0.0), constant(element, 1.0)
    if not rectified:
        gradient = device(tanh_gradient)
        through = device(lambda grad, value: gradient(grad, value, one))
        return Activation(make_tanh(element), through)
    return Activation(
        device(lambda x: zero if x < zero else x),  # max() would turn a NaN into 0
        device(lambda grad, value: zero if value == zero else grad),
    )
