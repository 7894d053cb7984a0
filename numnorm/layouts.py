"""Layouts: an array of any shape and axis, viewed as rows or as columns for the kernels."""

import dataclasses
import functools
import math
import operator
from typing import Any, NamedTuple

from numnorm.arguments import Shape, brief, check_integer


@dataclasses.dataclass(frozen=True, eq=False)
class RowLayout:
    """An array viewed as rows, each with its own statistics.

    Layouts compare by identity, which makes them fast keys.

    Attributes
    ----------
    order : tuple of int or None
        The permutation of the axes that makes each row contiguous; None if no axis moves.
    rows, width : int
        The shape of the permuted array, ``(rows, width)``.
    segment, channels : int
        A row consists of segments of `segment` elements. The segments of all rows belong to the
        channels 0, 1, ..., channels - 1, 0, 1, ... in turn.
    shared : bool
        Whether the elements of a segment share one parameter; otherwise each has its own.
    statistic_shape : tuple of int
        The shape of the saved mean and rstd.
    parameter_shape : tuple of int
        The shape of gamma and beta.
    parameter_meaning : str
        What `parameter_shape` is, for messages.
    """

    order: tuple[int, ...] | None
    rows: int
    width: int
    segment: int
    channels: int
    shared: bool
    statistic_shape: Shape
    parameter_shape: Shape
    parameter_meaning: str

    @functools.cached_property
    def kernel_shape(self) -> Shape:
        """The shape of the parameters in a kernel."""
        return (self.channels,) if self.shared else (self.channels, self.segment)


