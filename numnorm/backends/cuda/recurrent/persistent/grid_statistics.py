"""Statistics of a row whose slices belong to several blocks.

Each block writes the statistics of its own slice, all blocks wait for each other, and each block
merges the statistics of all slices. It does so in the same order, so that all blocks get the same
bits. The sums over a row that the gradients need are added up in the same way.

A block writes four numbers for each part of its slice: ``inv_scale, mean_hi, mean_lo, squares``.
The mean and the sum of squared deviations are those of the values times a scale, a power of two.
"""

import functools
from typing import Any

from numnorm.backends.contract.norms import Formula
from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import (
    constant,
    cuda,
    device,
    grid_barrier,
    make_load,
    make_load_one,
    make_sqrt,
    make_store,
    make_store_one,
    reciprocal,
)
from numnorm.backends.cuda.recurrent.cell_norm import (
    NUMBERS,
    Parts,
    make_cell_factor,
    make_cell_moments,
    make_is_poor,
)
from numnorm.backends.cuda.recurrent.persistent.plans import SliceShape
from numnorm.backends.cuda.statistics.row_statistics import make_power_of_two
from numnorm.backends.cuda.threads.reductions import WARP, SumsOf, make_team_largest, make_team_sums

# Statistics of slices, and their merge


@functools.cache
def make_store_slice(element: ElementType) -> Any:
    """Return a device function that stores the four numbers of a slice.

    ``store_slice(table, index, inv_scale, mean_hi, mean_lo, squares)``
    """
    store = make_store(element)
    wide = element.vector == NUMBERS

    @device
    def at_once(table, index, inv_scale, mean_hi, mean_lo, squares):
        store(table, index * NUMBERS, (inv_scale, mean_hi, mean_lo, squares))

    @device
    def in_halves(table, index, inv_scale, mean_hi, mean_lo, squares):
        store(table, index * NUMBERS, (inv_scale, mean_hi))
        store(table, index * NUMBERS + 2, (mean_lo, squares))

    return at_once if wide else in_halves


@functools.cache
def _make_load_slice(element: ElementType) -> Any:
    """Return a device function ``load_slice(table, index)`` of the four numbers of a slice."""
    load = make_load(element)
    wide = element.vector == NUMBERS

    @device
    def at_once(table, index):
        return load(table, index * NUMBERS)

    @device
    def in_halves(table, index):
        inv_scale, mean_hi = load(table, index * NUMBERS)
        mean_lo, squares = load(table, index * NUMBERS + 2)
        return inv_scale, mean_hi, mean_lo, squares

    return at_once if wide else in_halves


def _make_row_statistics(formula: Formula, element: ElementType, team: int) -> Any:
    """Return a device function ``row_statistics(table, first, slices, sizes, inv_count, stats)``.

    It merges the means of a part's slices, which begin at index `first` of the table, into
    `stats`, for the scale in ``stats[0]``, and returns the merged squares. `sizes` are the numbers
    of elements of a slice and of the last slice.
    """
    load = _make_load_slice(element)
    zero = constant(element, 0.0)
    compute_type = element.compute_type
    team_sum = make_team_sums(team, 1)
    team_both = make_team_sums(team, 2)

    @device
    def centred(table, first, slices, sizes, inv_count, stats):
        sums = cuda.local.array(2, compute_type)
        full, last = sizes
        own, scale = cuda.threadIdx.x % team, stats[0]
        inv_scale, origin, _, _ = load(table, first)
        origin *= scale * inv_scale
        sums[0] = zero
        for n in range(own, slices, team):
            inv_scale, mean_hi, mean_lo, _ = load(table, first + n)
            ratio, size = scale * inv_scale, full if n < slices - 1 else last
            sums[0] += size * ((mean_hi * ratio - origin) + mean_lo * ratio)
        team_sum(sums, sums)
        mean = origin + sums[0] * inv_count
        sums[0], sums[1] = zero, zero
        for n in range(own, slices, team):
            inv_scale, mean_hi, mean_lo, squares = load(table, first + n)
            ratio, size = scale * inv_scale, full if n < slices - 1 else last
            deviation = (mean_hi * ratio - mean) + mean_lo * ratio
            sums[0] += size * deviation
            sums[1] += squares * ratio * ratio + size * deviation * deviation
        team_both(sums, sums)
        stats[1], stats[2] = mean, sums[0] * inv_count
        squares = sums[1] - sums[0] * stats[2]
        # max() would turn a NaN into 0.
        return zero if squares < zero else squares

    @device
    def uncentred(table, first, slices, sizes, inv_count, stats):
        sums = cuda.local.array(1, compute_type)
        own, scale = cuda.threadIdx.x % team, stats[0]
        sums[0] = zero
        for n in range(own, slices, team):
            inv_scale, _, _, squares = load(table, first + n)
            ratio = scale * inv_scale
            sums[0] += squares * ratio * ratio
        team_sum(sums, sums)
        stats[1], stats[2] = zero, zero
        return sums[0]

    return centred if formula.centred else uncentred


