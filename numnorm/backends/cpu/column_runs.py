"""The loops over elements of a channel norm, given the terms of each channel.

The terms are arrays where a loop runs across channels, and numbers where it runs along one. The
scale, and what undoes it, are None where they are 1 for every channel.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.backends.cpu.jit import inlined
from numnorm.backends.cpu.lanes import (
    first_of,
    make_load,
    make_load_first,
    make_zeros,
    store,
    store_first,
    total,
)
from numnorm.backends.cpu.optional_lanes import make_elements, make_first_elements
from numnorm.backends.cpu.row_statistics import STRETCH
from numnorm.backends.cpu.storage import Storage
from numnorm.backends.scalars import channel_gradient, channel_output

_channel_output, _channel_gradient = inlined(channel_output), inlined(channel_gradient)


@functools.cache
def make_output(storage: Storage) -> Callable[..., Any]:
    """Return a compiled ``output(x, scale, high, factor, offset)`` of stored elements."""
    widen, narrow = storage.widen, storage.narrow

    @inlined
    def output(x, scale, high, factor, offset):
        return narrow(_channel_output(widen(x) * scale, high, factor, offset))

    return output


@functools.cache
def make_gradient(storage: Storage) -> Callable[..., Any]:
    """Return a compiled ``gradient(dy, x, *terms)`` of stored elements."""
    widen, narrow = storage.widen, storage.narrow

    @inlined
    def gradient(dy, x, scale, high, rstd, factor, slope, offset, back):
        x = widen(x) * scale
        return narrow(_channel_gradient(widen(dy), x, high, rstd, factor, slope, offset) * back)

    return gradient


@functools.cache
def make_output_run(storage: Storage) -> Callable[..., Any]:
    """Return a compiled ``output_run(x, scale, high, factor, offset, y)``."""
    real, output, count = storage.working, make_output(storage), 2 * storage.lanes
    load, load_first = make_load(count), make_load_first(count)
    elements, first_elements = make_elements(count), make_first_elements(count)

    @inlined
    def output_run(x, scale, high, factor, offset, y):
        one, zero = real(1), real(0)
        whole = x.size - x.size % count
        for j in range(0, whole, count):
            values = output(
                load(x, j),
                elements(scale, j, one),
                elements(high, j, zero),
                elements(factor, j, one),
                elements(offset, j, zero),
            )
            store(y, j, values)
        rest = x.size - whole
        if rest > 0:
            values = output(
                load_first(x, whole, rest),
                first_elements(scale, whole, rest, one),
                first_elements(high, whole, rest, zero),
                first_elements(factor, whole, rest, one),
                first_elements(offset, whole, rest, zero),
            )
            store_first(y, whole, values, rest)

    return output_run


@functools.cache
def make_gradient_run(storage: Storage) -> Callable[..., Any]:
    """Return a compiled ``gradient_run(dy, x, terms, dx)``.

    The terms are ``scale, high, rstd, factor, slope, offset, back``.
    """
    real, gradient, count = storage.working, make_gradient(storage), 2 * storage.lanes
    load, load_first = make_load(count), make_load_first(count)
    elements, first_elements = make_elements(count), make_first_elements(count)

    @inlined
    def gradient_run(dy, x, terms, dx):
        scale, high, rstd, factor, slope, offset, back = terms
        one, zero = real(1), real(0)
        whole = x.size - x.size % count
        for j in range(0, whole, count):
            values = gradient(
                load(dy, j),
                load(x, j),
                elements(scale, j, one),
                elements(high, j, zero),
                elements(rstd, j, one),
                elements(factor, j, one),
                elements(slope, j, zero),
                elements(offset, j, zero),
                elements(back, j, one),
            )
            store(dx, j, values)
        rest = x.size - whole
        if rest > 0:
            values = gradient(
                load_first(dy, whole, rest),
                load_first(x, whole, rest),
                first_elements(scale, whole, rest, one),
                first_elements(high, whole, rest, zero),
                first_elements(rstd, whole, rest, one),
                first_elements(factor, whole, rest, one),
                first_elements(slope, whole, rest, zero),
                first_elements(offset, whole, rest, zero),
                first_elements(back, whole, rest, one),
            )
            store_first(dx, whole, values, rest)

    return gradient_run


@functools.cache
def make_gradient_sums(storage: Storage) -> Callable[..., Any]:
    """Return a compiled ``gradient_sums(dy, x, scale, high, rstd)`` along one channel.

    They are the sums of ``dy * (x * scale - high) * rstd`` and of dy, in float64.
    """
    real, widen, count = storage.working, storage.widen, 2 * storage.lanes
    load, load_first, zeros = make_load(count), make_load_first(count), make_zeros(real, count)

    @inlined
    def stretch_sums(dy, x, start, stop, scale, high, rstd):
        one, two = zeros(), zeros()
        whole = stop - (stop - start) % count
        for j in range(start, whole, count):
            slope = widen(load(dy, j))
            one = one + slope * ((widen(load(x, j)) * scale - high) * rstd)
            two = two + slope
        rest = stop - whole
        if rest > 0:
            slope = widen(load_first(dy, whole, rest))
            xhat = (widen(load_first(x, whole, rest)) * scale - high) * rstd
            one = one + slope * first_of(xhat, rest)
            two = two + slope
        return total(one), total(two)

    @inlined
    def gradient_sums(dy, x, scale, high, rstd):
        sum_of_products, sum_dy = np.float64(0), np.float64(0)
        for start in range(0, x.size, STRETCH):
            stop = min(start + STRETCH, x.size)
            one, two = stretch_sums(dy, x, start, stop, scale, high, rstd)
            sum_of_products += one
            sum_dy += two
        return sum_of_products, sum_dy

    return gradient_sums
