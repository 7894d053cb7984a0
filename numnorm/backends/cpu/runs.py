"""Loops over one run: a stretch of elements that belong to one channel.

A run is a whole row of a layer norm, with a gamma for each element, or one channel of a group or
batch norm, with a gamma for all of it.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.backends.contract import Formula
from numnorm.backends.cpu.jit import elementwise, sums
from numnorm.backends.cpu.optional import add_to, centred, element, stretch
from numnorm.backends.cpu.row_statistics import STRETCH
from numnorm.backends.cpu.storage import Storage
from numnorm.backends.scalars import input_gradient

_input_gradient = elementwise(input_gradient)


def make_apply(formula: Formula, storage: Storage) -> Callable[..., Any]:
    """Return a compiled loop that normalizes, maps and stores."""
    forward = elementwise(formula.forward)
    real, widen, narrow = storage.working, storage.widen, storage.narrow

    @elementwise
    def apply_run(x, scale, high, low, rstd, gamma, beta, y):
        for j in range(x.size):
            xhat = centred(widen(x[j]) * scale, high, low) * rstd
            y[j] = narrow(forward(xhat, element(gamma, j, real(1)), element(beta, j, real(0))))

    return apply_run


def make_gradient_sums(formula: Formula, storage: Storage) -> Callable[..., Any]:
    """Return a compiled loop that takes every sum which the gradients need.

    It returns the sums of g, g * xhat, dy * xhat and dy, and adds the last two, element by
    element, to the accumulators of this run where there are any.
    """
    backward = elementwise(formula.backward)
    real, widen = storage.working, storage.widen

    @sums
    def stretch_sums(dy, x, scale, high, low, rstd, gamma, beta, dgamma, dbeta):
        sum_g = real(0)
        sum_g_xhat = real(0)
        sum_dy_xhat = real(0)
        sum_dy = real(0)
        for j in range(x.size):
            slope = widen(dy[j])
            xhat = centred(widen(x[j]) * scale, high, low) * rstd
            g = backward(slope, xhat, element(gamma, j, real(1)), element(beta, j, real(0)))
            sum_g += g
            sum_g_xhat += g * xhat
            sum_dy_xhat += slope * xhat
            sum_dy += slope
            add_to(dgamma, j, slope * xhat)
            add_to(dbeta, j, slope)
        return sum_g, sum_g_xhat, sum_dy_xhat, sum_dy

    @elementwise
    def gradient_sums(dy, x, scale, high, low, rstd, gamma, beta, dgamma, dbeta):
        sum_g, sum_g_xhat = np.float64(0), np.float64(0)
        sum_dy_xhat, sum_dy = np.float64(0), np.float64(0)
        for start in range(0, x.size, STRETCH):
            stop = start + STRETCH
            weights = stretch(gamma, start, stop), stretch(beta, start, stop)
            targets = stretch(dgamma, start, stop), stretch(dbeta, start, stop)
            g, g_xhat, dy_xhat, slope = stretch_sums(
                dy[start:stop], x[start:stop], scale, high, low, rstd, *weights, *targets
            )
            sum_g += g
            sum_g_xhat += g_xhat
            sum_dy_xhat += dy_xhat
            sum_dy += slope
        return sum_g, sum_g_xhat, sum_dy_xhat, sum_dy

    return gradient_sums


def make_input_gradients(formula: Formula, storage: Storage) -> Callable[..., Any]:
    """Return a compiled loop that stores dx."""
    backward = elementwise(formula.backward)
    real, widen, narrow = storage.working, storage.widen, storage.narrow

    @elementwise
    def input_gradients(dy, x, scale, high, low, rstd, gamma, beta, mean_g, mean_g_xhat, dx):
        for j in range(x.size):
            slope = widen(dy[j])
            xhat = centred(widen(x[j]) * scale, high, low) * rstd
            g = backward(slope, xhat, element(gamma, j, real(1)), element(beta, j, real(0)))
            dx[j] = narrow(_input_gradient(g, xhat, mean_g, mean_g_xhat, rstd) * scale)

    return input_gradients
