"""Sums over the rows of a tile: as many neighbouring channels as the first-level cache holds.

Two sums are taken for each channel. They lie in memory while the rows go by, and several rows are
added up before their sum is added to them: to load and store the sums once a row takes longer
than to read the row.
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
from numnorm.backends.cpu.statistics.accumulators import ROWS_BETWEEN_FLUSHES, flush


def tile_of_gradients(element_type: ElementType) -> int:
    """Return up to how many channels are one tile where the sums of a gradient are taken.

    Whole rows are read faster than parts of them. Elements of two bytes, for which memory keeps
    nobody waiting, gain nothing.
    """
    tile = tuning.COLUMN_TILE_ELEMENTS
    if not has_large_l1d() or element_type.storage_dtype.itemsize <= 2:
        return tile
    return max(tile, tuning.GRADIENT_TILE_MOST_BYTES // element_type.compute_dtype.itemsize)


@functools.cache
def make_tiles(
    element_type: ElementType, whole: int = tuning.COLUMN_TILE_ELEMENTS
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return compiled ``(cut, tile_of)``, which cut rows of channels into tiles.

    Rows of up to `whole` channels are one tile, but for what lies before a line.

    ``cut(x)`` returns how many channels lie before a cache line, where all rows lie alike, and
    how many tiles there are then; ``tile_of(k, channels, peel)`` returns the first channel and
    the number of channels of one. The head comes last, when its lines are in cache.
    """
    at_lines = peels_to_alignment(element_type)

    @inlined
    def most(channels):
        return whole if channels <= whole else tuning.COLUMN_TILE_ELEMENTS

    @inlined
    def cut(x):
        size = most(x.shape[1])
        wide = x.shape[1] * x.itemsize >= tuning.COLUMN_TILE_PEEL_LEAST_ROW_BYTES
        peel = common_peel(x, x.shape[1]) if at_lines and wide else 0
        return peel, (x.shape[1] - peel + size - 1) // size + (1 if peel > 0 else 0)

    @inlined
    def tile_of(k, channels, peel):
        size = most(channels)
        start = peel + k * size
        return (start, min(size, channels - start)) if start < channels else (0, peel)

    return cut, tile_of


@functools.cache
def make_fill(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``fill(target, source, start, width)``, converted, with zeros behind."""
    to_compute, count = element_type.to_compute, element_type.lanes
    masked_load = make_masked_load(count)

    @inlined
    def fill(target, source, start, width):
        for t in range(0, width, count):
            store(target, t, to_compute(masked_load(source, start + t, 0, width - t)))

    return fill


def _make_add_lanes(
    element_type: ElementType, add: Callable[..., Any], rows: int, one_by_one: bool
) -> Callable[..., Any]:
    """Return a compiled function that adds up some rows, in lanes, and adds that to the sums.

    Or it adds each of them to the sums, `one_by_one`.
    """
    load, zeros = (
        make_load(element_type.lanes),
        make_zeros(element_type.compute_type, element_type.lanes),
    )

    @inlined
    def add_lanes(arrays, i, j, tail, coefficients, t, sums):
        of_rows = zeros(), zeros()
        for r in range(rows):
            of_rows = add(arrays, i + r, j, tail, coefficients, t, of_rows)
        store(sums[0], t, load(sums[0], t) + of_rows[0])
        store(sums[1], t, load(sums[1], t) + of_rows[1])

    @inlined
    def add_each(arrays, i, j, tail, coefficients, t, sums):
        here = load(sums[0], t), load(sums[1], t)
        for r in range(rows):
            here = add(arrays, i + r, j, tail, coefficients, t, here)
        store(sums[0], t, here[0])
        store(sums[1], t, here[1])

    return add_each if one_by_one else add_lanes


def _make_add_rows(
    element_type: ElementType,
    make_add: Callable[..., Any],
    rows: int,
    nontemporal: bool,
    one_by_one: bool,
) -> Callable[..., Any]:
    """Return a compiled function that adds `rows` rows of a tile to its sums."""
    count = element_type.lanes
    all_lanes = full_access(count, ahead=rows, near=True, nontemporal=nontemporal)
    add_all = _make_add_lanes(element_type, make_add(all_lanes), rows, one_by_one)
    add_first = _make_add_lanes(element_type, make_add(tail_access(count)), rows, one_by_one)

    @inlined
    def add_rows(arrays, i, channel, width, coefficients, sums):
        whole = width - width % count
        for t in range(0, whole, count):
            add_all(arrays, i, channel + t, count, coefficients, t, sums)
        if whole < width:
            add_first(arrays, i, channel + whole, width - whole, coefficients, whole, sums)

    return add_rows


def _make_some_rows(
    element_type: ElementType,
    make_add: Callable[..., Any],
    rows: int = tuning.GROUP_ROWS,
    *,
    one_by_one: bool = False,
    nontemporal: bool = False,
) -> Callable[..., Any]:
    """Return a compiled ``some_rows`` of `make_tile_sums`, which reads so many rows at a time."""
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
    """Return compiled ``(some_rows, all_rows)``, which add to a tile's sums.

    ``make_add(access)`` returns a compiled ``add(arrays, i, j, tail, coefficients, t, sums)``: the two
    sums, in lanes, with what the i-th row of each array adds to them, from the elements that the
    access reads at j, and the lanes of the terms at `t`.

    ``some_rows(arrays, start, stop, channel, width, coefficients, sums)`` adds up in the working type,
    and ``all_rows(..., sums, totals)`` in float64 after every few rows, leaving the sums at 0.
    """
    some_rows = _make_some_rows(element_type, make_add)

    @inlined
    def all_rows(arrays, start, stop, channel, width, coefficients, sums, totals):
        for i in range(start, stop, ROWS_BETWEEN_FLUSHES):
            end = min(i + ROWS_BETWEEN_FLUSHES, stop)
            some_rows(arrays, i, end, channel, width, coefficients, sums)
            flush(sums[0], totals[0])
            flush(sums[1], totals[1])

    return some_rows, all_rows


def make_gradient_rows(
    element_type: ElementType, make_add: Callable[..., Any], *, nontemporal: bool = False
) -> Callable[..., Any]:
    """Return a compiled ``some_rows`` like that of `make_tile_sums`, for the sums of a gradient.

    Its `add` may store something, which may be `nontemporal`, after it has added: a store in pieces
    is branches, and between a product and its sum they keep the compiler from making one
    instruction of both.

    A row that is one tile is read faster than several if the first-level cache has room for it, its
    terms and its sums. It is added to the sums by itself; where there is no room, several are read
    at a time, in the same order. The sums of narrower rows take longer to load and store.
    """
    is_alone = _make_is_alone(element_type)
    at_once = 1 if has_large_l1d() else tuning.GROUP_ROWS
    in_groups = _make_some_rows(element_type, make_add, nontemporal=nontemporal)
    one_by_one = _make_some_rows(
        element_type, make_add, at_once, one_by_one=True, nontemporal=nontemporal
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
    """Return a compiled ``is_alone(x)``: whether each row of x is added to sums by itself."""
    itemsize = element_type.storage_dtype.itemsize

    least, most = tuning.GRADIENT_ROW_ALONE_LEAST_BYTES, tuning.GRADIENT_TILE_MOST_BYTES
    return inlined(lambda x: itemsize > 2 and least <= x.shape[1] * itemsize <= most)
