"""Sums over rows, one for each column.

A thread sums its columns of a few rows in registers. A flush adds up the sums of all teams of a
block, and adds them to the block's row of a table. The sums in the table are compensated, so that
they have all bits of a float32 for any number of rows.
"""

import dataclasses
import functools
from typing import Any

from numnorm.backends.cuda.compiler.element_type import ElementType, compute_element_type
from numnorm.backends.cuda.compiler.target import (
    Kernel,
    constant,
    cuda,
    device,
    make_load_one,
    make_store_one,
)
from numnorm.backends.cuda.threads.reductions import WARP, make_joined, two_sum
from numnorm.backends.cuda.threads.row_columns import (
    RowColumns,
    make_read_columns,
    make_write_columns,
    row_columns,
)
from numnorm.backends.cuda.threads.row_shape import RowShape

# A float32 sum of this many rows loses few of its bits to rounding.
ROWS_BETWEEN_FLUSHES = 32


def _folded_columns(shape: RowShape, columns: RowColumns) -> RowColumns:
    """Return a thread's columns of the sums over all teams of a block."""
    if shape.teams == 1:
        return columns
    return RowColumns(shape.threads, 1, -(-columns.slots // shape.teams))


def smem_for_folding(element: ElementType, shape: RowShape) -> int:
    """Return the number of elements of shared memory that `flush` takes."""
    columns = row_columns(element, shape)
    return 1 if shape.teams == 1 else shape.threads // WARP * columns.reach


def _make_fold_teams(element: ElementType, shape: RowShape) -> Any:
    """Return a device function ``fold_teams(values, folded, at, smem)``.

    It adds `values` over all teams of a block. Each thread gets in `folded` the sums of the columns
    that `_folded_columns` gives it.
    """
    columns = row_columns(element, shape)
    lanes, slots, stride = columns.lanes, columns.slots, columns.stride
    team, threads = shape.team, shape.threads
    zero = constant(element, 0.0)
    steps, warps = (WARP // team).bit_length() - 1, threads // WARP
    vectors = _folded_columns(shape, columns).vectors
    width = columns.reach

    @device
    def fold_teams(values, folded, at, smem):
        thread = cuda.threadIdx.x
        mine = thread // WARP * width + at
        for k in range(slots):
            value = values[k]
            for step in range(steps):
                value += cuda.shfl_xor_sync(0xFFFFFFFF, value, team << step)
            if thread % WARP < team:
                smem[mine + k // lanes * stride + k % lanes] = value
        cuda.syncthreads()
        for p in range(vectors):
            column, total = thread + p * threads, zero
            if column < width:
                for warp in range(warps):
                    total += smem[warp * width + column]
            folded[p] = total
        cuda.syncthreads()  # the next call uses the same shared memory

    return fold_teams


@functools.cache
def make_flush(element: ElementType, shape: RowShape) -> Any:
    """Return a device function that adds the sums in registers to a row of a table.

    ``flush(values, at, width, first, fresh, last, partials, smem)``: the row has the `width`
    numbers of `PartialSums` that begin at index `first`. The `fresh` flush of a row does not read
    the tables, and the last one does not write what rounding lost. All threads of a block must
    call it; `at` is the first column of a thread.
    """
    of = compute_element_type(element)
    columns = _folded_columns(shape, row_columns(element, shape))
    # The tables are new memory: they are aligned even if the rows are not.
    one_vector = dataclasses.replace(columns, vectors=1, aligned=True)
    read_vector, write_vector = (
        make_read_columns(of, one_vector),
        make_write_columns(of, one_vector),
    )
    lanes, vectors, stride = columns.lanes, columns.vectors, columns.stride
    joined = make_joined(element, of)
    slots = columns.slots
    compute_type = element.compute_type
    zero = constant(element, 0.0)

    @device
    def add(values, at, width, first, fresh, last, partials):
        hi, lo = cuda.local.array(lanes, compute_type), cuda.local.array(lanes, compute_type)
        for p in range(vectors):
            here = at + p * stride
            for j in range(lanes):
                hi[j], lo[j] = values[p * lanes + j], zero
            if not fresh:
                read_vector(partials.sums, first, here, width, hi)
                read_vector(partials.lost, first, here, width, lo)
                for j in range(lanes):
                    hi[j], lost = two_sum(hi[j], values[p * lanes + j])
                    lo[j] += lost
            if last:
                for j in range(lanes):
                    hi[j] = joined(hi[j], lo[j])
            else:
                write_vector(partials.lost, first, here, width, lo)
            write_vector(partials.sums, first, here, width, hi)

    if shape.teams == 1:

        @device
        def flush(values, at, width, first, fresh, last, partials, smem):
            add(values, at, width, first, fresh, last, partials)

        return flush
    fold_teams = _make_fold_teams(element, shape)

    @device
    def flush_folded(values, at, width, first, fresh, last, partials, smem):
        folded = cuda.local.array(slots, compute_type)
        fold_teams(values, folded, at, smem)
        add(folded, cuda.threadIdx.x, width, first, fresh, last, partials)

    return flush_folded


# The sum of all parts

COLUMNS = WARP  # columns of a block


def make_parameter_gradients(element: ElementType, of: ElementType, strips: int = 32) -> Kernel:
    """Return the kernel that adds up the rows of ``sums (parameters, count, columns)``.

    It has a block for each `COLUMNS` columns of each parameter. It takes the addresses of sums,
    dgamma and dbeta, and the numbers ``count`` and ``columns``. The sums have the compute type of
    `element`, the gradients have the type `of`. If segments share parameters, the columns are the
    channels; otherwise they are the columns of all channels.

    Each of the `strips` of threads sums every strips-th row; the first strip of threads then adds
    these sums in order.
    """
    table = compute_element_type(element)
    load_one = make_load_one(table)
    store_one = make_store_one(of)
    joined = make_joined(table, of)
    compute_type = table.compute_type
    zero = constant(table, 0.0)
    slots = strips * COLUMNS

    def kernel(sums, dgamma, dbeta, count, columns):
        hi_of = cuda.shared.array(slots, compute_type)
        lo_of = cuda.shared.array(slots, compute_type)
        thread, lane = cuda.threadIdx.x, cuda.threadIdx.x % COLUMNS
        blocks = (columns + COLUMNS - 1) // COLUMNS
        parameter, column = cuda.blockIdx.x // blocks, cuda.blockIdx.x % blocks * COLUMNS + lane
        hi, lo = zero, zero
        if column < columns:
            for row in range(thread // COLUMNS, count, strips):
                index = (parameter * count + row) * columns + column
                hi, lost = two_sum(hi, load_one(sums, index))
                lo += lost
        hi_of[thread], lo_of[thread] = hi, lo
        cuda.syncthreads()
        if thread < COLUMNS and column < columns:
            for strip in range(1, strips):
                hi, lost = two_sum(hi, hi_of[strip * COLUMNS + lane])
                lo += lost + lo_of[strip * COLUMNS + lane]
            store_one(dbeta if parameter else dgamma, column, joined(hi, lo))

    return Kernel(kernel, ("address",) * 3 + ("index",) * 2, slots)
