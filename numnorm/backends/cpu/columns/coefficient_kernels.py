"""Kernels that compute the coefficients of each channel from its statistics.

Whatever is the same for all elements of a channel is computed here once, in float64. An element
then takes one subtraction and one or two multiplications. If the statistics of a channel are out
of range of the compute type, its elements are multiplied by a power of two first: its scale, which
is 1 for nearly every channel.

The coefficients are the rows of a table, with one column per channel. The kernels return whether
any channel has a scale that is not 1; that of the output returns 2 if an m2 is negative.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.backends.cpu.compiler.jit import Function, inlined, make_function
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.optional import element, part
from numnorm.backends.cpu.statistics.saved import FAR
from numnorm.backends.cpu.statistics.stored import fill_reciprocal_deviations


def _exponent(value: float) -> int:
    """Return the binary exponent of a number; 0 for 0, infinity and NaN."""
    if not 0.0 < abs(value) < np.inf:
        return 0
    return math.frexp(value)[1]


_exponent_of = inlined(_exponent)


@inlined
def _clamped(value: Any, least: Any, most: Any) -> Any:
    """Return the nearest number from `least` to `most`; Numba's `min` and `max` compile slowly."""
    above = least if value < least else value
    return most if above > most else above


@functools.cache
def _make_powers(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``powers(mean, rstd, gamma)``, which returns two powers of two.

    The first is the factor of x, so rstd is divided by it. The second is the power that
    gamma * rstd is then divided by to stay in range; both are 1 if the exponents of rstd and
    gamma are of usual size.
    """
    most = element_type.largest_exponent
    usual, widest = most // 4, most - 20
    small, large = 2.0**-usual, 2.0**usual

    @inlined
    def powers(mean, rstd, gamma):
        # Nearly every channel returns here, without the search for exponents.
        if small < rstd < large and small < abs(gamma) < large:
            return 1.0, 1.0
        rstd_exponent, x_exponent = _exponent_of(rstd), 0
        if abs(rstd_exponent) > usual:
            # The scaled mean has to stay in range: a limit that only a constant channel reaches.
            exponent = most - _exponent_of(mean)
            x_exponent = _clamped(rstd_exponent, -most, most)
            x_exponent = exponent if exponent < x_exponent else x_exponent
        product = rstd_exponent - x_exponent + _exponent_of(gamma)
        excess = product - _clamped(product, -widest, widest)
        return math.ldexp(1.0, x_exponent), math.ldexp(1.0, excess)

    return powers


@functools.cache
def _make_product(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``product(power, other)`` of powers of two, clamped to a safe range."""
    largest = 2.0**element_type.largest_exponent

    @inlined
    def product(power, other):
        return _clamped(power * other, 1.0 / largest, largest)

    return product


def make_output_coefficients(element_type: ElementType) -> Function:
    """Return a kernel that computes the coefficients of `channel_output`, and rstd.

    Its arguments are ``mean, m2, divisor, eps, gamma, beta, rstd, table``. The variance is
    ``m2 / divisor``, and the rows of ``table`` become scale, mean_hi, factor and offset.
    """
    output_coefficients = _make_output(element_type)

    def kernel(mean, m2, divisor, eps, gamma, beta, rstd, table):
        negative = fill_reciprocal_deviations(m2, divisor, eps, rstd)
        scaled = output_coefficients(mean, rstd, gamma, beta, table)
        return 2 if negative else (1 if scaled else 0)

    return make_function(f"column_coefficients.output.{element_type.name}", kernel)


def _make_output(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``output_coefficients(mean, rstd, gamma, beta, table)``.

    It returns whether any scale is not 1.
    """
    real, most, largest = (
        element_type.compute_type,
        element_type.largest_exponent,
        element_type.largest,
    )
    powers, product = _make_powers(element_type), _make_product(element_type)

    @inlined
    def output_coefficients(mean, rstd, gamma, beta, table):
        scale, mean_hi, factor, offset = table[0], table[1], table[2], table[3]
        scaled = 0
        for c in range(rstd.size):
            weight = np.float64(element(gamma, c, 1.0))
            bias = np.float64(element(beta, c, 0.0))
            centre = np.float64(mean[c])
            x_power, weight_power = powers(centre, rstd[c], weight)
            power = product(x_power, weight_power)
            scaled_centre, multiplier = centre, rstd[c] * weight
            if power != 1.0:
                # As in `powers`, the scaled mean has to stay in range.
                limit = _clamped(most - _exponent_of(centre), -most, most)
                power = _clamped(power, 0.0, math.ldexp(1.0, limit))
                scaled_centre, multiplier = centre * power, rstd[c] / power * weight
                # The product of 0 and an infinite factor would be NaN.
                if abs(weight) < np.inf:
                    multiplier = _clamped(multiplier, -largest, largest)
            scale[c] = power
            mean_hi[c] = real(scaled_centre)
            factor[c] = multiplier
            lost = (scaled_centre - np.float64(mean_hi[c])) * multiplier
            if abs(lost) < largest:
                offset[c] = bias - lost
            elif lost == lost and abs(weight) < np.inf and abs(bias) < np.inf:
                # An infinite one would turn infinite elements of the other sign into NaN.
                offset[c] = -largest if lost > 0.0 else largest
            else:
                # Gamma, beta or the mean is infinite, and the elements are infinite or NaN anyway.
                offset[c] = bias
            scaled += 1 if power != 1.0 else 0
        return scaled > 0

    return output_coefficients


def make_centre_coefficients(element_type: ElementType) -> Function:
    """Return a kernel that scales each channel's statistics and splits its mean.

    Its arguments are ``mean, rstd, table``. The first four rows of ``table`` become scale, mean_hi,
    scaled_rstd and mean_lo: ``x * scale`` has the mean ``mean_hi + mean_lo`` and this rstd. The
    kernel returns whether any scale is not 1, and whether rounding a mean lost what counts.
    """
    centre_coefficients = _make_centre(element_type)
    far = FAR if element_type.compute_type is np.float64 else np.inf

    def kernel(mean, rstd, table):
        scaled, lost = centre_coefficients(mean, rstd, table), 0
        mean_hi, scaled_rstd = table[1], table[2]
        for c in range(mean.size):
            lost += 1 if abs(mean_hi[c]) * scaled_rstd[c] > far else 0
        return scaled, lost > 0

    return make_function(f"column_coefficients.centre.{element_type.name}", kernel)


def _make_centre(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``centre_coefficients(mean, rstd, table)``.

    It returns whether any scale is not 1.
    """
    powers, largest = _make_powers(element_type), element_type.largest

    @inlined
    def centre_coefficients(mean, rstd, table):
        scale, mean_hi, scaled_rstd, mean_lo = table[0], table[1], table[2], table[3]
        scaled = 0
        for c in range(mean.size):
            power, _ = powers(mean[c], rstd[c], 1.0)
            centre = mean[c] * power
            scale[c] = power
            mean_hi[c] = centre
            divided = rstd[c] / power
            scaled_rstd[c] = largest if divided > largest else divided
            mean_lo[c] = centre - np.float64(mean_hi[c])
            scaled += 1 if power != 1.0 else 0
        return scaled > 0

    return centre_coefficients


@inlined
def _merge_blocks(sums: Any) -> Any:
    """Add the sums of all blocks to the first block's, in order, and return them."""
    for k in range(sums.shape[0]):
        total = sums[k][0]
        for p in range(1, sums.shape[1]):
            block = sums[k][p]
            for c in range(total.size):
                total[c] += block[c]
    return sums[0][0], sums[1][0]


@inlined
def _store_gradients(
    products: Any, sums_dy: Any, scaled_rstd: Any, mean_lo: Any, gradients: Any
) -> None:
    """Store dgamma and dbeta, from the sums of dy * xhat, whose xhat lacks mean_lo, and of dy."""
    dgamma, dbeta = gradients[0], gradients[1]
    for c in range(products.size):
        lost = np.float64(mean_lo[c]) * np.float64(scaled_rstd[c])
        dgamma[c] = products[c] - lost * sums_dy[c]
    for c in range(products.size):
        dbeta[c] = sums_dy[c]


@inlined
def _mean_gradients(
    products: Any, sums_dy: Any, inv_counts: Any, scaled_rstd: Any, mean_lo: Any, c: int
) -> Any:
    """Return the means of dy and of dy * xhat in a channel, and what xhat lacks without mean_lo.

    A mean is 0 if the statistic that its gradient passes through is detached. The `inv_counts` are
    numbers, or there is one for each channel.
    """
    inv_count, inv_divisor = part(inv_counts[0], c), part(inv_counts[1], c)
    lost = np.float64(mean_lo[c]) * np.float64(scaled_rstd[c])
    # The conditions keep NaN from passing through a detached statistic.
    mean_dy = sums_dy[c] * inv_count if inv_count > 0.0 else 0.0
    product = products[c] - lost * sums_dy[c]
    mean_product = product * inv_divisor if inv_divisor > 0.0 else 0.0
    return mean_dy, mean_product, lost


def make_gradient_coefficients(element_type: ElementType) -> Function:
    """Return a kernel that computes the coefficients of `channel_gradient`, dgamma and dbeta.

    Its arguments are ``gamma, sums, inv_count, inv_divisor, scaled, gradients, table``:

    - ``sums (2, blocks, channels)`` sum ``dy * (x * scale - mean_hi) * rstd`` and dy.
      The sums of the first block become the sums of all blocks.
    - ``inv_count`` and ``inv_divisor`` are 1 / count, or 0 where mean or scale are detached.
    - ``scaled`` says whether any scale is not 1.
    - The rows of ``gradients`` become dgamma and dbeta.
    - The first four rows of ``table`` come from `make_centre_coefficients`. The others become
      factor, xhat_factor, offset, and back, by which dx is multiplied.

    The kernel returns whether any scale or back is not 1.
    """
    gradient_coefficients = _make_gradient(element_type)

    def kernel(gamma, sums, inv_count, inv_divisor, scaled, gradients, table):
        inv_counts, scaled_rstd = (inv_count, inv_divisor), table[2][: gradients.shape[1]]
        products, sums_dy = _merge_blocks(sums)
        _store_gradients(products, sums_dy, scaled_rstd, table[3], gradients)
        return gradient_coefficients(gamma, products, sums_dy, inv_counts, table) or scaled

    return make_function(f"column_coefficients.gradient.{element_type.name}", kernel)


def make_masked_gradient_coefficients(element_type: ElementType) -> Function:
    """Return the kernel of `make_gradient_coefficients` where elements are left out or weighted.

    Its arguments are ``gamma, sums, through_mean, through_scale, scaled, inverses, gradients,
    table``. The third row of the sums is what the elements of each channel weigh. ``through_mean``
    and ``through_scale`` are 1, or 0 where they are detached, and the rows of ``inverses`` become
    what ``inv_count`` and ``inv_divisor`` are for each channel.
    """
    gradient_coefficients = _make_gradient(element_type)

    def kernel(gamma, sums, through_mean, through_scale, scaled, inverses, gradients, table):
        scaled_rstd, mean_lo, inv_counts = table[2], table[3], (inverses[0], inverses[1])
        products, sums_dy = _merge_blocks(sums)
        weights = sums[2][0]
        for c in range(weights.size):
            inverse = 1.0 / (weights[c] if weights[c] > 0.0 else 1.0)
            inverses[0, c], inverses[1, c] = through_mean * inverse, through_scale * inverse
            lost = np.float64(mean_lo[c]) * np.float64(scaled_rstd[c])
            if lost != lost and products[c] == 0.0:
                # Nothing is left, as any xhat would be NaN: sums of 0 are the gradients.
                scaled_rstd[c] = mean_lo[c] = 0.0
        _store_gradients(products, sums_dy, scaled_rstd, mean_lo, gradients)
        return gradient_coefficients(gamma, products, sums_dy, inv_counts, table) or scaled

    return make_function(f"column_coefficients.masked_gradient.{element_type.name}", kernel)


def _make_gradient(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``gradient_coefficients(gamma, products, sums_dy, inv_counts, table)``.

    It returns whether any back is not 1.
    """
    powers, product = _make_powers(element_type), _make_product(element_type)

    @inlined
    def gradient_coefficients(gamma, products, sums_dy, inv_counts, table):
        scale, mean_hi, scaled_rstd, mean_lo = table[0], table[1], table[2], table[3]
        factor, xhat_factor, offset, back = table[4], table[5], table[6], table[7]
        scaled = 0
        for c in range(products.size):
            weight, rstd = np.float64(element(gamma, c, 1.0)), np.float64(scaled_rstd[c])
            _, weight_power = powers(np.float64(mean_hi[c]), rstd, weight)
            weight = weight / weight_power
            mean_dy, mean_product, lost = _mean_gradients(
                products, sums_dy, inv_counts, scaled_rstd, mean_lo, c
            )
            factor[c] = rstd * weight
            xhat_factor[c] = rstd * (mean_product * weight)
            offset[c] = rstd * (mean_dy * weight - lost * (mean_product * weight))
            power = product(np.float64(scale[c]), weight_power)
            back[c] = power
            scaled += 1 if power != 1.0 else 0
        return scaled > 0

    return gradient_coefficients


def make_frozen_coefficients(element_type: ElementType) -> Function:
    """Return a kernel that computes the coefficients of the gradient for frozen statistics.

    Its arguments are ``mean, rstd, gamma, table``. The table's first four rows become the output
    of `make_centre_coefficients`, the next ones factor and back: dx is ``dy * back * factor``. The
    kernel returns whether any scale or back is not 1.
    """
    frozen_coefficients = _make_frozen(element_type)

    def kernel(mean, rstd, gamma, table):
        return frozen_coefficients(mean, rstd, gamma, table)

    return make_function(f"column_coefficients.frozen.{element_type.name}", kernel)


def _make_frozen(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``frozen_coefficients(mean, rstd, gamma, table)``.

    It returns whether any scale or back is not 1.
    """
    centre_coefficients = _make_centre(element_type)
    powers, product = _make_powers(element_type), _make_product(element_type)

    @inlined
    def frozen_coefficients(mean, rstd, gamma, table):
        scaled = 1 if centre_coefficients(mean, rstd, table) else 0
        scale, mean_hi, scaled_rstd = table[0], table[1], table[2]
        factor, back = table[4], table[5]
        for c in range(rstd.size):
            weight = np.float64(element(gamma, c, 1.0))
            _, weight_power = powers(np.float64(mean_hi[c]), np.float64(scaled_rstd[c]), weight)
            factor[c] = np.float64(scaled_rstd[c]) * (weight / weight_power)
            power = product(np.float64(scale[c]), weight_power)
            back[c] = power
            scaled += 1 if power != 1.0 else 0
        return scaled > 0

    return frozen_coefficients


def make_parameter_gradients(element_type: ElementType) -> Function:
    """Return a kernel ``(sums, table, gradients)`` that stores dgamma and dbeta."""

    def kernel(sums, table, gradients):
        products, sums_dy = _merge_blocks(sums)
        _store_gradients(products, sums_dy, table[2], table[3], gradients)

    return make_function(f"column_coefficients.parameters.{element_type.name}", kernel)
