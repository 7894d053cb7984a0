"""Sums over rows in tiles: neighbouring channels whose sums fit the first-level cache.

Each channel has two sums, which lie in memory. Several rows are added up in registers before the
result is added to the sums: loading and storing the sums takes longer than reading a row.
"""

import functools
from collections.abc import Callable
from typing import Any

from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.memory.alignment import common_peel, peels_to_alignment
from numnorm.backends.cpu.simd.access import full_access, tail_access
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.masked import make_masked_load
from numnorm.backends.cpu.simd.processor import has_large_l1d
from numnorm.backends.cpu.simd.vector import make_load, make_zeros, store
from numnorm.backends.cpu.statistics.accumulators import flush


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
def make_tiles(
    element_type: ElementType, whole_row: int = tuning.COLUMN_TILE_ELEMENTS
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return compiled ``(tiling_of, tile_of)``, which divide the channels of x into tiles.

    ``tiling_of(x)`` returns the peel, if it is the same for all rows, else 0, and the number of
    tiles. ``tile_of(k, channels, peel)`` returns the first channel and the number of channels of
    tile k. The peel is the last tile, when its cache lines have been loaded. The other channels
    are a single tile if a row has at most `whole_row` channels.
    """
    peels = peels_to_alignment(element_type)

    @inlined
    def tile_size(channels):
        return whole_row if channels <= whole_row else tuning.COLUMN_TILE_ELEMENTS

    @inlined
    def tiling_of(x):
        size = tile_size(x.shape[1])
        wide = x.shape[1] * x.itemsize >= tuning.COLUMN_TILE_PEEL_LEAST_ROW_BYTES
        peel = common_peel(x, x.shape[1]) if peels and wide else 0
        return peel, (x.shape[1] - peel + size - 1) // size + (1 if peel > 0 else 0)

    @inlined
    def tile_of(k, channels, peel):
        size = tile_size(channels)
        start = peel + k * size
        return (start, min(size, channels - start)) if start < channels else (0, peel)

    return tiling_of, tile_of


@functools.cache
def make_fill(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``fill(target, source, start, width)``.

    It converts `width` elements of the source from `start` on, and pads the last vector with zeros.
    """
    to_compute, count = element_type.to_compute, element_type.lanes
    masked_load = make_masked_load(count)

    @inlined
    def fill(target, source, start, width):
        for t in range(0, width, count):
            store(target, t, to_compute(masked_load(source, start + t, 0, width - t)))

    return fill


def _make_add_vectors(
    element_type: ElementType, add: Callable[..., Any], rows: int, one_by_one: bool
) -> Callable[..., Any]:
    """Return a compiled function that adds a vector of each of `rows` rows to the sums.

    It adds up the vectors first or, if `one_by_one` is true, adds each of them to the sums.
    """
    lanes = element_type.lanes
    load, zeros = make_load(lanes), make_zeros(element_type.compute_type, lanes)

    @inlined
    def add_together(arrays, i, j, tail, coefficients, t, sums):
        added = zeros(), zeros()
        for r in range(rows):
            added = add(arrays, i + r, j, tail, coefficients, t, added)
        store(sums[0], t, load(sums[0], t) + added[0])
        store(sums[1], t, load(sums[1], t) + added[1])

    @inlined
    def add_each(arrays, i, j, tail, coefficients, t, sums):
        totals = load(sums[0], t), load(sums[1], t)
        for r in range(rows):
            totals = add(arrays, i + r, j, tail, coefficients, t, totals)
        store(sums[0], t, totals[0])
        store(sums[1], t, totals[1])

    return add_each if one_by_one else add_together


def _make_add_rows(
    element_type: ElementType,
    make_add: Callable[..., Any],
    rows: int,
    nontemporal: bool,
    one_by_one: bool,
) -> Callable[..., Any]:
    """Return a compiled function that adds `rows` rows of a tile to its sums."""
    count = element_type.lanes
    access = full_access(count, ahead=rows, l1=True, nontemporal=nontemporal)
    add_full = _make_add_vectors(element_type, make_add(access), rows, one_by_one)
    add_tail = _make_add_vectors(element_type, make_add(tail_access(count)), rows, one_by_one)

    @inlined
    def add_rows(arrays, i, channel, width, coefficients, sums):
        full = width - width % count
        for t in range(0, full, count):
            add_full(arrays, i, channel + t, count, coefficients, t, sums)
        if full < width:
            add_tail(arrays, i, channel + full, width - full, coefficients, full, sums)

    return add_rows


def _make_some_rows(
    element_type: ElementType,
    make_add: Callable[..., Any],
    rows: int = tuning.GROUP_ROWS,
    *,
    one_by_one: bool = False,
    nontemporal: bool = False,
) -> Callable[..., Any]:
    """Return a compiled ``some_rows`` of `make_tile_sums`, which adds `rows` rows at a time."""
    add_group = _make_add_rows(element_type, make_add, rows, nontemporal, one_by_one)
    add_row = _make_add_rows(element_type, make_add, 1, nontemporal, one_by_one)

    @inlined
    def some_rows(arrays, start, stop, channel, width, coefficients, sums):
        grouped = stop - (stop - start) % rows
        for i in range(start, grouped, rows):
            add_group(arrays, i, channel, width, coefficients, sums)
        for i in range(grouped, stop):
            add_row(arrays, i, channel, width, coefficients, sums)

    return some_rows


def make_tile_sums(element_type: ElementType, make_add: Callable[..., Any]) -> Any:
    """Return compiled ``(some_rows, all_rows)``, which add rows to the two sums of a tile.

    ``make_add(access)`` returns a compiled ``add(arrays, i, j, tail, coefficients, t, sums)``. It
    reads row i of each array from channel j on, and the coefficients from t on, and returns the
    two vectors of sums with their contributions added.

    ``some_rows(arrays, start, stop, channel, width, coefficients, sums)`` adds up in the compute
    type. ``all_rows(..., sums, totals)`` flushes the sums to float64 totals every few rows and
    leaves them at 0.
    """
    some_rows = _make_some_rows(element_type, make_add)

    @inlined
    def all_rows(arrays, start, stop, channel, width, coefficients, sums, totals):
        for i in range(start, stop, tuning.ROWS_BETWEEN_FLUSHES):
            end = min(i + tuning.ROWS_BETWEEN_FLUSHES, stop)
            some_rows(arrays, i, end, channel, width, coefficients, sums)
            flush(sums[0], totals[0])
            flush(sums[1], totals[1])

    return some_rows, all_rows


def make_gradient_rows(
    element_type: ElementType, make_add: Callable[..., Any], *, nontemporal: bool = False
) -> Callable[..., Any]:
    """Return a compiled ``some_rows`` like that of `make_tile_sums`, for the sums of a gradient.

    Its `add` may store a result, `nontemporal` or not, but only after it has added: the branches of
    a masked store between a product and its sum would prevent a fused multiply-add.

    A row of medium width is one tile and is added to the sums by itself. A small first-level cache
    has no room for it: there, groups of rows are read, and added in the same order. Narrower rows
    are added up in groups, because their sums take longer to load and store.
    """
    is_alone = _make_is_alone(element_type)
    rows = 1 if has_large_l1d() else tuning.GROUP_ROWS
    in_groups = _make_some_rows(element_type, make_add, nontemporal=nontemporal)
    one_by_one = _make_some_rows(
        element_type, make_add, rows, one_by_one=True, nontemporal=nontemporal
    )

    @inlined
    def some_rows(arrays, start, stop, channel, width, coefficients, sums):
        if is_alone(arrays[0]):
            one_by_one(arrays, start, stop, channel, width, coefficients, sums)
        else:
            in_groups(arrays, start, stop, channel, width, coefficients, sums)

    return some_rows


@functools.cache
def _make_is_alone(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``is_alone(x)``: whether each row of x is added to the sums by itself."""
    itemsize = element_type.storage_dtype.itemsize
    least, most = tuning.GRADIENT_ROW_ALONE_LEAST_BYTES, tuning.GRADIENT_TILE_MOST_BYTES
    return inlined(lambda x: itemsize > 2 and least <= x.shape[1] * itemsize <= most)
