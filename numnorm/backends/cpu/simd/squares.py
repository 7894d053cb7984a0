"""Square blocks with as many rows as a vector has lanes: their transpose, sums of their rows."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numba.core import types

from numnorm.backends.cpu.simd.vector import (
    INDEX,
    Vector,
    compiled_as,
    indices,
    load_from,
    pointer_of,
    store_at,
)


@functools.cache
def make_transpose(count: int) -> Callable[..., Any]:
    """Return a compiled ``transpose(source, at, row, target, to)`` of a block of flat arrays.

    The rows of the block begin at `at` in `source`, `row` elements apart. The rows of the transpose
    are contiguous, from `to` in `target` on.
    """

    def plain(source, at, row, target, to):
        for j in range(count):
            target[to + j * count : to + (j + 1) * count] = source[at + j :: row][:count]

    @compiled_as(plain)
    def operation(typing_context, source, at, row, target, to):
        kind = types.void(source, types.intp, types.intp, target, types.intp)

        def generate(context, builder, signature, arguments):
            values, at, row, result, to = arguments
            start = pointer_of(context, builder, signature.args[0], (values, at), count)
            end = pointer_of(context, builder, signature.args[3], (result, to), count)
            first = builder.bitcast(start, start.type.pointee.element.as_pointer())
            rows = []
            for j in range(count):
                pointer = builder.gep(first, [builder.mul(row, row.type(j))])
                rows.append(load_from(builder, builder.bitcast(pointer, start.type)))
            for j, column in enumerate(_transposed(builder, rows)):
                store_at(builder, builder.gep(end, [row.type(j)]), column)
            return context.get_dummy_value()

        return kind, generate

    return operation


def _transposed(builder: Any, rows: list[Any]) -> list[Any]:
    """Return the columns: in each step, pairs of rows exchange halves of their blocks."""
    count = len(rows)
    step = count // 2
    while step:
        for i in range(count):
            if not i & step:
                a, b = rows[i], rows[i + step]
                even = [lane if not lane & step else count + lane - step for lane in range(count)]
                odd = [lane + step if not lane & step else count + lane for lane in range(count)]
                rows[i] = builder.shuffle_vector(a, b, indices(even))
                rows[i + step] = builder.shuffle_vector(a, b, indices(odd))
        step //= 2
    return rows


@functools.cache
def make_reduce_rows(count: int) -> Callable[..., Any]:
    """Return a compiled ``reduce_rows(array)``: the row sums of a flat (count, count) array.

    Lane i is the sum of row i, in a different order from `reduce_sum`.
    """

    def plain(array):
        rows = list(array[: count * count].reshape(count, count))
        lane = np.arange(count)
        while len(rows) > 1:
            half = len(rows) // 2
            first = (lane & half) == 0
            rows = [
                np.where(first, a, b) + np.where(first, a[lane ^ half], b[lane ^ half])
                for a, b in zip(rows[:half], rows[half:], strict=True)
            ]
        return rows[0]

    @compiled_as(plain)
    def operation(typing_context, array):
        lanes = Vector(array.dtype, count)

        def generate(context, builder, signature, arguments):
            start = context.make_array(signature.args[0])(context, builder, arguments[0]).data
            kind = context.get_value_type(lanes)
            start = builder.bitcast(start, kind.as_pointer())
            rows = [load_from(builder, builder.gep(start, [INDEX(i)])) for i in range(count)]
            return _sums_across(builder, rows)

        return lanes(array), generate

    return operation


def _sums_across(builder: Any, rows: list[Any]) -> Any:
    """Return a vector with the sum of row i in lane i: each step merges pairs of rows into one."""
    count = len(rows)
    while len(rows) > 1:
        half = len(rows) // 2
        same, other = [], []
        for lane in range(count):
            from_second = count if lane & half else 0
            same.append(lane + from_second)
            other.append((lane ^ half) + from_second)
        rows = [
            builder.fadd(
                builder.shuffle_vector(a, b, indices(same)),
                builder.shuffle_vector(a, b, indices(other)),
            )
            for a, b in zip(rows[:half], rows[half:], strict=True)
        ]
    return rows[0]
