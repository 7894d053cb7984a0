"""Products of matrices whose every element is the same bytes, whatever stands beside it."""

import functools
from typing import Any

import numpy as np

from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.compiler.jit import Kernel
from numnorm.backends.cpu.compiler.parallel import run, threads
from numnorm.backends.cpu.matmul.kernels import (
    make_columns_product,
    make_pack,
    make_pack_transposed,
    make_rows_product,
)
from numnorm.backends.cpu.simd.element_type import Storage

Array = np.ndarray[Any, Any]


@functools.cache
def _kernel(make: Any, storage: Storage) -> Kernel:
    made: Kernel = make(storage)
    return made


def _parts(size: int) -> int:
    """Return into how many parts so many rows or columns are cut, as many for every thread."""
    most, each = size // tuning.MATMUL_PART_LEAST_ROWS, threads()
    parts = max(1, min(tuning.MATMUL_PARTS_MOST, most))
    return parts if parts < each else parts // each * each


def packed_shape(depth: int, width: int, storage: Storage) -> tuple[int]:
    """Return the shape of a packed matrix of this shape."""
    return (-(-width // storage.lanes) * storage.lanes * depth,)


def packed(matrix: Array, panels: Array, storage: Storage) -> Array:
    """Return a matrix, or a transposed one, as products take it, in an array for it."""
    depth, width = matrix.shape
    if matrix.flags.c_contiguous:
        make, source = make_pack, matrix
    else:
        make, source = make_pack_transposed, matrix.T
    parts = _parts(max(depth, width))
    run(_kernel(make, storage), (source, panels, parts), matrix.size, parts)
    return panels


def product(a: Array, b: Array, result: Array, storage: Storage) -> Array:
    """Return ``a @ b``, for a packed b, in an array for it."""
    width = result.shape[1]
    parts = _parts(a.shape[0])
    run(_kernel(make_rows_product, storage), (a, b, result, parts), a.size * width // 64, parts)
    return result


def transposed_product(a: Array, b: Array, width: int, storage: Storage) -> Array:
    """Return ``a.T @ b`` for a packed b of so many columns."""
    result = np.zeros((a.shape[1], width), storage.working_dtype)
    return add_transposed_product(a, b, result, storage)


def add_transposed_product(a: Array, b: Array, result: Array, storage: Storage) -> Array:
    """Return `result` with ``a.T @ b`` added to it, for a packed b."""
    parts = _parts(a.shape[1])
    work = a.size * result.shape[1] // 64
    run(_kernel(make_columns_product, storage), (a, b, result, parts), work, parts)
    return result
