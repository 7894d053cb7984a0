"""Loops over one run: a stretch of elements that belong to one channel.

A run is a whole row of a layer norm, with a gamma for each element, or one channel of a group or
batch norm, with a gamma for all of it.

The statistics of a run are ``(scale, mean_hi, mean_lo, rstd)``: its elements times the scale, less
``mean_hi + mean_lo``, times rstd, are normalized. Of nearly all the scale is 1. Gradients of wide rows,
which would be multiplied by it three times, have None for that.
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
from numnorm.backends.cpu.simd.optional import scaled
from numnorm.backends.cpu.simd.optional_vector import (
    add,
    add_product,
    make_load_or_scalar,
    make_masked_elements,
    masked_add,
    masked_add_product,
)
from numnorm.backends.cpu.simd.vector import (
    make_load,
    make_zeros,
    multiply_add,
    prefetch,
    prefetch_l1,
    reduce_sum,
    store,
    store_nontemporal,
)
from numnorm.backends.cpu.statistics.normalize import make_normalized
from numnorm.backends.formulas.norms import input_gradient

_input_gradient = inlined(input_gradient)


@inlined
def channel_of(row: int, segments: tuple[int, int, int]) -> int:
    """Return the channel of a row's first run."""
    _, segment_count, channels = segments
    return row * segment_count % channels if channels > 1 else 0


@inlined
def next_channel(channel: int, segments: tuple[int, int, int]) -> int:
    """Return that of the next row's first run: `channel_of` without its slow division."""
    _, segment_count, channels = segments
    channel += segment_count
    if channel >= channels:
        channel = channel - channels if channel < 2 * channels else channel % channels
    return channel


