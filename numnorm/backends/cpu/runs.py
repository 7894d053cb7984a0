"""Loops over one run: a stretch of elements that belong to one channel.

A run is a whole row of a layer norm, with a gamma for each element, or one channel of a group or
batch norm, with a gamma for all of it.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.backends.contract import Formula
from numnorm.backends.cpu.jit import inlined
from numnorm.backends.cpu.lanes import (
    first_of,
    make_load,
    make_load_first,
    make_zeros,
    prefetch,
    store,
    store_first,
    total,
)
from numnorm.backends.cpu.optional import make_centre
from numnorm.backends.cpu.optional_lanes import (
    add,
    add_first,
    add_in_turn,
    make_elements,
    make_first_elements,
)
from numnorm.backends.cpu.row_statistics import STRETCH
from numnorm.backends.cpu.storage import Storage
from numnorm.backends.scalars import input_gradient

_input_gradient = inlined(input_gradient)


@inlined
def channel_of(row: int, cut: tuple[int, int, int]) -> int:
    """Return the channel of a row's first run."""
    _, runs, channels = cut
    return row * runs % channels if channels > 1 else 0


@inlined
def next_channel(channel: int, cut: tuple[int, int, int]) -> int:
    """Return that of the next row's first run: `channel_of` without its slow division."""
    _, runs, channels = cut
    channel += runs
    if channel >= channels:
        channel = channel - channels if channel < 2 * channels else channel % channels
    return channel


def make_apply(formula: Formula, storage: Storage, count: int) -> Callable[..., Any]:
    """Return a compiled loop that normalizes, maps and stores, `count` lanes at a time."""
    forward, centred = inlined(formula.forward), make_centre(formula.centred)
    real, widen, narrow = storage.working, storage.widen, storage.narrow
    load, load_first = make_load(count), make_load_first(count)
    elements, first_elements = make_elements(count), make_first_elements(count)

    @inlined
    def mapped(x, statistics, gamma, beta):
        scale, high, low, rstd = statistics
        return narrow(forward(centred(widen(x) * scale, high, low) * rstd, gamma, beta))

    @inlined
    def apply_run(x, statistics, weights, y):
        gamma, beta = weights
        whole = x.size - x.size % count
        for j in range(0, whole, count):
            weight, bias = elements(gamma, j, real(1)), elements(beta, j, real(0))
            store(y, j, mapped(load(x, j), statistics, weight, bias))
        rest = x.size - whole
        if rest > 0:
            weight = first_elements(gamma, whole, rest, real(1))
            bias = first_elements(beta, whole, rest, real(0))
            last = load_first(x, whole, rest)
            store_first(y, whole, mapped(last, statistics, weight, bias), rest)

    return apply_run


def make_gradient_lanes(formula: Formula, storage: Storage, count: int) -> Callable[..., Any]:
    """Return a compiled loop that takes every sum which the gradients need, in `count` lanes.

    These are the sums of g, g * xhat, dy * xhat and dy; the last two are also added, element by
    element, to the accumulators of this run where there are any. What lies `ahead` elements
    further is asked for, unless that is 0.
    """
    backward, centred = inlined(formula.backward), make_centre(formula.centred)
    real, widen, in_line = storage.working, storage.widen, 64 // storage.container.itemsize
    load, load_first = make_load(count), make_load_first(count)
    elements, first_elements = make_elements(count), make_first_elements(count)
    zeros = make_zeros(real, count)

    @inlined
    def gradient_lanes(dy, x, start, stop, ahead, statistics, weights, targets):
        scale, high, low, rstd = statistics
        gamma, beta = weights
        dgamma, dbeta = targets
        sum_g, sum_g_xhat, sum_dy_xhat, sum_dy = zeros(), zeros(), zeros(), zeros()
        whole = stop - (stop - start) % count
        for j in range(start, whole, count):
            if ahead > 0:
                for line in range(j, j + count, in_line):
                    prefetch(dy, line + ahead)
                    prefetch(x, line + ahead)
            slope = widen(load(dy, j))
            xhat = centred(widen(load(x, j)) * scale, high, low) * rstd
            g = backward(slope, xhat, elements(gamma, j, real(1)), elements(beta, j, real(0)))
            sum_g, sum_g_xhat = sum_g + g, sum_g_xhat + g * xhat
            sum_dy_xhat, sum_dy = sum_dy_xhat + slope * xhat, sum_dy + slope
            add(dgamma, j, slope * xhat)
            add(dbeta, j, slope)
        rest = stop - whole
        if rest > 0:
            slope = widen(load_first(dy, whole, rest))
            xhat = centred(widen(load_first(x, whole, rest)) * scale, high, low) * rstd
            xhat = first_of(xhat, rest)
            weight = first_elements(gamma, whole, rest, real(1))
            g = backward(slope, xhat, weight, first_elements(beta, whole, rest, real(0)))
            sum_g, sum_g_xhat = sum_g + g, sum_g_xhat + g * xhat
            sum_dy_xhat, sum_dy = sum_dy_xhat + slope * xhat, sum_dy + slope
            add_first(dgamma, whole, slope * xhat, rest)
            add_first(dbeta, whole, slope, rest)
        return sum_g, sum_g_xhat, sum_dy_xhat, sum_dy

    return gradient_lanes


