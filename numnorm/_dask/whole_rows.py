"""Norms of rows that lie whole in a block: the public function is called for each block."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from numnorm._dask.blocks import Chunks, block_sum, each_block, each_object, rounded, take
from numnorm._dask.keywords import Keywords
from numnorm._dask.parameters import Parameter, as_divided, with_axes
from numnorm._dask.row_axes import Axes, Rows
from numnorm.arguments import Shape


class Call(NamedTuple):
    """How a public function is called for a block.

    Attributes
    ----------
    function : callable
        A public function of numnorm.
    names : tuple of str
        The keywords of the arrays.
    places : tuple
        For each array the axes that it keeps, or None where it keeps all.
    rows : Rows
    options : mapping
        The other arguments.
    """

    function: Callable[..., Any]
    names: tuple[str, ...]
    places: tuple[Axes | None, ...]
    rows: Rows
    options: Mapping[str, Any]


def forward(
    function: Callable[..., Any],
    x: tuple[str, Any],
    parameters: Sequence[Parameter],
    rows: Rows,
    options: Mapping[str, Any],
    dtypes: Sequence[Any],
    keywords: Keywords,
) -> list[Any]:
    """Return y and, if there are more dtypes than one, the statistics of the rows."""
    name, array = x
    call = _call(function, [name], keywords, parameters, rows, options)
    blocks = array, *keywords.arrays.values(), *(parameter.array for parameter in parameters)
    if len(dtypes) == 1:
        return [each_block(_normalized, *blocks, dtype=dtypes[0], chunks=array.chunks, call=call)]
    objects = each_object(_saved, *blocks, call=call)
    y = take(objects, 0, dtype=dtypes[0], chunks=array.chunks)
    chunks = rows.per_row(array.chunks)
    statistics = [
        take(objects, member, dtype=dtype, chunks=chunks)
        for member, dtype in enumerate(dtypes[1:], 1)
    ]
    return [y, *(with_axes(statistic, rows.across) for statistic in statistics)]


def backward(
    function: Callable[..., Any],
    arrays: Mapping[str, Any],
    parameter: Parameter | None,
    rows: Rows,
    options: Mapping[str, Any],
    dtypes: Any,
    keywords: Keywords,
) -> list[Any]:
    """Return dx and the gradients of the parameters.

    Parameters
    ----------
    function : callable
    arrays : mapping
        By keyword: the gradient of the result, x, and the statistics of the rows.
    parameter : Parameter or None
    rows, options
    dtypes : sequence
        Of the results.
    keywords : Keywords
    """
    (_, dy), (_, x), *statistics = arrays.items()
    given = () if parameter is None else (parameter,)
    call = _call(function, list(arrays), keywords, given, rows, options)
    others = [aligned_statistic(statistic, x, rows) for _, statistic in statistics]
    others += keywords.arrays.values()
    blocks = as_divided(dy, x.chunks), x, *others, *(p.array for p in given)
    if len(dtypes) == 1:
        return [each_block(_normalized, *blocks, dtype=dtypes[0], chunks=x.chunks, call=call)]
    objects = each_object(_gradients, *blocks, call=call, gain=parameter is not None)
    dx = take(objects, 0, dtype=dtypes[0], chunks=x.chunks)
    sums = [
        parameter_gradient(objects, member, x.chunks, parameter, rows, dtype)
        for member, dtype in enumerate(dtypes[1:], 1)
    ]
    return [dx, *sums]


def aligned_statistic(statistic: Any, x: Any, rows: Rows) -> Any:
    """Return a statistic of each row with as many axes as x, divided as x."""
    return as_divided(rows.with_axes_of(statistic, x.ndim), rows.per_row(x.chunks))


def parameter_gradient(
    objects: Any,
    member: int,
    chunks: Chunks,
    parameter: Parameter | None,
    rows: Rows,
    dtype: Any,
) -> Any:
    """Return the gradient of a parameter from its float64 sums over each block."""
    usual = parameter is None or parameter.usual
    own = rows.own
    if parameter is not None and not parameter.usual:
        own = parameter.axes
    summed = tuple(a for a in range(len(chunks)) if a not in own)
    gradient = rounded(block_sum(objects, member, chunks, summed), dtype)
    return with_axes(gradient, own) if usual else gradient


def _call(
    function: Callable[..., Any],
    arrays: Sequence[str],
    keywords: Keywords,
    parameters: Sequence[Parameter],
    rows: Rows,
    options: Mapping[str, Any],
) -> Call:
    names = *arrays, *keywords.arrays, *(parameter.name for parameter in parameters)
    # The gradient and x, or x alone, and then the statistics of rows.
    places: list[Axes | None] = [None] * min(len(arrays), 2) + [rows.across] * (len(arrays) - 2)
    places += [None] * len(keywords.arrays)
    places += [rows.own if parameter.usual else None for parameter in parameters]
    return Call(function, names, tuple(places), rows, {**options, **keywords.options})


def _normalized(*blocks: Any, call: Call) -> Any:
    arrays = {
        name: array if place is None else array.reshape([array.shape[axis] for axis in place])
        for name, array, place in zip(call.names, blocks, call.places, strict=True)
    }
    return call.function(**arrays, **_options(call, blocks[0].shape))


def _saved(*blocks: Any, call: Call) -> tuple[Any, ...]:
    y, *statistics = _normalized(*blocks, call=call)
    shape = call.rows.per_row(y.shape)
    return y, *(statistic.reshape(shape) for statistic in statistics)


def _gradients(*blocks: Any, call: Call, gain: bool) -> tuple[Any, ...]:
    """Return dx and the sums for the gradients of the parameters, in float64 if rounding counts."""
    x, own = blocks[1], call.rows.own
    full: Shape = tuple(n if axis in own else 1 for axis, n in enumerate(x.shape))
    if gain:
        if call.places[-1] is None:
            full = blocks[-1].shape
        blocks = *blocks[:-1], blocks[-1].astype(np.float64)
    elif x.dtype.itemsize == 2:  # a sum in half precision has few digits, and may overflow
        name = "g" if "norm" in call.names else "gamma"
        call = call._replace(names=(*call.names, name), places=(*call.places, own))
        blocks = *blocks, np.ones_like(x, dtype=np.float64, shape=full)
    dx, *sums = _normalized(*blocks, call=call)
    return dx, *(total.reshape(full).astype(np.float64, copy=False) for total in sums)


def _options(call: Call, shape: Shape) -> Mapping[str, Any]:
    """Return the options for a block, which may hold fewer groups than x."""
    if "groups" not in call.options or not call.rows.size:
        return call.options
    return {**call.options, "groups": max(shape[call.rows.across[1]] // call.rows.size, 1)}
