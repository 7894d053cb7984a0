"""Loops over one segment of a row: contiguous elements of one channel.

A segment is a whole row of a layer norm, with a gamma for each element, or one channel of a group
or batch norm, with one gamma for all its elements.

The statistics of a segment are ``(scale, mean_hi, mean_lo, rstd)``: the normalized element is
``(x * scale - (mean_hi + mean_lo)) * rstd``. The scale is 1 for nearly all rows. The gradients of
wide rows would multiply by it three times, so they have a scale of None instead of 1.

Each loop over aligned arrays has a masked peel, full vectors and a masked tail.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.backends.contract.norms import Formula
from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.memory.alignment import each_peels_to_alignment, make_peel
from numnorm.backends.cpu.memory.placement import LINE
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.masked import make_masked_load, masked_store, select_lanes
from numnorm.backends.cpu.simd.optional import (
    add,
    add_product,
    make_load_or_scalar,
    make_masked_elements,
    masked_add,
    masked_add_product,
    scaled,
)
from numnorm.backends.cpu.simd.processor import has_avx512
from numnorm.backends.cpu.simd.vector import (
    make_load,
    make_zeros,
    multiply_add,
    prefetch,
    prefetch_l1,
    reduce_sum,
    rounded_sum,
    store,
    store_nontemporal,
)
from numnorm.backends.cpu.statistics.normalize import make_normalized
from numnorm.backends.formulas.norms import input_gradient

_input_gradient = inlined(input_gradient)


def _lane_bounds(count: int) -> tuple[Any, Any]:
    """Return 0 and `count` as NumPy integers.

    A helper with literal arguments would be compiled once for each of their values.
    """
    return np.int64(0), np.int64(count)


@inlined
def channel_of(row: int, segments: tuple[int, int, int]) -> int:
    """Return the channel of a row's first segment."""
    _, segment_count, channels = segments
    return row * segment_count % channels if channels > 1 else 0


@inlined
def next_channel(channel: int, segments: tuple[int, int, int]) -> int:
    """Return the channel of the next row's first segment, without the division of `channel_of`."""
    _, segment_count, channels = segments
    channel += segment_count
    if channel >= channels:
        channel = channel - channels if channel < 2 * channels else channel % channels
    return channel


