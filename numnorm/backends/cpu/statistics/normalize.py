"""The normalization formula on vectors, with a mean or without; a mean as mean_hi + mean_lo."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numba.core import types

from numnorm.backends.cpu.compiler.jit import inlined, overloaded
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.optional import _is_missing, scaled
from numnorm.backends.cpu.simd.vector import multiply_add
from numnorm.backends.formulas import norms as formulas

_normalized = inlined(formulas.normalized)


def _or_one(scale):
    return 1 if scale is None else scale


@overloaded(_or_one)
def _number_or_one(scale):
    if _is_missing(scale):
        return lambda scale: 1
    return lambda scale: scale


def _centred_normalized(value, scale, mean_hi, mean_lo, rstd):
    return _normalized(value, _or_one(scale), mean_hi, mean_lo, rstd, multiply_add)


def _uncentred_normalized(value, scale, mean_hi, mean_lo, rstd):
    return scaled(value, scale) * rstd


def make_normalized(centred: bool) -> Callable[..., Any]:
    """Return a compiled ``normalized(value, scale, mean_hi, mean_lo, rstd)`` of a vector.

    It is the formula of that name, or ``value * scale * rstd`` if not centred. A scale of None
    means 1.
    """
    return inlined(_centred_normalized if centred else _uncentred_normalized)


@functools.cache
def make_factor(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``factor(rstd)``: the nearest finite number of the compute type.

    Only a constant row has a larger rstd, with a very small epsilon: 0 * infinity would be NaN.
    """
    real, largest = element_type.compute_type, element_type.largest

    @inlined
    def factor(rstd):
        return real(largest if rstd > largest else rstd)

    return factor


def joined(mean_hi, mean_lo):
    """Return the mean in float64."""
    return np.float64(mean_hi) + np.float64(mean_lo)


@overloaded(joined)
def _joined(mean_hi, mean_lo):
    return lambda mean_hi, mean_lo: np.float64(mean_hi) + np.float64(mean_lo)


def location(mean_hi, mean_lo, rstd):
    """Return the mean in float64, or the root mean square, 1 / rstd, if mean_hi is None.

    It is NaN if rstd is: an infinity in a row may give an infinite mean or NaN, by its place.
    """
    if mean_hi is None:
        return 1.0 / rstd if rstd != 0.0 else 0.0
    return joined(mean_hi, mean_lo) if rstd == rstd else rstd


@overloaded(location)
def _location(mean_hi, mean_lo, rstd):
    if _is_missing(mean_hi):
        return lambda mean_hi, mean_lo, rstd: 1.0 / rstd if rstd != 0.0 else 0.0

    def mean(mean_hi, mean_lo, rstd):
        return np.float64(mean_hi) + np.float64(mean_lo) if rstd == rstd else np.float64(rstd)

    return mean


def split(mean, scale):
    """Return (mean_hi, mean_lo), of the type of `scale`, with the sum ``mean * scale``.

    Both are None if the mean is None.
    """
    if mean is None:
        return None, None
    mean_hi = type(scale)(mean * scale)
    return mean_hi, type(scale)(mean * scale - mean_hi)


@overloaded(split)
def _split(mean, scale):
    if _is_missing(mean):
        return lambda mean, scale: (None, None)
    kind = np.float32 if scale == types.float32 else np.float64

    def implementation(mean, scale):
        mean_hi = kind(mean * scale)
        return mean_hi, kind(mean * scale - mean_hi)

    return implementation
