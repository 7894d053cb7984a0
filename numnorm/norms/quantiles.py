"""Quantiles of channels in chunks: exact, or by sketches with an error of rank that is stated."""

from __future__ import annotations

import functools
import math
import operator
import threading
from collections.abc import Iterable, Mapping
from sys import modules
from typing import Any, Never

import numpy as np

from numnorm.arguments import Axis, Shape, check_float, check_integer, check_shape
from numnorm.array_likes import any_lazy, as_plain_array, check_norm_on_host, lazily, lazy_twin
from numnorm.array_types import ArrayLike, Integer, NanPolicy, Number
from numnorm.keywords import unexpected
from numnorm.layouts import normalized_axes
from numnorm.norms.order_statistics import between, check_method, distance, places
from numnorm.norms.quantile_sketches import (
    arrays_of_sketches,
    check_error,
    merged_sketch,
    saved_sketches,
    values_at,
)
from numnorm.norms.weighted import checked_counting, of_channels

KEEP = 65536
"""The default number of values of a channel that are kept where an error is allowed."""

_MOST_PARTS = 16


class Quantiles:
    """The values of each channel, or sketches of them, from which any quantile follows.

    `quantiles` returns them. Those of parts of the data can be merged into those of the whole,
    which an average of the quantiles of parts is not: stream the data in chunks, or distribute it
    over machines. They can be pickled, and `to_arrays` gives what `numpy.savez` takes.

    Examples
    --------
    >>> import numnorm
    >>> left = numnorm.quantiles([[1.0], [2.0]])
    >>> both = left.merge(numnorm.quantiles([[9.0]]))
    >>> both
    Quantiles(shape=(1,), count=3, rank_error=0.0)
    >>> both.median(), both.quantile([0.0, 0.75])
    (array([2.]), array([[1. ],
           [5.5]]))
    """

    def __init__(
        self,
        shape: Shape,
        count: Any,
        missing: Any,
        parts: tuple[Any, ...] = (),
        sketches: tuple[Any, ...] | None = None,
        error: float | None = None,
        keep: int = KEEP,
    ) -> None:
        # parts: arrays (channels, values), with NaN in the place of what was left out. missing:
        # whether a channel has a NaN that counts. Nothing here changes, but that parts become one
        # sorted array when the first quantile is asked for.
        self._shape, self._count, self._missing = shape, count, missing
        self._parts, self._sketches = parts, sketches
        self._error, self._keep = error, keep
        self._lock = threading.Lock()

    @property
    def count(self) -> Any:
        """The number of values of each channel: an array of int64."""
        return self._count.reshape(self._shape)

    @property
    def rank_error(self) -> float:
        """The largest error of rank; 0 if the quantiles are exact.

        Else the quantile q of a channel lies between the exact ones of ``q - rank_error`` and
        ``q + rank_error``, in 99 of 100 sketches. Where the sketches of the channels differ, this
        is the largest one.
        """
        if self._sketches is None:
            return 0.0
        return float(max((s.normalized_rank_error(False) for s in self._sketches), default=0.0))

    def __repr__(self) -> str:
        counts = np.unique(self._count)
        count = f"{counts[0]}" if len(counts) == 1 else "array(...)"
        error = f"{self.rank_error:.2g}" if self.rank_error else "0.0"
        return f"Quantiles(shape={self._shape}, count={count}, rank_error={error})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Quantiles.from_arrays, (self.to_arrays(),)

    def quantile(self, q: ArrayLike | Number, method: str = "linear") -> Any:
        """Return quantiles of each channel.

        Parameters
        ----------
        q : float or array_like of float
            Which ones: probabilities between 0 and 1.
        method : str, default "linear"
            How a quantile follows from the sorted values: one of those of `numpy.quantile`.

        Returns
        -------
        numpy.ndarray of float64
            As `numpy.quantile` gives them: the axes of `q`, then those of the channels. NaN for a
            channel that has NaN or no values.

        Raises
        ------
        TypeError, ValueError
            If an argument has an unsupported type or dtype, or a wrong value.

        Examples
        --------
        >>> import numnorm
        >>> numnorm.quantiles([[1.0], [2.0], [9.0]]).quantile(0.75, method="higher")
        array([9.])
        """
        method = check_method(method, False)
        probabilities = check_probabilities(q)
        result = self._quantiles(probabilities.reshape(-1), method)
        return result.reshape(*probabilities.shape, *self._shape)

    def median(self) -> Any:
        """Return the median of each channel.

        Returns
        -------
        numpy.ndarray of float64
            Of the shape of the channels.

        Examples
        --------
        >>> import numnorm
        >>> numnorm.quantiles([[1.0], [2.0], [9.0]]).median()
        array([2.])
        """
        return self.quantile(0.5)

    def iqr(self, method: str = "linear") -> Any:
        """Return the interquartile range of each channel: the quantile 0.75 less that of 0.25.

        Parameters
        ----------
        method : str, default "linear"
            As for `quantile`.

        Returns
        -------
        numpy.ndarray of float64
            Of the shape of the channels.

        Examples
        --------
        >>> import numnorm
        >>> numnorm.quantiles([[1.0], [2.0], [5.0]]).iqr()
        array([2.])
        """
        method = check_method(method, False)
        found = distance(*self._around(np.array([0.25, 0.75]), method))
        found[self._missing | (self._count == 0)] = np.nan
        return found.reshape(self._shape)

    def merge(self, other: Quantiles) -> Quantiles:
        """Return the quantiles of both sets of values together.

        Parameters
        ----------
        other : Quantiles
            Those of the same channels.

        Returns
        -------
        Quantiles
            Exact if both are and all values are to be kept. Where both allow an error, the larger
            one and the smaller number of values to keep are taken.

        Raises
        ------
        TypeError, ValueError
            If `other` is of another type, or of other channels.

        Examples
        --------
        >>> import numnorm
        >>> one, other = numnorm.quantiles([[1.0], [5.0]]), numnorm.quantiles([[3.0]])
        >>> one.merge(other).median()
        array([3.])
        """
        check_quantiles("other", other, self._shape)
        if "dask" in modules and any_lazy(other.count):
            lazy: Quantiles = lazy_twin("merged_quantiles")(self, other)
            return lazy
        return merged((self, other))

    def to_arrays(self) -> dict[str, Any]:
        """Return all as arrays of NumPy, for `numpy.savez` and the like.

        Returns
        -------
        dict
            Arrays by name, without objects. `from_arrays` takes them.

        Examples
        --------
        >>> import tempfile
        >>> import numpy as np
        >>> import numnorm
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.savez(f"{folder}/q.npz", **numnorm.quantiles([[1.0], [4.0]]).to_arrays())
        ...     with np.load(f"{folder}/q.npz") as file:
        ...         numnorm.Quantiles.from_arrays(file).median()
        array([2.5])
        """
        arrays = {"count": self.count, "missing": self._missing.reshape(self._shape)}
        if self._error is not None:
            arrays["error"], arrays["keep"] = np.float64(self._error), np.int64(self._keep)
        if self._sketches is None:
            return arrays | {"values": self._sorted()}
        return arrays | arrays_of_sketches(self._sketches)

    @staticmethod
    def from_arrays(arrays: Mapping[str, Any]) -> Quantiles:
        """Return what `to_arrays` turned into arrays.

        Parameters
        ----------
        arrays : mapping
            Its arrays, such as an open file of `numpy.load`.

        Returns
        -------
        Quantiles

        Raises
        ------
        TypeError, ValueError
            If `arrays` is no mapping, or lacks an array.
        ImportError
            If there are sketches, and datasketches is not installed.

        Examples
        --------
        >>> import numnorm
        >>> saved = numnorm.quantiles([[1.0], [4.0]]).to_arrays()
        >>> numnorm.Quantiles.from_arrays(saved).median()
        array([2.5])
        """
        if not isinstance(arrays, Mapping):
            raise TypeError(f"arrays must be a mapping, got {type(arrays).__name__}")
        wanted = {"count", "missing"} | (
            {"values"} if "values" in arrays else {"sketches", "lengths"}
        )
        if wanted - set(arrays):
            lacking = ", ".join(sorted(wanted - set(arrays)))
            raise ValueError(f"arrays must be all that to_arrays returned, got no {lacking}")
        count = np.asarray(arrays["count"])
        given = count.shape, count.reshape(-1), np.asarray(arrays["missing"]).reshape(-1)
        error, keep = None, KEEP
        if "error" in arrays:
            error, keep = float(arrays["error"]), int(arrays["keep"])
        if "values" in arrays:
            return Quantiles(*given, (np.asarray(arrays["values"]),), error=error, keep=keep)
        sketches = saved_sketches(arrays["sketches"], arrays["lengths"])
        return Quantiles(*given, sketches=sketches, error=error, keep=keep)

    def _quantiles(self, q: Any, method: str) -> Any:
        """Return quantiles, an array ``(q, channels)``, for an array of probabilities."""
        result = between(*self._around(q, method))
        result[:, self._missing | (self._count == 0)] = np.nan
        return result

    def _around(self, q: Any, method: str) -> tuple[Any, Any, Any]:
        """Return the values below and above quantiles, and the shares of the latter."""
        lower, share = places(q, np.maximum(self._count, 1), method)
        return self._at(lower), self._at(lower + (share > 0.0)), share

    def _at(self, positions: Any) -> Any:
        """Return the values at positions ``(q, channels)`` among the sorted ones, in float64."""
        if self._sketches is None:
            values = self._sorted()
            if not values.shape[1]:
                return np.full(positions.shape, np.nan)
            positions = np.minimum(positions, values.shape[1] - 1)  # of a channel with NaN
            return values[np.arange(len(values)), positions].astype(np.float64)
        result = np.full(positions.shape, np.nan)
        for channel, sketch in enumerate(self._sketches):
            if not sketch.is_empty():
                result[:, channel] = values_at(sketch, positions[:, channel])
        return result

    def _sorted(self) -> Any:
        """Return all values, sorted along the last axis; behind them NaN for what is left out."""
        with self._lock:
            if len(self._parts) != 1:
                self._parts = (_sorted(_joined(self._parts, len(self._count)), self._known()),)
            elif self._parts[0].flags.writeable:  # it may be a part of others, too
                self._parts = (_sorted(self._parts[0].copy(), self._known()),)
            return self._parts[0]

    def _known(self) -> int:
        """Return the most values of a channel without NaN."""
        return int(np.max(self._count, where=~self._missing, initial=0))

    def of_channels(self, box: tuple[slice, ...]) -> Quantiles:
        """Return the quantiles of some channels.

        Parameters
        ----------
        box : tuple of slice
            The channels, a slice for each of their axes.

        Returns
        -------
        Quantiles

        Examples
        --------
        >>> import numnorm
        >>> numnorm.quantiles([[1.0, 5.0], [3.0, 7.0]]).of_channels((slice(1, 2),)).median()
        array([6.])
        """
        chosen = np.arange(len(self._count)).reshape(self._shape)[box]
        index = chosen.reshape(-1)
        parts = tuple(part[index] for part in self._parts)
        own = self._sketches
        sketches = None if own is None else tuple(own[channel] for channel in index)
        given = self._count[index], self._missing[index], parts, sketches, self._error, self._keep
        return Quantiles(chosen.shape, *given)


