"""Mergeable statistics of channels: count, mean in two parts, sum of squared deviations."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from sys import modules
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack, overload

import numpy as np

from numnorm.arguments import Axis, check_integer, check_shape
from numnorm.array_likes import as_plain_array, is_on_device
from numnorm.array_types import ArrayLike, Counting, Grouping, Integer
from numnorm.backends import backend_for
from numnorm.layouts import column_layout, normalized_axes
from numnorm.lazy_arrays import any_lazy, lazy_twin
from numnorm.norms.channel_axes import channel_axes, merged_shape
from numnorm.norms.weighted import counted, with_weights

if TYPE_CHECKING:
    from numnorm.norms.group_moments import GroupMoments


class Moments(NamedTuple):
    """The number of values in each channel, their mean, and the sum of their squared deviations.

    The moments of parts of the data can be merged into the moments of the whole (Chan, Golub and
    LeVeque 1979): stream the data in chunks, or distribute it over machines.

    Attributes
    ----------
    count : int or array of float64
        The number of values in each channel; ``(C,)``, the sums of their weights, where some are
        missing or have weights.
    mean : array of float64
        ``(C,)``, an array of the library of x (float32 for JAX without float64).
    m2 : array of float64
        The sum of the squared deviations from the mean, ``(C,)``.
    mean_lo : array of float64, optional
        What `mean` lost when it was rounded to float64, ``(C,)``; None means 0. Merging takes it,
        so that `m2` loses no digits at any offset of the data.

    Notes
    -----
    The relative error of `m2` is a few units in the last place of the type in which the squares
    are taken: float64 for float64, integers and bool, otherwise float32.

    Examples
    --------
    >>> import numnorm
    >>> left = numnorm.batch_moments([[1.0], [2.0]])
    >>> left.merge(numnorm.batch_moments([[6.0]]))
    Moments(count=3, mean=array([3.]), m2=array([14.]), mean_lo=array([0.]))
    """

    count: Any
    mean: Any
    m2: Any
    mean_lo: Any = None

    def merge(self, other: Moments) -> Moments:
        """Return the moments of both sets of values together.

        Parameters
        ----------
        other : Moments
            The moments of the same channels.

        Returns
        -------
        Moments

        Raises
        ------
        TypeError, ValueError
            If a field of either has an unsupported type or dtype, or a wrong shape or value.
        """
        channels = tuple(np.shape(self.mean)) or (1,)
        count = check_moments("moments", self, channels, "the channels")
        others = check_moments("other", other, channels, "the channels")
        if "dask" in modules and any_lazy(*self, *other):
            return lazy_twin("merge")(self, other)
        backend, mean = backend_for(self.mean, "mean")
        if not (has_counts(self) or has_counts(other)) and (count == 0 or others == 0):
            backend_for(other.mean, "other.mean")
            if is_on_device(other.mean) is not is_on_device(self.mean):
                raise TypeError("other.mean must be where mean is, got one on a device and one not")
            return other if count == 0 else self
        return Moments(count + others, *backend.merged_moments(mean, self, other))

    def variance(self, ddof: Integer = 0) -> Any:
        """Return the variance of each channel.

        Parameters
        ----------
        ddof : int, default 0
            The divisor is ``count - ddof``: 1 is Bessel's correction.

        Returns
        -------
        array of float64
            ``(C,)``.

        Raises
        ------
        ValueError
            If the count is not greater than `ddof`. Where each channel has a count, such a channel
            gets NaN.

        Examples
        --------
        >>> import numnorm
        >>> numnorm.batch_moments([[1.0], [3.0]]).variance(ddof=1)
        array([2.])
        """
        return self._divided("variance", ddof)

    def std(self, ddof: Integer = 0) -> Any:
        """Return the standard deviation of each channel: the root of its variance.

        Parameters
        ----------
        ddof : int, default 0
            As for `variance`.

        Returns
        -------
        array of float64
            ``(C,)``.

        Raises
        ------
        ValueError
            If the count is not greater than `ddof`. Where each channel has a count, such a channel
            gets NaN.

        Examples
        --------
        >>> import numnorm
        >>> numnorm.batch_moments([[1.0], [5.0]]).std()
        array([2.])
        """
        return self._divided("std", ddof)

    def _divided(self, method: str, ddof: Any) -> Any:
        """Return the variance of each channel, or its root."""
        ddof = check_integer("ddof", ddof, 0)
        count: Any = self.count
        if has_counts(self):
            count = as_plain_array("count", count)
            count = np.where(count > ddof, count, np.nan)
        elif (count := check_integer("count", count, 0)) <= ddof:
            raise ValueError(f"ddof must be less than the count, {count}, got {ddof}")
        if "dask" in modules and any_lazy(self.m2):
            return lazy_twin("of_divisor")(method, self.m2, count, ddof)
        backend, m2 = backend_for(self.m2, "m2")
        function = backend.variance if method == "variance" else backend.deviation
        return function(m2, count - ddof)


@overload
def batch_moments(
    x: ArrayLike,
    *,
    channel_axis: Axis = ...,
    after: Moments | None = ...,
    **others: Unpack[Counting],
) -> Moments: ...


@overload
def batch_moments(
    x: ArrayLike,
    *,
    groups: ArrayLike,
    channel_axis: Axis = ...,
    after: GroupMoments | None = ...,
    **others: Unpack[Counting],
) -> GroupMoments: ...


def batch_moments(
    x: ArrayLike,
    *,
    channel_axis: Axis = 1,
    after: Any = None,
    **others: Unpack[Grouping],
) -> Any:
    """Return the count, the mean and the squared deviations of each channel.

    Parameters
    ----------
    x : array_like
        Any shape; float16, bfloat16, float32 or float64. Integers and bool become float64.
        An array that is not C-contiguous is copied once. An array of Dask, in any chunks, gives
        moments with an int and lazy arrays.
    channel_axis : int or tuple of int, default 1
        The axis of the channels; the statistics are taken over all other axes. With several axes,
        the moments have the shape of these axes; on a device there may be only one.
    after : Moments or GroupMoments, optional
        The moments of the previous chunks, to be merged in; on the device of x.
    where : array_like of bool, or of 0 and 1, optional
        Which elements count; it broadcasts against x.
    weights : array_like, optional
        How often each element counts: `numpy.cov`'s `fweights`, but any numbers from 0 on, one for
        each sample, of shape ``(N,)``, or broadcasting against x.
    nan_policy : {"propagate", "omit", "raise"}
        What to do with NaN: make its channel NaN, leave it out as `where` does, or raise an error.
    groups : array_like, optional
        A label for each sample, of shape ``(N,)``, which has moments of its own.

    Returns
    -------
    Moments or GroupMoments
        The moments of x, or of all chunks up to x. With groups, the moments of each label.

    Raises
    ------
    TypeError, ValueError
        If an argument has an unsupported type or dtype, or a wrong shape or value.

    Notes
    -----
    The moments of blocks of a fixed size along the first axis are merged in order. So the result
    depends neither on the number of threads nor on the chunks, if the number of entries of each
    chunk but the last is a multiple of `stream_step`. With missing values or weights the chunks
    make a difference of rounding.

    Examples
    --------
    >>> import numnorm
    >>> total = None
    >>> for chunk in ([[1.0], [2.0]], [[6.0]]):
    ...     total = numnorm.batch_moments(chunk, after=total)
    >>> total
    Moments(count=3, mean=array([3.]), m2=array([14.]), mean_lo=array([0.]))
    """
    if others:
        return with_weights(batch_moments, locals())
    if "dask" in modules and any_lazy(x, *(after if isinstance(after, Moments) else ())):
        return lazy_twin("batch_moments")(x, channel_axis=channel_axis, after=after)
    axes = None if type(channel_axis) is int else channel_axes(x, channel_axis)
    if axes is not None:
        if after is not None:
            check_moments("after", after, axes.shape, "the channels of x")
            after = _of_each(after, lambda name, a: as_plain_array(name, a).reshape(-1))
        moments = batch_moments(axes.x, channel_axis=axes.axis, after=after)
        return _of_each(moments, lambda _, array: axes.unflat(array))
    if after is not None and isinstance(after, Moments) and has_counts(after):
        x = counted(x)
    backend, x = backend_for(x, "x")
    layout = column_layout(x.shape, channel_axis)
    if after is not None:
        check_moments("after", after, (layout.channels,), "the channels of x")
    return Moments(*backend.streamed_moments(x, layout, after))


def _of_each(after: Moments, function: Callable[[str, Any], Any]) -> Moments:
    """Return moments with the function's result for the name and the array of each field."""
    arrays = {field: array for field, array in after._asdict().items() if array is not None}
    if not has_counts(after):
        del arrays["count"]
    return after._replace(**{f: function(f"after.{f}", array) for f, array in arrays.items()})


