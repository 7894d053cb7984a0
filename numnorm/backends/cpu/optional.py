"""Values that a kernel may be handed or not: each choice is made by type, when it is compiled.

A missing gamma is ``None``, AdaNorm's factors are numbers, group norm's gamma is one number a
channel and layer norm's one number an element: the loops are written once, and these helpers say
what each of them means there. Every helper is a plain function, with its compiled twin below it.
"""

import numpy as np
from numba.core import types
from numba.extending import overload

from numnorm.backends.cpu.jit import elementwise
from numnorm.backends.scalars import centre

_centre = elementwise(centre)


def _is_missing(kind):
    return kind is None or kind == types.none


def part(values, index):
    """Return ``values[index]`` of an array; a number, or None, stands for every index."""
    return values[index] if isinstance(values, np.ndarray) else values


@overload(part, inline="always")
def _part(values, index):
    if isinstance(values, types.Array):
        return lambda values, index: values[index]
    return lambda values, index: values


def stretch(values, start, stop):
    """Return ``values[start:stop]`` of an array; a number, or None, stands for every index."""
    return values[start:stop] if isinstance(values, np.ndarray) else values


@overload(stretch, inline="always")
def _stretch(values, start, stop):
    if isinstance(values, types.Array):
        return lambda values, start, stop: values[start:stop]
    return lambda values, start, stop: values


def element(values, index, default):
    """Return `part`, with `default` where it is None."""
    return default if values is None else part(values, index)


@overload(element, inline="always")
def _element(values, index, default):
    if _is_missing(values):
        return lambda values, index, default: default
    if isinstance(values, types.Array):
        return lambda values, index, default: values[index]
    return lambda values, index, default: values


def centred(value, high, low):
    """Return `value` less the mean ``high + low``, or `value` where there is no mean."""
    return value if high is None else centre(value, high, low)


@overload(centred, inline="always")
def _centred(value, high, low):
    if _is_missing(high):
        return lambda value, high, low: value
    return lambda value, high, low: _centre(value, high, low)


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


def add_to(target, index, value):
    """Add `value` to ``target[index]``, if there is a target."""
    if target is not None:
        target[index] += value


@overload(add_to, inline="always")
def _add_to(target, index, value):
    if _is_missing(target):
        return lambda target, index, value: None

    def implementation(target, index, value):
        target[index] += value

    return implementation
