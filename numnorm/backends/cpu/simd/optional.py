"""Values that a kernel may be handed or not: each choice is made by type, when it is compiled.

A missing gamma is ``None``, AdaNorm's factors are numbers, group norm's gamma is one number a
channel and layer norm's one number an element: the loops are written once, and these helpers say
what each of them means there. Every helper is a plain function, with its compiled twin below it.
"""

import operator

import numpy as np
from numba.core import types
from numba.extending import overload

from numnorm.backends.cpu.simd.vector import compiled_as


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


def slice_or_scalar(values, left, right):
    """Return ``values[left:right]`` of an array; a number, or None, stands for every index."""
    return values[left:right] if isinstance(values, np.ndarray) else values


@overload(slice_or_scalar, inline="always")
def _slice_or_scalar(values, left, right):
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
