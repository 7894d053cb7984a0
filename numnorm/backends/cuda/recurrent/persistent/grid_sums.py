"""Sums over a row whose units belong to several blocks."""

import functools
from typing import Any

from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import (
    constant,
    cuda,
    device,
    grid_barrier,
    make_load_one,
    make_store_one,
)
from numnorm.backends.cuda.threads.group_reductions import SumsOf, make_team_sums


def slice_sums_of(element: ElementType, units: int) -> SumsOf:
    """Return a factory of sums over a row whose slices have this number of units.

    ``factory(count)`` returns a device function ``sums(values, partials)``, which replaces each of
    `count` numbers in the array `values` by its sum over the row. ``partials`` is ``(table, first,
    slices, slice, active)``: the array of partial sums, the index of the row's first one, the
    number of slices, the block's slice, and whether the row exists. All blocks add the partial
    sums in the same order.
    """
    return functools.partial(_make_slice_sums, element, units)


def _make_slice_sums(element: ElementType, units: int, count: int) -> Any:
    load_one, store_one = make_load_one(element), make_store_one(element)
    team_sums, zero = make_team_sums(units, count), constant(element, 0.0)

    @device
    def sums(values, partials):
        table, first, slices, part, active = partials
        unit = cuda.threadIdx.x % units
        team_sums(values, values)
        if active and unit == 0:
            for n in range(count):
                store_one(table, first + n * slices + part, values[n])
        grid_barrier()
        stop = slices if active else 0
        for n in range(count):
            values[n] = zero
            for other in range(unit, stop, units):
                values[n] += load_one(table, first + n * slices + other)
        team_sums(values, values)

    return sums
