"""Norms of rows that are divided between blocks: statistics are merged over the blocks of a row.

Passes are computed from merged statistics within rounding of the result for the whole array, and
always to the same bytes.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import numnorm
from numnorm._dask.blocks import each_block, each_object, in_order, take
from numnorm._dask.parameters import Parameter, as_divided, lost_of, with_axes
from numnorm._dask.row_axes import Rows
from numnorm._dask.whole_rows import aligned_statistic, parameter_gradient
from numnorm.arguments import result_dtype
from numnorm.backends.contract.norms import Detached
from numnorm.backends.formulas.norms import input_gradient
from numnorm.norms.ada import adaptive, adaptive_gradient

# float32 takes no larger factor.
_LARGEST_FACTOR = 1e37

# Below it the sum of squares has lost digits.
_LEAST_VARIANCE = 1e-301


class RowNorm(NamedTuple):
    """What a norm does with a row.

    Attributes
    ----------
    centred : bool
        Whether the mean is subtracted.
    scaling : tuple
        The fields of `Scaling`: epsilon, epsilon on the deviation, ddof.
    factors : tuple or None
        The scale and k of AdaNorm; None for gain and bias.
    length : bool
        Whether the saved statistic is the deviation, not its reciprocal.
    detached : Detached
        The statistics that are constants for the gradient.
    """

    centred: bool
    scaling: tuple[float, float, int]
    factors: tuple[float, float] | None = None
    length: bool = False
    detached: Detached = Detached()


def forward(
    norm: RowNorm, x: Any, parameters: Sequence[Parameter], rows: Rows, dtypes: Sequence[Any]
) -> list[Any]:
    """Return y and, if there are more dtypes than one, the saved statistics of the rows."""
    total = merged_moments(x, rows)
    names = tuple(parameter.name for parameter in parameters)
    arrays = [parameter.array for parameter in parameters]
    y = each_block(
        _normalized, x, total, *arrays,
        dtype=dtypes[0], chunks=x.chunks, norm=norm, rows=rows, names=names,
    )  # fmt: skip
    chunks = rows.per_row(x.chunks)
    statistics = [
        each_block(_statistic, total, dtype=dtype, chunks=chunks, norm=norm, member=m, to=dtype)
        for m, dtype in enumerate(dtypes[1:])
    ]
    return [y, *(with_axes(statistic, rows.kept) for statistic in statistics)]


def merged_moments(x: Any, rows: Rows) -> Any:
    """Return a lazy array of the Moments of whole rows, one object for each block of rows."""
    return in_order(each_object(_moments, x, rows=rows), _divided(x, rows), _merged)


def backward(
    norm: RowNorm,
    arrays: Mapping[str, Any],
    parameter: Parameter | None,
    rows: Rows,
    dtypes: Sequence[Any],
) -> list[Any]:
    """Return dx and, if there are more dtypes than one, the gradients of the parameters."""
    (_, dy), (_, x), *statistics = arrays.items()
    saved = [aligned_statistic(statistic, x, rows) for _, statistic in statistics]
    gain = () if parameter is None else (parameter.array,)
    blocks = as_divided(dy, x.chunks), x, *saved, *gain
    count = len(blocks)
    totals: list[Any] = []
    # AdaNorm's g depends on xhat, so that its sums are taken again with the mean restored.
    for _ in range(2 if norm.factors is not None else 1):
        objects = each_object(_sums, *blocks, *totals, norm=norm, rows=rows, count=count)
        totals.append(in_order(objects, _divided(x, rows), _added))
    own = None if len(dtypes) == 1 else rows.own
    if parameter is not None and not parameter.usual:
        own = tuple(a for a in range(x.ndim) if parameter.array.shape[a] != 1)
    objects = each_object(
        _gradients, *blocks, *totals, norm=norm, rows=rows, own=own, to=dtypes[0], count=count
    )
    dx = take(objects, 0, dtype=dtypes[0], chunks=x.chunks)
    sums = [
        parameter_gradient(objects, member, x.chunks, parameter, rows, dtype)
        for member, dtype in enumerate(dtypes[1:], 1)
    ]
    return [dx, *sums]


def _divided(x: Any, rows: Rows) -> tuple[int, ...]:
    return tuple(axis for axis in rows.axes if x.numblocks[axis] > 1)


# Forward, for a block


def _moments(x: Any, rows: Rows) -> numnorm.Moments:
    """Return the moments of the parts of rows in a block, with as many axes as x."""
    shape = rows.per_row(x.shape)
    moments = numnorm.batch_moments(rows.as_matrix(x), channel_axis=0)
    fields = ("mean", "m2", "mean_lo")
    return moments._replace(**{f: getattr(moments, f).reshape(shape) for f in fields})


def _merged(parts: list[numnorm.Moments]) -> numnorm.Moments:
    return functools.reduce(numnorm.Moments.merge, parts)


def _scales(total: numnorm.Moments, norm: RowNorm) -> tuple[Any, Any]:
    """Return the deviation of rows, with epsilon, and its reciprocal or 0."""
    eps, eps_on_deviation, ddof = norm.scaling
    with np.errstate(all="ignore"):
        squares = total.m2
        if not norm.centred:
            squares = squares + total.count * total.mean * total.mean
        variance = squares / (total.count - ddof) + eps
        lost = (squares == np.inf) | ((squares > 0.0) & (variance < _LEAST_VARIANCE))
        deviation = np.where(lost, np.nan, np.sqrt(variance) + eps_on_deviation)
        return deviation, _reciprocal(deviation)


def _reciprocal(deviation: Any) -> Any:
    with np.errstate(all="ignore"):
        return np.where(deviation == 0.0, 0.0, 1.0 / deviation)


def _normalized(
    x: Any, total: Any, *parameters: Any, norm: RowNorm, rows: Rows, names: tuple[str, ...]
) -> Any:
    moments = total[(0,) * total.ndim]
    dtype = result_dtype("x", x.dtype)
    wide = x.astype(np.float32 if dtype.itemsize == 2 else dtype, copy=False)
    _, rstd = _scales(moments, norm)
    if wide.dtype == np.float32 and (rstd > _LARGEST_FACTOR).any():
        wide = wide.astype(np.float64)
    mean, shift = moments.mean, -moments.mean_lo * rstd
    if not norm.centred:
        mean, shift = np.zeros_like(mean), np.zeros_like(mean)
    given = [array.reshape(-1) for array in (rstd, shift, mean, np.ones_like(mean))]
    xhat = numnorm.batch_norm(
        rows.as_matrix(wide), *given[:2], channel_axis=0, training=False,
        running_mean=given[2], running_var=given[3], eps=0.0,
    )  # fmt: skip
    y = rows.from_matrix(xhat, x.shape)
    with np.errstate(all="ignore"):
        if norm.factors is not None:
            return adaptive(y, *map(y.dtype.type, norm.factors)).astype(dtype, copy=False)
        for name, array in zip(names, parameters, strict=True):
            array = array.astype(y.dtype, copy=False)
            y = y + array if name == "beta" else y * array
        return y.astype(dtype, copy=False)


def _statistic(total: Any, norm: RowNorm, member: int, to: Any) -> Any:
    moments = total[(0,) * total.ndim]
    deviation, rstd = _scales(moments, norm)
    saved = [moments.mean] * norm.centred + [deviation if norm.length else rstd]
    with np.errstate(all="ignore"):
        return saved[member].astype(to)


# Backward, for a block


class _Sums(NamedTuple):
    """Sums over the part of a row, each with as many axes as x."""

    elements: int
    deviation: Any
    g: Any
    g_xhat: Any


def _sums(*blocks: Any, norm: RowNorm, rows: Rows, count: int) -> _Sums:
    (dy, x, *others), totals = blocks[:count], blocks[count:]
    with np.errstate(all="ignore"):
        lost = _lost(totals[0], others[0], rows) if totals else 0.0
        deviation, _, g, _, xhat = _elements(dy, x, others, norm, rows, lost)
        width = rows.width(x.shape)
        return _Sums(width, *(rows.summed(each) for each in (deviation, g, g * xhat)))


def _lost(total: Any, mean: Any, rows: Rows) -> Any:
    """Return what rounding the saved mean of each element's row lost."""
    sums: _Sums = total[(0,) * total.ndim]
    return rows.spread(lost_of(sums.deviation, sums.elements, mean))


