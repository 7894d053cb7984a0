"""Which axes of x a row extends along, and what follows for the blocks of x."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from numnorm._dask.parameters import along, with_axes
from numnorm.arguments import Shape

Axes = tuple[int, ...]


class Rows(NamedTuple):
    """Which elements of x share statistics.

    Attributes
    ----------
    axes : tuple of int
        Along which a row extends.
    across : tuple of int
        The axes of the statistics, in order. For groups of channels, the second is the channels'.
    own : tuple of int
        The axes of a parameter of the usual shape.
    size : int
        The number of channels in a group; 0 where rows are no groups of channels.
    labels : int
        The number of labels of samples, which lie along the first of `axes`; 0 without labels.
        Each label has statistics of its own: their arrays have this length along that axis.
    """

    axes: Axes
    across: Axes
    own: Axes
    size: int = 0
    labels: int = 0

    def per_row(self, lengths: Sequence[Any]) -> tuple[Any, ...]:
        """Return the shape, or the chunks, of a statistic, given the shape or the chunks of x."""
        return tuple(self._of_axis(axis, n) for axis, n in enumerate(lengths))

    def _of_axis(self, axis: int, length: Any) -> Any:
        chunked = isinstance(length, tuple)
        if self.labels and axis == self.axes[0]:
            return (self.labels,) if chunked else self.labels
        if axis not in self.across:
            return (1,) if chunked else 1
        if self.size and axis == self.across[1]:
            return tuple(n // self.size for n in length) if chunked else length // self.size
        return length

    def with_axes_of(self, statistic: Any, ndim: int) -> Any:
        """Return a statistic of the public shape with as many axes as x."""
        if not self.labels:
            return along(statistic, self.across, ndim)
        sample = self.axes[0]
        place = sum(axis < sample for axis in self.across)
        order = [*range(1, place + 1), 0, *range(place + 1, statistic.ndim)]
        return along(statistic.transpose(order), (*self.across, sample), ndim)

    def public(self, statistic: Any) -> Any:
        """Return a statistic with as many axes as x in its public shape: labels come first."""
        if not self.labels:
            return with_axes(statistic, self.across)
        found = with_axes(statistic, (*self.across, self.axes[0]))
        place = sum(axis < self.axes[0] for axis in self.across)
        return found.transpose([place, *(a for a in range(found.ndim) if a != place)])

    # In a block

    def width(self, shape: Shape) -> int:
        """Return how many elements of each row a block holds."""
        return math.prod(shape[axis] for axis in self.axes) * max(self.size, 1)

    def as_matrix(self, x: Any) -> Any:
        """Return a block as a matrix of its rows. The samples of all labels are in one row."""
        moved = np.moveaxis(x, self.across, range(len(self.across)))
        rows = math.prod(self._replace(labels=0).per_row(x.shape))
        return moved.reshape(rows, self.width(x.shape))

    def from_matrix(self, matrix: Any, shape: Shape) -> Any:
        """Return a block of a shape from the matrix of its rows."""
        order = *self.across, *self.axes
        moved = matrix.reshape([shape[axis] for axis in order])
        return np.moveaxis(moved, range(len(order)), order)

    def spread(self, statistic: Any, codes: Any = None) -> Any:
        """Return a statistic of each row so that it broadcasts against x.

        With labels, `codes` has the number of each sample's label.
        """
        if codes is not None:
            return statistic.take(codes, self.axes[0])
        return np.repeat(statistic, self.size, axis=self.across[1]) if self.size > 1 else statistic

    def summed(self, x: Any, codes: Any = None) -> Any:
        """Return the sum over each row of a block, with as many axes as x."""
        return self._reduced(np.add, x, codes)

    def largest(self, x: Any, codes: Any = None) -> Any:
        """Return the largest element of each row of a block without negative numbers."""
        return self._reduced(np.maximum, x, codes)

    def _reduced(self, function: Any, x: Any, codes: Any) -> Any:
        shape = self.per_row(x.shape)
        if codes is None:
            return function.reduce(self.as_matrix(x), axis=1, initial=0.0).reshape(shape)
        sample, *others = self.axes
        each = function.reduce(x, axis=tuple(others), keepdims=True) if others else x
        total = np.zeros(shape)
        if codes.size:
            order = np.argsort(codes, kind="stable")
            there, starts = np.unique(codes[order], return_index=True)
            before: list[Any] = [slice(None)] * sample
            sums = function.reduceat(each.take(order, sample), starts, axis=sample)
            total[(*before, there)] = sums
        return total
