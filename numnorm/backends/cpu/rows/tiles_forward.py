"""The forward pass of narrow rows, a tile of as many rows as a vector has lanes at a time.

The statistics of a tile are computed together, a row to a lane. While its results are stored, the
next tile is prefetched, because nothing is read while the statistics are computed.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.backends.contract.norms import Formula
from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.memory.borrowed import as_flat, make_scratch, row
from numnorm.backends.cpu.memory.nontemporal import fence_after_stores
from numnorm.backends.cpu.memory.write_combining import (
    begin,
    make_buffer,
    make_write_combiner,
    uses_write_combining,
)
from numnorm.backends.cpu.rows.segment_loops import channel_of, make_mapped, next_channel
from numnorm.backends.cpu.rows.tile_sums import (
    make_row_tile_sums,
    make_square_sums,
    sums_scratch_size,
)
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.functions import (
    has_zero,
    make_converted,
    reciprocal,
    sqrt,
    where_at_most,
)
from numnorm.backends.cpu.simd.masked import make_masked_load, masked_store
from numnorm.backends.cpu.simd.optional import part
from numnorm.backends.cpu.simd.optional_vector import make_load_or_scalar, make_masked_elements
from numnorm.backends.cpu.simd.processor import has_avx512
from numnorm.backends.cpu.simd.vector import load_scalar, make_load, prefetch_l1, store
from numnorm.backends.cpu.statistics.saved import save
from numnorm.backends.formulas.norms import squared_deviations

_squared_deviations = inlined(squared_deviations)


def widest(element_type: ElementType) -> int:
    """Return the largest width of rows that are taken in tiles."""
    size = element_type.storage_dtype.itemsize
    if size > 2:
        return tuning.FORWARD_TILE_MOST_ROW_BYTES // size
    return tuning.FORWARD_TILE_HALF_MOST_ROW_BYTES // size


def _make_statistics(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``statistics(width, scaling, sums, mean_los, factors, rstds)``.

    It stores mean_lo and rstd of each row of a tile from its sums, rstd in the compute type
    (`factors`) and in float64. It returns whether any row needs another pass: its rstd is then 0.
    """
    smallest, largest = element_type.smallest_variance, float(np.finfo(np.float64).max)
    load, double = make_load(element_type.lanes), make_converted(np.float64)
    to_compute = make_converted(element_type.compute_type)

    @inlined
    def statistics(width, scaling, sums, mean_los, factors, rstds):
        eps, eps_on_deviation, count = scaling
        first, second = double(load(sums[0], 0)), double(load(sums[1], 0))
        mean_lo = first * (1.0 / width)
        lost = first * mean_lo
        m2 = _squared_deviations(second, first, mean_lo)
        variance = m2 * (1.0 / count)
        total = variance + eps + eps_on_deviation * eps_on_deviation
        rstd = reciprocal(sqrt(variance + eps) + eps_on_deviation)
        rstd = where_at_most(where_at_most(rstd, lost, m2), smallest, total)
        rstd = where_at_most(rstd, total, largest)
        store(mean_los, 0, to_compute(mean_lo))
        store(factors, 0, to_compute(rstd))
        store(rstds, 0, rstd)
        return has_zero(rstd)

    return statistics


