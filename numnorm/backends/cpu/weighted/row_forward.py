"""The forward kernel of the norms with statistics of each row, masked or with weights.

Narrow rows are taken as many at a time as a vector has lanes. The statistics of a tile are computed
together, a row to a lane: see `rows.tiles`.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from numnorm.backends.contract.norms import Formula
from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.compiler.jit import Kernel, inlined, shared
from numnorm.backends.cpu.memory.alignment import each_peels_to_alignment, make_peel
from numnorm.backends.cpu.memory.grouped_kernel import make_grouped_kernel
from numnorm.backends.cpu.memory.kernel_arrays import as_flat, make_scratch, row, window
from numnorm.backends.cpu.memory.nontemporal import Writer, make_writer, uses_write_combining
from numnorm.backends.cpu.memory.placement import LINE
from numnorm.backends.cpu.rows.arguments import Parameters, Segments, Statistics
from numnorm.backends.cpu.rows.segment_loops import channel_of
from numnorm.backends.cpu.rows.tiles import widest
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.functions import (
    has_zero,
    make_converted,
    reciprocal,
    sqrt,
    where_at_most,
)
from numnorm.backends.cpu.simd.kept import (
    filled,
    is_kept,
    make_masked_kept,
    make_no_weight,
    number_kept,
    total_weight,
    weighing,
    weighs,
    weight_kept,
    where_kept,
)
from numnorm.backends.cpu.simd.masked import make_masked_load, masked_store
from numnorm.backends.cpu.simd.optional import (
    make_load_or_scalar,
    make_masked_elements,
    part,
    scaled,
)
from numnorm.backends.cpu.simd.processor import has_avx512
from numnorm.backends.cpu.simd.squares import make_reduce_rows
from numnorm.backends.cpu.simd.vector import (
    load_scalar,
    make_load,
    make_zeros,
    prefetch,
    prefetch_l1,
    reduce_sum,
    store,
)
from numnorm.backends.cpu.statistics.normalize import make_factor, make_normalized
from numnorm.backends.cpu.statistics.row_statistics import make_power_of_two
from numnorm.backends.cpu.statistics.saved import save
from numnorm.backends.cpu.weighted.loops import Fill, quotient
from numnorm.backends.formulas.norms import inverse_deviation, squared_deviations

# The statistics of a row


_inverse_deviation = inlined(inverse_deviation)


@inlined
def _part(selected, start, size):
    """Return what is selected of a part of a row."""
    keep, weights, omit = selected
    return window(keep, start, size), window(weights, start, size), omit


@inlined
def of_row(mask, i, width):
    """Return what is selected of row i, a tuple ``(keep, weights, omit)``."""
    weights = window(mask.weights, i * mask.weight_step, width)
    return window(mask.keep, i * mask.step, width), weights, mask.omit


def _make_added() -> Callable[..., Any]:
    """Return a compiled function that adds a vector of deviations to three sums."""

    @inlined
    def added(sums, values, deviation, kept, weight, omit):
        number, first, second = sums
        counted = weighing(kept, weight)
        deviation = where_kept(deviation, counted, values, omit)
        number = number + weight_kept(weight, counted, values, omit)
        weighted = scaled(deviation, weight)
        return number, first + weighted, second + weighted * deviation

    return added


@functools.cache
def make_masked_sums(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``masked_sums(row, selected, scale, pivot)`` of what is kept.

    `selected` is the `of_row` of a mask. It returns the number of elements, or their weight, and
    the sums of ``d = row * scale - pivot`` and ``d * d``, times their weights.
    """
    count, to_compute = 2 * element_type.lanes, element_type.to_compute
    zeros, load = make_zeros(element_type.compute_type, count), make_load(count)
    masked_load, masked_kept = make_masked_load(count), make_masked_kept(count)
    load_or_scalar, peeled = make_load_or_scalar(count), each_peels_to_alignment(element_type)
    masked_elements, peel_of = make_masked_elements(count), make_peel(element_type)
    added, no_weight = _make_added(), make_no_weight(count)

    @inlined
    def masked_added(sums, row, selected, scale, pivot, j, begin, end):
        keep, weights, omit = selected
        values, kept = to_compute(masked_load(row, j, begin, end)), masked_kept(keep, j, begin, end)
        weight = masked_elements(weights, j, begin, end, None)
        return added(sums, values, values * scale - pivot, kept, weight, omit)

    @inlined
    def block_sums(row, selected, peel, scale, pivot):
        keep, weights, omit = selected
        sums, peel = (no_weight(weights), zeros(), zeros()), min(peel, row.size)
        if peeled and peel > 0:
            low = count - peel
            sums = masked_added(sums, row, selected, scale, pivot, peel - count, low, count)
        tail = row.size - (row.size - peel) % count
        for j in range(peel, tail, count):
            values, kept = to_compute(load(row, j)), load_or_scalar(keep, j, None)
            weight = load_or_scalar(weights, j, None)
            sums = added(sums, values, values * scale - pivot, kept, weight, omit)
        if tail < row.size:
            n = row.size - tail
            sums = masked_added(sums, row, selected, scale, pivot, tail, 0, n)
        return sums

    @inlined
    def masked_sums(row, selected, scale, pivot):
        number, first, second = np.float64(0), np.float64(0), np.float64(0)
        peel = peel_of(row, row.size)
        for start in range(0, row.size, tuning.SUM_BLOCK_ELEMENTS):
            size = min(tuning.SUM_BLOCK_ELEMENTS, row.size - start)
            block, of_block = window(row, start, size), _part(selected, start, size)
            weight, block_first, block_second = block_sums(block, of_block, peel, scale, pivot)
            number += total_weight(weight)
            first += reduce_sum(block_first)
            second += reduce_sum(block_second)
        return number, first, second

    return masked_sums


