"""The backward kernel of every norm whose statistics are shared by a row."""

from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.backends.contract import Formula
from numnorm.backends.cpu.accumulators import ROWS_BETWEEN_FLUSHES, collect, flush, working_sums
from numnorm.backends.cpu.borrowed import borrowed
from numnorm.backends.cpu.jit import Twins, elementwise, stand_alone, twins
from numnorm.backends.cpu.optional import part, split
from numnorm.backends.cpu.row_statistics import make_power_of_two
from numnorm.backends.cpu.runs import make_gradient_sums, make_input_gradients
from numnorm.backends.cpu.storage import Storage
from numnorm.backends.scalars import deviation_flow

_deviation_flow = elementwise(deviation_flow)


def _make_row_sums(formula: Formula, storage: Storage) -> Callable[..., Any]:
    gradient_sums = make_gradient_sums(formula, storage)

    @elementwise
    def row_sums(dy, x, statistics, first_channel, shape, weights, inner, totals):
        run, channels = shape
        gamma, beta = weights
        sum_g, sum_g_xhat = np.float64(0), np.float64(0)
        for p in range(x.size // run):
            c = (first_channel + p) % channels
            left, right = p * run, (p + 1) * run
            weight = part(gamma, c), part(beta, c)
            sums_here = part(inner[0], c), part(inner[1], c)
            g, g_xhat, dy_xhat, slope = gradient_sums(
                dy[left:right], x[left:right], *statistics, *weight, *sums_here
            )
            sum_g += g
            sum_g_xhat += g_xhat
            collect(totals[0], c, dy_xhat)
            collect(totals[1], c, slope)
        return sum_g, sum_g_xhat

    return row_sums


def _make_row(formula: Formula, storage: Storage) -> Callable[..., Any]:
    row_sums = _make_row_sums(formula, storage)
    input_gradients = make_input_gradients(formula, storage)
    power_of_two = make_power_of_two(storage)
    real = storage.working
    largest = 2.0**storage.largest_exponent

    @elementwise
    def backward_row(dy, x, mean, rstd, first_channel, shape, weights, flows, dx, inner, totals):
        run, channels = shape
        gamma, beta = weights
        mean_share, scale_share, eps_on_deviation = flows
        # An rstd beyond the working type is used as its ratio to a power of two.
        fits = 1.0 / largest < rstd < largest
        scale = real(1) if fits else real(1) / power_of_two(rstd)
        statistics = (scale, *split(mean, scale), real(rstd / scale))
        sum_g, sum_g_xhat = row_sums(
            dy, x, statistics, first_channel, shape, weights, inner, totals
        )
        # A detached statistic passes nothing on, a NaN neither.
        mean_g = real(sum_g * mean_share if mean_share > 0.0 else 0.0)
        through_scale = scale_share * _deviation_flow(rstd, eps_on_deviation)
        mean_g_xhat = real(sum_g_xhat * through_scale if scale_share > 0.0 else 0.0)
        for p in range(x.size // run):
            c = (first_channel + p) % channels
            left, right = p * run, (p + 1) * run
            weight = part(gamma, c), part(beta, c)
            means = mean_g, mean_g_xhat
            input_gradients(
                dy[left:right], x[left:right], *statistics, *weight, *means, dx[left:right]
            )

    return backward_row


def make_row_backward(formula: Formula, storage: Storage) -> Twins:
    """Return the kernel of a norm's gradients.

    It takes ``dy, x (N, D), mean, rstd, gamma, beta, run, channels, mean_share, scale_share,
    eps_on_deviation, dx, dgamma, dbeta, parts``. The shares are 1 over the number of elements, or
    0 for a detached statistic. ``dgamma[p]`` and ``dbeta[p]`` receive the sums of the p-th part
    of the rows: the parts follow from the shapes, so that no thread count changes a sum.
    """
    backward_row = _make_row(formula, storage)
    real = storage.working

    @elementwise
    def backward_rows(dy, x, mean, rstd, shape, weights, flows, dx, totals, start, stop):
        # The owners are used once more after the last row, so they outlive what is borrowed.
        dgamma, dbeta = working_sums(totals[0], real(0)), working_sums(totals[1], real(0))
        inner = (borrowed(dgamma), borrowed(dbeta))
        runs = x.shape[1] // shape[0]
        for i in range(start, stop):
            statistics = part(mean, i), rstd[i]
            row = dy[i], x[i], *statistics, i * runs, shape, weights, flows, dx[i]
            backward_row(*row, inner, totals)
            if (i - start) % ROWS_BETWEEN_FLUSHES == ROWS_BETWEEN_FLUSHES - 1:
                flush(dgamma, totals[0])
                flush(dbeta, totals[1])
        flush(dgamma, totals[0])
        flush(dbeta, totals[1])

    def kernel(
        dy, x, mean, rstd, gamma, beta, run, channels, mean_share, scale_share,
        eps_on_deviation, dx, dgamma, dbeta, parts, first, last,
    ):  # fmt: skip
        stand_alone()
        dy, x, dx = borrowed(dy), borrowed(x), borrowed(dx)
        shape, weights = (run, channels), (borrowed(gamma), borrowed(beta))
        flows = (mean_share, scale_share, eps_on_deviation)
        for p in range(first, last):
            totals = (borrowed(part(dgamma, p)), borrowed(part(dbeta, p)))
            start, stop = p * x.shape[0] // parts, (p + 1) * x.shape[0] // parts
            backward_rows(dy, x, mean, rstd, shape, weights, flows, dx, totals, start, stop)

    return twins(f"row_backward.{formula.name}.{storage.name}", kernel)
