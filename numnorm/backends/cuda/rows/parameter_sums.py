"""Sums over rows, one for each column of a row, that begin in registers.

So many rows are added up in the registers of the threads that hold their columns. Those of a
block's teams are then folded, and added to the block's row of a table as compensated sums: a
float32 is good to its last bits however many rows there are.
"""

import dataclasses
import functools
from typing import Any

from numnorm.backends.cuda.compiler.element_type import Element, working_element
from numnorm.backends.cuda.compiler.target import constant, cuda, device
from numnorm.backends.cuda.threads.compensated_sums import make_joined, two_sum
from numnorm.backends.cuda.threads.group_reductions import WARP
from numnorm.backends.cuda.threads.row_columns import (
    RowColumns,
    make_read_columns,
    make_write_columns,
    row_columns,
)
from numnorm.backends.cuda.threads.row_shape import RowShape

# Few enough that a float32 sum of so many terms is good to its last bits.
ROWS_BETWEEN_FLUSHES = 32


def _folded_columns(shape: RowShape, columns: RowColumns) -> RowColumns:
    """Return the columns that a thread holds once the teams of a block are folded."""
    if shape.teams == 1:
        return columns
    return RowColumns(shape.threads, 1, -(-columns.slots // shape.teams))


def room_for_folding(element: Element, shape: RowShape) -> int:
    """Return how many numbers of the working type the threads of a block share for `flush`."""
    columns = row_columns(element, shape)
    return 1 if shape.teams == 1 else shape.threads // WARP * columns.reach


def _make_fold_teams(element: Element, shape: RowShape) -> Any:
    """Return a device function ``fold_teams(values, folded, at, room)``.

    Each team's values become the sums over all teams, in the columns of `_folded_columns`.
    """
    columns = row_columns(element, shape)
    lanes, slots, stride = columns.lanes, columns.slots, columns.stride
    team, threads, zero = shape.team, shape.threads, constant(element, 0.0)
    steps, warps = (WARP // team).bit_length() - 1, threads // WARP
    pieces, width = _folded_columns(shape, columns).pieces, columns.reach

    @device
    def fold_teams(values, folded, at, room):
        thread = cuda.threadIdx.x
        mine = thread // WARP * width + at
        for k in range(slots):
            value = values[k]
            for step in range(steps):
                value += cuda.shfl_xor_sync(0xFFFFFFFF, value, team << step)
            if thread % WARP < team:
                room[mine + k // lanes * stride + k % lanes] = value
        cuda.syncthreads()
        for p in range(pieces):
            column, total = thread + p * threads, zero
            if column < width:
                for warp in range(warps):
                    total += room[warp * width + column]
            folded[p] = total
        cuda.syncthreads()  # the next fold takes the same room

    return fold_teams


@functools.cache
def make_flush(element: Element, shape: RowShape) -> Any:
    """Return a device function that adds the sums in registers to a row of a table.

    ``flush(values, at, width, first, fresh, last, sums, rests, room)``: the table's row is the
    `width` numbers of ``sums`` that begin at `first`. What rounding lost is in `rests`, which is
    neither read if this is the `fresh` flush of a row nor written if it is the last. All threads
    of a block take part, with the first of their columns in `at`.
    """
    columns, of = _folded_columns(shape, row_columns(element, shape)), working_element(element)
    # The table is new memory, aligned wherever the rows are.
    one_piece = dataclasses.replace(columns, pieces=1, aligned=True)
    read_piece, write_piece = make_read_columns(of, one_piece), make_write_columns(of, one_piece)
    lanes, pieces, stride = columns.lanes, columns.pieces, columns.stride
    joined, slots, working = make_joined(element, of), columns.slots, element.working
    zero = constant(element, 0.0)

    @device
    def add(values, at, width, first, fresh, last, sums, rests):
        high, low = cuda.local.array(lanes, working), cuda.local.array(lanes, working)
        for p in range(pieces):
            here = at + p * stride
            for j in range(lanes):
                high[j], low[j] = values[p * lanes + j], zero
            if not fresh:
                read_piece(sums, first, here, width, high)
                read_piece(rests, first, here, width, low)
                for j in range(lanes):
                    high[j], lost = two_sum(high[j], values[p * lanes + j])
                    low[j] += lost
            if last:
                for j in range(lanes):
                    high[j] = joined(high[j], low[j])
            else:
                write_piece(rests, first, here, width, low)
            write_piece(sums, first, here, width, high)

    if shape.teams == 1:

        @device
        def flush(values, at, width, first, fresh, last, sums, rests, room):
            add(values, at, width, first, fresh, last, sums, rests)

        return flush
    fold_teams = _make_fold_teams(element, shape)

    @device
    def flush_folded(values, at, width, first, fresh, last, sums, rests, room):
        folded = cuda.local.array(slots, working)
        fold_teams(values, folded, at, room)
        add(folded, cuda.threadIdx.x, width, first, fresh, last, sums, rests)

    return flush_folded
