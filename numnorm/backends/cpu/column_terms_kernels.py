"""What the loops over elements need to know of each channel, from its statistics.

All that can be done once for a channel is done here, in float64: an element is then left with a
subtraction and one or two multiplications. A channel whose statistics leave the range of the
working type is worked on times a power of two, its scale, which is 1 for nearly every channel.

The terms are the rows of a table, a column a channel. The kernels return whether any scale is
not 1.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.backends.cpu.jit import Twins, inlined, stand_alone, twins
from numnorm.backends.cpu.optional import element
from numnorm.backends.cpu.storage import Storage


def _exponent(value: float) -> int:
    """Return that of a number in [0.5, 1) times a power of two; 0 for 0, infinity and NaN."""
    if not 0.0 < abs(value) < np.inf:
        return 0
    return math.frexp(value)[1]


_exponent_of = inlined(_exponent)


@functools.cache
def _make_range(storage: Storage) -> Callable[..., Any]:
    """Return a compiled ``powers(mean, rstd, gamma)`` of two, for a channel.

    The first is that of x, the second brings gamma times what is left of rstd into range.
    """
    most = storage.largest_exponent
    usual, widest = most // 4, most - 20
    small, large = 2.0**-usual, 2.0**usual

    @inlined
    def powers(mean, rstd, gamma):
        # Most channels are over here, before anything is looked at bit by bit.
        if small < rstd < large and small < abs(gamma) < large:
            return 1.0, 1.0
        of_rstd = _exponent_of(rstd)
        of_x = 0
        if abs(of_rstd) > usual:
            # Only a constant channel has a mean so large beside its deviation.
            of_x = min(max(of_rstd, -most), most, most - _exponent_of(mean))
        of_product = of_rstd - of_x + _exponent_of(gamma)
        of_weight = of_product - min(max(of_product, -widest), widest)
        return math.ldexp(1.0, of_x), math.ldexp(1.0, of_weight)

    return powers


@functools.cache
def _make_product(storage: Storage) -> Callable[..., Any]:
    """Return a compiled product of two powers of two, kept inside the working type."""
    largest = 2.0**storage.largest_exponent

    @inlined
    def product(power, other):
        return min(max(power * other, 1.0 / largest), largest)

    return product


def make_output_terms(storage: Storage) -> Twins:
    """Return a kernel for the terms of `channel_output`.

    It takes ``mean, rstd, gamma, beta, terms``, whose rows become scale, high, factor and offset.
    """
    real, powers, product = storage.working, _make_range(storage), _make_product(storage)

    def kernel(mean, rstd, gamma, beta, terms, first, last):
        stand_alone()
        scale, high, factor, offset = terms[0], terms[1], terms[2], terms[3]
        scaled = 0
        for c in range(first, last):
            weight = np.float64(element(gamma, c, 1.0))
            bias = np.float64(element(beta, c, 0.0))
            of_x, of_weight = powers(mean[c], rstd[c], weight)
            power = product(of_x, of_weight)
            centre, multiplier = mean[c] * power, rstd[c] / power * weight
            scale[c] = power
            high[c] = real(centre)
            factor[c] = multiplier
            lost = (centre - np.float64(high[c])) * multiplier
            # Without it where gamma or the mean is infinite: elements are infinite there, or NaN.
            offset[c] = bias - lost if abs(lost) < np.inf else bias
            scaled += 1 if power != 1.0 else 0
        return scaled > 0

    return twins(f"column_terms.output.{storage.name}", kernel)


def make_centre_terms(storage: Storage) -> Twins:
    """Return a kernel that splits each channel's mean and scale.

    It takes ``mean, rstd, terms``, the first of whose rows become scale, high, rstd and low: the
    mean of ``x * scale`` is ``high + low``, and that rstd is of ``x * scale`` too.
    """
    real, powers = storage.working, _make_range(storage)

    def kernel(mean, rstd, terms, first, last):
        stand_alone()
        scale, high, reciprocal, low = terms[0], terms[1], terms[2], terms[3]
        scaled = 0
        for c in range(first, last):
            power, _ = powers(mean[c], rstd[c], 1.0)
            centre = mean[c] * power
            scale[c] = power
            high[c] = real(centre)
            reciprocal[c] = rstd[c] / power
            low[c] = centre - np.float64(high[c])
            scaled += 1 if power != 1.0 else 0
        return scaled > 0

    return twins(f"column_terms.centre.{storage.name}", kernel)


def make_gradient_terms(storage: Storage) -> Twins:
    """Return a kernel for the terms of `channel_gradient`.

    It takes ``gamma``, the sums over each channel of ``dy * (x * scale - high) * rstd`` and of
    dy, the share of each statistic, which is 1 over the number of values or 0 where it is
    detached, and then ``gradients``, whose rows become dgamma and dbeta, and ``terms``, of whose
    rows `make_centre_terms` has made the first four. The others become factor, slope, offset, and
    what dx is to be multiplied by.
    """
    powers, product = _make_range(storage), _make_product(storage)

    def kernel(gamma, sums, sums_dy, mean_share, scale_share, gradients, terms, first, last):
        stand_alone()
        scale, high, reciprocal, low = terms[0], terms[1], terms[2], terms[3]
        factor, slope, offset, back = terms[4], terms[5], terms[6], terms[7]
        scaled = 0
        for c in range(first, last):
            weight, rstd = np.float64(element(gamma, c, 1.0)), np.float64(reciprocal[c])
            _, of_weight = powers(np.float64(high[c]), rstd, weight)
            lost = np.float64(low[c]) * rstd
            slope_sum = sums[c] - lost * sums_dy[c]
            gradients[0, c], gradients[1, c] = slope_sum, sums_dy[c]
            weight = weight / of_weight
            # A detached statistic passes nothing on, a NaN neither.
            through_mean = sums_dy[c] * mean_share * weight if mean_share > 0.0 else 0.0
            through_scale = slope_sum * scale_share * weight if scale_share > 0.0 else 0.0
            factor[c] = rstd * weight
            slope[c] = rstd * through_scale
            offset[c] = rstd * (through_mean - lost * through_scale)
            power = product(np.float64(scale[c]), of_weight)
            back[c] = power
            scaled += 1 if power != 1.0 else 0
        return scaled > 0

    return twins(f"column_terms.gradient.{storage.name}", kernel)
