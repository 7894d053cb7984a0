"""A call of a norm of rows with lazy arrays: checked, then for whole or for divided rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from numnorm.arguments import check_shape
from numnorm.dask import split_rows, whole_rows
from numnorm.dask.parameters import Parameter, aligned_parameter
from numnorm.dask.row_axes import Rows
from numnorm.dask.split_rows import RowNorm
from numnorm.layouts import RowLayout

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
