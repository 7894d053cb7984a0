"""The kernels that compute y or dx of each element from the coefficients of its channel.

All of them take the addresses of dy, x, the coefficients and the result. Without `gradient` the
coefficients come from `make_output_coefficients`, the result is y, and dy is not read. With
`gradient` they come from `make_gradient_coefficients`, and the result is dx.
"""

import functools
from typing import Any

from numnorm.backends.cuda.columns.coefficient_kernels import (
    GRADIENT_COEFFICIENTS,
    OUTPUT_COEFFICIENTS,
)
from numnorm.backends.cuda.columns.column_shape import ColumnShape
from numnorm.backends.cuda.columns.thread_elements import (
    make_read_along,
    make_read_coefficients,
    make_read_vector,
    make_work_across,
    make_work_along,
    make_write_along,
    make_write_vector,
)
from numnorm.backends.cuda.compiler.element_type import ElementType, compute_element_type
from numnorm.backends.cuda.compiler.target import Kernel, cuda, device, make_load_one
from numnorm.backends.formulas.norms import channel_gradient, channel_output

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
    slots, ahead, teams = shape.vector_length(element), shape.ahead, shape.teams
    compute_type = element.compute_type
    work_of, read = make_work_across(element, shape), make_read_vector(element, shape)
    read_coefficients = make_read_coefficients(element, shape)
    write = make_write_vector(element, shape)
    result_of, count_each = _make_result(slots, gradient), _COUNTS[gradient]
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
    vector_length, lanes = shape.vector_length(element), shape.lanes
    compute_type = element.compute_type
    turn = lanes * vector_length * shape.vectors
    value_count = shape.ahead * shape.vectors * vector_length
    deep, count_each = shape.teams * shape.ahead, _COUNTS[gradient]
    read, write = make_read_along(element, shape), make_write_along(element, shape)
    work_of, load = make_work_along(shape), make_load_one(compute_element_type(element))
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
