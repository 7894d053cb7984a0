"""A row's statistics as the forward pass saves them, and their use in the backward pass."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.backends.contract.norms import Formula
from numnorm.backends.cpu.compiler.jit import inlined, shared
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.vector import make_load, make_zeros, reduce_sum
from numnorm.backends.cpu.statistics.normalize import location, make_factor, split
from numnorm.backends.cpu.statistics.row_statistics import make_power_of_two
from numnorm.backends.formulas.norms import scale_gradient_factor

_scale_gradient_factor = inlined(scale_gradient_factor)

# Rounding a float64 mean of more deviations than this loses digits that the gradients need. Most
# rows stay below it and are not read once more.
FAR = 16.0
# Rounding changes a mean by no more than this share of it; a few roundings are allowed for.
MOST_LOST = 2.0**-50


@inlined
def save(saved, i, statistics):
    """Store the mean and rstd of row i in the two arrays of `saved`, unless these are empty."""
    if saved[0].size > 0:
        scale, mean_hi, mean_lo, rstd = statistics
        rstd = np.float64(rstd)  # without compilation a plain float would become a float32
        saved[0][i] = location(mean_hi, mean_lo, rstd) / scale
        saved[1][i] = rstd * scale


@functools.cache
def make_saved_statistics(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``statistics(mean, rstd) -> (scale, mean_hi, mean_lo, rstd)``.

    It converts saved statistics to the compute type.
    """
    real = element_type.compute_type
    power_of_two, factor = make_power_of_two(element_type), make_factor(element_type)
    largest = 2.0**element_type.largest_exponent

    @inlined
    def statistics(mean, rstd):
        # An rstd out of the range of the compute type is divided by a power of two, the scale.
        fits = 1.0 / largest < rstd < largest
        scale = real(1) if fits else real(1) / power_of_two(rstd)
        mean_hi, mean_lo = split(mean, scale)
        return scale, mean_hi, mean_lo, factor(rstd / scale)

    return statistics


@functools.cache
def make_sum_of_deviations(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``sum_of_deviations(x, scale, mean)`` of an array of float64."""
    lanes = element_type.lanes
    load, zeros = make_load(lanes), make_zeros(np.float64, lanes)

    @inlined
    def sum_of_deviations(x, scale, mean):
        sums, tail = zeros(), x.size - x.size % lanes
        for j in range(0, tail, lanes):
            sums = sums + (load(x, j) * scale - mean)
        total = reduce_sum(sums)
        for j in range(tail, x.size):
            total += x[j] * scale - mean
        return total

    return sum_of_deviations


@functools.cache
def make_statistics_of_row(formula: Formula, element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``statistics(x, mean, rstd)``: what `make_saved_statistics` returns.

    A float64 mean is saved without what its rounding lost. Where x is far from 0 beside its
    deviation, this is summed again from the row x, unless the caller gave another mean.
    """
    statistics_of = make_saved_statistics(element_type)
    if not formula.centred or element_type.compute_type is not np.float64:
        return inlined(lambda x, mean, rstd: statistics_of(mean, rstd))
    far, most_lost, sum_of_deviations = FAR, MOST_LOST, make_sum_of_deviations(element_type)

    @shared
    def lost_of(x, scale, mean_hi):
        lost = sum_of_deviations(x, scale, mean_hi) / x.size
        return lost if abs(lost) <= abs(mean_hi) * most_lost else 0.0

    @inlined
    def statistics(x, mean, rstd):
        scale, mean_hi, mean_lo, factor = statistics_of(mean, rstd)
        if abs(mean_hi) * factor > far:
            mean_lo = lost_of(x, scale, mean_hi)
        return scale, mean_hi, mean_lo, factor

    return statistics


@functools.cache
def make_means(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``means(sum_g, sum_g_xhat, rstd, coefficients) -> (mean_g, mean_g_xhat)``.

    They are the gradients through a row's mean and scale, from the sums of g and g * xhat and the
    row's `GradientCoefficients`.
    """
    real = element_type.compute_type

    @inlined
    def means(sum_g, sum_g_xhat, rstd, coefficients):
        inv_count, inv_divisor, eps_on_deviation = coefficients
        # A detached statistic passes no gradient on, not even a NaN.
        mean_g = real(sum_g * inv_count if inv_count > 0.0 else 0.0)
        through_scale = inv_divisor * _scale_gradient_factor(rstd, eps_on_deviation)
        return mean_g, real(sum_g_xhat * through_scale if inv_divisor > 0.0 else 0.0)

    return means
