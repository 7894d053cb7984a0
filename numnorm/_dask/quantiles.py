"""The quantiles of channels of lazy arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import numnorm
from numnorm._dask.blocks import Chunks, each_block, each_object, emptied, in_order, only
from numnorm._dask.keywords import BlockKeywords, elements_of, keywords_of
from numnorm._dask.moments import channels_of
from numnorm._dask.parameters import made_lazy, with_axes
from numnorm.array_likes import library_of
from numnorm.norms import weighted
from numnorm.norms.order_statistics import check_method
from numnorm.norms.quantiles import (
    Quantiles,
    check_probabilities,
    check_quantiles,
    joined,
    merged,
)

_FLOAT64, _INT64 = np.dtype(np.float64), np.dtype(np.int64)


class LazyQuantiles(Quantiles):
    """Quantiles of arrays of Dask: all numbers that they give are lazy arrays.

    Parameters
    ----------
    objects : lazy array
        `Quantiles` of each block of channels, with an axis for each axis of the channels.
    chunks : tuple
        The lengths of the blocks of channels.
    """

    def __init__(self, objects: Any, chunks: Chunks) -> None:
        self._objects, self._chunks = objects, chunks
        self._shape = tuple(map(sum, chunks))

    @property
    def count(self) -> Any:
        """The number of values of each channel, a lazy array."""
        return self._of_each(_count, _INT64)

    @property
    def rank_error(self) -> Any:
        """The largest error of rank, a lazy array without axes."""
        chunks = tuple((1,) * len(each) for each in self._chunks)
        return each_block(_rank_error, self._objects, dtype=_FLOAT64, chunks=chunks).max()

    def __repr__(self) -> str:
        return f"Quantiles(shape={self._shape}, lazy)"

    def __reduce__(self) -> tuple[Any, ...]:
        return LazyQuantiles, (self._objects, self._chunks)

    def quantile(self, q: Any, method: str = "linear") -> Any:
        """Return lazy quantiles of each channel, as `Quantiles.quantile`."""
        method, probabilities = check_method(method, False), check_probabilities(q)
        each = [
            self._of_each(_quantile, _FLOAT64, q=one, method=method)
            for one in probabilities.reshape(-1).tolist()
        ]
        if not probabilities.ndim:
            return each[0]
        library, shape = library_of(self._objects), (*probabilities.shape, *self._shape)
        if not each:
            return library.zeros(shape, dtype=_FLOAT64)
        return library.stack(each).reshape(shape)

    def iqr(self, method: str = "linear") -> Any:
        """Return the lazy interquartile range of each channel, as `Quantiles.iqr`."""
        return self._of_each(_iqr, _FLOAT64, method=check_method(method, False))

    def merge(self, other: Quantiles) -> Quantiles:
        """Return lazy quantiles of both sets of values, as `Quantiles.merge`."""
        check_quantiles("other", other, self._shape)
        return merged_quantiles(self, other)

    def to_arrays(self) -> dict[str, Any]:
        """Raise: there is nothing to save yet."""
        raise TypeError("Quantiles must be in memory to be saved, got lazy ones: use .compute()")

    def compute(self, **options: Any) -> Quantiles:
        """Return the quantiles in memory.

        Parameters
        ----------
        **options
            Those of the method `compute` of an array of Dask.

        Returns
        -------
        Quantiles
        """
        return joined(self._objects.compute(**options))

    def in_blocks(self, chunks: Chunks) -> Any:
        """Return an object for each block of channels, in other blocks."""
        if chunks == self._chunks:
            return self._objects
        whole = self._objects.rechunk(-1)
        one = each_block(_joined, whole, dtype=object, chunks=((1,),) * whole.ndim)
        return _divided(one, chunks)

    def _of_each(self, function: Any, dtype: Any, **options: Any) -> Any:
        """Return a lazy array with a number for each channel."""
        return each_block(function, self._objects, dtype=dtype, chunks=self._chunks, **options)


def quantiles(
    x: Any, *, channel_axis: Any, after: Any, error: Any, keep: Any, counting: Mapping[str, Any]
) -> Quantiles:
    """Return the quantiles of channels of lazy arrays."""
    arrays = made_lazy({"x": x, **elements_of(counting)})
    x = arrays.pop("x")
    channels = channels_of(x, channel_axis)
    if after is not None:
        check_quantiles("after", after, channels.shape)
    own = weighted.of_channels(channels.axis, x.ndim).own
    keywords = keywords_of(x, arrays, counting, own, scaled=False)
    options = {"channel_axis": channels.axis, "error": error, "keep": keep}
    empty = emptied({"x": x, **keywords.elements})
    numnorm.quantiles(**empty, **keywords.options, **options)  # checks the arguments
    given = keywords.arrays.values()
    parts = each_object(_part, x, *given, in_block=keywords.in_block, call=options)
    total = with_axes(in_order(parts, channels.others, merged), channels.axes)
    now = LazyQuantiles(total, tuple(x.chunks[axis] for axis in channels.axes))
    return now if after is None else merged_quantiles(after, now)


def merged_quantiles(one: Quantiles, other: Quantiles) -> Quantiles:
    """Return the quantiles of two sets of values of the same channels, of which one is lazy."""
    like = one if isinstance(one, LazyQuantiles) else other
    assert isinstance(like, LazyQuantiles)
    pair = [
        each.in_blocks(like._chunks)
        if isinstance(each, LazyQuantiles)
        else _divided_in_memory(each, like)
        for each in (one, other)
    ]
    return LazyQuantiles(each_object(_both, *pair), like._chunks)


def _divided_in_memory(quantiles: Quantiles, like: LazyQuantiles) -> Any:
    objects = np.empty(tuple(map(len, like._chunks)), object)
    for index in np.ndindex(objects.shape):
        objects[index] = quantiles.of_channels(_box(index, like._chunks))
    return library_of(like._objects).from_array(objects, chunks=1)


def _divided(one: Any, chunks: Chunks) -> Any:
    """Divide the `Quantiles` of all channels, one lazy object, into an object for each block."""
    library = library_of(one)
    places = np.empty(tuple(map(len, chunks)), object)
    for index in np.ndindex(places.shape):
        places[index] = _box(index, chunks)
    boxes = library.from_array(places, chunks=1)
    return each_object(_of_box, boxes, one)


def _box(index: tuple[int, ...], chunks: Chunks) -> tuple[slice, ...]:
    """Return the channels of a block."""
    starts = (sum(each[:i]) for i, each in zip(index, chunks, strict=True))
    return tuple(
        slice(start, start + each[i]) for start, i, each in zip(starts, index, chunks, strict=True)
    )


# Functions of blocks


def _part(x: Any, *arrays: Any, in_block: BlockKeywords, call: dict[str, Any]) -> Quantiles:
    return numnorm.quantiles(x, **in_block.public(arrays), **call)


def _both(one: Any, other: Any) -> Quantiles:
    return merged((only(one), only(other)))


def _of_box(box: Any, one: Any) -> Quantiles:
    whole: Quantiles = only(one)
    return whole.of_channels(only(box))


def _joined(objects: Any) -> Any:
    result = np.empty((1,) * objects.ndim, object)
    result[(0,) * objects.ndim] = joined(objects)
    return result


def _count(objects: Any) -> Any:
    return only(objects).count


def _rank_error(objects: Any) -> Any:
    return np.full((1,) * objects.ndim, only(objects).rank_error)


def _iqr(objects: Any, *, method: str) -> Any:
    return only(objects).iqr(method)


def _quantile(objects: Any, *, q: float, method: str) -> Any:
    return only(objects).quantile(q, method)
