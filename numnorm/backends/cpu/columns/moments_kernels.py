"""Kernels for the mean and the squared deviations of every channel.

Rows are divided into fixed blocks, whose moments are merged in order. For ``x (outer, channels)``
the loops run across the channels; for ``x (outer, channels, inner)`` they run along the contiguous
elements of one channel.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.columns.tile_sums import make_fill, make_tile_sums, make_tiles
from numnorm.backends.cpu.compiler.jit import (
    Function,
    Kernel,
    inlined,
    make_function,
    make_kernel,
    shared,
)
from numnorm.backends.cpu.memory.kernel_arrays import (
    as_flat,
    make_aligned_zeros,
    make_scratch,
    release,
    window,
)
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.vector import make_load, multiply_add
from numnorm.backends.cpu.statistics.row_statistics import make_rescale, make_statistics
from numnorm.backends.formulas.norms import merge_moments, split_sum

_merge_moments, _split_sum = inlined(merge_moments), inlined(split_sum)

# Instead of an m2 that vanishes in float64, as 0 would mean a constant channel.
SMALLEST_M2 = 1e-315


def _make_rescaled(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``rescaled(values, unit, mean, mean_lo, m2)``: the last three.

    If the squares of the values overflowed or vanished, it computes them again from scaled values.
    """
    statistics = make_statistics(element_type, centred=True)
    rescale = make_rescale(element_type)
    smallest = element_type.smallest_variance

    @inlined
    def rescaled(values, unit, mean, mean_lo, m2):
        if smallest * values.size * unit < m2 < np.inf:
            return mean, mean_lo, m2
        scale = rescale(values, 0.0)
        mean_hi, mean_lo, scaled_m2 = statistics(values, scale)
        m2 = scaled_m2 * unit / scale / scale
        if m2 == 0.0 and scaled_m2 > 0.0:
            m2 = SMALLEST_M2
        mean, mean_lo = _split_sum(np.float64(mean_hi), np.float64(mean_lo))
        return mean / scale, mean_lo / scale, m2

    return rescaled


def _make_improve(element_type: ElementType, tile: int) -> Callable[..., Any]:
    """Return a compiled ``improve(pivots, totals, n, width)``, which judges pivots by their sums.

    A pivot is poor if it is more than a standard deviation away from the mean. Poor pivots move to
    the mean. The function returns how many there are.
    """
    real = element_type.compute_type

    @inlined
    def improve(pivots, totals, n, width):
        poor = 0
        for t in range(width):
            first, second = totals[t], totals[tile + t]
            poor += 1 if 2.0 * first * first > second * n else 0
        if poor > 0:
            for t in range(width):
                first, second = totals[t], totals[tile + t]
                if 2.0 * first * first > second * n:
                    pivots[t] = real(pivots[t] + first / n)
        return poor

    return improve


