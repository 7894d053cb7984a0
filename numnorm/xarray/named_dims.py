"""From names of dimensions to axes: what every norm for arrays of xarray does."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

import numpy as np
import xarray as xr

from numnorm.arguments import brief, check_flag
from numnorm.array_likes import as_plain_array, is_on_device
from numnorm.norms.moments import GroupMoments, Moments

Labelled = TypeVar("Labelled", bound=xr.DataArray | xr.Dataset)
Dims = Hashable | Iterable[Hashable]
Names = tuple[Hashable, ...]


def names_of(argument: str, dims: Any) -> Names:
    """Return the names of dimensions, of which each is given once."""
    single = isinstance(dims, str) or not isinstance(dims, Iterable)
    names = (dims,) if single else tuple(dims)
    if not all(isinstance(name, Hashable) for name in names):
        raise TypeError(f"{argument} must hold names of dimensions, got {brief(dims)}")
    if len(set(names)) < len(names):
        raise ValueError(f"{argument} must name each dimension once, got {names}")
    return names


def each_variable(x: Any, dims: Names, keep_attrs: Any, norm: Callable[[xr.DataArray], Any]) -> Any:
    """Return the norm of a DataArray, or of each variable of a Dataset that has the dimensions."""
    check_flag("keep_attrs", keep_attrs)
    if isinstance(x, xr.DataArray):
        check_dims(x, dims)
        return norm(x)
    if not isinstance(x, xr.Dataset):
        raise TypeError(
            "x must be a DataArray or a Dataset of xarray, got an object of type "
            f"{type(x).__module__}.{type(x).__qualname__}"
        )
    chosen = [name for name, array in x.data_vars.items() if set(dims) <= set(array.dims)]
    if not chosen:
        found = {name: array.dims for name, array in x.data_vars.items()}
        raise ValueError(f"x must have a variable with the dimensions {dims}, got {found}")
    results = {}
    for name in chosen:
        try:
            results[name] = each_variable(x[name], dims, keep_attrs, norm)
        except Exception as error:
            error.add_note(f"in the variable {name!r}")
            raise
    result = x.assign(results)
    return result if keep_attrs else result.drop_attrs(deep=False)


def check_dims(x: xr.DataArray, dims: Names) -> None:
    """Raise if x lacks a dimension."""
    for name in dims:
        if name not in x.dims:
            raise ValueError(f"x must have the dimension {name!r}, got {x.dims}")


def is_lazy(array: Any) -> bool:
    """Return whether an array is computed later, in chunks."""
    return getattr(array, "chunks", None) is not None


def parameter(name: str, value: Any, x: xr.DataArray, usual: Names) -> xr.Variable:
    """Return a parameter as a Variable with dimensions of x; a plain array has the usual ones."""
    if isinstance(value, xr.Variable | xr.DataArray):
        return _of_dims(name, value, x)
    if isinstance(value, xr.Dataset):
        raise TypeError(f"{name} must be an array or a DataArray, got a Dataset")
    array = value if is_lazy(value) or is_on_device(value) else as_plain_array(name, value)
    expected = tuple(x.sizes[dim] for dim in usual)
    if tuple(array.shape) != expected:
        raise ValueError(
            f"{name} must be a DataArray or have shape {expected}, for the dimensions {usual}, "
            f"got {tuple(array.shape)}"
        )
    return xr.Variable(usual, array)


def _of_dims(name: str, value: xr.Variable | xr.DataArray, x: xr.DataArray) -> xr.Variable:
    for dim, size in value.sizes.items():
        if dim not in x.dims:
            raise ValueError(f"{name} must have dimensions of x, {x.dims}, got {dim!r}")
        if size != x.sizes[dim]:
            raise ValueError(
                f"{name} must have {x.sizes[dim]} elements along {dim!r}, as x has, got {size}"
            )
    if isinstance(value, xr.Variable):
        return value
    return with_coordinates(name, value, x).variable


def with_coordinates(
    name: str, value: xr.DataArray, x: xr.DataArray, others: Names = ()
) -> xr.DataArray:
    """Return an array; raise unless it has dimensions of x, or others, and the labels of x."""
    for dim in value.dims:
        if dim not in x.dims and dim not in others:
            raise ValueError(f"{name} must have dimensions of x, {x.dims}, got {dim!r}")
    try:
        xr.align(x, value, join="exact", copy=False, exclude=others)
    except ValueError as error:
        raise ValueError(
            f"{name} must have the labels of x along {value.dims}: use .reindex_like(x)"
        ) from error
    return value


def with_axes_of(x: xr.DataArray, array: xr.Variable) -> Any:
    """Return the data of a parameter with the axes of x, of length 1 where it has none."""
    data = array.transpose(*(dim for dim in x.dims if dim in array.dims)).data
    return data[tuple(slice(None) if dim in array.dims else None for dim in x.dims)]


def samples_and_labels(
    labels: Any, x: xr.DataArray, channels: Names
) -> tuple[tuple[Hashable, ...], Any]:
    """Return the dimensions of x with that of the samples before all but channels, and labels.

    Labels with a name of their dimension become an array, lazy ones stay lazy.
    """
    others = [dim for dim in x.dims if dim not in channels]
    if isinstance(labels, xr.Variable | xr.DataArray):
        variable = _of_dims("labels", labels, x)
        if len(variable.dims) != 1 or variable.dims[0] in channels:
            raise ValueError(
                f"labels must have one dimension of x beside its channels, got {variable.dims}"
            )
        labels = variable.data if is_lazy(variable) else variable.values
        sample = variable.dims[0]
        others = [sample, *(dim for dim in others if dim != sample)]
    remaining = iter(others)
    return tuple(dim if dim in channels else next(remaining) for dim in x.dims), labels


def times_of(times: Any, x: xr.DataArray, dims: Names) -> Any:
    """Return the times of the steps along a dimension: the values of a coordinate, or an array."""
    if isinstance(times, str) or (isinstance(times, Hashable) and times in x.coords):
        if times not in x.coords:
            raise ValueError(f"times must be a coordinate of x, {list(x.coords)}, got {times!r}")
        times = x.coords[times]
    if not isinstance(times, xr.Variable | xr.DataArray):
        return times
    variable = _of_dims("times", times, x)
    if variable.dims != dims:
        raise ValueError(f"times must have the dimension {dims}, got {variable.dims}")
    return variable.values


def with_channels(statistics: Any, order: list[int]) -> Any:
    """Return moments of labels with the axes of their channels in another order."""
    if not isinstance(statistics, GroupMoments):
        return statistics
    after_labels = [0, *(1 + place for place in order)]
    fields = (
        field.transpose(after_labels) if np.ndim(field) == len(after_labels) else field
        for field in statistics.moments
    )
    return GroupMoments(statistics.labels, Moments(*fields))
