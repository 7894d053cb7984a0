"""What is made of the stored statistics of channels: a loop over a handful of numbers.

NumPy would take a call for every operation, which a small batch waits for longer than for its
elements.
"""

import math
from typing import Any

import numpy as np

from numnorm.backends.cpu.compiler.jit import Kernel, inlined, make_kernel, mark_noinline
from numnorm.backends.cpu.memory.borrowed import borrowed

# Below this a float64 number has lost digits of its squares.
_SMALLEST_VARIANCE = 1e-290


@inlined
def fill_reciprocal_deviations(m2: Any, divisor: float, eps: float, rstd: Any) -> None:
    """Store 1 / sqrt(m2 / divisor + eps) of each channel.

    It is 0 for a division by 0, and NaN outside the range of float64.
    """
    for c in range(rstd.size):
        variance = np.float64(m2[c]) / divisor
        total = variance + eps
        lost = (variance > 0.0) & (total < _SMALLEST_VARIANCE)
        outside = lost | (total < 0.0) | (total == np.inf)
        reciprocal = 1.0 / math.sqrt(1.0 if outside | (total == 0.0) else total)
        rstd[c] = 0.0 if total == 0.0 else (np.nan if outside else reciprocal)


@inlined
def _move(running: Any, new: Any, divisor: float, share: float) -> None:
    for c in range(running.size):
        running[c] = np.float64(running[c]) * (1.0 - share) + new[c] / divisor * share


def make_moving_averages() -> Kernel:
    """Return a kernel that moves both running statistics towards those of a new batch.

    It takes ``running_mean, running_var, mean, m2, divisor, share``, where m2 over the divisor is
    the new variance.
    """

    def kernel(running_mean, running_var, mean, m2, divisor, share, first, last):
        mark_noinline()
        _move(borrowed(running_mean), borrowed(mean), 1.0, share)
        _move(borrowed(running_var), borrowed(m2), divisor, share)

    return make_kernel("stored_statistics.moving_averages", kernel)