def _make_finish(
    element_type: ElementType, tile: int
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return compiled ``(store_moments, rescale_moments)`` of a tile.

    ``store_moments(pivots, totals, n, unit, moments)`` computes the moments from sums and returns
    how many channels have squares out of range. ``rescale_moments(x, start, stride, n, unit,
    moments)`` computes the moments of these channels again. The first channel has the flat indices
    `start`, `start` + `stride` and so on. The three arrays of `moments` become mean, mean_lo and
    m2 * unit.
    """
    smallest, rescaled = element_type.smallest_variance, _make_rescaled(element_type)
    zeros = make_aligned_zeros(element_type.storage_dtype, 1)

    @inlined
    def store_moments(pivots, totals, n, unit, moments):
        mean, mean_lo, m2 = moments
        wrong, least = 0, smallest * n
        for t in range(mean.size):
            from_pivot = totals[t] / n
            squares = totals[tile + t] - totals[t] * from_pivot
            mean[t], mean_lo[t] = _split_sum(np.float64(pivots[t]), from_pivot)
            m2[t] = squares * unit
            wrong += 0 if (least < squares) & (squares < np.inf) else 1
        return wrong

    @shared
    def rescale_moments(x, start, stride, n, unit, moments):
        mean, mean_lo, m2 = moments
        for t in range(mean.size):
            if not smallest * n * unit < m2[t] < np.inf:
                values = zeros((n,), 0)
                for i in range(n):
                    values[i] = x[start + i * stride + t]
                mean[t], mean_lo[t], m2[t] = rescaled(values, unit, mean[t], mean_lo[t], m2[t])
                release(values)

    return store_moments, rescale_moments


def _make_deviations(element_type: ElementType) -> Callable[..., Any]:
    """Return the `make_add` of `make_tile_sums` for the deviations from the pivot and squares."""
    to_compute, load = element_type.to_compute, make_load(element_type.lanes)

    def make_add(access):
        read = access.read

        @inlined
        def add(arrays, j, active, pivots, t, sums):
            deviation = to_compute(read(arrays[0], j, active)) - load(pivots, t)
            return sums[0] + deviation, multiply_add(deviation, deviation, sums[1])

        return add

    return make_add


def make_moments_across(element_type: ElementType) -> Kernel:
    """Return a kernel ``(x, block, unit, moments)`` for ``x (outer, channels)``.

    A block has ``block`` rows. The table ``moments (3, blocks, channels)`` gets the mean of each
    block, what it lost by rounding, and m2 times ``unit``, a power of two.
    """
    real, fill = element_type.compute_type, make_fill(element_type)
    tile = tuning.COLUMN_TILE_ELEMENTS
    size = np.int64(tile)
    improve = _make_improve(element_type, tile)
    store_moments, rescale_moments = _make_finish(element_type, tile)
    tiling_of, tile_of = make_tiles(element_type)
    all_rows = make_tile_sums(element_type, _make_deviations(element_type), tile)
    scratch, scratch_of_totals = make_scratch(real, 3 * tile), make_scratch(np.float64, 2 * tile)

    @inlined
    def clear(totals):
        for t in range(2 * tile):
            totals[t] = 0

    @inlined
    def tile_moments(x, begin, rows, channels, width, unit, scratch, totals, moments):
        pivots, sums = window(scratch, 0, size), window(scratch, size, 2 * size)
        # The pivots are means of the first rows, relative to the first row, so that the pivot of a
        # constant channel is its value.
        few = rows if rows < tuning.PIVOT_ROWS else tuning.PIVOT_ROWS
        fill(pivots, 0, x, begin, width)
        clear(sums)
        clear(totals)
        all_rows((x,), 0, few, channels, begin, width, pivots, sums, totals)
        for t in range(width):
            pivots[t] += real(totals[t]) / real(few)
        poor, n = 1, float(rows)
        for attempt in range(2):
            if poor > 0:
                clear(totals)
                all_rows((x,), 0, rows, channels, begin, width, pivots, sums, totals)
                poor = improve(pivots, totals, n, width) if attempt == 0 else 0
        if store_moments(pivots, totals, n, unit, moments) > 0:
            rescale_moments(x, begin, channels, rows, unit, moments)

    def kernel(x, block, unit, moments, first, last):
        count, channels = x.shape
        table = moments.shape[1] * channels
        peel, tiles = tiling_of(x, size)
        values, totals, flat = scratch(), scratch_of_totals(), as_flat(x)
        for p in range(first, last):
            start = p * block
            rows = block if block < count - start else count - start
            for k in range(tiles):
                c, width = tile_of(k, channels, size, peel)
                begin, result = start * channels + c, p * channels + c
                mean, mean_lo = (
                    window(moments, result, width),
                    window(moments, table + result, width),
                )
                found = mean, mean_lo, window(moments, 2 * table + result, width)
                tile_moments(flat, begin, rows, channels, width, unit, values, totals, found)

    return make_kernel(f"column_moments.across.{element_type.name}", kernel)


def make_moments_along(element_type: ElementType) -> Kernel:
    """Return a kernel that computes the moments of the channels of ``x (outer, channels, inner)``.

    It has the arguments of the kernel of `make_moments_across`.
    """
    statistics = make_statistics(element_type, centred=True)
    rescaled, real = _make_rescaled(element_type), element_type.compute_type

    @inlined
    def block_moments(x, c, unit):
        moments = np.float64(0), np.float64(0), np.float64(0)
        for i in range(x.shape[0]):
            values = x[i, c]
            mean_hi, mean_lo, m2 = statistics(values, real(1))
            mean, mean_lo = _split_sum(np.float64(mean_hi), np.float64(mean_lo))
            found = rescaled(values, unit, mean, mean_lo, m2 * unit)
            n = float(values.size)
            moments = _merge_moments(i * n, moments, n, found, unit) if i > 0 else found
        return moments

    def kernel(x, block, unit, moments, first, last):
        channels = x.shape[1]
        for t in range(first, last):
            p, c = t // channels, t % channels
            found = block_moments(x[p * block : (p + 1) * block], c, unit)
            moments[0, p, c], moments[1, p, c], moments[2, p, c] = found

    return make_kernel(f"column_moments.along.{element_type.name}", kernel)


def make_fold() -> Function:
    """Return a kernel ``(count, total, block_count, last_count, moments, unit, block_unit)``.

    It merges the moments of all blocks in order into ``total (3, channels)``, the moments of
    ``count`` values. A block has ``block_count`` values a channel, and the last one ``last_count``.
    The m2 in ``total`` are multiplied by ``unit``, the m2 of blocks by ``block_unit``.
    """

    def fold(count, total, block_count, last_count, moments, unit, block_unit):
        mean, mean_lo, m2 = total[0], total[1], total[2]
        means, lows, m2s = moments[0], moments[1], moments[2]
        change = unit / block_unit
        for p in range(means.shape[0]):
            n = block_count if p < means.shape[0] - 1 else last_count
            for c in range(mean.size):
                found = means[p, c], lows[p, c], m2s[p, c] * change
                if count > 0.0:
                    before = mean[c], mean_lo[c], m2[c]
                    found = _merge_moments(count, before, n, found, unit)
                mean[c], mean_lo[c], m2[c] = found
            count += n

    return make_function("column_moments.fold", fold)
