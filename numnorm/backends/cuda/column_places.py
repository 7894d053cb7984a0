"""Which elements of ``(outer, channels, inner)`` a thread works on.

Without inner axes the kernels go across the channels: a thread has channels of its own and every
so many rows of its part. With them they go along each channel: a block has one channel, and its
threads share the elements of each outer entry as those of a team share a row.
"""

import functools
from typing import Any

from numnorm.backends.cuda.column_shape import ColumnShape
from numnorm.backends.cuda.elements import Element, working_element
from numnorm.backends.cuda.row_parts import make_as_tuple, make_read, make_shift, make_write
from numnorm.backends.cuda.target import (
    constant,
    cuda,
    device,
    make_load,
    make_load_one,
    make_store,
    make_store_one,
)


@functools.cache
def make_place_across(element: Element, shape: ColumnShape) -> Any:
    """Return a device function ``place(rows, channels, block)`` of a thread's work.

    It is ``part, channel, first, count``: the number of the part, the first of the thread's
    channels, its first row, and the number of its rows, which lie `shape.teams` apart: 0 for a
    thread without work.
    """
    lanes, teams, slots = shape.lanes, shape.teams, shape.slots(element)
    span = lanes * slots

    @device
    def place(rows, channels, block):
        thread, columns = cuda.threadIdx.x, (channels + span - 1) // span
        part = cuda.blockIdx.x // columns
        channel = (cuda.blockIdx.x - part * columns) * span + thread % lanes * slots
        team = thread // lanes
        left = min(block, rows - part * block) - team
        count = (left + teams - 1) // teams if channel < channels and left > 0 else 0
        return part, channel, part * block + team, count

    return place


@functools.cache
def make_read_across(element: Element, *, whole: bool) -> Any:
    """Return a device function ``read(address, index, values, slot)`` of a thread's channels."""
    load, load_one, vector = make_load(element), make_load_one(element), element.vector

    @device
    def read_piece(address, index, values, slot):
        found = load(address, index)
        for j in range(vector):
            values[slot + j] = found[j]

    @device
    def read_one(address, index, values, slot):
        values[slot] = load_one(address, index)

    return read_piece if whole else read_one


@functools.cache
def make_write_across(element: Element, *, whole: bool) -> Any:
    """Return a device function ``write(address, index, values, slot)``, the like of `read`."""
    store, store_one, as_tuple = (
        make_store(element),
        make_store_one(element),
        make_as_tuple(element),
    )

    @device
    def write_piece(address, index, values, slot):
        store(address, index, as_tuple(values, slot))

    @device
    def write_one(address, index, values, slot):
        store_one(address, index, values[slot])

    return write_piece if whole else write_one


@functools.cache
def make_read_terms(element: Element, *, whole: bool) -> Any:
    """Return a device function ``read_terms(terms, index, values)`` of a thread's channels.

    It reads a row of a table of terms, from the first of the channels on.
    """
    stored = working_element(element)
    read, step = make_read_across(stored, whole=whole), stored.vector
    count = element.vector // step if whole else 1

    @device
    def read_terms(terms, index, values):
        for k in range(count):
            read(terms, index + k * step, values, k * step)

    return read_terms


@functools.cache
def make_place_along(shape: ColumnShape) -> Any:
    """Return a device function ``place(outer, channels, inner, block, segment)``.

    It is ``part, channel, first, entries, width``: the numbers of the block's part and channel,
    where its first element is, how many outer entries it has, and how many elements of each.
    """

    @device
    def place(outer, channels, inner, block, segment):
        cuts = (inner + segment - 1) // segment
        # Divisions are slow, and a remainder would be one more.
        part = cuda.blockIdx.x // channels
        channel, turn = cuda.blockIdx.x - part * channels, part // cuts
        entry, start = turn * block, (part - turn * cuts) * segment
        first = (entry * channels + channel) * inner + start
        return part, channel, first, min(block, outer - entry), min(segment, inner - start)

    return place


def slack(element: Element, shape: ColumnShape) -> int:
    """Return how far before a stretch of elements its first piece may begin.

    Pieces are cut at multiples of 16 bytes; they have to reach so much further than the stretch.
    """
    return 0 if shape.whole else element.vector - 1


@functools.cache
def make_read_along(element: Element, shape: ColumnShape) -> Any:
    """Return a device function of a thread's pieces of some outer entries.

    ``read_along(x, cut, first, jump, left, base, width, values)`` reads from `x` those pieces that
    are cut at multiples of 16 bytes of the array at `cut`. The first entry begins at `first`, and
    there are `left`, `jump` apart. `base` is where the thread's first piece would begin if the
    entry began at such a multiple. What is not there becomes 0.
    """
    read, shift_of = make_read(element, whole=shape.whole), make_shift(element, whole=shape.whole)
    vector, ahead, pieces, teams = element.vector, shape.ahead, shape.pieces, shape.teams
    stride, zero = shape.lanes * element.vector, constant(element, 0.0)

    @device
    def read_along(x, cut, first, jump, left, base, width, values):
        for u in range(ahead):
            start = first + u * teams * jump
            at = base - shift_of(cut, start)
            for p in range(pieces):
                here, slot = at + p * stride, (u * pieces + p) * vector
                if u * teams < left and here < width:
                    read(x, start, here, width, values, slot)
                else:
                    for j in range(vector):
                        values[slot + j] = zero

    return read_along


@functools.cache
def make_write_along(element: Element, shape: ColumnShape) -> Any:
    """Return a device function ``write_along(y, cut, first, jump, left, base, width, values)``.

    It writes the pieces that `read_along` reads.
    """
    write, shift_of = make_write(element, whole=shape.whole), make_shift(element, whole=shape.whole)
    vector, ahead, pieces, teams = element.vector, shape.ahead, shape.pieces, shape.teams
    stride, as_tuple = shape.lanes * element.vector, make_as_tuple(element)

    @device
    def write_along(y, cut, first, jump, left, base, width, values):
        for u in range(ahead):
            start = first + u * teams * jump
            at = base - shift_of(cut, start)
            for p in range(pieces):
                here, slot = at + p * stride, (u * pieces + p) * vector
                if u * teams < left and here < width:
                    write(y, start, here, width, as_tuple(values, slot))

    return write_along