def _added(parts: list[_Sums]) -> _Sums:
    return _Sums(*(functools.reduce(operator.add, each) for each in zip(*parts, strict=True)))


def _elements(
    dy: Any, x: Any, others: Sequence[Any], norm: RowNorm, rows: Rows, lost: Any = 0.0
) -> tuple[Any, ...]:
    """Return x less its mean, rstd, g, dy and the normalized x of a block in float64."""
    *saved, last = others[: norm.centred + 1]
    gain = others[norm.centred + 1 :]
    rstd = rows.spread(_reciprocal(last) if norm.length else last)
    deviation = x.astype(np.float64)
    for mean in saved:
        deviation = deviation - rows.spread(mean) - lost
    xhat, dy = deviation * rstd, dy.astype(np.float64)
    if norm.factors is not None:
        g = adaptive_gradient(dy, xhat, *norm.factors)
    else:
        g = dy * gain[0] if gain else dy
    return deviation, rstd, g, dy, xhat


def _gradients(
    *blocks: Any, norm: RowNorm, rows: Rows, own: Any, to: Any, count: int
) -> tuple[Any, ...]:
    (dy, x, *others), totals = blocks[:count], blocks[count:]
    sums: _Sums = totals[-1][(0,) * totals[-1].ndim]
    with np.errstate(all="ignore"):
        lost = _lost(totals[0], others[0], rows) if norm.centred else 0.0
        _, rstd, g, dy, xhat = _elements(dy, x, others, norm, rows, lost)
        _, eps_on_deviation, ddof = norm.scaling
        sum_g, sum_g_xhat = rows.spread(sums.g), rows.spread(sums.g_xhat)
        if len(totals) == 1:
            sum_g_xhat = sum_g_xhat - lost * rstd * sum_g
        mean_g = sum_g / sums.elements if norm.centred and not norm.detached.mean else 0.0
        through_scale: Any = 0.0
        if not norm.detached.scale:
            remaining = 1.0 - eps_on_deviation * rstd
            through_scale = np.where(remaining <= 0.0, 0.0, 1.0 / remaining)
            through_scale = sum_g_xhat * through_scale / (sums.elements - ddof)
        dx = input_gradient(g, xhat, mean_g, through_scale, rstd).astype(to)
        if own is None:
            return (dx,)
        summed = tuple(axis for axis in range(x.ndim) if axis not in own)
        return dx, *(each.sum(axis=summed, keepdims=True) for each in (dy * xhat, dy))
