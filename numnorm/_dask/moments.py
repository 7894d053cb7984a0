"""The moments of channels of lazy arrays."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import numnorm
from numnorm._dask.blocks import Chunks, each_block, each_object, emptied, in_order, only, take
from numnorm._dask.keywords import Keywords, codes_of, elements_of, keywords_of
from numnorm._dask.parameters import along, as_divided, made_lazy, with_axes
from numnorm._dask.row_axes import Rows
from numnorm._dask.row_moments import merged_moments
from numnorm.arguments import Shape
from numnorm.array_likes import is_on_device
from numnorm.backends.contract.backend import BlockMoments
from numnorm.layouts import column_layout, normalized_axes
from numnorm.norms import weighted
from numnorm.norms.batch import (
    block_moments,
    folded_moments,
    has_no_samples,
    moments_of_no_label,
)
from numnorm.norms.moments import GroupMoments, Moments, check_moments, has_counts, merged_after

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
    labels : int
        The number of labels of samples, each with statistics of its own; 0 without labels.
    """

    axes: tuple[int, ...]
    others: tuple[int, ...]
    axis: int | tuple[int, ...]
    shape: Shape
    count: int  # type: ignore[assignment]  # a field may hide tuple's method
    chunks: Chunks
    labels: int = 0

    @property
    def rows(self) -> Rows:
        """The channels as rows, of each label."""
        return Rows(self.others, self.axes, self.axes, labels=self.labels)

    @property
    def statistic_axes(self) -> tuple[int, ...]:
        """The axes of a statistic with as many axes as x that are not summed over."""
        return tuple(sorted((*self.axes, self.others[0]))) if self.labels else self.axes

    @property
    def statistic_shape(self) -> Shape:
        """The public shape of a statistic."""
        return (self.labels, *self.shape) if self.labels else self.shape

    def of_labels(self, labels: int) -> Channels:
        """Return these channels with statistics for each label."""
        lengths = tuple((labels,) if a == self.others[0] else c for a, c in enumerate(self.chunks))
        return self._replace(labels=labels, chunks=lengths)

    def spread(self, statistic: Any) -> Any:
        """Return a statistic of the public shape with as many axes as x, divided as x."""
        return as_divided(self.rows.with_axes_of(statistic, len(self.chunks)), self.chunks)

    def public(self, statistic: Any) -> Any:
        """Return a statistic with as many axes as x in its public shape."""
        return self.rows.public(statistic)


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


_FLOAT64 = np.dtype(np.float64)
_FIELDS = ("mean", "m2", "mean_lo")


def batch_moments(
    x: Any, *, channel_axis: Any, after: Any, counting: Mapping[str, Any]
) -> Moments | GroupMoments:
    """Return the moments of channels in lazy arrays; with labels, the moments of each label."""
    labelled = "labels" in counting
    if labelled and has_no_samples(x, channel_axis):
        options = {name: value for name, value in counting.items() if name != "labels"}
        moments = numnorm.batch_moments(x, channel_axis=channel_axis, **options)
        return moments_of_no_label(moments, counting["labels"], after)
    if counting or (isinstance(after, Moments) and has_counts(after)):
        before = None if labelled or after is None else after
        now = _counted_moments(x, channel_axis, before, counting)
        if isinstance(now, GroupMoments):
            return merged_after(after, now)
        return now if after is None else after.merge(now)
    arrays = made_lazy({"x": x, **_fields("after", after)})
    x = arrays.pop("x")
    channels = channels_of(x, channel_axis)
    count, start = channels.count, None
    if after is not None:
        count += check_moments("after", after, channels.shape, "the channels of x")
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


def _counted_moments(
    x: Any, channel_axis: Any, after: Any, counting: Mapping[str, Any]
) -> Moments | GroupMoments:
    """Return the moments of x by the keywords for missing values, weights and labels."""
    arrays = made_lazy({"x": x, **_fields("after", after), **elements_of(counting)})
    x = arrays["x"]
    channels = channels_of(x, channel_axis)
    if after is not None:
        check_moments("after", after, channels.shape, "the channels of x")
    keywords, kinds, channels = keywords_of_channels(x, channels, arrays, counting, scaled=False)
    empty = emptied({"x": x, **keywords.elements})
    numnorm.batch_moments(**empty, channel_axis=channels.axis, **keywords.options)
    total = merged_moments(x, channels.rows, keywords)
    counted = kinds is not None or keywords.elements or keywords.in_block.policy == "omit"
    names = ("count", *_FIELDS) if counted else _FIELDS
    fields = [
        channels.public(
            each_block(_total_field, total, dtype=_FLOAT64, chunks=channels.chunks, field=name)
        )
        for name in names
    ]
    moments = Moments(*fields) if counted else Moments(channels.count, *fields)
    return moments if kinds is None else GroupMoments(kinds, moments)


