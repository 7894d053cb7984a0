"""The forward kernel of every norm whose statistics are shared by a row."""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.backends.contract import Formula
from numnorm.backends.cpu.borrowed import borrowed, make_scratch
from numnorm.backends.cpu.jit import Twins, inlined, stand_alone, twins
from numnorm.backends.cpu.line_heads import make_head
from numnorm.backends.cpu.optional import part
from numnorm.backends.cpu.processor import has_avx512
from numnorm.backends.cpu.row_pairs import make_are_paired, make_pair
from numnorm.backends.cpu.row_statistics import make_rescale, make_statistics
from numnorm.backends.cpu.row_tiles import make_tile_sums, narrow_width, room_for_sums
from numnorm.backends.cpu.runs import channel_of, make_apply, next_channel
from numnorm.backends.cpu.saved_statistics import save
from numnorm.backends.cpu.short_rows import make_short_forward
from numnorm.backends.cpu.storage import Storage
from numnorm.backends.cpu.streaming import after_stores, is_streamed
from numnorm.backends.scalars import inverse_deviation

_inverse_deviation = inlined(inverse_deviation)


@functools.cache
def make_spread(formula: Formula, storage: Storage) -> Callable[..., Any]:
    """Return a compiled ``spread(row, scaling)``: a scale, and the row's statistics there.

    It is the scale at which the row's squares are in range, which is 1 for nearly every row.
    """
    real, smallest = storage.working, storage.smallest_variance
    statistics = make_statistics(storage, centred=formula.centred)
    rescale = make_rescale(storage)

    @inlined
    def spread(row, scaling):
        eps, eps_on_deviation, count = scaling
        scale, share = real(1), np.float64(1) / count
        high, low, m2 = statistics(row, scale)
        total = m2 * share + eps + eps_on_deviation * eps_on_deviation
        if not smallest < total < np.inf:
            scale = rescale(row, max(math.sqrt(eps), eps_on_deviation))
            high, low, m2 = statistics(row, scale)
            root = math.sqrt(eps) * scale
            eps = root * root
        eps_on_deviation = np.float64(eps_on_deviation) * scale
        rstd = _inverse_deviation(m2 * share, eps, eps_on_deviation)
        return scale, high, low, rstd

    return spread


def _make_apply_row(
    formula: Formula, storage: Storage, count: int, *, followed: bool = False
) -> Callable[..., Any]:
    """Return a compiled function that stores a row's result, run by run.

    If the row is `followed`, the next one is asked for meanwhile.
    """
    real = storage.working
    apply_run = make_apply(formula, storage, count, followed=followed)

    @inlined
    def apply_row(x, i, statistics, cut, first_channel, weights, y, streamed):
        scale, high, low, rstd = statistics
        found = scale, high, low, real(rstd)
        run, runs, channels = cut
        c = first_channel
        if runs == 1:
            here = part(weights[0], c), part(weights[1], c)
            apply_run(x[i], x.shape[1], found, here, y[i], streamed)
            return
        for p in range(runs):
            left, right = p * run, (p + 1) * run
            here = part(weights[0], c), part(weights[1], c)
            apply_run(x[i][left:right], x.shape[1], found, here, y[i][left:right], streamed)
            c = c + 1 if c + 1 < channels else 0

    return apply_row


def _make_one_row(formula: Formula, storage: Storage) -> Callable[..., Any]:
    """Return a compiled function that normalizes a row of any width."""
    spread = make_spread(formula, storage)
    # The processors that have AVX-512 may have a slow third-level cache (4096 x 1024 float32:
    # 1.4 ms, 1.56 if the next row is not asked for); one with AVX2 alone gained nothing.
    apply_row = _make_apply_row(formula, storage, 2 * storage.lanes, followed=has_avx512())

    @inlined
    def one_row(x, i, scaling, cut, channel, weights, y, saved, streamed):
        found = spread(x[i], scaling)
        apply_row(x, i, found, cut, channel, weights, y, streamed)
        save(saved, i, found)

    return one_row


