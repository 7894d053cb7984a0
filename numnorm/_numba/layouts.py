"""Layouts in nopython code: any shape and axis as rows.

A layout is ``(order, size, segments, statistic_shape, parameter_shape, by_channel)``, with
``size = (rows, width)`` and ``segments = (segment, channels)``: what `RowLayout` has.
"""

import contextlib
from typing import Any, NamedTuple

import numpy as np
from numba.core import errors
from numba.cpython.unsafe.tuple import tuple_setitem

from numnorm._numba.arguments import is_none, literal_of, real_of, wrong
from numnorm._numba.arrays import make_order, make_shapes, product, types
from numnorm._numba.helpers import helper
from numnorm.layouts import normalized_axes


class Rows(NamedTuple):
    """How the rows of an array are found, and what follows from the types alone.

    Attributes
    ----------
    layout : callable
        The compiled ``layout(x, axis, groups)`` that returns the layout; rows have no groups.
    parameter_ndim, statistic_ndim : int
        The number of axes of gamma and beta, and of the saved statistics.
    meaning : str
        What the shape of gamma and beta is, for messages.
    variants : tuple of int
        The numbers of axes that parameters may have in a kernel.
    """

    layout: Any
    parameter_ndim: int
    statistic_ndim: int
    meaning: str
    variants: tuple[int, ...]


def make_rows(x: Any, axis: Any) -> Rows:
    """Return the rows over `axis`."""
    order_of, count = _make_order(x, axis)
    shapes = make_shapes(count)

    @helper
    def layout(x, axis, groups):
        order = order_of(axis)
        first, last = shapes(x, order)
        width = product(last)
        return order, (product(first), width), (width, 1), first, last, False

    return Rows(layout, count, x.ndim - count, "the normalized axes of x", (2,))


def make_vectors(x: Any, axis: Any) -> Rows:
    """Return the weight vectors over `axis`."""
    order_of, count = _make_order(x, axis)
    shapes = make_shapes(count)

    @helper
    def layout(x, axis, groups):
        order = order_of(axis)
        first, last = shapes(x, order)
        rows, width = product(first), product(last)
        return order, (rows, width), (width, rows), first, first, True

    others = x.ndim - count
    return Rows(layout, others, others, "the axes of x that are not normalized", (1,))


def make_groups(x: Any, channel_axis: Any) -> Rows:
    """Return the rows of a sample and a group; with `groups` None each channel is a group."""
    order_of = _make_channel_order(x, channel_axis)
    shapes = make_shapes(x.ndim - 2)

    @helper
    def layout(x, axis, groups):
        order = order_of(axis)
        (samples, channels), spatial = shapes(x, order)
        count = _group_count(groups, channels)
        inner = product(spatial)
        width = channels // max(count, 1) * inner
        segments = (inner, channels) if inner != 1 else (width, count)
        size, shape = (samples * count, width), (samples, count)
        return order, size, segments, shape, (channels,), inner != 1

    return Rows(layout, 1, 2, "the channels of x", (2,) if x.ndim == 2 else (1, 2))


@helper
def _group_count(groups, channels):
    if groups is None:
        return channels
    count = np.int64(groups)
    if count < 1:
        raise ValueError("groups must be at least 1")
    if channels % count != 0:
        raise ValueError("groups must divide the channels of x")
    return count


def _axes_of(axis: Any, ndim: int) -> tuple[int, ...] | None:
    """Return the axes as sorted numbers from 0 on, None if it does not know valid ones."""
    value = literal_of(axis)
    if value is not None:
        with contextlib.suppress(ValueError):  # it is raised when the call runs
            return normalized_axes(value, ndim)
    return None


def _make_order(x: Any, axis: Any) -> tuple[Any, int]:
    """Return a compiled ``order(axis)``, which puts these axes last, and their number."""
    real_of("x", x)
    if x.ndim == 0:
        raise wrong("x", "an array with at least 1 axis", x)
    axes = _axes_of(axis, x.ndim)
    if axes is not None:
        return make_order(tuple(a for a in range(x.ndim) if a not in axes) + axes), len(axes)
    if isinstance(axis, types.Integer):
        return _make_order_at_run_time(x.ndim, 1, is_tuple=False), 1
    members = tuple(axis) if isinstance(axis, types.BaseTuple) else ()
    if not members or not all(isinstance(member, types.Integer) for member in members):
        raise wrong("axis", "an int or a tuple of ints", axis)
    return _make_order_at_run_time(x.ndim, len(members), is_tuple=True), len(members)


def _make_order_at_run_time(ndim: int, count: int, *, is_tuple: bool) -> Any:
    start = tuple(range(ndim))
    if count > ndim:
        raise errors.TypingError(f"axis must not name more than {ndim} axes, got {count}")

    def order_of(axes):
        order, first, last = start, 0, ndim - count
        for a in axes:
            if not -ndim <= a < ndim:
                raise ValueError("axis must name axes of x")
        for i in range(ndim):
            named = 0
            for a in axes:
                named += a == i or a + ndim == i
            if named > 1:
                raise ValueError("axis must not name an axis twice")
            if named:
                order = tuple_setitem(order, last, i)
                last += 1
            else:
                order = tuple_setitem(order, first, i)
                first += 1
        return order

    compiled = helper(order_of)
    return compiled if is_tuple else helper(lambda axis: compiled((axis,)))


def _make_channel_order(x: Any, channel_axis: Any) -> Any:
    """Return a compiled ``order(channel_axis)``, which puts the channels second."""
    real_of("x", x)
    if x.ndim < 2:
        raise wrong("x", "an array with at least 2 axes", x)
    axes = _axes_of(channel_axis, x.ndim)
    ndim = x.ndim
    if axes is not None and len(axes) == 1 and axes != (0,):
        (channel,) = axes
        spatial = tuple(a for a in range(ndim) if a not in (0, channel))
        return make_order((0, channel, *spatial))
    if is_none(channel_axis) or not isinstance(channel_axis, types.Integer):
        raise wrong("channel_axis", "an int", channel_axis)
    start = tuple(range(ndim))

    def order_of(channel_axis):
        channel = np.int64(channel_axis)  # in arithmetic with int64, a uint64 becomes a float
        channel += ndim if channel < 0 else 0
        if not 0 < channel < ndim:
            raise ValueError("channel_axis must name an axis of x other than 0")
        order = tuple_setitem(start, 1, channel)
        for i in range(2, channel + 1):
            order = tuple_setitem(order, i, i - 1)
        return order

    return helper(order_of)
