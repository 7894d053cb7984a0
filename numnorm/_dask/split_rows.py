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
from numnorm._dask.blocks import each_block, each_object, in_order, only, read_again, take
from numnorm._dask.keywords import BlockKeywords, Counted, Keywords
from numnorm._dask.parameters import Parameter, as_divided, lost_of
from numnorm._dask.row_axes import Rows
from numnorm._dask.row_moments import (
    Total,
    divided_axes,
    divisor_of,
    merged_moments,
    rescaled,
    scaled_weights,
)
from numnorm._dask.whole_rows import aligned_statistic, parameter_gradient
from numnorm.arguments import result_dtype
from numnorm.backends.contract.norms import Detached
from numnorm.backends.formulas.norms import input_gradient
from numnorm.norms.ada import adaptive, adaptive_gradient
from numnorm.norms.moments import deviations, reciprocals

# float32 takes no larger factor.
_LARGEST_FACTOR = 1e37


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
    norm: RowNorm,
    x: Any,
    parameters: Sequence[Parameter],
    rows: Rows,
    dtypes: Sequence[Any],
    keywords: Keywords,
) -> list[Any]:
    """Return y and, if there are more dtypes than one, the saved statistics of the rows."""
    total = merged_moments(x, rows, keywords)
    names = tuple(parameter.name for parameter in parameters)
    arrays = [*(parameter.array for parameter in parameters), *keywords.arrays.values()]
    y = each_block(
        _normalized, x, total, *arrays,
        dtype=dtypes[0], chunks=x.chunks,
        norm=norm, rows=rows, names=names, in_block=keywords.in_block,
    )  # fmt: skip
    chunks = rows.per_row(x.chunks)
    statistics = [
        each_block(_statistic, total, dtype=dtype, chunks=chunks, norm=norm, member=m, to=dtype)
        for m, dtype in enumerate(dtypes[1:])
    ]
    return [y, *(rows.public(statistic) for statistic in statistics)]


def backward(
    norm: RowNorm,
    arrays: Mapping[str, Any],
    parameter: Parameter | None,
    rows: Rows,
    dtypes: Sequence[Any],
    keywords: Keywords,
    *,
    stored: bool = False,
) -> list[Any]:
    """Return dx and, if there are more dtypes than one, the gradients of the parameters.

    Parameters
    ----------
    norm : RowNorm
    arrays : mapping
        By keyword: the gradient of the result, x, and the statistics of the rows.
    parameter : Parameter or None
    rows, dtypes, keywords
    stored : bool
        Whether arrays that come straight from storage are read again for the second pass.
    """
    (_, dy), (_, x), *statistics = arrays.items()
    saved = [aligned_statistic(statistic, x, rows) for _, statistic in statistics]
    gain = () if parameter is None else (parameter.array,)
    blocks = as_divided(dy, x.chunks), x, *saved, *gain, *keywords.arrays.values()
    count = len(blocks) - len(keywords.arrays)
    options = {"norm": norm, "rows": rows, "count": count, "in_block": keywords.in_block}
    first = [read_again(blocks[0]), read_again(x), *blocks[2:]] if stored else blocks
    totals: list[Any] = []
    # AdaNorm's g depends on xhat, so that its sums are taken again with the mean restored.
    for _ in range(2 if norm.factors is not None else 1):
        objects = each_object(_sums, *first, *totals, **options)
        totals.append(in_order(objects, divided_axes(x, rows), _added))
    own = None if len(dtypes) == 1 else rows.own
    if parameter is not None and not parameter.usual:
        own = parameter.axes
    objects = each_object(_gradients, *blocks, *totals, own=own, to=dtypes[0], **options)
    dx = take(objects, 0, dtype=dtypes[0], chunks=x.chunks)
    sums = [
        parameter_gradient(objects, member, x.chunks, parameter, rows, dtype)
        for member, dtype in enumerate(dtypes[1:], 1)
    ]
    return [dx, *sums]


