"""Gamma and beta at a thread's columns of a row: arrays of elements, or two numbers."""

import dataclasses
import functools
from typing import Any

from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import device, make_load_one
from numnorm.backends.cuda.threads.row_columns import RowColumns, make_column_weight


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
    load_one, compute_type = make_load_one(of), element.compute_type
    lanes, vectors, stride = columns.lanes, columns.vectors, columns.stride

    @device
    def of_channels(parameter, first, at, sizes, values):
        for p in range(vectors):
            for j in range(lanes):
                column = min(at + p * stride + j, sizes.width - 1)
                channel = (first + column // sizes.segment) % sizes.channels
                values[p * lanes + j] = compute_type(load_one(parameter.address, channel))

    return of_channels
