"""The kernel of norms by order statistics: what a row is centred and scaled by, and its result.

A row is read where it lies if it is contiguous and all of it counts; otherwise what counts is
gathered first, for as many adjacent rows at once as a cache line holds.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.backends.cpu.compiler.jit import Kernel, inlined, make_kernel, shared
from numnorm.backends.cpu.memory.kernel_arrays import make_aligned_zeros, make_scratch, release
from numnorm.backends.cpu.order.selection import (
    RANKED,
    deviation,
    pairs_sorted,
    select,
    times,
)
from numnorm.backends.cpu.simd.element_type import ElementType, in_float64, widened
from numnorm.backends.cpu.simd.functions import make_converted
from numnorm.backends.cpu.simd.vector import compiled_as, make_load, make_zeros, reduce_sum, store
from numnorm.backends.formulas import order as formulas

# What a row is centred by, and scaled by.
MEDIAN, MEAN, NUMBER = range(3)
UNSCALED, MAD, QUANTILES, RANGE = range(4)
# The entries of what is found for a row. OF_CENTER, OF_SCALE and OF_UPPER are order statistics
# of three entries each: + 0 the element below, + 1 the one above, + 2 the share of the one above.
# The center is HIGH + LOW, and COUNT the number of elements that count.
CENTER, SCALE, HIGH, LOW, OF_CENTER, OF_SCALE, OF_UPPER, COUNT, FOUND = 0, 1, 2, 3, 4, 7, 10, 13, 14
# Of these, the first ones that a forward pass stores.
STORED = 2
# The most rows that are done at once, and how many elements lie between them: rows of 4096 bytes
# would evict each other from the first-level cache.
ROWS_AT_ONCE = APART = 16

_LANES = 8
_place, _between = inlined(formulas.quantile_place), inlined(formulas.between)
_load, _zeros, _doubles = (
    make_load(_LANES),
    make_zeros(np.float64, _LANES),
    make_converted(np.float64),
)
_lanes = make_scratch(np.float64, _LANES)


def _plain_lesser(lanes: Any, others: Any) -> Any:
    return np.where(others < lanes, others, lanes)


def _plain_greater(lanes: Any, others: Any) -> Any:
    return np.where(others > lanes, others, lanes)


def _make_choice(plain: Callable[..., Any], comparison: str) -> Callable[..., Any]:
    """Return a compiled function that takes one of each two lanes."""

    @compiled_as(plain)
    def choice(typing_context, lanes, others):
        def generate(context, builder, signature, arguments):
            value, other = arguments
            return builder.select(builder.fcmp_ordered(comparison, other, value), other, value)

        return lanes(lanes, others), generate

    return choice


_lesser, _greater = _make_choice(_plain_lesser, "<"), _make_choice(_plain_greater, ">")


@inlined
def _missing(source, start, count):
    """Return how many elements are NaN."""
    missing = 0
    for i in range(count):
        missing += source[start + i] != source[start + i]
    return missing


@inlined
def _without_missing(values, start, count):
    """Move what is no NaN to the front, and return how many elements these are."""
    if _missing(values, start, count) == 0:
        return count
    kept = 0
    for i in range(count):
        value = values[start + i]
        values[start + kept] = value
        kept += value == value
    return kept


@inlined
def _mean(source, start, count, found):
    """Find the mean, around the first element."""
    pivot, total = widened(source[start]), _zeros()
    full = count - count % _LANES
    for i in range(0, full, _LANES):
        total = total + (_doubles(_load(source, start + i)) - pivot)
    low = reduce_sum(total)
    for i in range(full, count):
        low += widened(source[start + i]) - pivot
    found[HIGH], found[LOW] = pivot, low / count
    if not abs(found[LOW]) < math.inf:
        low = 0.0
        for i in range(count):
            low += widened(source[start + i])
        found[HIGH], found[LOW] = low / count, 0.0
    found[CENTER] = found[HIGH] + found[LOW]


@inlined
def _range(source, start, count, found):
    """Find the least and the largest element, as two quantiles."""
    values, full = _lanes(), count - count % _LANES
    first = widened(source[start])
    least = largest = _zeros() + first
    for i in range(0, full, _LANES):
        lanes = _doubles(_load(source, start + i))
        least, largest = _lesser(least, lanes), _greater(largest, lanes)
    low = high = first
    store(values, 0, least)
    for i in range(_LANES):
        low = values[i] if values[i] < low else low
    store(values, 0, largest)
    for i in range(_LANES):
        high = values[i] if values[i] > high else high
    for i in range(full, count):
        value = widened(source[start + i])
        low, high = value if value < low else low, value if value > high else high
    found[OF_SCALE] = found[OF_SCALE + 1] = low
    found[OF_UPPER] = found[OF_UPPER + 1] = high
    found[OF_SCALE + 2] = found[OF_UPPER + 2] = 0.0


@inlined
def _near(found, at):
    """Return what is between two elements as a number near it and what is left of it."""
    lower, upper, share = found[at], found[at + 1], found[at + 2]
    distance = upper - lower
    if share > 0.0 and 0.0 < distance < math.inf:
        if share < 0.5:
            return lower, distance * share
        return upper, -distance * (1.0 - share)
    return _between(lower, upper, share), 0.0


def _make_quantile(weighted: bool) -> Callable[..., Any]:
    """Return a compiled ``quantile(row, centre, q, rule, scratch, found, at)``.

    ``row`` are an array, where the row begins in it, how many elements it has, and their weights.
    The elements around the quantile q of its deviations are found.
    """

    @shared
    def by_selection(row, centre, q, rule, scratch, found, at):
        source, start, count, _ = row
        part, _, ranks = scratch
        k, share = _place(1.0 * count, q, *rule, times)
        lower, upper = select(source, start, count, centre, k, part, ranks)
        found[at], found[at + 1] = lower, upper if share > 0.0 else lower
        found[at + 2] = share

    @shared
    def by_weight(row, centre, q, rule, scratch, found, at):
        source, start, count, weights = row
        part, shares, _ = scratch
        total = 0.0
        for i in range(count):
            part[i] = deviation(source[start + i], centre)
            shares[i] = weights[start + i]
        pairs_sorted(part, shares, count)
        for i in range(count):
            total += shares[i]
        k, below = 0, shares[0]
        while k < count - 1 and below / total < q:
            k += 1
            below += shares[k]
        found[at] = found[at + 1] = part[k]
        found[at + 2] = 0.0

    return by_weight if weighted else by_selection


@inlined
def _weighted_mean(row, found):
    """Find the mean by weights, around the first element."""
    source, start, count, weights = row
    pivot = widened(source[start])
    low = total = 0.0
    for i in range(count):
        low += weights[start + i] * (widened(source[start + i]) - pivot)
        total += weights[start + i]
    found[HIGH], found[LOW] = pivot, low / total
    if not abs(found[LOW]) < math.inf:
        low = 0.0
        for i in range(count):
            low += weights[start + i] * widened(source[start + i])
        found[HIGH], found[LOW] = low / total, 0.0
    found[CENTER] = found[HIGH] + found[LOW]


def _make_statistics(weighted: bool) -> Callable[..., Any]:
    """Return a compiled ``statistics(row, words, options, scratch, found)``.

    ``words`` are by what a row is centred and scaled, and the rounding of a quantile's place.
    """
    quantile = _make_quantile(weighted)

    @inlined
    def statistics(row, words, options, scratch, found):
        source, start, count, _ = row
        center, scale, rounding = words
        rule = options[3], options[4], rounding
        found[COUNT] = count
        if count == 0 or _missing(source, start, count) > 0:
            for i in range(COUNT):
                found[i] = math.nan
            return
        plain = 0.0, 0.0, 1.0
        if center == MEDIAN:
            quantile(row, plain, 0.5, rule, scratch, found, OF_CENTER)
            found[HIGH], found[LOW] = _near(found, OF_CENTER)
            found[CENTER] = found[HIGH] + found[LOW]
        elif center == NUMBER:
            found[CENTER] = found[HIGH] = options[0]
            found[LOW] = 0.0
        elif weighted:
            _weighted_mean(row, found)
        else:
            _mean(source, start, count, found)
        found[SCALE] = 1.0
        if scale == MAD:
            found[SCALE] = math.nan
            if abs(found[CENTER]) < math.inf:
                distances = found[HIGH], found[LOW], -1.0
                quantile(row, distances, 0.5, rule, scratch, found, OF_SCALE)
                found[SCALE] = _between(found[OF_SCALE], found[OF_SCALE + 1], found[OF_SCALE + 2])
        elif scale != UNSCALED:
            if scale == RANGE:
                _range(source, start, count, found)
            else:
                quantile(row, plain, options[1], rule, scratch, found, OF_SCALE)
                quantile(row, plain, options[2], rule, scratch, found, OF_UPPER)
            low, above_low = _near(found, OF_SCALE)
            high, above_high = _near(found, OF_UPPER)
            found[SCALE] = (high - low) + (above_high - above_low)

    return statistics


# Reading and writing rows


def _make_gathered(element_type: ElementType, weighted: bool) -> Callable[..., Any]:
    """Return a compiled ``gathered(arrays, place, strides, values, shares, counts, omit)``.

    It copies what counts of some rows. ``place`` are the shape of x, the number of the first row,
    and how many rows there are.
    """
    to_compute = element_type.to_compute

    @inlined
    def copied(x, place, values, counts):
        (times_along, between, along), first, size = place
        width = times_along * along
        outer, inner = first // between, first % between
        for j in range(size):
            counts[j] = width
        for a in range(times_along):
            begin = ((outer * times_along + a) * between + inner) * along
            for j in range(size):
                for b in range(along):
                    values[j * (width + APART) + a * along + b] = to_compute(
                        x[begin + j * along + b]
                    )

    @inlined
    def chosen(arrays, place, strides, values, shares, counts, omit):
        x, keep, weights = arrays
        (times_along, between, along), first, size = place
        width = times_along * along
        outer, inner = first // between, first % between
        for j in range(size):
            counts[j] = 0
        for a in range(times_along):
            begin = ((outer * times_along + a) * between + inner) * along
            for j in range(size):
                count = counts[j]
                for b in range(along):
                    value = to_compute(x[begin + j * along + b])
                    counts_too = not (omit and value != value)
                    if keep.size > 0:
                        at = (first + j) * strides[0] + a * along + b
                        counts_too = counts_too and keep[at] != 0
                    if weighted:
                        weight = weights[(first + j) * strides[1] + a * along + b]
                        counts_too = counts_too and weight > 0.0
                        shares[j * (width + APART) + count] = weight if counts_too else 0.0
                    values[j * (width + APART) + count] = value
                    count += 1 if counts_too else 0
                counts[j] = count

    @inlined
    def gathered(arrays, place, strides, values, shares, counts, omit):
        if arrays[1].size > 0 or weighted:
            chosen(arrays, place, strides, values, shares, counts, omit)
            return
        copied(arrays[0], place, values, counts)
        if omit:
            for j in range(place[2]):
                counts[j] = _without_missing(values, j * (counts[j] + APART), counts[j])

    return gathered


def _make_normalized(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``normalized(value, high, low, divisor)`` of a stored element."""
    wide = in_float64(element_type)
    to_compute, to_storage = wide.to_compute, wide.to_storage

    @inlined
    def normalized(value, high, low, divisor):
        number = to_compute(value)
        if divisor != 0.0:
            return to_storage(((number - high) - low) / divisor)
        return to_storage(number if number != number else 0.0)

    return normalized


