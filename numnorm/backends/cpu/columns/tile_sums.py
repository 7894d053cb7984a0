"""Sums over rows in tiles: neighbouring channels whose sums fit the first-level cache.

Each channel has two sums, which lie in memory: all first sums of a tile, then all second ones.
Several rows are added up in registers before the result is added to the sums: loading and storing
the sums takes longer than reading a row.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.compiler.jit import inlined, shared
from numnorm.backends.cpu.memory.alignment import common_peel, peels_to_alignment
from numnorm.backends.cpu.memory.kernel_arrays import window
from numnorm.backends.cpu.simd.access import full_access, tail_access
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.masked import make_masked_load
from numnorm.backends.cpu.simd.processor import has_large_l1d
from numnorm.backends.cpu.simd.vector import make_load, make_zeros, prefetch_l1, store


def tile_of_gradients(element_type: ElementType) -> int:
    """Return the size of a tile in the loops that sum gradients.

    It is larger than usual with a large first-level cache, because whole rows are read faster than
    parts of rows. 16-bit elements, whose loops do not wait for memory, gain nothing.
    """
    tile = tuning.COLUMN_TILE_ELEMENTS
    if not has_large_l1d() or element_type.storage_dtype.itemsize <= 2:
        return tile
    return max(tile, tuning.GRADIENT_TILE_MOST_BYTES // element_type.compute_dtype.itemsize)


@functools.cache
def make_tiles(element_type: ElementType) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return compiled ``(tiling_of, tile_of)``, which divide the channels of x into tiles.

    ``tiling_of(x, whole_row)`` returns the peel, if it is the same for all rows, else 0, and the
    number of tiles. ``tile_of(k, channels, whole_row, peel)`` returns the first channel and the
    number of channels of tile k. The peel is the last tile, when its cache lines have been loaded.
    The other channels are a single tile if a row has at most `whole_row` channels.
    """
    peels, tile = peels_to_alignment(element_type), np.int64(tuning.COLUMN_TILE_ELEMENTS)

    @inlined
    def tiling_of(x, whole_row):
        channels = x.shape[1]
        size = whole_row if channels <= whole_row else tile
        wide = channels * x.itemsize >= tuning.COLUMN_TILE_PEEL_LEAST_ROW_BYTES
        peel = common_peel(x, channels) if peels and wide else 0
        return peel, (channels - peel + size - 1) // size + (1 if peel > 0 else 0)

    @inlined
    def tile_of(k, channels, whole_row, peel):
        size = whole_row if channels <= whole_row else tile
        start = peel + k * size
        width = size if size < channels - start else channels - start
        return (start, width) if start < channels else (0, peel)

    return tiling_of, tile_of


