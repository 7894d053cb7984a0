"""Which axes of x a row extends along, and what follows for the blocks of x."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from numnorm.arguments import Shape

Axes = tuple[int, ...]


class Rows(NamedTuple):
    """Which elements of x share statistics.

    Attributes
    ----------
    axes : tuple of int
        Along which a row extends.
    kept : tuple of int
        The axes of the statistics, in order. For groups of channels, the second is the channels'.
    own : tuple of int
        The axes of a parameter of the usual shape.
    size : int
        The number of channels in a group; 0 where rows are no groups of channels.
    """

    axes: Axes
    kept: Axes
    own: Axes
    size: int = 0

    def per_row(self, lengths: Sequence[Any]) -> tuple[Any, ...]:
        """Return the shape, or the chunks, of a statistic, given the shape or the chunks of x."""
        return tuple(self._of_axis(axis, n) for axis, n in enumerate(lengths))

    def _of_axis(self, axis: int, length: Any) -> Any:
        chunked = isinstance(length, tuple)
        if axis not in self.kept:
            return (1,) if chunked else 1
        if self.size and axis == self.kept[1]:
            return tuple(n // self.size for n in length) if chunked else length // self.size
        return length

    # In a block

    def width(self, shape: Shape) -> int:
        """Return how many elements of each row a block holds."""
        return math.prod(shape[axis] for axis in self.axes) * max(self.size, 1)

    def as_matrix(self, x: Any) -> Any:
        """Return a block as a matrix of its rows."""
        moved = np.moveaxis(x, self.kept, range(len(self.kept)))
        rows = math.prod(self.per_row(x.shape))
        return moved.reshape(rows, self.width(x.shape))

    def from_matrix(self, matrix: Any, shape: Shape) -> Any:
        """Return a block of a shape from the matrix of its rows."""
        order = *self.kept, *self.axes
        moved = matrix.reshape([shape[axis] for axis in order])
        return np.moveaxis(moved, range(len(order)), order)

    def spread(self, statistic: Any) -> Any:
        """Return a statistic of each row so that it broadcasts against x."""
        return np.repeat(statistic, self.size, axis=self.kept[1]) if self.size > 1 else statistic

    def summed(self, x: Any) -> Any:
        """Return the sum over each row of a block, with as many axes as x."""
        return self.as_matrix(x).sum(axis=1).reshape(self.per_row(x.shape))
