"""Lanes of arrays that a kernel may be handed or not: `optional` for many elements at once."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numba.core import types

from numnorm.backends.cpu.lanes import (
    Lanes,
    compiled_as,
    load_first_from,
    load_from,
    make_load,
    make_load_first,
    place_of,
    store_at,
    store_first_at,
)


def _result_of(values: Any, default: Any, count: int) -> Any:
    if isinstance(values, types.Array):
        return Lanes(values.dtype, count)
    return default if values == types.none else values


@functools.cache
def make_elements(count: int) -> Callable[..., Any]:
    """Return a compiled ``elements(values, index, default)``: `count` elements of an array.

    A number stands for each of its elements, and None for the default.
    """
    load = make_load(count)

    def plain(values, index, default):
        if isinstance(values, np.ndarray):
            return load(values, index)
        return default if values is None else values

    @compiled_as(plain)
    def elements(typing_context, values, index, default):
        result = _result_of(values, default, count)

        def generate(context, builder, signature, arguments):
            if not isinstance(values, types.Array):
                return arguments[2 if values == types.none else 0]
            return load_from(builder, place_of(context, builder, values, arguments, count))

        return result(values, types.intp, default), generate

    return elements


@functools.cache
def make_first_elements(count: int) -> Callable[..., Any]:
    """Return a compiled ``first_elements(values, index, number, default)``, 0 in other lanes."""
    load_first = make_load_first(count)

    def plain(values, index, number, default):
        if isinstance(values, np.ndarray):
            return load_first(values, index, number)
        return default if values is None else values

    @compiled_as(plain)
    def first_elements(typing_context, values, index, number, default):
        result = _result_of(values, default, count)

        def generate(context, builder, signature, arguments):
            if not isinstance(values, types.Array):
                return arguments[3 if values == types.none else 0]
            place = place_of(context, builder, values, arguments, count)
            return load_first_from(builder, place, arguments[2])

        return result(values, types.intp, types.intp, default), generate

    return first_elements


def _plain_add(target: Any, index: int, lanes: Any) -> None:
    if target is not None:
        target[index : index + lanes.size] += lanes


@compiled_as(_plain_add)
def add(typing_context, target, index, lanes):
    """Add lanes to an array, if there is one."""

    def generate(context, builder, signature, arguments):
        if isinstance(target, types.Array):
            place = place_of(context, builder, target, arguments, lanes.count)
            store_at(builder, place, builder.fadd(load_from(builder, place), arguments[2]))
        return context.get_dummy_value()

    return types.void(target, types.intp, lanes), generate


def _plain_add_in_turn(target: Any, index: int, a: Any, b: Any, c: Any, d: Any) -> None:
    for lanes in (a, b, c, d):
        _plain_add(target, index, lanes)


@compiled_as(_plain_add_in_turn)
def add_in_turn(typing_context, target, index, a, b, c, d):
    """Add four lanes to an array, one after the other, if there is one."""

    def generate(context, builder, signature, arguments):
        if isinstance(target, types.Array):
            place = place_of(context, builder, target, arguments, a.count)
            total = load_from(builder, place)
            for lanes in arguments[2:]:
                total = builder.fadd(total, lanes)
            store_at(builder, place, total)
        return context.get_dummy_value()

    return types.void(target, types.intp, a, b, c, d), generate


def _plain_add_first(target: Any, index: int, lanes: Any, number: int) -> None:
    if target is not None:
        count = min(number, lanes.size)
        target[index : index + count] += lanes[:count]


@compiled_as(_plain_add_first)
def add_first(typing_context, target, index, lanes, number):
    """Add the first lanes to an array, if there is one."""

    def generate(context, builder, signature, arguments):
        if isinstance(target, types.Array):
            place = place_of(context, builder, target, arguments, lanes.count)
            before = load_first_from(builder, place, arguments[3])
            store_first_at(builder, place, builder.fadd(before, arguments[2]), arguments[3])
        return context.get_dummy_value()

    return types.void(target, types.intp, lanes, types.intp), generate
