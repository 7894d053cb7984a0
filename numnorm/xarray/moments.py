"""The moments of channels."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

import numnorm
from numnorm.array_types import NanPolicy
from numnorm.threads import num_threads
from numnorm.xarray.named_dims import (
    Dims,
    check_chunks,
    check_dims,
    is_lazy,
    names_of,
    parameter,
    with_axes_of,
)


def batch_moments(
    x: xr.DataArray,
    *,
    channel_dim: Dims,
    after: numnorm.Moments | None = None,
    where: Any = None,
    weights: Any = None,
    nan_policy: NanPolicy = "propagate",
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
    where, weights, nan_policy
        As for `layer_norm`.

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
    >>> moments.count, moments.mean, moments.var()
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
    of_elements = {
        name: with_axes_of(x, parameter(name, value, x, x.dims))
        for name, value in (("where", where), ("weights", weights))
        if value is not None
    }
    options: dict[str, Any] = {"nan_policy": nan_policy, "channel_axis": axis}
    if is_lazy(x):
        check_chunks(x, own)
        total = _of_chunks(x.data, of_elements, options, after)
    else:
        values = {n: a.compute() if is_lazy(a) else a for n, a in of_elements.items()}
        total = numnorm.batch_moments(x.data, after=after, **values, **options)
    return _transposed(total, [own.index(name) for name in channels])


def _transposed(moments: numnorm.Moments, order: list[int]) -> numnorm.Moments:
    return numnorm.Moments(
        *(field if np.ndim(field) == 0 else field.transpose(order) for field in moments)
    )


def _of_chunks(
    x: Any, given: dict[str, Any], options: Any, total: numnorm.Moments | None
) -> numnorm.Moments:
    """Return the moments of an array of Dask, the chunks merged in their order."""
    import dask
    import dask.array

    one = dask.delayed(_of_chunk, pure=True)
    wide = (dask.array.broadcast_to(array, x.shape).rechunk(x.chunks) for array in given.values())
    blocks = zip(*(array.to_delayed().ravel() for array in (x, *wide)), strict=True)
    calls = [one(tuple(given), options, *block) for block in blocks]
    for moments in dask.compute(*calls):
        total = moments if total is None else total.merge(moments)
    assert total is not None  # an array has at least one chunk
    return total


def _of_chunk(names: tuple[str, ...], options: Any, chunk: Any, *given: Any) -> numnorm.Moments:
    with num_threads(1):  # other chunks are computed at the same time
        keywords = dict(zip(names, given, strict=True))
        moments: numnorm.Moments = numnorm.batch_moments(chunk, **keywords, **options)
        return moments
