"""Sigmoid, tanh and the rectifier, in lanes: Numba has the first two for numbers alone.

Those are made of the exponential, whose argument is reduced to k ln 2 + r. Largest
errors found: `tests/test_activations.py`.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.simd.functions import (
    ROUNDING,
    absolute,
    make_at_least,
    make_at_most,
    make_polynomial,
    power_of_two,
    reciprocal,
    unless_zero,
    with_sign_of,
)


class _Range(NamedTuple):
    """What the exponential of a working type needs.

    Attributes
    ----------
    limit : float
        Up to this, the exponential and its inverse are normal numbers.
    ln2_high, ln2_low : float
        ln 2 in two parts: the first times any exponent is exact.
    series : tuple of float
        The polynomial that r * r is to be multiplied by for exp(r) - 1 - r, with the smallest
        largest error relative to exp(r) for r up to ln(2) / 2, found by Remez's exchange: 3.1e-9
        and 3.6e-18.
    """

    limit: float
    ln2_high: float
    ln2_low: float
    series: tuple[float, ...]


_RANGES = {
    np.float32: _Range(
        87.0,
        0.693359375,
        -2.12194440e-4,
        (
            0.49999993448597606,
            0.16666520630054366,
            0.041668387877102721,
            0.0083687170388504788,
            0.0013814607302996783,
        ),
    ),
    np.float64: _Range(
        708.0,
        6.93147180369123816490e-01,
        1.90821492927058770002e-10,
        (
            0.50000000000000106271,
            0.16666666666666412522,
            0.04166666666653015876,
            0.0083333333334944626,
            0.0013888888943630070,
            0.00019841269506576397,
            2.4801493098947544e-05,
            2.7557586375990774e-06,
            2.7630248366114965e-07,
            2.5000060913375838e-08,
        ),
    ),
}


@functools.cache
def _make_exp(compute_type: Any) -> Callable[..., Any]:
    """Return a compiled ``exp(x) -> (scale, rest)``, whose sum it is, within the limit."""
    range_, rounding, log2e = _RANGES[compute_type], ROUNDING[compute_type], math.log2(math.e)
    ln2_high, ln2_low, series = range_.ln2_high, range_.ln2_low, make_polynomial(range_.series)

    @inlined
    def exp(x):
        near = x * log2e + rounding
        k = near - rounding
        r = (x - k * ln2_high) - k * ln2_low
        scale = power_of_two(near)
        return scale, (r + r * r * series(r)) * scale

    return exp


@functools.cache
def make_sigmoid(compute_type: Any) -> Callable[..., Any]:
    """Return a compiled ``sigmoid(x)`` of lanes, 1 / (1 + exp(-x))."""
    exp, limit = _make_exp(compute_type), _RANGES[compute_type].limit
    at_least, at_most = make_at_least(-limit), make_at_most(limit)

    @inlined
    def sigmoid(x):
        scale, rest = exp(at_most(at_least(x)) * -1.0)
        return reciprocal((scale + 1.0) + rest)

    return sigmoid


@functools.cache
def make_tanh(compute_type: Any) -> Callable[..., Any]:
    """Return a compiled ``tanh(x)`` of lanes, (exp(2 x) - 1) / (exp(2 x) + 1)."""
    exp, at_most = (_make_exp(compute_type), make_at_most(_RANGES[compute_type].limit))

    @inlined
    def tanh(x):
        scale, rest = exp(at_most(absolute(x) * 2.0))
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
        ``gradient(grad, value)``: that of x, from that of the value.
    """

    value: Callable[..., Any]
    gradient: Callable[..., Any]


@functools.cache
def make_activation(rectified: bool, compute_type: Any) -> Activation:
    """Return the positive part, or tanh."""
    if rectified:
        return Activation(make_at_least(0.0), unless_zero)
    return Activation(
        make_tanh(compute_type), inlined(lambda grad, value: grad * (1.0 - value * value))
    )
