"""Gamma and beta at the elements of a piece of a row: arrays of some kind, or two numbers."""

import dataclasses
import functools
from typing import Any

from numnorm.backends.cuda.elements import Element
from numnorm.backends.cuda.row_parts import make_read
from numnorm.backends.cuda.target import device, make_load_one


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


@device
def first_of(row, run, channels):
    """Return which parameter a row's first element has, where each element has its own."""
    # A remainder takes as long as all else that is done for a narrow row.
    return 0 if channels == 1 else row % channels * run


@functools.cache
def make_weight(element: Element, of: Element | None, *, shared: bool, whole: bool) -> Any:
    """Return a device function that finds one parameter's values at the elements of a piece.

    ``weight(address, number, row, at, cut, values)`` fills `values`, of the type that elements
    are computed in, for the piece that begins `at` elements behind the row's first. The row has
    ``width`` elements in runs of ``run`` of so many ``channels``: ``cut``.
    """
    vector, working = element.vector, element.working
    if of is None:

        @device
        def number_of(address, number, row, at, cut, values):
            for j in range(vector):
                values[j] = number

        return number_of
    load_one = make_load_one(of)
    if shared:

        @device
        def of_channel(address, number, row, at, cut, values):
            width, run, channels = cut
            first = row * (width // run)
            for j in range(vector):
                here = min(max(at + j, 0), width - 1)
                values[j] = working(load_one(address, (first + here // run) % channels))

        return of_channel
    if of == element:
        read = make_read(of, whole=whole, unchanging=True)

        @device
        def of_element(address, number, row, at, cut, values):
            width, run, channels = cut
            read(address, first_of(row, run, channels), at, width, values, 0)

        return of_element

    @device
    def of_another_type(address, number, row, at, cut, values):
        width, run, channels = cut
        first = first_of(row, run, channels)
        for j in range(vector):
            here = min(max(at + j, 0), width - 1)
            values[j] = working(load_one(address, first + here))

    return of_another_type
