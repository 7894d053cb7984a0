"""The scalar formulas that every norm shares, written once for every backend.

Plain functions of numbers: a backend compiles them with its own compiler. They hold no Python
literals of a fixed width, so that float32 arithmetic stays float32 when they are compiled.
"""

import math


def centre(x, high, low):
    """Return ``x - mean`` for a mean that is split into ``high + low``.

    The order of the two subtractions is what makes the result exact at any offset: ``x - high``
    is exact where x is near the mean, and `low` is what rounding the mean to `high` lost.
    It must never be compiled with reassociation.
    """
    return (x - high) - low


def inverse_deviation(variance, eps, eps_on_deviation):
    """Return ``1 / (sqrt(variance + eps) + eps_on_deviation)``, and 0 where that divides by 0.

    The 0 is a convention: a constant row with no epsilon is normalized to 0 instead of NaN.
    """
    deviation = math.sqrt(variance + eps) + eps_on_deviation
    if deviation == 0.0:
        return 0.0
    return 1.0 / deviation


def deviation_flow(rstd, eps_on_deviation):
    """Return d(1/rstd)/d(standard deviation's root form), the factor of the scale's gradient.

    With q = 1/rstd = s + eps_on_deviation, the gradient through the scale carries q/s; it is 1
    when the epsilon is inside the root. A row with s = 0 passes no gradient to its scale.
    """
    remaining = 1.0 - eps_on_deviation * rstd
    if remaining <= 0.0:
        return 0.0
    return 1.0 / remaining


def input_gradient(g, xhat, mean_g, mean_g_xhat, rstd):
    """Return dL/dx of a centred and scaled element.

    ``rstd * (g - mean(g) - xhat * mean(g * xhat))`` with g = dL/dxhat; a detached statistic
    has its mean set to 0 (Ioffe and Szegedy 2015; Ba, Kiros and Hinton 2016).
    """
    return rstd * (g - mean_g - xhat * mean_g_xhat)


def merge_moments(count, mean, m2, other_count, other_mean, other_m2):
    """Return (mean, m2) of two groups of values together (Chan, Golub and LeVeque 1979)."""
    total = count + other_count
    delta = other_mean - mean
    weight = other_count / total
    merged_mean = mean + delta * weight
    merged_m2 = m2 + other_m2 + delta * delta * (count * weight)
    return merged_mean, merged_m2
