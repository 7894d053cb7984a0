"""Mean and squared deviations of every channel, over fixed blocks that are merged in order.

An array is ``(outer, channels)``, where the loops run across the channels, or
``(outer, channels, inner)``, where they run along each channel's contiguous elements.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.backends.cpu.accumulators import ROWS_BETWEEN_FLUSHES, flush
from numnorm.backends.cpu.borrowed import borrowed
from numnorm.backends.cpu.jit import Twins, inlined, stand_alone, twins
from numnorm.backends.cpu.optional import joined
from numnorm.backends.cpu.row_statistics import make_rescale, make_statistics
from numnorm.backends.cpu.storage import Storage
from numnorm.backends.scalars import merge_moments

_merge_moments = inlined(merge_moments)

# Channels whose sums are held in the first-level cache together.
_TILE = 512
_SMALLEST = 1e-300


def _make_retaken(storage: Storage) -> Callable[..., Any]:
    """Return a compiled ``retaken(values, mean, m2)`` of some values of one channel.

    It returns mean and m2 as they are, or taken once more at a scale at which the squares are in
    range, if they overflowed or vanished.
    """
    statistics = make_statistics(storage, centred=True)
    rescale = make_rescale(storage)
    smallest = storage.smallest_variance

    @inlined
    def retaken(values, mean, m2):
        if smallest * values.size < m2 < np.inf:
            return mean, m2
        scale = rescale(values, 0.0)
        high, low, scaled_m2 = statistics(values, scale)
        m2 = scaled_m2 / scale / scale
        if m2 == 0.0 and scaled_m2 > 0.0:
            m2 = _SMALLEST  # tells it from a constant channel
        return joined(high, low) / scale, m2

    return retaken


def make_moments_across(storage: Storage) -> Twins:
    """Return a kernel ``(x, block, means, m2s)`` for ``x (outer, channels)``."""
    real = storage.working
    widen = storage.widen
    retaken = _make_retaken(storage)
    smallest = storage.smallest_variance

    @inlined
    def add_deviations(x, origin, first):
        for j in range(x.size):
            first[j] += real(widen(x[j])) - origin[j]

    @inlined
    def add_squares(x, origin, first, second):
        for j in range(x.size):
            deviation = real(widen(x[j])) - origin[j]
            first[j] += deviation
            second[j] += deviation * deviation

    @inlined
    def shift(x, start, stop):
        # Around the first row, so that a constant channel gives exactly that constant.
        n = real(x.shape[0])
        origin = np.empty(stop - start, real)
        first = np.zeros(stop - start, real)
        for j in range(stop - start):
            origin[j] = real(widen(x[0][start + j]))
        for i in range(x.shape[0]):
            add_deviations(x[i][start:stop], origin, first)
        for j in range(stop - start):
            origin[j] += first[j] / n
        return origin

    @inlined
    def tile_moments(x, start, stop, mean, m2):
        origin = shift(x, start, stop)
        first, second = np.zeros(stop - start, real), np.zeros(stop - start, real)
        total, total_squares = np.zeros(stop - start), np.zeros(stop - start)
        for begin in range(0, x.shape[0], ROWS_BETWEEN_FLUSHES):
            for i in range(begin, min(begin + ROWS_BETWEEN_FLUSHES, x.shape[0])):
                add_squares(x[i][start:stop], origin, first, second)
            flush(first, total)
            flush(second, total_squares)
        for j in range(stop - start):
            low = total[j] / x.shape[0]
            squares = total_squares[j] - total[j] * low
            centre = np.float64(origin[j]) + low
            if not smallest * x.shape[0] < squares < np.inf:  # spares most channels a copy
                centre, squares = retaken(x[:, start + j].copy(), centre, squares)
            mean[start + j], m2[start + j] = centre, squares

    def kernel(x, block, means, m2s, first, last):
        stand_alone()
        x = borrowed(x)
        for p in range(first, last):
            rows = x[p * block : (p + 1) * block]
            for start in range(0, x.shape[1], _TILE):
                tile_moments(rows, start, min(start + _TILE, x.shape[1]), means[p], m2s[p])

    return twins(f"column_moments.across.{storage.name}", kernel)


def make_moments_along(storage: Storage) -> Twins:
    """Return a kernel ``(x, block, means, m2s)`` for ``x (outer, channels, inner)``."""
    statistics = make_statistics(storage, centred=True)
    retaken = _make_retaken(storage)
    real = storage.working

    @inlined
    def block_moments(x, c):
        mean, m2 = np.float64(0), np.float64(0)
        for i in range(x.shape[0]):
            values = x[i, c]
            high, low, squares = statistics(values, real(1))
            centre, squares = retaken(values, joined(high, low), squares)
            if i == 0:
                mean, m2 = centre, squares
            else:
                n = float(values.size)
                mean, m2 = _merge_moments(i * n, mean, m2, n, centre, squares)
        return mean, m2

    def kernel(x, block, means, m2s, first, last):
        stand_alone()
        x = borrowed(x)
        channels = x.shape[1]
        for t in range(first, last):
            p, c = t // channels, t % channels
            means[p, c], m2s[p, c] = block_moments(x[p * block : (p + 1) * block], c)

    return twins(f"column_moments.along.{storage.name}", kernel)


def make_fold() -> Twins:
    """Return a kernel that merges the moments of all blocks, in order, into ``mean`` and ``m2``.

    It takes ``count, mean, m2, block_count, last_count, means, m2s``.
    """

    def fold(count, mean, m2, block_count, last_count, means, m2s, first, last):
        stand_alone()
        for p in range(first, last):
            n = block_count if p < means.shape[0] - 1 else last_count
            for c in range(mean.size):
                if count == 0.0:
                    mean[c], m2[c] = means[p, c], m2s[p, c]
                else:
                    mean[c], m2[c] = _merge_moments(
                        count, mean[c], m2[c], n, means[p, c], m2s[p, c]
                    )
            count += n

    return twins("column_moments.fold", fold)