def has_counts(moments: Moments) -> bool:
    """Return whether each channel has a count of its own."""
    count = moments.count
    if type(count) is int:
        return False
    if hasattr(count, "__dlpack__"):
        count = as_plain_array("count", count)
    return np.ndim(count) > 0


def check_moments(name: str, value: Any, shape: tuple[int, ...], meaning: str) -> Any:
    """Return the count, an int unless it is an array; raise if it or a shape is wrong."""
    if not isinstance(value, Moments):
        raise TypeError(f"{name} must be Moments, got an object of type {type(value).__name__}")
    count = value.count
    if has_counts(value):
        check_shape(f"{name}.count", tuple(np.shape(count)), shape, meaning)
    else:
        count = check_integer(f"{name}.count", count, 0)
    for field in ("mean", "m2", "mean_lo"):
        array = getattr(value, field)
        if array is not None or field != "mean_lo":
            check_shape(f"{name}.{field}", tuple(np.shape(array)), shape, meaning)
    return count


def stream_step(shape: Sequence[int], *, channel_axis: Axis = 1) -> int:
    """Return the step of a stream: the best lengths of its chunks are multiples of it.

    With chunks of such lengths along the first axis, `batch_moments` with `after` gives the same
    bytes as one call on the whole array.

    Parameters
    ----------
    shape : sequence of int
        The shape of a chunk, or of the whole array; only the lengths of the other axes matter.
    channel_axis : int or tuple of int, default 1
        As for `batch_moments`.

    Returns
    -------
    int
        At least 1. Where the first axis is a channel axis, it is the first number of the shape.

    Raises
    ------
    TypeError, ValueError
        If an argument has an unsupported type or value.

    Examples
    --------
    >>> import numnorm
    >>> numnorm.stream_step((1000, 64))
    1024
    """
    if isinstance(shape, int):
        raise TypeError(f"shape must be a sequence of integers, got {shape}")
    sizes = tuple(check_integer("shape", size, 0) for size in shape)
    if isinstance(channel_axis, tuple | list):
        if 0 in normalized_axes(channel_axis, len(sizes), "channel_axis"):
            return max(sizes[0], 1)
        sizes, channel_axis = merged_shape(sizes, channel_axis)
    layout = column_layout(sizes, channel_axis)
    if not (channel := operator.index(channel_axis) % len(sizes)):
        return max(sizes[0], 1)
    entries = math.prod(sizes[1:channel])
    return layout.block // math.gcd(layout.block, max(entries, 1))
