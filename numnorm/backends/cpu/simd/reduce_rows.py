"""Sums of the rows of a small square, as a vector: pairs of rows are merged, step by step."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.backends.cpu.simd.vector import INDEX, Vector, compiled_as, indices, load_from


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