def quantiles(
    x: ArrayLike,
    *,
    channel_axis: Axis = 1,
    after: Quantiles | None = None,
    where: ArrayLike | bool | None = None,
    nan_policy: NanPolicy = "propagate",
    error: Number | None = None,
    keep: Integer = KEEP,
    **others: Never,
) -> Quantiles:
    """Return what gives any quantile of each channel, and can be streamed and merged.

    Parameters
    ----------
    x : array_like
        Any shape; float16, bfloat16, float32 or float64. Integers and bool become float64. An array
        of Dask, in any chunks, gives quantiles that are lazy arrays.
    channel_axis : int or tuple of int, default 1
        The axis of the channels; quantiles are taken over all other axes. With several axes, they
        have the shape of these axes.
    after : Quantiles, optional
        Those of the previous chunks, to be merged in.
    where : array_like of bool, or of 0 and 1, optional
        Which elements count; it broadcasts against x.
    nan_policy : {"propagate", "omit", "raise"}
        What to do with NaN: make the quantiles of its channel NaN, leave it out as `where` does, or
        raise an error.
    error : float, optional
        An error of rank that is allowed: 0.01 means that the median lies between the exact
        quantiles of 0.49 and 0.51. A channel of more than `keep` values then becomes a sketch of
        bounded size. Default: all values are kept, and all quantiles are exact.
    keep : int, default 65536
        With `error`: the number of values of a channel up to which all are kept.

    Returns
    -------
    Quantiles
        Of x, or of all chunks up to x.

    Raises
    ------
    TypeError, ValueError
        If an argument has an unsupported type or dtype, or a wrong shape or value.
    ImportError
        If `error` is given, and datasketches is not installed: the extra ``sketches``.

    Notes
    -----
    Exact quantiles do not depend on the chunks, on their order, or on how they are merged. They
    keep all values, in float32 for half precision: as much memory as the data has, and as much
    again while they are sorted, when the first quantile is asked for.

    A sketch is one of Karnin, Lang and Liberty's, as Apache's datasketches has them: about 10 KB a
    channel for an error of 0.01, whatever the number of values. It keeps values of float64, so that
    an offset costs no digits. It draws random bits: a second run differs within the error, which
    holds in 99 of 100 sketches. Its least and largest values are exact.

    Arrays on a device are not supported.

    References
    ----------
    Z. Karnin, K. Lang, E. Liberty, "Optimal Quantile Approximation in Streams", FOCS 2016.

    Examples
    --------
    >>> import numnorm
    >>> total = None
    >>> for chunk in ([[1.0], [2.0]], [[9.0]]):
    ...     total = numnorm.quantiles(chunk, after=total)
    >>> total.quantile([0.25, 0.5]).ravel()
    array([1.5, 2. ])
    """
    if others:
        raise unexpected(quantiles, others)
    if "dask" in modules and any_lazy(x, where):
        lazy: Quantiles = lazily(quantiles, locals())
        return lazy
    check_norm_on_host("quantiles", x)
    error, keep = check_error(error), check_integer("keep", keep, 1)
    x, counting = checked_counting(of_channels, x, channel_axis, where, None, nan_policy)
    axes = normalized_axes(channel_axis, x.ndim, "channel_axis")
    shape = tuple(x.shape[axis] for axis in axes)
    if after is not None:
        check_quantiles("after", after, shape)
    dtype = np.dtype(np.float64 if x.dtype == np.float64 else np.float32)
    values = _values_of(x, axes, dtype)
    count = np.full(len(values), values.shape[1], np.int64)
    if counting.where is not None:
        keep_mask = _values_of(np.broadcast_to(counting.where, x.shape), axes, np.dtype(bool))
        count = np.count_nonzero(keep_mask, axis=1).astype(np.int64)
    empty = np.isnan(values)
    missing = empty & keep_mask if counting.where is not None else empty
    nans = np.count_nonzero(missing, axis=1)
    if counting.omit:
        count, nans = count - nans, np.zeros_like(nans)
    if counting.where is not None:
        values[~keep_mask] = np.nan
    now = Quantiles(shape, count, nans > 0, (values,), error=error, keep=keep)
    return merged((now,)) if after is None else after.merge(now)


