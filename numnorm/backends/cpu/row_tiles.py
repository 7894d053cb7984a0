"""The sums of several narrow rows at once.

A narrow row is over before its sums are: to add up the lanes of one sum takes longer than to read
the row. As many rows as there are lanes are therefore summed one after the other, and then the
lanes of all their sums are added up together. What a row's sums are does not depend on the tile
that it is in.
"""

import functools
from collections.abc import Callable
from typing import Any

from numnorm.backends.cpu.jit import inlined
from numnorm.backends.cpu.lanes import make_load, make_totals, make_zeros, store
from numnorm.backends.cpu.row_statistics import make_deviation_sums
from numnorm.backends.cpu.some_lanes import make_load_some, some_of
from numnorm.backends.cpu.storage import Storage

# Rows of fewer bytes of the working type are taken in tiles. In cache, a tile of wider rows is a
# little faster (forward, 64 float32: 14 ns a row, 18 row by row; backward, 80: 25 and 35) or no
# faster; beyond, memory waits while it is worked on (26 and 19; 66 and 45).
_NARROW = 256


def narrow_width(storage: Storage) -> int:
    """Return the number of elements from which on rows are not taken in tiles."""
    return _NARROW // storage.working_dtype.itemsize


def room_for_sums(storage: Storage) -> int:
    """Return how many elements of the working type two sums of a tile's rows take, in lanes."""
    return 2 * storage.lanes * storage.lanes


@functools.cache
def make_tile_sums(storage: Storage, *, centred: bool) -> Callable[..., Any]:
    """Return a compiled ``tile_sums(x, number, room, highs, sums)``.

    For each of the `number` rows of `x` it stores a value near the row's mean, the sum of what
    the elements deviate from it, and that of the squares; without centring only the last.
    """
    real, widen, lanes = storage.working, storage.widen, storage.lanes
    half = lanes * lanes
    load, load_some, totals = make_load(lanes), make_load_some(lanes), make_totals(lanes)
    deviation_sums, zeros = make_deviation_sums(storage, lanes), make_zeros(real, lanes)

    @inlined
    def guesses(x, number, room, highs):
        # Around the first element, so that a constant row gives exactly that constant.
        n = min(x.shape[1], lanes)
        for t in range(number):
            origin = widen(x[t][0])
            highs[t] = origin
            store(room, t * lanes, some_of(widen(load_some(x[t], 0, 0, n)) - origin, 0, n))
        store(highs, 0, load(highs, 0) + totals(room) * (real(1) / real(n)))

    @inlined
    def centred_sums(x, number, room, highs, sums):
        guesses(x, number, room, highs)
        for t in range(number):
            first, second = deviation_sums(x[t], 0, x.shape[1], 0, real(1), highs[t])
            store(room, t * lanes, first)
            store(room, half + t * lanes, second)
        store(sums[0], 0, totals(room))
        store(sums[1], 0, totals(room[half:]))

    @inlined
    def uncentred_sums(x, number, room, highs, sums):
        for t in range(number):
            _, second = deviation_sums(x[t], 0, x.shape[1], 0, real(1), real(0))
            store(room, t * lanes, second)
        store(sums[0], 0, zeros())
        store(sums[1], 0, totals(room))

    return centred_sums if centred else uncentred_sums
