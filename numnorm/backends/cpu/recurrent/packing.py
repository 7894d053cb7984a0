"""Backend functions for cell parameters that are packed once for many calls."""

from typing import Any

import numpy as np

from numnorm.array_likes import as_plain_array
from numnorm.backends.cpu.memory.host_arrays import Array
from numnorm.backends.cpu.simd.element_type import element_type_of


def packed_like(beside: Array, dtype: Any) -> Array:
    """Return an empty array of the compute dtype of `dtype`."""
    return np.empty(0, element_type_of(dtype).compute_dtype)


def copied_parameter(name: str, value: Any, x: Array) -> Array:
    """Return a copy of a parameter."""
    return as_plain_array(name, value).copy()


def check_packed(parameter: Any, x: Array) -> None:
    """Do nothing: every array of this backend lies on the host."""