def make_mapped(formula: Formula, element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled function of elements: normalized, mapped and as they are stored."""
    forward, normalized = inlined(formula.forward), make_normalized(formula.centred)
    to_compute, to_storage = element_type.to_compute, element_type.to_storage

    @inlined
    def mapped(x, statistics, gamma, beta):
        scale, mean_hi, mean_lo, rstd = statistics
        return to_storage(
            forward(normalized(to_compute(x), scale, mean_hi, mean_lo, rstd), gamma, beta)
        )

    return mapped


def make_apply(
    formula: Formula, element_type: ElementType, count: int, *, followed: bool
) -> Callable[..., Any]:
    """Return a compiled loop that normalizes, maps and stores, `count` lanes at a time.

    ``apply_segment(x, ahead, statistics, weights, y, nontemporal)`` is of one run, whose result may be
    streamed. If it is `followed`, what lies `ahead` elements further is asked for.
    """
    real, mapped = element_type.compute_type, make_mapped(formula, element_type)
    load, masked_load = make_load(count), make_masked_load(count)
    load_or_scalar, masked_elements = make_load_or_scalar(count), make_masked_elements(count)
    peel_of, at_lines = make_peel(element_type), each_peels_to_alignment(element_type)
    of_line = LINE // element_type.storage_dtype.itemsize

    def make_whole_lanes(put):
        @inlined
        def whole_lanes(x, ahead, line, whole, statistics, weights, y):
            gamma, beta = weights
            for j in range(line, whole, count):
                if followed:
                    for near in range(j, j + count, of_line):
                        prefetch(x, near + ahead)
                weight, bias = load_or_scalar(gamma, j, real(1)), load_or_scalar(beta, j, real(0))
                put(y, j, mapped(load(x, j), statistics, weight, bias))

        return whole_lanes

    store_whole, store_nontemporal_full = (
        make_whole_lanes(store),
        make_whole_lanes(store_nontemporal),
    )

    @inlined
    def store_those(x, statistics, weights, y, j, mean_lo, mean_hi):
        weight = masked_elements(weights[0], j, mean_lo, mean_hi, real(1))
        bias = masked_elements(weights[1], j, mean_lo, mean_hi, real(0))
        values = masked_load(x, j, mean_lo, mean_hi)
        masked_store(y, j, mapped(values, statistics, weight, bias), mean_lo, mean_hi)

    @inlined
    def apply_segment(x, ahead, statistics, weights, y, nontemporal):
        line = min(peel_of(y, y.size), y.size)
        if at_lines and line > 0:
            store_those(x, statistics, weights, y, line - count, count - line, count)
        whole = y.size - (y.size - line) % count
        if nontemporal:
            store_nontemporal_full(x, ahead, line, whole, statistics, weights, y)
        else:
            store_whole(x, ahead, line, whole, statistics, weights, y)
        if whole < y.size:
            store_those(x, statistics, weights, y, whole, 0, y.size - whole)

    return apply_segment


def make_apply_pair(formula: Formula, element_type: ElementType, count: int) -> Callable[..., Any]:
    """Return that loop for two whole rows at once, with the same weights."""
    real, mapped = element_type.compute_type, make_mapped(formula, element_type)
    load, masked_load = make_load(count), make_masked_load(count)
    load_or_scalar, masked_elements = make_load_or_scalar(count), make_masked_elements(count)
    peel_of, at_lines = make_peel(element_type), each_peels_to_alignment(element_type)

    @inlined
    def store_those(x, statistics, weights, y, j, mean_lo, mean_hi):
        weight = masked_elements(weights[0], j, mean_lo, mean_hi, real(1))
        bias = masked_elements(weights[1], j, mean_lo, mean_hi, real(0))
        a, b = masked_load(x[0], j, mean_lo, mean_hi), masked_load(x[1], j, mean_lo, mean_hi)
        masked_store(y[0], j, mapped(a, statistics[0], weight, bias), mean_lo, mean_hi)
        masked_store(y[1], j, mapped(b, statistics[1], weight, bias), mean_lo, mean_hi)

    @inlined
    def apply_pair(x, statistics, weights, y):
        gamma, beta = weights
        size = x[0].size
        line = min(peel_of(y[0], size), size)
        if at_lines and line > 0:
            store_those(x, statistics, weights, y, line - count, count - line, count)
        whole = size - (size - line) % count
        for j in range(line, whole, count):
            weight, bias = load_or_scalar(gamma, j, real(1)), load_or_scalar(beta, j, real(0))
            store(y[0], j, mapped(load(x[0], j), statistics[0], weight, bias))
            store(y[1], j, mapped(load(x[1], j), statistics[1], weight, bias))
        if whole < size:
            store_those(x, statistics, weights, y, whole, 0, size - whole)

    return apply_pair


def _make_entering(formula: Formula, element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled function of elements: what enters the gradients of their row, and xhat."""
    backward, normalized = inlined(formula.backward), make_normalized(formula.centred)
    to_compute = element_type.to_compute

    @inlined
    def entering(grad, x, statistics, gamma, beta):
        scale, mean_hi, mean_lo, rstd = statistics
        xhat = normalized(to_compute(x), scale, mean_hi, mean_lo, rstd)
        return backward(grad, xhat, gamma, beta), xhat

    return entering


def _make_summing(formula: Formula, element_type: ElementType) -> tuple[Any, Any]:
    """Return compiled functions that add lanes of elements, or some of them, to a run's sums.

    The sums are those of g, g * xhat, dy * xhat and dy; the last two are also added, element by
    element, to the accumulators of this run where there are any.
    """
    entering, backward = _make_entering(formula, element_type), inlined(formula.backward)
    real, to_compute, normalized = (
        element_type.compute_type,
        element_type.to_compute,
        make_normalized(formula.centred),
    )
    count = element_type.lanes
    load, masked_load = make_load(count), make_masked_load(count)
    load_or_scalar, masked_elements = make_load_or_scalar(count), make_masked_elements(count)

    @inlined
    def added(sums, g, grad, xhat):
        of_g_xhat = multiply_add(g, xhat, sums[1])
        return sums[0] + g, of_g_xhat, multiply_add(grad, xhat, sums[2]), sums[3] + grad

    @inlined
    def sum_all(sums, dy, x, statistics, weights, targets, j):
        weight, bias = (
            load_or_scalar(weights[0], j, real(1)),
            load_or_scalar(weights[1], j, real(0)),
        )
        grad = to_compute(load(dy, j))
        g, xhat = entering(grad, load(x, j), statistics, weight, bias)
        add_product(targets[0], j, grad, xhat)
        add(targets[1], j, grad)
        return added(sums, g, grad, xhat)

    @inlined
    def sum_some(sums, dy, x, statistics, weights, targets, j, mean_lo, mean_hi):
        scale, mean_high, mean_low, rstd = statistics
        weight = masked_elements(weights[0], j, mean_lo, mean_hi, real(1))
        bias = masked_elements(weights[1], j, mean_lo, mean_hi, real(0))
        grad = to_compute(masked_load(dy, j, mean_lo, mean_hi))
        value = normalized(
            to_compute(masked_load(x, j, mean_lo, mean_hi)), scale, mean_high, mean_low, rstd
        )
        xhat = select_lanes(value, mean_lo, mean_hi)
        masked_add_product(targets[0], j, grad, xhat, mean_lo, mean_hi)
        masked_add(targets[1], j, grad, mean_lo, mean_hi)
        return added(sums, backward(grad, xhat, weight, bias), grad, xhat)

    return sum_all, sum_some


@functools.cache
def make_gradient_lanes(
    formula: Formula, element_type: ElementType, *, near: bool = False
) -> Callable[..., Any]:
    """Return a compiled loop that takes every sum which the gradients need, in lanes.

    It begins with the `peel` elements that lie before the first cache line, in the last lanes:
    what one lane adds up, in which order, is then the same without a head, but for the number of
    the lane. The `reduce_sum` of all lanes is the same too, as it adds those that are half of them
    apart, on a circle. What lies `ahead` elements further is asked for, unless that is 0, in the
    first-level cache if it is to be `near`.
    """
    prefetch_ahead = prefetch_l1 if near else prefetch
    sum_all, sum_some = _make_summing(formula, element_type)
    # Twice as many would leave AVX2 no register for the row's statistics.
    count = element_type.lanes
    zeros, of_line = (
        make_zeros(element_type.compute_type, count),
        LINE // element_type.storage_dtype.itemsize,
    )

    @inlined
    def gradient_lanes(dy, x, start, stop, peel, ahead, statistics, weights, targets):
        sums = zeros(), zeros(), zeros(), zeros()
        peel = min(peel, stop - start)
        line = start + peel
        if peel > 0:
            j = line - count
            sums = sum_some(sums, dy, x, statistics, weights, targets, j, count - peel, count)
        whole = stop - (stop - line) % count
        for j in range(line, whole, count):
            if ahead > 0:
                for line_here in range(j, j + count, of_line):
                    prefetch_ahead(dy, line_here + ahead)
                    prefetch_ahead(x, line_here + ahead)
            sums = sum_all(sums, dy, x, statistics, weights, targets, j)
        if whole < stop:
            sums = sum_some(sums, dy, x, statistics, weights, targets, whole, 0, stop - whole)
        return sums

    return gradient_lanes


@functools.cache
def make_gradient_sums(formula: Formula, element_type: ElementType) -> Callable[..., Any]:
    """Return the same loop over a run of any length, with sums in float64."""
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
def make_input_gradients(formula: Formula, element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled loop that stores dx, lanes at a time, after `peel` elements.

    All but these and the last few may be streamed.
    """
    real, to_compute, to_storage, count = (
        element_type.compute_type,
        element_type.to_compute,
        element_type.to_storage,
        element_type.lanes,
    )
    entering = _make_entering(formula, element_type)
    load, masked_load = make_load(count), make_masked_load(count)
    load_or_scalar, masked_elements = make_load_or_scalar(count), make_masked_elements(count)

    @inlined
    def gradient(dy, x, statistics, gamma, beta, means):
        g, xhat = entering(to_compute(dy), x, statistics, gamma, beta)
        scale, _, _, rstd = statistics
        return to_storage(scaled(_input_gradient(g, xhat, means[0], means[1], rstd), scale))

    def make_whole_lanes(put):
        @inlined
        def whole_lanes(dy, x, line, whole, statistics, weights, means, dx):
            gamma, beta = weights
            for j in range(line, whole, count):
                weight, bias = load_or_scalar(gamma, j, real(1)), load_or_scalar(beta, j, real(0))
                put(dx, j, gradient(load(dy, j), load(x, j), statistics, weight, bias, means))

        return whole_lanes

    store_whole, store_nontemporal_full = (
        make_whole_lanes(store),
        make_whole_lanes(store_nontemporal),
    )

    @inlined
    def store_those(dy, x, statistics, weights, means, dx, j, mean_lo, mean_hi):
        weight = masked_elements(weights[0], j, mean_lo, mean_hi, real(1))
        bias = masked_elements(weights[1], j, mean_lo, mean_hi, real(0))
        grad, value = masked_load(dy, j, mean_lo, mean_hi), masked_load(x, j, mean_lo, mean_hi)
        masked_store(
            dx, j, gradient(grad, value, statistics, weight, bias, means), mean_lo, mean_hi
        )

    @inlined
    def input_gradients(dy, x, peel, statistics, weights, means, dx, nontemporal=False):
        line = min(peel, x.size)
        if line > 0:
            j = line - count
            store_those(dy, x, statistics, weights, means, dx, j, count - line, count)
        whole = x.size - (x.size - line) % count
        if nontemporal:
            store_nontemporal_full(dy, x, line, whole, statistics, weights, means, dx)
        else:
            store_whole(dy, x, line, whole, statistics, weights, means, dx)
        if whole < x.size:
            store_those(dy, x, statistics, weights, means, dx, whole, 0, x.size - whole)

    return input_gradients
