"""Norms by order statistics: the words by which they scale, and what a quantile is.

A median is the quantile 0.5, by the same method as all quantiles of a call. Where a quantile lies
among ordered elements is `place_of`, for compiled code `formulas.order.quantile_place`.
"""

from __future__ import annotations

import operator
from statistics import NormalDist
from typing import Any, Literal

import numpy as np

from numnorm.arguments import brief, check_choice, check_number
from numnorm.array_types import Number
from numnorm.backends.contract.order import QuantileRule, Spread
from numnorm.backends.formulas import order

METHODS = {
    "linear": QuantileRule(1.0, 1.0, order.INTERPOLATED),
    "inverted_cdf": QuantileRule(0.0, 1.0, order.UPPER),
    "averaged_inverted_cdf": QuantileRule(0.0, 1.0, order.UPPER_OR_MIDDLE),
    "closest_observation": QuantileRule(-0.5, 1.5, order.NEAREST_ODD),
    "interpolated_inverted_cdf": QuantileRule(0.0, 1.0, order.INTERPOLATED),
    "hazen": QuantileRule(0.5, 0.5, order.INTERPOLATED),
    "weibull": QuantileRule(0.0, 0.0, order.INTERPOLATED),
    "median_unbiased": QuantileRule(1 / 3.0, 1 / 3.0, order.INTERPOLATED),
    "normal_unbiased": QuantileRule(3 / 8.0, 3 / 8.0, order.INTERPOLATED),
    "lower": QuantileRule(1.0, 1.0, order.LOWER),
    "higher": QuantileRule(1.0, 1.0, order.UPPER),
    "midpoint": QuantileRule(1.0, 1.0, order.MIDDLE),
    "nearest": QuantileRule(1.0, 1.0, order.NEAREST),
}

Method = Literal[
    "linear",
    "inverted_cdf",
    "averaged_inverted_cdf",
    "closest_observation",
    "interpolated_inverted_cdf",
    "hazen",
    "weibull",
    "median_unbiased",
    "normal_unbiased",
    "lower",
    "higher",
    "midpoint",
    "nearest",
]

Center = Literal["median", "mean"] | Number
Scale = Literal["mad", "iqr", "range"] | tuple[Number, Number] | list[float] | None
Factor = Number | Literal["normal"]


def check_method(method: Any, weighted: bool) -> str:
    """Return the name of a method; None is the usual one."""
    usual = "inverted_cdf" if weighted else "linear"
    if method is None:
        return usual
    name: str = check_choice("method", method, tuple(METHODS))
    if weighted and name != usual:
        raise ValueError(f"method must be {usual!r} with weights, as in NumPy, got {name!r}")
    return name


def place_of(count: int, q: float, method: str) -> tuple[int, float]:
    """Return the number of the element at or below a quantile, and the share of the next one."""
    place: tuple[int, float] = order.quantile_place(float(count), q, *METHODS[method], operator.mul)
    return place


def places(q: Any, counts: Any, method: str) -> tuple[Any, Any]:
    """Return `place_of` for each probability and each count, arrays ``(q, counts)``."""
    if counts.size and (counts == counts[0]).all():  # the commonest, and np.unique is slow
        kinds, inverse = counts[:1], np.zeros(len(counts), np.intp)
    else:
        kinds, inverse = np.unique(counts, return_inverse=True)
    found = [[place_of(count, each, method) for count in kinds.tolist()] for each in q.tolist()]
    table = np.array(found, np.float64).reshape(len(q), len(kinds), 2)  # counts below 2**53
    return table[:, inverse, 0].astype(np.int64), table[:, inverse, 1]


def between(lower: Any, upper: Any, share: Any) -> Any:
    """Return what `formulas.order.between` does, of arrays of float64."""
    with np.errstate(all="ignore"):
        gap = upper - lower
        of_gap = np.where(share < 0.5, lower + gap * share, upper - gap * (1.0 - share))
        of_both = lower * (1.0 - share) + upper * share  # the gap may overflow
    result = np.where(gap < np.inf, of_gap, of_both)
    result = np.where(share == 1.0, upper, result)
    return np.where((share == 0.0) | (lower == upper), lower, result)


def near(lower: Any, upper: Any, share: Any) -> tuple[Any, Any]:
    """Return what `between` does, with all digits: a number near it, and what is left."""
    with np.errstate(all="ignore"):
        gap = upper - lower
        above = share >= 0.5
        left = np.where(above, -gap * (1.0 - share), gap * share)
    is_between = (share > 0.0) & (gap > 0.0) & (gap < np.inf)
    number = np.where(is_between, np.where(above, upper, lower), between(lower, upper, share))
    return number, np.where(is_between, left, 0.0)


def distance(lower: Any, upper: Any, share: Any) -> Any:
    """Return the distance of two quantiles, along the first axis, at any offset."""
    (low, high), (left_of_low, left_of_high) = near(lower, upper, share)
    with np.errstate(all="ignore"):
        return (high - low) + (left_of_high - left_of_low)


def spread_by(scale: Any, factor: Any) -> Spread:
    """Return the scale that a caller names, with its factor."""
    pair = _pair_of(scale)
    if pair is not None:
        return Spread("quantiles", *pair, _factor_of(factor, scale, *pair))
    if not (scale is None or (isinstance(scale, str) and scale in ("mad", "iqr", "range"))):
        wanted = "'mad', 'iqr', 'range', a pair of quantiles or None"
        raise ValueError(f"scale must be {wanted}, got {brief(scale)}")
    if scale == "iqr":
        return Spread("quantiles", 0.25, 0.75, _factor_of(factor, scale, 0.25, 0.75))
    if scale == "mad":
        # Half of a normal distribution lies within this many standard deviations.
        return Spread("mad", 0.0, 1.0, _factor_of(factor, scale, 0.5, 0.75))
    number = _factor_of(factor, scale, 0.0, 1.0)
    if scale is None and number != 1.0:
        raise ValueError(f"factor must be 1 where scale is None, got {number:g}")
    kind: Any = scale
    return Spread(kind, 0.0, 1.0, number)


def _pair_of(scale: Any) -> tuple[float, float] | None:
    """Return the two quantiles of a pair; None if it is no pair."""
    if not isinstance(scale, tuple | list):
        return None
    if len(scale) != 2:
        raise ValueError(f"scale must have 2 quantiles, got {len(scale)}")
    low, high = (check_number("scale", q, least=0.0, most=1.0) for q in scale)
    if low >= high:
        raise ValueError(f"scale must be a lower and a higher quantile, got {brief(tuple(scale))}")
    return low, high


def _factor_of(factor: Any, scale: Any, low: float, high: float) -> float:
    """Return the factor as a number; for "normal" that of these quantiles."""
    if not isinstance(factor, str):
        number = check_number("factor", factor)
        if number <= 0.0:
            raise ValueError(f"factor must be above 0, got {number:g}")
        return number
    if factor != "normal":
        raise ValueError(f"factor must be a number or 'normal', got {brief(factor)}")
    if low <= 0.0 or high >= 1.0:
        raise ValueError(f"factor must be a number where scale is {brief(scale)}, got 'normal'")
    normal = NormalDist()
    return 1.0 / (normal.inv_cdf(high) - normal.inv_cdf(low))
