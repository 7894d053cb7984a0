"""The kernels of the gradients of batch norm where elements are left out or have weights.

They compute what `columns.kernels` does for whole channels: the sums of each channel, and then dx.
The weights of a channel's elements are summed, too. `keep`, `weights` and `omit` say which elements
count, as in `column_sums`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.columns.kernels import coefficients_of_gradient
from numnorm.backends.cpu.columns.loops import make_masked_gradient_row
from numnorm.backends.cpu.columns.tile_sums import make_fill, make_tiles
from numnorm.backends.cpu.compiler.jit import Kernel, inlined, make_kernel
from numnorm.backends.cpu.memory.alignment import make_peel
from numnorm.backends.cpu.memory.kernel_arrays import as_flat, make_scratch, window
from numnorm.backends.cpu.memory.nontemporal import fence_after_stores, use_nontemporal_gradient
from numnorm.backends.cpu.simd.access import full_access, tail_access
from numnorm.backends.cpu.simd.element_type import ElementType, element_type_of
from numnorm.backends.cpu.simd.kept import where_kept
from numnorm.backends.cpu.simd.optional import part
from numnorm.backends.cpu.simd.vector import multiply_add
from numnorm.backends.cpu.weighted.column_sums import (
    counted,
    make_read_selected,
    make_segment_sums,
    make_tile_sums,
    of_entry,
)


def _make_products(element_type: ElementType) -> Callable[..., Any]:
    """Return the `make_add` of sums of dy * xhat, dy and the weights."""
    to_compute = element_type.to_compute

    def make_add(count, *, is_full):
        read = (full_access(count) if is_full else tail_access(count)).read
        read_selected = make_read_selected(count, is_full=is_full)

        @inlined
        def add(arrays, selected, j, active, coefficients, one, sums):
            (scale, mean_hi, rstd), omit = coefficients, selected[2]
            products, sum_dy, number = sums
            grad, values = to_compute(read(arrays[0], j, active)), read(arrays[1], j, active)
            values = to_compute(values)
            kept, weight = read_selected(selected, j, active)
            xhat = where_kept((values * scale - mean_hi) * rstd, kept, values, omit)
            grad = where_kept(grad, kept, values, omit)
            weights, _ = counted(kept, weight, values, omit, one)
            return multiply_add(grad, xhat, products), sum_dy + grad, number + weights

        return add

    return make_add


def make_masked_sums_across(element_type: ElementType) -> Kernel:
    """Return the kernel of `make_sums_across` with a mask or weights.

    Its arguments are ``dy, x, keep, weights, omit, coefficients, block`` and ``sums (3, blocks,
    channels)``, the last of which are the weights of the elements that count.
    """
    tile, real = tuning.COLUMN_TILE_ELEMENTS, element_type.compute_type
    size, fill = np.int64(tile), make_fill(element_type_of(element_type.compute_dtype))
    tile_sums = make_tile_sums(element_type, _make_products(element_type), tile)
    tiling_of, tile_of = make_tiles(element_type)
    scratch = make_scratch(real, 6 * tile)

    def kernel(dy, x, keep, weights, omit, coefficients, block, sums, first, last):
        count, channels = x.shape
        arrays, selected, values = (as_flat(dy), as_flat(x)), (keep, weights, omit), scratch()
        table, totals, step = as_flat(coefficients), as_flat(sums), sums.shape[1] * channels
        of_tile, loaded = window(values, 0, 3 * size), window(values, 3 * size, 3 * size)
        given = window(loaded, 0, size), window(loaded, size, size), window(loaded, 2 * size, size)
        for t in range(3 * size):
            of_tile[t] = 0
        peel, tiles = tiling_of(x, size)
        for p in range(first, last):
            for k in range(3):
                total = window(totals, k * step + p * channels, channels)
                for c in range(channels):
                    total[c] = 0
            start, stop = p * block, min((p + 1) * block, count)
            # All channels of a few rows, not a few channels of all rows: pages are read whole.
            for row in range(start, stop, tuning.ROWS_BETWEEN_FLUSHES):
                rows = min(tuning.ROWS_BETWEEN_FLUSHES, stop - row)
                for number in range(tiles):
                    c, width = tile_of(number, channels, size, peel)
                    for k in range(3):
                        fill(loaded, k * size, table, k * coefficients.shape[1] + c, width)
                    rest = row, rows, channels, width, given, of_tile, totals
                    begin, at = row * channels + c, p * channels + c
                    tile_sums(arrays, selected, begin, *rest, at, step)

    return make_kernel(f"masked.column_sums.across.{element_type.name}", kernel)


def make_masked_sums_along(element_type: ElementType) -> Kernel:
    """Return the kernel of `make_masked_sums_across` for ``x (outer, channels, inner)``."""
    segment_sums = make_segment_sums(element_type, _make_products(element_type))

    def kernel(dy, x, keep, weights, omit, coefficients, block, sums, first, last):
        outer, channels, inner = x.shape
        arrays = as_flat(dy), as_flat(x)
        for t in range(first, last):
            p, c = t // channels, t % channels
            given = coefficients[0, c], coefficients[1, c], coefficients[2, c]
            product, sum_dy, number = 0.0, 0.0, 0.0
            for i in range(p * block, min((p + 1) * block, outer)):
                selected, begin = (keep, of_entry(weights, i), omit), (i * channels + c) * inner
                one, two, three = segment_sums(arrays, selected, begin, inner, given)
                product += one
                sum_dy += two
                number += three
            sums[0, p, c], sums[1, p, c], sums[2, p, c] = product, sum_dy, number

    return make_kernel(f"masked.column_sums.along.{element_type.name}", kernel)


def make_masked_dx_across(element_type: ElementType) -> Kernel:
    """Return the kernel of `make_dx_across` with a mask or weights.

    Its arguments are ``dy, x, keep, weights, omit``, then ``coefficients`` and ``scaled``, ``dx``
    and ``parts``.
    """
    gradient_row, peel_of = make_masked_gradient_row(element_type), make_peel(element_type)

    def kernel(dy, x, keep, weights, omit, coefficients, scaled, dx, parts, first, last):
        count, width = x.shape
        dy, x, dx = as_flat(dy), as_flat(x), as_flat(dx)
        given = coefficients_of_gradient(coefficients, scaled)
        nontemporal = use_nontemporal_gradient(dx, width, peel_of(dx, width))
        for i in range(first * count // parts, last * count // parts):
            arrays = dy, x, keep, of_entry(weights, i), omit
            gradient_row(arrays, i * width, width, given, 0, dx, nontemporal)
        fence_after_stores(nontemporal)

    return make_kernel(f"masked.column_dx.across.{element_type.name}", kernel)


def make_masked_dx_along(element_type: ElementType) -> Kernel:
    """Return the kernel of `make_masked_dx_across` for ``x (outer, channels, inner)``."""
    gradient_row, peel_of = make_masked_gradient_row(element_type), make_peel(element_type)

    def kernel(dy, x, keep, weights, omit, coefficients, scaled, dx, parts, first, last):
        outer, channels, inner = x.shape
        dy, x, dx = as_flat(dy), as_flat(x), as_flat(dx)
        given = coefficients_of_gradient(coefficients, scaled)
        scale, mean_hi, rstd, factor, xhat_factor, offset, back = given
        segments = outer * channels
        nontemporal = use_nontemporal_gradient(dx, inner, peel_of(dx, inner))
        for t in range(first * segments // parts, last * segments // parts):
            i, c = t // channels, t % channels
            arrays = dy, x, keep, of_entry(weights, i), omit
            stats = part(scale, c), mean_hi[c], rstd[c]
            of_channel = (*stats, factor[c], xhat_factor[c], offset[c], part(back, c))
            gradient_row(arrays, t * inner, inner, of_channel, 0, dx, nontemporal)
        fence_after_stores(nontemporal)

    return make_kernel(f"masked.column_dx.along.{element_type.name}", kernel)
