"""The gradients of norms whose statistics belong to a channel: first sums, then dx."""

import numpy as np

from numnorm.backends.contract import Formula
from numnorm.backends.cpu.accumulators import ROWS_BETWEEN_FLUSHES, flush
from numnorm.backends.cpu.borrowed import borrowed
from numnorm.backends.cpu.jit import Twins, inlined, stand_alone, twins
from numnorm.backends.cpu.optional import element, make_centre, part
from numnorm.backends.cpu.runs import make_gradient_sums, make_input_gradients
from numnorm.backends.cpu.storage import Storage
from numnorm.backends.scalars import input_gradient

_input_gradient = inlined(input_gradient)


def make_sums_across(formula: Formula, storage: Storage) -> Twins:
    """Return a kernel that sums dy * xhat and dy over each block of ``x (outer, channels)``.

    It takes ``dy, x, scale, high, low, rstd, block, sums_dy_xhat, sums_dy``, the last two of shape
    ``(blocks, channels)``.
    """
    widen, centred = storage.widen, make_centre(formula.centred)

    @inlined
    def add_row(dy, x, scale, high, low, rstd, with_xhat, plain):
        for j in range(x.size):
            slope = widen(dy[j])
            xhat = centred(widen(x[j]) * scale[j], high[j], low[j]) * rstd[j]
            with_xhat[j] += slope * xhat
            plain[j] += slope

    @inlined
    def block_sums(dy, x, scale, high, low, rstd, sum_dy_xhat, sum_dy):
        with_xhat = np.zeros_like(rstd)
        plain = np.zeros_like(rstd)
        sum_dy_xhat[:] = 0.0
        sum_dy[:] = 0.0
        for start in range(0, x.shape[0], ROWS_BETWEEN_FLUSHES):
            for i in range(start, min(start + ROWS_BETWEEN_FLUSHES, x.shape[0])):
                add_row(dy[i], x[i], scale, high, low, rstd, with_xhat, plain)
            flush(with_xhat, sum_dy_xhat)
            flush(plain, sum_dy)

    def kernel(dy, x, scale, high, low, rstd, block, sums_dy_xhat, sums_dy, first, last):
        stand_alone()
        dy, x = borrowed(dy), borrowed(x)
        for p in range(first, last):
            rows = slice(p * block, (p + 1) * block)
            block_sums(dy[rows], x[rows], scale, high, low, rstd, sums_dy_xhat[p], sums_dy[p])

    return twins(f"column_sums.across.{formula.name}.{storage.name}", kernel)


def make_sums_along(formula: Formula, storage: Storage) -> Twins:
    """Return the same kernel for ``x (outer, channels, inner)``."""
    gradient_sums = make_gradient_sums(formula, storage)

    @inlined
    def block_sums(dy, x, c, scale, high, low, rstd):
        with_xhat, plain = np.float64(0), np.float64(0)
        for i in range(x.shape[0]):
            statistics, nothing = (scale, high, low, rstd), (None, None)
            _, _, dy_xhat, slope = gradient_sums(dy[i, c], x[i, c], statistics, nothing, nothing)
            with_xhat += dy_xhat
            plain += slope
        return with_xhat, plain

    def kernel(dy, x, scale, high, low, rstd, block, sums_dy_xhat, sums_dy, first, last):
        stand_alone()
        dy, x = borrowed(dy), borrowed(x)
        channels = x.shape[1]
        for t in range(first, last):
            p, c = t // channels, t % channels
            rows = slice(p * block, (p + 1) * block)
            with_xhat, plain = block_sums(dy[rows], x[rows], c, scale[c], high[c], low[c], rstd[c])
            sums_dy_xhat[p, c] = with_xhat
            sums_dy[p, c] = plain

    return twins(f"column_sums.along.{formula.name}.{storage.name}", kernel)


def make_dx_across(formula: Formula, storage: Storage) -> Twins:
    """Return a kernel that stores dx for ``x (outer, channels)``.

    It takes ``dy, x, scale, high, low, rstd, gamma, mean_g, mean_g_xhat, dx, parts``.
    """
    backward = inlined(formula.backward)
    widen, narrow, centred = storage.widen, storage.narrow, make_centre(formula.centred)
    real = storage.working

    @inlined
    def row(dy, x, scale, high, low, rstd, gamma, mean_g, mean_g_xhat, dx):
        for j in range(x.size):
            xhat = centred(widen(x[j]) * scale[j], high[j], low[j]) * rstd[j]
            g = backward(widen(dy[j]), xhat, element(gamma, j, real(1)), real(0))
            dx[j] = narrow(_input_gradient(g, xhat, mean_g[j], mean_g_xhat[j], rstd[j]) * scale[j])

    def kernel(dy, x, scale, high, low, rstd, gamma, mean_g, mean_g_xhat, dx, parts, first, last):
        stand_alone()
        dy, x, dx = borrowed(dy), borrowed(x), borrowed(dx)
        for i in range(first * x.shape[0] // parts, last * x.shape[0] // parts):
            row(dy[i], x[i], scale, high, low, rstd, gamma, mean_g, mean_g_xhat, dx[i])

    return twins(f"column_dx.across.{formula.name}.{storage.name}", kernel)


def make_dx_along(formula: Formula, storage: Storage) -> Twins:
    """Return the same kernel for ``x (outer, channels, inner)``."""
    input_gradients = make_input_gradients(formula, storage, 2 * storage.lanes)

    def kernel(dy, x, scale, high, low, rstd, gamma, mean_g, mean_g_xhat, dx, parts, first, last):
        stand_alone()
        dy, x, dx = borrowed(dy), borrowed(x), borrowed(dx)
        runs = x.shape[0] * x.shape[1]
        for t in range(first * runs // parts, last * runs // parts):
            i, c = t // x.shape[1], t % x.shape[1]
            statistics, weights = (scale[c], high[c], low[c], rstd[c]), (part(gamma, c), None)
            means = mean_g[c], mean_g_xhat[c]
            input_gradients(dy[i, c], x[i, c], statistics, weights, means, dx[i, c])

    return twins(f"column_dx.along.{formula.name}.{storage.name}", kernel)
