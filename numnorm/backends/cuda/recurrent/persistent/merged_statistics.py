"""A norm whose elements are dealt out to many blocks: the statistics of slices, put together.

What a block leaves of its slice of a part of a row are four numbers: high, low and the squares of
the slice's values times a power of two, its scale, and before them the reach, which is 1 over that.
Every block puts those of all slices together in the same order, so that all of them have the same
bits.
"""

import functools
from typing import Any

from numnorm.backends.contract.norms import Formula
from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import (
    constant,
    cuda,
    device,
    make_load,
    make_sqrt,
    make_store,
    reciprocal,
)
from numnorm.backends.cuda.recurrent.common.cell_norm import NUMBERS, make_cell_factor, make_is_poor
from numnorm.backends.cuda.statistics.row_normalizer import make_power_of_two
from numnorm.backends.cuda.threads.group_reductions import WARP, make_team_largest, make_team_sums


@functools.cache
def make_store_slice(element: ElementType) -> Any:
    """Return a device function ``store_slice(table, place, inv_scale, mean_hi, mean_lo, squares)``."""
    store, wide = make_store(element), element.vector == NUMBERS

    @device
    def at_once(table, place, inv_scale, mean_hi, mean_lo, squares):
        store(table, place * NUMBERS, (inv_scale, mean_hi, mean_lo, squares))

    @device
    def in_halves(table, place, inv_scale, mean_hi, mean_lo, squares):
        store(table, place * NUMBERS, (inv_scale, mean_hi))
        store(table, place * NUMBERS + 2, (mean_lo, squares))

    return at_once if wide else in_halves


@functools.cache
def _make_load_slice(element: ElementType) -> Any:
    """Return a device function ``load_slice(table, place)`` of the four numbers."""
    load, wide = make_load(element), element.vector == NUMBERS

    @device
    def at_once(table, place):
        return load(table, place * NUMBERS)

    @device
    def in_halves(table, place):
        inv_scale, mean_hi = load(table, place * NUMBERS)
        mean_lo, squares = load(table, place * NUMBERS + 2)
        return inv_scale, mean_hi, mean_lo, squares

    return at_once if wide else in_halves


def _make_row_statistics(formula: Formula, element: ElementType, team: int) -> Any:
    """Return a device function ``row_statistics(table, first, slices, sizes, inv_count, found)``.

    It finds high and low of a part by those of its slices, which begin at a place of the table,
    for the scale in `found`, and returns the squares. The sizes are a slice's and the last one's.
    """
    load, zero, compute_type = (
        _make_load_slice(element),
        constant(element, 0.0),
        element.compute_type,
    )
    team_sum, team_both = make_team_sums(element, team, 1), make_team_sums(element, team, 2)

    @device
    def centred(table, first, slices, sizes, inv_count, found):
        sums = cuda.local.array(2, compute_type)
        full, last = sizes
        mine, scale = cuda.threadIdx.x % team, found[0]
        inv_scale, origin, _, _ = load(table, first)
        origin *= scale * inv_scale
        sums[0] = zero
        for n in range(mine, slices, team):
            inv_scale, mean_hi, mean_lo, _ = load(table, first + n)
            ratio, size = scale * inv_scale, full if n < slices - 1 else last
            sums[0] += size * ((mean_hi * ratio - origin) + mean_lo * ratio)
        team_sum(sums, sums)
        mean = origin + sums[0] * inv_count
        sums[0], sums[1] = zero, zero
        for n in range(mine, slices, team):
            inv_scale, mean_hi, mean_lo, squares = load(table, first + n)
            ratio, size = scale * inv_scale, full if n < slices - 1 else last
            deviation = (mean_hi * ratio - mean) + mean_lo * ratio
            sums[0] += size * deviation
            sums[1] += squares * ratio * ratio + size * deviation * deviation
        team_both(sums, sums)
        found[1], found[2] = mean, sums[0] * inv_count
        squares = sums[1] - sums[0] * found[2]
        # max() would turn a NaN into 0.
        return zero if squares < zero else squares

    @device
    def uncentred(table, first, slices, sizes, inv_count, found):
        sums = cuda.local.array(1, compute_type)
        mine, scale = cuda.threadIdx.x % team, found[0]
        sums[0] = zero
        for n in range(mine, slices, team):
            inv_scale, _, _, squares = load(table, first + n)
            ratio = scale * inv_scale
            sums[0] += squares * ratio * ratio
        team_sum(sums, sums)
        found[1], found[2] = zero, zero
        return sums[0]

    return centred if formula.centred else uncentred


