"""The statistics of a row of which elements are left out."""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.backends.contract.norms import Formula
from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.compiler.jit import inlined, shared
from numnorm.backends.cpu.memory.alignment import each_peels_to_alignment, make_peel
from numnorm.backends.cpu.memory.borrowed import window
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.kept import is_kept, make_masked_kept, number_kept, where_kept
from numnorm.backends.cpu.simd.masked import make_masked_load
from numnorm.backends.cpu.simd.optional import part
from numnorm.backends.cpu.simd.optional_vector import make_load_or_scalar
from numnorm.backends.cpu.simd.vector import make_load, make_zeros, reduce_sum
from numnorm.backends.cpu.statistics.row_moments import make_power_of_two
from numnorm.backends.cpu.weighted.loops import quotient
from numnorm.backends.formulas.norms import inverse_deviation

_inverse_deviation = inlined(inverse_deviation)


@functools.cache
def make_masked_sums(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``masked_sums(row, keep, omit, scale, pivot)`` of what is kept.

    It returns the number of elements, and the sums of ``row * scale - pivot`` and its squares.
    """
    count, to_compute = 2 * element_type.lanes, element_type.to_compute
    zeros, load = make_zeros(element_type.compute_type, count), make_load(count)
    masked_load, masked_kept = make_masked_load(count), make_masked_kept(count)
    load_or_scalar, peeled = make_load_or_scalar(count), each_peels_to_alignment(element_type)
    peel_of = make_peel(element_type)

    @inlined
    def added(sums, values, kept, omit, scale, pivot):
        number, first, second = sums
        deviation = where_kept(values * scale - pivot, kept, values, omit)
        number += number_kept(kept, values, omit)
        return number, first + deviation, second + deviation * deviation

    @inlined
    def masked_added(sums, row, keep, omit, scale, pivot, j, begin, end):
        values, kept = to_compute(masked_load(row, j, begin, end)), masked_kept(keep, j, begin, end)
        return added(sums, values, kept, omit, scale, pivot)

    @inlined
    def block_sums(row, keep, omit, peel, scale, pivot):
        sums, peel = (0, zeros(), zeros()), min(peel, row.size)
        if peeled and peel > 0:
            low = count - peel
            sums = masked_added(sums, row, keep, omit, scale, pivot, peel - count, low, count)
        tail = row.size - (row.size - peel) % count
        for j in range(peel, tail, count):
            values, kept = to_compute(load(row, j)), load_or_scalar(keep, j, None)
            sums = added(sums, values, kept, omit, scale, pivot)
        if tail < row.size:
            n = row.size - tail
            sums = masked_added(sums, row, keep, omit, scale, pivot, tail, 0, n)
        return sums

    @inlined
    def masked_sums(row, keep, omit, scale, pivot):
        number, first, second = 0, np.float64(0), np.float64(0)
        peel = peel_of(row, row.size)
        for start in range(0, row.size, tuning.SUM_BLOCK_ELEMENTS):
            size = min(tuning.SUM_BLOCK_ELEMENTS, row.size - start)
            block, kept = window(row, start, size), window(keep, start, size)
            of_block, block_first, block_second = block_sums(block, kept, omit, peel, scale, pivot)
            number += of_block
            first += reduce_sum(block_first)
            second += reduce_sum(block_second)
        return np.float64(number), first, second

    return masked_sums


@functools.cache
def _make_pivot(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``pivot(row, keep, omit, scale)``: the mean of the first that are kept."""
    real, to_compute, lanes = element_type.compute_type, element_type.to_compute, element_type.lanes
    load, masked_load = make_load(lanes), make_masked_load(lanes)
    load_or_scalar, masked_kept = make_load_or_scalar(lanes), make_masked_kept(lanes)

    @inlined
    def pivot(row, keep, omit, scale):
        j = 0
        while j + lanes <= row.size:
            if number_kept(load_or_scalar(keep, j, None), to_compute(load(row, j)), omit) > 0:
                break
            j += lanes
        while j < row.size and not is_kept(part(keep, j), to_compute(row[j]), omit):
            j += 1
        if j >= row.size:
            return real(0)
        # Around the first element, so that a constant row gives exactly that constant.
        origin, n = to_compute(row[j]) * scale, min(lanes, row.size - j)
        values, kept = to_compute(masked_load(row, j, 0, n)), masked_kept(keep, j, 0, n)
        first = where_kept(values * scale - origin, kept, values, omit)
        return real(origin + reduce_sum(first) / real(number_kept(kept, values, omit)))

    return pivot


@functools.cache
def _make_statistics(element_type: ElementType, *, centred: bool) -> Callable[..., Any]:
    """Return a compiled ``statistics(row, keep, omit, scale) -> (number, mean_hi, mean_lo, m2)``.

    Without an element the mean is NaN.
    """
    real, pivot_of = element_type.compute_type, _make_pivot(element_type)
    row_sums = make_masked_sums(element_type)

    @inlined
    def centred_statistics(row, keep, omit, scale):
        mean_hi = pivot_of(row, keep, omit, scale)
        number, first, second = row_sums(row, keep, omit, scale, mean_hi)
        mean_lo = quotient(first, number)
        m2 = second - first * mean_lo
        if first * mean_lo > m2:
            mean_hi = real(mean_hi + mean_lo)
            number, first, second = row_sums(row, keep, omit, scale, mean_hi)
            mean_lo = quotient(first, number)
            m2 = second - first * mean_lo
        # max() would turn a NaN into 0.
        if m2 < 0.0:
            m2 = 0.0
        return number, mean_hi, real(mean_lo), m2

    @inlined
    def uncentred_statistics(row, keep, omit, scale):
        number, _, second = row_sums(row, keep, omit, scale, real(0))
        return number, None, None, second

    return centred_statistics if centred else uncentred_statistics


@functools.cache
def _make_rescale(element_type: ElementType) -> Callable[..., Any]:
    """Return `row_moments.make_rescale` for what is kept of a row."""
    real, to_compute = element_type.compute_type, element_type.to_compute
    power_of_two = make_power_of_two(element_type)

    @shared
    def rescale(row, keep, omit, least):
        largest = real(least)
        for j in range(row.size):
            value = to_compute(row[j])
            if is_kept(part(keep, j), value, omit) and abs(value) > largest:
                largest = abs(value)
        return power_of_two(largest)

    return rescale


@functools.cache
def make_masked_statistics(formula: Formula, element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``statistics(row, keep, omit, scaling)`` like `make_row_statistics`."""
    real, smallest = element_type.compute_type, element_type.smallest_variance
    statistics = _make_statistics(element_type, centred=formula.centred)
    rescale = _make_rescale(element_type)

    @shared
    def masked_statistics(row, keep, omit, scaling):
        eps, eps_on_deviation, share, more = scaling
        scale = real(1)
        number, mean_hi, mean_lo, m2 = statistics(row, keep, omit, scale)
        divisor = number * share + more
        total = quotient(m2, divisor) + eps + eps_on_deviation * eps_on_deviation
        if number > 0.0 and not smallest < total < np.inf:
            root = math.sqrt(eps)
            scale = rescale(row, keep, omit, max(root, eps_on_deviation))
            number, mean_hi, mean_lo, m2 = statistics(row, keep, omit, scale)
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
