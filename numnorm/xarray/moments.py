"""The moments of channels."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

import numnorm
from numnorm.threads import num_threads
from numnorm.xarray.named_dims import Dims, check_chunks, check_dims, is_lazy, names_of


def batch_moments(
    x: xr.DataArray, *, channel_dim: Dims, after: numnorm.Moments | None = None
) -> numnorm.Moments:
    """Return the count, the mean and the squared deviations of each channel.

    Parameters
    ----------
    x : DataArray
        As for `layer_norm`. An array of Dask is computed chunk by chunk, here and now; it has one
        chunk along the dimensions of the channels.
    channel_dim : hashable or iterable of hashable
        The dimensions of the channels; the statistics are taken over all others.
    after : Moments, optional
        The moments of earlier arrays, to be merged in.

    Returns
    -------
    Moments
        Their arrays are of NumPy and have the axes of `channel_dim`, in the order in which they
        are named: `batch_norm` takes them.

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
    >>> moments.count, moments.mean, moments.variance()
    (2, array([ 2., 20.]), array([  1., 100.]))
    """
    channels = names_of("channel_dim", channel_dim)
    if not channels:
        raise ValueError("channel_dim must name at least one dimension, got none")
    if not isinstance(x, xr.DataArray):
        raise TypeError(f"x must be a DataArray, got an object of type {type(x).__name__}")
    check_dims(x, channels)
    # In numnorm the channels have the order of x.
    own = tuple(name for name in x.dims if name in channels)
    axes = tuple(x.dims.index(name) for name in own)
    axis = axes[0] if len(axes) == 1 else axes
    if isinstance(after, numnorm.Moments) and np.ndim(after.mean) == len(own):
        after = _transposed(after, [channels.index(name) for name in own])
    if is_lazy(x):
        check_chunks(x, own)
        total = _of_chunks(x.data, axis, after)
    else:
        total = numnorm.batch_moments(x.data, channel_axis=axis, after=after)
    return _transposed(total, [own.index(name) for name in channels])


def _transposed(moments: numnorm.Moments, order: list[int]) -> numnorm.Moments:
    count, *arrays = moments
    return numnorm.Moments(count, *(a if a is None else a.transpose(order) for a in arrays))


def _of_chunks(x: Any, axis: Any, total: numnorm.Moments | None) -> numnorm.Moments:
    """Return the moments of an array of Dask, the chunks merged in their order."""
    import dask

    one = dask.delayed(_of_chunk, pure=True)
    for moments in dask.compute(*(one(chunk, axis) for chunk in x.to_delayed().ravel())):
        total = moments if total is None else total.merge(moments)
    assert total is not None  # an array has at least one chunk
    return total


def _of_chunk(chunk: Any, axis: Any) -> numnorm.Moments:
    with num_threads(1):  # other chunks are computed at the same time
        return numnorm.batch_moments(chunk, channel_axis=axis)
