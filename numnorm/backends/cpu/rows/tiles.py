"""Narrow rows, a tile of as many rows as a vector has lanes at a time: sums, and the forward pass.

To reduce the lanes of one sum takes longer than to read a narrow row. So the rows of a tile are
summed one after the other, and then the lanes of all their sums are reduced together. A row's sums
do not depend on the tile that it is in.

Forward, the statistics of a tile are computed together, a row to a lane. While its results are
stored, the next tile is prefetched, because nothing is read while the statistics are computed.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.backends.contract.norms import Formula
from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.memory.kernel_arrays import as_flat, make_scratch, row
from numnorm.backends.cpu.memory.nontemporal import (
    begin,
    fence_after_stores,
    make_buffer,
    make_write_combiner,
    uses_write_combining,
)
from numnorm.backends.cpu.rows.segment_loops import channel_of, make_mapped, next_channel
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.functions import (
    has_zero,
    make_converted,
    reciprocal,
    sqrt,
    where_at_most,
)
from numnorm.backends.cpu.simd.masked import make_masked_load, masked_store, select_lanes
from numnorm.backends.cpu.simd.optional import make_load_or_scalar, make_masked_elements, part
from numnorm.backends.cpu.simd.processor import has_avx512
from numnorm.backends.cpu.simd.squares import make_reduce_rows, make_transpose
from numnorm.backends.cpu.simd.vector import (
    load_scalar,
    make_load,
    make_zeros,
    prefetch_l1,
    store,
)
from numnorm.backends.cpu.statistics.saved import save
from numnorm.backends.formulas.norms import squared_deviations

# Sums


def sums_scratch_size(element_type: ElementType) -> int:
    """Return how many elements of scratch two vectors of sums for each row of a tile take."""
    return 2 * element_type.lanes * element_type.lanes


@inlined
def four_from(t, number):
    """Return row t of a tile and the next three, and the row to continue with.

    If fewer than three follow, they are the row t four times.
    """
    if t + 4 <= number:
        return (t, t + 1, t + 2, t + 3), t + 4
    return (t, t, t, t), t + 1


@inlined
def offsets_of(four, at, width):
    """Return the offsets of four rows of a tile that begins at the element `at`."""
    return (at + four[0] * width, at + four[1] * width, at + four[2] * width, at + four[3] * width)


@inlined
def _added(sums, deviation):
    return sums[0] + deviation, sums[1] + deviation * deviation


def _make_sums_of_four(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``sums_of_four(x, offsets, width, pivots)``.

    It returns, for each of four rows, the vector sums of ``row - pivot`` and of its squares.
    """
    real, to_compute, lanes = element_type.compute_type, element_type.to_compute, element_type.lanes
    load, masked_load, zeros = make_load(lanes), make_masked_load(lanes), make_zeros(real, lanes)

    @inlined
    def sums_of_four(x, offsets, width, pivots):
        sums = zeros(), zeros()
        a, b, c, d = sums, sums, sums, sums
        tail = width - width % lanes
        for j in range(0, tail, lanes):
            a = _added(a, to_compute(load(x, offsets[0] + j)) - pivots[0])
            b = _added(b, to_compute(load(x, offsets[1] + j)) - pivots[1])
            c = _added(c, to_compute(load(x, offsets[2] + j)) - pivots[2])
            d = _added(d, to_compute(load(x, offsets[3] + j)) - pivots[3])
        n = width - tail
        if n > 0:
            a_tail = to_compute(masked_load(x, offsets[0] + tail, 0, n)) - pivots[0]
            b_tail = to_compute(masked_load(x, offsets[1] + tail, 0, n)) - pivots[1]
            c_tail = to_compute(masked_load(x, offsets[2] + tail, 0, n)) - pivots[2]
            d_tail = to_compute(masked_load(x, offsets[3] + tail, 0, n)) - pivots[3]
            a, b = _added(a, select_lanes(a_tail, 0, n)), _added(b, select_lanes(b_tail, 0, n))
            c, d = _added(c, select_lanes(c_tail, 0, n)), _added(d, select_lanes(d_tail, 0, n))
        return a, b, c, d

    return sums_of_four


