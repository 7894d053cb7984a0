"""The norms of channels."""

from __future__ import annotations

from typing import Any, Literal, cast

import xarray as xr

import numnorm
from numnorm.arguments import check_flag
from numnorm.array_types import Convention, Integer, NanPolicy, Number
from numnorm.xarray.named_dims import (
    Dims,
    Labelled,
    Names,
    apply,
    counting,
    each_variable,
    names_of,
)
from numnorm.xarray.running import updating


def group_norm(
    x: Labelled,
    gamma: Any = None,
    beta: Any = None,
    *,
    groups: Integer,
    channel_dim: Any,
    dim: Dims,
    eps: Number = 1e-5,
    where: Any = None,
    weights: Any = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
    keep_attrs: bool = True,
) -> Labelled:
    """Normalize over groups of channels and the named dimensions, then scale and shift.

    Parameters
    ----------
    x : DataArray or Dataset
        As for `layer_norm`.
    gamma, beta : DataArray or array_like, optional
        Gain and bias, as for `layer_norm`; one for each channel has the dimension `channel_dim`.
    groups : int
        The number of groups of neighbouring channels; it divides the number of channels.
    channel_dim : hashable
        The dimension of the channels.
    dim : hashable or iterable of hashable
        The other dimensions that share statistics, such as those of an image; ``()`` for none.
        Along all dimensions that are not named, the samples are normalized for themselves.
    eps : float, default 1e-5
        As for `numnorm.group_norm`.
    where, weights, nan_policy, fill
        As for `layer_norm`.
    keep_attrs : bool, default True
        Whether the result has the attributes of x.

    Returns
    -------
    DataArray or Dataset
        As of `layer_norm`.

    Raises
    ------
    TypeError, ValueError
        As `layer_norm` does.

    Examples
    --------
    >>> import xarray as xr
    >>> import numnorm.xarray
    >>> x = xr.DataArray([[1.0, 3.0, 10.0, 30.0]], dims=("sample", "band"))
    >>> numnorm.xarray.group_norm(x, groups=2, channel_dim="band", dim=(), eps=0).values
    array([[-1.,  1., -1.,  1.]])
    """
    counts = counting(where, weights, nan_policy, fill)
    parameters = {"gamma": gamma, "beta": beta, **counts.arrays}
    channel = names_of("channel_dim", channel_dim)
    dims = names_of("dim", dim)
    _check_channel(channel, dims)

    def norm(array: xr.DataArray) -> xr.DataArray:
        options, shared = {"groups": groups, "eps": eps, **counts.options}, (*channel, *dims)
        return _of_samples(
            numnorm.group_norm, array, parameters, options, channel, dims, shared, keep_attrs
        )

    return cast(Labelled, each_variable(x, (*channel, *dims), keep_attrs, norm))


def instance_norm(
    x: Labelled,
    gamma: Any = None,
    beta: Any = None,
    *,
    channel_dim: Any,
    dim: Dims,
    running_mean: Any = None,
    running_var: Any = None,
    training: bool = True,
    momentum: Number | Literal["cumulative"] | None = None,
    batches: int | None = None,
    convention: Convention = "torch",
    unbiased: bool | None = None,
    eps: Number = 1e-5,
    where: Any = None,
    weights: Any = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
    keep_attrs: bool = True,
) -> Labelled:
    """Normalize each channel of each sample over the named dimensions, then scale and shift.

    Parameters
    ----------
    x : DataArray or Dataset
        As for `layer_norm`.
    gamma, beta : DataArray or array_like, optional
        Gain and bias, as for `group_norm`.
    channel_dim : hashable
        The dimension of the channels.
    dim : hashable or iterable of hashable
        The dimensions that share statistics, such as those of an image. All dimensions that are
        not named count the samples.
    running_mean, running_var : DataArray or array, optional
        Of each channel, as for `batch_norm`.
    training, momentum, batches, convention, unbiased, eps
        As for `numnorm.instance_norm`.
    where, weights, nan_policy, fill
        As for `layer_norm`.
    keep_attrs : bool, default True
        Whether the result has the attributes of x.

    Returns
    -------
    DataArray or Dataset
        As of `layer_norm`.

    Raises
    ------
    TypeError, ValueError
        As `layer_norm` does.

    Examples
    --------
    >>> import xarray as xr
    >>> import numnorm.xarray
    >>> x = xr.DataArray([[1.0, 3.0], [10.0, 30.0]], dims=("band", "time"))
    >>> numnorm.xarray.instance_norm(x, channel_dim="band", dim="time", eps=0).values
    array([[-1.,  1.],
           [-1.,  1.]])
    """
    channel = names_of("channel_dim", channel_dim)
    dims = names_of("dim", dim)
    _check_channel(channel, dims)
    running = {"running_mean": running_mean, "running_var": running_var}
    counts = counting(where, weights, nan_policy, fill)
    options = {**counts.options, "momentum": momentum, "batches": batches, "convention": convention}
    options |= {"unbiased": unbiased, "eps": eps, "training": check_flag("training", training)}
    _check_one_array(x, running)

    def norm(array: xr.DataArray) -> xr.DataArray:
        given = {"gamma": gamma, "beta": beta, **counts.arrays}
        with updating(running, array, given, channel, training) as (parameters, updated):
            return _of_samples(
                numnorm.instance_norm,
                array,
                parameters,
                options | updated,
                channel,
                dims,
                dims if training else (),
                keep_attrs,
            )

    return cast(Labelled, each_variable(x, (*channel, *dims), keep_attrs, norm))


