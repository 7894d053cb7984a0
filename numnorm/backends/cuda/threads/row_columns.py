"""Which columns of a row each thread holds, and how it loads and stores them.

A thread holds the same columns of every row. Rows of a multiple of 16 bytes are distributed by
vectors of 16 bytes, other rows by single elements. The address of a row decides only whether a
vector is loaded in one instruction, so that sums do not depend on it. Gamma and beta at these
columns are arrays of elements, or two numbers.
"""

import dataclasses
import functools
from typing import Any

from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import (
    constant,
    device,
    make_load,
    make_load_one,
    make_store,
    make_store_one,
)
from numnorm.backends.cuda.compiler.vector_access import make_as_tuple
from numnorm.backends.cuda.threads.row_shape import RowShape


@dataclasses.dataclass(frozen=True)
class RowColumns:
    """The columns of one thread.

    The p-th vector of a team's t-th thread begins at column ``t * lanes + p * stride``.

    Parameters
    ----------
    team : int
        The number of threads that hold a row.
    lanes : int
        The number of columns of a vector: 16 bytes, or 1.
    vectors : int
        The number of vectors of a thread.
    aligned : bool
        Whether the vectors begin at multiples of 16 bytes. Otherwise a thread loads their
        elements one by one.
    sure : int
        The number of vectors, from the first on, that are in every row and need no bounds check.
    """

    team: int
    lanes: int
    vectors: int
    aligned: bool = True
    sure: int = 0

    @property
    def stride(self) -> int:
        """The number of columns from a vector to the next."""
        return self.team * self.lanes

    @property
    def slots(self) -> int:
        """The number of columns that a thread holds."""
        return self.lanes * self.vectors

    @property
    def reach(self) -> int:
        """The number of columns that the team holds."""
        return self.stride * self.vectors


def row_columns(element: ElementType, shape: RowShape) -> RowColumns:
    """Return the columns that a thread holds of rows of this shape."""
    if shape.single:
        return RowColumns(shape.team, 1, 1)
    if shape.whole:
        return RowColumns(shape.team, element.vector, shape.vectors, shape.aligned)
    return RowColumns(shape.team, 1, element.vector * shape.vectors)


def _make_read_vector(of: ElementType, columns: RowColumns, *, unchanging: bool) -> Any:
    """Return a device function ``read_vector(address, index, values, slot)``."""
    load = make_load(of, unchanging=unchanging)
    load_one = make_load_one(of)
    lanes = columns.lanes
    vector = of.vector

    @device
    def at_once(address, index, values, slot):
        for part in range(0, lanes, vector):
            loaded = load(address, index + part)
            for j in range(vector):
                values[slot + part + j] = loaded[j]

    @device
    def one_by_one(address, index, values, slot):
        for j in range(lanes):
            values[slot + j] = load_one(address, index + j)

    return at_once if columns.aligned and lanes > 1 else one_by_one


def _make_read_all(element: ElementType, columns: RowColumns, read_vector: Any) -> Any:
    """Return the device function that `make_read_columns` describes.

    It reads each vector by `read_vector`.
    """
    lanes, vectors, stride = columns.lanes, columns.vectors, columns.stride
    sure = columns.sure
    zero = constant(element, 0.0)

    @device
    def read_columns(address, first, at, width, values):
        for p in range(sure):
            read_vector(address, first + at + p * stride, values, p * lanes)
        for p in range(sure, vectors):
            column = at + p * stride
            if column < width:
                read_vector(address, first + column, values, p * lanes)
            else:
                for j in range(lanes):
                    values[p * lanes + j] = zero

    return read_columns


@functools.cache
def make_read_columns(of: ElementType, columns: RowColumns, *, unchanging: bool = False) -> Any:
    """Return a device function ``read_columns(address, first, at, width, values)``.

    It reads a thread's columns of the row that begins at index `first`; `at` is the first of the
    columns. Columns from `width` on become 0. `unchanging` is that of `make_load`.
    """
    return _make_read_all(of, columns, _make_read_vector(of, columns, unchanging=unchanging))


