"""Norms of rows, and of groups of channels as rows, for lazy arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from numnorm._dask import split_rows, whole_rows
from numnorm._dask.moments import channels_of
from numnorm._dask.parameters import Parameter, aligned_parameter, along, as_broadcast, made_lazy
from numnorm._dask.row_axes import Rows
from numnorm._dask.split_rows import RowNorm
from numnorm.arguments import check_shape
from numnorm.backends.contract.norms import Norm
from numnorm.layouts import RowLayout, normalized_axes
from numnorm.norms.spec import COUNTING, RUNNING_OPTIONS, NormSpec, RowCall

# In the place of a `RowNorm`: only divided rows need to know what the norm does.
_WHOLE: Any = None


def call(spec: NormSpec, function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Return the lazy result of a public function of a norm.

    Parameters
    ----------
    spec : NormSpec
    function : callable
        Its forward or its backward pass.
    arguments : dict
        All arguments, without the keywords for missing values.
    """
    names = spec.arrays_of(function)
    options = {name: value for name, value in arguments.items() if name not in (*names, "out")}
    arrays = made_lazy({name: arguments[name] for name in names}, arguments["out"], spec.parameters)
    assert spec.row_call is not None
    row_call = spec.row_call(arrays["x"].shape, **options)
    layout = row_call.layout
    for name in spec.constants:
        check_shape(name, arrays[name].shape, layout.parameter_shape, layout.parameter_meaning)
    if spec.family == "groups":
        axis = options["channel_axis"]
        rows, arrays["x"] = groups_of(arrays["x"], row_call.layout, axis)
    else:
        axes = normalized_axes(options["axis"], arrays["x"].ndim)
        rows = _along(arrays["x"].ndim, axes)
        if "others" in spec.parameters.values():
            rows = rows._replace(own=rows.kept)
        options["axis"] = axes
    x = arrays["x"]
    norm = _WHOLE if spec.norm is None else _row_norm(spec.norm, row_call)
    if norm is _WHOLE:
        arrays["x"] = x.rechunk(dict.fromkeys(rows.axes, -1))
    taken = function, arrays, row_call.layout, rows, options, norm
    results = backward(*taken, spec.saved) if spec.is_backward(function) else forward(*taken)
    return _in_chunks(results, x.chunks) if norm is _WHOLE else results


def with_weights(
    spec: NormSpec,
    function: Callable[..., Any],
    arguments: dict[str, Any],
    counting: dict[str, Any],
) -> Any:
    """Return a forward pass with keywords for missing values: each block holds whole rows.

    The channels of batch norm are rows here.
    """
    names = spec.arrays_of(function)
    statistics = [name for name in spec.updates if arguments.get(name) is not None]
    if statistics and arguments["training"] is not False:
        keyword = next(iter(counting))
        raise NotImplementedError(
            f"{keyword} is not supported for lazy arrays with running statistics"
        )
    taken = (*names, *spec.updates, "out")
    options = {name: value for name, value in arguments.items() if name not in taken}
    options |= {name: value for name, value in counting.items() if name in ("nan_policy", "fill")}
    of_elements: dict[str, Any] = {
        name: counting[name] for name in ("where", "weights") if name in counting
    }
    given = [name for name in names if arguments[name] is not None] + statistics
    arrays = made_lazy(
        {**{name: arguments[name] for name in given}, **of_elements}, arguments["out"]
    )
    x = arrays["x"]
    axis = options[spec.axis]
    own = spec.counts(axis, x.ndim).own
    for name in of_elements:
        if name == "weights" and arrays[name].shape == tuple(x.shape[a] for a in own):
            arrays[name] = along(arrays[name], own, x.ndim)
        arrays[name] = as_broadcast(name, arrays[name], x)
    if spec.row_call is None:
        layout, rows = _channels_as_rows(x, axis)
    elif spec.family == "groups":
        own_options = {n: v for n, v in options.items() if n not in COUNTING + RUNNING_OPTIONS}
        layout = spec.row_call(x.shape, **own_options).layout
        rows, arrays["x"] = groups_of(x, layout, axis)
    else:
        axes = normalized_axes(axis, x.ndim)
        own_options = {n: v for n, v in options.items() if n not in COUNTING}
        layout = spec.row_call(x.shape, **own_options).layout
        rows = _along(x.ndim, axes)
        if "others" in spec.parameters.values():
            rows = rows._replace(own=rows.kept)
        options["axis"] = axes
    arrays["x"] = arrays["x"].rechunk(dict.fromkeys(rows.axes, -1))
    results = forward(function, arrays, layout, rows, options, _WHOLE)
    return _in_chunks(results, x.chunks)


def _in_chunks(results: Any, chunks: Any) -> Any:
    """Return results, of which the first has these chunks."""
    if not isinstance(results, tuple):
        return results.rechunk(chunks)
    return type(results)(results[0].rechunk(chunks), *results[1:])


def _channels_as_rows(x: Any, channel_axis: Any) -> tuple[RowLayout, Rows]:
    """Return the channels of batch norm as rows."""
    channels = channels_of(x, channel_axis)
    layout = RowLayout(
        order=None, rows=math.prod(channels.shape), width=channels.count, segment=1, channels=1,
        shared=True, statistic_shape=channels.shape, parameter_shape=channels.shape,
        parameter_meaning="the channels of x",
    )  # fmt: skip
    return layout, Rows(channels.others, channels.axes, channels.axes)


