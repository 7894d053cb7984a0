"""The moments of channels."""

from __future__ import annotations

from typing import Any, overload

import numpy as np
import xarray as xr

import numnorm
from numnorm.array_types import NanPolicy
from numnorm.xarray.named_dims import (
    Dims,
    check_dims,
    is_lazy,
    names_of,
    parameter,
    samples_and_labels,
    with_axes_of,
    with_channels,
)
from numnorm.xarray.statistics import (
    LABEL,
    GroupMoments,
    Moments,
    channels_of,
    named_groups,
    named_moments,
    plain_groups,
    plain_moments,
)


@overload
def batch_moments(
    x: xr.DataArray,
    *,
    channel_dim: Dims,
    after: numnorm.Moments | None = ...,
    where: Any = ...,
    weights: Any = ...,
    nan_policy: NanPolicy = ...,
) -> Moments: ...


@overload
def batch_moments(
    x: xr.DataArray,
    *,
    channel_dim: Dims,
    labels: Any,
    after: numnorm.GroupMoments | None = ...,
    where: Any = ...,
    weights: Any = ...,
    nan_policy: NanPolicy = ...,
) -> GroupMoments: ...


def batch_moments(
    x: xr.DataArray,
    *,
    channel_dim: Dims,
    after: Any = None,
    where: Any = None,
    weights: Any = None,
    nan_policy: NanPolicy = "propagate",
    labels: Any = None,
) -> Any:
    """Return the count, the mean and the squared deviations of each channel.

    Parameters
    ----------
    x : DataArray
        As for `layer_norm`. An array of Dask, in any chunks, is computed chunk by chunk, here and
        now.
    channel_dim : hashable or iterable of hashable
        The dimensions of the channels; the statistics are taken over all others.
    after : Moments or GroupMoments, optional
        The moments of earlier arrays, to be merged in.
    where, weights, nan_policy
        As for `layer_norm`.
    labels : DataArray or array_like, optional
        As for `batch_norm`. The name of a DataArray, such as the "month" of ``x.time.dt.month``,
        becomes the dimension of the labels, or else "label".

    Returns
    -------
    Moments or GroupMoments
        The moments of x; with labels, those of each label, along the first dimension. Their fields
        are DataArrays in memory with the dimensions `channel_dim`, in the order in which they are
        named, and their coordinates: `batch_norm` takes them, and xarray saves their `to_dataset`.

    Raises
    ------
    TypeError, ValueError
        As `layer_norm` does.

    Examples
    --------
    >>> import xarray as xr
    >>> import numnorm.xarray
    >>> x = xr.DataArray([[1.0, 10.0], [3.0, 30.0]], dims=("sample", "band"))
    >>> moments = numnorm.xarray.batch_moments(x.chunk(sample=1), channel_dim="band")
    >>> moments.count, moments.mean.values, moments.var().sel(band=1).item()
    (2, array([ 2., 20.]), 100.0)
    """
    channels = names_of("channel_dim", channel_dim)
    if not channels:
        raise ValueError("channel_dim must name at least one dimension, got none")
    if not isinstance(x, xr.DataArray):
        raise TypeError(f"x must be a DataArray, got an object of type {type(x).__name__}")
    check_dims(x, channels)
    order, label = x.dims, getattr(labels, "name", None) or LABEL
    if labels is not None:
        order, labels = samples_and_labels(labels, x, channels)
    x = x.transpose(*order)
    # In numnorm the channels have the order of x.
    own = tuple(name for name in order if name in channels)
    axes = tuple(order.index(name) for name in own)
    of_channels = channels_of(x, channels)
    plain = plain_groups if isinstance(after, numnorm.GroupMoments) else plain_moments
    after = _transposed(plain("after", after, of_channels), [channels.index(name) for name in own])
    of_elements = {
        name: with_axes_of(x, parameter(name, value, x, x.dims))
        for name, value in (("where", where), ("weights", weights))
        if value is not None
    }
    total: Any = numnorm.batch_moments(
        x.data,
        channel_axis=axes[0] if len(axes) == 1 else axes,
        after=after,
        nan_policy=nan_policy,
        labels=labels,
        **of_elements,
    )
    total = _transposed(_computed(total), [own.index(name) for name in channels])
    if isinstance(total, numnorm.GroupMoments):
        return named_groups(total, of_channels, label)
    return named_moments(total, of_channels)


def _transposed(moments: Any, order: list[int]) -> Any:
    """Return moments with their channels in another order; other objects stay as they are."""
    if isinstance(moments, numnorm.Moments) and np.ndim(moments.mean) == len(order):
        fields = (field.transpose(order) if np.ndim(field) else field for field in moments)
        return numnorm.Moments(*fields)
    return with_channels(moments, order)


def _computed(moments: Any) -> Any:
    """Return moments with their lazy fields computed."""
    if isinstance(moments, numnorm.GroupMoments):
        return numnorm.GroupMoments(moments.labels, _computed(moments.moments))
    if not any(map(is_lazy, moments)):
        return moments
    import dask

    return numnorm.Moments(*dask.compute(*moments))
