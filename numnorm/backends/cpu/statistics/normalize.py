"""The CPU's normalization formula, of vectors of elements, with a mean or without."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba.core import types
from numba.extending import overload

from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.simd.optional import _is_missing, scaled
from numnorm.backends.cpu.simd.vector import multiply_add
from numnorm.backends.formulas import norms as formulas

_normalized = inlined(formulas.normalized)


def _or_one(scale):
    return 1 if scale is None else scale


@overload(_or_one, inline="always")
def _number_or_one(scale):
    if _is_missing(scale):
        return lambda scale: 1
    return lambda scale: scale


def _centred_and_divided(value, scale, high, low, rstd):
    return _normalized(value, _or_one(scale), high, low, rstd, multiply_add)


def _divided_alone(value, scale, high, low, rstd):
    return scaled(value, scale) * rstd


def make_normalized(centred: bool) -> Callable[..., Any]:
    """Return a compiled ``normalized(value, scale, high, low, rstd)`` of lanes.

    It is the formula of that name, or ``value * scale * rstd`` where there is no mean.
    """
    return inlined(_centred_and_divided if centred else _divided_alone)


def joined(high, low):
    """Return the mean in float64."""
    return np.float64(high) + np.float64(low)


@overload(joined, inline="always")
def _joined(high, low):
    return lambda high, low: np.float64(high) + np.float64(low)


def location(high, low, rstd):
    """Return the mean in float64; where there is none, the root mean square, 1 / rstd."""
    if high is None:
        return 1.0 / rstd if rstd != 0.0 else 0.0
    return joined(high, low)


@overload(location, inline="always")
def _location(high, low, rstd):
    if _is_missing(high):
        return lambda high, low, rstd: 1.0 / rstd if rstd != 0.0 else 0.0
    return lambda high, low, rstd: np.float64(high) + np.float64(low)


def split(mean, scale):
    """Return (high, low), of the type of `scale`, whose sum is ``mean * scale``; Nones for None."""
    if mean is None:
        return None, None
    high = type(scale)(mean * scale)
    return high, type(scale)(mean * scale - high)


@overload(split, inline="always")
def _split(mean, scale):
    if _is_missing(mean):
        return lambda mean, scale: (None, None)
    kind = np.float32 if scale == types.float32 else np.float64

    def implementation(mean, scale):
        high = kind(mean * scale)
        return high, kind(mean * scale - high)

    return implementation
