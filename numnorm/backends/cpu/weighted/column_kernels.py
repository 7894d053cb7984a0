"""The kernels of the norms with statistics of each channel, with weights.

An array of channels is ``(outer, channels, inner)``. The loops take a unit at a time: up to `LANES`
neighbours of an entry, of as many channels if `inner` is 1, and else of one channel.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from numnorm.backends.cpu.columns.moments import two_sum
from numnorm.backends.cpu.columns.moments_kernels import SMALLEST_M2
from numnorm.backends.cpu.compiler.jit import Function, Kernel, inlined, make_function
from numnorm.backends.cpu.memory.grouped_kernel import make_grouped_kernel
from numnorm.backends.cpu.memory.kernel_arrays import window
from numnorm.backends.cpu.memory.nontemporal import (
    gradient_uses_write_combining,
    make_writer,
)
from numnorm.backends.cpu.simd.element_type import element_type_of
from numnorm.backends.cpu.statistics.saved import MOST_LOST
from numnorm.backends.cpu.weighted.loops import (
    LANES,
    Selection,
    clear,
    is_kept,
    of_row,
    scratch,
    total_of,
)
from numnorm.backends.cpu.weighted.masked_columns import store_statistics

_two_sum = inlined(two_sum)

# Sums of this many entries are added up first, and what their sum loses is kept: long sums would
# lose digits.
_ROWS = 16
# The pivot of a channel is the mean of this many values.
_OF_PIVOT = 16


class Columns(NamedTuple):
    """The shape of an array of channels."""

    outer: int
    channels: int
    inner: int


@inlined
def _units(columns):
    """Return the number of units of an entry."""
    if columns.inner == 1:
        return (columns.channels + LANES - 1) // LANES
    return columns.channels * ((columns.inner + LANES - 1) // LANES)


@inlined
def _unit_of(columns, u):
    """Return where unit u starts in an entry, its size, and its first channel."""
    if columns.inner == 1:
        return u * LANES, min(LANES, columns.channels - u * LANES), u * LANES
    blocks = (columns.inner + LANES - 1) // LANES
    channel, left = u // blocks, u % blocks * LANES
    return channel * columns.inner + left, min(LANES, columns.inner - left), channel


@inlined
def _spread(values, columns, channel, n, lanes):
    """Store the values of a unit's channels, one for each of its elements, in `lanes`."""
    of_channels = window(values, channel, n if columns.inner == 1 else 1)
    for k in range(n):
        lanes[k] = of_channels[k if columns.inner == 1 else 0]


@inlined
def _lost(one, other, total):
    """Return what rounding took from the sum of two numbers; 0 if the sum is not finite."""
    moved = total - one
    lost = (one - (total - moved)) + (other - moved)
    return lost if abs(total) < np.inf else 0.0


@inlined
def _flush(lanes, columns, channel, n, sums, losses):
    """Add the sums of a unit to the sums of its channels, and to `losses` what rounding took."""
    if columns.inner == 1:
        of_channels, of_losses = window(sums, channel, n), window(losses, channel, n)
        for k in range(n):
            total = of_channels[k] + lanes[k]
            of_losses[k] += _lost(of_channels[k], lanes[k], total)
            of_channels[k] = total
    else:
        more = total_of(lanes)
        total = sums[channel] + more
        losses[channel] += _lost(sums[channel], more, total)
        sums[channel] = total


@inlined
def _add_moments(x, dy, keep, weights, omit, pivot, sums):
    """Add w, w d, w d**2 and |d|, with ``d = x - pivot``, to the sums of a unit."""
    total, first, second, extent = sums
    for k in range(x.size):
        value, w = np.float64(x[k]), weights[k]
        counts = is_kept(keep[k], value, omit) & (w > 0.0)
        d = value - pivot[k] if counts else 0.0
        w = w if counts else 0.0
        total[k] += w
        first[k] += w * d
        second[k] += w * d * d
        extent[k] += abs(d)


@inlined
def _add_gradients(x, dy, keep, weights, omit, pivot, sums):
    """Add w, w d, dy and dy d, with ``d = x - pivot``, to the sums of a unit."""
    total, first, sum_dy, products = sums
    for k in range(x.size):
        value, w = np.float64(x[k]), weights[k]
        kept = is_kept(keep[k], value, omit)
        counts = kept & (w > 0.0)
        d, g = value - pivot[k] if kept else 0.0, np.float64(dy[k]) if kept else 0.0
        w = w if counts else 0.0
        total[k] += w
        first[k] += w * d if counts else 0.0
        sum_dy[k] += g
        products[k] += g * d


