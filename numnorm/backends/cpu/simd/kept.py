"""Vectors of elements of which some are left out: by a mask of bytes, or because they are NaN.

Each function gets the elements as a vector `x`, and `kept`, a vector of bytes: 0 is left out. Both
`kept` and `omit` may be None. With another `omit` NaN is left out. `weights` is a vector of float64
or None: each element then has the weight 1.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types

from numnorm.backends.cpu.compiler.jit import overloaded
from numnorm.backends.cpu.simd.masked import lane_mask, make_masked_load, masked_load_at
from numnorm.backends.cpu.simd.vector import (
    Vector,
    compiled_as,
    constant,
    make_zeros,
    pointer_of,
    reduce_sum,
    splat,
)

_INT64 = ir.IntType(64)


def _plain_given(kept: Any, x: Any) -> Any:
    return np.full(np.shape(x), True) if kept is None else kept != 0


def _plain_number(x: Any, omit: Any) -> Any:
    return np.full(np.shape(x), True) if omit is None else x == x


def _plain_mask(kept: Any, x: Any, omit: Any) -> Any:
    return _plain_given(kept, x) & _plain_number(x, omit)


def _mask(builder: Any, kinds: Any, kept: Any, x: Any, omit: Any) -> Any:
    """Return LLVM's mask of the elements that are kept, given the types of these arguments."""
    given, number = _given(builder, kinds[0], kept, x), _number(builder, x, kinds[2])
    return builder.and_(given, number)


def _given(builder: Any, kind: Any, kept: Any, x: Any) -> Any:
    if kind == types.none:
        return _all(x)
    return builder.icmp_unsigned("!=", kept, ir.Constant(kept.type, None))


def _number(builder: Any, x: Any, kind: Any) -> Any:
    return _all(x) if kind == types.none else builder.fcmp_ordered("ord", x, x)


def _all(x: Any) -> Any:
    return constant(ir.VectorType(ir.IntType(1), x.type.count), 1)


def _plain_number_kept(kept: Any, x: Any, omit: Any) -> int:
    return int(np.count_nonzero(_plain_mask(kept, x, omit)))


@compiled_as(_plain_number_kept)
def number_kept(typing_context, kept, x, omit):
    """Return how many elements are kept."""

    def generate(context, builder, signature, arguments):
        bits = builder.bitcast(_mask(builder, signature.args, *arguments), ir.IntType(x.count))
        word = builder.zext(bits, _INT64)
        count = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_INT64, [_INT64]), "llvm.ctpop.i64"
        )
        return builder.call(count, [word])

    return types.intp(kept, x, omit), generate


def _plain_weighing(kept: Any, weights: Any) -> Any:
    if weights is None:
        return kept
    weighs = weights > 0
    return (weighs if kept is None else (kept != 0) & weighs).astype(np.uint8)


@compiled_as(_plain_weighing)
def weighing(typing_context, kept, weights):
    """Return `kept` with 0 where the weight is 0, too; of no weights it is `kept` itself."""
    if weights == types.none:
        return kept(kept, weights), lambda context, builder, signature, arguments: arguments[0]
    result = Vector(types.uint8, weights.count)

    def generate(context, builder, signature, arguments):
        given, value = arguments
        mask = builder.fcmp_ordered(">", value, constant(value.type, 0.0))
        mask = builder.and_(mask, _given(builder, kept, given, value))
        return builder.zext(mask, context.get_value_type(result))

    return result(kept, weights), generate


def _plain_weight_kept(weights: Any, kept: Any, x: Any, omit: Any) -> Any:
    if weights is None:
        return _plain_number_kept(kept, x, omit)
    return _plain_where_kept(weights, kept, x, omit)


@overloaded(_plain_weight_kept)
def _weight_kept(weights, kept, x, omit):
    if weights == types.none:
        return lambda weights, kept, x, omit: number_kept(kept, x, omit)
    return lambda weights, kept, x, omit: where_kept(weights, kept, x, omit)


# How many elements are kept, or a vector of their weights.
weight_kept = _plain_weight_kept


