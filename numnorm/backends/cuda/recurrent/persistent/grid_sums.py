"""Sums over a row whose units are dealt out to many blocks."""

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
    """Return what makes the sums of a row whose slices have so many units.

    They are device functions ``sums(values, smem)`` of so many numbers. The room is ``table,
    first, slices, slice, active``: where the row's shares begin, and whether there is a row. They
    are added up in the same order by all blocks.
    """
    return functools.partial(_make_slice_sums, element, units)


def _make_slice_sums(element: ElementType, units: int, count: int) -> Any:
    load_one, store_one = make_load_one(element), make_store_one(element)
    team_sums, zero = make_team_sums(element, units, count), constant(element, 0.0)

    @device
    def sums(values, smem):
        table, first, slices, part, active = smem
        unit = cuda.threadIdx.x % units
        team_sums(values, values)
        if active and unit == 0:
            for n in range(count):
                store_one(table, first + n * slices + part, values[n])
        grid_barrier()
        seen = slices if active else 0
        for n in range(count):
            values[n] = zero
            for other in range(unit, seen, units):
                values[n] += load_one(table, first + n * slices + other)
        team_sums(values, values)

    return sums
