"""The kernels that compute y, dx and the other gradients, from the moments of each channel.

Everything that depends on the channel alone is computed here once, in float64, so that the element
kernels need few operations, in the compute type. If the statistics of a channel leave the range of
that type, its elements are multiplied by a power of two, the scale. It is 1 for nearly every
channel.

The coefficients are a table of the compute type: row i has the i-th coefficient of every channel.

All element kernels take the addresses of dy, x, the coefficients and the result. Without `gradient`
the coefficients come from `make_output_coefficients`, the result is y, and dy is not read. With
`gradient` they come from `make_gradient_coefficients`, and the result is dx.
"""

import functools
from typing import Any

import numpy as np

from numnorm.backends.cuda.columns.column_shape import ColumnShape
from numnorm.backends.cuda.columns.thread_elements import (
    make_fold_sums,
    make_read_along,
    make_read_coefficients,
    make_read_vector,
    make_work_across,
    make_work_along,
    make_write_along,
    make_write_vector,
)
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
from numnorm.backends.cuda.threads.reductions import WARP, make_team_sum
from numnorm.backends.cuda.threads.row_columns import Weights
from numnorm.backends.formulas.norms import channel_gradient, channel_output

# Sums for gradients, over each channel and part

# Reductions that no barrier separates need different parts of shared memory.
_SMEM_PER_WARP = 2
# The sums need the first coefficients of a channel: scale, mean_hi and rstd.
_COEFFICIENTS = 3


def _make_add_across(element: ElementType, shape: ColumnShape, rows: int) -> Any:
    """Return a device function that adds dy * xhat and dy of `rows` rows to sums.

    ``add(dy, x, index, step, coefficients, grads, values, first, second)``: the coefficients are
    scale, mean_hi and rstd of each channel; `first` and `second` are arrays of sums, one for each
    channel.
    """
    read = make_read_vector(element, shape)
    slots = shape.vector_length(element)
    zero = constant(element, 0.0)

    @device
    def add(dy, x, index, step, coefficients, grads, values, first, second):
        for u in range(rows):
            read(dy, index + u * step, grads, u * slots)
            read(x, index + u * step, values, u * slots)
        for j in range(slots):
            scale, mean_hi = coefficients[j], coefficients[slots + j]
            rstd, one, two = coefficients[2 * slots + j], zero, zero
            for u in range(rows):
                grad = grads[u * slots + j]
                one += grad * ((values[u * slots + j] * scale - mean_hi) * rstd)
                two += grad
            first[j] += one
            second[j] += two

    return add


def make_sums_across(element: ElementType, shape: ColumnShape) -> Kernel:
    """Return the kernel of the sums over each part of ``x (rows, channels)``.

    It takes the addresses of dy, x, the coefficients of `make_centre_coefficients`, and two float64
    tables ``products, plain (parts, channels)``; and ``rows, channels, block``. It stores the sums
    of ``dy * (x * scale - mean_hi) * rstd`` and of dy.
    """
    slots = shape.vector_length(element)
    ahead = shape.ahead
    compute_type = element.compute_type
    threads, teams, lanes = shape.threads, shape.teams, shape.lanes
    kind = FLOAT64.compute_type
    slot_count, value_count = threads * slots, ahead * slots
    coefficient_count = _COEFFICIENTS * slots
    zero = constant(element, 0.0)
    work_of = make_work_across(element, shape)
    fold = make_fold_sums(shape, slots)
    add_rows = _make_add_across(element, shape, ahead)
    add_row = _make_add_across(element, shape, 1)
    read_coefficients = make_read_coefficients(element, shape)
    store = make_store_one(FLOAT64)

    def kernel(dy, x, coefficients, products, plain, rows, channels, block):
        first_here = cuda.shared.array(slot_count, compute_type)
        second_here = cuda.shared.array(slot_count, compute_type)
        grads = cuda.local.array(value_count, compute_type)
        values = cuda.local.array(value_count, compute_type)
        here = cuda.local.array(coefficient_count, compute_type)
        first = cuda.local.array(slots, compute_type)
        second = cuda.local.array(slots, compute_type)
        thread = cuda.threadIdx.x
        part, channel, row, count = work_of(rows, channels, block)
        index, step = row * channels + channel, teams * channels
        for j in range(slots):
            first[j], second[j] = zero, zero
        if count > 0:
            for t in range(_COEFFICIENTS):
                read_coefficients(coefficients, t * channels + channel, here, t * slots)
            grouped = count - count % ahead
            for k in range(0, grouped, ahead):
                add_rows(dy, x, index + k * step, step, here, grads, values, first, second)
            for k in range(grouped, count):
                add_row(dy, x, index + k * step, step, here, grads, values, first, second)
        for j in range(slots):
            first_here[j * threads + thread] = first[j]
            second_here[j * threads + thread] = second[j]
        fold(first_here, second_here)
        if thread < lanes and count > 0:
            for j in range(slots):
                to = part * channels + channel + j
                store(products, to, kind(first_here[j * threads + thread]))
                store(plain, to, kind(second_here[j * threads + thread]))

    return Kernel(kernel, ("address",) * 5 + ("index",) * 3, threads)


