"""The sums of several narrow rows at once.

A narrow row is over before its sums are: to add up the lanes of one sum takes longer than to read
the row. As many rows as there are lanes are therefore summed one after the other, and then the
lanes of all their sums are added up together. What a row's sums are does not depend on the tile
that it is in.
"""

import functools
from collections.abc import Callable
from typing import Any

from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.masked import make_masked_load, select_lanes
from numnorm.backends.cpu.simd.transpose import make_transpose
from numnorm.backends.cpu.simd.vector import (
    load_scalar,
    make_load,
    make_reduce_rows,
    make_zeros,
    store,
)


def room_for_sums(element_type: ElementType) -> int:
    """Return how many elements of the working type two sums of a tile's rows take, in lanes."""
    return 2 * element_type.lanes * element_type.lanes


@inlined
def four_from(t, number):
    """Return a row of a tile and the three after it, and the row to go on with.

    If there are no three after it, it is the same row four times.
    """
    if t + 4 <= number:
        return (t, t + 1, t + 2, t + 3), t + 4
    return (t, t, t, t), t + 1


@inlined
def offsets_of(four, at, width):
    """Return where rows begin, of a tile that begins at an element."""
    return (at + four[0] * width, at + four[1] * width, at + four[2] * width, at + four[3] * width)


@inlined
def _added(sums, deviation):
    return sums[0] + deviation, sums[1] + deviation * deviation


