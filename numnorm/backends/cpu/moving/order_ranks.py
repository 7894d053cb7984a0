"""Ranks of the values of a block of steps: what is new is sorted, and merged with what is known.

Numbers are sorted by the bits of a float64, made such that integers have the order of the numbers.
"""

from typing import Any

import numpy as np
from numba.core import types

from numnorm.backends.cpu.compiler.jit import inlined, shared
from numnorm.backends.cpu.simd.vector import compiled_as, load_scalar

DIGIT_BITS = 8
DIGITS = 1 << DIGIT_BITS
PLACES = 64 // DIGIT_BITS
# Fewer are sorted by merging.
_RADIX_LEAST = 400
_RUN = 8


def _plain_bits(value: Any) -> Any:
    return np.float64(value).view(np.int64)


@compiled_as(_plain_bits)
def _bits(typing_context, value):
    """Return the bits of a float64."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], context.get_value_type(types.int64))

    return types.int64(types.float64), generate


def _plain_number(bits: Any) -> Any:
    return np.int64(bits).view(np.float64)


@compiled_as(_plain_number)
def _number(typing_context, bits):
    """Return the float64 with these bits."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], context.get_value_type(types.float64))

    return types.float64(types.int64), generate


_MOST = np.int64(0x7FFF_FFFF_FFFF_FFFF)


@inlined
def as_key(value):
    """Return an integer of a float64 that is no NaN: keys have the order of their numbers."""
    bits = _bits(value)
    return bits ^ ((bits >> 63) & _MOST)


@inlined
def of_key(key):
    """Return the number of a key."""
    return _number(key ^ ((key >> 63) & _MOST))


@inlined
def _merged(keys, steps, start, middle, stop, to_keys, to_steps):
    """Merge two sorted runs of a list into another list, at the same place."""
    i, j, k = start, middle, start
    while i < middle and j < stop:
        later = np.int64(load_scalar(keys, j) < load_scalar(keys, i))
        taken = i + (j - i) * later  # a product in the place of a branch that cannot be predicted
        to_keys[k] = load_scalar(keys, taken)
        to_steps[k] = load_scalar(steps, taken)
        i += 1 - later
        j += later
        k += 1
    while i < middle:
        to_keys[k], to_steps[k] = keys[i], steps[i]
        i += 1
        k += 1
    while j < stop:
        to_keys[k], to_steps[k] = keys[j], steps[j]
        j += 1
        k += 1


@inlined
def _sort_runs(keys, steps, count):
    """Sort each run of `_RUN` keys by insertion."""
    for start in range(0, count, _RUN):
        for i in range(start + 1, min(start + _RUN, count)):
            key, step, j = keys[i], steps[i], i
            while j > start and load_scalar(keys, j - 1) > key:
                keys[j], steps[j] = load_scalar(keys, j - 1), load_scalar(steps, j - 1)
                j -= 1
            keys[j], steps[j] = key, step


@inlined
def _merge_sort(keys, steps, count, more_keys, more_steps):
    """Sort; return whether the result is in the other lists."""
    _sort_runs(keys, steps, count)
    size, swapped = np.int64(_RUN), False
    while size < count:
        for start in range(0, count, 2 * size):
            middle, stop = min(start + size, count), min(start + 2 * size, count)
            if swapped:
                _merged(more_keys, more_steps, start, middle, stop, keys, steps)
            else:
                _merged(keys, steps, start, middle, stop, more_keys, more_steps)
        swapped = not swapped
        size *= 2
    return swapped


@inlined
def _distributed(keys, steps, count, place, places, to_keys, to_steps):
    """Put keys into the order of one of their digits, given where each digit begins."""
    shift, flip = place * DIGIT_BITS, np.int64(DIGITS >> 1) if place == PLACES - 1 else np.int64(0)
    for i in range(count):
        key = keys[i]
        digit = place * DIGITS + (((key >> shift) & (DIGITS - 1)) ^ flip)
        at = load_scalar(places, digit)
        places[digit] = at + 1
        to_keys[at], to_steps[at] = key, steps[i]


@inlined
def _radix_sort(keys, steps, count, more_keys, more_steps, places):
    """Sort digit by digit; return whether the result is in the other lists."""
    for digit in range(PLACES * DIGITS):
        places[digit] = 0
    for i in range(count):
        key = keys[i] ^ np.int64(-0x8000_0000_0000_0000)
        for place in range(PLACES):
            places[place * DIGITS + ((key >> (place * DIGIT_BITS)) & (DIGITS - 1))] += 1
    swapped = False
    for place in range(PLACES):
        total, varies = np.int64(0), True
        for digit in range(place * DIGITS, (place + 1) * DIGITS):
            own = places[digit]
            varies &= own != count
            places[digit] = total
            total += own
        if varies:
            if swapped:
                _distributed(more_keys, more_steps, count, place, places, keys, steps)
            else:
                _distributed(keys, steps, count, place, places, more_keys, more_steps)
            swapped = not swapped
    return swapped


@shared
def sort(keys, steps, count, more_keys, more_steps, places):
    """Sort so many keys with their steps; equal ones keep their order.

    The other two lists have room for as many, and `places` for each digit of each place.
    """
    if count < _RADIX_LEAST:
        swapped = _merge_sort(keys, steps, count, more_keys, more_steps)
    else:
        swapped = _radix_sort(keys, steps, count, more_keys, more_steps, places)
    if swapped:
        for i in range(count):
            keys[i], steps[i] = more_keys[i], more_steps[i]


@shared
def merge(keys, steps, middle, stop, to_keys, to_steps):
    """Merge the sorted keys before `middle` with those from there on, with their steps."""
    _merged(keys, steps, np.int64(0), middle, stop, to_keys, to_steps)
