"""The moments of channels of lazy arrays."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

import numnorm
from numnorm.arguments import check_shape
from numnorm.dask.batch_channels import Channels, aligned, channels_of, of_channels
from numnorm.dask.blocks import each_block, each_object, in_order
from numnorm.dask.parameters import made_lazy
from numnorm.layouts import column_layout
from numnorm.norms.channel_axes import ChannelAxes
from numnorm.norms.moments import Moments

_FIELDS = ("mean", "m2", "mean_lo")


def batch_moments(x: Any, *, channel_axis: Any, after: Moments | None) -> Moments:
    """Return the count, and the other moments as lazy arrays."""
    given = {} if after is None else {field: getattr(after, field) for field in _FIELDS}
    arrays = made_lazy({"x": x, **{f"after.{f}": a for f, a in given.items() if a is not None}})
    x = arrays.pop("x")
    channels = channels_of(x, channel_axis)
    for name, array in arrays.items():
        check_shape(name, array.shape, channels.shape, "the channels of x")
    empty = {name: np.empty((0,) * array.ndim, array.dtype) for name, array in arrays.items()}
    before = after and after._replace(**{n.removeprefix("after."): a for n, a in empty.items()})
    nothing = np.empty((0,) * x.ndim, x.dtype)
    numnorm.batch_moments(nothing, channel_axis=channels.axis, after=before)
    start = None
    if after is not None:
        fields = tuple(name.removeprefix("after.") for name in arrays)
        known = [channels.spread(array) for array in arrays.values()]
        options = {"fields": fields, "count": int(after.count), "axes": channels.axes}
        start = each_object(_known, *known, **options)
    count = channels.count + (0 if after is None else int(after.count))
    arrays = fields_of(total_moments(x, channels, start), channels)
    return Moments(count, *(channels.public(array) for array in arrays))


def total_moments(x: Any, channels: Channels, start: Any = None) -> Any:
    """Return a lazy array of one object, the Moments, for each block of channels."""
    parts = each_object(_parts, x, channel_axis=channels.axis)
    return in_order(parts, channels.others, merged, start)


def fields_of(total: Any, channels: Channels) -> list[Any]:
    """Return mean, m2 and mean_lo of Moments as lazy arrays with as many axes as x."""
    options = {"axes": channels.axes, "dtype": np.dtype(np.float64), "chunks": channels.chunks}
    return [each_block(_field, total, field=field, **options) for field in _FIELDS]


def merged(parts: Sequence[Any]) -> Moments:
    """Merge Moments, and lists of them, in order."""
    each = (one for part in parts for one in (part if isinstance(part, list) else [part]))
    return functools.reduce(Moments.merge, each)


def _parts(x: Any, *, channel_axis: Any) -> list[Moments]:
    """Return the moments of each part of x that a call on the whole array sums as one block."""
    shape = None
    if isinstance(channel_axis, tuple):
        axes = ChannelAxes(x, channel_axis)
        x, channel_axis, shape = axes.x, axes.axis, axes.shape
    layout = column_layout(x.shape, channel_axis)
    flat = x.reshape(layout.outer, layout.channels, layout.inner)
    starts = range(0, max(layout.outer, 1), layout.block)
    parts = [numnorm.batch_moments(flat[start : start + layout.block]) for start in starts]
    if shape is None:
        return parts
    return [Moments(part.count, *(field.reshape(shape) for field in part[1:])) for part in parts]


def _known(*arrays: Any, fields: tuple[str, ...], count: int, axes: tuple[int, ...]) -> Moments:
    given = {field: of_channels(a, axes) for field, a in zip(fields, arrays, strict=True)}
    return Moments(count, **given)


def _field(objects: Any, *, field: str, axes: tuple[int, ...]) -> Any:
    return aligned(getattr(objects[(0,) * objects.ndim], field), axes, objects.ndim)
