"""The moments of channels of lazy arrays."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

import numnorm
from numnorm._dask.blocks import Chunks, each_block, each_object, in_order, take
from numnorm._dask.parameters import along, as_divided, made_lazy, with_axes
from numnorm.arguments import Shape
from numnorm.array_likes import is_on_device
from numnorm.backends.contract.backend import BlockMoments
from numnorm.layouts import column_layout, normalized_axes
from numnorm.norms.batch import block_moments, folded_moments
from numnorm.norms.moments import Moments, check_moments

# The channels of a lazy array: their axes, and what lies along them


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


_FLOAT64 = np.dtype(np.float64)
_FIELDS = ("mean", "m2", "mean_lo")


def batch_moments(x: Any, *, channel_axis: Any, after: Moments | None) -> Moments:
    """Return the count, and the other moments as lazy arrays."""
    x = made_lazy({"x": x, **_fields("after", after)})["x"]
    channels = channels_of(x, channel_axis)
    count, start, arrays = channels.count, None, {}
    if after is not None:
        count += check_moments("after", after, channels.shape, "the channels of x")
        arrays = made_lazy({"x": x, **_fields("after", after)})
        del arrays["x"]
    _check_dtypes(x, channels, after, arrays)
    if after is not None:
        start = each_object(
            _known,
            *map(channels.spread, arrays.values()),
            fields=[name.removeprefix("after.") for name in arrays],
            count=int(after.count),
            axes=channels.axes,
        )
    fields = fields_of(total_moments(x, channels, start), channels)
    return Moments(count if math.prod(channels.shape) else 0, *map(channels.public, fields))


def merge(moments: Moments, other: Moments) -> Moments:
    """Return the moments of two sets of values of the same channels."""
    if not (moments.count and other.count):
        return moments if moments.count else other
    arrays = made_lazy({**_fields("moments", moments), **_fields("other", other)})
    like = arrays["moments.mean"]
    given = [as_divided(array, like.chunks) for array in arrays.values()]
    counts = int(moments.count), int(other.count)
    options: dict[str, Any] = {"names": list(arrays), "counts": counts}
    _merge(*(np.empty((0,) * a.ndim, a.dtype) for a in given), **options)  # checks the dtypes
    objects = each_object(_merge, *given, **options)
    fields = (take(objects, k, dtype=_FLOAT64, chunks=like.chunks) for k in (1, 2, 3))
    return Moments(sum(counts), *fields)


def of_divisor(method: str, m2: Any, count: int, ddof: int) -> Any:
    """Return what a method of Moments gives for a lazy m2."""
    options = {"method": method, "count": count, "ddof": ddof}
    return each_block(_of_divisor, m2, dtype=_FLOAT64, chunks=m2.chunks, **options)


def _fields(name: str, moments: Any) -> dict[str, Any]:
    """Return the arrays of moments by the names that messages have for them."""
    if not isinstance(moments, Moments):
        return {}
    arrays = {f"{name}.{field}": getattr(moments, field) for field in _FIELDS}
    return {n: a for n, a in arrays.items() if a is not None}


def _check_dtypes(x: Any, channels: Channels, after: Any, arrays: dict[str, Any]) -> None:
    """Raise for wrong arguments, as a call without elements does."""
    empty = {n.removeprefix("after."): np.empty((0,) * a.ndim, a.dtype) for n, a in arrays.items()}
    before = None if after is None else after._replace(**empty)
    nothing = np.empty((0,) * x.ndim, x.dtype)
    numnorm.batch_moments(nothing, channel_axis=channels.axis, after=before)


def total_moments(x: Any, channels: Channels, start: Any = None) -> Any:
    """Return a lazy array of one object, the Moments, for each block of channels."""
    parts = each_object(_parts, x, channel_axis=channels.axis, channels=math.prod(channels.shape))
    return in_order(parts, channels.others, merged, start)


def fields_of(total: Any, channels: Channels) -> list[Any]:
    """Return mean, m2 and mean_lo of Moments as lazy arrays with as many axes as x."""
    chunks = channels.chunks
    return [
        each_block(_field, total, dtype=_FLOAT64, chunks=chunks, field=field, axes=channels.axes)
        for field in _FIELDS
    ]


def merged(parts: Sequence[Any]) -> Moments:
    """Merge Moments, and what `_parts` returns, in order."""
    each = [one for part in parts for one in (part if isinstance(part, list) else [part])]
    if not any(isinstance(one, Moments) and is_on_device(one.mean) for one in each):
        return folded_moments(each)
    total: Moments = functools.reduce(Moments.merge, each)
    return total


def _parts(x: Any, *, channel_axis: Any, channels: int) -> BlockMoments | list[Moments]:
    """Return the moments of each part of x that a call on the whole array sums as one block."""
    if not is_on_device(x):
        return block_moments(x, channel_axis, channels)
    layout = column_layout(x.shape, channel_axis, channels)
    flat = x.reshape((layout.outer, layout.channels, layout.inner))
    starts = range(0, max(layout.outer, 1), layout.block)
    return [numnorm.batch_moments(flat[start : start + layout.block]) for start in starts]


def _known(*arrays: Any, fields: list[str], count: int, axes: tuple[int, ...]) -> Moments:
    given = {field: of_channels(a, axes) for field, a in zip(fields, arrays, strict=True)}
    return Moments(count, **given)


def _merge(*arrays: Any, names: list[str], counts: tuple[int, int]) -> Moments:
    given = dict(zip(names, arrays, strict=True))
    moments, other = (
        Moments(count, *(given.get(f"{name}.{field}") for field in _FIELDS))
        for name, count in zip(("moments", "other"), counts, strict=True)
    )
    return moments.merge(other)


def _of_divisor(m2: Any, *, method: str, count: int, ddof: int) -> Any:
    return getattr(Moments(count, m2, m2), method)(ddof)


def _field(objects: Any, *, field: str, axes: tuple[int, ...]) -> Any:
    return aligned(getattr(objects[(0,) * objects.ndim], field), axes, objects.ndim)
