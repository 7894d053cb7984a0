"""The kernels that compute the coefficients of each channel for the element kernels.

Everything that depends on the channel alone is computed here once, in float64, so that the element
kernels need few operations, in the compute type. If the statistics of a channel leave the range of
that type, its elements are multiplied by a power of two, the scale. It is 1 for nearly every
channel.

The coefficients are a table of the compute type: row i has the i-th coefficient of every channel.
"""

import functools
from typing import Any

import numpy as np

from numnorm.backends.cuda.columns.block_reductions import make_fold_sums
from numnorm.backends.cuda.columns.column_shape import ColumnShape
from numnorm.backends.cuda.compiler.element_type import FLOAT64, ElementType, compute_element_type
from numnorm.backends.cuda.compiler.target import (
    Kernel,
    constant,
    cuda,
    device,
    exponent,
    make_load_one,
    make_store_one,
    times_power_of_two,
)
from numnorm.backends.cuda.threads.row_parameters import Weights

# The number of coefficients of `channel_output`.
OUTPUT_COEFFICIENTS = 4
# The number of coefficients of `channel_gradient`. The rows from `FROZEN_COEFFICIENTS` on are
# coefficients of `channel_output` that turn dy into dx if both statistics are frozen.
GRADIENT_COEFFICIENTS, FROZEN_COEFFICIENTS = 10, 6

_ZERO, _ONE, _INFINITY = (constant(FLOAT64, v) for v in (0.0, 1.0, float("inf")))
_THREADS = 128


@functools.cache
def _make_exponent() -> Any:
    """Return a device function of the exponent of a number: 0 for 0, infinity and NaN."""
    exponent_of = exponent(FLOAT64)

    @device
    def known_exponent(value):
        return exponent_of(value) + 1 if _ZERO < abs(value) < _INFINITY else 0

    return known_exponent


@functools.cache
def _make_powers(element: ElementType) -> Any:
    """Return a device function ``powers(mean, rstd, gamma)``: two powers of two for a channel.

    The first is the factor of x, so rstd is divided by it. The second is the power that
    gamma * rstd is then divided by to stay in range.
    """
    most, exponent_of = element.largest_exponent, _make_exponent()
    scaled = times_power_of_two(FLOAT64)
    usual, widest = most // 4, most - 20

    @device
    def powers(mean, rstd, gamma):
        of_rstd = exponent_of(rstd)
        of_x = 0
        if abs(of_rstd) > usual:
            # The scaled mean must stay in range; only a constant channel needs this limit.
            of_x = min(max(of_rstd, -most), most, most - exponent_of(mean))
        of_product = of_rstd - of_x + exponent_of(gamma)
        of_weight = of_product - min(max(of_product, -widest), widest)
        return scaled(_ONE, of_x), scaled(_ONE, of_weight)

    return powers


@functools.cache
def _make_product(element: ElementType) -> Any:
    """Return a device function of the product of two powers of two, clamped to the range."""
    largest = constant(FLOAT64, 2.0**element.largest_exponent)
    least = constant(FLOAT64, 2.0**-element.largest_exponent)

    @device
    def product(power, other):
        return min(max(power * other, least), largest)

    return product


@functools.cache
def _make_finite(element: ElementType) -> Any:
    """Return a device function ``finite(value, given)``: the value, in the range of the type.

    The product of 0 and infinity, or the sum of two infinities, would be NaN. A value that follows
    from a number `given` that is infinite remains infinite.
    """
    most = float(np.finfo(element.compute_name).max)
    least, largest = constant(FLOAT64, -most), constant(FLOAT64, most)

    @device
    def finite(value, given):
        if not abs(given) < _INFINITY or least <= value <= largest or value != value:
            return value
        return least if value < least else largest

    return finite


