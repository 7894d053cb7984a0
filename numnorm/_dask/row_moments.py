"""The moments of rows that lie in several blocks, with missing values, weights and labels."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

import numnorm
from numnorm._dask.blocks import each_object, in_order
from numnorm._dask.keywords import BlockKeywords, Counted, Keywords
from numnorm._dask.row_axes import Rows

PLAIN = Keywords({}, BlockKeywords())

# The exponent of the weights of a row that has none.
_NO_WEIGHT = -2000


class Total(NamedTuple):
    """The moments of rows, with as many axes as x.

    Attributes
    ----------
    moments : Moments
        Their weights are multiplied by ``2 ** -exponent``.
    exponent : int or array of int
    """

    moments: numnorm.Moments
    exponent: Any = 0


def merged_moments(x: Any, rows: Rows, keywords: Keywords = PLAIN) -> Any:
    """Return a lazy array of the `Total` of whole rows, one object for each block of rows."""
    arrays = keywords.arrays.values()
    objects = each_object(_moments, x, *arrays, rows=rows, in_block=keywords.in_block)
    return in_order(objects, divided_axes(x, rows), _merged)


def divided_axes(x: Any, rows: Rows) -> tuple[int, ...]:
    """Return the axes along which rows lie in several blocks."""
    return tuple(axis for axis in rows.axes if x.numblocks[axis] > 1)


def scaled_weights(counted: Counted, rows: Rows, in_block: BlockKeywords) -> tuple[Any, Any]:
    """Return weights whose largest one in each row is near 1, and their exponents.

    So their products with squares are in range. A power of two changes no digit.
    """
    weights = counted.weights
    if weights is None or not in_block.scaled:
        return weights, 0
    largest = rows.largest(weights, counted.codes)
    exponent = np.where(largest > 0.0, np.frexp(largest)[1], _NO_WEIGHT)
    return rescaled(weights, rows.spread(exponent, counted.codes)), exponent


def rescaled(weights: Any, exponent: Any) -> Any:
    """Return weights times ``2 ** -exponent``."""
    with np.errstate(all="ignore"):
        return np.ldexp(weights, -exponent)


def _moments(x: Any, *arrays: Any, rows: Rows, in_block: BlockKeywords) -> Total:
    """Return the moments of the parts of rows in a block."""
    counted = in_block.of_block(x, arrays)
    weights, exponent = scaled_weights(counted, rows, in_block)
    keywords = {"where": counted.keep, "weights": weights}
    given = {name: array for name, array in keywords.items() if array is not None}
    if counted.codes is not None:
        return Total(_of_labels(counted.x, counted.codes, rows, given), exponent)
    given = {name: rows.as_matrix(array) for name, array in given.items()}
    moments = numnorm.batch_moments(rows.as_matrix(counted.x), channel_axis=0, **given)
    shape = rows.per_row(x.shape)
    count = moments.count.reshape(shape) if given else moments.count
    return Total(numnorm.Moments(count, *(field.reshape(shape) for field in moments[1:])), exponent)


def _of_labels(x: Any, codes: Any, rows: Rows, given: dict[str, Any]) -> numnorm.Moments:
    """Return the moments of each label, of no elements if a label is not in the block."""
    present, moments = numnorm.batch_moments(x, channel_axis=rows.across, labels=codes, **given)
    fields = []
    for field in moments:
        whole = np.zeros((rows.labels, *field.shape[1:]))
        whole[present] = field
        fields.append(rows.with_axes_of(whole, x.ndim))
    return numnorm.Moments(*fields)


def _merged(parts: list[Total]) -> Total:
    exponents = [part.exponent for part in parts]
    each = [part.moments for part in parts]
    if all(isinstance(exponent, int) for exponent in exponents):
        return Total(functools.reduce(numnorm.Moments.merge, each))
    top = functools.reduce(np.maximum, exponents)
    scaled = (
        moments._replace(
            count=rescaled(moments.count, top - exponent), m2=rescaled(moments.m2, top - exponent)
        )
        for moments, exponent in zip(each, exponents, strict=True)
    )
    return Total(functools.reduce(numnorm.Moments.merge, scaled), top)


def divisor_of(count: Any, ddof: int, exponent: Any) -> Any:
    """Return what squares are divided by.

    With a count for each row it is NaN where the count is not above ddof.
    """
    with np.errstate(all="ignore"):
        divisor = count - np.ldexp(float(ddof), -exponent)
    return np.where(divisor > 0.0, divisor, np.nan) if np.ndim(count) else divisor
