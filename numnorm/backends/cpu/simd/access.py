"""Full and masked access to vectors of an array, for loops across channels or units.

A loop body is compiled once for each access.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types

from numnorm.backends.cpu.simd.masked import make_masked_load, masked_load_at, masked_store_at
from numnorm.backends.cpu.simd.vector import (
    Vector,
    compiled_as,
    load_from,
    make_load,
    pointer_of,
    store_at,
    store_nontemporal_at,
)

_kinds: Any = types  # Numba has no type hints for some of them


class VectorAccess(NamedTuple):
    """Compiled functions for the vector at index j of an array, of which some lanes are active.

    `active` is the number of the first lanes that are active, or a pair of bounds: the lanes in
    ``begin <= lane < end`` are active. Either `begin` is 0, or `end` is the number of all lanes.

    Attributes
    ----------
    read : callable
        ``read(array, j, active)``: the vector.
    coefficient : callable
        ``coefficient(values, j, active, default)``: the vector of an array, a scalar itself, or
        `default` for None. For a tuple of these it returns a tuple.
    write : callable
        ``write(array, j, lanes, active)``: stores a vector.
    """

    read: Callable[..., Any]
    coefficient: Callable[..., Any]
    write: Callable[..., Any]


@functools.cache
def full_access(count: int, *, nontemporal: bool = False) -> VectorAccess:
    """Return the access to vectors with all `count` lanes active, whatever `active` says.

    `write` may use non-temporal stores.
    """
    load = make_load(count)

    def store(builder, pointer, lanes, active):
        if nontemporal:
            store_nontemporal_at(builder, pointer, lanes)
        else:
            store_at(builder, pointer, lanes)

    def plain_store(array, j, lanes, active):
        array[j : j + count] = lanes

    return _access(
        count,
        (lambda array, j, active: load(array, j), plain_store),
        (lambda builder, pointer, active: load_from(builder, pointer), store),
    )


@functools.cache
def tail_access(count: int) -> VectorAccess:
    """Return the access to some of `count` lanes; the others are read as 0."""
    masked_load = make_masked_load(count)

    def plain_load(array, j, active):
        begin, end = _plain_bounds(active)
        return masked_load(array, j, begin, end)

    def plain_store(array, j, lanes, active):
        begin, end = _plain_bounds(active)
        array[j + begin : j + min(end, count)] = lanes[begin:end]

    return _access(count, (plain_load, plain_store), (masked_load_at, masked_store_at))


def _plain_bounds(active: Any) -> Any:
    return active if isinstance(active, tuple) else (0, active)


def _bounds(builder: Any, kind: Any, active: Any) -> Any:
    """Return LLVM's values of the bounds of the active lanes."""
    if isinstance(kind, _kinds.BaseTuple):
        return cgutils.unpack_tuple(builder, active)
    return ir.Constant(active.type, 0), active


def _access(count: int, plain: Any, generated: Any) -> VectorAccess:
    """Return an access, given its load and store as plain functions and as generators of code."""
    plain_load, plain_store = plain
    load_at, store = generated

    @compiled_as(plain_load)
    def read(typing_context, array, j, active):
        kind = _kinds.unliteral(active)

        def generate(context, builder, signature, arguments):
            pointer = pointer_of(context, builder, array, arguments, count)
            return load_at(builder, pointer, _bounds(builder, kind, arguments[2]))

        return Vector(array.dtype, count)(array, types.intp, kind), generate

    @compiled_as(plain_store)
    def write(typing_context, array, j, lanes, active):
        kind = _kinds.unliteral(active)

        def generate(context, builder, signature, arguments):
            pointer = pointer_of(context, builder, array, arguments, count)
            store(builder, pointer, arguments[2], _bounds(builder, kind, arguments[3]))
            return context.get_dummy_value()

        return types.void(array, types.intp, lanes, kind), generate

    return VectorAccess(read, _make_coefficient(count, plain_load, load_at), write)


def _make_coefficient(count: int, plain_load: Any, load_at: Any) -> Callable[..., Any]:
    """Return the compiled `coefficient` of an access with this load."""

    def plain_one(values, j, active, default):
        if isinstance(values, np.ndarray):
            return plain_load(values, j, active)
        return default if values is None else values

    def plain_coefficient(values, j, active, default):
        if isinstance(values, tuple):
            return tuple(plain_one(one, j, active, default) for one in values)
        return plain_one(values, j, active, default)

    def result_of(values, default):
        if isinstance(values, _kinds.BaseTuple):
            return _kinds.BaseTuple.from_types([result_of(one, default) for one in values])
        if isinstance(values, types.Array):
            return Vector(values.dtype, count)
        return default if values == types.none else values

    @compiled_as(plain_coefficient)
    def coefficient(typing_context, values, j, active, default):
        kind, result = _kinds.unliteral(active), result_of(values, default)

        def generate(context, builder, signature, arguments):
            given, index, lanes, default_value = arguments

            def load(one, value):
                if not isinstance(one, types.Array):
                    return default_value if one == types.none else value
                pointer = pointer_of(context, builder, one, (value, index), count)
                return load_at(builder, pointer, _bounds(builder, kind, lanes))

            if not isinstance(values, _kinds.BaseTuple):
                return load(values, given)
            loaded = map(load, values, cgutils.unpack_tuple(builder, given))
            return context.make_tuple(builder, result, list(loaded))

        return result(values, types.intp, kind, default), generate

    return coefficient
