"""Norms of rows, and of groups of channels as rows, for lazy arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from numnorm._dask import split_rows, whole_rows
from numnorm._dask.keywords import Keywords, elements_of, keywords_of
from numnorm._dask.parameters import Parameter, aligned_parameter, made_lazy
from numnorm._dask.row_axes import Rows
from numnorm._dask.row_moments import divided_axes
from numnorm._dask.split_rows import RowNorm
from numnorm.arguments import check_shape
from numnorm.array_likes import library_of
from numnorm.backends.contract.norms import Norm
from numnorm.layouts import RowLayout, normalized_axes
from numnorm.norms.spec import NormSpec, RowCall

# In the place of a `RowNorm`: only divided rows need to know what the norm does.
_WHOLE: Any = None


def call(
    spec: NormSpec,
    function: Callable[..., Any],
    arguments: dict[str, Any],
    counting: Mapping[str, Any],
) -> Any:
    """Return the lazy result of a public function of a norm.

    Parameters
    ----------
    spec : NormSpec
    function : callable
        Its forward or its backward pass.
    arguments : dict
        All arguments, without the keywords for missing values.
    counting : mapping
        These keywords, as far as they are not their defaults.
    """
    names = spec.arrays_of(function)
    options = {name: value for name, value in arguments.items() if name not in (*names, "out")}
    elements = elements_of(counting)
    given = {name: arguments[name] for name in names}
    arrays = made_lazy({**given, **elements}, arguments["out"], spec.parameters)
    elements = {name: arrays.pop(name) for name in elements}
    assert spec.row_call is not None
    row_call = spec.row_call(arrays["x"].shape, **options)
    layout = row_call.layout
    for name in spec.constants:
        check_shape(name, arrays[name].shape, layout.parameter_shape, layout.parameter_meaning)
    chunks = arrays["x"].chunks
    shared = spec.counts(options[spec.axis], arrays["x"].ndim)
    if spec.family == "groups":
        axis = options["channel_axis"]
        rows, arrays["x"] = groups_of(arrays["x"], row_call.layout, axis)
    else:
        axes = normalized_axes(options["axis"], arrays["x"].ndim)
        rows = _along(arrays["x"].ndim, axes)
        if "others" in spec.parameters.values():
            rows = rows._replace(own=rows.across)
        options["axis"] = axes
    x = arrays["x"]
    norm = _WHOLE if spec.norm is None else _row_norm(spec.norm, row_call)
    if norm is _WHOLE:
        arrays["x"] = x.rechunk(dict.fromkeys(rows.axes, -1))
    scaled = shared.statistic is not None
    keywords = keywords_of(arrays["x"], elements, counting, shared.own, scaled=scaled)
    taken = function, arrays, row_call.layout, rows, options, norm, keywords
    results = backward(*taken, spec.saved) if spec.is_backward(function) else forward(*taken)
    return _in_chunks(results, chunks)


def _in_chunks(results: Any, chunks: Any) -> Any:
    """Return results, of which the first has these chunks."""
    if not isinstance(results, tuple):
        return results.rechunk(chunks)
    return type(results)(results[0].rechunk(chunks), *results[1:])


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
    keywords: Keywords,
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
    keywords : Keywords
    """
    (name, x), *others = arrays.items()
    parameters = [_parameter(*other, x, layout, rows) for other in others if other[1] is not None]
    like_x = name, *keywords.arrays
    known = like_x, (), layout, rows, {**options, **keywords.options}
    results = _without_elements(function, {**arrays, **keywords.arrays}, *known)
    if not x.size:
        return _of_nothing(results, x, rows)
    several = isinstance(results, tuple)
    dtypes = [result.dtype for result in (results if several else (results,))]
    if divided_axes(x, rows):
        normalized = split_rows.forward(norm, x, parameters, rows, dtypes, keywords)
    else:
        given = (name, x), parameters, rows, options, dtypes, keywords
        normalized = whole_rows.forward(function, *given)
    return type(results)(*normalized) if several else normalized[0]


def backward(
    function: Callable[..., Any],
    arrays: Arrays,
    layout: RowLayout,
    rows: Rows,
    options: Mapping[str, Any],
    norm: RowNorm,
    keywords: Keywords,
    saved: Sequence[str],
) -> Any:
    """Return what a public function of a backward pass returns, lazily.

    Parameters
    ----------
    function : callable
    arrays : dict
        By keyword: the gradient of the result, x, the statistics of its rows, and the gain, which
        may be None.
    layout, rows, options, norm, keywords
        As for `forward`.
    saved : sequence of str
        The names of the statistics.
    """
    (name, dy), (x_name, x), *_ = arrays.items()
    check_shape(name, dy.shape, x.shape, f"the shape of {x_name}")
    gain = None
    for key, array in arrays.items():
        if key in saved:
            check_shape(key, array.shape, layout.statistic_shape, "one for each row")
        elif key not in (name, x_name) and array is not None:
            gain = _parameter(key, array, x, layout, rows)
    like_x = name, x_name, *keywords.arrays
    known = like_x, saved, layout, rows, {**options, **keywords.options}
    results = _without_elements(function, {**arrays, **keywords.arrays}, *known)
    if not x.size:
        return _of_nothing(results, x, rows)
    several = isinstance(results, tuple)
    dtypes = [result.dtype for result in (results if several else (results,))]
    others = {key: array for key, array in arrays.items() if key in (name, x_name, *saved)}
    if divided_axes(x, rows):
        gradients = split_rows.backward(norm, others, gain, rows, dtypes, keywords)
    else:
        given = others, gain, rows, options, dtypes, keywords
        gradients = whole_rows.backward(function, *given)
    return type(results)(*gradients) if several else gradients[0]


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
    elements nevertheless begins with 2 and is 1 elsewhere, which every norm takes: `emsc` takes no
    constant reference. If x has no elements, these are the results of the call.
    """
    nothing = 0 in arrays[like_x[0]].shape
    groups = bool(rows.size)  # whose number fits to the number of channels
    empty = {}
    for name, array in arrays.items():
        if array is None:
            continue
        shape = layout.parameter_shape
        if name in like_x:
            shape = array.shape
        elif name in saved:
            shape = layout.statistic_shape
        emptied = (0,) * len(shape)
        if nothing:
            emptied = array.shape
        elif groups:
            emptied = shape if shape is layout.parameter_shape else (0, *shape[1:])
        empty[name] = np.ones(emptied, array.dtype)
        empty[name].flat[:1] = 2
    return function(**empty, **options)


def _of_nothing(results: Any, x: Any, rows: Rows) -> Any:
    """Return the results for an x without elements lazily, in the chunks of x where they fit."""
    lengths = rows.per_row(x.chunks)
    known = x.chunks, tuple(lengths[axis] for axis in rows.across)

    def lazily(result: Any) -> Any:
        fitting = (each for each in known if tuple(map(sum, each)) == result.shape)
        return library_of(x).from_array(result, chunks=next(fitting, -1))

    several = isinstance(results, tuple)
    return type(results)(*map(lazily, results)) if several else lazily(results)