def _make_apply_pair(formula: Formula, element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``apply_pair(x, offsets, ahead, width, statistics, weights, y, targets)``.

    It stores the results of two rows of one segment, from their `offsets` in a flat x to their
    `targets` in a flat y, and prefetches as many elements of x from `ahead` on.
    """
    real, lanes = element_type.compute_type, element_type.lanes
    mapped = make_mapped(formula, element_type)
    load, masked_load = make_load(lanes), make_masked_load(lanes)
    load_or_scalar, masked_elements = make_load_or_scalar(lanes), make_masked_elements(lanes)

    @inlined
    def apply_pair(x, offsets, ahead, width, statistics, weights, y, targets):
        gamma, beta = weights
        tail = width - width % lanes
        for j in range(0, tail, lanes):
            prefetch_l1(x, ahead + 2 * j)
            prefetch_l1(x, ahead + 2 * j + lanes)
            weight, bias = load_or_scalar(gamma, j, real(1)), load_or_scalar(beta, j, real(0))
            a = mapped(load(x, offsets[0] + j), statistics[0], weight, bias)
            b = mapped(load(x, offsets[1] + j), statistics[1], weight, bias)
            store(y, targets[0] + j, a)
            store(y, targets[1] + j, b)
        n = width - tail
        if n > 0:
            prefetch_l1(x, ahead + 2 * tail)
            prefetch_l1(x, ahead + 2 * tail + lanes)
            weight = masked_elements(gamma, tail, 0, n, real(1))
            bias = masked_elements(beta, tail, 0, n, real(0))
            a = mapped(masked_load(x, offsets[0] + tail, 0, n), statistics[0], weight, bias)
            b = mapped(masked_load(x, offsets[1] + tail, 0, n), statistics[1], weight, bias)
            masked_store(y, targets[0] + tail, a, 0, n)
            masked_store(y, targets[1] + tail, b, 0, n)

    return apply_pair


def _with_fixed_widths(
    element_type: ElementType, function: Callable[..., Any], for_one: Callable[..., Any]
) -> Callable[..., Any]:
    """Return a compiled function that calls another, with its first argument, the width, constant.

    It is a constant for rows of 1, 2 or 4 vectors, so that the compiler unrolls their loops. Rows
    of one vector call `for_one`.
    """
    one, two, four = element_type.lanes, 2 * element_type.lanes, 4 * element_type.lanes

    @inlined
    def specialized(width, *arguments):
        if width == one:
            for_one(one, *arguments)
        elif width == two:
            function(two, *arguments)
        elif width == four:
            function(four, *arguments)
        else:
            function(width, *arguments)

    return specialized


def _make_sums(formula: Formula, element_type: ElementType) -> Callable[..., Any]:
    """Return the compiled function of `make_row_tile_sums`, faster for some widths."""
    tile_sums = make_row_tile_sums(element_type, centred=formula.centred)
    # Halves would have to be converted before the transpose, and AVX2 has half the registers of
    # a square.
    squares = element_type.storage_dtype == element_type.compute_dtype and has_avx512()
    for_one = make_square_sums(element_type, centred=formula.centred) if squares else tile_sums
    return _with_fixed_widths(element_type, tile_sums, for_one)


def _make_statistics_of(formula: Formula, element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``statistics_of(means, rstds, t)`` of a tile's t-th row."""
    real = element_type.compute_type

    def centred(means, rstds, t):
        return real(1), load_scalar(means[0], t), load_scalar(means[1], t), load_scalar(rstds, t)

    def uncentred(means, rstds, t):
        return real(1), None, None, load_scalar(rstds, t)

    return inlined(centred if formula.centred else uncentred)


def _make_store_tile(formula: Formula, element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled function that stores the results of a tile's rows of one segment.

    ``store_tile(width, number, x, at, means, factors, weights, y, to)`` reads a flat x from `at`
    on and writes a flat y from `to` on.
    """
    lanes, statistics_of = element_type.lanes, _make_statistics_of(formula, element_type)
    apply_pair = _make_apply_pair(formula, element_type)

    @inlined
    def store_tile(width, number, x, at, means, factors, weights, y, to):
        weight, ahead = (part(weights[0], 0), part(weights[1], 0)), at + lanes * width
        for t in range(0, number, 2):
            other = t + 1 if t + 1 < number else t  # the last of an odd number is stored twice
            pair = statistics_of(means, factors, t), statistics_of(means, factors, other)
            offsets = at + t * width, at + other * width
            targets = to + t * width, to + other * width
            apply_pair(x, offsets, ahead + t * width, width, pair, weight, y, targets)

    return _with_fixed_widths(element_type, store_tile, store_tile)


def _make_store_singly(
    statistics_of: Callable[..., Any],
    row_statistics: Callable[..., Any],
    apply_row: Callable[..., Any],
) -> Callable[..., Any]:
    """Return a compiled function that stores and saves the rows of a tile one by one.

    It computes the statistics of rows with an rstd of 0 once more, and returns the channel of the
    next row.
    """

    @inlined
    def store_singly(x, start, number, scaling, segments, channel, weights, y, means, rstds, saved):
        for t in range(number):
            of_row = statistics_of(means, rstds, t)
            if load_scalar(rstds, t) == 0.0:
                of_row = row_statistics(row(x, start + t), scaling)
            apply_row(x, start + t, of_row, segments, channel, weights, y, False)
            save(saved, start + t, of_row)
            channel = next_channel(channel, segments)
        return channel

    return store_singly


def make_narrow_rows(
    formula: Formula,
    element_type: ElementType,
    row_statistics: Callable[..., Any],
    apply_row: Callable[..., Any],
) -> Callable[..., Any]:
    """Return a compiled ``narrow_rows(x, scaling, segments, weights, y, saved, start, stop)``.

    It normalizes these rows tile by tile. `row_statistics` computes the statistics of a row whose
    squares overflow or vanish, or whose pivot was poor. `apply_row` stores the result of one row
    of any number of segments.
    """
    lanes, sums_size = element_type.lanes, sums_scratch_size(element_type)
    tile_sums, statistics = _make_sums(formula, element_type), _make_statistics(element_type)
    statistics_of = _make_statistics_of(formula, element_type)
    store_singly = _make_store_singly(statistics_of, row_statistics, apply_row)
    store_tile, (append, finish) = (
        _make_store_tile(formula, element_type),
        make_write_combiner(element_type),
    )
    sums_scratch = make_scratch(element_type.compute_type, sums_size)
    lane_scratch = make_scratch(element_type.compute_type, lanes)
    line_scratch = make_buffer(element_type, lanes * widest(element_type))
    rstd_scratch = make_scratch(np.float64, lanes)

    @inlined
    def save_all(start, number, means, rstds, saved):
        if saved[0].size > 0:
            for t in range(number):
                save(saved, start + t, statistics_of(means, rstds, t))

    @inlined
    def narrow_rows(x, scaling, segments, weights, y, saved, start, stop):
        scratch, rstds, buffer = sums_scratch(), rstd_scratch(), line_scratch()
        means, factors = (lane_scratch(), lane_scratch()), lane_scratch()
        sums = lane_scratch(), lane_scratch()
        flat, flat_y, width = as_flat(x), as_flat(y), x.shape[1]
        channel, one_segment = channel_of(start, segments), segments[1] == 1 and segments[2] <= 1
        combines, state = one_segment and uses_write_combining(y), begin(flat_y, start * width)
        for i in range(start, stop, lanes):
            number, at = min(lanes, stop - i), i * width
            tile_sums(width, number, flat, at, scratch, means[0], sums)
            poor = statistics(width, scaling, sums, means[1], factors, rstds)
            if one_segment and not poor:
                target, to = (buffer, state[1]) if combines else (flat_y, at)
                store_tile(width, number, flat, at, means, factors, weights, target, to)
                save_all(i, number, means, rstds, saved)
                if combines:
                    state = append(buffer, state, number * width, flat_y)
            else:
                if combines:
                    finish(buffer, state, flat_y)
                channel = store_singly(
                    x, i, number, scaling, segments, channel, weights, y, means, rstds, saved
                )
                state = begin(flat_y, at + number * width)
        if combines:
            finish(buffer, state, flat_y)
        fence_after_stores(combines)

    return narrow_rows
