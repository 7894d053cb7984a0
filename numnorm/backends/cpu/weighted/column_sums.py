"""Sums over the channels of a norm where elements are left out or have weights.

What is `selected` of the elements is a tuple ``(keep, weights, omit)``. `keep` has a byte for each
element of x, and is None if no mask is given. `omit` is None if NaN is not left out. `weights` are
float32 or float64: flat, one for each element, or of shape ``(outer, 1)``, one for each entry of x,
or None.

An ``add`` of these loops takes ``(arrays, selected, j, active, coefficients, one, sums)`` and
returns the three vectors of sums with the contributions of a vector of elements added.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numba.core import types

from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.compiler.jit import inlined, overloaded, shared
from numnorm.backends.cpu.memory.kernel_arrays import window
from numnorm.backends.cpu.simd.access import full_access, tail_access
from numnorm.backends.cpu.simd.element_type import ElementType, widened
from numnorm.backends.cpu.simd.kept import make_masked_kept, weighing, where_kept
from numnorm.backends.cpu.simd.optional import present, scaled
from numnorm.backends.cpu.simd.vector import make_load, make_zeros, reduce_sum, store

# Weights


def _plain_of_entry(weights: Any, i: int) -> Any:
    return np.float64(weights[i, 0]) if np.ndim(weights) == 2 else weights


@overloaded(_plain_of_entry)
def _of_entry(weights, i):
    if isinstance(weights, types.Array) and weights.ndim == 2:
        return lambda weights, i: np.float64(weights[i, 0])
    return lambda weights, i: weights


# The weight of entry i, if one number is the weight of all of its elements, else the weights.
of_entry = _plain_of_entry


def _plain_apart(weight: Any) -> Any:
    return (weight, 1.0) if weight is None or np.ndim(weight) else (None, weight)


@overloaded(_plain_apart)
def _apart(weight):
    if isinstance(weight, types.Array) or weight == types.none:
        return lambda weight: (weight, 1.0)
    return lambda weight: (None, weight)


# An `of_entry` as the weights of elements, or None, and as the weight of all of them.
apart = _plain_apart


@functools.cache
def make_read_selected(count: int, *, is_full: bool) -> Callable[..., Any]:
    """Return a compiled ``read_selected(selected, j, active, one)`` of a vector.

    It returns which elements are kept, and their weights as a vector, a number or None. If it is
    not `is_full`, elements that are not active are not kept.
    """
    given = (full_access(count) if is_full else tail_access(count)).coefficient
    masked_kept = make_masked_kept(count)

    @inlined
    def read_full(selected, j, active):
        keep, weights, _ = selected
        return given(keep, j, active, None), widened(given(weights, j, active, None))

    @inlined
    def read_some(selected, j, active):
        keep, weights, _ = selected
        return masked_kept(keep, j, 0, active), widened(given(weights, j, active, None))

    return read_full if is_full else read_some


@inlined
def counted(kept: Any, weight: Any, values: Any, omit: Any, one: Any) -> Any:
    """Return a vector of the weights, 0 where an element does not count, and which of them do."""
    weights = scaled(one, weight)
    counts = weighing(kept, present(weight, weights))
    return where_kept(weights, counts, values, omit), counts


# Loops across channels


def make_tile_sums(
    element_type: ElementType, make_add: Callable[..., Any], tile: int
) -> Callable[..., Any]:
    """Return a compiled function that adds rows to three float64 totals of each channel of a tile.

    ``tile_sums(arrays, selected, begin, row, rows, stride, width, coefficients, sums, totals, at,
    step)`` adds `rows` rows, from number `row` and the flat index `begin` on. The coefficients are
    arrays of a tile. The totals of the channels lie in the flat `totals` from `at`, `at` + `step`
    and `at` + 2 `step` on. `sums` are zeros before and after.
    """
    count, real = element_type.lanes, element_type.compute_type
    load, zeros = make_load(count), make_zeros(real, count)
    load_all = full_access(count).coefficient

    def make_vector(add):
        @inlined
        def vector(arrays, selected, j, row, rows, stride, active, t, coefficients, sums):
            keep, weights, omit = selected
            given, one = load_all(coefficients, t, count, real(0)), zeros() + real(1)
            added = zeros(), zeros(), zeros()
            for r in range(rows):
                of_row = keep, of_entry(weights, row + r), omit
                added = add(arrays, of_row, j + r * stride, active, given, one, added)
            store(sums, t, load(sums, t) + added[0])
            store(sums, tile + t, load(sums, tile + t) + added[1])
            store(sums, 2 * tile + t, load(sums, 2 * tile + t) + added[2])

        return vector

    full_vector = make_vector(make_add(count, is_full=True))
    tail_vector = make_vector(make_add(count, is_full=False))

    @inlined
    def some_rows(arrays, selected, begin, row, rows, stride, width, coefficients, sums):
        tail = width % count
        for t in range(0, width - tail, count):
            j = begin + t
            full_vector(arrays, selected, j, row, rows, stride, tail, t, coefficients, sums)
        if tail > 0:
            t = width - tail
            j = begin + t
            tail_vector(arrays, selected, j, row, rows, stride, tail, t, coefficients, sums)

    @shared
    def tile_sums(
        arrays, selected, begin, row, rows, stride, width, coefficients, sums, totals, at, step
    ):
        for i in range(0, rows, tuning.ROWS_BETWEEN_FLUSHES):
            end = min(i + tuning.ROWS_BETWEEN_FLUSHES, rows)
            for k in range(i, end, tuning.GROUP_ROWS):
                group, j = min(tuning.GROUP_ROWS, end - k), begin + k * stride
                some_rows(arrays, selected, j, row + k, group, stride, width, coefficients, sums)
            for s in range(3):
                of_sum = window(sums, s * tile, width)
                total = window(totals, at + s * step, width)
                for t in range(width):
                    total[t] += of_sum[t]
                    of_sum[t] = 0

    return tile_sums


# Loops along a channel


def make_segment_sums(
    element_type: ElementType, make_add: Callable[..., Any]
) -> Callable[..., Any]:
    """Return a compiled ``segment_sums(arrays, selected, begin, size, coefficients)``.

    It returns three float64 sums over `size` neighbours in a channel, from the flat index `begin`
    on. The coefficients are numbers.
    """
    count, real = 2 * element_type.lanes, element_type.compute_type
    zeros = make_zeros(real, count)
    add_full, add_some = make_add(count, is_full=True), make_add(count, is_full=False)

    @inlined
    def segment_sums(arrays, selected, begin, size, coefficients):
        one, stop = zeros() + real(1), begin + size
        number, first, second = np.float64(0), np.float64(0), np.float64(0)
        for start in range(begin, stop, tuning.SUM_BLOCK_ELEMENTS):
            length = min(tuning.SUM_BLOCK_ELEMENTS, stop - start)
            sums, tail = (zeros(), zeros(), zeros()), length % count
            end = start + length - tail
            for j in range(start, end, count):
                sums = add_full(arrays, selected, j, count, coefficients, one, sums)
            if tail > 0:
                sums = add_some(arrays, selected, end, tail, coefficients, one, sums)
            number += reduce_sum(sums[0])
            first += reduce_sum(sums[1])
            second += reduce_sum(sums[2])
        return number, first, second

    return segment_sums
