"""The all-reduce of a row's statistics over the blocks that have its slices.

Each block writes the statistics of its own slice, all blocks wait for each other, and each block
merges the statistics of all slices.
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
    """Return a device function that computes the statistics of a row's parts from all slices.

    ``all_reduce(values, shard, site, active, table, row, rows, scaling, stats)``: `values` are
    the thread's elements, and `shard` is what `make_locate` describes. The `table` has the
    statistics of all slices of `rows` rows for each part; the first of these parts is number
    `site`. `active` tells whether the row exists. The statistics are written to `stats`.
    """
    write_partials, gather = (
        make(formula, element, shape, parts) for make in (make_write_partials, make_gather)
    )

    @device
    def all_reduce(values, shard, site, active, table, row, rows, scaling, stats):
        write_partials(values, shard, site, active, table, row, rows, scaling, stats)
        grid_barrier()
        gather(shard, site, active, table, row, rows, scaling, stats)

    return all_reduce


def make_write_partials(
    formula: Formula, element: ElementType, shape: SliceShape, parts: Parts
) -> Any:
    """Return a device function that writes a slice's statistics to the table.

    It has the arguments of `all_reduce`.
    """
    units, count, size = shape.units, parts.count, parts.sections
    compute_type, zero, inverse = element.compute_type, constant(element, 0.0), reciprocal(element)
    moments = make_cell_moments(formula, element, shape.of_units, parts)
    team_sums, store_slice = make_team_sums(units, count), make_store_slice(element)
    sections_of = constant(element, size)

    @device
    def write_partials(values, shard, site, active, table, row, rows, scaling, stats):
        slices, part, unit, width, _ = shard
        origins = cuda.local.array(count, compute_type)
        squares = cuda.local.array(count, compute_type)
        for n in range(count):
            origins[n] = values[n * size] if unit == 0 else zero
        team_sums(origins, squares)  # all but the first unit's are 0
        own_inv_count = inverse(sections_of * compute_type(width))
        _, inv_divisor, eps, eps_on_deviation, root_eps = scaling
        own = own_inv_count, inv_divisor, eps, eps_on_deviation, root_eps
        # A team within a warp needs no shared memory: the last argument is not used.
        moments(values, origins, stats, squares, unit, width, own, squares)
        for n in range(count):
            at = ((site + n) * rows + row) * slices
            if active and unit == 0:
                k = n * NUMBERS
                inv_scale = inverse(stats[k])
                store_slice(table, at + part, inv_scale, stats[k + 1], stats[k + 2], squares[n])

    return write_partials


def make_gather(formula: Formula, element: ElementType, shape: SliceShape, parts: Parts) -> Any:
    """Return a device function that merges the statistics of all slices, after the barrier.

    ``gather(shard, site, active, table, row, rows, scaling, stats)``: as in `make_all_reduce`.
    """
    units, size, compute_type = shape.units, parts.sections, element.compute_type
    merge = make_merged_statistics(formula, element, units, parts.count)
    full, sections_of = constant(element, units * size), constant(element, size)

    @device
    def gather(shard, site, active, table, row, rows, scaling, stats):
        slices, _, _, _, last = shard
        sizes, merged = (full, sections_of * compute_type(last)), slices if active else 0
        merge(table, (site * rows + row) * slices, rows * slices, merged, sizes, scaling, stats)

    return gather