def _make_common_scale(element: ElementType, team: int) -> Any:
    """Return a device function ``common_scale(table, first, slices, scaling)``.

    It is a power of two that brings the largest values of all slices, or epsilon, near 1. A slice
    has none larger than its mean and the root of its squares tell, each but a few times as large
    as the other can be.
    """
    load, power_of_two = _make_load_slice(element), make_power_of_two(element)
    root, inverse = make_sqrt(element), reciprocal(element)
    zero, one = constant(element, 0.0), constant(element, 1.0)
    largest = make_team_largest(element, team)
    most = constant(element, 2.0**element.largest_exponent)

    @device
    def common_scale(table, first, slices, scaling):
        _, _, _, eps_on_deviation, root_eps = scaling
        # Of powers of two the largest reciprocal, for that is how far the numbers reach.
        beyond = max(root_eps, eps_on_deviation)
        found = inverse(power_of_two(beyond)) if beyond > zero else zero
        for n in range(cuda.threadIdx.x % team, slices, team):
            inv_scale, mean_hi, _, squares = load(table, first + n)
            size = max(abs(mean_hi), root(squares))
            if size > zero:
                found = max(found, min(most, inverse(power_of_two(size)) * inv_scale))
        found = largest(found, zero)
        return inverse(found) if found > zero else one

    return common_scale


def make_merged_statistics(formula: Formula, element: ElementType, team: int, count: int) -> Any:
    """Return a device function ``merged(table, first, apart, slices, sizes, scaling, found)``.

    It finds the statistics of the parts of a row, as `make_cell_statistics` does, from what blocks
    left of their slices; from a part to the next it is so far in the table. All threads of a warp
    take part; those of a team have the same row. For a row that there is not, it is told of no
    slices.
    """
    merged, part = _make_merged_part(formula, element, team), count - 1
    if count == 1:

        @device
        def of_one(table, first, apart, slices, sizes, scaling, found):
            merged(table, first, slices, sizes, scaling, found)

        return of_one
    # No loop, which a compiler would leave one, with the statistics in memory.
    others = make_merged_statistics(formula, element, team, part)

    @device
    def of_all(table, first, apart, slices, sizes, scaling, found):
        others(table, first, apart, slices, sizes, scaling, found)
        behind = found[part * NUMBERS :]
        merged(table, first + part * apart, slices, sizes, scaling, behind)

    return of_all


def _make_merged_part(formula: Formula, element: ElementType, team: int) -> Any:
    """Return a device function ``merged(table, first, slices, sizes, scaling, found)`` of one."""
    row_statistics, common_scale = (
        _make_row_statistics(formula, element, team),
        _make_common_scale(element, team),
    )
    is_poor, factor = make_is_poor(element), make_cell_factor(element)
    any_of, zero, one = (
        make_team_largest(element, WARP),
        constant(element, 0.0),
        constant(element, 1.0),
    )

    @device
    def merged(table, first, slices, sizes, scaling, found):
        found[0] = one
        squares = row_statistics(table, first, slices, sizes, scaling[0], found)
        poor = slices > 0 and is_poor(squares, scaling)
        if any_of(one if poor else zero, zero) > zero:
            scale = common_scale(table, first, slices, scaling)
            # A row beside it, of another team, has nothing to do with it.
            found[0] = scale if poor else one
            squares = row_statistics(table, first, slices, sizes, scaling[0], found)
        found[3] = factor(found[0], squares, scaling)

    return merged
