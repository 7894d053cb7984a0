"""The parameters of recurrent cells on their way to the kernels."""

from typing import Any

import numpy as np

from numnorm.backends.contract.norms import Norm
from numnorm.backends.cpu.memory.host_arrays import Array


def added_up(size: int, dtype: Any, *values: Array | None) -> Array:
    """Return the sum of the values that there are: what is only added is added once."""
    total = np.zeros(size)
    for value in values:
        if value is not None:
            total += value
    return total.astype(dtype)


def norm_pair(
    norm: Norm | None, gamma: Any, beta: Any, size: int, dtype: Any, ada: tuple[float, float]
) -> tuple[Any, Any]:
    """Return gamma and beta as the kernels take those of this norm."""
    if norm is None:
        return None, None
    if norm.parameters == 0:
        return dtype.type(ada[0]), dtype.type(ada[1])
    return np.ones(size, dtype) if gamma is None else gamma, beta