def _make_common_scale(element: ElementType, team: int) -> Any:
    """Return a device function ``common_scale(table, first, slices, scaling)``.

    It returns a power of two that brings the largest value of all slices, or epsilon, near 1. The
    mean and the root of the squares bound the values of a slice, within a small factor.
    """
    load, power_of_two = _make_load_slice(element), make_power_of_two(element)
    root, inverse = make_sqrt(element), reciprocal(element)
    zero, one = constant(element, 0.0), constant(element, 1.0)
    largest = make_team_largest(team)
    most = constant(element, 2.0**element.largest_exponent)

    @device
    def common_scale(table, first, slices, scaling):
        _, _, _, eps_on_deviation, root_eps = scaling
        # The largest value as a power of two, the reciprocal of the scale.
        epsilon = max(root_eps, eps_on_deviation)
        bound = inverse(power_of_two(epsilon)) if epsilon > zero else zero
        for n in range(cuda.threadIdx.x % team, slices, team):
            inv_scale, mean_hi, _, squares = load(table, first + n)
            size = max(abs(mean_hi), root(squares))
            if size > zero:
                bound = max(bound, min(most, inverse(power_of_two(size)) * inv_scale))
        bound = largest(bound, zero)
        return inverse(bound) if bound > zero else one

    return common_scale


def make_merged_statistics(formula: Formula, element: ElementType, team: int, count: int) -> Any:
    """Return a device function ``merge(table, first, stride, slices, sizes, scaling, stats)``.

    It computes the statistics of the `count` parts of a row, as `make_cell_statistics` does, from
    those of the slices. The first part begins at index `first` of the table, each next one
    `stride` later. All threads of a warp take part, and those of a team have the same row.
    `slices` is 0 if the row does not exist.
    """
    merge_part = _make_merged_part(formula, element, team)
    part = count - 1
    if count == 1:

        @device
        def of_one(table, first, stride, slices, sizes, scaling, stats):
            merge_part(table, first, slices, sizes, scaling, stats)

        return of_one
    # A recursion: the compiler would keep a loop, and the statistics in local memory.
    others = make_merged_statistics(formula, element, team, part)

    @device
    def of_all(table, first, stride, slices, sizes, scaling, stats):
        others(table, first, stride, slices, sizes, scaling, stats)
        last = stats[part * NUMBERS :]
        merge_part(table, first + part * stride, slices, sizes, scaling, last)

    return of_all


def _make_merged_part(formula: Formula, element: ElementType, team: int) -> Any:
    """Return a device function ``merge(table, first, slices, sizes, scaling, stats)`` of a part."""
    row_statistics = _make_row_statistics(formula, element, team)
    common_scale = _make_common_scale(element, team)
    is_poor, factor = make_is_poor(element), make_cell_factor(element)
    any_of = make_team_largest(WARP)
    zero, one = constant(element, 0.0), constant(element, 1.0)

    @device
    def merge(table, first, slices, sizes, scaling, stats):
        stats[0] = one
        squares = row_statistics(table, first, slices, sizes, scaling[0], stats)
        poor = slices > 0 and is_poor(squares, scaling)
        if any_of(one if poor else zero, zero) > zero:
            scale = common_scale(table, first, slices, scaling)
            # The whole warp repeats the sums, but a row of another team keeps its scale.
            stats[0] = scale if poor else one
            squares = row_statistics(table, first, slices, sizes, scaling[0], stats)
        stats[3] = factor(stats[0], squares, scaling)

    return merge


# All-reduce


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
    units = shape.units
    count, size = parts.count, parts.sections
    compute_type = element.compute_type
    zero = constant(element, 0.0)
    inverse = reciprocal(element)
    moments = make_cell_moments(formula, element, shape.of_units, parts)
    team_sums = make_team_sums(units, count)
    store_slice = make_store_slice(element)
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
    units = shape.units
    size = parts.sections
    compute_type = element.compute_type
    merge = make_merged_statistics(formula, element, units, parts.count)
    full, sections_of = constant(element, units * size), constant(element, size)

    @device
    def gather(shard, site, active, table, row, rows, scaling, stats):
        slices, _, _, _, last = shard
        sizes, merged = (full, sections_of * compute_type(last)), slices if active else 0
        merge(table, (site * rows + row) * slices, rows * slices, merged, sizes, scaling, stats)

    return gather


# Sums


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
    team_sums = make_team_sums(units, count)
    zero = constant(element, 0.0)

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
