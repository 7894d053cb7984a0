"""The way back from a normalized array, by names of dimensions."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

import numnorm
from numnorm.arguments import check_flag
from numnorm.xarray.named_dims import parameter, with_axes_of


def denormalize(
    y: xr.DataArray,
    mean: Any,
    rstd: Any,
    gamma: Any = None,
    beta: Any = None,
    *,
    keep_attrs: bool = True,
) -> xr.DataArray:
    """Undo a norm: bring a normalized array back to the mean and the scale that it had.

    The dimensions say how statistics, gain and bias lie along y.

    Parameters
    ----------
    y : DataArray
        As for `numnorm.denormalize`, with any dimensions. An array of Dask stays lazy.
    mean, rstd : DataArray or float
        The mean, and the factor of deviations from it, such as ``1 / x.std("time")``; with some of
        the dimensions of y and its labels along them. The mean may be None.
    gamma, beta : DataArray or float, optional
        Gain and bias, with some of the dimensions of y.
    keep_attrs : bool, default True
        Whether the result has the attributes of y.

    Returns
    -------
    DataArray
        Of the dimensions, coordinates and dtype of y. Where rstd is 0 or infinite, it is the mean.

    Raises
    ------
    TypeError, ValueError
        If an argument has an unsupported type, or dimensions or labels that y lacks.

    Examples
    --------
    >>> import xarray as xr
    >>> import numnorm.xarray
    >>> forecast = xr.DataArray([[0.0, 1.0], [0.0, 1.0]], dims=("station", "time"))
    >>> mean = xr.DataArray([10.0, 20.0], dims="station")
    >>> numnorm.xarray.denormalize(forecast, mean, 0.5).values
    array([[10., 12.],
           [20., 22.]])
    """
    if not isinstance(y, xr.DataArray):
        raise TypeError(f"y must be a DataArray, got an object of type {type(y).__name__}")
    check_flag("keep_attrs", keep_attrs)
    given = {"mean": mean, "rstd": rstd, "gamma": gamma, "beta": beta}
    laid = {name: _laid(name, value, y) for name, value in given.items()}
    result = y.copy(data=numnorm.denormalize(y.data, **laid))
    return result if keep_attrs else result.drop_attrs()


def _laid(name: str, value: Any, y: xr.DataArray) -> Any:
    """Return a statistic or parameter with the axes of y; None for None."""
    if value is None and name != "rstd":
        return None
    full = with_axes_of(y, parameter(name, value, y, ()))
    if y.ndim == 1 and name in ("gamma", "beta"):  # one number would not be taken for a gain
        return np.broadcast_to(full, y.shape)
    return full