def _make_sums_of_four(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``sums_of_four(x, offsets, width, highs)`` of rows at four places, in lanes.

    For each row these are the sums of ``row - mean_hi`` and of its squares.
    """
    real, to_compute, lanes = element_type.compute_type, element_type.to_compute, element_type.lanes
    load, masked_load, zeros = make_load(lanes), make_masked_load(lanes), make_zeros(real, lanes)

    @inlined
    def sums_of_four(x, offsets, width, highs):
        sums = zeros(), zeros()
        a, b, c, d = sums, sums, sums, sums
        whole = width - width % lanes
        for j in range(0, whole, lanes):
            a = _added(a, to_compute(load(x, offsets[0] + j)) - highs[0])
            b = _added(b, to_compute(load(x, offsets[1] + j)) - highs[1])
            c = _added(c, to_compute(load(x, offsets[2] + j)) - highs[2])
            d = _added(d, to_compute(load(x, offsets[3] + j)) - highs[3])
        n = width - whole
        if n > 0:
            a_rest = to_compute(masked_load(x, offsets[0] + whole, 0, n)) - highs[0]
            b_rest = to_compute(masked_load(x, offsets[1] + whole, 0, n)) - highs[1]
            c_rest = to_compute(masked_load(x, offsets[2] + whole, 0, n)) - highs[2]
            d_rest = to_compute(masked_load(x, offsets[3] + whole, 0, n)) - highs[3]
            a, b = _added(a, select_lanes(a_rest, 0, n)), _added(b, select_lanes(b_rest, 0, n))
            c, d = _added(c, select_lanes(c_rest, 0, n)), _added(d, select_lanes(d_rest, 0, n))
        return a, b, c, d

    return sums_of_four


@functools.cache
def make_tile_sums(element_type: ElementType, *, centred: bool) -> Callable[..., Any]:
    """Return a compiled ``tile_sums(width, number, x, at, room, highs, sums)``.

    For each of the `number` rows from the element `at` of a flat x on it stores a value near the
    row's mean, the sum of what the elements deviate from it, and that of the squares; without
    centring only the last.
    """
    real, to_compute, lanes = element_type.compute_type, element_type.to_compute, element_type.lanes
    half = lanes * lanes
    load, masked_load, totals = make_load(lanes), make_masked_load(lanes), make_reduce_rows(lanes)
    sums_of_four, zeros = _make_sums_of_four(element_type), make_zeros(real, lanes)

    @inlined
    def keep(room, t, sums):
        for_row = t * lanes
        store(room, for_row, sums[0])
        store(room, half + for_row, sums[1])

    @inlined
    def keep_four(room, four, found):
        keep(room, four[0], found[0])
        keep(room, four[1], found[1])
        keep(room, four[2], found[2])
        keep(room, four[3], found[3])

    @inlined
    def guesses(width, number, x, at, room, highs):
        # Around the first element, so that a constant row gives exactly that constant.
        n = min(width, lanes)
        for t in range(number):
            begin = at + t * width
            origin = to_compute(load_scalar(x, begin))
            highs[t] = origin
            store(
                room,
                t * lanes,
                select_lanes(to_compute(masked_load(x, begin, 0, n)) - origin, 0, n),
            )
        store(highs, 0, load(highs, 0) + totals(room) * (real(1) / real(n)))

    @inlined
    def centred_sums(width, number, x, at, room, highs, sums):
        guesses(width, number, x, at, room, highs)
        t = 0
        while t < number:
            four, t = four_from(t, number)
            pivot = (
                load_scalar(highs, four[0]),
                load_scalar(highs, four[1]),
                load_scalar(highs, four[2]),
                load_scalar(highs, four[3]),
            )
            keep_four(room, four, sums_of_four(x, offsets_of(four, at, width), width, pivot))
        store(sums[0], 0, totals(room))
        store(sums[1], 0, totals(room[half:]))

    @inlined
    def uncentred_sums(width, number, x, at, room, highs, sums):
        none = real(0), real(0), real(0), real(0)
        t = 0
        while t < number:
            four, t = four_from(t, number)
            keep_four(room, four, sums_of_four(x, offsets_of(four, at, width), width, none))
        store(sums[0], 0, zeros())
        store(sums[1], 0, totals(room[half:]))

    return centred_sums if centred else uncentred_sums


@functools.cache
def make_square_sums(element_type: ElementType, *, centred: bool) -> Callable[..., Any]:
    """Return a compiled ``square_sums(width, number, x, at, room, highs, sums)``.

    It does the same for rows of as many elements as there are lanes. A tile of them is a square,
    whose columns are added up once it is transposed, a row to a lane: that takes half of the
    time that it takes to add up the lanes of all sums.
    """
    real, lanes = element_type.compute_type, element_type.lanes
    load, zeros, transpose = make_load(lanes), make_zeros(real, lanes), make_transpose(lanes)
    half, inv_count = lanes * lanes, real(1) / real(lanes)

    @inlined
    def columns(number, x, at, room):
        if number == lanes:
            transpose(x, at, lanes, room, 0)
            return
        for t in range(lanes):
            row = load(x, at + t * lanes) if t < number else zeros()
            store(room, half + t * lanes, row)
        transpose(room, half, lanes, room, 0)

    @inlined
    def sums_around(room, mean_hi):
        sums = zeros(), zeros()
        a, b, c, d = sums, sums, sums, sums
        for j in range(0, half, 4 * lanes):
            a = _added(a, load(room, j) - mean_hi)
            b = _added(b, load(room, j + lanes) - mean_hi)
            c = _added(c, load(room, j + 2 * lanes) - mean_hi)
            d = _added(d, load(room, j + 3 * lanes) - mean_hi)
        return (a[0] + b[0]) + (c[0] + d[0]), (a[1] + b[1]) + (c[1] + d[1])

    @inlined
    def centred_sums(width, number, x, at, room, highs, sums):
        columns(number, x, at, room)
        # Around the first element, so that a constant row gives exactly that constant.
        origin = load(room, 0)
        pivot, _ = sums_around(room, origin)
        mean_hi = origin + pivot * inv_count
        first, second = sums_around(room, mean_hi)
        store(highs, 0, mean_hi)
        store(sums[0], 0, first)
        store(sums[1], 0, second)

    @inlined
    def uncentred_sums(width, number, x, at, room, highs, sums):
        columns(number, x, at, room)
        _, second = sums_around(room, real(0))
        store(sums[0], 0, zeros())
        store(sums[1], 0, second)

    return centred_sums if centred else uncentred_sums
