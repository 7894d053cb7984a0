"""Values that a kernel may be handed or not: each choice is made by type, when it is compiled.

A missing gamma is ``None``, AdaNorm's factors are numbers, group norm's gamma is one number a
channel and layer norm's one number an element: the loops are written once, and these helpers say
what each of them means there. Every helper is a plain function, with its compiled twin below it.
"""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from numba.core import types
from numba.extending import overload

from numnorm.backends.cpu.jit import inlined
from numnorm.backends.cpu.lanes import compiled_as, multiply_add


def _is_missing(kind):
    return kind is None or kind == types.none


def _first_argument(context, builder, signature, arguments):
    return arguments[0]


def _plain_part(values, index):
    return values[index] if isinstance(values, np.ndarray) else values


@compiled_as(_plain_part)
def part(typing_context, values, index):
    """Return ``values[index]`` of an array; a number, or None, stands for every index."""
    if not isinstance(values, types.Array):
        return values(values, types.intp), _first_argument
    getitem = typing_context.resolve_function_type(operator.getitem, (values, types.intp), {})

    def generate(context, builder, signature, arguments):
        return context.get_function(operator.getitem, getitem)(builder, arguments)

    return getitem.return_type(values, types.intp), generate


def stretch(values, left, right):
    """Return ``values[left:right]`` of an array; a number, or None, stands for every index."""
    return values[left:right] if isinstance(values, np.ndarray) else values


@overload(stretch, inline="always")
def _stretch(values, left, right):
    if isinstance(values, types.Array):
        return lambda values, left, right: values[left:right]
    return lambda values, left, right: values


def present(flag, values):
    """Return the values, or None if the flag is None: the choice is made by the flag's type."""
    return None if flag is None else values


@overload(present, inline="always")
def _present(flag, values):
    if _is_missing(flag):
        return lambda flag, values: None
    return lambda flag, values: values


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


def scaled(value, scale):
    """Return ``value * scale``; the value itself where the scale is None, which stands for 1."""
    return value if scale is None else value * scale


@overload(scaled, inline="always")
def _scaled(value, scale):
    if _is_missing(scale):
        return lambda value, scale: value
    return lambda value, scale: value * scale


def deviation(value, scale, high):
    """Return ``value * scale - high`` of lanes, with one sign of 0 wherever it is compiled."""
    return scaled(value, scale) - high


@overload(deviation, inline="always")
def _deviation(value, scale, high):
    if _is_missing(scale):
        return lambda value, scale, high: multiply_add(value, 1, -high)
    return lambda value, scale, high: multiply_add(value, scale, -high)


def _centred_and_divided(value, scale, high, low, rstd):
    # `low * rstd` is one number of all lanes: this takes an instruction less than to subtract
    # `low` from what is left of them, and rounds once less.
    return multiply_add(deviation(value, scale, high), rstd, -(low * rstd))


def _divided_alone(value, scale, high, low, rstd):
    return scaled(value, scale) * rstd


def make_normalized(centred: bool) -> Callable[..., Any]:
    """Return a compiled ``normalized(value, scale, high, low, rstd)`` of lanes.

    It is ``(value * scale - mean) * rstd`` of a mean that is ``high + low``, or of none. `low` is
    what rounding the mean to `high` lost.
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
