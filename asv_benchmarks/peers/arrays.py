"""The numbers that every library is given: the same in every process."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from .cases import Case

Array = np.ndarray[Any, Any]


class Arrays(NamedTuple):
    """The input, the gradient of the output, the parameters, and the stored statistics."""

    x: Any
    dy: Any
    gamma: Any
    beta: Any
    mean: Any
    variance: Any


# Shared by the cases of one array, which follow each other; two of the largest would be too many.
@lru_cache(maxsize=1)
def _drawn(shape: tuple[int, ...], dtype: str) -> Arrays:
    generator = np.random.default_rng(0)
    # A mean and a spread that no formula finds hard: speed is compared here, not accuracy.
    x = 0.5 + 1.5 * generator.standard_normal(shape, np.float32)
    dy = generator.standard_normal(shape, np.float32)
    width = shape[1]
    small = (
        np.linspace(0.5, 1.5, width),
        np.linspace(-1, 1, width),
        np.linspace(0.4, 0.6, width),
        np.linspace(2, 2.5, width),
    )
    return Arrays(*(array.astype(_numpy_dtype(dtype), copy=False) for array in (x, dy, *small)))


def arrays_of(case: Case) -> Arrays:
    """Return NumPy arrays in the dtype of `case`; the axis 1 is that of rows and of channels."""
    return _drawn(case.shape, case.dtype)


def _numpy_dtype(name: str) -> Any:
    if name == "bfloat16":
        import ml_dtypes

        return ml_dtypes.bfloat16
    return np.dtype(name)
