"""Narrow rows, forward: as many at a time as there are lanes.

Their statistics are computed side by side, a row to a lane. While their results are stored, the
next tile is asked for: memory would wait otherwise while the statistics are made.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.backends.contract.norms import Formula
from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.memory.borrowed import borrowed, make_scratch
from numnorm.backends.cpu.memory.nontemporal import fence_after_stores
from numnorm.backends.cpu.memory.write_combining import begin, is_carried, make_carry, make_room
from numnorm.backends.cpu.rows.segment_loops import channel_of, make_mapped, next_channel
from numnorm.backends.cpu.rows.tile_sums import make_square_sums, make_tile_sums, room_for_sums
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.functions import (
    has_zero,
    make_converted,
    reciprocal,
    root,
    where_at_most,
)
from numnorm.backends.cpu.simd.masked import make_masked_load, masked_store
from numnorm.backends.cpu.simd.optional import part
from numnorm.backends.cpu.simd.optional_vector import make_load_or_scalar, make_masked_elements
from numnorm.backends.cpu.simd.processor import has_avx512
from numnorm.backends.cpu.simd.vector import load_scalar, make_load, prefetch_l1, store
from numnorm.backends.cpu.statistics.saved import save
from numnorm.backends.formulas.norms import squared_deviations

_squared_deviations = inlined(squared_deviations)


def widest(element_type: ElementType) -> int:
    """Return up to how many elements rows are taken in tiles."""
    size = element_type.storage_dtype.itemsize
    if size > 2:
        return tuning.FORWARD_TILE_MOST_ROW_BYTES // size
    return tuning.FORWARD_TILE_HALF_MOST_ROW_BYTES // size


def _make_statistics(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled function from the sums of a tile's rows to their statistics.

    It returns whether any row needs another pass; the rstd of such a row is 0.
    """
    smallest, largest = element_type.smallest_variance, float(np.finfo(np.float64).max)
    load, double = make_load(element_type.lanes), make_converted(np.float64)
    compute_type = make_converted(element_type.compute_type)

    @inlined
    def statistics(width, scaling, sums, lows, factors, rstds):
        eps, eps_on_deviation, count = scaling
        first, second = double(load(sums[0], 0)), double(load(sums[1], 0))
        mean_lo = first * (1.0 / width)
        lost = first * mean_lo
        m2 = _squared_deviations(second, first, mean_lo)
        variance = m2 * (1.0 / count)
        total = variance + eps + eps_on_deviation * eps_on_deviation
        rstd = reciprocal(root(variance + eps) + eps_on_deviation)
        rstd = where_at_most(where_at_most(rstd, lost, m2), smallest, total)
        rstd = where_at_most(rstd, total, largest)
        store(lows, 0, compute_type(mean_lo))
        store(factors, 0, compute_type(rstd))
        store(rstds, 0, rstd)
        return has_zero(rstd)

    return statistics


