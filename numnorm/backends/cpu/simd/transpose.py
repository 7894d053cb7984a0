"""The transpose of square blocks, with as many rows as a vector has lanes."""

import functools
from collections.abc import Callable
from typing import Any

from numba.core import types

from numnorm.backends.cpu.simd.vector import compiled_as, indices, load_from, pointer_of, store_at


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
