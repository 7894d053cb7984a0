"""Sums over the rows of a small matrix on a device."""

import functools
from typing import Any

from numnorm.backends.cuda.arrays.device_array import DeviceArray
from numnorm.backends.cuda.arrays.launch import launch
from numnorm.backends.cuda.compiler.element_type import FLOAT64, ElementType
from numnorm.backends.cuda.compiler.target import (
    Kernel,
    constant,
    cuda,
    make_load_one,
    make_store_one,
)

_THREADS = 128


def make_row_totals(of: ElementType, into: ElementType) -> Kernel:
    """Return the kernel of the sums over the rows of a matrix, each rounded once.

    It takes the addresses of the matrix and of the sums, and the numbers of rows and columns.
    """
    load, store = make_load_one(of), make_store_one(into)
    wide, rounded, zero = FLOAT64.compute_type, into.compute_type, constant(FLOAT64, 0.0)

    def kernel(matrix, sums, rows, columns):
        column = cuda.blockIdx.x * _THREADS + cuda.threadIdx.x
        if column < columns:
            total = zero
            for row in range(rows):
                total += wide(load(matrix, row * columns + column))
            store(sums, column, rounded(total))

    return Kernel(kernel, ("address",) * 2 + ("index",) * 2, _THREADS)


_row_totals = functools.cache(make_row_totals)


def write_row_totals(
    x: DeviceArray,
    of: ElementType,
    matrix: Any,
    sums: Any,
    rows: int,
    columns: int,
    into: ElementType | None = None,
) -> None:
    """Write the sums over the rows of a matrix, which lies where x does, in its type or another."""
    if columns:
        blocks = -(-columns // _THREADS)
        launch(_row_totals(of, into or of), blocks, x, (matrix, sums), (rows, columns))
