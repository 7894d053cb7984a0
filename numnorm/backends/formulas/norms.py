"""The scalar formulas that every norm shares, written once for every backend.

Plain functions of numbers: a backend compiles them with its own compiler. Those that are applied
to every element hold no literals, so that float32 arithmetic stays float32 when it is compiled;
those of a row's statistics are compiled for float64.
"""

import math
from typing import Any


def centre(x: Any, mean_hi: Any, mean_lo: Any) -> Any:
    """Return ``x - mean`` for a mean that is split into ``mean_hi + mean_lo``.

    The order of the two subtractions is what makes the result exact at any offset: ``x - mean_hi``
    is exact where x is near the mean, and `mean_lo` is what rounding the mean to `mean_hi` lost.
    It must never be compiled with reassociation.
    """
    return (x - mean_hi) - mean_lo


def normalized(x: Any, scale: Any, mean_hi: Any, mean_lo: Any, rstd: Any, multiply_add: Any) -> Any:
    """Return ``(x * scale - mean) * rstd`` for a mean that is split into ``mean_hi + mean_lo``.

    `mean_lo` is what rounding the mean to `mean_hi` lost. ``multiply_add(a, b, c)`` rounds
    ``a * b + c`` once: the deviation from `mean_hi` is exact where x is near the mean. The product
    of `mean_lo` and rstd is one number of a row: this takes one rounding and one instruction less
    than to subtract `mean_lo` first.
    """
    deviation = multiply_add(x, scale, -mean_hi)
    return multiply_add(deviation, rstd, -(mean_lo * rstd))


def squared_deviations(second: Any, first: Any, mean_lo: Any) -> Any:
    """Return the squared deviations from the mean, from sums around a pivot near it.

    `first` and `second` are the sums of the deviations from the pivot and of their squares, and
    `mean_lo` is the mean of the deviations (Chan, Golub and LeVeque 1983).
    """
    return second - first * mean_lo


def inverse_deviation(variance: Any, eps: Any, eps_on_deviation: Any) -> Any:
    """Return ``1 / (sqrt(variance + eps) + eps_on_deviation)``, and 0 where that divides by 0.

    The 0 is a convention: a constant row with no epsilon is normalized to 0 instead of NaN.
    """
    deviation = math.sqrt(variance + eps) + eps_on_deviation
    if deviation == 0.0:
        return 0.0
    return 1.0 / deviation


def deviation_flow(rstd: Any, eps_on_deviation: Any) -> Any:
    """Return q / s, which the gradient through the scale carries.

    q = 1/rstd = s + eps_on_deviation is what the row was divided by; with the epsilon inside the
    root, q is s. A row with s = 0 passes no gradient through its scale.
    """
    remaining = 1.0 - eps_on_deviation * rstd
    if remaining <= 0.0:
        return 0.0
    return 1.0 / remaining


def input_gradient(g: Any, xhat: Any, mean_g: Any, mean_g_xhat: Any, rstd: Any) -> Any:
    """Return dL/dx of a centred and scaled element.

    ``rstd * (g - mean(g) - xhat * mean(g * xhat))`` with g = dL/dxhat; a detached statistic
    has its mean set to 0 (Ioffe and Szegedy 2015; Ba, Kiros and Hinton 2016).
    """
    return rstd * (g - mean_g - xhat * mean_g_xhat)


def channel_output(x: Any, mean_hi: Any, factor: Any, offset: Any) -> Any:
    """Return ``gamma * xhat + beta`` of an element from the terms of its channel.

    The factor is gamma * rstd, and the offset is beta less what rounding the mean to `mean_hi` lost,
    times the factor.
    """
    return (x - mean_hi) * factor + offset


def channel_gradient(
    dy: Any, x: Any, mean_hi: Any, rstd: Any, factor: Any, xhat_factor: Any, offset: Any
) -> Any:
    """Return `input_gradient` of an element, with ``g = gamma * dy``, from its channel's terms.

    The factor is gamma * rstd, the slope rstd * mean(g * xhat), and the offset is rstd * mean(g)
    less what rounding the mean to `mean_hi` lost, times rstd and the slope.
    """
    return dy * factor - (x - mean_hi) * rstd * xhat_factor - offset


def merge_moments(
    count: Any, mean: Any, m2: Any, other_count: Any, other_mean: Any, other_m2: Any
) -> Any:
    """Return (mean, m2) of two groups of values together (Chan, Golub and LeVeque 1979)."""
    total = count + other_count
    delta = other_mean - mean
    weight = other_count / total
    merged_mean = mean + delta * weight
    merged_m2 = m2 + other_m2 + delta * delta * (count * weight)
    return merged_mean, merged_m2
