"""Loading and storing some lanes of a vector, at its beginning or its end, and no others.

With AVX-512 that takes a mask. Without it a Zen 3 stores eight float32 with one in twelve cycles,
and for elements of two bytes there is none. The lanes are then taken in pieces of 1, 2, 4, ...
elements, each of them or not. Numbers are loaded with a mask wherever there is one: of a product
and a sum with branches between them the compiler would not make one instruction, as it does where
all lanes are there, and bytes would differ. Where there is none, as on ARM, which elements are
taken in pieces must not depend on where they lie.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types

from numnorm.backends.cpu.simd.processor import has_avx, has_avx512
from numnorm.backends.cpu.simd.vector import (
    INDEX,
    Vector,
    alignment,
    compiled_as,
    load_from,
    numbered,
    pointer_of,
    splat,
    store_at,
)

_SIZE = ir.IntType(64)


def _plain_select_lanes(lanes: Any, low: int, high: int) -> Any:
    """Return the lanes from `low` to `high`, and 0 in the others."""
    lane = np.arange(lanes.size)
    return np.where((low <= lane) & (lane < high), lanes, lanes.dtype.type(0))


@compiled_as(_plain_select_lanes)
def select_lanes(typing_context, lanes, low, high):
    """Return the lanes from `low` to `high`, and 0 in the others."""

    def generate(context, builder, signature, arguments):
        value = arguments[0]
        chosen = _chosen(builder, arguments[1:], lanes.count)
        return builder.select(chosen, value, ir.Constant(value.type, None))

    return lanes(lanes, types.intp, types.intp), generate


def _chosen(builder: Any, bounds: Any, lanes: int) -> Any:
    """Return which lanes lie between two bounds."""
    low, high = (splat(builder, builder.trunc(bound, INDEX), lanes) for bound in bounds)
    lane = numbered(range(lanes))
    return builder.and_(builder.icmp_signed("<=", low, lane), builder.icmp_signed("<", lane, high))


@functools.cache
def make_masked_load(count: int) -> Callable[..., Any]:
    """Return a compiled ``masked_load(array, index, low, high)``: the other lanes are 0.

    Lane i is the i-th element from `index` on. Either `low` is 0, or `high` is at least `count`.
    """

    def plain(array, index, low, high):
        lanes = np.zeros(count, array.dtype)
        here = slice(index + low, index + min(high, count))
        lanes[low : low + array[here].size] = array[here]
        return lanes

    @compiled_as(plain)
    def operation(typing_context, array, index, low, high):
        def generate(context, builder, signature, arguments):
            pointer = pointer_of(context, builder, signature.args[0], arguments, count)
            return masked_load_at(builder, pointer, arguments[2:])

        return Vector(array.dtype, count)(array, *[types.intp] * 3), generate

    return operation


def _plain_masked_store(array: Any, index: int, lanes: Any, low: int, high: int) -> None:
    """Store the lanes from `low` to `high`, as they are loaded."""
    array[index + low : index + min(high, lanes.size)] = lanes[low:high]


@compiled_as(_plain_masked_store)
def masked_store(typing_context, array, index, lanes, low, high):
    """Store the lanes from `low` to `high`, as they are loaded."""

    def generate(context, builder, signature, arguments):
        pointer = pointer_of(context, builder, signature.args[0], arguments, lanes.count)
        masked_store_at(builder, pointer, arguments[2], arguments[3:])
        return context.get_dummy_value()

    return types.void(array, types.intp, lanes, types.intp, types.intp), generate


def masked_load_at(builder: Any, pointer: Any, bounds: Any) -> Any:
    """Return the lanes at a place that lie between two bounds, and 0 in the others."""
    kind = pointer.type.pointee
    of_numbers = not isinstance(kind.element, ir.IntType)
    if not (has_avx512() or (of_numbers and has_avx())):
        return _load_pieces(builder, pointer, bounds)
    chosen, tail = _chosen(builder, bounds, kind.count), ir.Constant(kind, None)
    return _masked(builder, "load", kind, [pointer, INDEX(alignment(kind)), chosen, tail])


def masked_store_at(builder: Any, pointer: Any, lanes: Any, bounds: Any) -> None:
    """Store the lanes between two bounds at a place."""
    kind = pointer.type.pointee
    if not has_avx512():
        _store_pieces(builder, pointer, lanes, bounds)
        return
    arguments = [lanes, pointer, INDEX(alignment(kind)), _chosen(builder, bounds, kind.count)]
    _masked(builder, "store", ir.VoidType(), arguments)


def _masked(builder: Any, name: str, result: Any, arguments: Any) -> Any:
    kinds = [argument.type for argument in arguments]
    vector = result if isinstance(result, ir.VectorType) else arguments[0].type
    suffix = {"float": "f32", "double": "f64", "i16": "i16"}[str(vector.element)]
    function = cgutils.get_or_insert_function(
        builder.module,
        ir.FunctionType(result, kinds),
        f"llvm.masked.{name}.v{vector.count}{suffix}.p0",
    )
    return builder.call(function, arguments)


# Pieces


class _Piece(NamedTuple):
    """So many lanes next to each other, which are all to be loaded or stored, or none of them.

    Attributes
    ----------
    builder, place
        Of the instructions, and where the first of the lanes lies.
    present
        Whether they are to be loaded or stored.
    at_end : bool
        Whether the smaller pieces come before it, at the end of a vector, or else behind it.
    """

    builder: Any
    pointer: Any
    present: Any
    at_end: bool

    def load_beside(self, smaller: Any) -> Any:
        """Return the loaded piece, if there is one, and as many lanes of the smaller ones."""
        builder, nothing = self.builder, ir.Constant(smaller.type, None)

        def joined(lanes, others):
            pair = (others, lanes) if self.at_end else (lanes, others)
            return builder.shuffle_vector(*pair, numbered(range(2 * lanes.type.count)))

        return _either(
            builder,
            self.present,
            lambda: joined(load_from(builder, self.pointer), smaller),
            lambda: joined(smaller, nothing),
        )

    def store_of(self, lanes: Any) -> Any:
        """Store its half of the lanes, if it is there, and return those of the smaller pieces."""
        builder, size = self.builder, lanes.type.count // 2
        nothing = ir.Constant(lanes.type, ir.Undefined)
        halves = [
            builder.shuffle_vector(lanes, nothing, numbered(range(start, start + size)))
            for start in (0, size)
        ]
        here, active = reversed(halves) if self.at_end else halves

        def stored():
            store_at(builder, self.pointer, here)
            return active

        return _either(builder, self.present, stored, lambda: here)


def _pieces(builder: Any, pointer: Any, number: Any, *, at_end: bool) -> list[_Piece]:
    """Return the pieces of so many lanes at the beginning or the end of a vector, smallest first.

    The largest is the outermost.
    """
    kind = pointer.type.pointee
    start = builder.bitcast(pointer, kind.element.as_pointer())
    pieces, size = [], 1
    while size < kind.count:
        larger = builder.and_(number, _SIZE(-2 * size))
        offset = builder.sub(_SIZE(kind.count - size), larger) if at_end else larger
        lanes = ir.VectorType(kind.element, size)
        here = builder.bitcast(builder.gep(start, [offset]), lanes.as_pointer())
        present = builder.icmp_signed("!=", builder.and_(number, _SIZE(size)), _SIZE(0))
        pieces.append(_Piece(builder, here, present, at_end))
        size *= 2
    return pieces


def _either(builder: Any, condition: Any, one: Callable[[], Any], other: Callable[[], Any]) -> Any:
    """Return what one of two functions makes, whose instructions alone are run."""
    with builder.if_else(condition) as (then, otherwise):
        with then:
            first, after_first = one(), builder.block
        with otherwise:
            second, after_second = other(), builder.block
    value = builder.phi(first.type)
    value.add_incoming(first, after_first)
    value.add_incoming(second, after_second)
    return value


def _number_of(builder: Any, bounds: Any, count: int) -> Any:
    """Return how many of so many lanes lie between two bounds."""
    low, high = bounds
    beyond = builder.icmp_signed(">", high, _SIZE(count))
    return builder.sub(builder.select(beyond, _SIZE(count), high), low)


def _load_pieces(builder: Any, pointer: Any, bounds: Any) -> Any:
    kind = pointer.type.pointee
    number = _number_of(builder, bounds, kind.count)

    def some(*, at_end):
        value = ir.Constant(ir.VectorType(kind.element, 1), None)
        for piece in _pieces(builder, pointer, number, at_end=at_end):
            value = piece.load_beside(value)
        return value

    def not_all():
        at_start = builder.icmp_signed("==", bounds[0], _SIZE(0))
        return _either(builder, at_start, lambda: some(at_end=False), lambda: some(at_end=True))

    whole = builder.icmp_signed("==", number, _SIZE(kind.count))
    return _either(builder, whole, lambda: load_from(builder, pointer), not_all)


def _store_pieces(builder: Any, pointer: Any, lanes: Any, bounds: Any) -> None:
    count = lanes.type.count
    number = _number_of(builder, bounds, count)

    def store(*, at_end):
        tail = lanes
        for piece in reversed(_pieces(builder, pointer, number, at_end=at_end)):
            tail = piece.store_of(tail)

    with builder.if_else(builder.icmp_signed("==", number, _SIZE(count))) as (whole, part):
        with whole:
            store_at(builder, pointer, lanes)
        with part:
            at_start = builder.icmp_signed("==", bounds[0], _SIZE(0))
            with builder.if_else(at_start) as (first, last):
                with first:
                    store(at_end=False)
                with last:
                    store(at_end=True)