def _make_write_vector(of: ElementType, columns: RowColumns) -> Any:
    """Return a device function ``write_vector(address, index, values, slot)``."""
    store, store_one, as_tuple = make_store(of), make_store_one(of), make_as_tuple(of)
    lanes = columns.lanes
    vector = of.vector

    @device
    def at_once(address, index, values, slot):
        for part in range(0, lanes, vector):
            store(address, index + part, as_tuple(values, slot + part))

    @device
    def one_by_one(address, index, values, slot):
        for j in range(lanes):
            store_one(address, index + j, values[slot + j])

    return at_once if columns.aligned and lanes > 1 else one_by_one


@functools.cache
def make_write_columns(of: ElementType, columns: RowColumns) -> Any:
    """Return a device function ``write_columns(address, first, at, width, values)``."""
    write_vector = _make_write_vector(of, columns)
    lanes, vectors = columns.lanes, columns.vectors
    stride, sure = columns.stride, columns.sure

    @device
    def write_columns(address, first, at, width, values):
        for p in range(sure):
            write_vector(address, first + at + p * stride, values, p * lanes)
        for p in range(sure, vectors):
            column = at + p * stride
            if column < width:
                write_vector(address, first + column, values, p * lanes)

    return write_columns


@functools.cache
def make_column_weight(element: ElementType, of: ElementType | None, columns: RowColumns) -> Any:
    """Return a device function that fills an array with a parameter at a thread's columns.

    ``column_weight(address, number, first, at, width, values)``: the parameter's row begins at
    index `first` of an array of the type `of`, and the values have the compute type. If `of` is
    None, all of them become the number.
    """
    lanes, slots = columns.lanes, columns.slots
    compute_type = element.compute_type
    if of is None:

        @device
        def of_number(address, number, first, at, width, values):
            for k in range(slots):
                values[k] = number

        return of_number
    load_one = make_load_one(of)

    @device
    def read_converted(address, index, values, slot):
        for j in range(lanes):
            values[slot + j] = compute_type(load_one(address, index + j))

    if of == element:
        read_columns = make_read_columns(of, columns, unchanging=True)
    else:
        read_columns = _make_read_all(element, columns, read_converted)

    @device
    def of_array(address, number, first, at, width, values):
        read_columns(address, first, at, width, values)

    return of_array


# Gamma and beta


@dataclasses.dataclass(frozen=True)
class Weights:
    """The types of gamma and beta, for which a kernel is compiled.

    Parameters
    ----------
    gamma, beta : ElementType or None
        The element types of the arrays; None for a number in place of an array.
    shared : bool
        Whether all elements of a segment share one parameter. Otherwise each element has its own.
    """

    gamma: ElementType | None
    beta: ElementType | None
    shared: bool = False


@functools.cache
def make_first_weight(*, shared: bool) -> Any:
    """Return a device function ``first_weight(row, sizes)``: the index of a row's first parameter.

    The sizes are `RowSizes`.
    """

    @device
    def of_segments(row, sizes):
        return row * (sizes.width // sizes.segment)

    @device
    def of_elements(row, sizes):
        # A remainder is a slow operation, and one channel needs none.
        return 0 if sizes.channels == 1 else row % sizes.channels * sizes.segment

    return of_segments if shared else of_elements


@functools.cache
def make_weight(
    element: ElementType, of: ElementType | None, columns: RowColumns, *, shared: bool
) -> Any:
    """Return a device function that fills an array with a parameter at a thread's columns.

    ``weight(parameter, first, at, sizes, values)``: the parameter is a `Parameter`, `first` is
    what `make_first_weight` returns, and `at` is the thread's first column.
    """
    if of is None or not shared:
        column_weight = make_column_weight(element, of, columns)

        @device
        def of_columns(parameter, first, at, sizes, values):
            column_weight(parameter.address, parameter.number, first, at, sizes.width, values)

        return of_columns
    load_one = make_load_one(of)
    compute_type = element.compute_type
    lanes, vectors, stride = columns.lanes, columns.vectors, columns.stride

    @device
    def of_channels(parameter, first, at, sizes, values):
        for p in range(vectors):
            for j in range(lanes):
                column = min(at + p * stride + j, sizes.width - 1)
                channel = (first + column // sizes.segment) % sizes.channels
                values[p * lanes + j] = compute_type(load_one(parameter.address, channel))

    return of_channels