@dataclasses.dataclass(frozen=True, eq=False)
class ColumnLayout:
    """An array ``(outer, channels, inner)``, each channel with its own statistics.

    Layouts compare by identity, which makes them fast keys.

    Attributes
    ----------
    outer, channels, inner : int
        The shape of the array.
    all_channels : int, optional
        The channels of the whole array, if this is a part of it.
    """

    outer: int
    channels: int
    inner: int
    all_channels: int | None = None

    @functools.cached_property
    def kernel_shape(self) -> Shape:
        """The shape of the array in a kernel, which drops an `inner` of 1."""
        shape = (self.outer, self.channels, self.inner)
        return shape[:2] if self.inner == 1 else shape

    @functools.cached_property
    def per_channel(self) -> int:
        """The number of values in a channel."""
        return self.outer * self.inner

    @functools.cached_property
    def block(self) -> int:
        """The number of outer entries that are summed as one block."""
        every = self.channels if self.all_channels is None else self.all_channels
        return block_of(every, self.inner)

    @functools.cached_property
    def blocks(self) -> int:
        """The number of blocks, the last of which may be shorter."""
        return -(-self.outer // self.block)


@dataclasses.dataclass(frozen=True, eq=False)
class MovingLayout:
    """An array ``(outer, steps, inner)`` whose statistics move along the steps.

    A channel is one of the ``outer * inner`` sequences. Layouts are compared by identity:
    `sequences_by` gives the only one with these values.
    """

    outer: int
    steps: int
    inner: int
    axis: int


def block_of(channels: int, inner: int) -> int:
    """Return the number of outer entries of ``(outer, channels, inner)`` summed as one block.

    It does not depend on `outer`, so that chunks of a stream have the same blocks as the whole
    array.
    """
    if inner == 1:
        return max(32, min(1024, 131072 // max(channels, 1)))
    return max(1, min(256, 16384 // max(channels * inner, 1)))


def _normalized_axis(axis: Any, ndim: int, name: str) -> int:
    try:
        index = operator.index(axis)
    except TypeError:
        raise TypeError(f"{name} must be an int, got {brief(axis)}") from None
    if ndim == 0:
        raise ValueError(f"{name} must name an axis, got {index} for an array without axes")
    if not -ndim <= index < ndim:
        raise ValueError(
            f"{name} must be between {-ndim} and {ndim - 1} for an array of "
            f"{_axes(ndim)}, got {index}"
        )
    return index % ndim


def _axes(count: int) -> str:
    return "1 axis" if count == 1 else f"{count} axes"


def normalized_axes(axis: Any, ndim: int, name: str = "axis") -> tuple[int, ...]:
    """Return one axis or several as sorted numbers from 0 on."""
    given = tuple(axis) if isinstance(axis, tuple | list) else (axis,)
    if not given:
        raise ValueError(f"{name} must name at least 1 axis, got ()")
    axes = tuple(sorted(_normalized_axis(a, ndim, name) for a in given))
    if len(set(axes)) != len(axes):
        raise ValueError(f"{name} must not name an axis twice, got {given}")
    return axes


def _order(first: tuple[int, ...], last: tuple[int, ...]) -> tuple[int, ...] | None:
    order = first + last
    return None if order == tuple(range(len(order))) else order


def _take(shape: Shape, axes: tuple[int, ...]) -> Shape:
    return tuple(shape[a] for a in axes)


def _other_axes(axes: tuple[int, ...], ndim: int) -> tuple[int, ...]:
    return tuple(a for a in range(ndim) if a not in axes)


def row_layout(shape: Shape, axis: Any, name: str = "x") -> RowLayout:
    """Return the rows over `axis`, with a parameter for each element of a row."""
    try:
        # The keys of the cache are plain ints: (0.0,) must not hit (0,), and objects may change.
        if isinstance(axis, tuple | list):
            axis = tuple(map(operator.index, axis))
        elif type(axis) is not int:
            axis = operator.index(axis)
        return _row_layout(shape, axis, name)
    except TypeError:  # an unhashable axis, or one of a wrong type
        raise TypeError(f"axis must be an int or a tuple of ints, got {brief(axis)}") from None


@functools.lru_cache(maxsize=1024, typed=True)
def _row_layout(shape: Shape, axis: Any, name: str) -> RowLayout:
    _check_ndim(name, shape, 1)
    axes = normalized_axes(axis, len(shape))
    others = _other_axes(axes, len(shape))
    width, rows = math.prod(_take(shape, axes)), math.prod(_take(shape, others))
    return RowLayout(
        order=_order(others, axes),
        rows=rows,
        width=width,
        segment=width,
        channels=1,
        shared=False,
        statistic_shape=_take(shape, others),
        parameter_shape=_take(shape, axes),
        parameter_meaning=f"the normalized axes of {name}",
    )


def moving_layout(shape: Shape, axis: Any) -> MovingLayout:
    """Return the sequences along one axis."""
    _check_ndim("x", shape, 1)
    number = _normalized_axis(axis, len(shape), "axis")
    outer, inner = math.prod(shape[:number]), math.prod(shape[number + 1 :])
    return sequences_by(outer, shape[number], inner, number)


@functools.lru_cache(maxsize=1024)
def sequences_by(outer: int, steps: int, inner: int, axis: int) -> MovingLayout:
    """Return the only `MovingLayout` with these values."""
    return MovingLayout(outer, steps, inner, axis)


def vector_layout(shape: Shape, axis: Any) -> RowLayout:
    """Return the weight vectors over `axis`, with one parameter for each vector."""
    return _vectors(row_layout(shape, axis))


@functools.lru_cache(maxsize=1024)
def _vectors(layout: RowLayout) -> RowLayout:
    return dataclasses.replace(
        layout,
        channels=layout.rows,
        shared=True,
        parameter_shape=layout.statistic_shape,
        parameter_meaning="the axes of x that are not normalized",
    )


def group_layout(shape: Shape, channel_axis: Any, groups: Any) -> RowLayout:
    """Return a row for each sample and group of channels, with a parameter for each channel."""
    channel = _channel_beside_samples(shape, channel_axis)
    count = check_integer("groups", groups, 1)
    if shape[channel] % count:
        raise ValueError(f"groups must divide the {shape[channel]} channels of x, got {count}")
    return _group_layout(shape, channel, count)


def instance_layout(shape: Shape, channel_axis: Any) -> RowLayout:
    """Return a row for each sample and channel: groups of one channel."""
    channel = _channel_beside_samples(shape, channel_axis)
    return _group_layout(shape, channel, shape[channel])


def _channel_beside_samples(shape: Shape, channel_axis: Any) -> int:
    channel = _channel_of(shape, channel_axis, at_least=2)
    if channel == 0:
        raise ValueError("channel_axis must not be 0, the axis of the samples")
    return channel


@functools.lru_cache(maxsize=1024)
def _group_layout(shape: Shape, channel: int, groups: int) -> RowLayout:
    spatial = _other_axes((0, channel), len(shape))
    inner = math.prod(_take(shape, spatial))
    channels = shape[channel]
    width = channels // max(groups, 1) * inner
    shared = inner != 1
    return RowLayout(
        order=_order((0, channel), spatial),
        rows=shape[0] * groups,
        width=width,
        segment=inner if shared else width,
        channels=channels if shared else groups,
        shared=shared,
        statistic_shape=(shape[0], groups),
        parameter_shape=(channels,),
        parameter_meaning="the channels of x",
    )


def column_layout(shape: Shape, channel_axis: Any, all_channels: int | None = None) -> ColumnLayout:
    """Return the channels over all other axes; `all_channels` as in `ColumnLayout`."""
    return _column_layout(shape, _channel_of(shape, channel_axis, at_least=1), all_channels)


@functools.lru_cache(maxsize=1024)
def _column_layout(shape: Shape, channel: int, every: int | None) -> ColumnLayout:
    outer, inner = math.prod(shape[:channel]), math.prod(shape[channel + 1 :])
    return ColumnLayout(outer, shape[channel], inner, every)


def _channel_of(shape: Shape, channel_axis: Any, at_least: int) -> int:
    _check_ndim("x", shape, at_least)
    return _normalized_axis(channel_axis, len(shape), "channel_axis")


def _check_ndim(name: str, shape: Shape, least: int) -> None:
    if len(shape) < least:
        got = "a scalar" if least == 1 else len(shape)
        raise ValueError(f"{name} must have at least {_axes(least)}, got {got}")


# Along which axes statistics are the same


class StatisticAxes(NamedTuple):
    """Along which axes of x the statistics are the same.

    Attributes
    ----------
    order : tuple of int
        The order in which kernels see the axes of x.
    sizes : tuple of tuple of int
        The size of each axis in this order; of an axis that holds groups of channels, two sizes.
    shared : tuple of bool
        For each size, whether all elements along it have the same statistics.
    """

    order: tuple[int, ...]
    sizes: tuple[Shape, ...]
    shared: tuple[bool, ...]


def axes_of_rows(shape: Shape, order: tuple[int, ...] | None, rows: int) -> StatisticAxes:
    """Return the axes of statistics of rows, in which the first axes in this order are rows."""
    order, before = order or tuple(range(len(shape))), 1
    sizes: list[Shape] = []
    shared: list[bool] = []
    for n in (shape[axis] for axis in order):
        each = rows // max(before, 1)
        split = 1 < each < n  # groups of channels
        sizes.append((each, n // each) if split else (n,))
        shared += (False, True) if split else (each < n,)
        before = min(before * n, rows)
    return StatisticAxes(order, tuple(sizes), tuple(shared))


def axes_of_channels(shape: Shape, outer: int, channels: int) -> StatisticAxes:
    """Return the axes of statistics of channels, before which there are `outer` elements."""
    before, own = 1, 0
    while before != outer or shape[own] != channels:
        before *= shape[own]
        own += 1
    sizes, shared = tuple((n,) for n in shape), tuple(axis != own for axis in range(len(shape)))
    return StatisticAxes(tuple(range(len(shape))), sizes, shared)