def make_sums_along(element: ElementType, shape: ColumnShape) -> Kernel:
    """Return the kernel of the same sums for ``x (outer, channels, inner)``.

    It takes the same addresses, and ``outer, channels, inner, block, segment``.
    """
    vector_length = shape.vector_length(element)
    lanes, threads = shape.lanes, shape.threads
    turn = lanes * vector_length * shape.vectors
    value_count = shape.ahead * shape.vectors * vector_length
    deep = shape.teams * shape.ahead
    compute_type = element.compute_type
    read = make_read_along(element, shape)
    work_of = make_work_along(shape)
    load = make_load_one(compute_element_type(element))
    store = make_store_one(FLOAT64)
    team_sum = make_team_sum(threads)
    warps = max(1, threads // WARP)
    smem_size = _SMEM_PER_WARP * warps
    kind = FLOAT64.compute_type
    zero = constant(element, 0.0)

    @device
    def total(sums):
        result = sums[0]
        for j in range(1, vector_length):
            result += sums[j]
        return result

    def kernel(dy, x, coefficients, products, plain, outer, channels, inner, block, segment):
        smem = cuda.shared.array(smem_size, compute_type)
        grads = cuda.local.array(value_count, compute_type)
        values = cuda.local.array(value_count, compute_type)
        one = cuda.local.array(vector_length, compute_type)
        two = cuda.local.array(vector_length, compute_type)
        thread = cuda.threadIdx.x
        part, channel, first, entries, width = work_of(outer, channels, inner, block, segment)
        jump, scale = channels * inner, load(coefficients, channel)
        mean_hi = load(coefficients, channels + channel)
        rstd = load(coefficients, 2 * channels + channel)
        for j in range(vector_length):
            one[j], two[j] = zero, zero
        for entry in range(thread // lanes, entries, deep):
            begin, left = first + entry * jump, entries - entry
            for base in range(thread % lanes * vector_length, width, turn):
                read(dy, begin, jump, left, base, width, grads)
                read(x, begin, jump, left, base, width, values)
                for k in range(value_count):
                    one[k % vector_length] += grads[k] * ((values[k] * scale - mean_hi) * rstd)
                    two[k % vector_length] += grads[k]
        of_products, of_plain = team_sum(total(one), smem), team_sum(total(two), smem[warps:])
        if thread == 0:
            store(products, part * channels + channel, kind(of_products))
            store(plain, part * channels + channel, kind(of_plain))

    return Kernel(kernel, ("address",) * 5 + ("index",) * 5, threads)


# Coefficients of each channel

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
    most = element.largest_exponent
    exponent_of = _make_exponent()
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
    number = constant(FLOAT64, default)
    kind = FLOAT64.compute_type
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
    store = make_store_one(compute_element_type(element))
    compute_type = element.compute_type
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
    most = element.largest_exponent
    exponent_of = _make_exponent()
    finite = _make_finite(element)
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
    load = make_load_one(compute_element_type(element))
    store = make_store_one(gradient)
    kind = FLOAT64.compute_type
    rounded = gradient.compute_type

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
    lanes, teams, threads = shape.lanes, shape.teams, shape.threads
    kind = FLOAT64.compute_type
    load = make_load_one(FLOAT64)
    gamma_of = _make_load_number(gamma, 1.0)
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


# Elements

# A kernel loads all coefficients: the compiler removes the loads that the formula does not need.
_COUNTS = {False: OUTPUT_COEFFICIENTS, True: GRADIENT_COEFFICIENTS}


@functools.cache
def _make_result(slots: int, gradient: bool) -> Any:
    """Return a device function ``result(dy, x, coefficients, j)``: y or dx of an element.

    `coefficients` is a local array with the i-th coefficient of the j-th channel at index ``i *
    slots + j``.
    """
    output_of, gradient_of = device(channel_output), device(channel_gradient)

    @device
    def output(dy, x, coefficients, j):
        scale, mean_hi = coefficients[j], coefficients[slots + j]
        factor, offset = coefficients[2 * slots + j], coefficients[3 * slots + j]
        return output_of(x * scale, mean_hi, factor, offset)

    @device
    def dx(dy, x, coefficients, j):
        scale, mean_hi, rstd = coefficients[j], coefficients[slots + j], coefficients[2 * slots + j]
        xhat_factor, offset = coefficients[4 * slots + j], coefficients[5 * slots + j]
        back, factor = coefficients[6 * slots + j], coefficients[8 * slots + j]
        return back * gradient_of(dy, x * scale, mean_hi, rstd, factor, xhat_factor, offset)

    return dx if gradient else output


def make_elements_across(element: ElementType, shape: ColumnShape, *, gradient: bool) -> Kernel:
    """Return the kernel for ``x (rows, channels)``.

    It takes ``rows, channels, block`` after the addresses.
    """
    slots = shape.vector_length(element)
    ahead, teams = shape.ahead, shape.teams
    compute_type = element.compute_type
    work_of, read = make_work_across(element, shape), make_read_vector(element, shape)
    read_coefficients = make_read_coefficients(element, shape)
    write = make_write_vector(element, shape)
    result_of = _make_result(slots, gradient)
    count_each = _COUNTS[gradient]
    value_count, coefficient_count = ahead * slots, slots * count_each

    @device
    def put_rows(arrays, index, step, coefficients, grads, values, rows):
        dy, x, result = arrays
        for u in range(rows):
            if gradient:
                read(dy, index + u * step, grads, u * slots)
            read(x, index + u * step, values, u * slots)
        for k in range(rows * slots):
            values[k] = result_of(grads[k], values[k], coefficients, k % slots)
        for u in range(rows):
            write(result, index + u * step, values, u * slots)

    def kernel(dy, x, coefficients, result, rows, channels, block):
        grads = cuda.local.array(value_count, compute_type)
        values = cuda.local.array(value_count, compute_type)
        here = cuda.local.array(coefficient_count, compute_type)
        _, channel, row, count = work_of(rows, channels, block)
        index, step = row * channels + channel, teams * channels
        if count > 0:
            for t in range(count_each):
                read_coefficients(coefficients, t * channels + channel, here, t * slots)
            grouped, arrays = count - count % ahead, (dy, x, result)
            for k in range(0, grouped, ahead):
                put_rows(arrays, index + k * step, step, here, grads, values, ahead)
            for k in range(grouped, count):
                put_rows(arrays, index + k * step, step, here, grads, values, 1)

    return Kernel(kernel, ("address",) * 4 + ("index",) * 3, shape.threads)


def make_elements_along(element: ElementType, shape: ColumnShape, *, gradient: bool) -> Kernel:
    """Return the kernel for ``x (outer, channels, inner)``.

    It takes ``outer, channels, inner, block, segment`` after the addresses.
    """
    vector_length = shape.vector_length(element)
    lanes = shape.lanes
    compute_type = element.compute_type
    turn = lanes * vector_length * shape.vectors
    value_count = shape.ahead * shape.vectors * vector_length
    deep = shape.teams * shape.ahead
    count_each = _COUNTS[gradient]
    read, write = make_read_along(element, shape), make_write_along(element, shape)
    work_of = make_work_along(shape)
    load = make_load_one(compute_element_type(element))
    result_of = _make_result(1, gradient)

    def kernel(dy, x, coefficients, result, outer, channels, inner, block, segment):
        grads = cuda.local.array(value_count, compute_type)
        values = cuda.local.array(value_count, compute_type)
        here = cuda.local.array(count_each, compute_type)
        thread, jump = cuda.threadIdx.x, channels * inner
        _, channel, first, entries, width = work_of(outer, channels, inner, block, segment)
        for t in range(count_each):
            here[t] = load(coefficients, t * channels + channel)
        for entry in range(thread // lanes, entries, deep):
            begin, left = first + entry * jump, entries - entry
            for base in range(thread % lanes * vector_length, width, turn):
                if gradient:
                    read(dy, begin, jump, left, base, width, grads)
                read(x, begin, jump, left, base, width, values)
                for k in range(value_count):
                    values[k] = result_of(grads[k], values[k], here, 0)
                write(result, begin, jump, left, base, width, values)

    return Kernel(kernel, ("address",) * 4 + ("index",) * 5, shape.threads)