def make_gradient_lanes_of_four(
    formula: Formula, storage: Storage, count: int
) -> Callable[..., Any]:
    """Return that loop for four whole rows at once, from the i-th on, of a width in whole lanes.

    It reads and writes what is added up for gamma and beta once for the four.
    """
    backward, centred = inlined(formula.backward), make_centre(formula.centred)
    real, widen = storage.working, storage.widen
    load, elements, zeros = make_load(count), make_elements(count), make_zeros(real, count)

    @inlined
    def entering(slope, x, statistics, gamma, beta):
        scale, high, low, rstd = statistics
        xhat = centred(widen(x) * scale, high, low) * rstd
        return backward(slope, xhat, gamma, beta), xhat

    @inlined
    def gradient_lanes_of_four(dy, x, i, found, weights, targets):
        gamma, beta = weights
        a_g, b_g, c_g, d_g = zeros(), zeros(), zeros(), zeros()
        a_x, b_x, c_x, d_x = zeros(), zeros(), zeros(), zeros()
        for j in range(0, x.shape[1], count):
            weight, bias = elements(gamma, j, real(1)), elements(beta, j, real(0))
            a, b = widen(load(dy[i], j)), widen(load(dy[i + 1], j))
            c, d = widen(load(dy[i + 2], j)), widen(load(dy[i + 3], j))
            g, a_xhat = entering(a, load(x[i], j), found[0], weight, bias)
            a_g, a_x = a_g + g, a_x + g * a_xhat
            g, b_xhat = entering(b, load(x[i + 1], j), found[1], weight, bias)
            b_g, b_x = b_g + g, b_x + g * b_xhat
            g, c_xhat = entering(c, load(x[i + 2], j), found[2], weight, bias)
            c_g, c_x = c_g + g, c_x + g * c_xhat
            g, d_xhat = entering(d, load(x[i + 3], j), found[3], weight, bias)
            d_g, d_x = d_g + g, d_x + g * d_xhat
            add_in_turn(targets[0], j, a * a_xhat, b * b_xhat, c * c_xhat, d * d_xhat)
            add_in_turn(targets[1], j, a, b, c, d)
        return (a_g, a_x), (b_g, b_x), (c_g, c_x), (d_g, d_x)

    return gradient_lanes_of_four


def make_gradient_sums(formula: Formula, storage: Storage) -> Callable[..., Any]:
    """Return the same loop over a run of any length, with sums in float64."""
    gradient_lanes = make_gradient_lanes(formula, storage, 2 * storage.lanes)

    @inlined
    def gradient_sums(dy, x, ahead, statistics, weights, targets):
        sum_g, sum_g_xhat = np.float64(0), np.float64(0)
        sum_dy_xhat, sum_dy = np.float64(0), np.float64(0)
        for start in range(0, x.size, STRETCH):
            stop = min(start + STRETCH, x.size)
            g, g_xhat, dy_xhat, slope = gradient_lanes(
                dy, x, start, stop, ahead, statistics, weights, targets
            )
            sum_g += total(g)
            sum_g_xhat += total(g_xhat)
            sum_dy_xhat += total(dy_xhat)
            sum_dy += total(slope)
        return sum_g, sum_g_xhat, sum_dy_xhat, sum_dy

    return gradient_sums


def make_input_gradients(formula: Formula, storage: Storage, count: int) -> Callable[..., Any]:
    """Return a compiled loop that stores dx, `count` lanes at a time."""
    backward, centred = inlined(formula.backward), make_centre(formula.centred)
    real, widen, narrow = storage.working, storage.widen, storage.narrow
    load, load_first = make_load(count), make_load_first(count)
    elements, first_elements = make_elements(count), make_first_elements(count)

    @inlined
    def gradient(dy, x, statistics, gamma, beta, means):
        scale, high, low, rstd = statistics
        xhat = centred(widen(x) * scale, high, low) * rstd
        g = backward(widen(dy), xhat, gamma, beta)
        return narrow(_input_gradient(g, xhat, means[0], means[1], rstd) * scale)

    @inlined
    def input_gradients(dy, x, statistics, weights, means, dx):
        gamma, beta = weights
        whole = x.size - x.size % count
        for j in range(0, whole, count):
            weight, bias = elements(gamma, j, real(1)), elements(beta, j, real(0))
            store(dx, j, gradient(load(dy, j), load(x, j), statistics, weight, bias, means))
        rest = x.size - whole
        if rest > 0:
            weight = first_elements(gamma, whole, rest, real(1))
            bias = first_elements(beta, whole, rest, real(0))
            slope, value = load_first(dy, whole, rest), load_first(x, whole, rest)
            last = gradient(slope, value, statistics, weight, bias, means)
            store_first(dx, whole, last, rest)

    return input_gradients
