"""Masked loads and stores of some lanes at the beginning or the end of a vector.

AVX-512 has mask instructions for all of them, and AVX for loads of floats. All others go in pieces
of 1, 2, 4, ... lanes, each with a branch.

The compiler contracts a product and a sum in a full vector, but not across the branches of pieces.
Loads in pieces may therefore round differently. So that results do not depend on addresses, the
masked lanes must not depend on them where floats are loaded in pieces, as on ARM.
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
    indices,
    load_from,
    pointer_of,
    splat,
    store_at,
)

_SIZE = ir.IntType(64)
_REGISTER_BITS = 512


def _plain_select_lanes(lanes: Any, begin: int, end: int) -> Any:
    """Return the lanes in ``begin <= lane < end``, and 0 in the others."""
    lane = np.arange(lanes.size)
    return np.where((begin <= lane) & (lane < end), lanes, lanes.dtype.type(0))


@compiled_as(_plain_select_lanes)
def select_lanes(typing_context, lanes, begin, end):
    """Return the lanes in ``begin <= lane < end``, and 0 in the others."""

    def generate(context, builder, signature, arguments):
        value = arguments[0]
        mask = lane_mask(builder, arguments[1:], lanes.count)
        return builder.select(mask, value, ir.Constant(value.type, None))

    return lanes(lanes, types.intp, types.intp), generate


def lane_mask(builder: Any, bounds: Any, lanes: int) -> Any:
    """Return the mask of the lanes between two bounds."""
    begin, end = (splat(builder, builder.trunc(bound, INDEX), lanes) for bound in bounds)
    lane = indices(range(lanes))
    return builder.and_(builder.icmp_signed("<=", begin, lane), builder.icmp_signed("<", lane, end))


@functools.cache
def make_masked_load(count: int) -> Callable[..., Any]:
    """Return a compiled ``masked_load(array, index, begin, end)`` of a vector of `count` lanes.

    Lane i is ``array[index + i]`` for ``begin <= i < end``, else 0. Either `begin` is 0, or `end`
    is at least `count`.
    """

    def plain(array, index, begin, end):
        lanes = np.zeros(count, array.dtype)
        active = slice(index + begin, index + min(end, count))
        lanes[begin : begin + array[active].size] = array[active]
        return lanes

    @compiled_as(plain)
    def operation(typing_context, array, index, begin, end):
        def generate(context, builder, signature, arguments):
            pointer = pointer_of(context, builder, signature.args[0], arguments, count)
            return masked_load_at(builder, pointer, arguments[2:])

        return Vector(array.dtype, count)(array, *[types.intp] * 3), generate

    return operation


def _plain_masked_store(array: Any, index: int, lanes: Any, begin: int, end: int) -> None:
    """Store the lanes in ``begin <= lane < end``, with the same bounds as a masked load."""
    array[index + begin : index + min(end, lanes.size)] = lanes[begin:end]


@compiled_as(_plain_masked_store)
def masked_store(typing_context, array, index, lanes, begin, end):
    """Store the lanes in ``begin <= lane < end``, with the same bounds as a masked load."""

    def generate(context, builder, signature, arguments):
        pointer = pointer_of(context, builder, signature.args[0], arguments, lanes.count)
        masked_store_at(builder, pointer, arguments[2], arguments[3:])
        return context.get_dummy_value()

    return types.void(array, types.intp, lanes, types.intp, types.intp), generate


def masked_load_at(builder: Any, pointer: Any, bounds: Any) -> Any:
    """Return the lanes at a pointer that lie between two bounds, and 0 in the others."""
    kind = pointer.type.pointee
    is_float = not isinstance(kind.element, ir.IntType)
    if not (has_avx512() or (is_float and has_avx())):
        return _load_pieces(builder, pointer, bounds)
    mask, zeros = lane_mask(builder, bounds, kind.count), ir.Constant(kind, None)
    lanes = _masked(builder, "load", kind, [pointer, INDEX(alignment(kind)), mask, zeros])
    # Only with AVX-512 does the compiler merge the load and another operation.
    return _apart(builder, lanes) if has_avx512() else lanes


def _apart(builder: Any, lanes: Any) -> Any:
    """Return the lanes of a masked load, through a piece of assembly that is empty.

    LLVM merges a masked load and an operation with the same mask into one instruction. It may split
    that again, into a load of all lanes and the operation: a read outside of the array.
    """
    kind = lanes.type
    bits = kind.count * 8 * alignment(kind)
    if bits > _REGISTER_BITS:
        half = kind.count // 2
        halves = (indices(range(start, start + half)) for start in (0, half))
        parts = [_apart(builder, builder.shuffle_vector(lanes, lanes, one)) for one in halves]
        return builder.shuffle_vector(*parts, indices(range(kind.count)))
    register, constraints = (kind, "=v,0") if bits >= 128 else (ir.IntType(bits), "=r,0")
    nothing = ir.InlineAsm(ir.FunctionType(register, [register]), "", constraints)
    same = builder.call(nothing, [builder.bitcast(lanes, register)], attrs=("nounwind", "readnone"))
    return builder.bitcast(same, kind)


def masked_store_at(builder: Any, pointer: Any, lanes: Any, bounds: Any) -> None:
    """Store the lanes between two bounds at a pointer."""
    kind = pointer.type.pointee
    if not has_avx512():
        _store_pieces(builder, pointer, lanes, bounds)
        return
    mask = lane_mask(builder, bounds, kind.count)
    arguments = [lanes, pointer, INDEX(alignment(kind)), mask]
    _masked(builder, "store", ir.VoidType(), arguments)


def _masked(builder: Any, name: str, result: Any, arguments: Any) -> Any:
    kinds = [argument.type for argument in arguments]
    vector = result if isinstance(result, ir.VectorType) else arguments[0].type
    suffix = {"float": "f32", "double": "f64"}.get(str(vector.element), str(vector.element))
    function = cgutils.get_or_insert_function(
        builder.module,
        ir.FunctionType(result, kinds),
        f"llvm.masked.{name}.v{vector.count}{suffix}.p0",
    )
    return builder.call(function, arguments)


# Pieces


class _Piece(NamedTuple):
    """Adjacent lanes, a power of two, of which either all or none are loaded or stored.

    Attributes
    ----------
    builder
        The LLVM builder.
    pointer
        The address of the first lane.
    present
        Whether the lanes are loaded or stored.
    at_end : bool
        Whether the masked lanes are the last ones of a vector: smaller pieces then precede it,
        else they follow it.
    """

    builder: Any
    pointer: Any
    present: Any
    at_end: bool

    def load_beside(self, smaller: Any) -> Any:
        """Return the piece, loaded if present, joined with the lanes of the smaller pieces."""
        builder, zeros = self.builder, ir.Constant(smaller.type, None)

        def joined(lanes, others):
            pair = (others, lanes) if self.at_end else (lanes, others)
            return builder.shuffle_vector(*pair, indices(range(2 * lanes.type.count)))

        return _either(
            builder,
            self.present,
            lambda: joined(load_from(builder, self.pointer), smaller),
            lambda: joined(smaller, zeros),
        )

    def store_of(self, lanes: Any) -> Any:
        """Store its half of the lanes, if present, and return the half for the smaller pieces.

        If it is not present, the smaller pieces take the half that it would have stored.
        """
        builder, size = self.builder, lanes.type.count // 2
        undefined = ir.Constant(lanes.type, ir.Undefined)
        halves = [
            builder.shuffle_vector(lanes, undefined, indices(range(start, start + size)))
            for start in (0, size)
        ]
        own, other = reversed(halves) if self.at_end else halves

        def stored():
            store_at(builder, self.pointer, own)
            return other

        return _either(builder, self.present, stored, lambda: own)


def _pieces(builder: Any, pointer: Any, number: Any, *, at_end: bool) -> list[_Piece]:
    """Return the pieces, smallest first, for `number` lanes at the beginning or end of a vector.

    The largest piece is the outermost.
    """
    kind = pointer.type.pointee
    start = builder.bitcast(pointer, kind.element.as_pointer())
    pieces, size = [], 1
    while size < kind.count:
        larger = builder.and_(number, _SIZE(-2 * size))
        offset = builder.sub(_SIZE(kind.count - size), larger) if at_end else larger
        lanes = ir.VectorType(kind.element, size)
        first = builder.bitcast(builder.gep(start, [offset]), lanes.as_pointer())
        present = builder.icmp_signed("!=", builder.and_(number, _SIZE(size)), _SIZE(0))
        pieces.append(_Piece(builder, first, present, at_end))
        size *= 2
    return pieces


def _either(builder: Any, condition: Any, one: Callable[[], Any], other: Callable[[], Any]) -> Any:
    """Return the value of one of two functions, each of which builds code in its own branch."""
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
    """Return the number of lanes, of `count`, between two bounds."""
    begin, end = bounds
    beyond = builder.icmp_signed(">", end, _SIZE(count))
    return builder.sub(builder.select(beyond, _SIZE(count), end), begin)


def _load_pieces(builder: Any, pointer: Any, bounds: Any) -> Any:
    kind = pointer.type.pointee
    number = _number_of(builder, bounds, kind.count)

    def some(*, at_end):
        value = ir.Constant(ir.VectorType(kind.element, 1), None)
        for piece in _pieces(builder, pointer, number, at_end=at_end):
            value = piece.load_beside(value)
        return value

    def partial():
        at_start = builder.icmp_signed("==", bounds[0], _SIZE(0))
        return _either(builder, at_start, lambda: some(at_end=False), lambda: some(at_end=True))

    full = builder.icmp_signed("==", number, _SIZE(kind.count))
    return _either(builder, full, lambda: load_from(builder, pointer), partial)


def _store_pieces(builder: Any, pointer: Any, lanes: Any, bounds: Any) -> None:
    count = lanes.type.count
    number = _number_of(builder, bounds, count)

    def store(*, at_end):
        remaining = lanes
        for piece in reversed(_pieces(builder, pointer, number, at_end=at_end)):
            remaining = piece.store_of(remaining)

    with builder.if_else(builder.icmp_signed("==", number, _SIZE(count))) as (full, partial):
        with full:
            store_at(builder, pointer, lanes)
        with partial:
            at_start = builder.icmp_signed("==", bounds[0], _SIZE(0))
            with builder.if_else(at_start) as (first, last):
                with first:
                    store(at_end=False)
                with last:
                    store(at_end=True)
