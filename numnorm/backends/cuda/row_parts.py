"""Which elements of a row a thread works on, and how it reads and writes them.

A row is cut at multiples of 16 bytes of its place in memory. The pieces are dealt out to the
threads of a team in turn, so that neighbours read neighbours. A piece that is whole is one load
or store of 16 bytes; the ends of a row of any width and place are read element by element.
"""

import functools
from typing import Any

from numnorm.backends.cuda.elements import Element
from numnorm.backends.cuda.target import (
    constant,
    device,
    make_load,
    make_load_one,
    make_store,
    make_store_one,
)

BYTES = 16


@functools.cache
def make_shift(element: Element, *, whole: bool) -> Any:
    """Return a device function ``shift(address, first)``.

    It is how many elements an element lies behind a multiple of 16 bytes. Rows that are `whole`
    begin and end at one.
    """
    itemsize = element.itemsize

    @device
    def of_whole(address, first):
        return 0

    @device
    def shift(address, first):
        return (address + first * itemsize) % BYTES // itemsize

    return of_whole if whole else shift


@functools.cache
def make_read(element: Element, *, whole: bool, unchanging: bool = False) -> Any:
    """Return a device function ``read(address, first, at, width, values, slot)``.

    It reads the piece of the row that begins `at` elements behind its `first`, into `values` from
    `slot` on; elements before the row and behind it, of which there are none if all rows are
    `whole`, become 0. A row begins anywhere, if it is not.
    """
    load, load_one = make_load(element, unchanging=unchanging), make_load_one(element)
    vector, itemsize, zero = element.vector, element.itemsize, constant(element, 0.0)

    @device
    def read_whole(address, first, at, width, values, slot):
        found = load(address, first + at)
        for j in range(vector):
            values[slot + j] = found[j]

    @device
    def read(address, first, at, width, values, slot):
        inside = at >= 0 and at + vector <= width
        if inside and (address + (first + at) * itemsize) % BYTES == 0:
            found = load(address, first + at)
            for j in range(vector):
                values[slot + j] = found[j]
        else:
            for j in range(vector):
                here = 0 <= at + j < width
                values[slot + j] = load_one(address, first + at + j) if here else zero

    return read_whole if whole else read


@functools.cache
def make_write(element: Element, *, whole: bool) -> Any:
    """Return a device function ``write(address, first, at, width, values)``, the like of `read`.

    `values` is a tuple of as many as there are in 16 bytes.
    """
    store, store_one = make_store(element), make_store_one(element)
    vector, itemsize = element.vector, element.itemsize

    @device
    def write_whole(address, first, at, width, values):
        store(address, first + at, values)

    @device
    def write(address, first, at, width, values):
        inside = at >= 0 and at + vector <= width
        if inside and (address + (first + at) * itemsize) % BYTES == 0:
            store(address, first + at, values)
        else:
            for j in range(vector):
                if 0 <= at + j < width:
                    store_one(address, first + at + j, values[j])

    return write_whole if whole else write


@functools.cache
def make_as_tuple(element: Element) -> Any:
    """Return a device function ``as_tuple(values, slot)`` of 16 bytes' elements of an array."""
    if element.vector == 2:
        return device(lambda v, k: (v[k], v[k + 1]))
    if element.vector == 4:
        return device(lambda v, k: (v[k], v[k + 1], v[k + 2], v[k + 3]))
    return device(
        lambda v, k: (v[k], v[k + 1], v[k + 2], v[k + 3], v[k + 4], v[k + 5], v[k + 6], v[k + 7])
    )
