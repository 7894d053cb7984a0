"""Sigmoid, and tanh and ReLU with their gradients, of vectors.

Sigmoid and tanh use an exponential with the argument reduced to k ln 2 + r, because Numba has
`exp` of scalars only.
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
    with_sign_of,
)


class _Range(NamedTuple):
    """The constants of the exponential in a compute type.

    Attributes
    ----------
    limit : float
        For x up to this, exp(x) and exp(-x) are normal numbers.
    ln2_hi, ln2_lo : float
        ln 2 in two parts; k * ln2_hi is exact.
    series : tuple of float
        The polynomial (exp(r) - 1 - r) / (r * r): the minimax approximation relative to exp(r) for
        abs(r) up to ln(2) / 2, by the Remez algorithm. Its errors are 3.1e-9 and 3.6e-18.
    """

    limit: float
    ln2_hi: float
    ln2_lo: float
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
    """Return a compiled ``exp(x) -> (scale, remainder)``; ``exp(x)`` is their sum.

    `x` must be within the limit, and ``scale`` is a power of two.
    """
    range_, rounding, log2e = _RANGES[compute_type], ROUNDING[compute_type], math.log2(math.e)
    ln2_hi, ln2_lo, series = range_.ln2_hi, range_.ln2_lo, make_polynomial(range_.series)

    @inlined
    def exp(x):
        shifted = x * log2e + rounding
        k = shifted - rounding
        r = (x - k * ln2_hi) - k * ln2_lo
        scale = power_of_two(shifted)
        return scale, (r + r * r * series(r)) * scale

    return exp


@functools.cache
def make_sigmoid(compute_type: Any) -> Callable[..., Any]:
    """Return a compiled ``sigmoid(x)`` of a vector: 1 / (1 + exp(-x))."""
    exp, limit = _make_exp(compute_type), _RANGES[compute_type].limit
    at_least, at_most = make_at_least(-limit), make_at_most(limit)

    @inlined
    def sigmoid(x):
        scale, remainder = exp(at_most(at_least(x)) * -1.0)
        return reciprocal((scale + 1.0) + remainder)

    return sigmoid


@functools.cache
def make_tanh(compute_type: Any) -> Callable[..., Any]:
    """Return a compiled ``tanh(x)`` of a vector: (exp(2 x) - 1) / (exp(2 x) + 1)."""
    exp, at_most = _make_exp(compute_type), make_at_most(_RANGES[compute_type].limit)

    @inlined
    def tanh(x):
        scale, remainder = exp(at_most(absolute(x) * 2.0))
        expm1 = (scale - 1.0) + remainder  # without cancellation near 0
        return with_sign_of(expm1 / (expm1 + 2.0), x)

    return tanh


def make_activation(rectified: bool, compute_type: Any) -> Callable[..., Any]:
    """Return the compiled activation of a plain recurrent network: ReLU or tanh."""
    return make_at_least(0.0) if rectified else make_tanh(compute_type)
