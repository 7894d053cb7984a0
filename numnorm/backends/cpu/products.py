"""Products of matrices whose every element is the same bytes, whatever stands beside it."""

import functools
from typing import Any

import numpy as np

from numnorm.backends.cpu.jit import Twins
from numnorm.backends.cpu.memory import empty_table
from numnorm.backends.cpu.parallel import run
from numnorm.backends.cpu.product_kernels import (
    make_columns_product,
    make_pack,
    make_pack_transposed,
    make_rows_product,
)
from numnorm.backends.cpu.storage import Storage

Array = np.ndarray[Any, Any]

# A part of a product has rows for a few of the largest tiles.
_LEAST_ROWS = 48


@functools.cache
def _kernel(make: Any, storage: Storage) -> Twins:
    made: Twins = make(storage)
    return made


def table(shape: tuple[int, int], storage: Storage) -> Array:
    """Return an uninitialized C-contiguous array that begins on a cache line."""
    size = shape[0] * shape[1]
    return empty_table(1, size, storage.working_dtype).reshape(-1)[:size].reshape(shape)


def packed(matrix: Array, storage: Storage) -> Array:
    """Return a matrix, or a transposed one, as the flat panels that products take."""
    depth, width = matrix.shape
    panels = empty_table(-(-width // storage.lanes) * depth, storage.lanes, storage.working_dtype)
    if matrix.flags.c_contiguous:
        make, source = make_pack, matrix
    else:
        make, source = make_pack_transposed, matrix.T
    parts = max(1, min(64, max(depth, width) // _LEAST_ROWS))
    run(_kernel(make, storage), (source, panels.reshape(-1), parts), matrix.size, parts)
    return panels.reshape(-1)


def product(a: Array, b: Array, width: int, storage: Storage) -> Array:
    """Return ``a @ b`` for a packed b of so many columns."""
    result = table((a.shape[0], width), storage)
    parts = max(1, min(64, a.shape[0] // _LEAST_ROWS))
    run(_kernel(make_rows_product, storage), (a, b, result, parts), a.size * width // 64, parts)
    return result


def transposed_product(a: Array, b: Array, width: int, storage: Storage) -> Array:
    """Return ``a.T @ b`` for a packed b of so many columns."""
    result = np.zeros((a.shape[1], width), storage.working_dtype)
    parts = max(1, min(64, a.shape[1] // _LEAST_ROWS))
    run(_kernel(make_columns_product, storage), (a, b, result, parts), a.size * width // 64, parts)
    return result