@functools.cache
def _make_load_number(of: ElementType | None, default: float) -> Any:
    """Return a device function ``load_number(address, index)``: a float64, or the default."""
    number, kind = constant(FLOAT64, default), FLOAT64.compute_type
    if of is None:

        @device
        def no_array(address, index):
            return number

        return no_array
    load_one = make_load_one(of)

    @device
    def load_number(address, index):
        return kind(load_one(address, index))

    return load_number


@functools.cache
def _make_put(element: ElementType) -> Any:
    """Return a device function ``put(coefficients, row, channels, channel, value)``.

    It rounds a coefficient to the compute type, stores it and returns it.
    """
    store, compute_type = make_store_one(compute_element_type(element)), element.compute_type
    kind = FLOAT64.compute_type

    @device
    def put(coefficients, row, channels, channel, value):
        rounded = compute_type(value)
        store(coefficients, row * channels + channel, rounded)
        return kind(rounded)

    return put


def make_output_coefficients(element: ElementType, saved: ElementType, weights: Weights) -> Kernel:
    """Return the kernel of the coefficients for y: scale, mean_hi, factor and offset.

    It takes the addresses of mean, rstd, gamma, beta and the coefficients, and ``channels``. It
    does not read the address of a missing gamma or beta. Each thread has a channel.
    """
    powers, product, put = _make_powers(element), _make_product(element), _make_put(element)
    load = _make_load_number(saved, 0.0)
    gamma_of = _make_load_number(weights.gamma, 1.0)
    beta_of = _make_load_number(weights.beta, 0.0)
    most, exponent_of, finite = element.largest_exponent, _make_exponent(), _make_finite(element)
    scaled = times_power_of_two(FLOAT64)

    def kernel(mean, rstd, gamma, beta, coefficients, channels):
        c = cuda.blockIdx.x * _THREADS + cuda.threadIdx.x
        if c < channels:
            mu, deviation = load(mean, c), load(rstd, c)
            weight, bias = gamma_of(gamma, c), beta_of(beta, c)
            of_x, of_weight = powers(mu, deviation, weight)
            power = product(of_x, of_weight)
            if power != _ONE:
                # As in `powers`, the scaled mean must stay in range.
                power = min(power, scaled(_ONE, min(most, most - exponent_of(mu))))
            centre, factor = mu * power, finite(deviation / power * weight, weight)
            put(coefficients, 0, channels, c, power)
            lost = (centre - put(coefficients, 1, channels, c, centre)) * factor
            put(coefficients, 2, channels, c, factor)
            # This difference is not finite if gamma or the mean is infinite. It is dropped then.
            offset = bias - lost if abs(lost) < _INFINITY else bias
            put(coefficients, 3, channels, c, finite(offset, bias))

    return Kernel(kernel, ("address",) * 5 + ("index",), _THREADS)


def make_centre_coefficients(element: ElementType, saved: ElementType) -> Kernel:
    """Return the kernel of the first coefficients for dx: scale, mean_hi, rstd and mean_lo.

    ``mean_hi + mean_lo`` and rstd are the mean and rstd of ``x * scale``. It takes the addresses of
    mean, rstd and the coefficients, and ``channels``. Each thread has a channel.
    """
    powers, put, finite = _make_powers(element), _make_put(element), _make_finite(element)
    load = _make_load_number(saved, 0.0)

    def kernel(mean, rstd, coefficients, channels):
        c = cuda.blockIdx.x * _THREADS + cuda.threadIdx.x
        if c < channels:
            mu, deviation = load(mean, c), load(rstd, c)
            power, _ = powers(mu, deviation, _ONE)
            centre = mu * power
            put(coefficients, 0, channels, c, power)
            put(coefficients, 3, channels, c, centre - put(coefficients, 1, channels, c, centre))
            put(coefficients, 2, channels, c, finite(deviation / power, _ONE))

    return Kernel(kernel, ("address",) * 3 + ("index",), _THREADS)


