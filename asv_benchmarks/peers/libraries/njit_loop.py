"""The loops that a user of Numba would write: mean, variance and result in three passes."""

from __future__ import annotations

import numba
import numpy as np

from ..arrays import Array, Arrays
from ..cases import EPS, Case
from . import Call, njit

PACKAGES = ("numba", "llvmlite", "numpy")

start = njit.start


@numba.njit
def _layer_norm(x: Array, gamma: Array, beta: Array) -> Array:
    rows, width = x.shape
    y = np.empty_like(x)
    for i in range(rows):
        mean = 0.0
        for j in range(width):
            mean += x[i, j]
        mean /= width
        variance = 0.0
        for j in range(width):
            variance += (x[i, j] - mean) ** 2
        rstd = 1 / np.sqrt(variance / width + EPS)
        for j in range(width):
            y[i, j] = (x[i, j] - mean) * rstd * gamma[j] + beta[j]
    return y


@numba.njit
def _batch_norm(x: Array, gamma: Array, beta: Array) -> Array:
    samples, channels = x.shape[:2]
    x = x.reshape(samples, channels, -1)
    size = x.shape[2]
    mean, variance = np.zeros(channels), np.zeros(channels)
    for i in range(samples):
        for c in range(channels):
            for k in range(size):
                mean[c] += x[i, c, k]
    mean /= samples * size
    for i in range(samples):
        for c in range(channels):
            for k in range(size):
                variance[c] += (x[i, c, k] - mean[c]) ** 2
    rstd = 1 / np.sqrt(variance / (samples * size) + EPS)
    y = np.empty_like(x)
    for i in range(samples):
        for c in range(channels):
            for k in range(size):
                y[i, c, k] = (x[i, c, k] - mean[c]) * rstd[c] * gamma[c] + beta[c]
    return y


def call_of(case: Case, arrays: Arrays) -> Call | None:
    """Return the call of a loop."""
    functions = {"layer_norm": _layer_norm, "batch_norm": _batch_norm}
    return njit.compiled_call(case, arrays, functions)
