"""The kernels of windows that last a duration, and of their gradients.

The windows begin and end one behind the other, at steps that two arrays give. An anchor lies at the
last step of the first window, and serves all windows that hold it: each is a suffix of the steps
before the anchor, and a prefix of the steps from it on. The first window without it has the next
anchor. So a step is added to one suffix and to one prefix, and no value is ever subtracted from a
sum. The sums are taken around the value at the anchor, which all these windows hold.

The windows that hold a step lie one behind the other, too, and the sums of their gradients have
anchors of their own. The pivots are the values at the first and the last step whose windows hold
the anchor: the windows before it hold the one, and those from it on the other.

Steps that do not count are left out before all that, and the windows count what is left.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.backends.cpu.compiler.jit import Kernel, inlined, make_kernel
from numnorm.backends.cpu.memory.kernel_arrays import halves, make_aligned_zeros, release
from numnorm.backends.cpu.moving.lanes import LANES
from numnorm.backends.cpu.moving.missing_steps import HALF
from numnorm.backends.cpu.moving.window_kernels import make_statistics
from numnorm.backends.cpu.simd.functions import reciprocal
from numnorm.backends.cpu.simd.vector import make_load, store

_STRETCH = 512  # steps of which the statistics are computed at once
# Rows of a table: the sums of the window of a step and of the squares, the number of its steps, its
# pivot, and the deviation of the step from the pivot.
_ROWS = 5


def make_bounds_kernel() -> Kernel:
    """Return a kernel ``(times, bounds, length, sides)``.

    ``sides`` are whether windows hold steps at their first and at their last time, and whether they
    lie around their steps. The times and the length are numbers of one type.
    """

    def kernel(times, bounds, length, sides, first, last):
        left, right, center = sides
        starts, stops = halves(bounds)
        low, high, steps = 0, 0, times.size
        ahead = length if center else length - length
        for t in range(steps):
            # Differences of near times are exact, and sums of large ones are not.
            while low < steps and not _within(times[t] - times[low], length, left):
                low += 1
            if right and not center:
                high = t + 1
            else:
                while high < steps and _within(times[high] - times[t], ahead, right):
                    high += 1
            starts[t], stops[t] = min(low, high), high

    return make_kernel("moving.bounds", kernel)


@inlined
def _within(passed, length, closed):
    """Return whether a time lies in a window, whose end may be `closed`."""
    return passed < length or (closed and passed == length)


@inlined
def _counted(keep, start, stride, steps, places):
    """Store how many steps count before each step, and before the end."""
    count = 0
    for t in range(steps):
        places[t] = count
        if keep.size == 0 or keep[start + t * stride] > HALF:
            count += 1
    places[steps] = count


@inlined
def _anchored(values, low, anchor, pivot, sums, squares):
    """Store the sums of the deviations of the steps from each one to an anchor, and of squares."""
    total, squared = 0.0, 0.0
    sums[anchor - low], squares[anchor - low] = total, squared
    for j in range(anchor - 1, low - 1, -1):
        deviation = values[j] - pivot
        total += deviation
        squared += deviation * deviation
        sums[j - low], squares[j - low] = total, squared


@inlined
def _step_of(anchor, keep, steps, places):
    """Return the step of an anchor, which is known by its place among those that count."""
    if keep.size == 0 or anchor < 0:
        return anchor
    step = 0
    while step < steps - 1 and places[step + 1] <= anchor:
        step += 1
    return step


def _make_stretch() -> Callable[..., Any]:
    """Return a compiled ``stretch(table, options)``.

    In the place of the deviation it stores the result, of the pivot the mean, and of the first sum
    rstd.
    """
    statistics, load = make_statistics(), make_load(LANES)

    @inlined
    def stretch(table, options):
        size = _STRETCH
        for i in range(0, size, LANES):
            inverse = reciprocal(load(table, i + 2 * size))
            mean, rstd = statistics(load(table, i), load(table, i + size), inverse, options)
            lanes = (load(table, i + 4 * size) - mean) * rstd
            store(table, i + 4 * size, lanes)
            store(table, i + 3 * size, load(table, i + 3 * size) + mean)
            store(table, i, rstd)

    return stretch


def _make_channel() -> Callable[..., Any]:
    """Return a compiled ``channel_of(arrays, bounds, anchors, place, shape, options, room)``.

    ``place`` are the channel and the flat index of its first step.
    """
    stretch = _make_stretch()

    @inlined
    def channel_of(arrays, bounds, anchors, place, shape, options, room):
        x, keep, y, mean, rstd = arrays
        (channel, start), (_, steps, stride, first) = place, shape
        starts, stops = bounds
        values, places, sums, squares, table = room
        all_count = keep.size == 0
        if all_count:
            for t in range(steps):
                values[t] = x[start + t * stride]
        else:
            _counted(keep, start, stride, steps, places)
            for t in range(steps):
                if places[t + 1] > places[t]:
                    values[places[t]] = x[start + t * stride]
        size = _STRETCH
        given = anchors[channel]
        anchor, fresh, done, base = -1, False, 0, 0
        if given >= 0:
            anchor, fresh = given if all_count else places[given], True
        pivot, total, squared = 0.0, 0.0, 0.0
        for begin in range(first, steps, size):
            end = min(begin + size, steps)
            for t in range(begin, end):
                low, high = starts[t], stops[t]
                if not all_count:
                    low, high = places[low], places[high]
                i = t - begin
                if high > low:
                    if anchor < low or fresh:
                        anchor = high - 1 if anchor < low else anchor
                        fresh, done, base = False, anchor, low
                        pivot, total, squared = values[anchor] * options[0], 0.0, 0.0
                        _anchored(values, low, anchor, pivot, sums, squares)
                    while done < high:
                        deviation = values[done] - pivot
                        total += deviation
                        squared += deviation * deviation
                        done += 1
                    table[i] = total + sums[low - base]
                    table[i + size] = squared + squares[low - base]
                else:
                    table[i] = table[i + size] = np.nan
                table[i + 2 * size] = high - low
                table[i + 3 * size] = pivot
                table[i + 4 * size] = x[start + t * stride] - pivot
            stretch(table, options)
            for i in range(end - begin):
                at = start + (begin + i) * stride
                y[at] = table[i + 4 * size]
                if mean.size > 0:
                    mean[at] = table[i + 3 * size]
                    rstd[at] = table[i]
        anchors[channel] = given if fresh else _step_of(anchor, keep, steps, places)

    return channel_of


def make_timed_windows_kernel() -> Kernel:
    """Return a kernel ``(x, keep, y, mean, rstd, bounds, anchors, shape, options, parts)``.

    The arrays are flat. ``keep`` is 1 for each step that counts, or else 0; it has no elements if
    all do, and mean and rstd have none if they are not to be saved. ``bounds`` are the first step
    of each window, and behind all those the step after its last one. ``anchors`` has the anchor of
    each channel before the first step, or -1, and gets that after the last step. The `shape` is
    ``(outer, steps, inner, first)``: steps before `first` have no result. ``options`` are 1 or 0
    for whether the mean is subtracted, and whether to divide, and epsilon. The channels are divided
    into `parts`.
    """
    channel_of = _make_channel()
    empty, integers = make_aligned_zeros(np.float64, 1, True), make_aligned_zeros(np.int64, 1, True)
    zeros = make_aligned_zeros(np.float64, 1)

    def kernel(x, keep, y, mean, rstd, bounds, anchors, shape, options, parts, first, last):
        outer, steps, inner, _ = shape
        both = halves(bounds)
        channels = outer * inner
        longest = 1
        for t in range(steps):
            longest = max(longest, both[1][t] - both[0][t])
        values, sums, squares = empty((steps,), 0), empty((longest,), 0), empty((longest,), 0)
        places, table = integers((min(keep.size, steps) + 1,), 0), zeros((_ROWS * _STRETCH,), 0)
        for channel in range(channels * first // parts, channels * last // parts):
            start = channel // inner * steps * inner + channel % inner
            arrays, room = (x, keep, y, mean, rstd), (values, places, sums, squares, table)
            place = channel, start
            channel_of(arrays, both, anchors, place, shape, options, room)
        release((values, sums, squares, places, table))

    return make_kernel("moving.timed_windows", kernel)


@inlined
def _terms(arrays, bounds, start, stride, steps, options, room):
    """Store for each step that counts its value, its window, the mean, and what passes through."""
    dy, x, _, mean, rstd, _ = arrays
    starts, stops = bounds
    places, lows, highs, values, means, of_mean, of_scale = room
    for t in range(steps):
        k = places[t]
        if places[t + 1] > k:
            place = start + t * stride
            lows[k], highs[k] = places[starts[t]], places[stops[t]]
            values[k], means[k] = x[place], mean[place]
            of_mean[k] = of_scale[k] = 0.0
            if highs[k] > lows[k]:
                inverse = 1.0 / (highs[k] - lows[k])
                root = rstd[place]
                gradient = dy[place] * root * inverse
                of_mean[k] = gradient * options[0]
                of_scale[k] = gradient * root * root * (values[k] - means[k]) * options[1]


@inlined
def _gradients_of_channel(arrays, bounds, start, stride, steps, options, room, sums, squares):
    """Store dx of a channel."""
    dy, _, keep, _, rstd, dx = arrays
    places, lows, highs, values, means, of_mean, of_scale = room
    _counted(keep, start, stride, steps, places)
    count = places[steps]
    _terms(arrays, bounds, start, stride, steps, options, room)
    anchor, low, high, done = -1, 0, 0, 0
    before, behind, total, scaled = 0.0, 0.0, 0.0, 0.0
    for t in range(steps):
        place, s = start + t * stride, places[t]
        if places[t + 1] == s:
            dx[place] = 0.0
            continue
        # The windows from `low` up to `high` hold the step.
        while low < count and highs[low] <= s:
            low += 1
        while high < count and lows[high] <= s:
            high += 1
        passed = dy[place] * rstd[place] if highs[s] > lows[s] else 0.0
        if high > low:
            if anchor < low:
                anchor = done = high - 1
                before, behind = values[s], values[highs[anchor] - 1]
                total, scaled = 0.0, 0.0
                sums[anchor] = squares[anchor] = 0.0
                for j in range(anchor - 1, low - 1, -1):
                    total += of_mean[j] + of_scale[j] * (before - means[j])
                    scaled += of_scale[j]
                    sums[j], squares[j] = total, scaled
                total, scaled = 0.0, 0.0
            while done < high:
                total += of_mean[done] + of_scale[done] * (behind - means[done])
                scaled += of_scale[done]
                done += 1
            passed -= sums[low] + squares[low] * (values[s] - before)
            passed -= total + scaled * (values[s] - behind)
        dx[place] = passed


def make_timed_gradients_kernel() -> Kernel:
    """Return a kernel ``(dy, x, keep, mean, rstd, dx, bounds, shape, options, parts)``.

    The `shape` is ``(outer, steps, inner)``, and the other arguments are as for
    `make_timed_windows_kernel`, with the statistics that it saved. A step without its own window
    passes no gradient.
    """
    empty, integers = make_aligned_zeros(np.float64, 1, True), make_aligned_zeros(np.int64, 1, True)

    def kernel(dy, x, keep, mean, rstd, dx, bounds, shape, options, parts, first, last):
        outer, steps, inner = shape
        both = halves(bounds)
        channels = outer * inner
        values, means, of_mean = empty((steps,), 0), empty((steps,), 0), empty((steps,), 0)
        of_scale, sums, squares = empty((steps,), 0), empty((steps,), 0), empty((steps,), 0)
        places = integers((steps + 1,), 0)
        lows, highs = integers((steps,), 0), integers((steps,), 0)
        room = places, lows, highs, values, means, of_mean, of_scale
        for channel in range(channels * first // parts, channels * last // parts):
            start = channel // inner * steps * inner + channel % inner
            arrays = dy, x, keep, mean, rstd, dx
            _gradients_of_channel(arrays, both, start, inner, steps, options, room, sums, squares)
        release((values, means, of_mean, of_scale, sums, squares, places, lows, highs))

    return make_kernel("moving.timed_gradients", kernel)
