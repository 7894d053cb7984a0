"""How elements lie in memory, and the precision that they are computed in."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numba.extending import register_jitable

from numnorm.backends.cpu import halves


@register_jitable
def _same(value: Any) -> Any:
    return value


@dataclasses.dataclass(frozen=True, eq=False)
class Storage:
    """One element type: its container in kernels, its working type, its conversions."""

    name: str
    container: np.dtype[Any]
    working: type
    widen: Callable[[Any], Any]
    narrow: Callable[[Any], Any]
    saved: np.dtype[Any]
    # Variances below this lost digits to underflow in the working type; they are taken again in
    # a wider one. Beyond the largest rstd that number itself leaves the working type's range.
    smallest_variance: float
    largest_rstd: float

    @functools.cached_property
    def working_dtype(self) -> np.dtype[Any]:
        """The working type as a dtype."""
        return np.dtype(self.working)


_STORAGES = {
    "float32": Storage(
        "float32", np.dtype(np.float32), np.float32, _same, _same, np.dtype(np.float64), 1e-30, 1e36
    ),
    "float64": Storage(
        "float64",
        np.dtype(np.float64),
        np.float64,
        _same,
        _same,
        np.dtype(np.float64),
        1e-280,
        np.inf,
    ),
    "float16": Storage(
        "float16",
        np.dtype(np.uint16),
        np.float32,
        halves.float16_to_float32,
        halves.float32_to_float16,
        np.dtype(np.float32),
        1e-30,
        1e36,
    ),
    "bfloat16": Storage(
        "bfloat16",
        np.dtype(np.uint16),
        np.float32,
        halves.bfloat16_to_float32,
        halves.float32_to_bfloat16,
        np.dtype(np.float32),
        1e-30,
        1e36,
    ),
}


@functools.cache
def storage_of(dtype: np.dtype[Any]) -> Storage:
    """Return the storage of one of the supported dtypes."""
    return _STORAGES[dtype.name]
