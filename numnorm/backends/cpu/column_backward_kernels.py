"""The gradients of norms whose statistics belong to a channel: first sums, then dx."""

from typing import Any

import numpy as np

from numnorm.backends.cpu.borrowed import borrowed, make_scratch
from numnorm.backends.cpu.column_reading import GROUP, make_is_wide
from numnorm.backends.cpu.column_runs import (
    make_gradient_group,
    make_gradient_row,
    make_gradient_sums,
)
from numnorm.backends.cpu.column_tiles import TILE, make_fill, make_tile_sums
from numnorm.backends.cpu.jit import Twins, inlined, stand_alone, twins
from numnorm.backends.cpu.lanes import make_load
from numnorm.backends.cpu.optional import part, present
from numnorm.backends.cpu.storage import Storage, storage_of
from numnorm.backends.cpu.streaming import after_stores, is_streamed


def make_sums_across(storage: Storage) -> Twins:
    """Return a kernel that sums dy * xhat and dy over each block of ``x (outer, channels)``.

    It takes ``dy, x``, the ``terms`` of `make_centre_terms`, ``block, sums, sums_dy``, the last
    two of shape ``(blocks, channels)``. The first sum is of ``dy * (x * scale - high) * rstd``.
    """
    real, widen = storage.working, storage.widen
    load = make_load(storage.lanes)
    fill = make_fill(storage_of(storage.working_dtype))

    def make_pair(read):
        @inlined
        def pair(arrays, i, j, rest, terms, t):
            dy, x = arrays
            scale, high, rstd = terms
            slope = widen(read(dy[i], j, rest))
            deviation = widen(read(x[i], j, rest)) * load(scale, t) - load(high, t)
            return slope * (deviation * load(rstd, t)), slope

        return pair

    _, all_rows = make_tile_sums(storage, make_pair)
    scratch, scratch_of_totals = make_scratch(real, 5 * TILE), make_scratch(np.float64, 2 * TILE)

    @inlined
    def tile_sums(arrays, rows, channel, width, terms, here, sums, totals):
        for k in range(3):
            fill(here[k], terms[k], channel, width)
        for k in range(2):
            sums[k][:] = 0
            totals[k][:] = 0
        all_rows(arrays, rows[0], rows[1], channel, width, here, sums, totals)

    def kernel(dy, x, terms, block, sums, sums_dy, first, last):
        stand_alone()
        arrays, terms = (borrowed(dy), borrowed(x)), borrowed(terms)
        room, room_of_totals = scratch(), scratch_of_totals()
        here = room[:TILE], room[TILE : 2 * TILE], room[2 * TILE : 3 * TILE]
        working = room[3 * TILE : 4 * TILE], room[4 * TILE :]
        totals = room_of_totals[:TILE], room_of_totals[TILE:]
        for p in range(first, last):
            rows = p * block, min((p + 1) * block, x.shape[0])
            for channel in range(0, x.shape[1], TILE):
                width = min(TILE, x.shape[1] - channel)
                tile_sums(arrays, rows, channel, width, terms, here, working, totals)
                sums[p][channel : channel + width] = totals[0][:width]
                sums_dy[p][channel : channel + width] = totals[1][:width]

    return twins(f"column_sums.across.{storage.name}", kernel)


def make_sums_along(storage: Storage) -> Twins:
    """Return the same kernel for ``x (outer, channels, inner)``."""
    gradient_sums = make_gradient_sums(storage)

    @inlined
    def block_sums(dy, x, start, stop, c, scale, high, rstd):
        sum_of_products, sum_dy = np.float64(0), np.float64(0)
        for i in range(start, stop):
            one, two = gradient_sums(dy[i, c], x[i, c], scale, high, rstd)
            sum_of_products += one
            sum_dy += two
        return sum_of_products, sum_dy

    def kernel(dy, x, terms, block, sums, sums_dy, first, last):
        stand_alone()
        dy, x, terms = borrowed(dy), borrowed(x), borrowed(terms)
        scale, high, rstd = terms[0], terms[1], terms[2]
        channels = x.shape[1]
        for t in range(first, last):
            p, c = t // channels, t % channels
            start, stop = p * block, min((p + 1) * block, x.shape[0])
            one, two = block_sums(dy, x, start, stop, c, scale[c], high[c], rstd[c])
            sums[p, c] = one
            sums_dy[p, c] = two

    return twins(f"column_sums.along.{storage.name}", kernel)


@inlined
def _unpacked(terms: Any, scaled: Any) -> Any:
    scale, back = present(scaled, terms[0]), present(scaled, terms[7])
    return scale, terms[1], terms[2], terms[4], terms[5], terms[6], back


def make_dx_across(storage: Storage) -> Twins:
    """Return a kernel that stores dx for ``x (outer, channels)``.

    It takes ``dy, x``, the ``terms`` of `make_gradient_terms`, ``scaled``, which is None if every
    power of two there is 1, ``dx`` and ``parts``.
    """
    gradient_row, gradient_group = make_gradient_row(storage), make_gradient_group(storage)
    is_wide = make_is_wide(storage)

    def kernel(dy, x, terms, scaled, dx, parts, first, last):
        stand_alone()
        arrays, dx = (borrowed(dy), borrowed(x)), borrowed(dx)
        rows = _unpacked(borrowed(terms), scaled)
        start, stop = first * x.shape[0] // parts, last * x.shape[0] // parts
        grouped = stop - (stop - start) % GROUP if is_wide(x) else start
        streamed = is_streamed(dx, dx.shape[1])
        for i in range(start, grouped, GROUP):
            gradient_group(arrays, i, rows, dx, streamed)
        for i in range(grouped, stop):
            gradient_row((arrays[0][i], arrays[1][i]), rows, dx[i], streamed)
        after_stores(streamed)

    return twins(f"column_dx.across.{storage.name}", kernel)


def make_dx_along(storage: Storage) -> Twins:
    """Return the same kernel for ``x (outer, channels, inner)``."""
    gradient_row = make_gradient_row(storage)

    def kernel(dy, x, terms, scaled, dx, parts, first, last):
        stand_alone()
        dy, x, dx = borrowed(dy), borrowed(x), borrowed(dx)
        scale, high, rstd, factor, slope, offset, back = _unpacked(borrowed(terms), scaled)
        runs, streamed = x.shape[0] * x.shape[1], is_streamed(dx, dx.shape[2])
        for t in range(first * runs // parts, last * runs // parts):
            i, c = t // x.shape[1], t % x.shape[1]
            of_x = part(scale, c), high[c], rstd[c]
            here = (*of_x, factor[c], slope[c], offset[c], part(back, c))
            gradient_row((dy[i, c], x[i, c]), here, dx[i, c], streamed)
        after_stores(streamed)

    return twins(f"column_dx.along.{storage.name}", kernel)