def make_mapped(formula: Formula, element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``mapped(x, statistics, gamma, beta)``: the results of stored elements."""
    forward, normalized = inlined(formula.forward), make_normalized(formula.centred)
    to_compute, to_storage = element_type.to_compute, element_type.to_storage

    @inlined
    def mapped(x, statistics, gamma, beta):
        scale, mean_hi, mean_lo, rstd = statistics
        xhat = normalized(to_compute(x), scale, mean_hi, mean_lo, rstd)
        return to_storage(forward(xhat, gamma, beta))

    return mapped


def make_apply(formula: Formula, element_type: ElementType, *, wide: bool) -> Callable[..., Any]:
    """Return a compiled ``apply_segment(x, ahead, statistics, weights, y, nontemporal)``.

    It stores the result of one segment. Only for `wide` rows does it take two vectors at a time,
    prefetch the elements `ahead` of those it loads, and use non-temporal stores.
    """
    count = 2 * element_type.lanes if wide else element_type.lanes
    # Processors with AVX-512 may have a slow third-level cache: they need the next row prefetched.
    prefetches = wide and has_avx512()
    real, mapped = element_type.compute_type, make_mapped(formula, element_type)
    load, masked_load = make_load(count), make_masked_load(count)
    load_or_scalar, masked_elements = make_load_or_scalar(count), make_masked_elements(count)
    peel_of, peeled = make_peel(element_type), each_peels_to_alignment(element_type)
    line_elements = LINE // element_type.storage_dtype.itemsize

    def make_full_loop(put):
        @inlined
        def full_loop(x, ahead, start, stop, statistics, weights, y):
            gamma, beta = weights
            for j in range(start, stop, count):
                if prefetches:
                    for line in range(j, j + count, line_elements):
                        prefetch(x, line + ahead)
                weight, bias = load_or_scalar(gamma, j, real(1)), load_or_scalar(beta, j, real(0))
                put(y, j, mapped(load(x, j), statistics, weight, bias))

        return full_loop

    store_full, store_nontemporal_full = make_full_loop(store), make_full_loop(store_nontemporal)

    @inlined
    def store_masked(x, statistics, weights, y, j, begin, end):
        weight = masked_elements(weights[0], j, begin, end, real(1))
        bias = masked_elements(weights[1], j, begin, end, real(0))
        values = masked_load(x, j, begin, end)
        masked_store(y, j, mapped(values, statistics, weight, bias), begin, end)

    @inlined
    def apply_segment(x, ahead, statistics, weights, y, nontemporal):
        peel = min(peel_of(y, y.size), y.size)
        if peeled and peel > 0:
            store_masked(x, statistics, weights, y, peel - count, count - peel, count)
        tail = y.size - (y.size - peel) % count
        if wide and nontemporal:
            store_nontemporal_full(x, ahead, peel, tail, statistics, weights, y)
        else:
            store_full(x, ahead, peel, tail, statistics, weights, y)
        if tail < y.size:
            store_masked(x, statistics, weights, y, tail, 0, y.size - tail)

    return apply_segment


def make_apply_pair(formula: Formula, element_type: ElementType, count: int) -> Callable[..., Any]:
    """Return a compiled ``apply_pair(x, statistics, weights, y)``.

    It stores the results of two whole rows with the same weights; x, statistics and y are pairs.
    """
    real, mapped = element_type.compute_type, make_mapped(formula, element_type)
    load, masked_load = make_load(count), make_masked_load(count)
    load_or_scalar, masked_elements = make_load_or_scalar(count), make_masked_elements(count)
    peel_of, peeled = make_peel(element_type), each_peels_to_alignment(element_type)

    @inlined
    def store_masked(x, statistics, weights, y, j, begin, end):
        weight = masked_elements(weights[0], j, begin, end, real(1))
        bias = masked_elements(weights[1], j, begin, end, real(0))
        a, b = masked_load(x[0], j, begin, end), masked_load(x[1], j, begin, end)
        masked_store(y[0], j, mapped(a, statistics[0], weight, bias), begin, end)
        masked_store(y[1], j, mapped(b, statistics[1], weight, bias), begin, end)

    @inlined
    def apply_pair(x, statistics, weights, y):
        gamma, beta = weights
        size = x[0].size
        peel = min(peel_of(y[0], size), size)
        if peeled and peel > 0:
            store_masked(x, statistics, weights, y, peel - count, count - peel, count)
        tail = size - (size - peel) % count
        for j in range(peel, tail, count):
            weight, bias = load_or_scalar(gamma, j, real(1)), load_or_scalar(beta, j, real(0))
            store(y[0], j, mapped(load(x[0], j), statistics[0], weight, bias))
            store(y[1], j, mapped(load(x[1], j), statistics[1], weight, bias))
        if tail < size:
            store_masked(x, statistics, weights, y, tail, 0, size - tail)

    return apply_pair


def _make_g_and_xhat(formula: Formula, element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``g_and_xhat(grad, x, statistics, gamma, beta)``; g is dL/dxhat."""
    backward, normalized = inlined(formula.backward), make_normalized(formula.centred)
    to_compute = element_type.to_compute

    @inlined
    def g_and_xhat(grad, x, statistics, gamma, beta):
        scale, mean_hi, mean_lo, rstd = statistics
        xhat = normalized(to_compute(x), scale, mean_hi, mean_lo, rstd)
        return backward(grad, xhat, gamma, beta), xhat

    return g_and_xhat


def make_added(element_type: ElementType, *, adds: bool) -> Callable[..., Any]:
    """Return a compiled ``added(value, dtotal)`` of stored vectors.

    It is the value, or, if it `adds`, the rounded sum.
    """
    to_compute, to_storage = element_type.to_compute, element_type.to_storage

    def value_alone(value, dtotal):
        return value

    def sum_of_both(value, dtotal):
        return to_storage(rounded_sum(to_compute(value), to_compute(dtotal)))

    return inlined(sum_of_both if adds else value_alone)


def _make_summing(formula: Formula, element_type: ElementType) -> tuple[Any, Any]:
    """Return compiled functions that add a full or a masked vector to a segment's sums.

    ``sum_full(sums, dy, x, statistics, weights, targets, j)`` and ``sum_masked(..., begin, end)``
    return the new sums of g, g * xhat, dy * xhat and dy. The last two are also added to the
    `targets`, element by element, unless these are None.
    """
    g_and_xhat, backward = _make_g_and_xhat(formula, element_type), inlined(formula.backward)
    real, to_compute = element_type.compute_type, element_type.to_compute
    normalized, count = make_normalized(formula.centred), element_type.lanes
    load, masked_load = make_load(count), make_masked_load(count)
    load_or_scalar, masked_elements = make_load_or_scalar(count), make_masked_elements(count)

    @inlined
    def added(sums, g, grad, xhat):
        g_xhat = multiply_add(g, xhat, sums[1])
        return sums[0] + g, g_xhat, multiply_add(grad, xhat, sums[2]), sums[3] + grad

    @inlined
    def sum_full(sums, dy, x, statistics, weights, targets, j):
        weight = load_or_scalar(weights[0], j, real(1))
        bias = load_or_scalar(weights[1], j, real(0))
        grad = to_compute(load(dy, j))
        g, xhat = g_and_xhat(grad, load(x, j), statistics, weight, bias)
        add_product(targets[0], j, grad, xhat)
        add(targets[1], j, grad)
        return added(sums, g, grad, xhat)

    @inlined
    def sum_masked(sums, dy, x, statistics, weights, targets, j, begin, end):
        scale, mean_hi, mean_lo, rstd = statistics
        weight = masked_elements(weights[0], j, begin, end, real(1))
        bias = masked_elements(weights[1], j, begin, end, real(0))
        grad = to_compute(masked_load(dy, j, begin, end))
        values = to_compute(masked_load(x, j, begin, end))
        xhat = select_lanes(normalized(values, scale, mean_hi, mean_lo, rstd), begin, end)
        masked_add_product(targets[0], j, grad, xhat, begin, end)
        masked_add(targets[1], j, grad, begin, end)
        return added(sums, backward(grad, xhat, weight, bias), grad, xhat)

    return sum_full, sum_masked


@functools.cache
def make_gradient_lanes(
    formula: Formula, element_type: ElementType, *, l1: bool = False
) -> Callable[..., Any]:
    """Return a compiled loop that takes the four sums of `_make_summing`, as vectors.

    ``gradient_lanes(dy, x, start, stop, peel, ahead, statistics, weights, targets)`` first takes
    the `peel` elements before the first cache line, in the last lanes. A peel only rotates the
    lanes, and `reduce_sum` adds lane i and lane i + count/2 (modulo count), so a rotation does not
    change the rounded sum. Elements `ahead` are prefetched unless `ahead` is 0, into the
    first-level cache if `l1`.
    """
    prefetch_ahead = prefetch_l1 if l1 else prefetch
    sum_full, sum_masked = _make_summing(formula, element_type)
    # Twice as many would leave AVX2 no register for the row's statistics.
    count = element_type.lanes
    zeros, (no_lane, all_lanes) = make_zeros(element_type.compute_type, count), _lane_bounds(count)
    line_elements = LINE // element_type.storage_dtype.itemsize

    @inlined
    def gradient_lanes(dy, x, start, stop, peel, ahead, statistics, weights, targets):
        sums = zeros(), zeros(), zeros(), zeros()
        peel = min(peel, stop - start)
        aligned = start + peel
        if peel > 0:
            j = aligned - count
            sums = sum_masked(sums, dy, x, statistics, weights, targets, j, count - peel, all_lanes)
        tail = stop - (stop - aligned) % count
        for j in range(aligned, tail, count):
            if ahead > 0:
                for line in range(j, j + count, line_elements):
                    prefetch_ahead(dy, line + ahead)
                    prefetch_ahead(x, line + ahead)
            sums = sum_full(sums, dy, x, statistics, weights, targets, j)
        if tail < stop:
            n = stop - tail
            sums = sum_masked(sums, dy, x, statistics, weights, targets, tail, no_lane, n)
        return sums

    return gradient_lanes


@functools.cache
def make_gradient_sums(formula: Formula, element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``gradient_sums(dy, x, peel, ahead, statistics, weights, targets)``.

    It returns the same four sums of a segment of any length, in float64.
    """
    gradient_lanes = make_gradient_lanes(formula, element_type)

    @inlined
    def gradient_sums(dy, x, peel, ahead, statistics, weights, targets):
        sum_g, sum_g_xhat = np.float64(0), np.float64(0)
        sum_dy_xhat, sum_dy = np.float64(0), np.float64(0)
        for start in range(0, x.size, tuning.SUM_BLOCK_ELEMENTS):
            stop = min(start + tuning.SUM_BLOCK_ELEMENTS, x.size)
            g, g_xhat, dy_xhat, grad = gradient_lanes(
                dy, x, start, stop, peel, ahead, statistics, weights, targets
            )
            sum_g += reduce_sum(g)
            sum_g_xhat += reduce_sum(g_xhat)
            sum_dy_xhat += reduce_sum(dy_xhat)
            sum_dy += reduce_sum(grad)
        return sum_g, sum_g_xhat, sum_dy_xhat, sum_dy

    return gradient_sums


@functools.cache
def make_input_gradients(
    formula: Formula, element_type: ElementType, *, adds: bool = False
) -> Callable[..., Any]:
    """Return a compiled loop that stores dx of a segment, or if it `adds`, dx and dtotal.

    ``input_gradients(dy, x, dtotal, peel, statistics, weights, means, dx, nontemporal=False)``. The
    means are of g and of g * xhat. The full vectors may be stored non-temporally. dtotal is
    None if nothing is added.
    """
    real, count = element_type.compute_type, element_type.lanes
    to_compute, to_storage = element_type.to_compute, element_type.to_storage
    g_and_xhat, added = _make_g_and_xhat(formula, element_type), make_added(element_type, adds=adds)
    load, masked_load = make_load(count), make_masked_load(count)
    load_or_scalar, masked_elements = make_load_or_scalar(count), make_masked_elements(count)
    no_lane, all_lanes = _lane_bounds(count)

    @inlined
    def gradient(dy, x, statistics, gamma, beta, means):
        g, xhat = g_and_xhat(to_compute(dy), x, statistics, gamma, beta)
        scale, _, _, rstd = statistics
        return to_storage(scaled(_input_gradient(g, xhat, means[0], means[1], rstd), scale))

    @inlined
    def full(dy, x, dtotal, statistics, weights, means, j):
        weight = load_or_scalar(weights[0], j, real(1))
        bias = load_or_scalar(weights[1], j, real(0))
        dx = gradient(load(dy, j), load(x, j), statistics, weight, bias, means)
        return added(dx, load_or_scalar(dtotal, j, None))

    @inlined
    def store_masked(dy, x, dtotal, statistics, weights, means, dx, j, begin, end):
        weight = masked_elements(weights[0], j, begin, end, real(1))
        bias = masked_elements(weights[1], j, begin, end, real(0))
        grad, value = masked_load(dy, j, begin, end), masked_load(x, j, begin, end)
        result = gradient(grad, value, statistics, weight, bias, means)
        result = added(result, masked_elements(dtotal, j, begin, end, None))
        masked_store(dx, j, result, begin, end)

    @inlined
    def input_gradients(dy, x, dtotal, peel, statistics, weights, means, dx, nontemporal=False):
        peel = min(peel, x.size)
        if peel > 0:
            j = peel - count
            begin = count - peel
            store_masked(dy, x, dtotal, statistics, weights, means, dx, j, begin, all_lanes)
        tail = x.size - (x.size - peel) % count
        if nontemporal:
            for j in range(peel, tail, count):
                store_nontemporal(dx, j, full(dy, x, dtotal, statistics, weights, means, j))
        else:
            for j in range(peel, tail, count):
                store(dx, j, full(dy, x, dtotal, statistics, weights, means, j))
        if tail < x.size:
            n = x.size - tail
            store_masked(dy, x, dtotal, statistics, weights, means, dx, tail, no_lane, n)

    return input_gradients
