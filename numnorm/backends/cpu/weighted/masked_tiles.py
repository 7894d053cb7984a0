"""Rows of which elements are left out, as many at a time as a vector has lanes.

The statistics of a tile are computed together, a row to a lane: see `rows.tiles_forward`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.backends.contract.norms import Formula
from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.memory.borrowed import make_scratch, window
from numnorm.backends.cpu.rows.tiles_forward import widest
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.functions import (
    has_zero,
    make_converted,
    reciprocal,
    sqrt,
    where_at_most,
)
from numnorm.backends.cpu.simd.kept import make_masked_kept, number_kept, where_kept
from numnorm.backends.cpu.simd.masked import make_masked_load, masked_store
from numnorm.backends.cpu.simd.optional import part
from numnorm.backends.cpu.simd.optional_vector import make_load_or_scalar, make_masked_elements
from numnorm.backends.cpu.simd.reduce_rows import make_reduce_rows
from numnorm.backends.cpu.simd.vector import load_scalar, make_load, make_zeros, prefetch_l1, store
from numnorm.backends.cpu.statistics.saved import save
from numnorm.backends.formulas.norms import squared_deviations

_squared_deviations = inlined(squared_deviations)


def _make_pivots(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled function that stores the mean of what is kept of each row's first vector.

    It is 0 where nothing is.
    """
    lanes, to_compute, real = element_type.lanes, element_type.to_compute, element_type.compute_type
    masked_load, masked_kept = make_masked_load(lanes), make_masked_kept(lanes)
    load, reduce_rows = make_load(lanes), make_reduce_rows(lanes)

    @inlined
    def pivots(x, mask, width, last, square, numbers, means):
        n = min(width, lanes)
        for t in range(lanes):
            of_row = min(t, last)
            values = to_compute(masked_load(x, of_row * width, 0, n))
            kept = masked_kept(mask.keep, of_row * mask.step, 0, n)
            store(square, t * lanes, where_kept(values, kept, values, mask.omit))
            numbers[t] = real(max(number_kept(kept, values, mask.omit), 1))
        store(means, 0, reduce_rows(square) / load(numbers, 0))

    return pivots


