"""The CPU backend: NumPy arrays, Numba kernels."""

from numnorm.backends.cpu.arrays import as_float_array, as_statistic
from numnorm.backends.cpu.columns import column_backward, column_forward, column_moments
from numnorm.backends.cpu.rows import row_backward, row_forward
from numnorm.backends.cpu.statistics import (
    reciprocal,
    reciprocal_deviation,
    running_statistics,
    saved,
    update_running,
)

__all__ = [
    "as_float_array",
    "as_statistic",
    "column_backward",
    "column_forward",
    "column_moments",
    "reciprocal",
    "reciprocal_deviation",
    "row_backward",
    "row_forward",
    "running_statistics",
    "saved",
    "update_running",
]