@functools.cache
def make_no_weight(count: int) -> Callable[..., Any]:
    """Return a compiled ``no_weight(weights)``: 0 in the type of `weight_kept`.

    `weights` is the array of the weights, or None.
    """
    zeros = make_zeros(np.float64, count)

    def no_weight(weights):
        return 0 if weights is None else zeros()

    @overloaded(no_weight)
    def _no_weight(weights):
        return (lambda weights: 0) if weights == types.none else (lambda weights: zeros())

    return no_weight


def _plain_total_weight(weight: Any) -> Any:
    return np.float64(weight) if np.ndim(weight) == 0 else reduce_sum(weight)


@overloaded(_plain_total_weight)
def _total_weight(weight):
    if isinstance(weight, Vector):
        return lambda weight: reduce_sum(weight)
    return lambda weight: np.float64(weight)


# A sum of `weight_kept` as one number.
total_weight = _plain_total_weight


def _plain_where_kept(lanes: Any, kept: Any, x: Any, omit: Any) -> Any:
    return np.where(_plain_mask(kept, x, omit), lanes, lanes.dtype.type(0))


@compiled_as(_plain_where_kept)
def where_kept(typing_context, lanes, kept, x, omit):
    """Return the lanes of elements that are kept, and 0 in the others."""

    def generate(context, builder, signature, arguments):
        value, *others = arguments
        mask = _mask(builder, signature.args[1:], *others)
        return builder.select(mask, value, constant(value.type, 0.0))

    return lanes(lanes, kept, x, omit), generate


def _plain_filled(lanes: Any, kept: Any, x: Any, omit: Any, fill: Any, missing: Any) -> Any:
    with_missing = np.where(_plain_number(x, omit), lanes, lanes.dtype.type(missing))
    return np.where(_plain_given(kept, x), with_missing, lanes.dtype.type(fill))


@compiled_as(_plain_filled)
def filled(typing_context, lanes, kept, x, omit, fill, missing):
    """Return the lanes, but `fill` where `kept` is 0, and else `missing` where NaN is left out."""

    def generate(context, builder, signature, arguments):
        value, given, elements, _, *numbers = arguments
        other, nan = (
            splat(builder, context.cast(builder, number, kind, lanes.element), lanes.count)
            for number, kind in zip(numbers, signature.args[4:], strict=True)
        )
        value = builder.select(_number(builder, elements, signature.args[3]), value, nan)
        return builder.select(_given(builder, signature.args[1], given, elements), value, other)

    return lanes(lanes, kept, x, omit, fill, missing), generate


def _plain_is_kept(kept: Any, x: Any, omit: Any) -> bool:
    return bool(_plain_mask(kept, x, omit))


@overloaded(_plain_is_kept)
def _is_kept(kept, x, omit):
    by_mask, by_number = kept != types.none, omit != types.none

    def implementation(kept, x, omit):
        return not (by_mask and kept == 0) and not (by_number and x != x)

    def of_numbers(kept, x, omit):
        return not (by_number and x != x)

    return implementation if by_mask else of_numbers


is_kept = _plain_is_kept


def _plain_weighs(weight: Any) -> bool:
    return weight is None or bool(weight > 0.0)


@overloaded(_plain_weighs)
def _weighs(weight):
    return (lambda weight: True) if weight == types.none else (lambda weight: weight > 0.0)


# Whether the weight of an element, which may be None, is greater than 0.
weighs = _plain_weighs


@functools.cache
def make_masked_kept(count: int) -> Callable[..., Any]:
    """Return a compiled ``masked_kept(keep, index, begin, end)`` of a vector of `count` lanes.

    It is the masked load of the bytes of an array; of None it is 1 in ``begin <= lane < end``, else
    0.
    """
    masked_load = make_masked_load(count)

    def plain(keep, index, begin, end):
        if keep is not None:
            return masked_load(keep, index, begin, end)
        lane = np.arange(count)
        return ((begin <= lane) & (lane < end)).astype(np.uint8)

    @compiled_as(plain)
    def masked_kept(typing_context, keep, index, begin, end):
        result = Vector(types.uint8, count)

        def generate(context, builder, signature, arguments):
            bounds = arguments[2:]
            if keep == types.none:
                return builder.zext(
                    lane_mask(builder, bounds, count), context.get_value_type(result)
                )
            pointer = pointer_of(context, builder, keep, arguments, count)
            return masked_load_at(builder, pointer, bounds)

        return result(keep, *[types.intp] * 3), generate

    return masked_kept