def _make_apply_pair(formula: Formula, element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled function that stores the results of two rows of one run each.

    All arrays are flat. As many elements as there are in both are asked for, from `ahead` on.
    """
    real, lanes, mapped = (
        element_type.compute_type,
        element_type.lanes,
        make_mapped(formula, element_type),
    )
    load, masked_load = make_load(lanes), make_masked_load(lanes)
    load_or_scalar, masked_elements = make_load_or_scalar(lanes), make_masked_elements(lanes)

    @inlined
    def apply_pair(x, offsets, ahead, width, found, weights, y, targets):
        gamma, beta = weights
        whole = width - width % lanes
        for j in range(0, whole, lanes):
            prefetch_l1(x, ahead + 2 * j)
            prefetch_l1(x, ahead + 2 * j + lanes)
            weight, bias = load_or_scalar(gamma, j, real(1)), load_or_scalar(beta, j, real(0))
            a = mapped(load(x, offsets[0] + j), found[0], weight, bias)
            b = mapped(load(x, offsets[1] + j), found[1], weight, bias)
            store(y, targets[0] + j, a)
            store(y, targets[1] + j, b)
        n = width - whole
        if n > 0:
            prefetch_l1(x, ahead + 2 * whole)
            prefetch_l1(x, ahead + 2 * whole + lanes)
            weight = masked_elements(gamma, whole, 0, n, real(1))
            bias = masked_elements(beta, whole, 0, n, real(0))
            a = mapped(masked_load(x, offsets[0] + whole, 0, n), found[0], weight, bias)
            b = mapped(masked_load(x, offsets[1] + whole, 0, n), found[1], weight, bias)
            masked_store(y, targets[0] + whole, a, 0, n)
            masked_store(y, targets[1] + whole, b, 0, n)

    return apply_pair


def _with_fixed_widths(
    element_type: ElementType, function: Callable[..., Any], of_one: Callable[..., Any]
) -> Callable[..., Any]:
    """Return a compiled function that does the same, faster for rows of 1, 2 or 4 registers.

    The compiler knows the width, the first argument, there: their loops are no loops. Rows of one
    register may have a function of their own.
    """
    one, two, four = element_type.lanes, 2 * element_type.lanes, 4 * element_type.lanes

    @inlined
    def chosen(width, *arguments):
        if width == one:
            of_one(one, *arguments)
        elif width == two:
            function(two, *arguments)
        elif width == four:
            function(four, *arguments)
        else:
            function(width, *arguments)

    return chosen


def _make_sums(formula: Formula, element_type: ElementType) -> Callable[..., Any]:
    """Return the compiled function of `make_tile_sums` that is best for each width."""
    tile_sums = make_tile_sums(element_type, centred=formula.centred)
    # Halves would have to be widened before they are transposed, and AVX2 has half the registers
    # of a square.
    squares = element_type.storage_dtype == element_type.compute_dtype and has_avx512()
    of_one = make_square_sums(element_type, centred=formula.centred) if squares else tile_sums
    return _with_fixed_widths(element_type, tile_sums, of_one)


def _make_found(formula: Formula, element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled function that collects the statistics of a tile's t-th row."""
    real = element_type.compute_type

    def centred(means, rstds, t):
        return real(1), load_scalar(means[0], t), load_scalar(means[1], t), load_scalar(rstds, t)

    def uncentred(means, rstds, t):
        return real(1), None, None, load_scalar(rstds, t)

    return inlined(centred if formula.centred else uncentred)


def _make_store_tile(formula: Formula, element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled function that stores the results of a tile's rows of one run."""
    lanes, found_of = element_type.lanes, _make_found(formula, element_type)
    apply_pair = _make_apply_pair(formula, element_type)

    @inlined
    def store_tile(width, number, x, at, means, factors, weights, y, to):
        here, ahead = (part(weights[0], 0), part(weights[1], 0)), at + lanes * width
        for t in range(0, number, 2):
            other = t + 1 if t + 1 < number else t  # the last of an odd number is stored twice
            found = found_of(means, factors, t), found_of(means, factors, other)
            offsets = at + t * width, at + other * width
            targets = to + t * width, to + other * width
            apply_pair(x, offsets, ahead + t * width, width, found, here, y, targets)

    return _with_fixed_widths(element_type, store_tile, store_tile)


def make_narrow_rows(
    formula: Formula,
    element_type: ElementType,
    row_statistics: Callable[..., Any],
    apply_row: Callable[..., Any],
) -> Callable[..., Any]:
    """Return a compiled function that normalizes some rows, tile by tile.

    `row_statistics` finds the statistics of a row whose squares overflow or vanish, or whose mean was
    guessed badly; `apply_row` stores the result of a row, also where it has several runs.
    """
    real, lanes, of_sums = (
        element_type.compute_type,
        element_type.lanes,
        room_for_sums(element_type),
    )
    tile_sums = _make_sums(formula, element_type)
    statistics, found_of = _make_statistics(element_type), _make_found(formula, element_type)
    store_tile, (carry, finish) = _make_store_tile(formula, element_type), make_carry(element_type)
    scratch, rooms = (
        make_scratch(real, of_sums + 5 * lanes),
        make_room(element_type, lanes * widest(element_type)),
    )
    scratch_of_rstds = make_scratch(np.float64, lanes)

    @inlined
    def store_singly(x, start, number, scaling, segments, channel, weights, y, means, rstds, saved):
        for t in range(number):
            found = found_of(means, rstds, t)
            if load_scalar(rstds, t) == 0.0:
                found = row_statistics(x[start + t], scaling)
            apply_row(x, start + t, found, segments, channel, weights, y, False)
            save(saved, start + t, found)
            channel = next_channel(channel, segments)
        return channel

    @inlined
    def save_all(start, number, means, rstds, saved):
        if saved[0].size > 0:
            for t in range(number):
                save(saved, start + t, found_of(means, rstds, t))

    @inlined
    def narrow_rows(x, scaling, segments, weights, y, saved, start, stop):
        work, rstds, room = scratch(), scratch_of_rstds(), rooms()
        means, factors = (work[of_sums:], work[of_sums + lanes :]), work[of_sums + 2 * lanes :]
        sums = work[of_sums + 3 * lanes :], work[of_sums + 4 * lanes :]
        flat, flat_y, width = borrowed(x.reshape(-1)), borrowed(y.reshape(-1)), x.shape[1]
        channel, of_one_run = channel_of(start, segments), segments[1] == 1 and segments[2] <= 1
        carried, held = of_one_run and is_carried(y), begin(flat_y, start * width)
        for i in range(start, stop, lanes):
            number, at = min(lanes, stop - i), i * width
            tile_sums(width, number, flat, at, work, means[0], sums)
            poor = statistics(width, scaling, sums, means[1], factors, rstds)
            if of_one_run and not poor:
                target, to = (room, held[1]) if carried else (flat_y, at)
                store_tile(width, number, flat, at, means, factors, weights, target, to)
                save_all(i, number, means, rstds, saved)
                if carried:
                    held = carry(room, held, number * width, flat_y)
            else:
                if carried:
                    finish(room, held, flat_y)
                channel = store_singly(
                    x, i, number, scaling, segments, channel, weights, y, means, rstds, saved
                )
                held = begin(flat_y, at + number * width)
        if carried:
            finish(room, held, flat_y)
        fence_after_stores(carried)

    return narrow_rows
