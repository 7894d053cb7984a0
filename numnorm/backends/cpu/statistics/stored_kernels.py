"""Loops over the stored statistics of channels.

NumPy would need a call for every operation. For a small batch these calls take longer than the
work on its elements.
"""

import math
from typing import Any

import numpy as np

from numnorm.backends.cpu.compiler.jit import Function, inlined, make_function
from numnorm.backends.cpu.memory.borrowed import window
from numnorm.backends.cpu.simd.element_type import element_type_of
from numnorm.backends.cpu.statistics.saved import MOST_LOST, make_sum_of_deviations
from numnorm.backends.formulas.norms import moved

_moved = inlined(moved)

# Squares with a sum below this may have lost digits in float64.
_SMALLEST_VARIANCE = 1e-301


@inlined
def fill_reciprocal_deviations(m2: Any, divisor: float, eps: float, rstd: Any) -> bool:
    """Store ``1 / sqrt(m2 / divisor + eps)`` of each channel in `rstd`.

    It is 0 if the sum under the root is 0, NaN if it is negative, infinite, or so small that the
    squares in m2 have lost digits. Return whether any m2 is negative.
    """
    negative = 0
    for c in range(rstd.size):
        variance = np.float64(m2[c]) / divisor
        total = variance + eps
        lost = (m2[c] > 0.0) & (total < _SMALLEST_VARIANCE)
        outside = lost | (total < 0.0) | (total == np.inf)
        reciprocal = 1.0 / math.sqrt(1.0 if outside | (total == 0.0) else total)
        rstd[c] = 0.0 if total == 0.0 else (np.nan if outside else reciprocal)
        negative += 1 if m2[c] < 0.0 else 0
    return negative > 0


@inlined
def _move(running: Any, new: Any, divisor: float, momentum: float) -> None:
    for c in range(running.size):
        running[c] = _moved(np.float64(running[c]), new[c] / divisor, momentum)


def make_moving_averages() -> Function:
    """Return the kernel ``(running_mean, running_var, mean, m2, divisor, momentum)``.

    It moves both running statistics towards the mean and the variance, m2 / divisor, of a new
    batch, whose weight is `momentum`.
    """

    def kernel(running_mean, running_var, mean, m2, divisor, momentum):
        _move(running_mean, mean, 1.0, momentum)
        _move(running_var, m2, divisor, momentum)

    return make_function("stored_statistics.moving_averages", kernel)


def make_restored_means() -> Function:
    """Return the kernel ``(x, inner, sums, table)`` of `restore_means`.

    The array x of float64 is flat; its channels have `inner` contiguous elements. The `sums` of the
    channels are 0 at first.
    """
    sum_of_deviations = make_sum_of_deviations(element_type_of(np.dtype(np.float64)))
    most_lost = MOST_LOST

    def kernel(x, inner, sums, table):
        scale, mean, mean_lo = table[0], table[1], table[3]
        channels = sums.size
        for j in range(0, x.size, channels * inner):
            for c in range(channels):
                if inner == 1:
                    sums[c] += x[j + c] * scale[c] - mean[c]
                else:
                    values = window(x, j + c * inner, inner)
                    sums[c] += sum_of_deviations(values, scale[c], mean[c])
        for c in range(channels):
            lost = sums[c] / (x.size // channels)
            if abs(lost) <= most_lost * abs(mean[c]):
                mean_lo[c] = lost

    return make_function("stored_statistics.restored_means", kernel)
