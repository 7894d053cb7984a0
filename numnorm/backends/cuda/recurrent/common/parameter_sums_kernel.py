"""Sums over all steps of a recurrent cell, for the gradients of its biases and its norms.

A block adds up some columns of a part of the rows, a thread each of them: no threads meet.
"""

from typing import Any

from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import (
    Kernel,
    constant,
    cuda,
    device,
    make_load_one,
    make_store_one,
)
from numnorm.backends.cuda.recurrent.common.cell_norm import (
    NUMBERS,
    make_kept_statistics,
    normalized,
)
from numnorm.backends.cuda.threads.compensated_sums import make_joined, two_sum

# Few enough that a sum of so many terms is good to its last bits.
_ROWS_BETWEEN_FLUSHES = 32
_COLUMNS = 128  # of a block
_THREADS = 1 << 17  # of all blocks together, as for the gradients of rows


def blocks_of_columns(columns: int) -> int:
    """Return how many blocks a part of the rows has."""
    return -(-columns // _COLUMNS)


def parts_of(rows: int, columns: int) -> int:
    """Return into how many parts the rows are cut: that follows from the shape alone."""
    most = max(1, _THREADS // (blocks_of_columns(columns) * _COLUMNS))
    return min(-(-rows // _ROWS_BETWEEN_FLUSHES), most)


def _make_value(element: ElementType, normed: bool) -> Any:
    """Return a device function ``value(values, table, row, column, cut)``: a normalized value."""
    zero = constant(element, 0.0)
    if not normed:
        return device(lambda values, table, row, column, cut: zero)
    load_one, kept = make_load_one(element), make_kept_statistics(element, 1)
    compute_type = element.compute_type

    @device
    def value(values, table, row, column, cut):
        found = cuda.local.array(NUMBERS, compute_type)
        columns, sites, place = cut
        kept(table, row, sites, place, found)
        return normalized(load_one(values, row * columns + column), found, 0)

    return value


def make_cell_sums(element: ElementType, *, normed: bool) -> Kernel:
    """Return the kernel of sums over rows, for each column.

    Launched with `blocks_of_columns` blocks for each part, it takes as addresses ``grads, values
    (rows, columns)``, the ``table`` of statistics, and ``sums (2, parts, columns)``, where it
    leaves the sums of the slopes times the normalized values and those of the slopes; without a
    norm ``sums (1, parts, columns)`` of the slopes alone. Then come ``rows, columns, parts``, how
    many ``sites`` a row of the table has, the first ``place`` of this norm, and the ``width`` of
    what is normalized together.
    """
    load_one, store_one = make_load_one(element), make_store_one(element)
    value, zero = _make_value(element, normed), constant(element, 0.0)
    joined = make_joined(element, element)

    def kernel(grads, values, table, sums, rows, columns, parts, sites, place, width):
        strips = (columns + _COLUMNS - 1) // _COLUMNS
        part, column = cuda.blockIdx.x // strips, cuda.blockIdx.x % strips * _COLUMNS
        column += cuda.threadIdx.x
        if column < columns:
            cut = columns, sites, place + column // width
            of_value, of_value_low, of_slope, of_slope_low = zero, zero, zero, zero
            row = part
            while row < rows:
                some_values, some_slopes = zero, zero
                stop = min(row + _ROWS_BETWEEN_FLUSHES * parts, rows)
                while row < stop:
                    grad = load_one(grads, row * columns + column)
                    some_slopes += grad
                    some_values += grad * value(values, table, row, column, cut)
                    row += parts
                of_value, lost = two_sum(of_value, some_values)
                of_value_low += lost
                of_slope, lost = two_sum(of_slope, some_slopes)
                of_slope_low += lost
            at = part * columns + column
            if normed:
                store_one(sums, at, joined(of_value, of_value_low))
                at += parts * columns
            store_one(sums, at, joined(of_slope, of_slope_low))

    return Kernel(kernel, ("address",) * 4 + ("index",) * 6, _COLUMNS)


def make_added_up(element: ElementType) -> Kernel:
    """Return the kernel that adds up to three arrays.

    It takes ``a, b, c, result`` as addresses, 0 for what there is not, and ``count``.
    """
    load_one, store_one = make_load_one(element), make_store_one(element)
    zero, joined = constant(element, 0.0), make_joined(element, element)

    @device
    def value(address, i):
        return load_one(address, i) if address != 0 else zero

    def kernel(a, b, c, result, count):
        i = cuda.blockIdx.x * _COLUMNS + cuda.threadIdx.x
        if i < count:
            total, lost = two_sum(value(a, i), value(b, i))
            total, more = two_sum(total, value(c, i))
            store_one(result, i, joined(total, lost + more))

    return Kernel(kernel, ("address",) * 4 + ("index",), _COLUMNS)
