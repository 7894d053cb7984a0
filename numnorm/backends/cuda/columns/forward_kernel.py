"""The kernels that normalize channels by given statistics."""

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
from numnorm.backends.cuda.compiler.element_type import Element, working_element
from numnorm.backends.cuda.compiler.target import Kernel, cuda, device, make_load_one
from numnorm.backends.formulas.norms import channel_output


def make_forward_across(element: Element, shape: ColumnShape) -> Kernel:
    """Return the kernel for ``x (rows, channels)``.

    It takes the addresses of x, the terms of `make_output_terms` and y; and ``rows, channels,
    block``.
    """
    slots, ahead, teams, working = shape.piece(element), shape.ahead, shape.teams, element.working
    place, read = make_place_across(element, shape), make_read_piece(element, shape)
    read_terms = make_read_terms(element, shape)
    write, output = make_write_piece(element, shape), device(channel_output)
    held = ahead * slots

    @device
    def put_rows(x, y, index, step, terms, values, rows):
        scale, high, factor, offset = terms
        for u in range(rows):
            read(x, index + u * step, values, u * slots)
        for k in range(rows * slots):
            j = k % slots
            values[k] = output(values[k] * scale[j], high[j], factor[j], offset[j])
        for u in range(rows):
            write(y, index + u * step, values, u * slots)

    def kernel(x, terms, y, rows, channels, block):
        values = cuda.local.array(held, working)
        scale = cuda.local.array(slots, working)
        high = cuda.local.array(slots, working)
        factor = cuda.local.array(slots, working)
        offset = cuda.local.array(slots, working)
        _, channel, row, count = place(rows, channels, block)
        index, step = row * channels + channel, teams * channels
        if count > 0:
            read_terms(terms, channel, scale)
            read_terms(terms, channels + channel, high)
            read_terms(terms, 2 * channels + channel, factor)
            read_terms(terms, 3 * channels + channel, offset)
            here = (scale, high, factor, offset)
            grouped = count - count % ahead
            for k in range(0, grouped, ahead):
                put_rows(x, y, index + k * step, step, here, values, ahead)
            for k in range(grouped, count):
                put_rows(x, y, index + k * step, step, here, values, 1)

    return Kernel(kernel, ("address",) * 3 + ("index",) * 3, shape.threads)


def make_forward_along(element: Element, shape: ColumnShape) -> Kernel:
    """Return the kernel for ``x (outer, channels, inner)``.

    It takes the same addresses, and ``outer, channels, inner, block, segment``.
    """
    piece, lanes, working = shape.piece(element), shape.lanes, element.working
    held, turn = shape.ahead * shape.pieces * piece, lanes * piece * shape.pieces
    deep = shape.teams * shape.ahead
    read, write = make_read_along(element, shape), make_write_along(element, shape)
    place, load = make_place_along(shape), make_load_one(working_element(element))
    output = device(channel_output)

    def kernel(x, terms, y, outer, channels, inner, block, segment):
        values = cuda.local.array(held, working)
        thread = cuda.threadIdx.x
        _, channel, first, entries, width = place(outer, channels, inner, block, segment)
        jump = channels * inner
        scale, high = load(terms, channel), load(terms, channels + channel)
        factor, offset = load(terms, 2 * channels + channel), load(terms, 3 * channels + channel)
        for entry in range(thread // lanes, entries, deep):
            begin, left = first + entry * jump, entries - entry
            for base in range(thread % lanes * piece, width, turn):
                read(x, begin, jump, left, base, width, values)
                for k in range(held):
                    values[k] = output(values[k] * scale, high, factor, offset)
                write(y, begin, jump, left, base, width, values)

    return Kernel(kernel, ("address",) * 3 + ("index",) * 5, shape.threads)