def _make_gradient_coefficients_of(element: ElementType, gradient: ElementType) -> Any:
    """Return a device function that stores dgamma, dbeta and the other coefficients for dx.

    ``coefficients_of(products, plain, weight, inv_counts, dgamma, dbeta, coefficients, channels,
    c)``: `products` and `plain` are the sums of dy * xhat and of dy over channel `c`, and `weight`
    is its gamma.
    """
    powers, product, put = _make_powers(element), _make_product(element), _make_put(element)
    load, store = make_load_one(compute_element_type(element)), make_store_one(gradient)
    kind, rounded = FLOAT64.compute_type, gradient.compute_type

    @device
    def coefficients_of(
        products, plain, weight, inv_counts, dgamma, dbeta, coefficients, channels, c
    ):
        inv_count, inv_divisor = inv_counts
        scale, mean_hi = kind(load(coefficients, c)), kind(load(coefficients, channels + c))
        rstd = kind(load(coefficients, 2 * channels + c))
        mean_lo = kind(load(coefficients, 3 * channels + c))
        _, of_weight = powers(mean_hi, rstd, weight)
        lost = mean_lo * rstd
        of_gamma = products - lost * plain
        store(dgamma, c, rounded(of_gamma))
        store(dbeta, c, rounded(plain))
        weight = weight / of_weight
        # The mean of a detached statistic is 0 even where the sum is NaN.
        through_mean = plain * inv_count * weight if inv_count > _ZERO else _ZERO
        through_scale = of_gamma * inv_divisor * weight if inv_divisor > _ZERO else _ZERO
        put(coefficients, 4, channels, c, rstd * through_scale)
        put(coefficients, 5, channels, c, rstd * (through_mean - lost * through_scale))
        put(coefficients, 6, channels, c, product(scale, of_weight))
        put(coefficients, 7, channels, c, _ZERO)
        put(coefficients, 8, channels, c, rstd * weight)
        put(coefficients, 9, channels, c, _ZERO)

    return coefficients_of


def make_gradient_coefficients(
    element: ElementType, gamma: ElementType | None, gradient: ElementType, shape: ColumnShape
) -> Kernel:
    """Return the kernel that sums over all parts in a fixed order, and stores coefficients for dx.

    It takes the addresses of the tables ``products, plain`` of the parts, gamma, dgamma, dbeta and
    the coefficients; ``parts, channels``; and ``inv_count, inv_divisor``: 1 over the number of
    values, or 0 for a detached statistic. It does not read the address of a missing gamma.
    `make_centre_coefficients` has stored the first four coefficients. This kernel stores the
    others: xhat_factor, offset, a power of two that multiplies dx, 0, factor and 0. Each lane has
    one channel.
    """
    lanes, teams, threads, kind = shape.lanes, shape.teams, shape.threads, FLOAT64.compute_type
    load, gamma_of = make_load_one(FLOAT64), _make_load_number(gamma, 1.0)
    fold = make_fold_sums(shape, 1)
    coefficients_of = _make_gradient_coefficients_of(element, gradient)

    def kernel(
        products, plain, gamma, dgamma, dbeta, coefficients, parts, channels, inv_count, inv_divisor
    ):  # fmt: skip
        products_here = cuda.shared.array(threads, kind)
        plain_here = cuda.shared.array(threads, kind)
        thread = cuda.threadIdx.x
        c, parts_each = cuda.blockIdx.x * lanes + thread % lanes, (parts + teams - 1) // teams
        first, second, start = _ZERO, _ZERO, thread // lanes * parts_each
        for part in range(start, min(start + parts_each, parts) if c < channels else start):
            first += load(products, part * channels + c)
            second += load(plain, part * channels + c)
        products_here[thread], plain_here[thread] = first, second
        fold(products_here, plain_here)
        if thread < lanes and c < channels:
            coefficients_of(
                products_here[thread], plain_here[thread], gamma_of(gamma, c),
                (inv_count, inv_divisor), dgamma, dbeta, coefficients, channels, c,
            )  # fmt: skip

    return Kernel(kernel, ("address",) * 6 + ("index",) * 2 + ("float64",) * 2, threads)
