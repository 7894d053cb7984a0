"""The forward kernels of batch norm where elements are left out or have weights.

They compute as the kernels of `columns.moments_kernels` and `columns.kernels`, but add up what the
elements of each channel weigh. Which elements count is said by `keep`, `weights` and `omit`, as in
`column_sums`.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.columns.kernels import coefficients_of_output
from numnorm.backends.cpu.columns.loops import make_masked_output_row
from numnorm.backends.cpu.columns.moments_kernels import SMALLEST_M2
from numnorm.backends.cpu.columns.tile_sums import make_tiles
from numnorm.backends.cpu.compiler.jit import (
    Function,
    Kernel,
    inlined,
    make_function,
    make_kernel,
    shared,
)
from numnorm.backends.cpu.memory.alignment import make_peel
from numnorm.backends.cpu.memory.kernel_arrays import as_flat, make_scratch, window
from numnorm.backends.cpu.memory.nontemporal import (
    fence_after_stores,
    use_nontemporal,
)
from numnorm.backends.cpu.simd.access import full_access, tail_access
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.functions import has_zero, where_at_most
from numnorm.backends.cpu.simd.kept import is_kept, where_kept
from numnorm.backends.cpu.simd.optional import element, part, present, scaled
from numnorm.backends.cpu.simd.vector import make_load, make_zeros, multiply_add, store
from numnorm.backends.cpu.weighted.column_sums import (
    apart,
    counted,
    make_read_selected,
    make_tile_sums,
    of_entry,
)
from numnorm.backends.cpu.weighted.row_forward import make_kept_statistics
from numnorm.backends.formulas.norms import merge_moments, split_sum

_merge_moments, _split_sum = inlined(merge_moments), inlined(split_sum)

# Instead of a variance that vanishes in float64, as 0 would mean a constant channel.
_LEAST = 5e-324


# Moments of a block


@functools.cache
def _make_exact(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``exact(x, selected, begin, row, rows, stride, size)``, slow, in float64.

    It returns weight, mean, mean_lo and m2 of what counts of `size` neighbours in each of `rows`
    rows, for values whose squares leave the range of the compute type. Something must count.
    """
    to_compute = element_type.to_compute

    @inlined
    def weight_of(selected, row, at, value):
        keep, weights, omit = selected
        weight = element(part(of_entry(weights, row), at), 0, 1.0)
        counts = is_kept(part(keep, at), value, omit) and weight > 0.0
        return np.float64(weight) if counts else 0.0

    @shared
    def exact(x, selected, begin, row, rows, stride, size):
        origin, number, first = 0.0, 0.0, 0.0
        for i in range(rows):
            for at in range(begin + i * stride, begin + i * stride + size):
                value = to_compute(x[at])
                weight = weight_of(selected, row + i, at, value)
                if weight > 0.0:
                    # Around the first one, so that a constant channel has exactly that mean.
                    origin = np.float64(value) if number == 0.0 else origin
                    first += weight * (np.float64(value) - origin)
                    number += weight
        mean, mean_lo = _split_sum(origin, first / number)
        first, second, extent = 0.0, 0.0, 0.0
        for i in range(rows):
            for at in range(begin + i * stride, begin + i * stride + size):
                value = to_compute(x[at])
                weight = weight_of(selected, row + i, at, value)
                if weight > 0.0:
                    deviation = np.float64(value) - mean
                    first += weight * deviation
                    second += weight * deviation * deviation
                    extent += abs(deviation)
        m2 = second - first * (first / number)
        if m2 <= 0.0:
            m2 = SMALLEST_M2 if extent > 0.0 else 0.0
        return number, mean, mean_lo, m2

    return exact


