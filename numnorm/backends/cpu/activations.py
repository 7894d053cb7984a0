"""Sigmoid, tanh and the rectifier, in lanes: Numba has the first two for numbers, at 12 ns each.

Those are made of e = exp(-|x|), which cannot overflow, with x reduced to k ln 2 + r. Largest
errors found: `tests/test_activations.py`.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from numnorm.backends.cpu.jit import inlined
from numnorm.backends.cpu.lane_functions import (
    ROUNDING,
    absolute,
    make_at_least,
    make_polynomial,
    one_or,
    power_of_two,
    unless_zero,
    with_sign_of,
)


class _Range(NamedTuple):
    """What the exponential of a working type needs.

    Attributes
    ----------
    least : float
        Down to this, the exponential is a normal number.
    ln2_high, ln2_low : float
        ln 2 in two parts: the first times any exponent is exact.
    degree : int
        The Taylor series of exp(r) - 1 is taken so far; the next term is below half an ulp
        for r up to ln(2) / 2.
    """

    least: float
    ln2_high: float
    ln2_low: float
    degree: int


_RANGES = {
    np.float32: _Range(-87.0, 0.693359375, -2.12194440e-4, 7),
    np.float64: _Range(-708.0, 6.93147180369123816490e-01, 1.90821492927058770002e-10, 13),
}


@functools.cache
def _make_exponential(working: Any) -> Callable[..., Any]:
    """Return a compiled ``exponential(x) -> (scale, rest)`` for x <= 0: exp(x) = scale + rest."""
    range_, rounding, log2e = _RANGES[working], ROUNDING[working], math.log2(math.e)
    ln2_high, ln2_low = range_.ln2_high, range_.ln2_low
    at_least = make_at_least(range_.least)
    series = make_polynomial(tuple(1.0 / math.factorial(n) for n in range(2, range_.degree + 1)))

    @inlined
    def exponential(x):
        x = at_least(x)
        near = x * log2e + rounding
        k = near - rounding
        r = (x - k * ln2_high) - k * ln2_low
        scale = power_of_two(near)
        return scale, (r + r * r * series(r)) * scale

    return exponential


@functools.cache
def make_sigmoid(working: Any) -> Callable[..., Any]:
    """Return a compiled ``sigmoid(x)`` of lanes, 1 / (1 + exp(-x))."""
    exponential = _make_exponential(working)

    @inlined
    def sigmoid(x):
        scale, rest = exponential(absolute(x) * -1.0)
        e = scale + rest
        return one_or(e, x) / (e + 1.0)

    return sigmoid


@functools.cache
def make_tanh(working: Any) -> Callable[..., Any]:
    """Return a compiled ``tanh(x)`` of lanes."""
    exponential = _make_exponential(working)

    @inlined
    def tanh(x):
        scale, rest = exponential(absolute(x) * -2.0)
        less_one = (scale - 1.0) + rest  # exp - 1, with all its digits near 0
        return with_sign_of(less_one / (less_one + 2.0), x)

    return tanh


class Activation(NamedTuple):
    """What a plain recurrent network makes of its sums.

    Attributes
    ----------
    value : callable
        ``value(x)``
    gradient : callable
        ``gradient(slope, value)``: that of x, from that of the value.
    """

    value: Callable[..., Any]
    gradient: Callable[..., Any]


@functools.cache
def make_activation(rectified: bool, working: Any) -> Activation:
    """Return the positive part, or tanh."""
    if rectified:
        return Activation(make_at_least(0.0), unless_zero)
    return Activation(
        make_tanh(working), inlined(lambda slope, value: slope * (1.0 - value * value))
    )
