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

from numnorm.backends.cpu.compiler.jit import Kernel, inlined, make_kernel, mark_noinline
from numnorm.backends.cpu.memory.borrowed import borrowed
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.optional import element
from numnorm.backends.cpu.statistics.stored_kernels import fill_reciprocal_deviations


def _exponent(value: float) -> int:
    """Return that of a number in [0.5, 1) times a power of two; 0 for 0, infinity and NaN."""
    if not 0.0 < abs(value) < np.inf:
        return 0
    return math.frexp(value)[1]


_exponent_of = inlined(_exponent)


def _usual_exponent(element_type: ElementType) -> int:
    """Return up to which exponent, either way, nothing is done about rstd and gamma."""
    return element_type.largest_exponent // 4


@functools.cache
def _make_range(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``powers(mean, rstd, gamma)`` of two, for a channel.

    The first is that of x, the second brings gamma times what is left of rstd into range.
    """
    most = element_type.largest_exponent
    usual, widest = _usual_exponent(element_type), most - 20
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
def _make_product(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled product of two powers of two, kept inside the working type."""
    largest = 2.0**element_type.largest_exponent

    @inlined
    def product(power, other):
        return min(max(power * other, 1.0 / largest), largest)

    return product


def _make_scaled_output_coefficients(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled function for the terms; it returns whether any scale is not 1."""
    real, powers, product = (
        element_type.compute_type,
        _make_range(element_type),
        _make_product(element_type),
    )

    @inlined
    def scaled_output_terms(mean, rstd, gamma, beta, coefficients):
        scale, mean_hi, factor, offset = (
            coefficients[0],
            coefficients[1],
            coefficients[2],
            coefficients[3],
        )
        scaled = 0
        for c in range(rstd.size):
            weight = np.float64(element(gamma, c, 1.0))
            bias = np.float64(element(beta, c, 0.0))
            middle = np.float64(mean[c])
            of_x, of_weight = powers(middle, rstd[c], weight)
            power = product(of_x, of_weight)
            centre, multiplier = middle * power, rstd[c] / power * weight
            scale[c] = power
            mean_hi[c] = real(centre)
            factor[c] = multiplier
            lost = (centre - np.float64(mean_hi[c])) * multiplier
            # Without it where gamma or the mean is infinite: elements are infinite there, or NaN.
            offset[c] = bias - lost if abs(lost) < np.inf else bias
            scaled += 1 if power != 1.0 else 0
        return scaled > 0

    return scaled_output_terms


def make_output_coefficients(element_type: ElementType) -> Kernel:
    """Return a kernel for the terms of `channel_output`.

    It takes ``mean, m2, divisor, eps, gamma, beta, rstd, coefficients``, where m2 over the divisor is the
    variance, stores rstd, and makes the rows of the terms scale, high, factor and offset. The
    scale is left out where it is 1 for every channel.
    """
    scaled_terms = _make_scaled_output_coefficients(element_type)

    def kernel(mean, m2, divisor, eps, gamma, beta, rstd, coefficients, first, last):
        mark_noinline()
        mean, rstd, coefficients = borrowed(mean), borrowed(rstd), borrowed(coefficients)
        gamma, beta = borrowed(gamma), borrowed(beta)
        fill_reciprocal_deviations(borrowed(m2), divisor, eps, rstd)
        return scaled_terms(mean, rstd, gamma, beta, coefficients)

    return make_kernel(f"column_terms.output.{element_type.name}", kernel)


def _make_scaled_centre_coefficients(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled function for the terms; it returns whether any scale is not 1."""
    powers = _make_range(element_type)

    @inlined
    def scaled_centre_terms(mean, rstd, coefficients):
        scale, mean_hi, reciprocal, mean_lo = (
            coefficients[0],
            coefficients[1],
            coefficients[2],
            coefficients[3],
        )
        scaled = 0
        for c in range(mean.size):
            power, _ = powers(mean[c], rstd[c], 1.0)
            centre = mean[c] * power
            scale[c] = power
            mean_hi[c] = centre
            reciprocal[c] = rstd[c] / power
            mean_lo[c] = centre - np.float64(mean_hi[c])
            scaled += 1 if power != 1.0 else 0
        return scaled > 0

    return scaled_centre_terms


def make_centre_coefficients(element_type: ElementType) -> Kernel:
    """Return a kernel that splits each channel's mean and scale.

    It takes ``mean, rstd, coefficients``, the first of whose rows become scale, high, rstd and low: the
    mean of ``x * scale`` is ``mean_hi + mean_lo``, and that rstd is of ``x * scale`` too.
    """
    scaled_terms = _make_scaled_centre_coefficients(element_type)

    def kernel(mean, rstd, coefficients, first, last):
        mark_noinline()
        mean, rstd, coefficients = borrowed(mean), borrowed(rstd), borrowed(coefficients)
        return scaled_terms(mean, rstd, coefficients)

    return make_kernel(f"column_terms.centre.{element_type.name}", kernel)


@inlined
def _folded(sums: Any) -> Any:
    """Return the sums over all blocks, added up in order in the place of the first block's."""
    for k in range(2):
        whole = sums[k][0]
        for p in range(1, sums.shape[1]):
            of_block = sums[k][p]
            for c in range(whole.size):
                whole[c] += of_block[c]
    return sums[0][0], sums[1][0]


@inlined
def _store_gradients(
    sums: Any, sums_dy: Any, reciprocal: Any, mean_lo: Any, gradients: Any
) -> None:
    """Store dgamma and dbeta."""
    dgamma, dbeta = gradients[0], gradients[1]
    for c in range(sums.size):
        lost = np.float64(mean_lo[c]) * np.float64(reciprocal[c])
        dgamma[c] = sums[c] - lost * sums_dy[c]
    for c in range(sums.size):
        dbeta[c] = sums_dy[c]


@inlined
def _passed_on(
    sums: Any, sums_dy: Any, inv_counts: Any, reciprocal: Any, mean_lo: Any, c: int
) -> Any:
    """Return what a channel's mean and its scale pass on for a gamma of 1, and what was lost."""
    inv_count, inv_divisor = inv_counts
    lost = np.float64(mean_lo[c]) * np.float64(reciprocal[c])
    # A detached statistic passes nothing on, a NaN neither.
    through_mean = sums_dy[c] * inv_count if inv_count > 0.0 else 0.0
    slope_sum = sums[c] - lost * sums_dy[c]
    through_scale = slope_sum * inv_divisor if inv_divisor > 0.0 else 0.0
    return through_mean, through_scale, lost


def _make_scaled_gradient_coefficients(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled function for the terms; it returns whether dx is multiplied by any."""
    powers, product = _make_range(element_type), _make_product(element_type)

    @inlined
    def scaled_gradient_terms(gamma, sums, sums_dy, inv_counts, coefficients):
        scale, mean_hi, reciprocal, mean_lo = (
            coefficients[0],
            coefficients[1],
            coefficients[2],
            coefficients[3],
        )
        factor, grad, offset, back = (
            coefficients[4],
            coefficients[5],
            coefficients[6],
            coefficients[7],
        )
        scaled = 0
        for c in range(sums.size):
            weight, rstd = np.float64(element(gamma, c, 1.0)), np.float64(reciprocal[c])
            _, of_weight = powers(np.float64(mean_hi[c]), rstd, weight)
            weight = weight / of_weight
            through_mean, through_scale, lost = _passed_on(
                sums, sums_dy, inv_counts, reciprocal, mean_lo, c
            )
            factor[c] = rstd * weight
            grad[c] = rstd * (through_scale * weight)
            offset[c] = rstd * (through_mean * weight - lost * (through_scale * weight))
            power = product(np.float64(scale[c]), of_weight)
            back[c] = power
            scaled += 1 if power != 1.0 else 0
        return scaled > 0

    return scaled_gradient_terms


def make_gradient_coefficients(element_type: ElementType) -> Kernel:
    """Return a kernel for the terms of `channel_gradient`.

    It takes ``gamma``, the ``sums (2, blocks, channels)`` of ``dy * (x * scale - mean_hi) * rstd``
    and of dy, the share of each statistic, which is 1 over the number of values or 0 where it is
    detached, whether any scale is not 1, and then ``gradients``, whose rows become dgamma and
    dbeta, and ``coefficients``, of whose rows `make_centre_coefficients` has made the first four. The others
    become factor, slope, offset, and what dx is to be multiplied by, left out where that is 1 for
    every channel. The sums become those of all blocks together.
    """
    scaled_terms = _make_scaled_gradient_coefficients(element_type)

    def kernel(gamma, sums, inv_count, inv_divisor, scaled, gradients, coefficients, first, last):
        mark_noinline()
        gamma, gradients, coefficients = (
            borrowed(gamma),
            borrowed(gradients),
            borrowed(coefficients),
        )
        inv_counts, reciprocal = (inv_count, inv_divisor), coefficients[2][: gradients.shape[1]]
        of_products, of_dy = _folded(borrowed(sums))
        _store_gradients(of_products, of_dy, reciprocal, coefficients[3], gradients)
        return scaled_terms(gamma, of_products, of_dy, inv_counts, coefficients)

    return make_kernel(f"column_terms.gradient.{element_type.name}", kernel)


def make_frozen_coefficients(element_type: ElementType) -> Kernel:
    """Return a kernel for the terms of the gradient where the statistics are constants.

    It takes ``mean, rstd, gamma, coefficients``, whose rows become those of `make_centre_coefficients`, the
    factor of dy, and what dx is to be multiplied by then, left out where that is 1 for every
    channel.
    """
    scaled_centre = _make_scaled_centre_coefficients(element_type)
    powers, product = _make_range(element_type), _make_product(element_type)

    @inlined
    def scaled_terms(mean, rstd, gamma, coefficients):
        scaled = 1 if scaled_centre(mean, rstd, coefficients) else 0
        scale, mean_hi, reciprocal, factor, back = (
            coefficients[0],
            coefficients[1],
            coefficients[2],
            coefficients[4],
            coefficients[5],
        )
        for c in range(rstd.size):
            weight = np.float64(element(gamma, c, 1.0))
            _, of_weight = powers(np.float64(mean_hi[c]), np.float64(reciprocal[c]), weight)
            factor[c] = np.float64(reciprocal[c]) * (weight / of_weight)
            power = product(np.float64(scale[c]), of_weight)
            back[c] = power
            scaled += 1 if power != 1.0 else 0
        return scaled > 0

    def kernel(mean, rstd, gamma, coefficients, first, last):
        mark_noinline()
        mean, rstd, coefficients = borrowed(mean), borrowed(rstd), borrowed(coefficients)
        gamma = borrowed(gamma)
        return scaled_terms(mean, rstd, gamma, coefficients)

    return make_kernel(f"column_terms.constant.{element_type.name}", kernel)


def make_parameter_gradients(element_type: ElementType) -> Kernel:
    """Return a kernel ``(sums, coefficients, gradients)`` that stores dgamma and dbeta alone."""

    def kernel(sums, coefficients, gradients, first, last):
        mark_noinline()
        coefficients, gradients = borrowed(coefficients), borrowed(gradients)
        of_products, of_dy = _folded(borrowed(sums))
        _store_gradients(of_products, of_dy, coefficients[2], coefficients[3], gradients)

    return make_kernel(f"column_terms.parameters.{element_type.name}", kernel)
