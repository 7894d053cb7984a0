"""From names of dimensions to axes: what every norm for arrays of xarray does."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np
import xarray as xr

from numnorm.arguments import brief, check_flag, result_dtype
from numnorm.array_likes import as_plain_array, is_on_device
from numnorm.xarray.blocks import Placement, Plan, normalized_block

Labelled = TypeVar("Labelled", bound=xr.DataArray | xr.Dataset)
Dims = Hashable | Iterable[Hashable]
Names = tuple[Hashable, ...]

COUNTING = ("where", "weights")
"""The arrays that say which elements count, and how much."""


class Counting(NamedTuple):
    """Which elements count.

    Attributes
    ----------
    arrays : dict
        `COUNTING` by keyword.
    options : dict
        The other arguments.
    """

    arrays: dict[str, Any]
    options: dict[str, Any]


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
        if x.size == 0 and is_lazy(x):  # Dask would divide by a length of 0
            return norm(x.compute()).chunk(x.chunksizes)
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
    try:
        xr.align(x, value, join="exact", copy=False)
    except ValueError as error:
        raise ValueError(
            f"{name} must have the labels of x along {value.dims}: use .reindex_like(x)"
        ) from error
    return value.variable


def with_axes_of(x: xr.DataArray, array: xr.Variable) -> Any:
    """Return the data of a parameter with the axes of x, of length 1 where it has none."""
    data = array.transpose(*(dim for dim in x.dims if dim in array.dims)).data
    return data[tuple(slice(None) if dim in array.dims else None for dim in x.dims)]


def counting(where: Any, weights: Any, nan_policy: Any, fill: Any) -> Counting:
    """Return what says which elements count, as parameters and as options of a function."""
    options = {} if nan_policy == "propagate" else {"nan_policy": nan_policy}
    options |= {} if fill is None else {"fill": fill}
    return Counting({"where": where, "weights": weights}, options)


def apply(
    function: Callable[..., Any],
    x: xr.DataArray,
    parameters: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    core: Names,
    usual: Names,
    keep_attrs: bool,
    order: Names | None = None,
    merged: int | None = None,
    advice: str = "",
) -> xr.DataArray:
    """Return a norm of x.

    Parameters
    ----------
    function : callable
        The norm of numnorm.
    x : DataArray
    parameters : mapping
        The parameters by keyword, as the caller gave them, `where` and `weights` among them. None
        is left out.
    options : mapping
        The other arguments of the function.
    core : tuple
        The dimensions whose elements share statistics: a chunk holds them whole.
    usual : tuple
        The dimensions of a parameter that is a plain array, in the order of its axes; a plain
        mask or weights have those of x.
    keep_attrs : bool
        Whether the result has the attributes of x.
    order : tuple, optional
        The order of the dimensions in which the function gets them. Default: that of x.
    merged : int, optional
        The number of first dimensions in this order that the function gets as one axis.
    advice : str
        What else to do about a dimension with several chunks.
    """
    order = x.dims if order is None else order
    core = tuple(dim for dim in x.dims if dim in core)
    handed = tuple(dim for dim in x.dims if dim not in core) + core
    given = {
        name: parameter(name, value, x, x.dims if name in COUNTING else usual)
        for name, value in parameters.items()
        if value is not None
    }
    lazy = is_lazy(x) or any(map(is_lazy, given.values()))
    if any(math.isnan(size) for size in x.shape):
        raise ValueError(f"x must have chunks of known lengths, got {x.shape}: use .compute()")
    check_chunks(x, core, advice)
    placements = tuple(
        Placement(
            name,
            tuple(dim in array.dims for dim in core),
            name not in COUNTING and set(array.dims) == set(usual),
        )
        for name, array in given.items()
    )
    plan = Plan(
        function,
        options,
        tuple(handed.index(dim) for dim in order),
        merged,
        _axes(order, usual, merged),
        placements,
        lazy,
    )
    if lazy and len(core) < len(handed):
        # Without elements: wrong arguments are an error now, not when the result is computed.
        emptied = [_without_elements(array, core) for array in (x.variable, *given.values())]
        _blockwise(plan, emptied[0], emptied[1:], core, keep_attrs)
    whole = [_whole(array, core) for array in given.values()]
    result: xr.DataArray = _blockwise(plan, x, whole, core, keep_attrs)
    return result.transpose(*x.dims)


def _blockwise(
    plan: Plan, x: Any, parameters: list[xr.Variable], core: Names, keep_attrs: bool
) -> Any:
    own = [[dim for dim in core if dim in array.dims] for array in parameters]
    return xr.apply_ufunc(
        normalized_block,
        x,
        *parameters,
        input_core_dims=[core, *own],
        output_core_dims=[core],
        kwargs={"plan": plan},
        dask="parallelized",
        output_dtypes=[result_dtype("x", x.dtype)],
        keep_attrs=keep_attrs,
    )


def _without_elements(array: xr.Variable, core: Names) -> xr.Variable:
    """Return an array in memory whose dimensions have length 0 if they are no core dimensions.

    A parameter with core dimensions alone has elements: ones, which every norm takes.
    """
    shape = [size if dim in core else 0 for dim, size in array.sizes.items()]
    return xr.Variable(array.dims, np.ones(shape, array.dtype))


def _axes(order: Names, dims: Names, merged: int | None) -> tuple[int, ...]:
    """Return the axes of dimensions in this order; the first `merged` axes count as one."""
    axes = [axis for axis, dim in enumerate(order) if dim in dims]
    if merged is not None:
        axes = sorted({max(axis - merged + 1, 0) for axis in axes})
    return tuple(axes)


def check_chunks(x: xr.DataArray, core: Names, advice: str = "") -> None:
    """Raise if x is divided along a dimension."""
    for dim in core:
        chunks = len(x.chunksizes.get(dim, (1,)))
        if chunks > 1:
            raise ValueError(
                f"x must have one chunk along {dim!r}, got "
                f"{chunks}: use x.chunk({{{dim!r}: -1}}){advice}"
            )


def _whole(array: Any, core: Names) -> Any:
    """Return a parameter with one chunk along each core dimension."""
    divided = {d: -1 for d in core if len(array.chunksizes.get(d, ())) > 1}
    return array.chunk(divided) if divided else array
