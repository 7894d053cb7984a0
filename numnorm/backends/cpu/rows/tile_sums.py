"""Sums over a tile: as many narrow rows as a vector has lanes.

To reduce the lanes of one sum takes longer than to read a narrow row. So the rows of a tile are
summed one after the other, and then the lanes of all their sums are reduced together. A row's sums
do not depend on the tile that it is in.
"""

import functools
from collections.abc import Callable
from typing import Any

from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.masked import make_masked_load, select_lanes
from numnorm.backends.cpu.simd.reduce_rows import make_reduce_rows
from numnorm.backends.cpu.simd.transpose import make_transpose
from numnorm.backends.cpu.simd.vector import (
    load_scalar,
    make_load,
    make_zeros,
    store,
)


def sums_scratch_size(element_type: ElementType) -> int:
    """Return how many elements of scratch two vectors of sums for each row of a tile take."""
    return 2 * element_type.lanes * element_type.lanes


@inlined
def four_from(t, number):
    """Return row t of a tile and the next three, and the row to continue with.

    If fewer than three follow, they are the row t four times.
    """
    if t + 4 <= number:
        return (t, t + 1, t + 2, t + 3), t + 4
    return (t, t, t, t), t + 1


@inlined
def offsets_of(four, at, width):
    """Return the offsets of four rows of a tile that begins at the element `at`."""
    return (at + four[0] * width, at + four[1] * width, at + four[2] * width, at + four[3] * width)


@inlined
def _added(sums, deviation):
    return sums[0] + deviation, sums[1] + deviation * deviation


