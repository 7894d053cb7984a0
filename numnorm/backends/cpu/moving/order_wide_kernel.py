"""The kernel of order statistics in wide moving windows, which are sets of ranks.

The steps of a channel are taken in blocks. All values that the windows of a block hold get a rank,
and a window is a set of ranks. From step to step one value enters and one leaves, and the ranks of
the order statistics move to a neighbour. Half of a window are the values that are nearest to the
median, an interval of ranks, of which the ends are the median absolute deviation. It moves, too.
Where it would move far, it is searched.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.backends.cpu.compiler.jit import Kernel, inlined, make_kernel, shared
from numnorm.backends.cpu.memory.kernel_arrays import make_aligned_zeros, release
from numnorm.backends.cpu.memory.kernel_arrays import window as section
from numnorm.backends.cpu.moving.order_ranks import DIGITS, as_key, merge, of_key, sort
from numnorm.backends.cpu.moving.order_results import (
    DEVIATION,
    QUANTILES,
    between,
    distance,
    make_put,
    places_of,
    stretch_of,
    unpacked,
    value_at,
)
from numnorm.backends.cpu.moving.order_sets import (
    LEVELS_MOST,
    after,
    before,
    cleared,
    insert,
    put,
    remove,
    select,
    summed,
    words_of,
)
from numnorm.backends.cpu.simd.element_type import ElementType

_MISSING, _NAN = -1, -2
# An interval that moves further in one step is searched.
_MOVES_MOST = 12


# Order statistics that follow a window


@inlined
def _nowhere():
    """Return what follows an order statistic, a rank and its index, before it is looked up."""
    return np.int64(-1), np.int64(0)


@inlined
def _at(ranked, index, followed):
    """Return what follows the order statistic with an index, given what follows one near it."""
    rank, known = followed
    if rank < 0:
        return select(ranked, index), index
    while known < index:
        rank = after(ranked, rank)
        known += 1
    while known > index:
        rank = before(ranked, rank)
        known -= 1
    return rank, known


@inlined
def _entered(followed, new):
    """Return what follows an order statistic after a rank has entered the set."""
    rank, known = followed
    return rank, known + np.int64(new < rank)


@inlined
def _left(ranked, followed, gone):
    """Return what follows an order statistic after a rank has left the set."""
    rank, known = followed
    if gone != rank:
        return rank, known - np.int64(gone < rank)
    following = after(ranked, rank)
    if following >= 0:
        return following, known
    return before(ranked, rank), known - 1


@inlined
def _value(ranked, values, followed, fraction):
    """Return the value of an order statistic, or between it and the next one."""
    rank = followed[0]
    value = values[rank]
    if fraction == 0.0:
        return value
    return between(value, values[after(ranked, rank)], fraction)


# The median absolute deviation


@shared
def _nearest(ranked, values, count, many, middle):
    """Return the ranks of the first and the last of the `many` of `count` values near `middle`."""
    low, high = np.int64(0), count - many
    while low < high:
        index = (low + high) >> 1
        first = middle - values[select(ranked, index)]
        if first > values[select(ranked, index + many)] - middle:
            low = index + 1
        else:
            high = index
    first = select(ranked, low)
    return first, select(ranked, low + many - 1)


@inlined
def _unsearched():
    """Return an interval that is not known yet."""
    return np.int64(0), np.int64(0), np.int64(0)


@inlined
def _wider(interval, new):
    """Return an interval after a rank has entered the set."""
    first, last, held = interval
    return first, last, held + np.int64(held > 0 and first < new < last)


@inlined
def _narrower(ranked, interval, gone):
    """Return an interval after a rank has left the set."""
    first, last, held = interval
    if held == 0 or gone < first or gone > last:
        return interval
    if gone == first:
        first = after(ranked, first)
    elif gone == last:
        last = before(ranked, last)
    return first, last, held - 1


@inlined
def _nearest_from(ranked, values, interval, count, many, middle):
    """Return the interval of the `many` values nearest to `middle`, given one that is near it.

    An interval is its first and its last rank, and how many values it has; 0 for an unknown one.
    """
    first, last, held = interval
    moves = np.int64(0)
    while held > 0 and held != many and moves < _MOVES_MOST:
        moves += 1
        if held > many:
            if middle - values[first] > values[last] - middle:
                first = after(ranked, first)
            else:
                last = before(ranked, last)
            held -= 1
        else:
            lower, upper = before(ranked, first), after(ranked, last)
            if upper < 0 or (lower >= 0 and middle - values[lower] < values[upper] - middle):
                first = lower
            else:
                last = upper
            held += 1
    while held == many and moves < _MOVES_MOST:
        lower, upper = before(ranked, first), after(ranked, last)
        if lower >= 0 and middle - values[lower] < values[last] - middle:
            first, last = lower, before(ranked, last)
        elif upper >= 0 and values[upper] - middle < middle - values[first]:
            first, last = after(ranked, first), upper
        else:
            return first, last, held
        moves += 1
    first, last = _nearest(ranked, values, count, many, middle)
    return first, last, many


@inlined
def _deviation(ranked, values, interval, middle, fraction):
    """Return the largest deviation in an interval, or between it and the next larger one."""
    first, last, _ = interval
    deviation = max(middle - values[first], values[last] - middle)
    if fraction == 0.0:
        return deviation
    lower, upper = before(ranked, first), after(ranked, last)
    following = middle - values[lower] if lower >= 0 else np.inf
    if upper >= 0:
        following = min(following, values[upper] - middle)
    return between(deviation, following, fraction)


# Blocks of steps


@inlined
def _read(arrays, places, start, stop, base, lists, count):
    """Append the keys of some steps, and the steps, to lists; return their length.

    `ranks` gets what a step that is missing or NaN has in the place of a rank.
    """
    x, keep = arrays
    channel, inner, masked = places
    keys, taken, _, _, _, ranks, _ = lists
    for step in range(start, stop):
        ranks[step - base] = _MISSING
        if step >= 0:
            kept, value = value_at(x, keep, masked, channel + step * inner)
            if kept and value != value:
                ranks[step - base] = _NAN
            elif kept:
                keys[count], taken[count] = as_key(value), step
                count += 1
    return count


@inlined
def _ranked_block(arrays, places, bounds, lists, sets):
    """Rank the values of a block of steps, and those of the windows before its first step.

    Return the set of the ranks of the latter, how many there are and how many NaN, and of how many
    values the sorted lists are without the block's and with them. ``bounds`` are the block, the
    steps of a window, and how many values the lists begin with; if that is -1, they are read.
    """
    start, stop, window, known = bounds
    keys, taken, more_keys, more_taken, digits, ranks, values = lists
    words, counts, starts = sets
    base = start - window + 1
    if known < 0:
        known = _read(arrays, places, base, start, base, lists, np.int64(0))
        sort(keys, taken, known, more_keys, more_taken, digits)
    total = _read(arrays, places, start, stop, base, lists, known)
    new = total - known
    new_keys, new_taken = section(keys, known, new), section(taken, known, new)
    sort(new_keys, new_taken, new, more_keys, more_taken, digits)
    merge(keys, taken, known, total, more_keys, more_taken)
    ranked = words, counts, starts, cleared(words, counts, starts, total)
    for rank in range(total):
        values[rank] = of_key(more_keys[rank])
        ranks[more_taken[rank] - base] = rank
        if more_taken[rank] < start:
            put(ranked, rank)
    summed(ranked, total)
    unknown = np.int64(0)
    for i in range(window - 1):
        unknown += np.int64(ranks[i] == _NAN)
    return ranked, (known, unknown), (known, total)


@inlined
def _following_block(bounds, lists, total):
    """Keep what the next block begins with: sorted values, and the ranks that stand for none.

    Return how many values there are.
    """
    start, stop, window, known = bounds
    keys, taken, _, _, _, ranks, _ = lists
    count = np.int64(0)
    for i in range(known, total):
        if taken[i] > stop - window:
            keys[count], taken[count] = keys[i], taken[i]
            count += 1
    for i in range(window - 1):
        ranks[i] = ranks[i + stop - start]
    return count


@inlined
def _advanced(ranked, ranks, new, gone, state):
    """Return the state of a window after a step has entered it and another one has left it.

    It is what follows the median, the lower and the higher quantile and the interval, how many
    values there are, and how many NaN. `new` and `gone` are places in `ranks`, -1 for none.
    """
    middle, low, high, interval, count, unknown = state
    rank = ranks[new]
    if rank >= 0:
        insert(ranked, rank)
        count += 1
        middle, low, high = _entered(middle, rank), _entered(low, rank), _entered(high, rank)
        interval = _wider(interval, rank)
    unknown += np.int64(rank == _NAN)
    rank = ranks[gone] if gone >= 0 else np.int64(_MISSING)
    if rank >= 0:
        remove(ranked, rank)
        count -= 1
        middle, low = _left(ranked, middle, rank), _left(ranked, low, rank)
        high, interval = _left(ranked, high, rank), _narrower(ranked, interval, rank)
    unknown -= np.int64(rank == _NAN)
    return middle, low, high, interval, count, unknown


@inlined
def _found_in(ranked, values, state, places, kind):
    """Return the median and the scale of a window, and what follows them then."""
    middle, low, high, interval, count, unknown = state
    center = scale = np.nan
    if count == 0 or unknown > 0:
        return (center, scale), (_nowhere(), _nowhere(), _nowhere(), _unsearched(), count, unknown)
    (index, share), of_low, of_high = places
    middle = _at(ranked, index, middle)
    center = _value(ranked, values, middle, share)
    scale = 1.0
    if not abs(center) < np.inf:
        scale = np.nan
    elif kind == DEVIATION:
        interval = _nearest_from(ranked, values, interval, count, index + 1, center)
        scale = _deviation(ranked, values, interval, center, share)
    elif kind == QUANTILES:
        low, high = _at(ranked, of_low[0], low), _at(ranked, of_high[0], high)
        lower = _value(ranked, values, low, of_low[1])
        scale = distance(lower, _value(ranked, values, high, of_high[1]))
    return (center, scale), (middle, low, high, interval, count, unknown)


@inlined
def _unfollowed(counts):
    """Return the state of a window of which only how many values and NaN it has is known."""
    return _nowhere(), _nowhere(), _nowhere(), _unsearched(), counts[0], counts[1]


def _make_room() -> Callable[..., Any]:
    """Return a compiled ``room(block, window)``: the lists and sets of blocks.

    They are the keys and the steps of values, twice, room for sorting, the rank of each step and
    the value of each rank; and the words, counts and starts of sets.
    """
    empty, floats = make_aligned_zeros(np.int64, 1, True), make_aligned_zeros(np.float64, 1, True)

    @inlined
    def room(block, window):
        size = block + window
        words = words_of(size)
        lists = (
            *(empty((size,), 0), empty((size,), 0), empty((size,), 0), empty((size,), 0)),
            *(empty((DIGITS,), 0), empty((size,), 0), floats((size,), 0)),
        )
        return lists, (empty((words,), 0), empty((words,), 0), empty((LEVELS_MOST,), 0))

    return room


def make_walk(use: Callable[..., Any]) -> Callable[..., Any]:
    """Return a compiled ``walk(source, arrays, numbers, options, parts, first, last)``.

    It finds the order statistics of all windows; ``source`` are x and the mask. For each window it
    calls ``use(arrays, place, given, found, sets, followed)``: ``place`` are the index of the
    channel and the end of the window, ``given`` are shape, windows, flags and options, ``found``
    are the median and the scale, ``sets`` are the set of ranks, the value of each rank and its
    step, and ``followed`` are the state of the window and the places of the order statistics.
    """
    new_room = _make_room()

    @inlined
    def walk(source, arrays, numbers, options, parts, first, last):
        shape, blocks, windows, flags, method = unpacked(numbers, options)
        groups, _, _, block = blocks
        window, given = windows[1], (shape, windows, flags, options)
        lists, words = new_room(block, window)
        _, _, _, taken, _, ranks, values = lists
        for group in range(groups * first // parts, groups * last // parts):
            channel, begin, end = stretch_of(group, shape, blocks, windows[0])
            known, placed = np.int64(-1), np.int64(1)
            places, of_channel = places_of(placed, method), (channel, shape[2], flags[1])
            for start in range(begin, end, block):
                stop = min(start + block, end)
                bounds = start, stop, window, known
                ranked, counts, (known, total) = _ranked_block(
                    source, of_channel, bounds, lists, words
                )
                state, sets = _unfollowed(counts), (ranked, values, taken)
                for step in range(start, stop):
                    new = step - start + window - 1
                    gone = np.int64(-1) if step == start else new - window
                    state = _advanced(ranked, ranks, new, gone, state)
                    _, _, _, _, count, _ = state
                    if count != placed and count > 0:
                        placed = count
                        places = places_of(placed, method)
                    found, state = _found_in(ranked, values, state, places, flags[0])
                    use(arrays, (channel, step), given, found, sets, (state, places))
                known = _following_block((start, stop, window, known), lists, total)
        release((lists, words))

    return walk


def make_wide_order_kernel(element_type: ElementType) -> Kernel:
    """Return a kernel with the same arguments as the one of `make_narrow_order_kernel`.

    Blocks, but for the last one of a channel, have at least the steps of a window less one.
    """
    put_results = make_put(element_type)

    @inlined
    def use(arrays, place, given, found, sets, followed):
        put_results(arrays, place, given, found)

    walk = make_walk(use)

    def kernel(x, keep, y, median, scales, numbers, options, parts, first, last):
        walk((x, keep), (x, y, median, scales), numbers, options, parts, first, last)

    return make_kernel(f"moving.wide_order.{element_type.name}", kernel)
