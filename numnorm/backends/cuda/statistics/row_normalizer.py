"""Device functions that normalize a row from its sums, in the compute type."""

import functools
import math
from typing import Any

from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import (
    constant,
    device,
    exponent,
    make_sqrt,
    reciprocal,
    times_power_of_two,
)
from numnorm.backends.formulas.norms import centre, squared_deviations

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
    inverse, zero, one = reciprocal(element), constant(element, 0.0), constant(element, 1.0)

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
