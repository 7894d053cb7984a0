"""Sums over all steps of a recurrent cell, for the gradients of its biases and its norms.

Each thread sums one column over a part of the rows, so threads need no synchronization.
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
    make_load_statistics,
    normalized,
)
from numnorm.backends.cuda.threads.compensated_sums import make_joined, two_sum

# A plain sum of this many terms is accurate; longer sums are compensated.
_ROWS_BETWEEN_FLUSHES = 32
_COLUMNS = 128  # in a block
_THREADS = 1 << 17  # in all blocks together, as for the gradients of rows


def blocks_of_columns(columns: int) -> int:
    """Return the number of blocks for one part of the rows."""
    return -(-columns // _COLUMNS)


def parts_of(rows: int, columns: int) -> int:
    """Return the number of parts of the rows; it depends on the shape alone."""
    most = max(1, _THREADS // (blocks_of_columns(columns) * _COLUMNS))
    return min(-(-rows // _ROWS_BETWEEN_FLUSHES), most)


def _make_xhat(element: ElementType, normed: bool) -> Any:
    """Return a device function ``xhat(values, table, row, column, columns, sites, site)``."""
    zero = constant(element, 0.0)
    if not normed:
        return device(lambda values, table, row, column, columns, sites, site: zero)
    load_one, load_statistics = make_load_one(element), make_load_statistics(element, 1)
    compute_type = element.compute_type

    @device
    def xhat(values, table, row, column, columns, sites, site):
        stats = cuda.local.array(NUMBERS, compute_type)
        load_statistics(table, row, sites, site, stats)
        return normalized(load_one(values, row * columns + column), stats, 0)

    return xhat


def make_cell_sums(element: ElementType, *, normed: bool) -> Kernel:
    """Return the kernel of sums over rows, for each column.

    Launched with `blocks_of_columns` blocks for each part, it takes as addresses ``grads, values
    (rows, columns)``, the ``table`` of statistics, and ``sums (2, parts, columns)``, where it
    stores the sums of ``grad * xhat`` and of ``grad``; without a norm, ``sums (1, parts, columns)``
    of ``grad`` alone. Then come ``rows, columns, parts``, the number of ``sites`` in a row of the
    table, this norm's first ``site``, and the ``width`` of the columns that share a site.
    """
    load_one, store_one = make_load_one(element), make_store_one(element)
    xhat, zero = _make_xhat(element, normed), constant(element, 0.0)
    joined = make_joined(element, element)

    def kernel(grads, values, table, sums, rows, columns, parts, sites, site, width):
        blocks = (columns + _COLUMNS - 1) // _COLUMNS
        part, column = cuda.blockIdx.x // blocks, cuda.blockIdx.x % blocks * _COLUMNS
        column += cuda.threadIdx.x
        if column < columns:
            own_site = site + column // width
            sum_xhat_hi, sum_xhat_lo, sum_hi, sum_lo = zero, zero, zero, zero
            row = part
            while row < rows:
                chunk_xhat, chunk = zero, zero
                stop = min(row + _ROWS_BETWEEN_FLUSHES * parts, rows)
                while row < stop:
                    grad = load_one(grads, row * columns + column)
                    chunk += grad
                    chunk_xhat += grad * xhat(values, table, row, column, columns, sites, own_site)
                    row += parts
                sum_xhat_hi, lost = two_sum(sum_xhat_hi, chunk_xhat)
                sum_xhat_lo += lost
                sum_hi, lost = two_sum(sum_hi, chunk)
                sum_lo += lost
            index = part * columns + column
            if normed:
                store_one(sums, index, joined(sum_xhat_hi, sum_xhat_lo))
                index += parts * columns
            store_one(sums, index, joined(sum_hi, sum_lo))

    return Kernel(kernel, ("address",) * 4 + ("index",) * 6, _COLUMNS)


def make_add_sums(element: ElementType) -> Kernel:
    """Return the kernel that adds up to three arrays.

    It takes the addresses ``a, b, c, result``, where the address 0 means no array, and ``count``.
    """
    load_one, store_one = make_load_one(element), make_store_one(element)
    zero, joined = constant(element, 0.0), make_joined(element, element)

    @device
    def load(address, i):
        return load_one(address, i) if address != 0 else zero

    def kernel(a, b, c, result, count):
        i = cuda.blockIdx.x * _COLUMNS + cuda.threadIdx.x
        if i < count:
            total, lost = two_sum(load(a, i), load(b, i))
            total, more = two_sum(total, load(c, i))
            store_one(result, i, joined(total, lost + more))

    return Kernel(kernel, ("address",) * 4 + ("index",), _COLUMNS)