def keywords_of_channels(
    x: Any,
    channels: Channels,
    arrays: Mapping[str, Any],
    counting: Mapping[str, Any],
    *,
    scaled: bool = True,
) -> tuple[Keywords, Any, Channels]:
    """Return the keywords of a call, the sorted labels, and the channels of each label.

    Parameters
    ----------
    x : lazy array
    channels : Channels
    arrays : mapping
        The lazy arrays of the call, among them `where` and `weights`.
    counting : mapping
        The keywords for missing values, weights and labels.
    scaled : bool
        As in `BlockKeywords`.
    """
    own = weighted.of_channels(channels.axis, x.ndim).own
    elements = elements_of(arrays)
    keywords = keywords_of(x, elements, counting, own, scaled=scaled)
    if "labels" not in counting:
        return keywords, None, channels
    kinds, codes = codes_of(x, channels.axis, counting["labels"])
    return keywords.with_codes(codes), kinds, channels.of_labels(len(kinds))


def merge(moments: Moments, other: Moments) -> Moments:
    """Return the moments of two sets of values of the same channels."""
    counted = has_counts(moments) or has_counts(other)
    if not counted and not (moments.count and other.count):
        return moments if moments.count else other
    arrays = made_lazy({**_fields("moments", moments), **_fields("other", other)})
    like = arrays["moments.mean"]
    given = [as_divided(array, like.chunks) for array in arrays.values()]
    counts = tuple(None if has_counts(each) else int(each.count) for each in (moments, other))
    options: dict[str, Any] = {"names": list(arrays), "counts": counts}
    _merge(*(np.empty((0,) * a.ndim, a.dtype) for a in given), **options)  # checks the dtypes
    objects = each_object(_merge, *given, **options)
    count, *fields = (
        take(objects, k, dtype=_FLOAT64, chunks=like.chunks) if k or counted else None
        for k in range(4)
    )
    return Moments(count if counted else moments.count + other.count, *fields)


def of_divisor(method: str, m2: Any, count: Any, ddof: int) -> Any:
    """Return what a method of Moments gives for a lazy m2."""
    options: Any = {"method": method, "ddof": ddof}
    like: Any = {"dtype": _FLOAT64, "chunks": m2.chunks}
    if isinstance(count, int):
        return each_block(_of_divisor, m2, **like, count=count, **options)
    counts = as_divided(made_lazy({"m2": m2, "count": count})["count"], m2.chunks)
    return each_block(_of_divisor, m2, counts, **like, **options)


def placed(moments: Moments, rows: Any, there: Any, x: Any = None) -> Moments:
    """Return lazy moments of labels in other rows.

    Parameters
    ----------
    moments : Moments
        With a first axis of labels.
    rows : array of int
        For each label of the result its row in `moments`.
    there : array of bool
        Whether it has one; otherwise the label gets moments of no elements.
    x : lazy array, optional
        An array of the library of the result, if the moments are in memory.
    """
    arrays = _fields("moments", moments)
    arrays = made_lazy(arrays if x is None else {"x": x, **arrays})
    arrays.pop("x", None)
    options = {"rows": rows.tolist(), "there": there.tolist()}
    found = {
        name: each_block(
            _placed, array.rechunk({0: -1}), dtype=_FLOAT64,
            chunks=((len(rows),), *array.chunks[1:]), **options,
        )
        for name, array in arrays.items()
    }  # fmt: skip
    return Moments(**{name.removeprefix("moments."): array for name, array in found.items()})


def _fields(name: str, moments: Any) -> dict[str, Any]:
    """Return the arrays of moments by the names that messages have for them."""
    if not isinstance(moments, Moments):
        return {}
    fields = (*_FIELDS, "count") if has_counts(moments) else _FIELDS
    arrays = {f"{name}.{field}": getattr(moments, field) for field in fields}
    return {n: a for n, a in arrays.items() if a is not None}


def _check_dtypes(x: Any, channels: Channels, after: Any, arrays: dict[str, Any]) -> None:
    """Raise for wrong arguments, as a call without elements does."""
    empty = emptied({name.removeprefix("after."): array for name, array in arrays.items()})
    before = None if after is None else after._replace(**empty)
    numnorm.batch_moments(**emptied({"x": x}), channel_axis=channels.axis, after=before)


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
    given = {field: with_axes(a, axes) for field, a in zip(fields, arrays, strict=True)}
    return Moments(count, **given)


def _merge(*arrays: Any, names: list[str], counts: tuple[int | None, int | None]) -> Moments:
    given = dict(zip(names, arrays, strict=True))
    moments, other = (
        Moments(
            given[f"{name}.count"] if count is None else count,
            *(given.get(f"{name}.{field}") for field in _FIELDS),
        )
        for name, count in zip(("moments", "other"), counts, strict=True)
    )
    return moments.merge(other)


def _of_divisor(m2: Any, counts: Any = None, *, method: str, ddof: int, count: Any = None) -> Any:
    return getattr(Moments(count if counts is None else counts, m2, m2), method)(ddof)


def _placed(field: Any, *, rows: list[int], there: list[bool]) -> Any:
    whole = np.zeros((len(rows), *field.shape[1:]))
    whole[there] = field[np.array(rows, np.intp)[there]]
    return whole


def _total_field(total: Any, *, field: str) -> Any:
    return getattr(only(total).moments, field)


def _field(objects: Any, *, field: str, axes: tuple[int, ...]) -> Any:
    return along(getattr(only(objects), field), axes, objects.ndim)
