"""The input arrays of the benchmarks."""

from functools import lru_cache
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


# asv runs `setup` before each sample; drawing the numbers again would take too long.
@lru_cache(maxsize=1)
def drawn(shape: tuple[int, ...], dtype: str = "float32") -> tuple[Array, Array]:
    """Return an input and the gradient of an output, the same ones in every process."""
    generator = np.random.default_rng(0)
    x, dy = (generator.standard_normal(shape, np.float32) for _ in range(2))
    return x.astype(_numpy_dtype(dtype)), dy.astype(_numpy_dtype(dtype))


def _numpy_dtype(name: str) -> Any:
    if name == "bfloat16":
        import ml_dtypes

        return ml_dtypes.bfloat16
    return np.dtype(name)
