"""The scalar formulas of norms.

Each backend compiles them with its own compiler. Formulas of elements contain no literals, so that
float32 arithmetic stays float32. Formulas of statistics are compiled for float64.
"""

import math
from typing import Any


def centre(x: Any, mean_hi: Any, mean_lo: Any) -> Any:
    """Return ``x - mean`` for ``mean = mean_hi + mean_lo``.

    ``x - mean_hi`` is exact where x is near the mean, and `mean_lo` is the rounding error of
    `mean_hi`. The compiler must not reassociate the two subtractions.
    """
    return (x - mean_hi) - mean_lo


def normalized(x: Any, scale: Any, mean_hi: Any, mean_lo: Any, rstd: Any, multiply_add: Any) -> Any:
    """Return ``(x * scale - mean) * rstd`` for ``mean = mean_hi + mean_lo``.

    `mean_lo` is the rounding error of `mean_hi`. ``multiply_add(a, b, c)`` rounds ``a * b + c``
    once, so the deviation from `mean_hi` is exact where x is near the mean. ``mean_lo * rstd`` is
    constant in a row, which saves a rounding and an instruction per element.
    """
    deviation = multiply_add(x, scale, -mean_hi)
    return multiply_add(deviation, rstd, -(mean_lo * rstd))


def squared_deviations(second: Any, first: Any, mean_lo: Any) -> Any:
    """Return the sum of squared deviations from the mean, given sums around a pivot.

    `first` and `second` are the sums of the deviations from the pivot and of their squares, and
    `mean_lo` is the mean of these deviations (Chan, Golub and LeVeque 1983).
    """
    return second - first * mean_lo


def inverse_deviation(variance: Any, eps: Any, eps_on_deviation: Any) -> Any:
    """Return ``1 / (sqrt(variance + eps) + eps_on_deviation)``, with 1 / 0 = 0 and 1 / inf = NaN.

    So a constant row without epsilon is normalized to 0 instead of NaN, and a row that is divided
    by the root of an infinite square is NaN instead of 0.
    """
    deviation = math.sqrt(variance + eps) + eps_on_deviation
    if deviation == 0.0:
        return 0.0
    return 1.0 / deviation if deviation < math.inf else math.nan


def scale_gradient_factor(rstd: Any, eps_on_deviation: Any) -> Any:
    """Return q / s, a factor of the gradient through the scale.

    s is ``sqrt(variance + eps)`` and q = 1 / rstd = s + eps_on_deviation is the divisor of the row.
    A row with s = 0 passes no gradient through its scale.
    """
    remaining = 1.0 - eps_on_deviation * rstd
    if remaining <= 0.0:
        return 0.0
    return 1.0 / remaining


def input_gradient(g: Any, xhat: Any, mean_g: Any, mean_g_xhat: Any, rstd: Any) -> Any:
    """Return dL/dx of a centred and scaled element.

    It is ``rstd * (g - mean(g) - xhat * mean(g * xhat))`` with g = dL/dxhat. For a detached
    statistic the caller passes 0 as its mean (Ioffe and Szegedy 2015; Ba, Kiros and Hinton 2016).
    """
    return rstd * (g - mean_g - xhat * mean_g_xhat)


def channel_output(x: Any, mean_hi: Any, factor: Any, offset: Any) -> Any:
    """Return ``gamma * xhat + beta`` of an element from the coefficients of its channel.

    They are ``factor = gamma * rstd`` and ``offset = beta - mean_lo * factor``.
    """
    return (x - mean_hi) * factor + offset


def channel_gradient(
    dy: Any, x: Any, mean_hi: Any, rstd: Any, factor: Any, xhat_factor: Any, offset: Any
) -> Any:
    """Return `input_gradient` with ``g = gamma * dy`` from the coefficients of a channel.

    They are ``factor = gamma * rstd``, ``xhat_factor = rstd * mean(g * xhat)`` and
    ``offset = rstd * mean(g) - mean_lo * rstd * xhat_factor``.
    """
    return dy * factor - (x - mean_hi) * rstd * xhat_factor - offset


def split_sum(large: Any, small: Any) -> Any:
    """Return a sum as two numbers: rounded, and what the rounding lost (Dekker 1971).

    The second number is exact if the first argument has the larger absolute value.
    """
    rounded = large + small
    return rounded, small - (rounded - large)


def moved(old: Any, new: Any, weight: Any) -> Any:
    """Return ``old * (1 - weight) + new * weight``.

    A number without weight is left out, even if it is NaN or infinite.
    """
    kept = old * (1.0 - weight) if weight < 1.0 else 0.0
    return kept + (new * weight if weight > 0.0 else 0.0)


def merge_centred_moments(
    count: Any, mean: Any, m2: Any, other_count: Any, other_mean: Any, other_m2: Any
) -> Any:
    """Return (mean, m2) of two groups of values together (Chan, Golub and LeVeque 1979).

    Both means are distances from a point near them, so that no digit of their difference is lost.
    """
    weight = other_count / (count + other_count)
    delta = other_mean - mean
    return mean + delta * weight, m2 + other_m2 + delta * delta * (count * weight)


def merge_moments(count: Any, moments: Any, other_count: Any, other: Any, unit: Any) -> Any:
    """Return (mean, mean_lo, m2) of two groups of values together, at any offset.

    The formula is that of `merge_centred_moments`. A mean is ``mean + mean_lo``: the mean of a
    group, rounded, would lose digits of the distance between two groups, and so of m2. Each m2 is
    multiplied by `unit`, which keeps it in range where the variance is.
    """
    mean, mean_lo, m2 = moments
    other_mean, other_lo, other_m2 = other
    weight = other_count / (count + other_count)
    # Half of the distance does not overflow.
    half = (other_mean * 0.5 - mean * 0.5) + (other_lo * 0.5 - mean_lo * 0.5)
    # A step from the group with more values goes at most half of the way.
    ahead = weight > 0.5
    start, start_lo = (other_mean, other_lo) if ahead else (mean, mean_lo)
    step = half * (2.0 * (weight - 1.0) if ahead else 2.0 * weight)
    rounded = start + step
    taken = rounded - start
    lost = (start - (rounded - taken)) + (step - taken)
    low = lost + start_lo
    merged_mean = rounded + low
    merged_lo = low - (merged_mean - rounded)
    between = half * (4.0 * (count * weight) * unit) * half
    return merged_mean, merged_lo, m2 + other_m2 + between
