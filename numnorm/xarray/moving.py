"""The norms by statistics that move along a dimension."""

from __future__ import annotations

from typing import Any, cast

import xarray as xr

import numnorm
from numnorm.array_types import Integer, NanPolicy, Number
from numnorm.xarray.named_dims import (
    Labelled,
    counting,
    each_variable,
    names_of,
    parameter,
    with_axes_of,
)


def moving_norm(
    x: Labelled,
    window: Integer,
    *,
    dim: Any,
    center: bool = False,
    min_window: Integer = 1,
    subtract_mean: bool = True,
    scale: bool = True,
    eps: Number = 0.0,
    where: Any = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
    keep_attrs: bool = True,
) -> Labelled:
    """Normalize each step along the named dimension by the statistics of a window of steps.

    Parameters
    ----------
    x : DataArray or Dataset
        As for `layer_norm`, but an array of Dask may have any chunks.
    window : int
        The number of steps of a window.
    dim : hashable
        The dimension of time. Steps count, not the coordinates along it.
    center, min_window, subtract_mean, scale, eps
        As for `numnorm.moving_norm`.
    where, nan_policy, fill
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
    >>> x = xr.DataArray([[1.0], [3.0], [5.0], [5.0]], dims=("time", "channel"))
    >>> numnorm.xarray.moving_norm(x, 2, dim="time").values.ravel()
    array([0., 1., 1., 0.])
    """
    options: dict[str, Any] = {"window": window, "scale": scale, "eps": eps}
    options |= {"center": center, "min_window": min_window, "subtract_mean": subtract_mean}
    return _along(numnorm.moving_norm, x, dim, options, (where, nan_policy, fill), keep_attrs)


def exponential_norm(
    x: Labelled,
    alpha: Number,
    *,
    dim: Any,
    adjust: bool = True,
    initial: Integer = 0,
    eps: Number = 1e-4,
    where: Any = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
    keep_attrs: bool = True,
) -> Labelled:
    """Normalize each step along the named dimension by statistics in which old steps fade.

    Parameters
    ----------
    x : DataArray or Dataset
        As for `layer_norm`, but an array of Dask may have any chunks.
    alpha : float
        The weight of a new step.
    dim : hashable
        The dimension of time. Steps count, not the coordinates along it.
    adjust, initial, eps
        As for `numnorm.exponential_norm`.
    where, nan_policy, fill
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
    >>> x = xr.DataArray([[1.0, 3.0, 3.0]], dims=("channel", "time"))
    >>> numnorm.xarray.exponential_norm(x, 0.5, dim="time").values.round(3)
    array([[0.   , 1.225, 0.686]])
    """
    options = {"alpha": alpha, "adjust": adjust, "initial": initial, "eps": eps}
    return _along(numnorm.exponential_norm, x, dim, options, (where, nan_policy, fill), keep_attrs)


def _along(
    function: Any, x: Labelled, dim: Any, options: Any, counts: Any, keep_attrs: bool
) -> Labelled:
    """Return a moving norm, which takes arrays of Dask as they are."""
    dims = names_of("dim", dim)
    if len(dims) != 1:
        raise ValueError(f"dim must name one dimension, got {dims}")
    where, nan_policy, fill = counts
    given = {**options, **counting(None, None, nan_policy, fill).options}

    def norm(array: xr.DataArray) -> xr.DataArray:
        keywords = {**given, "axis": array.get_axis_num(dims[0])}
        if where is not None:
            mask = parameter("where", where, array, array.dims)
            keywords["where"] = with_axes_of(array, mask)
        result = array.copy(data=function(array.data, **keywords))
        return result if keep_attrs else result.drop_attrs()

    return cast(Labelled, each_variable(x, dims, keep_attrs, norm))
