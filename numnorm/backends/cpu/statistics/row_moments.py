"""Mean and squares of one row, exact at any offset: the corrected one-pass form.

The sums of ``x - h`` and ``(x - h)**2`` around any h near the mean give the statistics without
cancellation. h is a guess from the first elements, and one more pass is taken only where the
guess turns out poor.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.memory.alignment import each_peels_to_alignment, make_peel
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.masked import make_masked_load, select_lanes
from numnorm.backends.cpu.simd.vector import make_load, make_zeros, reduce_sum
from numnorm.backends.formulas.norms import squared_deviations

_squared_deviations = inlined(squared_deviations)


@functools.cache
def make_deviation_sums(element_type: ElementType, count: int) -> Callable[..., Any]:
    """Return a compiled ``deviation_sums(row, start, stop, peel, scale, mean_hi)``, in lanes.

    The two sums, of ``row * scale - mean_hi`` and of its squares, are taken `count` lanes at a time,
    after `peel` elements, which are in the last lanes: see `runs.make_gradient_lanes`.
    """
    to_compute = element_type.to_compute
    load, masked_load = make_load(count), make_masked_load(count)
    zeros, at_lines = (
        make_zeros(element_type.compute_type, count),
        each_peels_to_alignment(element_type),
    )

    @inlined
    def deviation_sums(row, start, stop, peel, scale, mean_hi):
        first, second = zeros(), zeros()
        line = start + min(peel, stop - start)
        if at_lines and line > start:
            j, mean_lo = line - count, count - (line - start)
            values = to_compute(masked_load(row, j, mean_lo, count))
            deviation = select_lanes(values * scale - mean_hi, mean_lo, count)
            first = first + deviation
            second = second + deviation * deviation
        whole = stop - (stop - line) % count
        for j in range(line, whole, count):
            deviation = to_compute(load(row, j)) * scale - mean_hi
            first = first + deviation
            second = second + deviation * deviation
        tail = stop - whole
        if tail > 0:
            deviation = select_lanes(
                to_compute(masked_load(row, whole, 0, tail)) * scale - mean_hi, 0, tail
            )
            first = first + deviation
            second = second + deviation * deviation
        return first, second

    return deviation_sums


@functools.cache
def make_pivot(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``pivot(row, scale)`` of the mean of ``row * scale``."""
    real, to_compute, lanes = element_type.compute_type, element_type.to_compute, element_type.lanes
    masked_load = make_masked_load(lanes)

    @inlined
    def pivot(row, scale):
        # Around the first element, so that a constant row gives exactly that constant.
        origin = to_compute(row[0]) * scale
        n = min(row.size, lanes)
        first = select_lanes(to_compute(masked_load(row, 0, 0, n)) * scale - origin, 0, n)
        return real(origin + reduce_sum(first) / real(n))

    return pivot


@functools.cache
def make_statistics(element_type: ElementType, *, centred: bool) -> Callable[..., Any]:
    """Return a compiled ``statistics(row, scale) -> (mean_hi, mean_lo, m2)``.

    The mean of ``row * scale`` is ``mean_hi + mean_lo`` and `m2` is the sum of its squared deviations;
    without centring high and low are None and `m2` is the sum of squares.
    """
    around, pivot = make_statistics_around(element_type, centred=centred), make_pivot(element_type)

    @inlined
    def centred_statistics(row, scale):
        return around(row, scale, pivot(row, scale))

    @inlined
    def uncentred_statistics(row, scale):
        return around(row, scale, None)

    return centred_statistics if centred else uncentred_statistics


@functools.cache
def make_statistics_around(element_type: ElementType, *, centred: bool) -> Callable[..., Any]:
    """Return a compiled ``statistics(row, scale, mean_hi)``: the same around a guess of the mean."""
    real = element_type.compute_type
    deviation_sums = make_deviation_sums(element_type, 2 * element_type.lanes)
    peel_of = make_peel(element_type)

    @inlined
    def row_sums(row, scale, mean_hi):
        first, second = np.float64(0), np.float64(0)
        peel = peel_of(row, row.size)
        for start in range(0, row.size, tuning.SUM_BLOCK_ELEMENTS):
            stop = min(start + tuning.SUM_BLOCK_ELEMENTS, row.size)
            one, two = deviation_sums(row, start, stop, peel, scale, mean_hi)
            first += reduce_sum(one)
            second += reduce_sum(two)
        return first, second

    @inlined
    def centred_statistics(row, scale, mean_hi):
        # A product is over sooner than a quotient, and everything waits for it.
        inv_count = 1.0 / row.size
        first, second = row_sums(row, scale, mean_hi)
        mean_lo = first * inv_count
        m2 = _squared_deviations(second, first, mean_lo)
        if first * mean_lo > m2:
            mean_hi = real(mean_hi + mean_lo)
            first, second = row_sums(row, scale, mean_hi)
            mean_lo = first * inv_count
            m2 = _squared_deviations(second, first, mean_lo)
        # max() would turn a NaN into 0.
        if m2 < 0.0:
            m2 = 0.0
        return mean_hi, real(mean_lo), m2

    @inlined
    def uncentred_statistics(row, scale, mean_hi):
        _, second = row_sums(row, scale, real(0))
        return None, None, second

    return centred_statistics if centred else uncentred_statistics


@functools.cache
def make_power_of_two(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``power_of_two(value)`` near 1 / value; 1 for 0, infinity and NaN."""
    real, most = element_type.compute_type, element_type.largest_exponent

    @inlined
    def power_of_two(value):
        if not 0.0 < value < np.inf:
            return real(1)
        _, exponent = math.frexp(value)
        return real(math.ldexp(1.0, -min(max(exponent, -most), most)))

    return power_of_two


@functools.cache
def make_rescale(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``rescale(row, least)``, for rows whose squares overflow or vanish.

    It is the power of two that brings the row's largest absolute value, or `least` if that is
    larger, near 1: times it, every sum of squares is in the range of the working type, and no
    digit is lost.
    """
    real, to_compute = element_type.compute_type, element_type.to_compute
    power_of_two = make_power_of_two(element_type)

    @inlined
    def rescale(row, least):
        largest = real(least)
        for j in range(row.size):
            value = abs(to_compute(row[j]))
            if value > largest:
                largest = value
        return power_of_two(largest)

    return rescale
