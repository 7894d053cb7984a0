"""Access to optional values of a kernel: an array, a number for every index, or None.

Gamma may be None, a number (AdaNorm), one number per channel (group norm) or per element (layer
norm). With these helpers the loops are written once: the type of the value selects the code at
compile time. Each helper is a plain function with its overload for compiled code below it.
"""

import operator

import numpy as np
from numba.core import types

from numnorm.backends.cpu.compiler.jit import overloaded
from numnorm.backends.cpu.simd.vector import compiled_as


def _is_missing(kind):
    return kind is None or kind == types.none


def _first_argument(context, builder, signature, arguments):
    return arguments[0]


def _plain_part(values, index):
    return values[index] if isinstance(values, np.ndarray) else values


@compiled_as(_plain_part)
def part(typing_context, values, index):
    """Return ``values[index]`` of an array; return a number or None as it is."""
    if not isinstance(values, types.Array):
        return values(values, types.intp), _first_argument
    getitem = typing_context.resolve_function_type(operator.getitem, (values, types.intp), {})

    def generate(context, builder, signature, arguments):
        return context.get_function(operator.getitem, getitem)(builder, arguments)

    return getitem.return_type(values, types.intp), generate


def present(flag, values):
    """Return the values, or None if the flag is None."""
    return None if flag is None else values


@overloaded(present)
def _present(flag, values):
    if _is_missing(flag):
        return lambda flag, values: None
    return lambda flag, values: values


def element(values, index, default):
    """Return ``values[index]`` of an array, a number as it is, and `default` for None."""
    return default if values is None else part(values, index)


@overloaded(element)
def _element(values, index, default):
    if _is_missing(values):
        return lambda values, index, default: default
    if isinstance(values, types.Array):
        return lambda values, index, default: values[index]
    return lambda values, index, default: values


def scaled(value, scale):
    """Return ``value * scale``; a scale of None stands for 1."""
    return value if scale is None else value * scale


@overloaded(scaled)
def _scaled(value, scale):
    if _is_missing(scale):
        return lambda value, scale: value
    return lambda value, scale: value * scale
