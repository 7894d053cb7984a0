"""The statistics of one row: mean, squared deviations and rstd, exact at any offset of the data.

The sums of ``x - pivot`` and ``(x - pivot)**2`` give the statistics without cancellation if the
pivot is near the mean (Chan, Golub and LeVeque 1983). The pivot is the mean of the first elements.
Only if that is too far from the mean is the row read once more. A row is scaled if its squares
would overflow or vanish.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.backends.contract.norms import Formula
from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.memory.alignment import each_peels_to_alignment, make_peel
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.masked import make_masked_load, select_lanes
from numnorm.backends.cpu.simd.vector import make_load, make_zeros, reduce_sum
from numnorm.backends.formulas.norms import inverse_deviation, squared_deviations

_squared_deviations = inlined(squared_deviations)


@functools.cache
def make_deviation_sums(element_type: ElementType, count: int) -> Callable[..., Any]:
    """Return a compiled ``deviation_sums(row, start, stop, peel, scale, pivot)``: two vectors.

    They are the sums of ``row * scale - pivot`` and of its squares over ``row[start:stop]``, in
    vectors of `count` lanes. The first `peel` elements go to the last lanes: see
    `segment_loops.make_gradient_lanes`.
    """
    to_compute, zeros = element_type.to_compute, make_zeros(element_type.compute_type, count)
    load, masked_load = make_load(count), make_masked_load(count)
    peeled = each_peels_to_alignment(element_type)

    @inlined
    def deviation_sums(row, start, stop, peel, scale, pivot):
        first, second = zeros(), zeros()
        aligned = start + min(peel, stop - start)
        if peeled and aligned > start:
            j, low = aligned - count, count - (aligned - start)
            values = to_compute(masked_load(row, j, low, count))
            deviation = select_lanes(values * scale - pivot, low, count)
            first = first + deviation
            second = second + deviation * deviation
        tail = stop - (stop - aligned) % count
        for j in range(aligned, tail, count):
            deviation = to_compute(load(row, j)) * scale - pivot
            first = first + deviation
            second = second + deviation * deviation
        n = stop - tail
        if n > 0:
            values = to_compute(masked_load(row, tail, 0, n))
            deviation = select_lanes(values * scale - pivot, 0, n)
            first = first + deviation
            second = second + deviation * deviation
        return first, second

    return deviation_sums


@functools.cache
def make_pivot(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``pivot(row, scale)``: the mean of the first lanes of ``row * scale``."""
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

    The mean of ``row * scale`` is ``mean_hi + mean_lo``, and `m2` is the sum of its squared
    deviations. Without centring the means are None, and `m2` is the sum of squares.
    """
    real, pivot_of = element_type.compute_type, make_pivot(element_type)
    deviation_sums = make_deviation_sums(element_type, 2 * element_type.lanes)
    peel_of = make_peel(element_type)

    @inlined
    def row_sums(row, scale, pivot):
        first, second = np.float64(0), np.float64(0)
        peel = peel_of(row, row.size)
        for start in range(0, row.size, tuning.SUM_BLOCK_ELEMENTS):
            stop = min(start + tuning.SUM_BLOCK_ELEMENTS, row.size)
            block_first, block_second = deviation_sums(row, start, stop, peel, scale, pivot)
            first += reduce_sum(block_first)
            second += reduce_sum(block_second)
        return first, second

    @inlined
    def centred_statistics(row, scale):
        mean_hi = pivot_of(row, scale)
        # A product is ready sooner than a quotient, and everything waits for it.
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
    def uncentred_statistics(row, scale):
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

    It returns the power of two that brings the row's largest absolute value, or `least` if that is
    larger, near 1. The squares of the scaled row fit the compute type, and no digit is lost.
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


_inverse_deviation = inlined(inverse_deviation)


@functools.cache
def make_row_statistics(formula: Formula, element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``row_statistics(row, scaling) -> (scale, mean_hi, mean_lo, rstd)``.

    `scaling` is ``(eps, eps_on_deviation, count)``. The statistics are those of ``row * scale``,
    where the scale brings the row's squares into range: it is 1 for nearly every row.
    """
    real, smallest = element_type.compute_type, element_type.smallest_variance
    statistics = make_statistics(element_type, centred=formula.centred)
    rescale = make_rescale(element_type)

    @inlined
    def row_statistics(row, scaling):
        eps, eps_on_deviation, count = scaling
        scale, inv_count = real(1), np.float64(1) / count
        mean_hi, mean_lo, m2 = statistics(row, scale)
        total = m2 * inv_count + eps + eps_on_deviation * eps_on_deviation
        if not smallest < total < np.inf:
            root = math.sqrt(eps)
            scale = rescale(row, root if root > eps_on_deviation else eps_on_deviation)
            mean_hi, mean_lo, m2 = statistics(row, scale)
            root = np.float64(root) * scale
            eps = root * root
        eps_on_deviation = np.float64(eps_on_deviation) * scale
        rstd = _inverse_deviation(m2 * inv_count, eps, eps_on_deviation)
        return scale, mean_hi, mean_lo, rstd

    return row_statistics
