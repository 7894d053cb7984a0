"""What the kernels with weights share: which elements count, and sums of a row around a pivot.

All arithmetic is in float64. Sums have `LANES` accumulators, each for every `LANES`-th element, so
that LLVM vectorizes the loops without another order of the sums.
"""

from typing import Any, NamedTuple

import numpy as np

from numnorm.backends.cpu.compiler.jit import inlined, shared
from numnorm.backends.cpu.memory.kernel_arrays import make_scratch, window
from numnorm.backends.cpu.simd.vector import make_load, reduce_sum

LANES = 128
_REGISTER = 8

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
