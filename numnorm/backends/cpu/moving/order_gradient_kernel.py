"""The kernel of the gradient through order statistics of moving windows.

The gradient of an order statistic goes to the values that attain it, in equal shares. They have
neighbouring ranks, so the forward pass is repeated with sets of ranks.
"""

import numpy as np

from numnorm.backends.cpu.compiler.jit import Kernel, inlined, make_kernel, shared
from numnorm.backends.cpu.memory.kernel_arrays import release
from numnorm.backends.cpu.moving.order_results import (
    DEVIATION,
    QUANTILES,
    divisor_of,
    part_of,
    places_of,
    unpacked,
)
from numnorm.backends.cpu.moving.order_sets import after, before
from numnorm.backends.cpu.moving.order_wide_kernel import (
    following_block,
    found_in,
    make_room,
    moved,
    ranked_block,
    unfollowed,
)


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
    interval, share = state[3], places[0][1]
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
def _sums(arrays, channel, inner, end, last, windows, flags, options):
    """Add the gradients of the steps of a window through their own values to the target.

    Return the gradients of the median and of the scale: 0, or NaN, if the window passes none on.
    """
    dy, x, median, scales, target = arrays
    begin, _, shift, early, late = windows
    of_center = of_scale = 0.0
    low = end + shift - (early if end == begin else 0)
    high = end + shift + 1 + (late if end == last else 0)
    for step in range(low, high):
        i = channel + step * inner
        divisor = divisor_of(scales[i], flags[0], options)
        if divisor != 0.0:
            own = dy[i] / divisor
            target[i] += own
            of_center -= own
            of_scale -= own * ((x[i] - median[i]) / divisor) * options[2]
    return of_center, of_scale


def make_order_gradient_kernel() -> Kernel:
    """Return a kernel ``(dy, x, keep, median, scales, dx, numbers, options, parts)``.

    All arrays but the mask are float64; dx begins with zeros. A channel is one group.
    ``numbers`` and ``options`` are as for `make_wide_order_kernel`.
    """
    room = make_room()

    def kernel(dy, x, keep, median, scales, dx, numbers, options, parts, first, last):
        shape, blocks, windows, flags, method = unpacked(numbers, options)
        steps, inner, window, block = shape[1], shape[2], windows[1], blocks[3]
        lists, sets = room(block, window)
        taken, ranks, values = lists[3], lists[5], lists[6]
        for group in range(blocks[0] * first // parts, blocks[0] * last // parts):
            channel, begin, end = part_of(group, shape, blocks, windows[0])
            known, placed = np.int64(-1), np.int64(1)
            places, place = places_of(placed, method), (channel, inner)
            for start in range(begin, end, block):
                bounds = start, min(start + block, end), window, known
                of_channel = channel, inner, flags[1]
                ranked, counts, (known, total) = ranked_block(
                    (x, keep), of_channel, bounds, lists, sets
                )
                state = unfollowed(counts)
                for step in range(start, bounds[1]):
                    new = step - start + window - 1
                    gone = np.int64(-1) if step == start else new - window
                    state = moved(ranked, ranks, new, gone, state)
                    if state[4] != placed and state[4] > 0:
                        placed = state[4]
                        places = places_of(placed, method)
                    (center, scale), state = found_in(ranked, values, state, places, flags[0])
                    arrays = dy, x, median, scales, dx
                    of_window = channel, inner, step, steps - 1, windows, flags, options
                    of_center, of_scale = _sums(arrays, *of_window)
                    if not scale < np.inf or not abs(of_center) + abs(of_scale) < np.inf:
                        continue
                    given = ranked, values, taken
                    if of_scale != 0.0 and flags[0] == DEVIATION:
                        of_ends = state, places, center, of_scale, dx, place
                        of_center += _through_scale(*given, *of_ends)
                    elif of_scale != 0.0 and flags[0] == QUANTILES:
                        (_, (low, low_share), (high, high_share)) = places
                        low, high = state[1][0], state[2][0]
                        _through_place(*given, low, low_share, -of_scale, dx, place)
                        _through_place(*given, high, high_share, of_scale, dx, place)
                    if of_center != 0.0:
                        rank, share = state[0][0], places[0][1]
                        _through_place(*given, rank, share, of_center, dx, place)
                known = following_block((*bounds[:3], known), lists, total)
        release((lists, sets))

    return make_kernel("moving.order_gradient", kernel)
