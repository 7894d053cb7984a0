"""Helpers that turn a cell's parameters into the kernels' arguments."""

from typing import Any

import numpy as np

from numnorm.backends.contract.norms import Norm
from numnorm.backends.cpu.memory.host_arrays import Array


def added_up(size: int, dtype: Any, *values: Array | None) -> Array:
    """Return the sum of all values that are not None, which the kernels then add once."""
    total = np.zeros(size)
    with np.errstate(all="ignore"):  # a sum may leave the range of the dtype
        for value in values:
            if value is not None:
                total += value
        return total.astype(dtype)


def norm_pair(
    norm: Norm | None, gamma: Any, beta: Any, size: int, dtype: Any, ada: tuple[float, float]
) -> tuple[Any, Any]:
    """Return gamma and beta of a norm for the kernels: arrays, numbers for AdaNorm, or None."""
    if norm is None:
        return None, None
    if norm.parameters == 0:
        return dtype.type(ada[0]), dtype.type(ada[1])
    return np.ones(size, dtype) if gamma is None else gamma, beta