def _make_tile(formula: Formula, storage: Storage) -> Callable[..., Any]:
    """Return a compiled function that normalizes up to as many narrow rows as there are lanes."""
    real, lanes, smallest = storage.working, storage.lanes, storage.smallest_variance
    tile_sums = make_tile_sums(storage, centred=formula.centred)
    spread, apply_row = make_spread(formula, storage), _make_apply_row(formula, storage, lanes)
    room = room_for_sums(storage)

    @inlined
    def statistics(width, number, scaling, sums, scales, lows, rstds):
        """Store each row's statistics, with scale 0 if they need another pass; return if any do."""
        eps, eps_on_deviation, count = scaling
        of_width, of_count = np.float64(1) / width, np.float64(1) / count
        poor = 0
        for t in range(lanes):
            first, second = np.float64(sums[0][t]), np.float64(sums[1][t])
            low = first * of_width
            m2 = second - first * low
            total = m2 * of_count + eps + eps_on_deviation * eps_on_deviation
            fine = (first * low <= m2) & (smallest < total) & (total < np.inf)
            scales[t] = real(1) if fine else real(0)
            poor += 0 if fine or t >= number else 1
            lows[t] = real(low)
            variance = m2 * of_count if fine else 0.0
            rstds[t] = _inverse_deviation(variance, eps, eps_on_deviation)
        return poor > 0

    def centred_mean(highs, lows, t):
        return highs[t], lows[t]

    def no_mean(highs, lows, t):
        return None, None

    mean_of = inlined(centred_mean if formula.centred else no_mean)

    @inlined
    def tile(x, start, number, scaling, cut, channel, weights, y, saved, scratch, rstds):
        highs, lows, scales = scratch[room:], scratch[room + lanes :], scratch[room + 2 * lanes :]
        sums = scratch[room + 3 * lanes :], scratch[room + 4 * lanes :]
        tile_sums(x[start : start + number], number, scratch, highs, sums)
        poor = statistics(x.shape[1], number, scaling, sums, scales, lows, rstds)
        for t in range(number):
            high, low = mean_of(highs, lows, t)
            found = scales[t], high, low, rstds[t]
            if poor and scales[t] == real(0):
                found = spread(x[start + t], scaling)
            apply_row(x, start + t, found, cut, channel, weights, y, False)
            save(saved, start + t, found)
            channel = next_channel(channel, cut)
        return channel

    return tile


def make_row_forward(formula: Formula, storage: Storage) -> Twins:
    """Return the forward kernel of a formula.

    It takes ``x (N, D), gamma, beta, run, channels, eps, eps_on_deviation, count, y, saved,
    parts``: `count` is the divisor of the squares, `saved` is ``(2, N)`` for mean (the root mean
    square, where there is none) and rstd, or ``(2, 0)`` to save nothing, and `parts` is how many
    parts the rows are cut into.
    """
    real, lanes = storage.working, storage.lanes
    narrow, head_of = narrow_width(storage), make_head(storage)
    one_row, tile = _make_one_row(formula, storage), _make_tile(formula, storage)
    are_paired, pair = make_are_paired(formula), make_pair(formula, storage, one_row)
    short_rows = make_short_forward(formula, storage, one_row)
    scratch = make_scratch(real, room_for_sums(storage) + 5 * lanes)
    scratch_of_roots = make_scratch(np.float64, lanes)

    @inlined
    def narrow_rows(x, scaling, cut, weights, y, saved, start, stop):
        room, roots = scratch(), scratch_of_roots()
        channel = channel_of(start, cut)
        for i in range(start, stop, lanes):
            number = min(lanes, stop - i)
            channel = tile(x, i, number, scaling, cut, channel, weights, y, saved, room, roots)

    def kernel(
        x, gamma, beta, run, channels, eps, eps_on_deviation, count, y, saved, parts, first, last
    ):
        stand_alone()
        x, y, weights = borrowed(x), borrowed(y), (borrowed(gamma), borrowed(beta))
        scaling, cut = (eps, eps_on_deviation, count), (run, x.shape[1] // run, channels)
        start, stop = first * x.shape[0] // parts, last * x.shape[0] // parts
        if short_rows(x, scaling, cut, weights, y, saved, start, stop):
            return
        if x.shape[1] < narrow:
            narrow_rows(x, scaling, cut, weights, y, saved, start, stop)
        else:
            single = start
            if are_paired(y, cut):
                single = stop - (stop - start) % 2
                for i in range(start, single, 2):
                    pair(x, i, scaling, cut, weights, y, saved)
            channel, streamed = channel_of(single, cut), is_streamed(y, run, head_of(y, run))
            for i in range(single, stop):
                one_row(x, i, scaling, cut, channel, weights, y, saved, streamed)
                channel = next_channel(channel, cut)
            after_stores(streamed)

    return twins(f"row_forward.{formula.name}.{storage.name}", kernel)
