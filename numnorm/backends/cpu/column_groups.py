"""The loops over elements of several wide rows at once, across channels.

The terms of a wide row fill the first-level cache: they are loaded once for all rows of a group.
"""

import functools
from collections.abc import Callable
from typing import Any

from numnorm.backends.cpu.column_runs import make_gradient, make_output
from numnorm.backends.cpu.jit import inlined
from numnorm.backends.cpu.lanes import make_load, make_load_first, prefetch, store, store_first
from numnorm.backends.cpu.optional_lanes import make_elements, make_first_elements
from numnorm.backends.cpu.storage import Storage

GROUP = 8
# The narrowest wide row, in bytes. Of narrower ones several lie in a page, and the processor
# follows one stream in a page better than several.
_WIDE = 1 << 12


@functools.cache
def make_is_wide(storage: Storage) -> Callable[..., Any]:
    """Return a compiled ``is_wide(x)``: whether its rows are worth taking in groups."""
    itemsize = storage.container.itemsize

    @inlined
    def is_wide(x):
        return x.shape[1] * itemsize >= _WIDE

    return is_wide


@functools.cache
def make_output_group(storage: Storage) -> Callable[..., Any]:
    """Return a compiled ``output_group(x, i, scale, high, factor, offset, y)`` of rows from i."""
    real, output, count = storage.working, make_output(storage), storage.lanes
    load, load_first = make_load(count), make_load_first(count)
    elements, first_elements = make_elements(count), make_first_elements(count)

    @inlined
    def output_group(x, i, scale, high, factor, offset, y):
        one, zero, width = real(1), real(0), x.shape[1]
        whole = width - width % count
        for j in range(0, whole, count):
            s, h = elements(scale, j, one), elements(high, j, zero)
            f, o = elements(factor, j, one), elements(offset, j, zero)
            for r in range(GROUP):
                prefetch(x[i + r], j + GROUP * width)
                store(y[i + r], j, output(load(x[i + r], j), s, h, f, o))
        rest = width - whole
        if rest > 0:
            s = first_elements(scale, whole, rest, one)
            h = first_elements(high, whole, rest, zero)
            f = first_elements(factor, whole, rest, one)
            o = first_elements(offset, whole, rest, zero)
            for r in range(GROUP):
                values = output(load_first(x[i + r], whole, rest), s, h, f, o)
                store_first(y[i + r], whole, values, rest)

    return output_group


@functools.cache
def make_gradient_group(storage: Storage) -> Callable[..., Any]:
    """Return a compiled ``gradient_group(dy, x, i, terms, dx)`` of rows from i."""
    real, gradient, count = storage.working, make_gradient(storage), storage.lanes
    load, load_first = make_load(count), make_load_first(count)
    elements, first_elements = make_elements(count), make_first_elements(count)

    @inlined
    def gradient_group(dy, x, i, terms, dx):
        scale, high, rstd, factor, slope, offset, back = terms
        one, zero, width = real(1), real(0), x.shape[1]
        whole = width - width % count
        for j in range(0, whole, count):
            s, h, d = elements(scale, j, one), elements(high, j, zero), elements(rstd, j, one)
            f, k = elements(factor, j, one), elements(slope, j, zero)
            o, b = elements(offset, j, zero), elements(back, j, one)
            for r in range(GROUP):
                prefetch(x[i + r], j + GROUP * width)
                prefetch(dy[i + r], j + GROUP * width)
                values = gradient(load(dy[i + r], j), load(x[i + r], j), s, h, d, f, k, o, b)
                store(dx[i + r], j, values)
        rest = width - whole
        if rest > 0:
            s = first_elements(scale, whole, rest, one)
            h = first_elements(high, whole, rest, zero)
            d = first_elements(rstd, whole, rest, one)
            f = first_elements(factor, whole, rest, one)
            k = first_elements(slope, whole, rest, zero)
            o = first_elements(offset, whole, rest, zero)
            b = first_elements(back, whole, rest, one)
            for r in range(GROUP):
                slopes = load_first(dy[i + r], whole, rest)
                values = load_first(x[i + r], whole, rest)
                last = gradient(slopes, values, s, h, d, f, k, o, b)
                store_first(dx[i + r], whole, last, rest)

    return gradient_group
