"""What the kernels with weights share: which elements count, and sums of a row around a pivot.

All arithmetic is in float64. Sums have `LANES` accumulators, each for every `LANES`-th element, so
that LLVM vectorizes the loops without another order of the sums.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from numnorm.backends.cpu.compiler.jit import inlined, shared
from numnorm.backends.cpu.memory.kernel_arrays import make_scratch, window
from numnorm.backends.cpu.simd.vector import make_load, reduce_sum

LANES = 128
_REGISTER = 8
# The pivot of a row is the mean of this many values.
_OF_PIVOT = 16
# A mean square between these lost no digits to underflow and did not overflow.
_SMALLEST, _LARGEST = 1e-280, 1e280

scratch, _load = make_scratch(np.float64, LANES), make_load(_REGISTER)


class Selection(NamedTuple):
    """Which elements count, and how much: flat arrays for all rows of x, or for each row.

    Attributes
    ----------
    keep : array of uint8
        0 where an element is left out.
    keep_step : int
        The distance from a row's numbers to the next row's: 0 if all rows share them.
    weights : array of float64
        The weight of each element.
    weight_step : int
        The same distance for the weights.
    omit : int
        1 if a NaN is left out, else 0.
    """

    keep: Any
    keep_step: int
    weights: Any
    weight_step: int
    omit: int


class Fill(NamedTuple):
    """The results of elements that are left out, and of NaN that is left out."""

    fill: float
    missing: float


@inlined
def of_row(selection, i, width):
    """Return row i of a selection: its keep, its weights, and omit."""
    keep = window(selection.keep, i * selection.keep_step, width)
    weights = window(selection.weights, i * selection.weight_step, width)
    return keep, weights, selection.omit


@inlined
def is_kept(keep, x, omit):
    """Return whether an element is not left out: `simd.kept.is_kept`, with a number for `omit`."""
    return (keep != 0) & ((omit == 0) | (x == x))


@inlined
def quotient(number, divisor):
    """Return ``number / divisor``, NaN unless the divisor is greater than 0."""
    return number / divisor if divisor > 0.0 else np.nan


@inlined
def total_of(lanes):
    """Return the sum of all lanes."""
    total = _load(lanes, 0)
    for k in range(_REGISTER, LANES, _REGISTER):
        total = total + _load(lanes, k)
    return reduce_sum(total)


@inlined
def clear(lanes):
    """Set all lanes to 0."""
    for k in range(LANES):
        lanes[k] = 0.0


@shared
def row_sums(row, keep, weights, omit, scale, pivot):
    """Return the sums of w, w d and w d**2 of a row, with ``d = x * scale - pivot``."""
    total, first, second = scratch(), scratch(), scratch()
    clear(total)
    clear(first)
    clear(second)
    for start in range(0, row.size, LANES):
        n = min(LANES, row.size - start)
        values = window(row, start, n)
        kept, weight = window(keep, start, n), window(weights, start, n)
        for k in range(n):
            x, w = np.float64(values[k]), weight[k]
            counts = is_kept(kept[k], x, omit) & (w > 0.0)
            d = x * scale - pivot if counts else 0.0
            w = w if counts else 0.0
            total[k] += w
            first[k] += w * d
            second[k] += w * d * d
    return total_of(total), total_of(first), total_of(second)


@inlined
def _pivot_of(row, keep, weights, omit, scale):
    """Return the mean of the first elements that count, times `scale`; 0 if there is none."""
    first, further, found = 0.0, 0.0, 0
    for j in range(row.size):
        x = np.float64(row[j])
        if is_kept(keep[j], x, omit) and weights[j] > 0.0:
            # Around the first element, so that a constant row gives exactly that constant.
            first = x * scale if found == 0 else first
            further += x * scale - first
            found += 1
            if found == _OF_PIVOT:
                break
    return first + further / max(found, 1)


@inlined
def _scale_of(row, keep, weights, omit, least):
    """Return the power of two that brings the largest value that counts, or `least`, near 1."""
    largest = least
    for j in range(row.size):
        x = np.float64(row[j])
        if is_kept(keep[j], x, omit) and weights[j] > 0.0 and abs(x) > largest:
            largest = abs(x)
    if not 0.0 < largest < np.inf:
        return 1.0
    _, exponent = math.frexp(largest)
    return math.ldexp(1.0, -min(max(exponent, -1000), 1000))


@shared
def row_statistics(row, keep, weights, omit, centred, least):
    """Return (scale, pivot, mean, total, m2) of a row.

    The mean of ``x * scale`` is ``pivot + mean``, m2 is the sum of its squared deviations, and
    `total` is the sum of the weights. Without centring the mean is 0, and m2 is the sum of squares.
    `least` is the deviation that epsilon alone would give.
    """
    scale, pivot = 1.0, _pivot_of(row, keep, weights, omit, 1.0) if centred else 0.0
    total, first, second = row_sums(row, keep, weights, omit, scale, pivot)
    if not _SMALLEST * total <= second <= _LARGEST * total:
        scale = _scale_of(row, keep, weights, omit, least)
        pivot = _pivot_of(row, keep, weights, omit, scale) if centred else 0.0
        total, first, second = row_sums(row, keep, weights, omit, scale, pivot)
    if not centred:
        return scale, 0.0, 0.0, total, second
    mean = quotient(first, total)
    m2 = second - first * mean
    if first * mean > m2:
        pivot += mean
        total, first, second = row_sums(row, keep, weights, omit, scale, pivot)
        mean = quotient(first, total)
        m2 = second - first * mean
    # max() would turn a NaN into 0.
    return scale, pivot, mean, total, 0.0 if m2 < 0.0 else m2
