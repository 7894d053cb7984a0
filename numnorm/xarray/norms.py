"""The norms by names of dimensions, made from numnorm's public functions.

Arrays of Dask go to these functions as they are: what chunks mean is their affair.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from inspect import Parameter
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from numnorm.arguments import check_flag
from numnorm.derived import (
    docstring_of,
    option,
    parameter_texts,
    parameters_of,
    plain_function,
    summary_of,
)
from numnorm.norms.spec import NormSpec
from numnorm.xarray.named_dims import (
    Names,
    each_variable,
    is_lazy,
    names_of,
    parameter,
    samples_and_labels,
    times_of,
    with_axes_of,
    with_channels,
)
from numnorm.xarray.statistics import channels_of, plain_groups

OF_ELEMENTS = ("where", "weights")
"""The keywords with a value for each element of x."""

_TEXTS = {
    "x": """ : DataArray or Dataset
    Of any float dtype that `numnorm.{name}` takes; integers and bool become float64. In a
    Dataset, the variables that have all the named dimensions are normalized. Lazy arrays may
    have any chunks.""",
    "normalized": """ : DataArray or array_like, optional
    A DataArray has dimensions of x, in any order, and the same labels: usually those of `dim`;
    with others it broadcasts against x. An array has the axes of `dim`, in the order in which
    they are named.""",
    "others": """ : DataArray or array_like, optional
    A DataArray has dimensions of x, usually all but `dim`, in any order; an array has the other
    dimensions of x, in the order of x. Default: 1.""",
    "channels": """ : DataArray or array_like, optional
    A DataArray has dimensions of x, in any order, and the same labels: usually `channel_dim`;
    with others it broadcasts against x. An array has the axes of `channel_dim`, in the order in
    which they are named.""",
    "elements": """
    A DataArray has dimensions of x, in any order, and the same labels; an array broadcasts.""",
    "number": "",
    "dim": """ : hashable or iterable of hashable
    The dimensions that share their statistics.""",
    "dim of groups": """ : hashable or iterable of hashable
    The dimensions that share statistics, such as those of an image; ``()`` for none. All
    dimensions that are not named count the samples.""",
    "dim of steps": """ : hashable
    The dimension of time. Steps count, not the coordinates along it.""",
    "channel_dim": """ : hashable or iterable of hashable
    The dimensions of the channels: each combination of their labels is a channel.""",
    "channel_dim of groups": """ : hashable
    The dimension of the channels.""",
    "updates": """ : DataArray or array, optional
    With the dimensions `channel_dim`, both or neither. In training they are updated in place, if
    x is in memory; in inference they are required and only read.""",
    "of elements": """ : DataArray or array_like, optional
    As for `numnorm.{name}`. A DataArray has dimensions of x, in any order, and the same labels;
    an array has the shape of x.""",
    "labels": """ : DataArray or array_like, optional
    A label for each sample, which is normalized by the statistics of its label. A DataArray, such
    as a coordinate of x, has the dimension of the samples; an array belongs to the first
    dimension of x that is not in `channel_dim`. Lazy labels are computed by the call.""",
    "statistics": """ : GroupMoments, optional
    With `labels`: statistics of labels as `batch_moments` returned them, in the place of those
    of x; they have the same coordinates along the channels.""",
    "times": """ : hashable, DataArray or array_like, optional
    The times of the steps: the name of a coordinate along `dim`, or its values.""",
    "keep_attrs": """ : bool, default True
    Whether the result has the attributes of x.""",
}
_RETURNS = """DataArray or Dataset
    With the dimensions in the order of x, its coordinates and its name. Lazy if an argument is."""
_ENDING = """
Raises
------
TypeError, ValueError
    If an argument has an unsupported type, or a wrong dimension, label, shape or value.