def _make_sums(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled function that stores the sums of each row of a tile around its pivot.

    The number of elements is NaN where they are too few for a variance.
    """
    lanes, to_compute, real = element_type.lanes, element_type.to_compute, element_type.compute_type
    load, masked_load, zeros = make_load(lanes), make_masked_load(lanes), make_zeros(real, lanes)
    load_or_scalar, masked_kept = make_load_or_scalar(lanes), make_masked_kept(lanes)
    reduce_rows = make_reduce_rows(lanes)

    @inlined
    def added(sums, values, kept, omit, pivot):
        number, first, second = sums
        deviation = where_kept(values - pivot, kept, values, omit)
        number += number_kept(kept, values, omit)
        return number, first + deviation, second + deviation * deviation

    @inlined
    def tile_sums(x, mask, width, last, scaling, pivots, squares, numbers, sums):
        tail = width - width % lanes
        for t in range(lanes):
            pivot, of_row, at, kept_at = (
                load_scalar(pivots, t),
                (0, zeros(), zeros()),
                min(t, last) * width,
                min(t, last) * mask.step,
            )
            for j in range(0, tail, lanes):
                values, kept = (
                    to_compute(load(x, at + j)),
                    load_or_scalar(mask.keep, kept_at + j, None),
                )
                of_row = added(of_row, values, kept, mask.omit, pivot)
            n = width - tail
            if n > 0:
                values = to_compute(masked_load(x, at + tail, 0, n))
                kept = masked_kept(mask.keep, kept_at + tail, 0, n)
                of_row = added(of_row, values, kept, mask.omit, pivot)
            number = of_row[0]
            enough = number > 0 and number * scaling.share + scaling.more > 0.0
            numbers[t] = real(number if enough else np.nan)
            store(squares[0], t * lanes, of_row[1])
            store(squares[1], t * lanes, of_row[2])
        store(sums[0], 0, reduce_rows(squares[0]))
        store(sums[1], 0, reduce_rows(squares[1]))

    return tile_sums


def _make_statistics(element_type: ElementType, *, centred: bool) -> Callable[..., Any]:
    """Return a compiled function that stores mean_lo and rstd of each row of a tile from its sums.

    It returns whether any row needs another pass: its rstd is then 0.
    """
    smallest, largest = element_type.smallest_variance, float(np.finfo(np.float64).max)
    load, double = make_load(element_type.lanes), make_converted(np.float64)
    to_compute = make_converted(element_type.compute_type)
    nothing = make_zeros(np.float64, element_type.lanes)

    @inlined
    def statistics(scaling, numbers, sums, mean_los, rstds):
        eps, eps_on_deviation, share, more = scaling
        first, second = double(load(sums[0], 0)), double(load(sums[1], 0))
        if not centred:
            first = nothing()
        number = double(load(numbers, 0))
        mean_lo = first / number
        lost = first * mean_lo
        m2 = _squared_deviations(second, first, mean_lo)
        variance = m2 / (number * share + more)
        total = variance + eps + eps_on_deviation * eps_on_deviation
        rstd = reciprocal(sqrt(variance + eps) + eps_on_deviation)
        rstd = where_at_most(where_at_most(rstd, lost, m2), smallest, total)
        rstd = where_at_most(rstd, total, largest)
        store(mean_los, 0, to_compute(mean_lo))
        store(rstds, 0, rstd)
        return has_zero(rstd)

    return statistics


def _make_statistics_of(formula: Formula) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return compiled functions that return and set the statistics of a tile's row t."""

    def centred(tile, t):
        scales, means, rstds = tile
        mean = load_scalar(means[0], t), load_scalar(means[1], t)
        return load_scalar(scales, t), mean[0], mean[1], load_scalar(rstds, t)

    def uncentred(tile, t):
        scales, _, rstds = tile
        return load_scalar(scales, t), None, None, load_scalar(rstds, t)

    def set_centred(tile, t, statistics):
        scales, means, rstds = tile
        scales[t], means[0][t], means[1][t], rstds[t] = statistics

    def set_uncentred(tile, t, statistics):
        scales, _, rstds = tile
        scales[t], _, _, rstds[t] = statistics

    if formula.centred:
        return inlined(centred), inlined(set_centred)
    return inlined(uncentred), inlined(set_uncentred)


def _make_store_pair(element_type: ElementType, result: Callable[..., Any]) -> Callable[..., Any]:
    """Return a compiled function that stores the results of two rows of one segment."""
    real, lanes = element_type.compute_type, element_type.lanes
    load, masked_load = make_load(lanes), make_masked_load(lanes)
    load_or_scalar, masked_elements = make_load_or_scalar(lanes), make_masked_elements(lanes)
    masked_kept = make_masked_kept(lanes)

    @inlined
    def store_pair(x, mask, pair, width, statistics, weights, fill, y):
        (keep, step, omit), (gamma, beta) = mask, weights
        at, other = pair[0] * width, pair[1] * width
        kept_at, other_kept = pair[0] * step, pair[1] * step
        one, two = statistics
        tail, ahead = width - width % lanes, (lanes + pair[0]) * width
        for j in range(0, tail, lanes):
            prefetch_l1(x, ahead + 2 * j)
            prefetch_l1(x, ahead + 2 * j + lanes)
            weight, bias = load_or_scalar(gamma, j, real(1)), load_or_scalar(beta, j, real(0))
            kept, others = (
                load_or_scalar(keep, kept_at + j, None),
                load_or_scalar(keep, other_kept + j, None),
            )
            a = result(load(x, at + j), kept, omit, one, weight, bias, fill)
            b = result(load(x, other + j), others, omit, two, weight, bias, fill)
            store(y, at + j, a)
            store(y, other + j, b)
        n = width - tail
        if n > 0:
            weight = masked_elements(gamma, tail, 0, n, real(1))
            bias = masked_elements(beta, tail, 0, n, real(0))
            kept, others = (
                masked_kept(keep, kept_at + tail, 0, n),
                masked_kept(keep, other_kept + tail, 0, n),
            )
            a = result(masked_load(x, at + tail, 0, n), kept, omit, one, weight, bias, fill)
            b = result(masked_load(x, other + tail, 0, n), others, omit, two, weight, bias, fill)
            masked_store(y, at + tail, a, 0, n)
            masked_store(y, other + tail, b, 0, n)

    return store_pair


def make_masked_tile(
    formula: Formula,
    element_type: ElementType,
    row_statistics: Callable[..., Any],
    result: Callable[..., Any],
    factor: Callable[..., Any],
) -> Callable[..., Any]:
    """Return a compiled function that normalizes a tile of rows of one segment.

    ``tile(x, mask, scaling, weights, fill, y, saved, start, number)`` takes flat x and y and the
    mask from the tile's first row on. `row_statistics` computes the statistics of a row whose
    squares overflow or vanish, or whose pivot was poor, and of each row of a pair of wider rows.
    """
    lanes, real = element_type.lanes, element_type.compute_type
    pivots, tile_sums = _make_pivots(element_type), _make_sums(element_type)
    statistics, store_pair = (
        _make_statistics(element_type, centred=formula.centred),
        _make_store_pair(element_type, result),
    )
    statistics_of, set_statistics = _make_statistics_of(formula)
    square_scratch, lane_scratch = make_scratch(real, lanes * lanes), make_scratch(real, lanes)
    rstd_scratch, centred = make_scratch(np.float64, lanes), formula.centred
    narrow = widest(element_type)

    @inlined
    def in_compute_type(statistics):
        scale, mean_hi, mean_lo, rstd = statistics
        return scale, mean_hi, mean_lo, factor(rstd)

    @inlined
    def tile_of(x, mask, width, scaling, number):
        """Return the statistics of the rows."""
        squares, sums = (square_scratch(), square_scratch()), (lane_scratch(), lane_scratch())
        scales, numbers, rstds = lane_scratch(), lane_scratch(), rstd_scratch()
        means = lane_scratch(), lane_scratch()
        for t in range(lanes):
            scales[t], means[0][t], rstds[t] = real(1), real(0), 0.0
        tile, poor = (scales, means, rstds), True
        if width <= narrow:  # a tile that is not full has its last row again and again
            last = number - 1
            if centred:
                pivots(x, mask, width, last, squares[0], numbers, means[0])
            tile_sums(x, mask, width, last, scaling, means[0], squares, numbers, sums)
            poor = statistics(scaling, numbers, sums, means[1], rstds)
        if poor:
            for t in range(number):
                if rstds[t] == 0.0:
                    keep = window(mask.keep, t * mask.step, width)
                    of_row = row_statistics(window(x, t * width, width), keep, mask.omit, scaling)
                    set_statistics(tile, t, of_row)
        return tile

    @inlined
    def tile(x, mask, width, scaling, weights, fill, y, saved, start, number):
        rows = tile_of(x, mask, width, scaling, number)
        weight = part(weights.gamma, 0), part(weights.beta, 0)
        for t in range(0, number, 2):
            other = t + 1 if t + 1 < number else t  # the last of an odd number is stored twice
            one, two = statistics_of(rows, t), statistics_of(rows, other)
            both = in_compute_type(one), in_compute_type(two)
            store_pair(x, mask, (t, other), width, both, weight, fill, y)
        if saved[0].size > 0:
            for t in range(number):
                save(saved, start + t, statistics_of(rows, t))

    return tile