@inlined
def counts(selected, j, value):
    """Return whether element j of a row counts: it is kept and has a weight."""
    keep, weights, omit = selected
    return is_kept(part(keep, j), value, omit) and weighs(part(weights, j))


@functools.cache
def _make_pivot(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``pivot(row, selected, scale)``: the mean of the first that count."""
    real, to_compute, lanes = element_type.compute_type, element_type.to_compute, element_type.lanes
    load, masked_load = make_load(lanes), make_masked_load(lanes)
    load_or_scalar, masked_kept = make_load_or_scalar(lanes), make_masked_kept(lanes)
    masked_elements = make_masked_elements(lanes)

    @inlined
    def pivot(row, selected, scale):
        keep, weights, omit = selected
        j = 0
        while j + lanes <= row.size:
            weight = load_or_scalar(weights, j, None)
            counted = weighing(load_or_scalar(keep, j, None), weight)
            if number_kept(counted, to_compute(load(row, j)), omit) > 0:
                break
            j += lanes
        while j < row.size and not counts(selected, j, to_compute(row[j])):
            j += 1
        if j >= row.size:
            return real(0)
        # Around the first element, so that a constant row gives exactly that constant.
        origin, n = to_compute(row[j]) * scale, min(lanes, row.size - j)
        values, kept = to_compute(masked_load(row, j, 0, n)), masked_kept(keep, j, 0, n)
        kept = weighing(kept, masked_elements(weights, j, 0, n, None))
        first = where_kept(values * scale - origin, kept, values, omit)
        return real(origin + reduce_sum(first) / real(number_kept(kept, values, omit)))

    return pivot


@functools.cache
def make_kept_statistics(element_type: ElementType, *, centred: bool) -> Callable[..., Any]:
    """Return a compiled ``statistics(row, selected, scale) -> (number, mean_hi, mean_lo, m2)``.

    Without an element the mean is NaN.
    """
    real, pivot_of = element_type.compute_type, _make_pivot(element_type)
    row_sums = make_masked_sums(element_type)

    @inlined
    def centred_statistics(row, selected, scale):
        mean_hi = pivot_of(row, selected, scale)
        number, first, second = row_sums(row, selected, scale, mean_hi)
        mean_lo = quotient(first, number)
        m2 = second - first * mean_lo
        if first * mean_lo > m2:
            mean_hi = real(mean_hi + mean_lo)
            number, first, second = row_sums(row, selected, scale, mean_hi)
            mean_lo = quotient(first, number)
            m2 = second - first * mean_lo
        # max() would turn a NaN into 0.
        if m2 < 0.0:
            m2 = 0.0
        return number, mean_hi, real(mean_lo), m2

    @inlined
    def uncentred_statistics(row, selected, scale):
        number, _, second = row_sums(row, selected, scale, real(0))
        return number, None, None, second

    return centred_statistics if centred else uncentred_statistics


@functools.cache
def _make_rescale(element_type: ElementType) -> Callable[..., Any]:
    """Return `row_statistics.make_rescale` for what counts of a row."""
    real, to_compute = element_type.compute_type, element_type.to_compute
    power_of_two = make_power_of_two(element_type)

    @shared
    def rescale(row, selected, least):
        largest = real(least)
        for j in range(row.size):
            value = to_compute(row[j])
            if counts(selected, j, value) and abs(value) > largest:
                largest = abs(value)
        return power_of_two(largest)

    return rescale


@functools.cache
def make_masked_statistics(formula: Formula, element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``statistics(row, selected, scaling)`` like `make_row_statistics`."""
    real, smallest = element_type.compute_type, element_type.smallest_variance
    statistics = make_kept_statistics(element_type, centred=formula.centred)
    rescale = _make_rescale(element_type)

    @shared
    def masked_statistics(row, selected, scaling):
        eps, eps_on_deviation, share, more = scaling
        scale = real(1)
        number, mean_hi, mean_lo, m2 = statistics(row, selected, scale)
        divisor = number * share + more
        total = quotient(m2, divisor) + eps + eps_on_deviation * eps_on_deviation
        if number > 0.0 and not smallest < total < np.inf:
            root = math.sqrt(eps)
            scale = rescale(row, selected, max(root, eps_on_deviation))
            number, mean_hi, mean_lo, m2 = statistics(row, selected, scale)
            root = np.float64(root) * scale
            eps = root * root
        eps_on_deviation = np.float64(eps_on_deviation) * scale
        rstd = _inverse_deviation(quotient(m2, divisor), eps, eps_on_deviation)
        return scale, mean_hi, mean_lo, rstd

    return masked_statistics


def make_no_statistics(formula: Formula, element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``no_statistics()``: a value of the type of the statistics."""
    real = element_type.compute_type

    @inlined
    def centred():
        return real(1), real(0), real(0), 0.0

    @inlined
    def uncentred():
        return real(1), None, None, 0.0

    return centred if formula.centred else uncentred


# Tiles of narrow rows


_squared_deviations = inlined(squared_deviations)


def _make_pivots(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled function that stores the mean of what is kept of each row's first vector.

    It is 0 where nothing is.
    """
    lanes, to_compute, real = element_type.lanes, element_type.to_compute, element_type.compute_type
    masked_load, masked_kept = make_masked_load(lanes), make_masked_kept(lanes)
    masked_elements = make_masked_elements(lanes)
    load, reduce_rows = make_load(lanes), make_reduce_rows(lanes)

    @inlined
    def pivots(x, mask, width, last, square, numbers, means):
        n = min(width, lanes)
        for t in range(lanes):
            of_row = min(t, last)
            values = to_compute(masked_load(x, of_row * width, 0, n))
            weight = masked_elements(mask.weights, of_row * mask.weight_step, 0, n, None)
            kept = weighing(masked_kept(mask.keep, of_row * mask.step, 0, n), weight)
            store(square, t * lanes, where_kept(values, kept, values, mask.omit))
            numbers[t] = real(max(number_kept(kept, values, mask.omit), 1))
        store(means, 0, reduce_rows(square) / load(numbers, 0))

    return pivots


def _make_sums(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled function that stores the sums of each row of a tile around its pivot.

    The number of elements, or their weight, is NaN where it is too little for a variance.
    """
    lanes, to_compute, real = element_type.lanes, element_type.to_compute, element_type.compute_type
    load, masked_load, zeros = make_load(lanes), make_masked_load(lanes), make_zeros(real, lanes)
    load_or_scalar, masked_kept = make_load_or_scalar(lanes), make_masked_kept(lanes)
    masked_elements, reduce_rows = make_masked_elements(lanes), make_reduce_rows(lanes)
    added, no_weight = _make_added(), make_no_weight(lanes)

    @inlined
    def tile_sums(x, mask, width, last, scaling, pivots, squares, numbers, sums):
        tail = width - width % lanes
        for t in range(lanes):
            row, pivot = min(t, last), load_scalar(pivots, t)
            at, kept_at, weight_at = row * width, row * mask.step, row * mask.weight_step
            sums_of_row = no_weight(mask.weights), zeros(), zeros()
            for j in range(0, tail, lanes):
                values = to_compute(load(x, at + j))
                kept = load_or_scalar(mask.keep, kept_at + j, None)
                weight = load_or_scalar(mask.weights, weight_at + j, None)
                sums_of_row = added(sums_of_row, values, values - pivot, kept, weight, mask.omit)
            n = width - tail
            if n > 0:
                values = to_compute(masked_load(x, at + tail, 0, n))
                kept = masked_kept(mask.keep, kept_at + tail, 0, n)
                weight = masked_elements(mask.weights, weight_at + tail, 0, n, None)
                sums_of_row = added(sums_of_row, values, values - pivot, kept, weight, mask.omit)
            number = total_weight(sums_of_row[0])
            enough = number > 0 and number * scaling.share + scaling.more > 0.0
            numbers[t] = real(number if enough else np.nan)
            store(squares[0], t * lanes, sums_of_row[1])
            store(squares[1], t * lanes, sums_of_row[2])
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
        (keep, step, _, _, omit), (gamma, beta) = mask, weights
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
                    row, selected = window(x, t * width, width), of_row(mask, t, width)
                    set_statistics(tile, t, row_statistics(row, selected, scaling))
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


# All rows


class Scaling(NamedTuple):
    """How a row's sum of squares becomes its deviation.

    Attributes
    ----------
    eps, eps_on_deviation : float
        What is added to the variance and to the deviation.
    share, more : float
        The sum of squares is divided by ``number * share + more``, with the number of elements, or
        the sum of their weights.
    """

    eps: float
    eps_on_deviation: float
    share: float
    more: float


class Mask(NamedTuple):
    """Which elements are left out, and the weights of the others.

    Attributes
    ----------
    keep : array of uint8 or None
        0 where an element is left out, flat, for all rows or for each row.
    step : int
        The distance from a row's numbers to the next row's: 0 if all rows share them.
    weights : array of float64 or None
        The weights, flat in the same way; None if they are 1. They need the compute type float64.
    weight_step : int
        The same distance for the weights.
    omit : int or None
        None if a NaN is not left out.
    """

    keep: Any
    step: int
    weights: Any
    weight_step: int
    omit: int | None


def _make_result(formula: Formula, element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled function of the results of stored elements."""
    to_compute, to_storage = element_type.to_compute, element_type.to_storage
    forward, normalized = inlined(formula.forward), make_normalized(formula.centred)

    @inlined
    def result(values, kept, omit, statistics, gamma, beta, fill):
        scale, mean_hi, mean_lo, rstd = statistics
        x = to_compute(values)
        y = forward(normalized(x, scale, mean_hi, mean_lo, rstd), gamma, beta)
        return to_storage(filled(y, kept, x, omit, fill.fill, fill.missing))

    return result


def _make_apply(element_type: ElementType, result: Callable[..., Any]) -> Callable[..., Any]:
    """Return a compiled function that stores the results of a part of a segment."""
    count, real = 2 * element_type.lanes, element_type.compute_type
    load, masked_load = make_load(count), make_masked_load(count)
    load_or_scalar, masked_elements = make_load_or_scalar(count), make_masked_elements(count)
    masked_kept, peel_of = make_masked_kept(count), make_peel(element_type)
    peeled = each_peels_to_alignment(element_type)
    prefetches, line_elements = has_avx512(), LINE // element_type.storage_dtype.itemsize

    @inlined
    def store_masked(x, keep, omit, statistics, weights, fill, y, j, begin, end):
        weight = masked_elements(weights[0], j, begin, end, real(1))
        bias = masked_elements(weights[1], j, begin, end, real(0))
        values, kept = masked_load(x, j, begin, end), masked_kept(keep, j, begin, end)
        results = result(values, kept, omit, statistics, weight, bias, fill)
        masked_store(y, j, results, begin, end)

    @inlined
    def apply(x, keep, omit, ahead, statistics, weights, fill, y):
        gamma, beta = weights
        peel = min(peel_of(y, y.size), y.size)
        if peeled and peel > 0:
            j, low = peel - count, count - peel
            store_masked(x, keep, omit, statistics, weights, fill, y, j, low, count)
        tail = y.size - (y.size - peel) % count
        for j in range(peel, tail, count):
            if prefetches:
                for line in range(j, j + count, line_elements):
                    prefetch(x, line + ahead)
            weight, bias = load_or_scalar(gamma, j, real(1)), load_or_scalar(beta, j, real(0))
            values, kept = load(x, j), load_or_scalar(keep, j, None)
            store(y, j, result(values, kept, omit, statistics, weight, bias, fill))
        if tail < y.size:
            n = y.size - tail
            store_masked(x, keep, omit, statistics, weights, fill, y, tail, 0, n)

    return apply


def _make_apply_row(
    element_type: ElementType, result: Callable[..., Any], writer: Writer
) -> Callable[..., Any]:
    """Return a compiled function that stores a row's results, and returns the writer's state."""
    apply, factor = _make_apply(element_type, result), make_factor(element_type)
    _, _, target_of, written, _ = writer

    @inlined
    def apply_row(x, i, mask, statistics, weights, segments, fill, to):
        scale, mean_hi, mean_lo, rstd = statistics
        of_row, width = (scale, mean_hi, mean_lo, factor(rstd)), x.shape[1]
        segment, _, channels = segments
        y, buffer, state, combines = to
        source, keep, c = (
            row(x, i),
            window(mask.keep, i * mask.step, width),
            channel_of(i, segments),
        )
        for at in range(0, width, segment):
            gamma, beta = part(weights.gamma, c), part(weights.beta, c)
            for left in range(0, segment, tuning.SUM_BLOCK_ELEMENTS):
                n, j = min(tuning.SUM_BLOCK_ELEMENTS, segment - left), at + left
                weight, kept = (window(gamma, left, n), window(beta, left, n)), window(keep, j, n)
                target = target_of(y, i * width + j, n, buffer, state, combines)
                apply(window(source, j, n), kept, mask.omit, width, of_row, weight, fill, target)
                state = written(y, n, buffer, state, combines)
            c = c + 1 if c + 1 < channels else 0
        return state

    return apply_row


def _make_tiles(
    formula: Formula,
    element_type: ElementType,
    statistics_of: Callable[..., Any],
    result: Callable[..., Any],
    writer: Writer,
) -> Callable[..., Any]:
    """Return a compiled function for rows in tiles, which returns the writer's state."""
    lanes, narrow, (_, _, target_of, written, _) = element_type.lanes, widest(element_type), writer
    factor = make_factor(element_type)
    tile = make_masked_tile(formula, element_type, statistics_of, result, factor)

    @inlined
    def tiles(x, mask, scaling, weights, fill, to, saved, start, stop):
        y, buffer, state, combines = to
        flat, width = as_flat(x), x.shape[1]
        step = lanes if width <= narrow else 2
        for i in range(start, stop, step):
            number, at = min(step, stop - i), i * width
            size = number * width
            target = target_of(y, at, size, buffer, state, combines)
            keep = window(mask.keep, i * mask.step, number * width)
            weight = window(mask.weights, i * mask.weight_step, number * width)
            own = Mask(keep, mask.step, weight, mask.weight_step, mask.omit)
            given = window(flat, at, size), own, width, scaling, weights, fill
            tile(*given, target, saved, i, number)
            state = written(y, size, buffer, state, combines)
        return state

    return tiles


def _make_rows(
    formula: Formula,
    element_type: ElementType,
    statistics_of: Callable[..., Any],
    result: Callable[..., Any],
    writer: Writer,
) -> Callable[..., Any]:
    """Return a compiled function for rows one by one, which returns the writer's state.

    The results of a row are stored after the statistics of the next one: from the sums of a row to
    its rstd leads a long chain of instructions, which does not wait for these stores.
    """
    no_statistics = make_no_statistics(formula, element_type)
    apply_row = _make_apply_row(element_type, result, writer)

    @inlined
    def rows(x, mask, scaling, weights, segments, fill, to, saved, start, stop):
        y, buffer, state, combines = to
        width, before = x.shape[1], no_statistics()
        for i in range(start, stop + 1):
            statistics = before
            if i < stop:
                statistics = statistics_of(row(x, i), of_row(mask, i, width), scaling)
                save(saved, i, statistics)
            if i > start:
                to = y, buffer, state, combines
                state = apply_row(x, i - 1, mask, before, weights, segments, fill, to)
            before = statistics
        return state

    return rows


def make_masked_forward(formula: Formula, element_type: ElementType) -> Kernel:
    """Return the forward kernel of a formula, for x ``(N, D)``; see `make_row_forward`."""
    narrow, lanes = widest(element_type), element_type.lanes
    writer = make_writer(element_type, max(tuning.SUM_BLOCK_ELEMENTS, lanes * narrow))
    make_buffer, begin, _, _, finish = writer
    parts_of = make_masked_statistics(formula, element_type), _make_result(formula, element_type)
    rows = _make_rows(formula, element_type, *parts_of, writer)
    tiles = _make_tiles(formula, element_type, *parts_of, writer)

    def kernel(
        x: Any,
        mask: Mask,
        weights: Parameters,
        segments: Segments,
        scaling: Scaling,
        fill: Fill,
        y: Any,
        saved: Statistics,
        parts: int,
        first: int,
        last: int,
    ) -> None:
        width, flat_y, buffer = x.shape[1], as_flat(y), make_buffer()
        all_segments = segments.segment, width // segments.segment, segments.channels
        start, stop = first * x.shape[0] // parts, last * x.shape[0] // parts
        combines, state = uses_write_combining(y), begin(flat_y, start * width)
        to = flat_y, buffer, state, combines
        small = y.size * y.itemsize < tuning.PAIR_BELOW_BYTES
        most = tuning.SUM_BLOCK_ELEMENTS if small else narrow
        if all_segments[1] == 1 and segments.channels <= 1 and width <= most:
            state = tiles(x, mask, scaling, weights, fill, to, saved, start, stop)
        else:
            given = x, mask, scaling, weights, all_segments, fill, to, saved, start, stop
            state = rows(*given)
        finish(flat_y, buffer, state, combines)

    return make_grouped_kernel(f"masked.row_forward.{formula.name}.{element_type.name}", kernel)
