"""Running statistics: updated in place in training, parameters in inference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import xarray as xr

from numnorm.xarray.named_dims import Names, is_lazy, parameter


@contextmanager
def updating(
    running: Mapping[str, Any],
    x: xr.DataArray,
    parameters: Mapping[str, Any],
    channels: Names,
    training: bool,
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Give the parameters and the options of a norm of x; then write updated statistics back.

    Parameters
    ----------
    running : mapping
        The running statistics by keyword, as the caller gave them.
    x : DataArray
    parameters : mapping
        Gain and bias.
    channels : tuple
        The dimensions of the channels.
    training : bool
        Whether the statistics are updated.
    """
    given = {name: value for name, value in running.items() if value is not None}
    found = {name: _statistic(name, value, x, channels) for name, value in given.items()}
    if not training:
        yield {**parameters, **found}, {}
        return
    for name, value in given.items():
        if any(map(is_lazy, (x, value, *parameters.values()))):
            raise ValueError(
                f"{name} is updated in place, so that all arrays must be in memory, got an array "
                "of Dask: use .compute()"
            )
        if not isinstance(value, np.ndarray | xr.DataArray):
            raise TypeError(
                f"{name} must be a DataArray or an array to be updated, got {type(value).__name__}"
            )
    order = [name for name in x.dims if name in channels]
    views = {name: variable.transpose(*order).data for name, variable in found.items()}
    # The same array if it has no gaps, or else a copy.
    dense = {name: np.ascontiguousarray(view) for name, view in views.items()}
    for name, view in views.items():
        if isinstance(view, np.ndarray):
            dense[name].flags.writeable = view.flags.writeable
    yield dict(parameters), dense
    for name, view in views.items():
        if not np.shares_memory(view, dense[name]):
            view[...] = dense[name]


def _statistic(name: str, value: Any, x: xr.DataArray, channels: Names) -> xr.Variable:
    variable = parameter(name, value, x, channels)
    if set(variable.dims) != set(channels):
        raise ValueError(f"{name} must have the dimensions {channels}, got {variable.dims}")
    return variable
