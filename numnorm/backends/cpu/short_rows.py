"""Rows of one, two or four registers: read once, summed there, and written.

Longer rows are read twice, and narrow rows of other widths are taken in tiles. Beyond the caches
memory waits while a tile is worked on; here the next row is read meanwhile, as all that a row
needs is in registers and few instructions long.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.backends.contract import Formula
from numnorm.backends.cpu.accumulators import ROWS_BETWEEN_FLUSHES, flush
from numnorm.backends.cpu.jit import inlined
from numnorm.backends.cpu.lanes import make_load, make_zeros, store, stream, total
from numnorm.backends.cpu.optional import make_centre, part
from numnorm.backends.cpu.optional_lanes import add, make_elements
from numnorm.backends.cpu.saved_statistics import make_means, make_saved_statistics, save
from numnorm.backends.cpu.storage import Storage
from numnorm.backends.cpu.streaming import after_stores, is_gradient_streamed
from numnorm.backends.scalars import input_gradient, inverse_deviation

_input_gradient, _inverse_deviation = inlined(input_gradient), inlined(inverse_deviation)


@inlined
def _none_is_short(*arguments):
    return False


def _has_short_rows(storage: Storage) -> bool:
    """Return whether rows of such elements are better here than in tiles.

    Halves are not: what converts them takes longer than memory does.
    """
    return storage.container.itemsize > 2


def _make_sums(formula: Formula, storage: Storage, count: int) -> Callable[..., Any]:
    """Return a compiled ``sums(row, value) -> (high, low, poor, m2)`` of a row in registers.

    The mean is ``high + low``, `m2` the sum of the squared deviations, and `poor` is more than it
    where `high` is too far from the mean for both.
    """
    real, widen = storage.working, storage.widen

    @inlined
    def centred_sums(row, value):
        # Around the first element, so that a constant row gives exactly that constant.
        origin = widen(row[0])
        high = real(origin + total(value - origin) * (real(1) / real(count)))
        deviation = value - high
        first, second = np.float64(total(deviation)), np.float64(total(deviation * deviation))
        low = first * (1.0 / count)
        return high, real(low), first * low, second - first * low

    @inlined
    def uncentred_sums(row, value):
        return None, None, 0.0, np.float64(total(value * value))

    return centred_sums if formula.centred else uncentred_sums


def _make_forward(
    formula: Formula, storage: Storage, count: int, one_row: Callable[..., Any]
) -> Callable[..., Any]:
    forward, centred = inlined(formula.forward), make_centre(formula.centred)
    real, widen, narrow = storage.working, storage.widen, storage.narrow
    smallest, sums = storage.smallest_variance, _make_sums(formula, storage, count)
    load, elements = make_load(count), make_elements(count)

    @inlined
    def rows(x, scaling, cut, weights, y, saved, start, stop):
        eps, eps_on_deviation, divisor = scaling
        share = 1.0 / divisor
        gamma = elements(part(weights[0], 0), 0, real(1))
        beta = elements(part(weights[1], 0), 0, real(0))
        for i in range(start, stop):
            value = widen(load(x[i], 0))
            high, low, poor, m2 = sums(x[i], value)
            variance = m2 * share
            spread = variance + eps + eps_on_deviation * eps_on_deviation
            if poor <= m2 and smallest < spread < np.inf:
                rstd = _inverse_deviation(variance, eps, eps_on_deviation)
                xhat = centred(value, high, low) * real(rstd)
                store(y[i], 0, narrow(forward(xhat, gamma, beta)))
                save(saved, i, (real(1), high, low, rstd))
            else:
                one_row(x, i, scaling, cut, 0, weights, y, saved, False)

    return rows


def make_short_forward(
    formula: Formula, storage: Storage, one_row: Callable[..., Any]
) -> Callable[..., Any]:
    """Return a compiled function that normalizes some rows and returns True, if they are short.

    `one_row` is what normalizes a row whose squares overflow or vanish.
    """
    if not _has_short_rows(storage):
        return _none_is_short
    lanes = storage.lanes
    two = _make_forward(formula, storage, 2 * lanes, one_row)
    four = _make_forward(formula, storage, 4 * lanes, one_row)

    @inlined
    def short_rows(x, scaling, cut, weights, y, saved, start, stop):
        # A row of one register is as fast in a tile.
        if cut[1] != 1 or cut[2] > 1:
            return False
        if x.shape[1] == 2 * lanes:
            two(x, scaling, cut, weights, y, saved, start, stop)
        elif x.shape[1] == 4 * lanes:
            four(x, scaling, cut, weights, y, saved, start, stop)
        else:
            return False
        return True

    return short_rows


def _make_backward_row(
    formula: Formula, storage: Storage, count: int, put: Callable[..., Any]
) -> Callable[..., Any]:
    backward, centred = inlined(formula.backward), make_centre(formula.centred)
    widen, narrow = storage.widen, storage.narrow
    statistics_of, means_of = make_saved_statistics(storage), make_means(storage)
    load = make_load(count)

    @inlined
    def backward_row(dy, x, dx, saved, weights, flows):
        """Store dx, and return what the row adds to the gradients of gamma and beta."""
        mean, rstd = saved
        scale, high, low, factor = statistics_of(mean, rstd)
        slope = widen(load(dy, 0))
        xhat = centred(widen(load(x, 0)) * scale, high, low) * factor
        g = backward(slope, xhat, weights[0], weights[1])
        sums = np.float64(total(g)), np.float64(total(g * xhat))
        mean_g, mean_g_xhat = means_of(sums[0], sums[1], rstd, flows)
        put(dx, 0, narrow(_input_gradient(g, xhat, mean_g, mean_g_xhat, factor) * scale))
        return slope * xhat, slope

    return backward_row


def _make_backward(formula: Formula, storage: Storage, count: int) -> Callable[..., Any]:
    store_rows = _make_backward_rows(formula, storage, count, store)
    stream_rows = _make_backward_rows(formula, storage, count, stream)

    @inlined
    def rows(dy, x, mean, rstd, weights, flows, dx, inner, totals, start, stop):
        streamed = is_gradient_streamed(dx, count)
        if streamed:
            stream_rows(dy, x, mean, rstd, weights, flows, dx, inner, totals, start, stop)
        else:
            store_rows(dy, x, mean, rstd, weights, flows, dx, inner, totals, start, stop)
        after_stores(streamed)

    return rows


def _make_backward_rows(
    formula: Formula, storage: Storage, count: int, put: Callable[..., Any]
) -> Callable[..., Any]:
    backward_row, real = _make_backward_row(formula, storage, count, put), storage.working
    elements, zeros = make_elements(count), make_zeros(real, count)

    @inlined
    def rows(dy, x, mean, rstd, weights, flows, dx, inner, totals, start, stop):
        gamma = elements(part(weights[0], 0), 0, real(1))
        beta = elements(part(weights[1], 0), 0, real(0))
        for begin in range(start, stop, ROWS_BETWEEN_FLUSHES):
            dgamma, dbeta = zeros(), zeros()
            for i in range(begin, min(begin + ROWS_BETWEEN_FLUSHES, stop)):
                saved = part(mean, i), rstd[i]
                dy_xhat, slope = backward_row(dy[i], x[i], dx[i], saved, (gamma, beta), flows)
                dgamma, dbeta = dgamma + dy_xhat, dbeta + slope
            add(part(inner[0], 0), 0, dgamma)
            add(part(inner[1], 0), 0, dbeta)
            flush(inner[0], totals[0])
            flush(inner[1], totals[1])

    return rows


def make_short_backward(formula: Formula, storage: Storage) -> Callable[..., Any]:
    """Return a compiled function that stores some rows' gradients, True if they are short."""
    if not _has_short_rows(storage):
        return _none_is_short
    lanes = storage.lanes
    one, two = _make_backward(formula, storage, lanes), _make_backward(formula, storage, 2 * lanes)
    four = _make_backward(formula, storage, 4 * lanes)

    @inlined
    def short_rows(dy, x, mean, rstd, cut, weights, flows, dx, inner, totals, start, stop):
        width = x.shape[1]
        if cut[1] != 1 or cut[2] > 1:
            return False
        if width == lanes:
            one(dy, x, mean, rstd, weights, flows, dx, inner, totals, start, stop)
        elif width == 2 * lanes:
            two(dy, x, mean, rstd, weights, flows, dx, inner, totals, start, stop)
        elif width == 4 * lanes:
            four(dy, x, mean, rstd, weights, flows, dx, inner, totals, start, stop)
        else:
            return False
        return True

    return short_rows