def _make_written(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``written(arrays, place, stride, table, fills, omit)``.

    It normalizes some rows; ``table`` has their centers, high and low, and their divisors.
    """
    normalized = _make_normalized(element_type)
    to_compute, to_storage = element_type.to_compute, in_float64(element_type).to_storage

    @inlined
    def of_row(table, j):
        return table[j], table[ROWS_AT_ONCE + j], table[2 * ROWS_AT_ONCE + j]

    @inlined
    def plain(x, y, begin, size, along, table):
        if along == 1:
            for j in range(size):
                y[begin + j] = normalized(x[begin + j], *of_row(table, j))
        else:
            for j in range(size):
                high, low, divisor = of_row(table, j)
                for i in range(begin + j * along, begin + (j + 1) * along):
                    y[i] = normalized(x[i], high, low, divisor)

    @inlined
    def filled(arrays, begin, size, along, table, mask, fills, omit):
        x, keep, y = arrays
        for j in range(size):
            high, low, divisor = of_row(table, j)
            for b in range(along):
                i = begin + j * along + b
                value = to_compute(x[i])
                result = normalized(x[i], high, low, divisor)
                if omit and value != value:
                    result = to_storage(fills[1])
                if keep.size > 0 and keep[mask[0] + j * mask[1] + b] == 0:
                    result = to_storage(fills[0])
                y[i] = result

    @inlined
    def written(arrays, place, stride, table, fills, omit):
        (times_along, between, along), first, size = place
        outer, inner = first // between, first % between
        for a in range(times_along):
            begin = ((outer * times_along + a) * between + inner) * along
            # NaN that is left out stays NaN by itself.
            if arrays[1].size > 0 or (omit and fills[1] == fills[1]):
                mask = first * stride + a * along, stride
                filled(arrays, begin, size, along, table, mask, fills, omit)
            else:
                plain(arrays[0], arrays[2], begin, size, along, table)

    return written


def _make_source(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``source(x, values, direct)``: where rows are read."""
    if element_type.storage_dtype != element_type.compute_dtype:
        return inlined(lambda x, values, direct: values)
    return inlined(lambda x, values, direct: x if direct else values)


@functools.cache
def make_order_kernel(element_type: ElementType, weighted: bool) -> Kernel:
    """Return a kernel ``(x, keep, weights, y, table, numbers, options, parts)``.

    Parameters of the kernel
    ------------------------
    x, y : array
        Flat; the shape is ``(outer, times, between, along)``, where a row is ``(times, along)``.
        Without elements in y no result is written.
    keep, weights : array
        Flat rows; without elements all counts. `strides` are from a row to the next, maybe 0.
    table : array
        For each row as many of its statistics as there are columns.
    numbers : array of int64
        The shape, how many rows are done at once, strides, whether NaN is left out, whether rows
        are read where they lie, the words of `statistics`, and the columns of the table.
    options : array of float64
        The center, two quantiles, alpha and beta, the factor, eps, and the fills.
    """
    real = element_type.compute_type
    reals, doubles = make_aligned_zeros(real, 1, True), make_aligned_zeros(np.float64, 1, True)
    ranks, places = make_scratch(np.float64, RANKED), make_scratch(np.float64, 3 * ROWS_AT_ONCE)
    whole, entries = make_scratch(np.int64, ROWS_AT_ONCE), make_scratch(np.float64, FOUND)
    gathered, written = _make_gathered(element_type, weighted), _make_written(element_type)
    statistics, source_of = _make_statistics(weighted), _make_source(element_type)

    def kernel(x, keep, weights, y, table, numbers, options, parts, first, last):
        outer, times_along, between, along = numbers[0], numbers[1], numbers[2], numbers[3]
        block, strides, omit = numbers[4], (numbers[5], numbers[6]), numbers[7] != 0
        direct, words = numbers[8] != 0, (numbers[9], numbers[10], numbers[11])
        columns, width = numbers[12], times_along * along
        blocks = (between + block - 1) // block
        groups = outer * blocks
        part, values = doubles((width,), 0), reals((0 if direct else block * (width + APART),), 0)
        shares = doubles((block * (width + APART) if weighted else 0,), 0)
        beside = doubles((width if weighted else 0,), 0)
        counts, found, scaling, sample, ordered = whole(), entries(), places(), ranks(), ranks()
        shape, fills = (times_along, between, along), (options[7], options[8])
        for group in range(groups * first // parts, groups * last // parts):
            row = group // blocks * between + group % blocks * block
            size = min(block, between - group % blocks * block)
            place = shape, row, size
            if not direct:
                gathered((x, keep, weights), place, strides, values, shares, counts, omit)
            for j in range(size):
                start = (row + j) * width if direct else j * (width + APART)
                count = width if direct else counts[j]
                given = source_of(x, values, direct), start, count, shares
                scratch = part, beside, (sample, ordered)
                statistics(given, words, options, scratch, found)
                for i in range(columns):
                    table[(row + j) * columns + i] = found[i]
                divisor = found[SCALE] * options[5] + options[6] if words[1] != UNSCALED else 1.0
                scaling[j], scaling[ROWS_AT_ONCE + j] = found[HIGH], found[LOW]
                scaling[2 * ROWS_AT_ONCE + j] = divisor
            if y.size > 0:
                written((x, keep, y), place, strides[0], scaling, fills, omit)
        release((part, values, shares, beside))

    kind = "weighted" if weighted else "plain"
    return make_kernel(f"order.{kind}.{element_type.name}", kernel)
