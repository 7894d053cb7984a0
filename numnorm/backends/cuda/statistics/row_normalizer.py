"""What follows from the sums of one row, in the working type."""

import functools
from typing import Any

from numnorm.backends.cuda.compiler.element_type import Element
from numnorm.backends.cuda.compiler.target import (
    constant,
    device,
    exponent,
    reciprocal,
    square_root,
    times_power_of_two,
)


@functools.cache
def make_inverse_deviation(element: Element) -> Any:
    """Return `scalars.inverse_deviation`, whose literals would be float64, in the working type."""
    root, inverse = square_root(element), reciprocal(element)
    zero = constant(element, 0.0)

    @device
    def inverse_deviation(variance, eps, eps_on_deviation):
        deviation = root(variance + eps) + eps_on_deviation
        return zero if deviation == zero else inverse(deviation)

    return inverse_deviation


@functools.cache
def make_deviation_flow(element: Element) -> Any:
    """Return `scalars.deviation_flow`, whose literals would be float64, in the working type."""
    inverse, zero, one = reciprocal(element), constant(element, 0.0), constant(element, 1.0)

    @device
    def deviation_flow(rstd, eps_on_deviation):
        remaining = one - eps_on_deviation * rstd
        return zero if remaining <= zero else inverse(remaining)

    return deviation_flow


@functools.cache
def make_power_of_two(element: Element) -> Any:
    """Return a device function of a value: a power of two near 1 / value; 1 if there is none."""
    exponent_of, scaled, most = (
        exponent(element),
        times_power_of_two(element),
        element.largest_exponent,
    )
    zero, one, infinity = (constant(element, v) for v in (0.0, 1.0, float("inf")))

    @device
    def power_of_two(value):
        if not zero < value < infinity:
            return one
        return scaled(one, -min(max(exponent_of(value), -most), most))

    return power_of_two
