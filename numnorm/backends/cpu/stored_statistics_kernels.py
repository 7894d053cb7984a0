"""What is made of the stored statistics of channels: a loop over a handful of numbers.

NumPy would take a call for every operation, which a small batch waits for longer than for its
elements.
"""

import math

import numpy as np

from numnorm.backends.cpu.jit import Twins, stand_alone, twins

# Below this a float64 number has lost digits of its squares.
_SMALLEST_VARIANCE = 1e-290


def make_reciprocal_deviations() -> Twins:
    """Return a kernel ``(variance, eps, rstd)`` for 1 / sqrt(variance + eps) of each channel.

    It is 0 for a division by 0, and NaN outside the range of float64.
    """

    def kernel(variance, eps, rstd, first, last):
        stand_alone()
        for c in range(first, last):
            total = variance[c] + eps
            lost = variance[c] > 0.0 and total < _SMALLEST_VARIANCE
            if total == 0.0:
                rstd[c] = 0.0
            elif lost or total < 0.0 or total == np.inf:
                rstd[c] = np.nan
            else:
                rstd[c] = 1.0 / math.sqrt(total)

    return twins("stored_statistics.reciprocal_deviations", kernel)


def make_moving_average() -> Twins:
    """Return a kernel ``(running, new, share)`` that moves each number towards a new one."""

    def kernel(running, new, share, first, last):
        stand_alone()
        for c in range(first, last):
            running[c] = np.float64(running[c]) * (1.0 - share) + new[c] * share

    return twins("stored_statistics.moving_average", kernel)