def _values_of(array: Any, axes: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """Return a new array ``(channels, values)``."""
    moved = np.moveaxis(array, axes, range(len(axes)))
    channels = math.prod(moved.shape[: len(axes)])
    each = math.prod(moved.shape[len(axes) :])
    result = np.empty((channels, each), dtype)
    result.reshape(moved.shape)[...] = moved
    return result


def merged(each: Iterable[Quantiles]) -> Quantiles:
    """Return the quantiles of all values of at least one `Quantiles` of the same channels."""
    each = list(each)
    first = each[0]
    errors = [one._error for one in each if one._error is not None]
    error = max(errors, default=None)
    keep = min((one._keep for one in each if one._error is not None), default=KEEP)
    count = functools.reduce(operator.add, (one._count for one in each))
    missing = functools.reduce(operator.or_, (one._missing for one in each))
    limits: Any = {"error": error, "keep": keep}
    is_exact = all(one._sketches is None for one in each)
    if is_exact and (error is None or count.max(initial=0) <= keep):
        parts = [part for one in each for part in one._parts if part.shape[1]]
        return Quantiles(first._shape, count, missing, _fewer(parts), **limits)
    assert error is not None  # there are no sketches without an error
    sketches = _sketched(each, error)
    return Quantiles(first._shape, count, missing, sketches=sketches, **limits)


def joined(grid: Any) -> Quantiles:
    """Return the quantiles of all channels from an array of those of blocks of channels."""
    if grid.size == 1:
        one: Quantiles = grid.flat[0]
        return one
    along = [
        [grid[tuple(i if a == axis else 0 for a in range(grid.ndim))]._shape[axis]
         for i in range(n)]
        for axis, n in enumerate(grid.shape)
    ]  # fmt: skip
    ends = [np.cumsum((0, *lengths)) for lengths in along]
    shape = tuple(map(sum, along))
    names = np.arange(math.prod(shape)).reshape(shape)
    count, missing = np.zeros(names.size, np.int64), np.zeros(names.size, bool)
    is_exact = all(one._sketches is None for one in grid.flat)
    values: list[Any] = [None] * names.size
    for index in np.ndindex(grid.shape):
        one = grid[index]
        box = tuple(slice(e[i], e[i + 1]) for e, i in zip(ends, index, strict=True))
        own = names[box].reshape(-1)
        count[own], missing[own] = one._count, one._missing
        each = one._sorted() if is_exact else one._sketches or _sketched([one], one._error or 1.0)
        for name, channel in zip(own.tolist(), each, strict=True):
            values[name] = channel
    limits: Any = {"error": one._error, "keep": one._keep}
    if not is_exact:
        return Quantiles(shape, count, missing, sketches=tuple(values), **limits)
    width = max(map(len, values), default=0)
    dtype = np.result_type(np.float32, *values) if values else np.dtype(np.float32)
    table = np.full((names.size, width), np.nan, dtype)
    for row, channel in zip(table, values, strict=True):
        row[: len(channel)] = channel
    return Quantiles(shape, count, missing, (table,), **limits)


def _fewer(parts: list[Any]) -> tuple[Any, ...]:
    """Return arrays in the place of many, each shorter than the one before it."""
    if len(parts) <= _MOST_PARTS:
        return tuple(parts)
    stack: list[list[Any]] = []
    widths: list[int] = []
    for part in parts:
        stack.append([part])
        widths.append(part.shape[1])
        while len(stack) > 1 and widths[-2] <= widths[-1]:
            stack[-2:] = [stack[-2] + stack[-1]]
            widths[-2:] = [widths[-2] + widths[-1]]
    return tuple(each[0] if len(each) == 1 else _joined(each, len(each[0])) for each in stack)


def _joined(parts: Any, channels: int) -> Any:
    """Return arrays ``(channels, values)`` in a new one."""
    if not parts:
        return np.empty((channels, 0), np.float32)
    return np.concatenate(parts, axis=1)


def _sorted(values: Any, most: int) -> Any:
    """Return the values of each channel, sorted in place, without the NaN that all have at last."""
    values.sort(axis=1)
    values = values if values.shape[1] == most else values[:, :most].copy()
    values.flags.writeable = False
    return values


def _sketched(each: list[Quantiles], error: float) -> tuple[Any, ...]:
    """Return a sketch of each channel, of the values in all `Quantiles`."""
    result = []
    for channel in range(len(each[0]._count)):
        sketches = [one._sketches[channel] for one in each if one._sketches is not None]
        exact = (part for one in each if one._sketches is None for part in one._parts)
        result.append(merged_sketch(sketches, (part[channel] for part in exact), error))
    return tuple(result)


# Checks


def check_quantiles(name: str, value: Any, shape: Shape) -> None:
    """Raise unless a value is `Quantiles` of channels of a shape."""
    if not isinstance(value, Quantiles):
        raise TypeError(f"{name} must be Quantiles, got an object of type {type(value).__name__}")
    check_shape(f"{name}.count", value._shape, shape, "the channels")


def check_probabilities(q: Any) -> Any:
    """Return probabilities as an array of float64."""
    array = as_plain_array("q", q)
    check_float("q", array.dtype)
    probabilities = array.astype(np.float64)
    if not ((probabilities >= 0.0) & (probabilities <= 1.0)).all():
        wrong = probabilities[~((probabilities >= 0.0) & (probabilities <= 1.0))].flat[0]
        raise ValueError(f"q must be between 0 and 1, got {wrong:g}")
    return probabilities