# Forward, for a block


def _scales(total: Total, norm: RowNorm) -> tuple[Any, Any]:
    """Return the deviation of rows, with epsilon, and its reciprocal or 0."""
    eps, eps_on_deviation, ddof = norm.scaling
    moments = total.moments
    with np.errstate(all="ignore"):
        squares = moments.m2
        if not norm.centred:
            squares = squares + moments.count * moments.mean * moments.mean
        divisor = 1.0 if norm.length else divisor_of(moments.count, ddof, total.exponent)
    deviation = deviations(squares, divisor, eps, eps_on_deviation)
    return deviation, reciprocals(deviation)


def _normalized(
    x: Any,
    total: Any,
    *others: Any,
    norm: RowNorm,
    rows: Rows,
    names: tuple[str, ...],
    in_block: BlockKeywords,
) -> Any:
    of_rows: Total = only(total)
    moments, arrays = of_rows.moments, others[len(names) :]
    dtype = result_dtype("x", x.dtype)
    wide = x.astype(np.float32 if dtype.itemsize == 2 else dtype, copy=False)
    _, rstd = _scales(of_rows, norm)
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
            y = adaptive(y, *map(y.dtype.type, norm.factors))
        for name, array in zip(names, others, strict=False):
            array = array.astype(y.dtype, copy=False)
            y = y + array if name == "beta" else y * array
        return in_block.filled(y.astype(dtype, copy=False), x, arrays)


def _statistic(total: Any, norm: RowNorm, member: int, to: Any) -> Any:
    of_rows: Total = only(total)
    deviation, rstd = _scales(of_rows, norm)
    count, mean = of_rows.moments[:2]
    if np.ndim(count):  # the mean is NaN where the scale is
        seen = np.where(count > 0.0, mean, np.nan)
        mean = np.where(
            np.isnan(divisor_of(count, norm.scaling[2], of_rows.exponent)), np.nan, seen
        )
    saved = [mean] * norm.centred + [deviation if norm.length else rstd]
    with np.errstate(all="ignore"):
        return saved[member].astype(to)


# Backward, for a block


class _Sums(NamedTuple):
    """Sums over the part of a row, each with as many axes as x.

    Those of weights, `elements` and `deviation`, are multiplied by ``2 ** -exponent``.
    """

    elements: Any
    deviation: Any
    g: Any
    g_xhat: Any
    exponent: Any = 0


def _sums(*blocks: Any, norm: RowNorm, rows: Rows, count: int, in_block: BlockKeywords) -> _Sums:
    (dy, x, *others), counted, totals = _parts(blocks, count, in_block)
    weights, exponent = scaled_weights(counted, rows, in_block)
    counted = counted._replace(weights=weights)
    codes, share = counted.codes, counted.share
    with np.errstate(all="ignore"):
        lost = _lost(totals[0], others[0], rows, codes) if totals else 0.0
        deviation, _, g, _, xhat = _elements(dy, counted, others, norm, rows, lost)
        elements = rows.width(x.shape) if share is None else rows.summed(share, codes)
        terms = _times(share, deviation), g, g * xhat
        return _Sums._make((elements, *(rows.summed(each, codes) for each in terms), exponent))


def _parts(blocks: Sequence[Any], count: int, in_block: BlockKeywords) -> tuple[Any, Counted, Any]:
    """Return the blocks of the arrays, what counts in that of x, and the blocks of totals."""
    end = count + len(in_block.names)
    return blocks[:count], in_block.of_block(blocks[1], blocks[count:end]), blocks[end:]


def _times(share: Any, term: Any) -> Any:
    """Return what elements add to a sum: nothing where they do not count."""
    return term if share is None else np.where(share > 0.0, share * term, 0.0)


def _lost(total: Any, mean: Any, rows: Rows, codes: Any) -> Any:
    """Return what rounding the saved mean of each element's row lost."""
    sums: _Sums = only(total)
    return rows.spread(lost_of(sums.deviation, sums.elements, mean), codes)


