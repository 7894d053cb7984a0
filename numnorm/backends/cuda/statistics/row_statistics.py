"""Device functions of the statistics of a row, in the compute type.

They normalize a row from its sums, and save what the backward pass reads.
"""

import functools
import math
from typing import Any

from numnorm.backends.contract.norms import Formula
from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import (
    constant,
    device,
    exponent,
    make_load_one,
    make_sqrt,
    reciprocal,
    times_power_of_two,
)
from numnorm.backends.formulas.norms import centre, squared_deviations

# Normalization

_centre, _squared_deviations = device(centre), device(squared_deviations)


@device
def normalized(x, mean_hi, mean_lo, factor):
    """Return xhat of an element. Its row has the mean ``mean_hi + mean_lo`` and rstd `factor`."""
    return _centre(x, mean_hi, mean_lo) * factor


@functools.cache
def make_squared_deviations(element: ElementType) -> Any:
    """Return `squared_deviations` as a device function whose result is never negative."""
    zero = constant(element, 0.0)

    @device
    def not_negative(second, first, mean_lo):
        m2 = _squared_deviations(second, first, mean_lo)
        # max() would turn a NaN into 0.
        return zero if m2 < zero else m2

    return not_negative


@functools.cache
def make_leaves_range(element: ElementType) -> Any:
    """Return a device function ``leaves_range(variance, eps, eps_on_deviation)``.

    It returns whether the squares of a row overflow, or lose digits because they underflow.
    """
    smallest = constant(element, element.smallest_variance)
    infinity = constant(element, float("inf"))

    @device
    def leaves_range(variance, eps, eps_on_deviation):
        total = variance + eps + eps_on_deviation * eps_on_deviation
        return not (smallest < total and total < infinity)

    return leaves_range


@functools.cache
def make_inverse_deviation(element: ElementType) -> Any:
    """Return `formulas.norms.inverse_deviation` in the compute type.

    The literals of that function would be float64 in a kernel.
    """
    sqrt, inverse = make_sqrt(element), reciprocal(element)
    zero, infinity = constant(element, 0.0), constant(element, math.inf)
    missing = constant(element, math.nan)

    @device
    def inverse_deviation(variance, eps, eps_on_deviation):
        deviation = sqrt(variance + eps) + eps_on_deviation
        if deviation == zero:
            return zero
        return inverse(deviation) if deviation < infinity else missing

    return inverse_deviation


@functools.cache
def make_scale_gradient_factor(element: ElementType) -> Any:
    """Return `formulas.norms.scale_gradient_factor` in the compute type.

    The literals of that function would be float64 in a kernel.
    """
    inverse = reciprocal(element)
    zero, one = constant(element, 0.0), constant(element, 1.0)

    @device
    def scale_gradient_factor(rstd, eps_on_deviation):
        remaining = one - eps_on_deviation * rstd
        return zero if remaining <= zero else inverse(remaining)

    return scale_gradient_factor


@functools.cache
def make_power_of_two(element: ElementType) -> Any:
    """Return a device function ``power_of_two(value)``.

    It returns a power of two near 1 / value, and 1 for a value that is 0, infinite or NaN.
    """
    exponent_of, scaled = exponent(element), times_power_of_two(element)
    most = element.largest_exponent
    zero, one, infinity = (constant(element, v) for v in (0.0, 1.0, float("inf")))

    @device
    def power_of_two(value):
        if not zero < value < infinity:
            return one
        return scaled(one, -min(max(exponent_of(value), -most), most))

    return power_of_two


# Saved statistics


@functools.cache
def make_saved_statistics(formula: Formula, element: ElementType, saved: ElementType) -> Any:
    """Return a device function ``statistics(mean, rstd, row)``.

    It loads the statistics of a row from two addresses, and returns them split into ``scale,
    mean_hi, mean_lo, factor`` by `make_split_statistics`.
    """
    load = make_load_one(saved)
    none = constant(saved, 0.0)
    centred = formula.centred
    split = make_split_statistics(formula, element, saved)

    @device
    def statistics(mean, rstd, row):
        # Both loads start before either value is used.
        of_rstd, of_mean = load(rstd, row), load(mean, row) if centred else none
        return split(of_mean, of_rstd)

    return statistics


@functools.cache
def make_split_statistics(formula: Formula, element: ElementType, saved: ElementType) -> Any:
    """Return a device function ``split(mean, rstd) -> (scale, mean_hi, mean_lo, factor)``.

    The results have the compute type. ``((x * scale - mean_hi) - mean_lo) * factor`` is the
    normalized value, and ``factor * scale`` is rstd. The scale is 1 unless rstd is near the ends
    of the range of the compute type.
    """
    kind = element.compute_type
    wide = saved.compute_type
    exponent_of = exponent(saved)
    most = element.largest_exponent
    scaled = times_power_of_two(element)
    saved_scaled = times_power_of_two(saved)
    zero, one = constant(element, 0.0), constant(element, 1.0)
    none, unit, infinity = (constant(saved, v) for v in (0.0, 1.0, float("inf")))
    least, largest = constant(saved, 2.0**-most), constant(saved, 2.0**most)
    centred = formula.centred

    @device
    def split(mean, rstd):
        scale, back = one, unit
        if none < rstd < infinity and not least < rstd < largest:
            power = min(max(exponent_of(rstd), -most), most)
            scale, back = scaled(one, power), saved_scaled(unit, -power)
        factor = kind(rstd * back)
        if not centred:
            return scale, zero, zero, factor
        middle = mean * wide(scale)
        mean_hi = kind(middle)
        return scale, mean_hi, kind(middle - wide(mean_hi)), factor

    return split


@functools.cache
def make_joined_statistics(formula: Formula, element: ElementType, saved: ElementType) -> Any:
    """Return a device function ``joined(mean_hi, mean_lo, factor, scale) -> (mean, rstd)``.

    It is the inverse of `make_split_statistics`, in the type of saved statistics. For a norm
    without a mean it returns 1 / rstd instead of the mean.
    """
    kind = saved.compute_type
    zero, unit = constant(saved, 0.0), constant(saved, 1.0)
    one = constant(element, 1.0)
    centred = formula.centred

    @device
    def joined(mean_hi, mean_lo, factor, scale):
        rstd = kind(factor) * kind(scale)
        if centred:
            return (kind(mean_hi) + kind(mean_lo)) * kind(one / scale), rstd
        return zero if rstd == zero else unit / rstd, rstd

    return joined


@functools.cache
def make_means(element: ElementType) -> Any:
    """Return a device function of the means of g and of g * xhat, which `input_gradient` subtracts.

    ``means(sum_g, sum_g_xhat, scale, factor, inv_count, inv_divisor, eps_on_deviation)`` takes the
    sums of g = dL/dxhat and of g * xhat over the row. A detached statistic has an `inv_count` or
    `inv_divisor` of 0, which makes its mean 0.
    """
    scale_gradient_factor = make_scale_gradient_factor(element)
    zero = constant(element, 0.0)

    @device
    def means(sum_g, sum_g_xhat, scale, factor, inv_count, inv_divisor, eps_on_deviation):
        # The mean of a detached statistic is 0 even where the sum is NaN.
        mean_g = sum_g * inv_count if inv_count > zero else zero
        through_scale = inv_divisor * scale_gradient_factor(factor, eps_on_deviation * scale)
        return mean_g, sum_g_xhat * through_scale if inv_divisor > zero else zero

    return means
