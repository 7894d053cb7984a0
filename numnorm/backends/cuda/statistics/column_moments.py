"""What follows from the sums of a channel's deviations from a value near them."""

import functools
from typing import Any

from numnorm.backends.cuda.compiler.element_type import FLOAT64, Element
from numnorm.backends.cuda.compiler.target import constant, device, reciprocal

# Tells squares that are less than any float64 from those of a constant channel.
_SMALLEST = constant(FLOAT64, 1e-300)


@functools.cache
def make_centre(element: Element) -> Any:
    """Return a device function ``centre(first, second, count)``: ``low, m2`` of deviations.

    It takes their sum, that of their squares, and how many they are: `low` is their mean.
    """
    inverse, zero, working = reciprocal(element), constant(element, 0.0), element.working

    @device
    def centre(first, second, count):
        low = first * inverse(working(count))
        m2 = second - first * low
        # max() would turn a NaN into 0.
        return low, zero if m2 < zero else m2

    return centre


@functools.cache
def make_is_poor(element: Element) -> Any:
    """Return a device function ``is_poor(origin, m2, count)``: whether squares left the range.

    They did not where `m2` is 0 around an origin that is large enough: the least deviation from
    it would have a square.
    """
    smallest, working = constant(element, element.smallest_variance), element.working
    infinity, zero = constant(element, float("inf")), constant(element, 0.0)
    large = constant(element, 1e-14 if element.working_name == "float32" else 1e-140)

    @device
    def is_poor(origin, m2, count):
        if smallest * working(count) < m2 and m2 < infinity:
            return False
        return not (m2 == zero and large < abs(origin))

    return is_poor


@functools.cache
def make_unscaled(element: Element) -> Any:
    """Return a device function ``unscaled(high, low, m2, scale)``: mean and m2, in float64."""
    kind, one, zero = FLOAT64.working, constant(element, 1.0), constant(FLOAT64, 0.0)

    @device
    def unscaled(high, low, m2, scale):
        back = kind(one / scale)  # of a power of two
        squares = kind(m2) * back * back
        vanished = squares == zero and kind(m2) > zero
        return (kind(high) + kind(low)) * back, _SMALLEST if vanished else squares

    return unscaled
