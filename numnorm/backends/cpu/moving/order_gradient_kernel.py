"""The kernel of the gradient through order statistics of moving windows.

The gradient of an order statistic goes to the values that attain it, in equal shares. They have
neighbouring ranks, so the forward pass is repeated with sets of ranks.
"""

import numpy as np

from numnorm.backends.cpu.compiler.jit import Kernel, inlined, make_kernel, shared
from numnorm.backends.cpu.moving.order_results import (
    DEVIATION,
    QUANTILES,
    divisor_of,
    outputs_of,
)
from numnorm.backends.cpu.moving.order_sets import after, before
from numnorm.backends.cpu.moving.order_wide_kernel import make_walk


@inlined
def _next(ranked, rank, upwards):
    """Return the rank beside another one in one direction; -1 if there is none."""
    if rank < 0:
        return rank
    return after(ranked, rank) if upwards else before(ranked, rank)


@shared
def _through_value(ranked, values, taken, rank, gradient, target, place):
    """Add the gradient of the value of a rank to the steps that have this value.

    `place` is the index of step 0, and how far the next step is.
    """
    channel, inner = place
    value, first, count = values[rank], rank, np.int64(1)
    lower = before(ranked, first)
    while lower >= 0 and values[lower] == value:
        first, count = lower, count + 1
        lower = before(ranked, first)
    upper = after(ranked, rank)
    while upper >= 0 and values[upper] == value:
        count += 1
        upper = after(ranked, upper)
    own = first
    for _ in range(count):
        target[channel + taken[own] * inner] += gradient / count
        own = after(ranked, own)


@inlined
def _through_place(ranked, values, taken, rank, share, gradient, target, place):
    """Add the gradient of an order statistic, a share of which is the next value's."""
    if share < 1.0:
        _through_value(ranked, values, taken, rank, gradient * (1.0 - share), target, place)
    if share > 0.0:
        following = after(ranked, rank)
        _through_value(ranked, values, taken, following, gradient * share, target, place)


@inlined
def _deviation_of(values, rank, center, upwards):
    """Return how far the value of a rank lies from the center, in one direction."""
    return values[rank] - center if upwards else center - values[rank]


@inlined
def _tied(ranked, values, start, center, deviation, upwards):
    """Return the nearest of the ranks on one side that have a deviation, and how many have it.

    The search begins with a rank on this side whose deviation is at most that one.
    """
    rank = start
    while rank >= 0 and _deviation_of(values, rank, center, upwards) < deviation:
        rank = _next(ranked, rank, upwards)
    inner = rank
    if rank >= 0:
        inner = _next(ranked, rank, not upwards)
        while inner >= 0 and _deviation_of(values, inner, center, upwards) == deviation:
            rank = inner
            inner = _next(ranked, rank, not upwards)
    count, each = np.int64(0), rank
    while each >= 0 and _deviation_of(values, each, center, upwards) == deviation:
        count += 1
        each = _next(ranked, each, upwards)
    return rank, count


@shared
def _through_deviation(ranked, values, taken, interval, center, deviation, gradient, target, place):
    """Add the gradient of a deviation to the steps that have it; return that of the center."""
    channel, inner = place
    if deviation == 0.0:
        return 0.0
    first, last, _ = interval
    lower, below = _tied(ranked, values, first, center, deviation, False)
    upper, above = _tied(ranked, values, last, center, deviation, True)
    own = gradient / (below + above)
    for _ in range(below):
        target[channel + taken[lower] * inner] -= own
        lower = before(ranked, lower)
    for _ in range(above):
        target[channel + taken[upper] * inner] += own
        upper = after(ranked, upper)
    return own * below - own * above


@inlined
def _through_scale(ranked, values, taken, state, places, center, gradient, target, place):
    """Add the gradient of the median absolute deviation; return that of the median."""
    (_, share), _, _ = places
    _, _, _, interval, _, _ = state
    first, last, _ = interval
    largest = max(center - values[first], values[last] - center)
    of_center = 0.0
    if share < 1.0:
        own = gradient * (1.0 - share)
        given = ranked, values, taken, interval, center, largest, own, target, place
        of_center += _through_deviation(*given)
    if share > 0.0:
        lower, upper = before(ranked, first), after(ranked, last)
        following = center - values[lower] if lower >= 0 else np.inf
        if upper >= 0:
            following = min(following, values[upper] - center)
        given = ranked, values, taken, interval, center, following, gradient * share, target, place
        of_center += _through_deviation(*given)
    return of_center


@inlined
def _sums(arrays, place, given):
    """Add the gradients of the steps of a window through their own values to the target.

    Return the gradients of the median and of the scale: 0, or NaN, if the window passes none on.
    """
    dy, x, median, scales, target = arrays
    (channel, end), (shape, windows, flags, options) = place, given
    of_center = of_scale = 0.0
    low, high = outputs_of(end, shape[1] - 1, windows)
    for step in range(low, high):
        i = channel + step * shape[2]
        divisor = divisor_of(scales[i], flags[0], options)
        if divisor != 0.0:
            own = dy[i] / divisor
            target[i] += own
            of_center -= own
            of_scale -= own * ((x[i] - median[i]) / divisor) * options[2]
    return of_center, of_scale


@inlined
def _through_window(arrays, place, given, found, sets, followed):
    """Add the gradients of the steps of a window to the target, as `make_walk` calls it."""
    (ranked, values, taken), (center, scale), (state, places) = sets, found, followed
    of_center, of_scale = _sums(arrays, place, given)
    if not scale < np.inf or not abs(of_center) + abs(of_scale) < np.inf:
        return
    shape, _, flags, _ = given
    target, steps = arrays[4], (place[0], shape[2])
    (middle, _), (low, _), (high, _), _, _, _ = state
    (_, share), (_, low_share), (_, high_share) = places
    if of_scale != 0.0 and flags[0] == DEVIATION:
        of_ends = state, places, center, of_scale, target, steps
        of_center += _through_scale(ranked, values, taken, *of_ends)
    elif of_scale != 0.0 and flags[0] == QUANTILES:
        _through_place(ranked, values, taken, low, low_share, -of_scale, target, steps)
        _through_place(ranked, values, taken, high, high_share, of_scale, target, steps)
    if of_center != 0.0:
        _through_place(ranked, values, taken, middle, share, of_center, target, steps)


def make_order_gradient_kernel() -> Kernel:
    """Return a kernel ``(dy, x, keep, median, scales, dx, numbers, options, parts)``.

    All arrays but the mask are float64; dx begins with zeros. A channel is one group.
    ``numbers`` and ``options`` are as for `make_wide_order_kernel`.
    """
    walk = make_walk(_through_window)

    def kernel(dy, x, keep, median, scales, dx, numbers, options, parts, first, last):
        arrays = dy, x, median, scales, dx
        walk((x, keep), arrays, numbers, options, parts, first, last)

    return make_kernel("moving.order_gradient", kernel)
