"""The gradients of norms whose statistics belong to a channel: first sums, then dx."""

import numpy as np
from numba import prange

from numnorm.backends.contract import Formula
from numnorm.backends.cpu.accumulators import ROWS_BETWEEN_FLUSHES, flush
from numnorm.backends.cpu.borrowed import borrowed
from numnorm.backends.cpu.jit import Twins, elementwise, stand_alone, twins
from numnorm.backends.cpu.optional import centred, element, part
from numnorm.backends.cpu.row_backward import make_gradient_sums, make_input_gradients
from numnorm.backends.cpu.storage import Storage
from numnorm.backends.scalars import input_gradient

_input_gradient = elementwise(input_gradient)


def make_sums_across(formula: Formula, storage: Storage) -> Twins:
    """Return a kernel that sums dy * xhat and dy over each block of ``x (outer, channels)``.

    It takes ``dy, x, high, low, rstd, block, sums_dy_xhat, sums_dy``, the last two of shape
    ``(blocks, channels)``.
    """
    real = storage.working
    widen = storage.widen

    @elementwise
    def add_row(dy, x, high, low, rstd, with_xhat, plain):
        for j in range(x.size):
            slope = real(widen(dy[j]))
            xhat = centred(real(widen(x[j])), high[j], low[j]) * rstd[j]
            with_xhat[j] += slope * xhat
            plain[j] += slope

    @elementwise
    def block_sums(dy, x, high, low, rstd, sum_dy_xhat, sum_dy):
        stand_alone()
        dy, x = borrowed(dy), borrowed(x)
        with_xhat = np.zeros_like(rstd)
        plain = np.zeros_like(rstd)
        sum_dy_xhat[:] = 0.0
        sum_dy[:] = 0.0
        for start in range(0, x.shape[0], ROWS_BETWEEN_FLUSHES):
            for i in range(start, min(start + ROWS_BETWEEN_FLUSHES, x.shape[0])):
                add_row(dy[i], x[i], high, low, rstd, with_xhat, plain)
            flush(with_xhat, sum_dy_xhat)
            flush(plain, sum_dy)

    def kernel(dy, x, high, low, rstd, block, sums_dy_xhat, sums_dy):
        for p in prange(sums_dy.shape[0]):
            rows = slice(p * block, (p + 1) * block)
            block_sums(dy[rows], x[rows], high, low, rstd, sums_dy_xhat[p], sums_dy[p])

    return twins(f"column_sums.across.{formula.name}.{storage.name}", kernel)


def make_sums_along(formula: Formula, storage: Storage) -> Twins:
    """Return the same kernel for ``x (outer, channels, inner)``."""
    gradient_sums = make_gradient_sums(formula, storage)
    real = storage.working

    @elementwise
    def block_sums(dy, x, c, high, low, rstd):
        stand_alone()
        dy, x = borrowed(dy), borrowed(x)
        with_xhat, plain = 0.0, 0.0
        for i in range(x.shape[0]):
            _, _, dy_xhat, slope = gradient_sums(
                dy[i, c], x[i, c], real(1), high, low, rstd, None, None, None, None
            )
            with_xhat += dy_xhat
            plain += slope
        return with_xhat, plain

    def kernel(dy, x, high, low, rstd, block, sums_dy_xhat, sums_dy):
        channels = x.shape[1]
        for t in prange(sums_dy.shape[0] * channels):
            p, c = t // channels, t % channels
            rows = slice(p * block, (p + 1) * block)
            with_xhat, plain = block_sums(dy[rows], x[rows], c, high[c], low[c], rstd[c])
            sums_dy_xhat[p, c] = with_xhat
            sums_dy[p, c] = plain

    return twins(f"column_sums.along.{formula.name}.{storage.name}", kernel)


def make_dx_across(formula: Formula, storage: Storage) -> Twins:
    """Return a kernel that stores dx for ``x (outer, channels)``.

    It takes ``dy, x, high, low, rstd, gamma, mean_g, mean_g_xhat, dx, parts``.
    """
    backward = elementwise(formula.backward)
    widen, narrow = storage.widen, storage.narrow
    real = storage.working

    @elementwise
    def row(dy, x, high, low, rstd, gamma, mean_g, mean_g_xhat, dx):
        for j in range(x.size):
            xhat = centred(real(widen(x[j])), high[j], low[j]) * rstd[j]
            g = backward(real(widen(dy[j])), xhat, element(gamma, j, real(1)), real(0))
            dx[j] = narrow(_input_gradient(g, xhat, mean_g[j], mean_g_xhat[j], rstd[j]))

    @elementwise
    def rows(dy, x, high, low, rstd, gamma, mean_g, mean_g_xhat, dx, start, stop):
        stand_alone()
        dy, x, dx = borrowed(dy), borrowed(x), borrowed(dx)
        for i in range(start, stop):
            row(dy[i], x[i], high, low, rstd, gamma, mean_g, mean_g_xhat, dx[i])

    def kernel(dy, x, high, low, rstd, gamma, mean_g, mean_g_xhat, dx, parts):
        for p in prange(parts):
            start, stop = p * x.shape[0] // parts, (p + 1) * x.shape[0] // parts
            rows(dy, x, high, low, rstd, gamma, mean_g, mean_g_xhat, dx, start, stop)

    return twins(f"column_dx.across.{formula.name}.{storage.name}", kernel)


def make_dx_along(formula: Formula, storage: Storage) -> Twins:
    """Return the same kernel for ``x (outer, channels, inner)``."""
    input_gradients = make_input_gradients(formula, storage)
    real = storage.working

    @elementwise
    def runs(dy, x, high, low, rstd, gamma, mean_g, mean_g_xhat, dx, start, stop):
        stand_alone()
        dy, x, dx = borrowed(dy), borrowed(x), borrowed(dx)
        for t in range(start, stop):
            i, c = t // x.shape[1], t % x.shape[1]
            centre = real(1), high[c], low[c], rstd[c], part(gamma, c), None
            input_gradients(dy[i, c], x[i, c], *centre, mean_g[c], mean_g_xhat[c], dx[i, c])

    def kernel(dy, x, high, low, rstd, gamma, mean_g, mean_g_xhat, dx, parts):
        count = x.shape[0] * x.shape[1]
        for p in prange(parts):
            start, stop = p * count // parts, (p + 1) * count // parts
            runs(dy, x, high, low, rstd, gamma, mean_g, mean_g_xhat, dx, start, stop)

    return twins(f"column_dx.along.{formula.name}.{storage.name}", kernel)