def _row_norm(norm: Norm, row_call: RowCall) -> RowNorm:
    """Return a norm as plain numbers, which have the same token in every process."""
    scaling, factors = row_call.scaling, row_call.factors
    return RowNorm(
        norm.formula.centred,
        (scaling.eps, scaling.eps_on_deviation, scaling.ddof),
        length=norm.of_length,
        detached=row_call.detached,
        factors=None if factors is None else (factors[0], factors[2]),
    )


def _along(ndim: int, axes: tuple[int, ...]) -> Rows:
    """Return rows along some axes."""
    return Rows(axes, tuple(axis for axis in range(ndim) if axis not in axes), axes)


def groups_of(x: Any, layout: RowLayout, channel_axis: Any) -> tuple[Rows, Any]:
    """Return the rows of x, and x in chunks that hold whole groups of channels."""
    (channel,) = normalized_axes(channel_axis, x.ndim)
    groups = layout.statistic_shape[1]
    if groups and not x.shape[channel]:
        raise ValueError(f"x must have channels in its lazy groups, got shape {x.shape}")
    size = max(x.shape[channel] // max(groups, 1), 1)
    spatial = tuple(axis for axis in range(1, x.ndim) if axis != channel)
    rows = Rows(spatial, (0, channel), (channel,), size)
    whole = _at_borders(x.chunks[channel], size)
    return rows, x if whole == x.chunks[channel] else x.rechunk({channel: whole})


def _at_borders(chunks: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Return chunks of whole groups that end near the ends of the given ones."""
    found: list[int] = []
    end = last = 0
    for length in chunks:
        end += length
        border = min(-(-end // size) * size, sum(chunks))
        if border > last or not found:
            found.append(border - last)
            last = border
    return tuple(found)


# A call of a norm of rows with lazy arrays: checked, then for whole or for divided rows


Arrays = dict[str, Any]


def forward(
    function: Callable[..., Any],
    arrays: Arrays,
    layout: RowLayout,
    rows: Rows,
    options: Mapping[str, Any],
    norm: RowNorm,
) -> Any:
    """Return what a public function returns, lazily.

    Parameters
    ----------
    function : callable
    arrays : dict
        By keyword: x first, then the parameters, which may be None.
    layout : RowLayout
        The rows of x.
    rows : Rows
        The same by axes.
    options : mapping
        The other arguments of the function.
    norm : RowNorm
        What the function does.
    """
    (name, x), *others = arrays.items()
    parameters = [_parameter(*other, x, layout, rows) for other in others if other[1] is not None]
    results = _without_elements(function, arrays, (name,), (), layout, rows, options)
    several = isinstance(results, tuple)
    dtypes = [result.dtype for result in (results if several else (results,))]
    if is_divided(x, rows):
        normalized = split_rows.forward(norm, x, parameters, rows, dtypes)
    else:
        normalized = whole_rows.forward(function, (name, x), parameters, rows, options, dtypes)
    return type(results)(*normalized) if several else normalized[0]


def backward(
    function: Callable[..., Any],
    arrays: Arrays,
    layout: RowLayout,
    rows: Rows,
    options: Mapping[str, Any],
    norm: RowNorm,
    saved: Sequence[str],
) -> Any:
    """Return what a public function of a backward pass returns, lazily.

    Parameters
    ----------
    function : callable
    arrays : dict
        By keyword: the gradient of the result, x, the statistics of its rows, and the gain, which
        may be None.
    layout, rows, options, norm
        As for `forward`.
    saved : sequence of str
        The names of the statistics.
    """
    (name, dy), (x_name, x), *_ = arrays.items()
    check_shape(name, dy.shape, x.shape, "the shape of the input")
    gain = None
    for key, array in arrays.items():
        if key in saved:
            check_shape(key, array.shape, layout.statistic_shape, "one for each row")
        elif key not in (name, x_name) and array is not None:
            gain = _parameter(key, array, x, layout, rows)
    results = _without_elements(function, arrays, (name, x_name), saved, layout, rows, options)
    several = isinstance(results, tuple)
    dtypes = [result.dtype for result in (results if several else (results,))]
    others = {key: array for key, array in arrays.items() if key in (name, x_name, *saved)}
    if is_divided(x, rows):
        gradients = split_rows.backward(norm, others, gain, rows, dtypes)
    else:
        gradients = whole_rows.backward(function, others, gain, rows, options, dtypes)
    return type(results)(*gradients) if several else gradients[0]


def is_divided(x: Any, rows: Rows) -> bool:
    """Return whether rows lie in several blocks."""
    return any(x.numblocks[axis] > 1 for axis in rows.axes)


def _parameter(name: str, array: Any, x: Any, layout: RowLayout, rows: Rows) -> Parameter:
    usual = layout.parameter_shape, layout.parameter_meaning
    return aligned_parameter(name, array, x, rows.own, *usual)


def _without_elements(
    function: Callable[..., Any],
    arrays: Arrays,
    like_x: tuple[str, ...],
    saved: Sequence[str],
    layout: RowLayout,
    rows: Rows,
    options: Mapping[str, Any],
) -> Any:
    """Return the results for arrays without elements, which have the right dtypes.

    So wrong options and dtypes are errors of the call. Its shapes are right already. What has
    elements nevertheless is ones, which every norm takes.
    """
    groups = bool(rows.size)  # whose number fits to the number of channels
    empty = {}
    for name, array in arrays.items():
        if array is None:
            continue
        shape = layout.parameter_shape
        if name in like_x or name in ("where", "weights"):
            shape = array.shape
        elif name in saved:
            shape = layout.statistic_shape
        emptied = (0,) * len(shape)
        if groups:
            emptied = shape if shape is layout.parameter_shape else (0, *shape[1:])
        empty[name] = np.ones(emptied, array.dtype)
    return function(**empty, **options)