@functools.cache
def make_row_tile_sums(element_type: ElementType, *, centred: bool) -> Callable[..., Any]:
    """Return a compiled ``tile_sums(width, number, x, at, scratch, pivots, sums)``.

    The tile is `number` rows of a flat x, from the element `at` on. For each row it stores a pivot
    near the row's mean in `pivots`, and the sums of the deviations from the pivot and of their
    squares in the two arrays `sums`. Without centring it leaves the pivots and stores 0 and the
    sum of squares.
    """
    real, to_compute, lanes = element_type.compute_type, element_type.to_compute, element_type.lanes
    half = lanes * lanes
    load, masked_load, reduce = make_load(lanes), make_masked_load(lanes), make_reduce_rows(lanes)
    sums_of_four, zeros = _make_sums_of_four(element_type), make_zeros(real, lanes)

    @inlined
    def store_sums(scratch, t, sums):
        index = t * lanes
        store(scratch, index, sums[0])
        store(scratch, half + index, sums[1])

    @inlined
    def store_four(scratch, four, sums):
        store_sums(scratch, four[0], sums[0])
        store_sums(scratch, four[1], sums[1])
        store_sums(scratch, four[2], sums[2])
        store_sums(scratch, four[3], sums[3])

    @inlined
    def store_pivots(width, number, x, at, scratch, pivots):
        # Around the first element, so that a constant row gives exactly that constant.
        n = min(width, lanes)
        for t in range(number):
            begin = at + t * width
            origin = to_compute(load_scalar(x, begin))
            pivots[t] = origin
            values = to_compute(masked_load(x, begin, 0, n))
            store(scratch, t * lanes, select_lanes(values - origin, 0, n))
        store(pivots, 0, load(pivots, 0) + reduce(scratch) * (real(1) / real(n)))

    @inlined
    def centred_sums(width, number, x, at, scratch, pivots, sums):
        store_pivots(width, number, x, at, scratch, pivots)
        t = 0
        while t < number:
            four, t = four_from(t, number)
            pivot = (
                load_scalar(pivots, four[0]), load_scalar(pivots, four[1]),
                load_scalar(pivots, four[2]), load_scalar(pivots, four[3]),
            )  # fmt: skip
            store_four(scratch, four, sums_of_four(x, offsets_of(four, at, width), width, pivot))
        store(sums[0], 0, reduce(scratch))
        store(sums[1], 0, reduce(scratch[half:]))

    @inlined
    def uncentred_sums(width, number, x, at, scratch, pivots, sums):
        zero = real(0), real(0), real(0), real(0)
        t = 0
        while t < number:
            four, t = four_from(t, number)
            store_four(scratch, four, sums_of_four(x, offsets_of(four, at, width), width, zero))
        store(sums[0], 0, zeros())
        store(sums[1], 0, reduce(scratch[half:]))

    return centred_sums if centred else uncentred_sums


@functools.cache
def make_square_sums(element_type: ElementType, *, centred: bool) -> Callable[..., Any]:
    """Return a compiled ``square_sums(width, number, x, at, scratch, pivots, sums)``.

    It stores what `tile_sums` stores, for rows of one vector. Such a tile is a square: after a
    transpose each lane holds a row, and the columns are added, without any reduction of lanes.
    """
    real, lanes = element_type.compute_type, element_type.lanes
    load, zeros, transpose = make_load(lanes), make_zeros(real, lanes), make_transpose(lanes)
    half, inv_count = lanes * lanes, real(1) / real(lanes)

    @inlined
    def store_columns(number, x, at, scratch):
        if number == lanes:
            transpose(x, at, lanes, scratch, 0)
            return
        for t in range(lanes):
            row = load(x, at + t * lanes) if t < number else zeros()
            store(scratch, half + t * lanes, row)
        transpose(scratch, half, lanes, scratch, 0)

    @inlined
    def sums_around(scratch, pivot):
        sums = zeros(), zeros()
        a, b, c, d = sums, sums, sums, sums
        for j in range(0, half, 4 * lanes):
            a = _added(a, load(scratch, j) - pivot)
            b = _added(b, load(scratch, j + lanes) - pivot)
            c = _added(c, load(scratch, j + 2 * lanes) - pivot)
            d = _added(d, load(scratch, j + 3 * lanes) - pivot)
        return (a[0] + b[0]) + (c[0] + d[0]), (a[1] + b[1]) + (c[1] + d[1])

    @inlined
    def centred_sums(width, number, x, at, scratch, pivots, sums):
        store_columns(number, x, at, scratch)
        # Around the first element, so that a constant row gives exactly that constant.
        origin = load(scratch, 0)
        deviation, _ = sums_around(scratch, origin)
        pivot = origin + deviation * inv_count
        first, second = sums_around(scratch, pivot)
        store(pivots, 0, pivot)
        store(sums[0], 0, first)
        store(sums[1], 0, second)

    @inlined
    def uncentred_sums(width, number, x, at, scratch, pivots, sums):
        store_columns(number, x, at, scratch)
        _, second = sums_around(scratch, real(0))
        store(sums[0], 0, zeros())
        store(sums[1], 0, second)

    return centred_sums if centred else uncentred_sums


# Forward


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
