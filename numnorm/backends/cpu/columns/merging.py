"""Moments whose count is a number for each channel: sums of weights, merged."""

from typing import Any

import numpy as np

from numnorm.backends.cpu.memory.host_arrays import Array
from numnorm.backends.formulas.norms import split_sum

# The count, mean, m2 and mean_lo of each channel, all float64.
Counted = tuple[Array, Array, Array, Array]


def merge_counted(one: Counted, other: Counted) -> Counted:
    """Return the moments of two sets of values together: `merge_moments` for each channel."""
    count, mean, m2, mean_lo = one
    other_count, other_mean, other_m2, other_lo = other
    with np.errstate(all="ignore"):
        total = count + other_count
        weight = other_count / np.where(total > 0.0, total, 1.0)
        # A step from the set with the larger count goes at most half of the way.
        ahead = weight > 0.5
        half = (other_mean * 0.5 - mean * 0.5) + (other_lo * 0.5 - mean_lo * 0.5)
        step = half * np.where(ahead, 2.0 * (weight - 1.0), 2.0 * weight)
        start, start_lo = np.where(ahead, other_mean, mean), np.where(ahead, other_lo, mean_lo)
        rounded, lost = two_sum(start, step)
        merged, merged_lo = split_sum(rounded, lost + start_lo)
        between = half * (4.0 * count * weight) * half
        sums = merged, m2 + other_m2 + between, merged_lo
    # A set without values may have any mean.
    filled = [
        np.where(other_count == 0.0, a, np.where(count == 0.0, b, both))
        for a, b, both in zip(one[1:], other[1:], sums, strict=True)
    ]
    return total, filled[0], filled[1], filled[2]


def two_sum(a: Any, b: Any) -> tuple[Any, Any]:
    """Return the rounded sum of any two numbers, and what it lost (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)
