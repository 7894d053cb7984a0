"""The statistics of a row that the forward pass saves and the backward pass reads."""

import functools
from typing import Any

from numnorm.backends.contract.norms import Formula
from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import (
    constant,
    device,
    exponent,
    make_load_one,
    times_power_of_two,
)
from numnorm.backends.cuda.statistics.row_normalizer import make_scale_gradient_factor


@functools.cache
def make_saved_statistics(formula: Formula, element: ElementType, saved: ElementType) -> Any:
    """Return a device function ``statistics(mean, rstd, row)``.

    It loads the statistics of a row from two addresses, and returns them split into ``scale,
    mean_hi, mean_lo, factor`` by `make_split_statistics`.
    """
    load, none = make_load_one(saved), constant(saved, 0.0)
    centred, split = formula.centred, make_split_statistics(formula, element, saved)

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
    kind, wide = element.compute_type, saved.compute_type
    exponent_of, most = exponent(saved), element.largest_exponent
    scaled, saved_scaled = times_power_of_two(element), times_power_of_two(saved)
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
    kind, zero, unit = saved.compute_type, constant(saved, 0.0), constant(saved, 1.0)
    one, centred = constant(element, 1.0), formula.centred

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
    scale_gradient_factor, zero = make_scale_gradient_factor(element), constant(element, 0.0)

    @device
    def means(sum_g, sum_g_xhat, scale, factor, inv_count, inv_divisor, eps_on_deviation):
        # The mean of a detached statistic is 0 even where the sum is NaN.
        mean_g = sum_g * inv_count if inv_count > zero else zero
        through_scale = inv_divisor * scale_gradient_factor(factor, eps_on_deviation * scale)
        return mean_g, sum_g_xhat * through_scale if inv_divisor > zero else zero

    return means
