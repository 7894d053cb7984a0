"""Gamma and beta at a thread's columns of a row: arrays of some kind, or two numbers."""

import dataclasses
import functools
from typing import Any

from numnorm.backends.cuda.compiler.element_type import Element
from numnorm.backends.cuda.compiler.target import device, make_load_one
from numnorm.backends.cuda.threads.row_columns import RowColumns, make_column_weight


@dataclasses.dataclass(frozen=True)
class Weights:
    """What a kernel is handed for gamma and beta.

    Parameters
    ----------
    gamma, beta : Element or None
        The elements of the arrays; None where a number stands for all of them.
    shared : bool
        Whether a run shares one parameter; else each of its elements has its own.
    """

    gamma: Element | None
    beta: Element | None
    shared: bool = False


@functools.cache
def make_first_weight(*, shared: bool) -> Any:
    """Return a device function ``first_weight(row, cut)``: which parameter a row begins with.

    The row has ``width`` elements in runs of ``run`` of so many ``channels``: ``cut``.
    """

    @device
    def of_runs(row, cut):
        return row * (cut[0] // cut[1])

    @device
    def of_elements(row, cut):
        _, run, channels = cut
        # A remainder takes as long as all else that is done for a narrow row.
        return 0 if channels == 1 else row % channels * run

    return of_runs if shared else of_elements


@functools.cache
def make_weight(element: Element, of: Element | None, columns: RowColumns, *, shared: bool) -> Any:
    """Return a device function that finds one parameter's values at a thread's columns.

    ``weight(address, number, first, at, cut, values)`` fills `values`, of the type that elements
    are computed in; `first` is that of `make_first_weight`, and the thread's first column `at`.
    """
    if of is None or not shared:
        column_weight = make_column_weight(element, of, columns)

        @device
        def of_columns(address, number, first, at, cut, values):
            column_weight(address, number, first, at, cut[0], values)

        return of_columns
    load_one, working = make_load_one(of), element.working
    lanes, pieces, stride = columns.lanes, columns.pieces, columns.stride

    @device
    def of_channels(address, number, first, at, cut, values):
        width, run, channels = cut
        for p in range(pieces):
            for j in range(lanes):
                here = min(at + p * stride + j, width - 1)
                values[p * lanes + j] = working(load_one(address, (first + here // run) % channels))

    return of_channels
