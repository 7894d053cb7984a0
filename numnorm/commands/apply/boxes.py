"""Boxes of bounded size, into which the index space of an array is divided."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

Box = tuple[slice, ...]
"""One slice for each axis, with start and stop, step 1."""


def whole(shape: Sequence[int]) -> Box:
    """Return the box of an entire array.

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


def shape_of(box: Box) -> tuple[int, ...]:
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


def box_lengths(
    shape: Sequence[int], cuttable: Sequence[tuple[int, int]], budget: int
) -> list[int]:
    """Return the length of a box along each axis that keeps it within a budget.

    Parameters
    ----------
    shape : sequence of int
        The shape of the array.
    cuttable : sequence of (int, int)
        The axes that may be cut, in this order, each with a number: it may be cut at multiples
        of the number.
    budget : int
        The largest number of elements of a box, unless the axes cannot be cut finer.

    Returns
    -------
    list of int
        The length along each axis: that of the array for an axis that is not cut.
    """
    result = list(shape)
    size = math.prod(shape)
    for axis, multiple in cuttable:
        if size <= budget:
            break
        unit = size // shape[axis] * multiple
        # If a single entry exceeds the budget, the next axis is cut as well.
        units = max(1, budget // unit)
        if units * multiple < shape[axis]:
            result[axis] = units * multiple
            size = units * unit
    return result


def aligned(
    cuttable: Sequence[tuple[int, int]], chunks: Sequence[int] | None
) -> list[tuple[int, int]]:
    """Return where axes may be cut so that no chunk is cut.

    Parameters
    ----------
    cuttable : sequence of (int, int)
        As for `box_lengths`.
    chunks : sequence of int, optional
        The lengths of the chunks. Default: there are none.

    Returns
    -------
    list of (int, int)
        The axes, each with a multiple of its number and of its chunks.
    """
    if chunks is None:
        return list(cuttable)
    return [(axis, math.lcm(multiple, chunks[axis])) for axis, multiple in cuttable]


def boxes(within: Box, lengths: Sequence[int], first: int | None = None) -> Iterator[Box]:
    """Divide a box into boxes, in the order of the elements.

    Parameters
    ----------
    within : Box
        The box to divide.
    lengths : sequence of int
        The length of a box along each axis; the last one along an axis may be shorter.
    first : int, optional
        The axis along which boxes follow one another directly. Default: the last one.

    Yields
    ------
    Box
        The next box. An empty box is yielded unchanged, once.
    """
    if 0 in shape_of(within):
        yield within
        return
    order = [axis for axis in range(len(within)) if axis != first]
    order += [] if first is None else [first]
    for parts in itertools.product(*(_parts(within[axis], lengths[axis]) for axis in order)):
        yield tuple(parts[order.index(axis)] for axis in range(len(order)))


def _parts(whole: slice, length: int) -> list[slice]:
    starts = range(whole.start, whole.stop, length)
    return [slice(start, min(start + length, whole.stop)) for start in starts]