def _added(parts: list[_Sums]) -> _Sums:
    exponents = [part.exponent for part in parts]
    top: Any = 0
    if not all(isinstance(exponent, int) for exponent in exponents):
        top = functools.reduce(np.maximum, exponents)
        parts = [
            part._replace(
                elements=rescaled(part.elements, top - part.exponent),
                deviation=rescaled(part.deviation, top - part.exponent),
            )
            for part in parts
        ]
    *sums, _ = (functools.reduce(operator.add, each) for each in zip(*parts, strict=True))
    return _Sums._make((*sums, top))


def _elements(
    dy: Any, counted: Counted, others: Sequence[Any], norm: RowNorm, rows: Rows, lost: Any = 0.0
) -> tuple[Any, ...]:
    """Return x less its mean, rstd, g, dy and the normalized x of a block in float64.

    They are 0 where an element is left out, but rstd.
    """
    keep, codes = counted.keep, counted.codes
    *saved, last = others[: norm.centred + 1]
    gain = others[norm.centred + 1 :]
    rstd = rows.spread(reciprocals(last) if norm.length else last, codes)
    deviation, dy = counted.x.astype(np.float64), dy.astype(np.float64)
    for mean in saved:
        deviation = deviation - rows.spread(mean, codes) - lost
    xhat = deviation * rstd
    if keep is not None:
        deviation, dy, xhat = (np.where(keep, each, 0.0) for each in (deviation, dy, xhat))
    if norm.factors is not None:
        g = adaptive_gradient(dy, xhat, *norm.factors)
    else:
        g = dy * gain[0] if gain else dy
    return deviation, rstd, g, dy, xhat


def _gradients(
    *blocks: Any, norm: RowNorm, rows: Rows, own: Any, to: Any, count: int, in_block: BlockKeywords
) -> tuple[Any, ...]:
    (dy, x, *others), counted, totals = _parts(blocks, count, in_block)
    sums: _Sums = only(totals[-1])
    codes = counted.codes
    if counted.weights is not None and np.ndim(sums.exponent):
        weights = rescaled(counted.weights, rows.spread(sums.exponent, codes))
        counted = counted._replace(weights=weights)
    with np.errstate(all="ignore"):
        lost = _lost(totals[0], others[0], rows, codes) if norm.centred else 0.0
        _, rstd, g, dy, xhat = _elements(dy, counted, others, norm, rows, lost)
        _, eps_on_deviation, ddof = norm.scaling
        sum_g_xhat = rows.spread(sums.g_xhat, codes)
        if len(totals) == 1:
            sum_g_xhat = sum_g_xhat - lost * rstd * rows.spread(sums.g, codes)
        mean_g: Any = 0.0
        if norm.centred and not norm.detached.mean:
            mean_g = rows.spread(sums.g / sums.elements, codes)
        through_scale: Any = 0.0
        if not norm.detached.scale:
            remaining = 1.0 - eps_on_deviation * rstd
            through_scale = np.where(remaining <= 0.0, 0.0, 1.0 / remaining)
            divisor: Any = 1.0
            if not norm.length:
                divisor = divisor_of(sums.elements, ddof, sums.exponent)
            if np.ndim(divisor):
                divisor = rows.spread(divisor, codes)
            through_scale = sum_g_xhat * through_scale / divisor
        if (share := counted.share) is None:
            dx = input_gradient(g, xhat, mean_g, through_scale, rstd)
        else:
            dx = rstd * (g - _times(share, mean_g + xhat * through_scale))
        if counted.keep is not None:
            dx = np.where(counted.keep, dx, 0.0)
        if own is None:
            return (dx.astype(to),)
        summed = tuple(axis for axis in range(x.ndim) if axis not in own)
        sums_of_block = (each.sum(axis=summed, keepdims=True) for each in (dy * xhat, dy))
        return dx.astype(to), *sums_of_block
