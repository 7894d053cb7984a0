"""The kernel of order statistics in narrow moving windows, which are kept sorted.

One value enters a window and one leaves it. Each element of the sorted window is then itself or a
neighbour, or the new value: eight of them are found at once, without a branch.
"""

from typing import Any

import numpy as np
from numba.core import types

from numnorm.backends.cpu.compiler.jit import Kernel, inlined, make_kernel
from numnorm.backends.cpu.memory.kernel_arrays import make_aligned_zeros, release
from numnorm.backends.cpu.moving.order_results import (
    DEVIATION,
    QUANTILES,
    between,
    distance,
    make_put,
    places_of,
    stretch_of,
    unpacked,
    value_at,
)
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.vector import compiled_as, load_scalar, make_load, splat, store

LANES = 8


def _plain_exchanged(left: Any, own: Any, right: Any, old: Any, new: Any) -> Any:
    before, here = np.where(left < old, left, own), np.where(own < old, own, right)
    return np.maximum(before, np.minimum(here, new))


@compiled_as(_plain_exchanged)
def _exchanged(typing_context, left, own, right, old, new):
    """Return elements of a sorted list after `old` has left it and `new` has entered.

    `own` are the elements at eight places, `left` and `right` the ones a place before and after.
    """

    def generate(context, builder, signature, arguments):
        left, own, right = arguments[:3]
        old, new = (splat(builder, number, LANES) for number in arguments[3:])

        def chosen(one, other, first, second):
            return builder.select(builder.fcmp_ordered("<", one, other), first, second)

        before, here = chosen(left, old, left, own), chosen(own, old, own, right)
        here = chosen(here, new, here, new)
        return chosen(before, here, here, before)

    return left(left, own, right, types.float64, types.float64), generate


_load = make_load(LANES)


@inlined
def _replace(values, start, other, width, old, new):
    """Store the list from the index `other` on that one from `start` on becomes."""
    for i in range(0, width, LANES):
        own = _load(values, start + i)
        left, right = _load(values, start + i - 1), _load(values, start + i + 1)
        store(values, other + i, _exchanged(left, own, right, old, new))


@inlined
def _taken(x, keep, masked, i):
    """Return a value, infinity for what does not count, and whether it counts or is NaN."""
    kept, value = value_at(x, keep, masked, i)
    if not kept:
        return np.inf, np.int64(0), np.int64(0)
    if value != value:
        return np.inf, np.int64(0), np.int64(1)
    return value, np.int64(1), np.int64(0)


@inlined
def _value(values, start, place):
    """Return the order statistic at a place."""
    index, share = place
    value = load_scalar(values, start + index)
    if share == 0.0:
        return value
    return between(value, load_scalar(values, start + index + 1), share)


@inlined
def _nearest(values, start, count, many, center, first):
    """Return where the `many` of `count` values nearest to the center begin, near `first`."""
    first = min(first, count - many)
    while first > 0:
        nearer = center - load_scalar(values, start + first - 1)
        if not nearer < load_scalar(values, start + first + many - 1) - center:
            break
        first -= 1
    while first + many < count:
        nearer = load_scalar(values, start + first + many) - center
        if not nearer < center - load_scalar(values, start + first):
            break
        first += 1
    return first


@inlined
def _deviation(values, start, count, many, center, first, share):
    """Return the largest deviation of the nearest values, or between it and the next larger one."""
    lower = center - load_scalar(values, start + first)
    upper = load_scalar(values, start + first + many - 1) - center
    largest = max(lower, upper)
    if share == 0.0:
        return largest
    following = np.inf
    if first > 0:
        following = center - load_scalar(values, start + first - 1)
    if first + many < count:
        following = min(following, load_scalar(values, start + first + many) - center)
    return between(largest, following, share)


def make_narrow_order_kernel(element_type: ElementType) -> Kernel:
    """Return a kernel ``(x, keep, y, median, scales, numbers, options, parts)``.

    It normalizes each step by the order statistics of its window. ``keep`` is 0 for a step that is
    missing. `unpacked` says what ``numbers`` and ``options`` hold. The options are two quantiles,
    the factor, eps, and the first two numbers of the method.
    """
    empty, put = make_aligned_zeros(np.float64, 1, True), make_put(element_type)

    def kernel(x, keep, y, median, scales, numbers, options, parts, first, last):
        shape, blocks, windows, flags, method = unpacked(numbers, options)
        inner, window = shape[2], windows[1]
        kind, masked = flags
        width = (window + LANES - 1) // LANES * LANES
        room = width + 2 * LANES
        values = empty((2 * room,), 0)
        for group in range(blocks[0] * first // parts, blocks[0] * last // parts):
            channel, begin, end = stretch_of(group, shape, blocks, windows[0])
            # A step that is missing is as an infinite one that is not counted.
            for i in range(2 * room):
                values[i] = np.inf
            values[LANES - 1] = values[room + LANES - 1] = -np.inf
            own, other = np.int64(LANES), np.int64(room + LANES)
            count, unknown, nearest = np.int64(0), np.int64(0), np.int64(0)
            placed = np.int64(1)
            middle, low, high = places_of(placed, method)
            for step in range(max(0, begin - window + 1), end):
                new, present, nan = _taken(x, keep, masked, channel + step * inner)
                count, unknown, old = count + present, unknown + nan, np.inf
                if step >= window and step > begin:
                    before = channel + (step - window) * inner
                    old, present, nan = _taken(x, keep, masked, before)
                    count, unknown = count - present, unknown - nan
                _replace(values, own, other, width, old, new)
                own, other = other, own
                if step < begin:
                    continue
                center = scale = np.nan
                if count > 0 and unknown == 0:
                    if count != placed:
                        placed = count
                        middle, low, high = places_of(count, method)
                    center = _value(values, own, middle)
                    scale = 1.0
                    if not abs(center) < np.inf:
                        scale = np.nan
                    elif kind == DEVIATION:
                        many, share = middle[0] + 1, middle[1]
                        nearest = _nearest(values, own, count, many, center, nearest)
                        scale = _deviation(values, own, count, many, center, nearest, share)
                    elif kind == QUANTILES:
                        scale = distance(_value(values, own, low), _value(values, own, high))
                arrays, found = (x, y, median, scales), (center, scale)
                put(arrays, (channel, step), (shape, windows, flags, options), found)
        release(values)

    return make_kernel(f"moving.narrow_order.{element_type.name}", kernel)