def _make_deviations(element_type: ElementType) -> Callable[..., Any]:
    """Return the `make_add` of sums of w, w d and w d**2, with ``d = x - pivot``."""
    to_compute = element_type.to_compute

    def make_add(count, *, is_full):
        read = (full_access(count) if is_full else tail_access(count)).read
        read_selected = make_read_selected(count, is_full=is_full)

        @inlined
        def add(arrays, selected, j, active, coefficients, one, sums):
            number, first, second = sums
            values, pivot = to_compute(read(arrays[0], j, active)), coefficients[0]
            kept, weight = read_selected(selected, j, active)
            weights, counts = counted(kept, weight, values, selected[2], one)
            deviation = where_kept(values - pivot, counts, values, selected[2])
            weighted = scaled(deviation, present(weight, weights))
            return number + weights, first + weighted, multiply_add(weighted, deviation, second)

        return add

    return make_add


def _make_origins(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled function that stores the first value of each channel that counts.

    It is 0 where nothing does. `found` are zeros at first, and ones beyond the width.
    """
    count, real = element_type.lanes, element_type.compute_type
    load, zeros, to_compute = make_load(count), make_zeros(real, count), element_type.to_compute

    # One access for all vectors: few rows are read, and a second one would double the code.
    read, read_selected = tail_access(count).read, make_read_selected(count, is_full=False)

    @shared
    def origins(x, selected, begin, row, rows, stride, width, found, pivots):
        keep, weights, omit = selected
        one = zeros() + real(1)
        for t in range(0, width, count):
            active, number, pivot, i = min(count, width - t), load(found, t), zeros(), 0
            while i < rows and has_zero(number):
                j = begin + i * stride + t
                values, of_row = to_compute(read(x, j, active)), of_entry(weights, row + i)
                kept, weight = read_selected((keep, of_row, omit), j, active)
                new_weights, counts = counted(kept, weight, values, omit, one)
                new = where_kept(values, counts, values, omit)
                pivot = pivot + where_at_most(new, number, real(0))
                number = number + new_weights
                i += 1
            store(pivots, t, pivot)

    return origins


def _make_improve(element_type: ElementType, tile: int) -> Callable[..., Any]:
    """Return a compiled ``improve(pivots, totals, width, far)``.

    It moves the pivots to the means that sums give: all pivots, or with `far` those that are more
    than a standard deviation away. It returns how many moved.
    """
    real = element_type.compute_type

    @inlined
    def improve(pivots, totals, width, far):
        moved = 0
        for t in range(width):
            number, first, second = totals[t], totals[tile + t], totals[2 * tile + t]
            from_pivot = first / number if number > 0.0 else 0.0
            if number > 0.0 and (not far or 2.0 * first * from_pivot > second):
                pivots[t] = real(pivots[t] + from_pivot)
                moved += 1
        return moved

    return improve


def make_masked_moments_across(element_type: ElementType) -> Kernel:
    """Return a kernel ``(x, keep, weights, omit, block, table)`` for ``x (outer, channels)``.

    The ``table (4, blocks, channels)`` gets weight, mean, mean_lo and m2 of each block of ``block``
    rows.
    """
    tile, real = tuning.COLUMN_TILE_ELEMENTS, element_type.compute_type
    size, smallest = np.int64(tile), element_type.smallest_variance
    tile_sums = make_tile_sums(element_type, _make_deviations(element_type), tile)
    origins = _make_origins(element_type)
    improve, exact = _make_improve(element_type, tile), _make_exact(element_type)
    tiling_of, tile_of = make_tiles(element_type)
    scratch, scratch_of_totals = make_scratch(real, 4 * tile), make_scratch(np.float64, 3 * tile)

    @inlined
    def clear(values):
        for t in range(3 * tile):
            values[t] = 0

    @inlined
    def add_rows(x, selected, begin, row, rows, stride, width, pivots, sums, totals):
        given = (x,), selected, begin, row, rows, stride, width, (pivots,)
        tile_sums(*given, sums, totals, 0, size)

    @inlined
    def tile_moments(x, selected, begin, row, rows, stride, width, pivots, sums, totals, found):
        counts, mean, mean_lo, m2 = found
        clear(sums)
        for t in range(width, tile):
            sums[t] = 1
        origins(x, selected, begin, row, rows, stride, width, sums, pivots)
        clear(sums)
        clear(totals)
        few = min(rows, np.int64(tuning.MASKED_PIVOT_ROWS))
        add_rows(x, selected, begin, row, few, stride, width, pivots, sums, totals)
        improve(pivots, totals, width, False)
        clear(totals)
        add_rows(x, selected, begin, row, rows, stride, width, pivots, sums, totals)
        if improve(pivots, totals, width, True) > 0:
            clear(totals)
            add_rows(x, selected, begin, row, rows, stride, width, pivots, sums, totals)
        for t in range(width):
            number, first, second = totals[t], totals[tile + t], totals[2 * tile + t]
            from_pivot = first / number if number > 0.0 else 0.0
            counts[t], m2[t] = number, second - first * from_pivot
            mean[t], mean_lo[t] = _split_sum(np.float64(pivots[t]), from_pivot)
        for t in range(width):
            if counts[t] > 0.0 and not smallest * counts[t] < m2[t] < np.inf:
                of_channel = exact(x, selected, begin + t, row, rows, stride, 1)
                counts[t], mean[t], mean_lo[t], m2[t] = of_channel

    def kernel(x, keep, weights, omit, block, table, first, last):
        count, channels = x.shape
        selected = keep, weights, omit
        step = table.shape[1] * channels
        peel, tiles = tiling_of(x, size)
        values, totals, flat = scratch(), scratch_of_totals(), as_flat(x)
        pivots, sums = window(values, 0, size), window(values, size, 3 * size)
        for p in range(first, last):
            start = p * block
            rows = min(block, count - start)
            for k in range(tiles):
                c, width = tile_of(k, channels, size, peel)
                begin, at = start * channels + c, p * channels + c
                found = (
                    window(table, at, width),
                    window(table, step + at, width),
                    window(table, 2 * step + at, width),
                    window(table, 3 * step + at, width),
                )
                given = flat, selected, begin, start, rows, channels, width
                tile_moments(*given, pivots, sums, totals, found)

    return make_kernel(f"masked.column_moments.across.{element_type.name}", kernel)


def make_masked_moments_along(element_type: ElementType) -> Kernel:
    """Return the kernel of `make_masked_moments_across` for ``x (outer, channels, inner)``."""
    statistics, exact = make_kept_statistics(element_type, centred=True), _make_exact(element_type)
    real, smallest = element_type.compute_type, element_type.smallest_variance

    @inlined
    def segment_moments(x, selected, i, begin, size):
        keep, weights, omit = selected
        each, of_all = apart(of_entry(weights, i))
        of_segment = window(keep, begin, size), window(each, begin, size), omit
        number, mean_hi, mean_lo, m2 = statistics(window(x, begin, size), of_segment, real(1))
        if number > 0.0 and not smallest * number < m2 < np.inf:
            given = x, (keep, each, omit), begin
            number, mean, lost, m2 = exact(*given, 0, 1, size, size)
        else:
            mean, lost = _split_sum(np.float64(mean_hi), np.float64(mean_lo))
        if number > 0.0 and of_all > 0.0:
            return number * of_all, (mean, lost, m2 * of_all)
        return 0.0, (0.0, 0.0, 0.0)

    def kernel(x, keep, weights, omit, block, table, first, last):
        outer, channels, inner = x.shape
        flat, selected = as_flat(x), (keep, weights, omit)
        for k in range(first, last):
            p, c = k // channels, k % channels
            count, moments = 0.0, (0.0, 0.0, 0.0)
            for i in range(p * block, min((p + 1) * block, outer)):
                begin = (i * channels + c) * inner
                number, found = segment_moments(flat, selected, i, begin, inner)
                count, moments = _merged(count, moments, number, found)
            table[0, p, c] = count
            table[1, p, c], table[2, p, c], table[3, p, c] = moments

    return make_kernel(f"masked.column_moments.along.{element_type.name}", kernel)


@inlined
def _merged(count: float, moments: Any, other_count: float, other: Any) -> Any:
    """Return the weight and the moments of two groups of values, each of which may be empty."""
    if count > 0.0 and other_count > 0.0:
        moments = _merge_moments(count, moments, other_count, other, 1.0)
    elif other_count > 0.0:
        moments = other
    return count + other_count, moments


# Moments of all blocks


@inlined
def store_statistics(moments: Any, statistics: Any) -> None:
    """Store mean and variance of each channel, NaN where nothing has weight.

    The rows of `moments` are the sum of the weights, mean, mean_lo and m2.
    """
    total, mean, m2 = moments[0], moments[1], moments[3]
    means, variances = statistics[0], statistics[1]
    for c in range(total.size):
        seen = total[c] > 0.0
        variance = m2[c] / total[c] if seen else np.nan
        means[c] = mean[c] if seen else np.nan
        variances[c] = _LEAST if m2[c] > 0.0 and variance == 0.0 else variance


def make_masked_fold() -> Function:
    """Return a function ``(table, moments, statistics)``, which merges the blocks of a table.

    The rows of `moments` become weight, mean, mean_lo and m2. The rows of `statistics` become mean
    and variance.
    """

    def fold(table, moments, statistics):
        for k in range(4):
            of_block, row = table[k], moments[k]
            for c in range(row.size):
                row[c] = of_block[0, c]
        counts, means, lows, m2s = table[0], table[1], table[2], table[3]
        for p in range(1, counts.shape[0]):
            for c in range(counts.shape[1]):
                before = moments[1, c], moments[2, c], moments[3, c]
                other = means[p, c], lows[p, c], m2s[p, c]
                moments[0, c], merged = _merged(moments[0, c], before, counts[p, c], other)
                moments[1, c], moments[2, c], moments[3, c] = merged
        store_statistics(moments, statistics)

    return make_function("masked.column_fold", fold)


# Results


def make_masked_forward_across(element_type: ElementType) -> Kernel:
    """Return the kernel of `make_forward_across` with a mask.

    Its arguments are ``x, keep, omit``, then ``coefficients`` and ``scaled``, the fill values of
    what the mask leaves out and of NaN, ``y`` and ``parts``.
    """
    output_row, peel_of = make_masked_output_row(element_type), make_peel(element_type)

    def kernel(x, keep, omit, coefficients, scaled, fill, missing, y, parts, first, last):
        count, width = x.shape
        arrays, y = (as_flat(x), keep, omit), as_flat(y)
        scale, mean_hi, factor, offset = coefficients_of_output(coefficients, scaled)
        given = scale, mean_hi, factor, offset, fill, missing
        nontemporal = use_nontemporal(y, width, peel_of(y, width))
        for i in range(first * count // parts, last * count // parts):
            output_row(arrays, i * width, width, given, 0, y, nontemporal)
        fence_after_stores(nontemporal)

    return make_kernel(f"masked.column_forward.across.{element_type.name}", kernel)


def make_masked_forward_along(element_type: ElementType) -> Kernel:
    """Return the kernel of `make_masked_forward_across` for ``x (outer, channels, inner)``."""
    output_row, peel_of = make_masked_output_row(element_type), make_peel(element_type)

    def kernel(x, keep, omit, coefficients, scaled, fill, missing, y, parts, first, last):
        outer, channels, inner = x.shape
        arrays, y = (as_flat(x), keep, omit), as_flat(y)
        scale, mean_hi, factor, offset = coefficients_of_output(coefficients, scaled)
        segments = outer * channels
        nontemporal = use_nontemporal(y, inner, peel_of(y, inner))
        for t in range(first * segments // parts, last * segments // parts):
            c = t % channels
            of_channel = part(scale, c), mean_hi[c], factor[c], offset[c], fill, missing
            output_row(arrays, t * inner, inner, of_channel, 0, y, nontemporal)
        fence_after_stores(nontemporal)

    return make_kernel(f"masked.column_forward.along.{element_type.name}", kernel)