def _make_sums(name: str, add: Callable[..., None]) -> Kernel:
    """Return the kernel that stores four sums of each channel and part, ``(parts, 8, channels)``.

    The last four numbers are what rounding took from the sums. All are zeros at first.
    """

    def kernel(
        x: Any,
        dy: Any,
        selection: Selection,
        columns: Columns,
        pivots: Any,
        table: Any,
        parts: int,
        first: int,
        last: int,
    ) -> None:
        width, of_part = columns.channels * columns.inner, table.size // parts
        sums, pivot = (scratch(), scratch(), scratch(), scratch()), scratch()
        for p in range(first, last):
            stop, own = (p + 1) * columns.outer // parts, window(table, p * of_part, of_part)
            for i in range(p * columns.outer // parts, stop, _ROWS):
                for u in range(_units(columns)):
                    start, n, channel = _unit_of(columns, u)
                    _spread(pivots, columns, channel, n, pivot)
                    for lanes in sums:
                        clear(lanes)
                    for j in range(i, min(i + _ROWS, stop)):
                        at, (keep, weights, omit) = j * width + start, of_row(selection, j, width)
                        given = window(x, at, n), window(dy, at, n), window(keep, start, n)
                        add(*given, window(weights, start, n), omit, pivot, sums)
                    at, size = 0, columns.channels
                    for lanes in sums:
                        of_sum, lost = window(own, at, size), window(own, at + 4 * size, size)
                        _flush(lanes, columns, channel, n, of_sum, lost)
                        at += size

    return make_grouped_kernel(name, kernel)


def make_moment_sums(dtype: str) -> Kernel:
    """Return the kernel of the sums of w, w d, w d**2 and |d|, with ``d = x - pivot``."""
    return _make_sums(f"weighted.moment_sums.{dtype}", _add_moments)


def make_gradient_sums(dtype: str) -> Kernel:
    """Return the kernel of the sums of w, w d, dy and dy d, with ``d = x - pivot``."""
    return _make_sums(f"weighted.gradient_sums.{dtype}", _add_gradients)


@inlined
def _summed(table, c):
    """Return the four sums of channel c over all parts."""
    one, two, three, four = 0.0, 0.0, 0.0, 0.0
    for k in range(0, 8, 4):  # what rounding took comes last
        for p in range(table.shape[0]):
            one += table[p, k, c]
            two += table[p, k + 1, c]
            three += table[p, k + 2, c]
            four += table[p, k + 3, c]
    return one, two, three, four


def make_moment_finish() -> Function:
    """Return a function ``(table, pivots, farthest, moments, statistics)``.

    It stores what `make_masked_fold` does from the table of `make_moment_sums`, and returns whether
    the square of any pivot's distance from its mean is more than `farthest` variances. Such pivots
    become the mean.
    """

    def finish(table, pivots, farthest, moments, statistics):
        totals, means, lows, m2s = moments[0], moments[1], moments[2], moments[3]
        any_far = 0
        for c in range(pivots.size):
            total, first, second, extent = _summed(table, c)
            mean = first / total if total > 0.0 else 0.0
            m2 = second - first * mean
            far = first * mean > farthest * m2
            totals[c] = total
            means[c], lows[c] = _two_sum(pivots[c], mean)
            pivots[c] = pivots[c] + mean if far else pivots[c]
            any_far += 1 if far else 0
            # max() would turn a NaN into 0.
            m2s[c] = (SMALLEST_M2 if extent > 0.0 else 0.0) if m2 <= 0.0 else m2
        store_statistics(moments, statistics)
        return any_far > 0

    return make_function("weighted.moment_finish", finish)


def make_gradient_finish() -> Function:
    """Return the function that completes a gradient.

    Its arguments are ``table, mean, rstd, gamma``, whether mean and scale are detached, and
    ``coefficients, gradients``. From the table of `make_gradient_sums` it stores the coefficients
    of `make_column_dx` and, as the rows of `gradients`, dgamma and dbeta.
    """
    most_lost = MOST_LOST

    def finish(table, mean, rstd, gamma, mean_detached, scale_detached, coefficients, gradients):
        means, factors, constants = coefficients[0], coefficients[1], coefficients[2]
        slopes, dgamma, dbeta = coefficients[3], gradients[0], gradients[1]
        for c in range(mean.size):
            total, first, sum_dy, products = _summed(table, c)
            divisor = total if total > 0.0 else 1.0
            lost = first / divisor
            # A mean that the caller changed stays as it is.
            lost = lost if abs(lost) <= most_lost * abs(mean[c]) else 0.0
            # A channel of which nothing is left has a NaN as its statistics, and sums of 0.
            nothing = (sum_dy == 0.0) & (products == 0.0)
            gradient = 0.0 if nothing else rstd[c] * (products - lost * sum_dy)
            factor = gamma[c] * rstd[c]
            slope = 0.0 * factor if scale_detached else factor * rstd[c] * (gradient / divisor)
            through_mean = 0.0 if mean_detached else sum_dy / divisor
            means[c], factors[c], slopes[c] = mean[c], factor, slope
            constants[c] = factor * through_mean - lost * slope
            dgamma[c], dbeta[c] = gradient, sum_dy

    return make_function("weighted.gradient_finish", finish)


def make_pivots() -> Function:
    """Return the kernel that finds a pivot of each channel among the values that count.

    Each becomes the mean of `found` such values, at most 16. `further` gets the sum of their
    distances from the first one. All are zeros at first.
    """

    def kernel(x, keep, keep_step, weights, weight_step, omit, shape, pivots, further, found):
        outer, channels, inner = shape
        left, width = channels, channels * inner
        for i in range(outer):
            if left == 0:
                break
            for j in range(width):
                c = j // inner
                value = np.float64(x[i * width + j])
                kept = is_kept(keep[i * keep_step + j], value, omit)
                if found[c] < _OF_PIVOT and kept and weights[i * weight_step + j] > 0.0:
                    pivots[c] = value if found[c] == 0 else pivots[c]
                    further[c] += value - pivots[c]
                    found[c] += 1
                    left -= 1 if found[c] == _OF_PIVOT else 0
        for c in range(channels):
            pivots[c] += further[c] / max(found[c], 1)

    return make_function("weighted.pivots", kernel)


@inlined
def _coefficients(table, columns, channel, n, spread):
    """Return four coefficients of a unit's channels, for each of its elements.

    Elements that share a channel find them in the scratch `spread`.
    """
    size = columns.channels
    if columns.inner == 1:
        return (
            window(table, channel, n),
            window(table, size + channel, n),
            window(table, 2 * size + channel, n),
            window(table, 3 * size + channel, n),
        )
    one, two, three, four = spread
    for k in range(n):
        one[k] = table[channel]
        two[k] = table[size + channel]
        three[k] = table[2 * size + channel]
        four[k] = table[3 * size + channel]
    return window(one, 0, n), window(two, 0, n), window(three, 0, n), window(four, 0, n)


def make_column_dx(dtype: str) -> Kernel:
    """Return the kernel that stores ``dy * factor - w * (constant + (x - mean) * slope)``.

    The coefficients ``(4, channels)``, flat, are mean, factor, constant and slope.
    """
    real = np.dtype(dtype).type
    make_buffer, begin, target_of, written, finish = make_writer(
        element_type_of(np.dtype(dtype)), LANES
    )

    @inlined
    def apply(x, dy, keep, weights, omit, coefficients, dx):
        mean, factor, constant, slope = coefficients
        for k in range(x.size):
            value = np.float64(x[k])
            through = weights[k] * (constant[k] + (value - mean[k]) * slope[k])
            result = np.float64(dy[k]) * factor[k] - through
            dx[k] = real(result if is_kept(keep[k], value, omit) else 0.0)

    def kernel(
        x: Any,
        dy: Any,
        selection: Selection,
        columns: Columns,
        table: Any,
        dx: Any,
        parts: int,
        first: int,
        last: int,
    ) -> None:
        width, spread = (
            columns.channels * columns.inner,
            (scratch(), scratch(), scratch(), scratch()),
        )
        start_row, buffer = first * columns.outer // parts, make_buffer()
        combines, state = gradient_uses_write_combining(dx), begin(dx, start_row * width)
        for i in range(start_row, last * columns.outer // parts):
            keep, weights, omit = of_row(selection, i, width)
            for u in range(_units(columns)):
                start, n, channel = _unit_of(columns, u)
                at, coefficients = (
                    i * width + start,
                    _coefficients(table, columns, channel, n, spread),
                )
                target = target_of(dx, at, n, buffer, state, combines)
                given = window(x, at, n), window(dy, at, n), window(keep, start, n)
                apply(*given, window(weights, start, n), omit, coefficients, target)
                state = written(dx, n, buffer, state, combines)
        finish(dx, buffer, state, combines)

    return make_grouped_kernel(f"weighted.column_dx.{dtype}", kernel)
