"""A call of a norm of rows with lazy arrays: checked, then for whole or for divided rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from numnorm.arguments import check_shape
from numnorm.dask import whole_rows
from numnorm.dask.parameters import OPTIONAL, Parameter, aligned_parameter
from numnorm.dask.whole_rows import Rows
from numnorm.layouts import RowLayout

Arrays = dict[str, Any]


def forward(
    function: Callable[..., Any],
    arrays: Arrays,
    layout: RowLayout,
    rows: Rows,
    options: Mapping[str, Any],
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
    """
    (name, x), *others = arrays.items()
    x = x.rechunk(dict.fromkeys(rows.axes, -1))
    parameters = [_parameter(*other, x, layout, rows) for other in others if other[1] is not None]
    results = _without_elements(function, arrays, (name,), layout, rows, options)
    call = function, (name, x), parameters, rows, options
    if isinstance(results, tuple):
        dtypes = [result.dtype for result in results]
        return type(results)(*whole_rows.forward_saved(*call, dtypes))
    return whole_rows.forward(*call, results.dtype)


def backward(
    function: Callable[..., Any],
    arrays: Arrays,
    layout: RowLayout,
    rows: Rows,
    options: Mapping[str, Any],
) -> Any:
    """Return what a public function of a backward pass returns, lazily.

    Parameters
    ----------
    function : callable
    arrays : dict
        By keyword: the gradient of the result, x, the statistics of its rows, and the gain, which
        may be None.
    layout, rows, options
        As for `forward`.
    """
    (name, dy), (x_name, x), *_ = arrays.items()
    check_shape(name, dy.shape, x.shape, "the shape of the input")
    x = arrays[x_name] = x.rechunk(dict.fromkeys(rows.axes, -1))
    gain = None
    for key, array in arrays.items():
        if key in whole_rows.STATISTICS:
            check_shape(key, array.shape, layout.statistic_shape, "one for each row")
        elif key in OPTIONAL and array is not None:
            gain = _parameter(key, array, x, layout, rows)
    results = _without_elements(function, arrays, (name, x_name), layout, rows, options)
    several = isinstance(results, tuple)
    dtypes = [result.dtype for result in (results if several else (results,))]
    others = {key: array for key, array in arrays.items() if key not in OPTIONAL}
    gradients = whole_rows.backward(function, others, gain, rows, options, dtypes)
    return type(results)(*gradients) if several else gradients[0]


def _parameter(name: str, array: Any, x: Any, layout: RowLayout, rows: Rows) -> Parameter:
    usual = layout.parameter_shape, layout.parameter_meaning
    return aligned_parameter(name, array, x, rows.own, *usual)


def _without_elements(
    function: Callable[..., Any],
    arrays: Arrays,
    like_x: tuple[str, ...],
    layout: RowLayout,
    rows: Rows,
    options: Mapping[str, Any],
) -> Any:
    """Return the results for arrays without elements, which have the right dtypes.

    So wrong options and dtypes are errors of the call. Its shapes are right already.
    """
    groups = bool(rows.size)  # whose number fits to the number of channels
    empty = {}
    for name, array in arrays.items():
        if array is None:
            continue
        shape = layout.parameter_shape
        if name in like_x:
            shape = array.shape
        elif name in whole_rows.STATISTICS:
            shape = layout.statistic_shape
        emptied = (0,) * len(shape)
        if groups:
            emptied = shape if shape is layout.parameter_shape else (0, *shape[1:])
        empty[name] = np.empty(emptied, array.dtype)
    return function(**empty, **options)