def batch_norm(
    x: Labelled,
    gamma: Any = None,
    beta: Any = None,
    *,
    channel_dim: Dims,
    running_mean: Any = None,
    running_var: Any = None,
    training: bool = True,
    momentum: Number | Literal["cumulative"] | None = None,
    batches: int | None = None,
    convention: Convention = "torch",
    unbiased: bool | None = None,
    eps: Number = 1e-5,
    where: Any = None,
    weights: Any = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
    keep_attrs: bool = True,
) -> Labelled:
    """Normalize each channel over all other dimensions, then scale and shift it.

    Parameters
    ----------
    x : DataArray or Dataset
        As for `layer_norm`.
    gamma, beta : DataArray or array_like, optional
        Gain and bias, as for `layer_norm`; an array has the axes of `channel_dim`, in the order in
        which they are named.
    channel_dim : hashable or iterable of hashable
        The dimensions of the channels: each combination of their labels is a channel.
    running_mean, running_var : DataArray or array, optional
        With the dimensions `channel_dim`, in any order, both or neither. In training they are
        updated in place, if x is in memory; in inference they are required and only read.
    training : bool, default True
        Whether to normalize with the statistics of `x`. With False, an array of Dask may have any
        chunks.
    momentum, batches, convention, unbiased, eps
        As for `numnorm.batch_norm`.
    where, weights, nan_policy, fill
        As for `layer_norm`.
    keep_attrs : bool, default True
        Whether the result has the attributes of x.

    Returns
    -------
    DataArray or Dataset
        As of `layer_norm`.

    Raises
    ------
    TypeError, ValueError
        As `layer_norm` does. In training an array of Dask has one chunk along all other
        dimensions: take the statistics of one with more by `batch_moments`.

    Examples
    --------
    >>> import xarray as xr
    >>> import numnorm.xarray
    >>> x = xr.DataArray([[1.0, 10.0], [3.0, 30.0]], dims=("sample", "band"))
    >>> numnorm.xarray.batch_norm(x, channel_dim="band", eps=0).values
    array([[-1., -1.],
           [ 1.,  1.]])
    """
    channels = names_of("channel_dim", channel_dim)
    if not channels:
        raise ValueError("channel_dim must name at least one dimension, got none")
    running = {"running_mean": running_mean, "running_var": running_var}
    counts = counting(where, weights, nan_policy, fill)
    options = {**counts.options, "momentum": momentum, "batches": batches, "convention": convention}
    options |= {"unbiased": unbiased, "eps": eps, "training": check_flag("training", training)}
    _check_one_array(x, running)

    def norm(array: xr.DataArray) -> xr.DataArray:
        others: Names = tuple(name for name in array.dims if name not in channels)
        given = {"gamma": gamma, "beta": beta, **counts.arrays}
        axes = array.get_axis_num(channels)
        with updating(running, array, given, channels, training) as (parameters, updated):
            return apply(
                numnorm.batch_norm,
                array,
                parameters,
                {**options, **updated, "channel_axis": axes[0] if len(axes) == 1 else axes},
                core=others if training else (),
                usual=channels,
                keep_attrs=keep_attrs,
                advice=", or training=False and the statistics of batch_moments",
            )

    return cast(Labelled, each_variable(x, channels, keep_attrs, norm))


def _check_channel(channel: Names, dims: Names) -> None:
    if len(channel) != 1:
        raise ValueError(f"channel_dim must name one dimension, got {channel}")
    if channel[0] in dims:
        raise ValueError(f"dim must not name {channel[0]!r}, the dimension of the channels")


def _check_one_array(x: Any, running: dict[str, Any]) -> None:
    """Raise if the variables of a Dataset would have the same running statistics."""
    for name, value in running.items():
        if value is not None and isinstance(x, xr.Dataset):
            raise TypeError(f"{name} must be None for a Dataset: normalize each variable by itself")


def _of_samples(
    function: Any,
    x: xr.DataArray,
    parameters: Any,
    options: Any,
    channel: Names,
    dims: Names,
    core: Names,
    keep_attrs: bool,
) -> xr.DataArray:
    """Return a norm of a function whose first axis is that of the samples."""
    shared = (*channel, *dims)
    samples = tuple(name for name in x.dims if name not in shared)
    order = samples + tuple(name for name in x.dims if name in shared)
    return apply(
        function,
        x,
        parameters,
        {**options, "channel_axis": 1 + order.index(channel[0]) - len(samples)},
        core=core,
        usual=channel,
        keep_attrs=keep_attrs,
        order=order,
        merged=len(samples),
    )
