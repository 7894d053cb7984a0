"""Access to optional values of a kernel: an array, a number for every index, or None.

Gamma may be None, a number (AdaNorm), one number per channel (group norm) or per element (layer
norm). With these helpers the loops are written once: the type of the value selects the code at
compile time. Each helper of scalars is a plain function with its overload for compiled code below
it. Those of vectors load from and add to arrays that may be None.
"""

import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from numba.core import types

from numnorm.backends.cpu.compiler.jit import overloaded
from numnorm.backends.cpu.simd.masked import make_masked_load, masked_load_at, masked_store_at
from numnorm.backends.cpu.simd.vector import (
    Vector,
    compiled_as,
    fused,
    load_from,
    make_load,
    pointer_of,
    store_at,
)

# Scalars


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


# Vectors


def _result_of(values: Any, default: Any, count: int) -> Any:
    if isinstance(values, types.Array):
        return Vector(values.dtype, count)
    return default if values == types.none else values


@functools.cache
def make_load_or_scalar(count: int) -> Callable[..., Any]:
    """Return a compiled ``load_or_scalar(values, index, default)``.

    It loads a vector of `count` lanes from an array, returns a number as it is, and `default` for
    None.
    """
    load = make_load(count)

    def plain(values, index, default):
        if isinstance(values, np.ndarray):
            return load(values, index)
        return default if values is None else values

    @compiled_as(plain)
    def load_or_scalar(typing_context, values, index, default):
        result = _result_of(values, default, count)

        def generate(context, builder, signature, arguments):
            if not isinstance(values, types.Array):
                return arguments[2 if values == types.none else 0]
            return load_from(builder, pointer_of(context, builder, values, arguments, count))

        return result(values, types.intp, default), generate

    return load_or_scalar


@functools.cache
def make_masked_elements(count: int) -> Callable[..., Any]:
    """Return the masked form, ``masked_elements(values, index, begin, end, default)``."""
    masked_load = make_masked_load(count)

    def plain(values, index, begin, end, default):
        if isinstance(values, np.ndarray):
            return masked_load(values, index, begin, end)
        return default if values is None else values

    @compiled_as(plain)
    def masked_elements(typing_context, values, index, begin, end, default):
        result = _result_of(values, default, count)

        def generate(context, builder, signature, arguments):
            if not isinstance(values, types.Array):
                return arguments[4 if values == types.none else 0]
            pointer = pointer_of(context, builder, values, arguments, count)
            return masked_load_at(builder, pointer, arguments[2:4])

        return result(values, *[types.intp] * 3, default), generate

    return masked_elements


def _plain_add(target: Any, index: int, lanes: Any) -> None:
    if target is not None:
        target[index : index + lanes.size] += lanes


@compiled_as(_plain_add)
def add(typing_context, target, index, lanes):
    """Add lanes to an array, which may be None."""

    def generate(context, builder, signature, arguments):
        if isinstance(target, types.Array):
            pointer = pointer_of(context, builder, target, arguments, lanes.count)
            store_at(builder, pointer, builder.fadd(load_from(builder, pointer), arguments[2]))
        return context.get_dummy_value()

    return types.void(target, types.intp, lanes), generate


def _plain_add_product(target: Any, index: int, one: Any, other: Any) -> None:
    _plain_add(target, index, one * other)


@compiled_as(_plain_add_product)
def add_product(typing_context, target, index, one, other):
    """Add the product of lanes to an array, which may be None, as `multiply_add` does."""

    def generate(context, builder, signature, arguments):
        if isinstance(target, types.Array):
            pointer = pointer_of(context, builder, target, arguments, one.count)
            before = load_from(builder, pointer)
            store_at(builder, pointer, fused(builder, arguments[2], arguments[3], before))
        return context.get_dummy_value()

    return types.void(target, types.intp, one, other), generate


def _plain_masked_add(target: Any, index: int, lanes: Any, begin: int, end: int) -> None:
    if target is not None:
        target[index + begin : index + min(end, lanes.size)] += lanes[begin:end]


@compiled_as(_plain_masked_add)
def masked_add(typing_context, target, index, lanes, begin, end):
    """Add the lanes in ``begin <= lane < end`` to an array, which may be None."""

    def generate(context, builder, signature, arguments):
        if isinstance(target, types.Array):
            pointer = pointer_of(context, builder, target, arguments, lanes.count)
            bounds = arguments[3:]
            before = masked_load_at(builder, pointer, bounds)
            masked_store_at(builder, pointer, builder.fadd(before, arguments[2]), bounds)
        return context.get_dummy_value()

    return types.void(target, types.intp, lanes, types.intp, types.intp), generate


def _plain_masked_add_product(
    target: Any, index: int, one: Any, other: Any, begin: int, end: int
) -> None:
    _plain_masked_add(target, index, one * other, begin, end)


@compiled_as(_plain_masked_add_product)
def masked_add_product(typing_context, target, index, one, other, begin, end):
    """Add the product of the lanes in ``begin <= lane < end``, as `add_product` adds all lanes."""

    def generate(context, builder, signature, arguments):
        if isinstance(target, types.Array):
            pointer = pointer_of(context, builder, target, arguments, one.count)
            bounds = arguments[4:]
            before = masked_load_at(builder, pointer, bounds)
            after = fused(builder, arguments[2], arguments[3], before)
            masked_store_at(builder, pointer, after, bounds)
        return context.get_dummy_value()

    return types.void(target, types.intp, one, other, types.intp, types.intp), generate
