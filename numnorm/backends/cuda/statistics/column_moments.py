"""The mean and m2 of a channel from the sums of its deviations from a pivot."""

import functools
from typing import Any

from numnorm.backends.cuda.compiler.element_type import FLOAT64, ElementType
from numnorm.backends.cuda.compiler.target import constant, device, reciprocal
from numnorm.backends.cuda.statistics.row_normalizer import make_squared_deviations

# It replaces squares that underflow in float64, because 0 would mean a constant channel.
_SMALLEST = constant(FLOAT64, 1e-308)


@functools.cache
def make_centre(element: ElementType) -> Any:
    """Return a device function ``centre(first, second, count) -> (mean_lo, m2)``.

    From the sum of `count` deviations and the sum of their squares it computes their mean,
    `mean_lo`, and the sum of the squared deviations from that mean.
    """
    inverse, compute_type = reciprocal(element), element.compute_type
    squared_deviations = make_squared_deviations(element)

    @device
    def centre(first, second, count):
        mean_lo = first * inverse(compute_type(count))
        return mean_lo, squared_deviations(second, first, mean_lo)

    return centre


@functools.cache
def make_is_poor(element: ElementType) -> Any:
    """Return a device function ``is_poor(pivot, m2, count)``: whether squares left the range.

    An `m2` of 0 around a large pivot is exact: the square of the least possible deviation from it
    would not underflow.
    """
    smallest, compute_type = constant(element, element.smallest_variance), element.compute_type
    infinity, zero = constant(element, float("inf")), constant(element, 0.0)
    large = constant(element, 1e-14 if element.compute_name == "float32" else 1e-140)

    @device
    def is_poor(pivot, m2, count):
        if smallest * compute_type(count) < m2 and m2 < infinity:
            return False
        return not (m2 == zero and large < abs(pivot))

    return is_poor


@functools.cache
def make_unscaled(element: ElementType) -> Any:
    """Return a device function ``unscaled(mean_hi, mean_lo, m2, scale)``: the three in float64."""
    kind, one, zero = FLOAT64.compute_type, constant(element, 1.0), constant(FLOAT64, 0.0)

    @device
    def unscaled(mean_hi, mean_lo, m2, scale):
        back = kind(one / scale)  # exact, because the scale is a power of two
        squares = kind(m2) * back * back
        vanished = squares == zero and kind(m2) > zero
        squares = _SMALLEST if vanished else squares
        return kind(mean_hi) * back, kind(mean_lo) * back, squares

    return unscaled
