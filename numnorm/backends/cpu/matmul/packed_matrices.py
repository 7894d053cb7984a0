"""Products of matrices for loops that are not compiled: memory and storage found here."""

import numpy as np

from numnorm.backends.cpu.matmul.matmul import packed, packed_shape, product, transposed_product
from numnorm.backends.cpu.memory.host_arrays import Array
from numnorm.backends.cpu.memory.placement import tables
from numnorm.backends.cpu.simd.element_type import element_type_of
from numnorm.memory_pool import POOL


def matrix_panels(matrix: Array) -> Array:
    """Return a matrix of a working dtype as `matrix_product` takes it on the right."""
    element_type = element_type_of(matrix.dtype)
    depth, width = matrix.shape
    (room,) = tables(POOL, matrix.dtype, packed_shape(depth, width, element_type))
    return packed(matrix, room, element_type)


def matrix_product(a: Array, panels: Array, width: int) -> Array:
    """Return the product with a matrix of so many columns, given as panels."""
    result = np.empty((a.shape[0], width), a.dtype)
    return product(a, panels, result, element_type_of(a.dtype))


def transposed_matrix_product(a: Array, b: Array) -> Array:
    """Return ``a.T @ b``."""
    return transposed_product(a, matrix_panels(b), b.shape[1], element_type_of(a.dtype))
