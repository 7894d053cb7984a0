"""Matrix products whose elements do not depend on the other rows and columns, to the last bit."""

import functools
from typing import Any

import numpy as np

from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.compiler.jit import Kernel
from numnorm.backends.cpu.compiler.parallel import run, threads
from numnorm.backends.cpu.recurrent.matmul.kernels import (
    make_columns_matmul,
    make_pack,
    make_pack_transposed,
    make_rows_matmul,
)
from numnorm.backends.cpu.simd.element_type import ElementType

Array = np.ndarray[Any, Any]


@functools.cache
def _kernel(make: Any, element_type: ElementType) -> Kernel:
    made: Kernel = make(element_type)
    return made


def _parts(size: int, work: int) -> int:
    """Return into how many parts to divide rows or columns: a multiple of the number of threads."""
    most, count = size // tuning.MATMUL_PART_LEAST_ROWS, threads(work)
    parts = max(1, min(tuning.MATMUL_PARTS_MOST, most))
    return parts if parts < count else parts // count * count


def _work(size: int, width: int, itemsize: int) -> int:
    """Return the work of a product of `size` times `width` multiplications."""
    return size * width * itemsize // tuning.MATMUL_MULTIPLICATIONS_PER_WORD


def packed_shape(depth: int, width: int, element_type: ElementType) -> tuple[int]:
    """Return the shape of the panels of a matrix of shape (depth, width)."""
    return (-(-width // element_type.lanes) * element_type.lanes * depth,)


def packed(matrix: Array, panels: Array, element_type: ElementType) -> Array:
    """Pack a matrix, or a transposed view of one, into `panels`, and return them."""
    depth, width = matrix.shape
    if matrix.flags.c_contiguous:
        make, source = make_pack, matrix
    else:
        make, source = make_pack_transposed, matrix.T
    work = 2 * matrix.nbytes
    parts = _parts(max(depth, width), work)
    run(_kernel(make, element_type), (source, panels, parts), work, parts)
    return panels


def matmul(a: Array, b: Array, result: Array, element_type: ElementType) -> Array:
    """Store ``a @ b`` for a packed b in `result`, and return it."""
    work = _work(a.size, result.shape[1], a.itemsize)
    parts = _parts(a.shape[0], work)
    run(_kernel(make_rows_matmul, element_type), (a, b, result, parts), work, parts)
    return result


def transposed_matmul(a: Array, b: Array, width: int, element_type: ElementType) -> Array:
    """Return ``a.T @ b`` for a packed b of `width` columns."""
    result = np.zeros((a.shape[1], width), element_type.compute_dtype)
    return add_transposed_matmul(a, b, result, element_type)


def add_transposed_matmul(a: Array, b: Array, result: Array, element_type: ElementType) -> Array:
    """Add ``a.T @ b`` for a packed b to `result`, and return it."""
    work = _work(a.size, result.shape[1], a.itemsize)
    parts = _parts(a.shape[1], work)
    run(_kernel(make_columns_matmul, element_type), (a, b, result, parts), work, parts)
    return result
