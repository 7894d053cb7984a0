"""Cutting the index space of an array into boxes of bounded size."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

Box = tuple[slice, ...]
"""One slice for each axis, with start and stop, step 1."""


def whole(shape: Sequence[int]) -> Box:
    """Return the box that holds an entire array.

    Parameters
    ----------
    shape : sequence of int
        The shape of the array.

    Returns
    -------
    Box
        All of every axis.
    """
    return tuple(slice(0, length) for length in shape)


def lengths(box: Box) -> tuple[int, ...]:
    """Return the shape of the array that `box` selects.

    Parameters
    ----------
    box : Box
        The box.

    Returns
    -------
    tuple of int
        The length along each axis.
    """
    return tuple(part.stop - part.start for part in box)


def steps(shape: Sequence[int], cuttable: Sequence[tuple[int, int]], budget: int) -> list[int]:
    """Return how long a box may be along each axis to stay within a budget.

    Parameters
    ----------
    shape : sequence of int
        The shape of the array.
    cuttable : sequence of (int, int)
        The axes that may be cut, in the order in which to cut them, each with the number whose
        multiples are the places where it may be cut.
    budget : int
        The most elements a box should have. It has more where the axes cannot be cut finer.

    Returns
    -------
    list of int
        The length along each axis: that of the array where it need not or may not be cut.
    """
    result = list(shape)
    size = math.prod(shape)
    for axis, multiple in cuttable:
        if size <= budget:
            break
        unit = size // shape[axis] * multiple
        # An entry that alone is over the budget is cut along the next axis.
        units = max(1, budget // unit)
        if units * multiple < shape[axis]:
            result[axis] = units * multiple
            size = units * unit
    return result


def boxes(within: Box, step: Sequence[int]) -> Iterator[Box]:
    """Cut a box into boxes, in the order of the elements.

    Parameters
    ----------
    within : Box
        What to cut.
    step : sequence of int
        The length of a box along each axis; the last of an axis may be shorter.

    Yields
    ------
    Box
        The next one. An empty box is yielded as it is, once.
    """
    if 0 in lengths(within):
        yield within
        return
    yield from itertools.product(*map(_parts, within, step))


def _parts(whole: slice, length: int) -> list[slice]:
    starts = range(whole.start, whole.stop, length)
    return [slice(start, min(start + length, whole.stop)) for start in starts]
