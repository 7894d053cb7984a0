"""The kernels that compute y or dx of each element from the terms of its channel.

All of them take the addresses of dy, x, the terms and the result. Without `gradient` the terms are
those of `make_output_terms`, the result is y, and dy is not read; with it they are those of
`make_gradient_terms`, and the result is dx.
"""

import functools
from typing import Any

from numnorm.backends.cuda.columns.coefficient_kernels import GRADIENT_TERMS, OUTPUT_TERMS
from numnorm.backends.cuda.columns.column_shape import ColumnShape
from numnorm.backends.cuda.columns.thread_elements import (
    make_place_across,
    make_place_along,
    make_read_along,
    make_read_piece,
    make_read_terms,
    make_write_along,
    make_write_piece,
)
from numnorm.backends.cuda.compiler.element_type import ElementType, compute_element_type
from numnorm.backends.cuda.compiler.target import Kernel, cuda, device, make_load_one
from numnorm.backends.formulas.norms import channel_gradient, channel_output

# A kernel loads all terms: the compiler removes the loads of terms that its formula does not use.
_TERMS = {False: OUTPUT_TERMS, True: GRADIENT_TERMS}


@functools.cache
def _make_result(slots: int, gradient: bool) -> Any:
    """Return a device function ``result(dy, x, terms, j)`` of an element of the j-th channel.

    ``terms`` is a local array with `slots` numbers of each row of the terms.
    """
    output_of, gradient_of = device(channel_output), device(channel_gradient)

    @device
    def output(dy, x, terms, j):
        scale, mean_hi = terms[j], terms[slots + j]
        return output_of(x * scale, mean_hi, terms[2 * slots + j], terms[3 * slots + j])

    @device
    def dx(dy, x, terms, j):
        scale, mean_hi, rstd = terms[j], terms[slots + j], terms[2 * slots + j]
        grad, offset = terms[4 * slots + j], terms[5 * slots + j]
        back, factor = terms[6 * slots + j], terms[8 * slots + j]
        return back * gradient_of(dy, x * scale, mean_hi, rstd, factor, grad, offset)

    return dx if gradient else output


def make_elements_across(element: ElementType, shape: ColumnShape, *, gradient: bool) -> Kernel:
    """Return the kernel for ``x (rows, channels)``.

    It takes ``rows, channels, block`` behind the addresses.
    """
    slots, ahead, teams, compute_type = (
        shape.piece(element),
        shape.ahead,
        shape.teams,
        element.compute_type,
    )
    place, read = make_place_across(element, shape), make_read_piece(element, shape)
    read_terms, write = make_read_terms(element, shape), make_write_piece(element, shape)
    result_of, count_of_terms = _make_result(slots, gradient), _TERMS[gradient]
    held, all_terms = ahead * slots, slots * count_of_terms

    @device
    def put_rows(arrays, index, step, terms, grads, values, rows):
        dy, x, result = arrays
        for u in range(rows):
            if gradient:
                read(dy, index + u * step, grads, u * slots)
            read(x, index + u * step, values, u * slots)
        for k in range(rows * slots):
            values[k] = result_of(grads[k], values[k], terms, k % slots)
        for u in range(rows):
            write(result, index + u * step, values, u * slots)

    def kernel(dy, x, terms, result, rows, channels, block):
        grads = cuda.local.array(held, compute_type)
        values = cuda.local.array(held, compute_type)
        here = cuda.local.array(all_terms, compute_type)
        _, channel, row, count = place(rows, channels, block)
        index, step = row * channels + channel, teams * channels
        if count > 0:
            for t in range(count_of_terms):
                read_terms(terms, t * channels + channel, here, t * slots)
            grouped, arrays = count - count % ahead, (dy, x, result)
            for k in range(0, grouped, ahead):
                put_rows(arrays, index + k * step, step, here, grads, values, ahead)
            for k in range(grouped, count):
                put_rows(arrays, index + k * step, step, here, grads, values, 1)

    return Kernel(kernel, ("address",) * 4 + ("index",) * 3, shape.threads)


def make_elements_along(element: ElementType, shape: ColumnShape, *, gradient: bool) -> Kernel:
    """Return the kernel for ``x (outer, channels, inner)``.

    It takes ``outer, channels, inner, block, segment`` behind the addresses.
    """
    piece, lanes, compute_type = shape.piece(element), shape.lanes, element.compute_type
    held, turn = shape.ahead * shape.pieces * piece, lanes * piece * shape.pieces
    deep, count_of_terms = shape.teams * shape.ahead, _TERMS[gradient]
    read, write = make_read_along(element, shape), make_write_along(element, shape)
    place, load = make_place_along(shape), make_load_one(compute_element_type(element))
    result_of = _make_result(1, gradient)

    def kernel(dy, x, terms, result, outer, channels, inner, block, segment):
        grads = cuda.local.array(held, compute_type)
        values = cuda.local.array(held, compute_type)
        here = cuda.local.array(count_of_terms, compute_type)
        thread, jump = cuda.threadIdx.x, channels * inner
        _, channel, first, entries, width = place(outer, channels, inner, block, segment)
        for t in range(count_of_terms):
            here[t] = load(terms, t * channels + channel)
        for entry in range(thread // lanes, entries, deep):
            begin, left = first + entry * jump, entries - entry
            for base in range(thread % lanes * piece, width, turn):
                if gradient:
                    read(dy, begin, jump, left, base, width, grads)
                read(x, begin, jump, left, base, width, values)
                for k in range(held):
                    values[k] = result_of(grads[k], values[k], here, 0)
                write(result, begin, jump, left, base, width, values)

    return Kernel(kernel, ("address",) * 4 + ("index",) * 5, shape.threads)