@functools.cache
def make_fill(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``fill(target, t, source, start, width)``.

    It converts `width` elements of the source from the flat index `start` on and stores them in
    the target from index `t` on. It pads the last vector with zeros.
    """
    to_compute, count = element_type.to_compute, element_type.lanes
    masked_load = make_masked_load(count)

    @inlined
    def fill(target, t, source, start, width):
        for j in range(0, width, count):
            store(target, t + j, to_compute(masked_load(source, start + j, 0, width - j)))

    return fill


@functools.cache
def make_flush(tile: int) -> Callable[..., Any]:
    """Return a compiled ``flush(sums, width, totals, first, second)`` of a tile of this size.

    It adds both sums of `width` channels to the totals from the flat indices `first` and `second`
    on, and sets them to 0.
    """

    @inlined
    def flush(sums, width, totals, first, second):
        # An index that may be negative would prevent vectorization.
        one, other = window(totals, first, width), window(totals, second, width)
        for t in range(width):
            one[t] += sums[t]
            sums[t] = 0
        for t in range(width):
            other[t] += sums[tile + t]
            sums[tile + t] = 0

    return flush


def _make_add_rows(
    element_type: ElementType, make_add: Callable[..., Any], tile: int, nontemporal: bool
) -> Callable[..., Any]:
    """Return a compiled ``add_rows(arrays, j, stride, rows, alone, width, coefficients, sums)``.

    It adds `rows` rows, with the flat index `j` of the first one, to the sums of a tile. It adds up
    the vectors first or, if `alone` is true, adds each of them to the sums.
    """
    count = element_type.lanes
    load, zeros = make_load(count), make_zeros(element_type.compute_type, count)

    def make_add_vectors(access, is_full):
        add = make_add(access)

        @inlined
        def add_vectors(arrays, j, stride, rows, alone, active, coefficients, t, sums):
            added = (load(sums, t), load(sums, tile + t)) if alone else (zeros(), zeros())
            for r in range(rows):
                if is_full:
                    prefetch_l1(arrays[:2], j + (r + rows) * stride)
                added = add(arrays, j + r * stride, active, coefficients, t, added)
            if alone:
                store(sums, t, added[0])
                store(sums, tile + t, added[1])
            else:
                store(sums, t, load(sums, t) + added[0])
                store(sums, tile + t, load(sums, tile + t) + added[1])

        return add_vectors

    add_full = make_add_vectors(full_access(count, nontemporal=nontemporal), True)
    add_tail = make_add_vectors(tail_access(count), False)

    @inlined
    def add_rows(arrays, j, stride, rows, alone, width, coefficients, sums):
        tail = width % count
        full = width - tail
        for t in range(0, full, count):
            add_full(arrays, j + t, stride, rows, alone, tail, coefficients, t, sums)
        if tail > 0:
            add_tail(arrays, j + full, stride, rows, alone, tail, coefficients, full, sums)

    return add_rows


def _make_some_rows(
    element_type: ElementType, make_add: Callable[..., Any], tile: int, *, nontemporal: bool = False
) -> Callable[..., Any]:
    """Return a compiled function like that of `make_gradient_rows`, with two arguments more.

    ``some_rows(..., sums, rows, alone)`` reads `rows` rows at a time, and adds each row to the sums
    by itself if `alone` is true.
    """
    add_rows, single = _make_add_rows(element_type, make_add, tile, nontemporal), np.int64(1)

    @inlined
    def some_rows(arrays, start, stop, stride, channel, width, coefficients, sums, rows, alone):
        grouped = stop - (stop - start) % rows
        for i in range(start, grouped, rows):
            j = i * stride + channel
            add_rows(arrays, j, stride, rows, alone, width, coefficients, sums)
        for i in range(grouped, stop):
            j = i * stride + channel
            add_rows(arrays, j, stride, single, alone, width, coefficients, sums)

    return some_rows


def make_tile_sums(
    element_type: ElementType, make_add: Callable[..., Any], tile: int
) -> Callable[..., Any]:
    """Return a compiled ``all_rows``, which adds rows to the two float64 totals of a tile.

    ``make_add(access)`` returns a compiled ``add(arrays, j, active, coefficients, t, sums)``. It
    reads a vector of each flat array from the index j on, and the coefficients from t on, and
    returns the two vectors of sums with their contributions added.

    ``all_rows(arrays, start, stop, stride, channel, width, coefficients, sums, totals)`` takes
    arrays with `stride` channels. It adds up in the compute type, and flushes the sums to the
    totals every few rows.
    """
    some_rows, flush = _make_some_rows(element_type, make_add, tile), make_flush(tile)
    rows, alone = np.int64(tuning.GROUP_ROWS), np.bool_(False)

    @shared
    def all_rows(arrays, start, stop, stride, channel, width, coefficients, sums, totals):
        for i in range(start, stop, tuning.ROWS_BETWEEN_FLUSHES):
            end = i + tuning.ROWS_BETWEEN_FLUSHES
            end = end if end < stop else stop
            some_rows(arrays, i, end, stride, channel, width, coefficients, sums, rows, alone)
            flush(sums, width, totals, 0, tile)

    return all_rows


def make_gradient_rows(
    element_type: ElementType, make_add: Callable[..., Any], *, nontemporal: bool = False
) -> Callable[..., Any]:
    """Return a compiled function that adds rows to the two sums of a tile, for a gradient.

    ``some_rows(arrays, start, stop, stride, channel, width, coefficients, sums)`` has the arguments
    of `make_tile_sums` and no totals. Its `add` may store a result, `nontemporal` or not, but only
    after it has added: the branches of a masked store between a product and its sum would prevent a
    fused multiply-add.

    A row of medium width is one tile and is added to the sums by itself. A small first-level cache
    has no room for it: there, groups of rows are read, and added in the same order. Narrower rows
    are added up in groups, because their sums take longer to load and store.
    """
    group, itemsize = np.int64(tuning.GROUP_ROWS), element_type.storage_dtype.itemsize
    rows = np.int64(1) if has_large_l1d() else group
    least = tuning.GRADIENT_ROW_ALONE_LEAST_BYTES // itemsize
    most = tuning.GRADIENT_TILE_MOST_BYTES // itemsize if itemsize > 2 else 0
    tile = tile_of_gradients(element_type)
    add = _make_some_rows(element_type, make_add, tile, nontemporal=nontemporal)
    together, alone = np.bool_(False), np.bool_(True)

    @inlined
    def some_rows(arrays, start, stop, stride, channel, width, coefficients, sums):
        if least <= stride <= most:
            add(arrays, start, stop, stride, channel, width, coefficients, sums, rows, alone)
        else:
            add(arrays, start, stop, stride, channel, width, coefficients, sums, group, together)

    return some_rows
