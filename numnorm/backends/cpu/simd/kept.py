"""Vectors of elements of which some are left out: by a mask of bytes, or because they are NaN.

Each function gets the elements as a vector `x`, and `kept`, a vector of bytes: 0 is left out. With
an `omit` that is not 0, NaN is left out, too.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types

from numnorm.backends.cpu.simd.vector import compiled_as, constant, splat

_INT64 = ir.IntType(64)


def _plain_mask(kept: Any, x: Any, omit: int) -> Any:
    return (kept != 0) & ((omit == 0) | (x == x))


def _mask(builder: Any, kept: Any, x: Any, omit: Any) -> Any:
    number = builder.fcmp_ordered("ord", x, x)
    every = splat(builder, builder.icmp_signed("==", omit, omit.type(0)), x.type.count)
    return builder.and_(_given(builder, kept), builder.or_(number, every))


def _given(builder: Any, kept: Any) -> Any:
    return builder.icmp_unsigned("!=", kept, ir.Constant(kept.type, None))


def _plain_number_kept(kept: Any, x: Any, omit: int) -> int:
    return int(np.count_nonzero(_plain_mask(kept, x, omit)))


@compiled_as(_plain_number_kept)
def number_kept(typing_context, kept, x, omit):
    """Return how many elements are kept."""

    def generate(context, builder, signature, arguments):
        bits = builder.bitcast(_mask(builder, *arguments), ir.IntType(x.count))
        word = builder.zext(bits, _INT64)
        count = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_INT64, [_INT64]), "llvm.ctpop.i64"
        )
        return builder.call(count, [word])

    return types.intp(kept, x, types.intp), generate


def _plain_where_kept(lanes: Any, kept: Any, x: Any, omit: int) -> Any:
    return np.where(_plain_mask(kept, x, omit), lanes, lanes.dtype.type(0))


@compiled_as(_plain_where_kept)
def where_kept(typing_context, lanes, kept, x, omit):
    """Return the lanes of elements that are kept, and 0 in the others."""

    def generate(context, builder, signature, arguments):
        value, *others = arguments
        return builder.select(_mask(builder, *others), value, constant(value.type, 0.0))

    return lanes(lanes, kept, x, types.intp), generate


def _plain_filled(lanes: Any, kept: Any, x: Any, fill: Any, missing: Any) -> Any:
    with_missing = np.where(x == x, lanes, lanes.dtype.type(missing))
    return np.where(kept != 0, with_missing, lanes.dtype.type(fill))


@compiled_as(_plain_filled)
def filled(typing_context, lanes, kept, x, fill, missing):
    """Return the lanes, but `fill` where `kept` is 0, and else `missing` where x is NaN."""

    def generate(context, builder, signature, arguments):
        value, given, elements, *numbers = arguments
        other, nan = (
            splat(builder, context.cast(builder, number, kind, lanes.element), lanes.count)
            for number, kind in zip(numbers, signature.args[3:], strict=True)
        )
        number = builder.fcmp_ordered("ord", elements, elements)
        return builder.select(_given(builder, given), builder.select(number, value, nan), other)

    return lanes(lanes, kept, x, fill, missing), generate
