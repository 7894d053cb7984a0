"""Matrix products for callers in Python, with memory from the pool."""

import numpy as np

from numnorm.backends.cpu.memory.host_arrays import Array
from numnorm.backends.cpu.memory.placement import tables
from numnorm.backends.cpu.recurrent.matmul.matmul import (
    matmul,
    packed,
    packed_shape,
    transposed_matmul,
)
from numnorm.backends.cpu.simd.element_type import element_type_of
from numnorm.memory_pool import POOL


def matrix_panels(matrix: Array) -> Array:
    """Return the panels of a float32 or float64 matrix, for `packed_matmul`."""
    element_type = element_type_of(matrix.dtype)
    depth, width = matrix.shape
    (panels,) = tables(POOL, matrix.dtype, packed_shape(depth, width, element_type))
    return packed(matrix, panels, element_type)


def packed_matmul(a: Array, panels: Array, width: int) -> Array:
    """Return the product of a and a packed matrix of `width` columns."""
    result = np.empty((a.shape[0], width), a.dtype)
    return matmul(a, panels, result, element_type_of(a.dtype))


def packed_transposed_matmul(a: Array, b: Array) -> Array:
    """Return ``a.T @ b``."""
    return transposed_matmul(a, matrix_panels(b), b.shape[1], element_type_of(a.dtype))