Examples
--------
>>> import xarray as xr
>>> import numnorm.xarray
>>> x = xr.DataArray({x}, dims={dims})
>>> print(numnorm.xarray.{name}(x, {options}).values.round(4))
{y}
"""
# For examples: the dimensions of x, and the arguments that name some of them.
_DIMS = {
    "rows": (("sample", "wavelength"), 'dim="wavelength"'),
    "groups": (("sample", "band", "time"), 'channel_dim="band", dim={dim}'),
    "channels": (("sample", "band"), 'channel_dim="band"'),
    "windows": (("channel", "time"), 'dim="time"'),
    "decay": (("channel", "time"), 'dim="time"'),
}


def by_names(spec: NormSpec, module: str) -> Callable[..., Any]:
    """Return a norm as a function of a module, with names of dimensions in the place of axes."""
    shown = list(_parameters(spec))
    texts = _texts(spec)
    dims, naming = _DIMS[spec.family]
    nesting = len(spec.example.x) - len(spec.example.x.lstrip("["))
    ndim = nesting if spec.family == "groups" else 2
    naming = naming.format(dim='"time"' if ndim > 2 else "()")
    docstring = docstring_of(
        summary_of(spec.function).replace("the given axes", "the named dimensions"),
        {p.name: texts[p.name] for p in shown},
        _RETURNS,
        _ENDING.format(
            x=spec.example.x,
            dims=dims[:ndim],
            name=spec.name,
            options=_joined(spec.example.options, naming),
            y=spec.example.y,
        ),
    )

    def call(arguments: dict[str, Any]) -> Any:
        return _normalized(spec, arguments)

    return plain_function(spec.name, module, shown, "Labelled", call, docstring)


def _joined(options: str, naming: str) -> str:
    """Return arguments by position, the dimensions, and arguments by keyword."""
    words = options.split(", ")
    first = [word for word in words if "=" not in word]
    return ", ".join([*first, naming, *(word for word in words if "=" in word)])


def _parameters(spec: NormSpec) -> Iterator[Parameter]:
    arrays = {
        *spec.parameters,
        *spec.constants,
        *spec.updates,
        *OF_ELEMENTS,
        "labels",
        "statistics",
        "times",
    }
    several = spec.family in ("rows", "channels")
    for name, own in parameters_of(spec.function).items():
        if name == "x":
            yield own.replace(annotation="Labelled")
        elif name == spec.axis:
            yield option(name.replace("axis", "dim"), "Dims" if several else "Any")
            if spec.family == "groups":
                yield option("dim", "Dims")
        elif name in arrays:
            yield own.replace(annotation="Any")
        elif name != "out":
            yield own
    yield option("keep_attrs", "bool", True)


def _texts(spec: NormSpec) -> dict[str, str]:
    """Return the entry of each parameter in the docstring."""
    suffix = {"groups": " of groups", "windows": " of steps", "decay": " of steps"}
    of_family = suffix.get(spec.family, "")
    texts = parameter_texts(spec.function)
    for name, along in spec.parameters.items():
        own = texts[name] if spec.broadcasts(name) else ""
        texts[name] = own + _TEXTS[along]
    for name, along in spec.constants.items():
        texts[name] = _TEXTS[along].replace(", optional", "")
    texts |= dict.fromkeys(spec.updates, _TEXTS["updates"])
    texts |= dict.fromkeys(OF_ELEMENTS, _TEXTS["of elements"].format(name=spec.name))
    texts["x"] = _TEXTS["x"].format(name=spec.name)
    texts["dim"] = _TEXTS[f"dim{of_family}"]
    texts["channel_dim"] = _TEXTS.get(f"channel_dim{of_family}", _TEXTS["channel_dim"])
    texts |= {name: _TEXTS[name] for name in ("labels", "statistics", "times", "keep_attrs")}
    return texts


class _Dims(NamedTuple):
    """The dimensions that a call names.

    Attributes
    ----------
    axis : tuple
        Those of the argument for axes.
    samples : tuple or None
        Of norms of groups: the dimensions that become the first axis.
    """

    axis: Names
    samples: Names | None

    def of_parameter(self, along: str, x: xr.DataArray) -> Names:
        """Return the usual dimensions of a parameter."""
        return tuple(d for d in x.dims if d not in self.axis) if along == "others" else self.axis


def _normalized(spec: NormSpec, arguments: dict[str, Any]) -> Any:
    x, keep_attrs = arguments.pop("x"), arguments.pop("keep_attrs")
    dims_name = spec.axis.replace("axis", "dim")
    axis = names_of(dims_name, arguments.pop(dims_name))
    shared = axis
    if spec.family == "groups":
        shared = (*axis, *names_of("dim", arguments.pop("dim")))
        if len(axis) != 1:
            raise ValueError(f"channel_dim must name one dimension, got {axis}")
        if axis[0] in shared[1:]:
            raise ValueError(f"dim must not name {axis[0]!r}, the dimension of the channels")
    elif not axis:
        raise ValueError(f"{dims_name} must name at least one dimension, got none")
    elif spec.family in ("windows", "decay") and len(axis) != 1:
        raise ValueError(f"dim must name one dimension, got {axis}")
    updates = {name: arguments.pop(name) for name in spec.updates}
    training = check_flag("training", arguments.get("training", True))
    if isinstance(x, xr.Dataset):
        for name, value in updates.items():
            if value is not None:
                raise TypeError(
                    f"{name} must be None for a Dataset: normalize each variable by itself"
                )

    def norm(array: xr.DataArray) -> xr.DataArray:
        samples = None
        if spec.family == "groups":
            samples = tuple(name for name in array.dims if name not in shared)
        dims = _Dims(axis, samples)
        with _updating(updates, array, arguments, axis, training) as statistics:
            result = _of_array(spec, array, dims, {**arguments, **statistics})
        return result if keep_attrs else result.drop_attrs()

    return each_variable(x, shared, keep_attrs, norm)


def _of_array(
    spec: NormSpec, x: xr.DataArray, dims: _Dims, arguments: dict[str, Any]
) -> xr.DataArray:
    """Return the norm of an array: the public function, with axes in the place of names."""
    order, merged = x.dims, None
    options = dict(arguments)
    if options.get("labels") is not None:
        order, options["labels"] = samples_and_labels(options["labels"], x, dims.axis)
    if options.get("statistics") is not None:
        places = [dims.axis.index(name) for name in order if name in dims.axis]
        channels = channels_of(x, dims.axis)
        statistics = plain_groups("statistics", options["statistics"], channels)
        options["statistics"] = with_channels(statistics, places)
    if dims.samples is not None:
        order = dims.samples + tuple(name for name in x.dims if name not in dims.samples)
        merged = len(dims.samples)
    ordered = x.transpose(*order)
    along = {**spec.parameters, **spec.constants}
    for name in (*along, *OF_ELEMENTS):
        given, broadcasts = options.get(name), spec.broadcasts(name)
        if given is None or (broadcasts and not _has_names(given)):
            continue
        of_elements = broadcasts or name in OF_ELEMENTS
        usual = x.dims if of_elements else dims.of_parameter(along[name], x)
        value: Any = parameter(name, given, x, usual)
        if not of_elements and set(value.dims) == set(usual):
            options[name] = value.transpose(*(d for d in order if d in usual)).data
        else:
            samples = dims.samples or ()
            if not set(samples).isdisjoint(value.dims):  # they become one axis
                value = value.set_dims({**{d: x.sizes[d] for d in samples}, **value.sizes})
            full = with_axes_of(ordered, value)
            if not of_elements and len(usual) == x.ndim:  # it would be taken for the usual shape
                full = value.set_dims(dict(ordered.sizes)).data
            options[name] = _first_axes_as_one(full, merged)
    if options.get("times") is not None:
        options["times"] = times_of(options["times"], x, dims.axis)
    axes = [order.index(name) for name in order if name in dims.axis]
    if merged is not None:
        axes = [1 + axis - merged for axis in axes]
    options[spec.axis] = axes[0] if len(axes) == 1 else tuple(axes)
    data = _first_axes_as_one(ordered.data, merged)
    y = spec.function(data, **options).reshape(ordered.shape)
    if is_lazy(ordered.variable) and y.chunks != ordered.chunks:
        y = y.rechunk(ordered.chunks)
    return ordered.copy(data=y).transpose(*x.dims)


def _has_names(value: Any) -> bool:
    """Return whether a value comes with names of dimensions."""
    return isinstance(value, xr.Dataset | xr.DataArray | xr.Variable)


def _first_axes_as_one(array: Any, count: int | None) -> Any:
    """Return an array with its `count` first axes as one axis."""
    if count is None or count == 1:
        return array
    return array.reshape((math.prod(array.shape[:count]), *array.shape[count:]))


# Running statistics


@contextmanager
def _updating(
    running: Mapping[str, Any],
    x: xr.DataArray,
    arguments: Mapping[str, Any],
    channels: Names,
    training: bool,
) -> Iterator[dict[str, Any]]:
    """Give the running statistics with the axes of x; then write updated ones back.

    Parameters
    ----------
    running : mapping
        The running statistics by keyword, as the caller gave them.
    x : DataArray
    arguments : mapping
        The other arguments of the call.
    channels : tuple
        The dimensions of the channels.
    training : bool
        Whether the statistics are updated.
    """
    present = {name: value for name, value in running.items() if value is not None}
    found = {name: _statistic(name, value, x, channels) for name, value in present.items()}
    order = [name for name in x.dims if name in channels]
    views = {name: variable.transpose(*order).data for name, variable in found.items()}
    if not training:
        yield views
        return
    for name, value in present.items():
        if any(map(is_lazy, (x, value, *arguments.values()))):
            raise ValueError(
                f"{name} is updated in place, so that all arrays must be in memory, got an array "
                "of Dask: use .compute()"
            )
        if not isinstance(value, np.ndarray | xr.DataArray):
            raise TypeError(
                f"{name} must be a DataArray or an array to be updated, got {type(value).__name__}"
            )
    # The same array if it has no gaps, or else a copy.
    dense = {name: np.ascontiguousarray(view) for name, view in views.items()}
    for name, view in views.items():
        if isinstance(view, np.ndarray):
            dense[name].flags.writeable = view.flags.writeable
    yield dense
    for name, view in views.items():
        if not np.shares_memory(view, dense[name]):
            view[...] = dense[name]


def _statistic(name: str, value: Any, x: xr.DataArray, channels: Names) -> xr.Variable:
    variable = parameter(name, value, x, channels)
    if set(variable.dims) != set(channels):
        raise ValueError(f"{name} must have the dimensions {channels}, got {variable.dims}")
    return variable
