"""The channels of a lazy array: their axes, and what lies along them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from numnorm.arguments import Shape
from numnorm.dask.blocks import Chunks
from numnorm.dask.parameters import along, as_divided, with_axes
from numnorm.layouts import column_layout, normalized_axes


class Channels(NamedTuple):
    """The channels of a lazy array x.

    Attributes
    ----------
    axes, others : tuple of int
        The axes of the channels, and those over which statistics are taken.
    axis : int or tuple of int
        The axes of the channels as public functions take them.
    shape : tuple of int
        That of a statistic.
    count : int
        The number of values in each channel.
    chunks : tuple
        Those of a statistic with as many axes as x.
    """

    axes: tuple[int, ...]
    others: tuple[int, ...]
    axis: int | tuple[int, ...]
    shape: Shape
    count: int  # type: ignore[assignment]  # a field may hide tuple's method
    chunks: Chunks

    def spread(self, statistic: Any) -> Any:
        """Return a statistic of the shape of the channels with as many axes as x, divided as x."""
        return as_divided(along(statistic, self.axes, len(self.chunks)), self.chunks)

    def public(self, statistic: Any) -> Any:
        """Return a statistic with as many axes as x in the shape of the channels."""
        return with_axes(statistic, self.axes)


def channels_of(x: Any, channel_axis: Any) -> Channels:
    """Return the channels of x; raise if `channel_axis` is wrong."""
    several = isinstance(channel_axis, tuple | list)
    if not several:
        column_layout(x.shape, channel_axis)  # it has the message for a scalar
    axes = normalized_axes(channel_axis, x.ndim, "channel_axis")
    others = tuple(axis for axis in range(x.ndim) if axis not in axes)
    return Channels(
        axes,
        others,
        axes if several else axes[0],
        tuple(x.shape[axis] for axis in axes),
        math.prod(x.shape[axis] for axis in others),
        tuple(x.chunks[axis] if axis in axes else (1,) for axis in range(x.ndim)),
    )


def of_channels(array: Any, axes: tuple[int, ...]) -> Any:
    """Return a block of a statistic with as many axes as x in the shape of its channels."""
    return array.reshape([array.shape[axis] for axis in axes])


def aligned(array: Any, axes: tuple[int, ...], ndim: int) -> Any:
    """Return an array of the shape of the channels with `ndim` axes."""
    shape = [1] * ndim
    for axis, length in zip(axes, array.shape, strict=True):
        shape[axis] = length
    return array.reshape(shape)
