"""What the blocks that share a row tell each other of its norm: the statistics of their slices.

A block leaves those of its own slice, all blocks wait for each other, and each puts those of all
slices together.
"""

from typing import Any

from numnorm.backends.contract.norms import Formula
from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import constant, cuda, device, grid_barrier, reciprocal
from numnorm.backends.cuda.recurrent.common.cell_norm import NUMBERS, Parts, make_cell_moments
from numnorm.backends.cuda.recurrent.persistent.merged_statistics import (
    make_merged_statistics,
    make_store_slice,
)
from numnorm.backends.cuda.recurrent.persistent.plans import SliceShape
from numnorm.backends.cuda.threads.group_reductions import make_team_sums


def make_all_reduce(formula: Formula, element: ElementType, shape: SliceShape, parts: Parts) -> Any:
    """Return a device function of the statistics of a row's parts, from all of its slices.

    ``all_reduce(values, shard, place, active, table, row, rows, scaling, found)``: `shard` is
    ``slices, slice, unit, size, last``, whose slice has so many units and the last one so many;
    the parts are those from a place of the table on, which has so many rows for each.
    """
    write_partials, gather = (
        make(formula, element, shape, parts) for make in (make_write_partials, make_gather)
    )

    @device
    def all_reduce(values, shard, place, active, table, row, rows, scaling, found):
        write_partials(values, shard, place, active, table, row, rows, scaling, found)
        grid_barrier()
        gather(shard, place, active, table, row, rows, scaling, found)

    return all_reduce


def make_write_partials(
    formula: Formula, element: ElementType, shape: SliceShape, parts: Parts
) -> Any:
    """Return a device function of what is before the barrier, with the arguments of `all_reduce`."""
    units, count, size = shape.units, parts.count, parts.sections
    compute_type, zero, inverse = element.compute_type, constant(element, 0.0), reciprocal(element)
    moments = make_cell_moments(formula, element, shape.of_units, parts)
    first_of, store_slice = make_team_sums(element, units, count), make_store_slice(element)
    sections_of = constant(element, size)

    @device
    def write_partials(values, shard, place, active, table, row, rows, scaling, found):
        slices, part, unit, width, _ = shard
        origins = cuda.local.array(count, compute_type)
        squares = cuda.local.array(count, compute_type)
        for n in range(count):
            origins[n] = values[n * size] if unit == 0 else zero
        first_of(origins, squares)
        own_share = inverse(sections_of * compute_type(width))
        _, inv_divisor, eps, eps_on_deviation, root_eps = scaling
        own = own_share, inv_divisor, eps, eps_on_deviation, root_eps
        # A part of a warp needs no room for its sums.
        moments(values, origins, found, squares, unit, width, own, squares)
        for n in range(count):
            at = ((place + n) * rows + row) * slices
            if active and unit == 0:
                k = n * NUMBERS
                inv_scale = inverse(found[k])
                store_slice(table, at + part, inv_scale, found[k + 1], found[k + 2], squares[n])

    return write_partials


def make_gather(formula: Formula, element: ElementType, shape: SliceShape, parts: Parts) -> Any:
    """Return a device function of what is behind the barrier.

    ``gather(shard, place, active, table, row, rows, scaling, found)``
    """
    units, size, compute_type = shape.units, parts.sections, element.compute_type
    merged = make_merged_statistics(formula, element, units, parts.count)
    full, sections_of = constant(element, units * size), constant(element, size)

    @device
    def gather(shard, place, active, table, row, rows, scaling, found):
        slices, _, _, _, last = shard
        sizes, seen = (full, sections_of * compute_type(last)), slices if active else 0
        merged(table, (place * rows + row) * slices, rows * slices, seen, sizes, scaling, found)

    return gather
