"""Ranks of the values of a block of steps: what is new is sorted, and merged with what is known.

Numbers are sorted by the bits of a float64, made such that integers have the order of the numbers.
"""

from typing import Any

import numpy as np
from numba.core import types

from numnorm.backends.cpu.compiler.jit import inlined, shared
from numnorm.backends.cpu.moving.order_sets import highest
from numnorm.backends.cpu.simd.vector import compiled_as, load_scalar

DIGIT_BITS = 8
DIGITS = 1 << DIGIT_BITS
# Fewer are sorted by merging.
_RADIX_LEAST = 256
_RUN = 8
# Digits of the first attempt: what they leave unsorted is usually little.
_HIGH_BITS = 4 * DIGIT_BITS
_SIGN = np.int64(-0x8000_0000_0000_0000)


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
def _distributed(keys, steps, count, shift, places, to_keys, to_steps):
    """Put keys into the order of the digit at a shift, given where each digit begins."""
    for i in range(count):
        key = keys[i]
        digit = ((key ^ _SIGN) >> shift) & (DIGITS - 1)
        at = load_scalar(places, digit)
        places[digit] = at + 1
        to_keys[at], to_steps[at] = key, steps[i]


@inlined
def _begin_digits(keys, count, shift, places):
    """Store where each digit at a shift begins; return whether there is more than one."""
    for digit in range(DIGITS):
        places[digit] = 0
    for i in range(count):
        places[((keys[i] ^ _SIGN) >> shift) & (DIGITS - 1)] += 1
    total, varies = np.int64(0), True
    for digit in range(DIGITS):
        own = places[digit]
        varies &= own != count
        places[digit] = total
        total += own
    return varies


@inlined
def _radix_sort(keys, steps, count, first, last, lists, places):
    """Sort by the digits from one shift to another; return whether the result is in `lists`."""
    more_keys, more_steps = lists
    swapped = False
    for shift in range(first, last, DIGIT_BITS):
        source = more_keys if swapped else keys
        if _begin_digits(source, count, shift, places):
            if swapped:
                _distributed(more_keys, more_steps, count, shift, places, keys, steps)
            else:
                _distributed(keys, steps, count, shift, places, more_keys, more_steps)
            swapped = not swapped
    return swapped


@inlined
def _varying(keys, count):
    """Return a number of which the bits are those in which keys differ."""
    bits = np.int64(0)
    for i in range(1, count):
        bits |= keys[i] ^ keys[0]
    return bits


@inlined
def _insertion_sort(keys, steps, count):
    """Sort a list in which few keys are out of order; return False, half sorted, if many are."""
    left = 2 * count
    for i in range(1, count):
        key, j = keys[i], i
        if load_scalar(keys, i - 1) > key:
            step = steps[i]
            while j > 0 and load_scalar(keys, j - 1) > key:
                keys[j], steps[j] = load_scalar(keys, j - 1), load_scalar(steps, j - 1)
                j -= 1
            keys[j], steps[j] = key, step
            left -= i - j
            if left < 0:
                return False
    return True


@inlined
def _copied(keys, steps, count, to_keys, to_steps):
    """Copy a list."""
    for i in range(count):
        to_keys[i], to_steps[i] = keys[i], steps[i]


@shared
def sort(keys, steps, count, more_keys, more_steps, places):
    """Sort the first `count` keys, and their steps with them.

    `more_keys` and `more_steps` are scratch for `count` elements, `places` for the digits' counts.
    """
    if count < _RADIX_LEAST:
        if _merge_sort(keys, steps, count, more_keys, more_steps):
            _copied(more_keys, more_steps, count, keys, steps)
        return
    lists, bits = (more_keys, more_steps), _varying(keys, count)
    if bits == 0:
        return
    # Most keys differ in the highest of the bits that differ at all.
    most = highest(bits) + 1
    least = max(np.int64(0), most - _HIGH_BITS)
    if _radix_sort(keys, steps, count, least, most, lists, places):
        _copied(more_keys, more_steps, count, keys, steps)
    if _insertion_sort(keys, steps, count):
        return
    if _radix_sort(keys, steps, count, np.int64(0), most, lists, places):
        _copied(more_keys, more_steps, count, keys, steps)


@shared
def merge(keys, steps, middle, stop, to_keys, to_steps):
    """Merge the sorted keys before `middle` with those from there on, with their steps."""
    _merged(keys, steps, np.int64(0), middle, stop, to_keys, to_steps)
