"""Which columns of a row a thread holds, the same ones in every row, and how it moves them.

Sums over rows stay in registers, so a thread may not hold other columns where a row begins at
another place in memory. Rows that all begin at a multiple of 16 bytes are dealt out in pieces of
16 bytes; others element by element, neighbours to neighbours, which needs no alignment at all.
"""

import dataclasses
import functools
from typing import Any

from numnorm.backends.cuda.elements import Element
from numnorm.backends.cuda.row_parts import make_as_tuple
from numnorm.backends.cuda.row_shape import RowShape
from numnorm.backends.cuda.target import (
    constant,
    device,
    make_load,
    make_load_one,
    make_store,
    make_store_one,
)


@dataclasses.dataclass(frozen=True)
class RowColumns:
    """The columns of one thread.

    The p-th piece of a team's t-th thread begins at column ``t * lanes + p * stride``.

    Parameters
    ----------
    team : int
        The number of threads that hold a row.
    lanes : int
        How many columns lie beside each other in a piece; 1 where nothing is aligned.
    pieces : int
        How many pieces a thread holds.
    """

    team: int
    lanes: int
    pieces: int

    @property
    def stride(self) -> int:
        """The number of columns from a piece to the next."""
        return self.team * self.lanes

    @property
    def slots(self) -> int:
        """The number of columns that a thread holds."""
        return self.lanes * self.pieces


def row_columns(element: Element, shape: RowShape) -> RowColumns:
    """Return the columns that a thread holds of rows of this shape."""
    if shape.whole:
        return RowColumns(shape.team, element.vector, shape.pieces)
    return RowColumns(shape.team, 1, element.vector * shape.pieces)


@functools.cache
def make_read_columns(of: Element, columns: RowColumns, *, unchanging: bool = False) -> Any:
    """Return a device function ``read_columns(address, first, at, width, values)``.

    It reads a thread's columns, the first of which is `at`, of the row that begins at `first`.
    Those from `width` on become 0.
    """
    load, load_one = make_load(of, unchanging=unchanging), make_load_one(of)
    lanes, pieces, stride = columns.lanes, columns.pieces, columns.stride
    vector, zero = of.vector, constant(of, 0.0)

    @device
    def read_pieces(address, first, at, width, values):
        for p in range(pieces):
            here = at + p * stride
            if here < width:
                for part in range(0, lanes, vector):
                    found = load(address, first + here + part)
                    for j in range(vector):
                        values[p * lanes + part + j] = found[j]
            else:
                for j in range(lanes):
                    values[p * lanes + j] = zero

    @device
    def read_elements(address, first, at, width, values):
        for p in range(pieces):
            here = at + p * stride
            values[p] = load_one(address, first + here) if here < width else zero

    return read_elements if lanes == 1 else read_pieces


@functools.cache
def make_write_columns(of: Element, columns: RowColumns) -> Any:
    """Return a device function ``write_columns(address, first, at, width, values)``."""
    store, store_one, as_tuple = make_store(of), make_store_one(of), make_as_tuple(of)
    lanes, pieces, stride = columns.lanes, columns.pieces, columns.stride
    vector = of.vector

    @device
    def write_pieces(address, first, at, width, values):
        for p in range(pieces):
            here = at + p * stride
            if here < width:
                for part in range(0, lanes, vector):
                    store(address, first + here + part, as_tuple(values, p * lanes + part))

    @device
    def write_elements(address, first, at, width, values):
        for p in range(pieces):
            here = at + p * stride
            if here < width:
                store_one(address, first + here, values[p])

    return write_elements if lanes == 1 else write_pieces


@functools.cache
def make_column_weight(element: Element, of: Element | None, columns: RowColumns) -> Any:
    """Return a device function that finds one parameter's values at a thread's columns.

    ``column_weight(address, number, first, at, width, values)`` fills `values`, of the type that
    elements are computed in; the parameter's row begins at `first`. Without an array of them the
    number stands for all.
    """
    lanes, pieces, stride = columns.lanes, columns.pieces, columns.stride
    working, zero = element.working, constant(element, 0.0)
    if of is None:

        @device
        def of_number(address, number, first, at, width, values):
            for k in range(lanes * pieces):
                values[k] = number

        return of_number
    if of == element:
        read_columns = make_read_columns(of, columns, unchanging=True)

        @device
        def of_array(address, number, first, at, width, values):
            read_columns(address, first, at, width, values)

        return of_array
    load_one = make_load_one(of)

    @device
    def of_another_type(address, number, first, at, width, values):
        for p in range(pieces):
            here = at + p * stride
            for j in range(lanes):
                found = working(load_one(address, first + here + j)) if here < width else zero
                values[p * lanes + j] = found

    return of_another_type
