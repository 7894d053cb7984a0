"""Compensated sums: a second sum collects what rounding loses of the first.

The pair replaces a float64 sum, which many devices compute slowly.
"""

import functools
from typing import Any

from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import constant, device


@device
def two_sum(a: Any, b: Any) -> Any:
    """Return the sum and what rounding it lost (Knuth 1969)."""
    total = a + b
    of_b = total - a
    return total, (a - (total - of_b)) + (b - of_b)


@functools.cache
def make_add_each(count: int) -> Any:
    """Return a device function ``add_each(values, hi, lo)``.

    It adds `count` values to as many sums in `hi`, and what rounding lost to `lo`.
    """

    @device
    def add_each(values, hi, lo):
        for k in range(count):
            hi[k], lost = two_sum(hi[k], values[k])
            lo[k] += lost

    return add_each


@functools.cache
def make_joined(element: ElementType, of: ElementType) -> Any:
    """Return a device function ``joined(hi, lo)`` of a sum in the compute type of `of`.

    The lost part of an infinite sum is NaN: the sum stays infinite.
    """
    wide = element.compute_type if element.compute_name == "float64" else of.compute_type
    narrow, zero = of.compute_type, constant(element, 0.0)

    @device
    def joined(hi, lo):
        return narrow(wide(hi) + wide(lo if lo == lo else zero))

    return joined
