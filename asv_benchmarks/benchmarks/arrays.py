"""The arrays that the benchmarks work on."""

from functools import lru_cache
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


# asv runs `setup` again before each sample, and drawing the numbers would take longer than that.
@lru_cache(maxsize=1)
def drawn(shape: tuple[int, ...], dtype: str = "float32") -> tuple[Array, Array]:
    """Return an input and the gradient of an output, the same in every process."""
    generator = np.random.default_rng(0)
    x, dy = (generator.standard_normal(shape, np.float32) for _ in range(2))
    return x.astype(_numpy_dtype(dtype)), dy.astype(_numpy_dtype(dtype))


def _numpy_dtype(name: str) -> Any:
    if name == "bfloat16":
        import ml_dtypes

        return ml_dtypes.bfloat16
    return np.dtype(name)