def _make_sums_of_four(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``sums_of_four(x, offsets, width, pivots)``.

    It returns, for each of four rows, the vector sums of ``row - pivot`` and of its squares.
    """
    real, to_compute, lanes = element_type.compute_type, element_type.to_compute, element_type.lanes
    load, masked_load, zeros = make_load(lanes), make_masked_load(lanes), make_zeros(real, lanes)

    @inlined
    def sums_of_four(x, offsets, width, pivots):
        sums = zeros(), zeros()
        a, b, c, d = sums, sums, sums, sums
        tail = width - width % lanes
        for j in range(0, tail, lanes):
            a = _added(a, to_compute(load(x, offsets[0] + j)) - pivots[0])
            b = _added(b, to_compute(load(x, offsets[1] + j)) - pivots[1])
            c = _added(c, to_compute(load(x, offsets[2] + j)) - pivots[2])
            d = _added(d, to_compute(load(x, offsets[3] + j)) - pivots[3])
        n = width - tail
        if n > 0:
            a_tail = to_compute(masked_load(x, offsets[0] + tail, 0, n)) - pivots[0]
            b_tail = to_compute(masked_load(x, offsets[1] + tail, 0, n)) - pivots[1]
            c_tail = to_compute(masked_load(x, offsets[2] + tail, 0, n)) - pivots[2]
            d_tail = to_compute(masked_load(x, offsets[3] + tail, 0, n)) - pivots[3]
            a, b = _added(a, select_lanes(a_tail, 0, n)), _added(b, select_lanes(b_tail, 0, n))
            c, d = _added(c, select_lanes(c_tail, 0, n)), _added(d, select_lanes(d_tail, 0, n))
        return a, b, c, d

    return sums_of_four


@functools.cache
def make_row_tile_sums(element_type: ElementType, *, centred: bool) -> Callable[..., Any]:
    """Return a compiled ``tile_sums(width, number, x, at, scratch, pivots, sums)``.

    The tile is `number` rows of a flat x, from the element `at` on. For each row it stores a pivot
    near the row's mean in `pivots`, and the sums of the deviations from the pivot and of their
    squares in the two arrays `sums`. Without centring it leaves the pivots and stores 0 and the
    sum of squares.
    """
    real, to_compute, lanes = element_type.compute_type, element_type.to_compute, element_type.lanes
    half = lanes * lanes
    load, masked_load, reduce = make_load(lanes), make_masked_load(lanes), make_reduce_rows(lanes)
    sums_of_four, zeros = _make_sums_of_four(element_type), make_zeros(real, lanes)

    @inlined
    def store_sums(scratch, t, sums):
        index = t * lanes
        store(scratch, index, sums[0])
        store(scratch, half + index, sums[1])

    @inlined
    def store_four(scratch, four, sums):
        store_sums(scratch, four[0], sums[0])
        store_sums(scratch, four[1], sums[1])
        store_sums(scratch, four[2], sums[2])
        store_sums(scratch, four[3], sums[3])

    @inlined
    def store_pivots(width, number, x, at, scratch, pivots):
        # Around the first element, so that a constant row gives exactly that constant.
        n = min(width, lanes)
        for t in range(number):
            begin = at + t * width
            origin = to_compute(load_scalar(x, begin))
            pivots[t] = origin
            values = to_compute(masked_load(x, begin, 0, n))
            store(scratch, t * lanes, select_lanes(values - origin, 0, n))
        store(pivots, 0, load(pivots, 0) + reduce(scratch) * (real(1) / real(n)))

    @inlined
    def centred_sums(width, number, x, at, scratch, pivots, sums):
        store_pivots(width, number, x, at, scratch, pivots)
        t = 0
        while t < number:
            four, t = four_from(t, number)
            pivot = (
                load_scalar(pivots, four[0]), load_scalar(pivots, four[1]),
                load_scalar(pivots, four[2]), load_scalar(pivots, four[3]),
            )  # fmt: skip
            store_four(scratch, four, sums_of_four(x, offsets_of(four, at, width), width, pivot))
        store(sums[0], 0, reduce(scratch))
        store(sums[1], 0, reduce(scratch[half:]))

    @inlined
    def uncentred_sums(width, number, x, at, scratch, pivots, sums):
        zero = real(0), real(0), real(0), real(0)
        t = 0
        while t < number:
            four, t = four_from(t, number)
            store_four(scratch, four, sums_of_four(x, offsets_of(four, at, width), width, zero))
        store(sums[0], 0, zeros())
        store(sums[1], 0, reduce(scratch[half:]))

    return centred_sums if centred else uncentred_sums


@functools.cache
def make_square_sums(element_type: ElementType, *, centred: bool) -> Callable[..., Any]:
    """Return a compiled ``square_sums(width, number, x, at, scratch, pivots, sums)``.

    It stores what `tile_sums` stores, for rows of one vector. Such a tile is a square: after a
    transpose each lane holds a row, and the columns are added, without any reduction of lanes.
    """
    real, lanes = element_type.compute_type, element_type.lanes
    load, zeros, transpose = make_load(lanes), make_zeros(real, lanes), make_transpose(lanes)
    half, inv_count = lanes * lanes, real(1) / real(lanes)

    @inlined
    def store_columns(number, x, at, scratch):
        if number == lanes:
            transpose(x, at, lanes, scratch, 0)
            return
        for t in range(lanes):
            row = load(x, at + t * lanes) if t < number else zeros()
            store(scratch, half + t * lanes, row)
        transpose(scratch, half, lanes, scratch, 0)

    @inlined
    def sums_around(scratch, pivot):
        sums = zeros(), zeros()
        a, b, c, d = sums, sums, sums, sums
        for j in range(0, half, 4 * lanes):
            a = _added(a, load(scratch, j) - pivot)
            b = _added(b, load(scratch, j + lanes) - pivot)
            c = _added(c, load(scratch, j + 2 * lanes) - pivot)
            d = _added(d, load(scratch, j + 3 * lanes) - pivot)
        return (a[0] + b[0]) + (c[0] + d[0]), (a[1] + b[1]) + (c[1] + d[1])

    @inlined
    def centred_sums(width, number, x, at, scratch, pivots, sums):
        store_columns(number, x, at, scratch)
        # Around the first element, so that a constant row gives exactly that constant.
        origin = load(scratch, 0)
        deviation, _ = sums_around(scratch, origin)
        pivot = origin + deviation * inv_count
        first, second = sums_around(scratch, pivot)
        store(pivots, 0, pivot)
        store(sums[0], 0, first)
        store(sums[1], 0, second)

    @inlined
    def uncentred_sums(width, number, x, at, scratch, pivots, sums):
        store_columns(number, x, at, scratch)
        _, second = sums_around(scratch, real(0))
        store(sums[0], 0, zeros())
        store(sums[1], 0, second)

    return centred_sums if centred else uncentred_sums
