"""The forward kernel of every norm whose statistics are shared by a row."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import prange

from numnorm.backends.contract import Norm
from numnorm.backends.cpu.borrowed import borrowed
from numnorm.backends.cpu.jit import Twins, elementwise, stand_alone, twins
from numnorm.backends.cpu.optional import centred, element, joined, part, scaled
from numnorm.backends.cpu.row_statistics import make_magnitude, make_statistics
from numnorm.backends.cpu.storage import Storage
from numnorm.backends.scalars import inverse_deviation

_inverse_deviation = elementwise(inverse_deviation)


def make_apply(forward: Callable[..., Any], storage: Storage, working: type) -> Callable[..., Any]:
    """Return a compiled loop that normalizes, maps and stores a row's runs of elements.

    A run is a stretch of elements that belong to one channel: a whole row of a layer norm, with
    a gamma for each element, or one channel of a group norm, with a gamma for all of it.
    """
    forward = elementwise(forward)
    widen, narrow = storage.widen, storage.narrow
    real = working

    @elementwise
    def apply_run(x, scale, high, low, rstd, gamma, beta, y):
        for j in range(x.size):
            xhat = centred(real(scaled(widen(x[j]), scale)), high, low) * rstd
            y[j] = narrow(forward(xhat, element(gamma, j, real(1)), element(beta, j, real(0))))

    return apply_run


def _make_apply_row(norm: Norm, storage: Storage, working: type) -> Callable[..., Any]:
    apply_run = make_apply(norm.forward, storage, working)

    @elementwise
    def apply_row(x, y, first_channel, shape, weights, statistics):
        run, channels = shape
        gamma, beta = weights
        scale, high, low, rstd = statistics
        for start in range(0, x.size, run):
            c = (first_channel + start // run) % channels
            apply_run(
                x[start : start + run],
                scale,
                high,
                low,
                rstd,
                part(gamma, c),
                part(beta, c),
                y[start : start + run],
            )

    return apply_row


@elementwise
def _power_of_two_for(largest):
    """Return a power of two that brings `largest` near 1; 1 where there is none."""
    if not 0.0 < largest < np.inf:
        return 1.0
    _, exponent = math.frexp(largest)
    return math.ldexp(1.0, -max(exponent, -1000))


def make_row_forward(norm: Norm, storage: Storage) -> Twins:
    """Return the forward kernel of a norm.

    It takes ``x (N, D), gamma, beta, run, channels, eps, eps_on_deviation, count, y, saved,
    parts``: `count` is the divisor of the squares, `saved` is ``(2, N)`` for mean and rstd, or
    ``(2, 0)`` to save nothing, and `parts` is how many parts the rows are cut into.
    """
    real = storage.working
    statistics = make_statistics(storage.widen, real, centred=norm.centred)
    wide_statistics = make_statistics(storage.widen, np.float64, centred=norm.centred)
    magnitude = make_magnitude(storage.widen)
    apply_row = _make_apply_row(norm, storage, real)
    wide_apply_row = _make_apply_row(norm, storage, np.float64)
    smallest = storage.smallest_variance

    @elementwise
    def save(saved, i, mean, rstd):
        if saved.shape[1] > 0:
            saved[0, i] = mean
            saved[1, i] = rstd

    @elementwise
    def wide_row(x, y, first_channel, shape, weights, scaling):
        # Squares that overflow or vanish in the working type: once more in float64, scaled by a
        # power of two so that float64's own squares do neither.
        eps, eps_on_deviation, count = scaling
        scale = _power_of_two_for(max(magnitude(x), math.sqrt(eps), eps_on_deviation))
        high, low, m2 = wide_statistics(x, scale)
        rstd = _inverse_deviation(m2 / count, eps * scale * scale, eps_on_deviation * scale)
        wide_apply_row(x, y, first_channel, shape, weights, (scale, high, low, rstd))
        return joined(high, low) / scale, rstd * scale

    @elementwise
    def forward_rows(x, y, shape, weights, scaling, saved, start, stop):
        stand_alone()
        x, y, weights = borrowed(x), borrowed(y), (borrowed(weights[0]), borrowed(weights[1]))
        eps, eps_on_deviation, count = scaling
        runs = x.shape[1] // shape[0]
        for i in range(start, stop):
            high, low, m2 = statistics(x[i], None)
            variance = m2 / count
            total = variance + eps + eps_on_deviation * eps_on_deviation
            if smallest < total < np.inf:
                rstd = _inverse_deviation(variance, eps, eps_on_deviation)
                apply_row(x[i], y[i], i * runs, shape, weights, (None, high, low, real(rstd)))
                save(saved, i, joined(high, low), rstd)
            else:
                mean, rstd = wide_row(x[i], y[i], i * runs, shape, weights, scaling)
                save(saved, i, mean, rstd)

    def kernel(x, gamma, beta, run, channels, eps, eps_on_deviation, count, y, saved, parts):
        for p in prange(parts):
            shape, weights = (run, channels), (gamma, beta)
            scaling = (eps, eps_on_deviation, count)
            start, stop = p * x.shape[0] // parts, (p + 1) * x.shape[0] // parts
            forward_rows(x, y, shape, weights, scaling, saved, start, stop)

    return twins(f"row_forward.{norm.name}.{storage.name}", kernel)
