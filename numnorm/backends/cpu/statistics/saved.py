"""A row's statistics as the forward pass saves them, and their use in the backward pass."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.statistics.normalize import location, make_factor, split
from numnorm.backends.cpu.statistics.row_moments import make_power_of_two
from numnorm.backends.formulas.norms import scale_gradient_factor

_scale_gradient_factor = inlined(scale_gradient_factor)


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
