"""The kernels of the sums over each channel and part that the gradients of column norms need."""

from typing import Any

from numnorm.backends.cuda.columns.block_reductions import make_fold_sums
from numnorm.backends.cuda.columns.column_shape import ColumnShape
from numnorm.backends.cuda.columns.thread_elements import (
    make_read_along,
    make_read_coefficients,
    make_read_vector,
    make_work_across,
    make_work_along,
)
from numnorm.backends.cuda.compiler.element_type import FLOAT64, ElementType, compute_element_type
from numnorm.backends.cuda.compiler.target import (
    Kernel,
    constant,
    cuda,
    device,
    make_load_one,
    make_store_one,
)
from numnorm.backends.cuda.threads.group_reductions import WARP, make_team_sum

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
    read, slots = make_read_vector(element, shape), shape.vector_length(element)
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
    slots, ahead, compute_type = shape.vector_length(element), shape.ahead, element.compute_type
    threads, teams, lanes, kind = shape.threads, shape.teams, shape.lanes, FLOAT64.compute_type
    slot_count, value_count = threads * slots, ahead * slots
    coefficient_count, zero = _COEFFICIENTS * slots, constant(element, 0.0)
    work_of, fold = make_work_across(element, shape), make_fold_sums(shape, slots)
    add_rows = _make_add_across(element, shape, ahead)
    add_row = _make_add_across(element, shape, 1)
    read_coefficients, store = make_read_coefficients(element, shape), make_store_one(FLOAT64)

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
    vector_length, lanes, threads = shape.vector_length(element), shape.lanes, shape.threads
    turn = lanes * vector_length * shape.vectors
    value_count = shape.ahead * shape.vectors * vector_length
    deep, compute_type = shape.teams * shape.ahead, element.compute_type
    read, work_of = make_read_along(element, shape), make_work_along(shape)
    load, store = make_load_one(compute_element_type(element)), make_store_one(FLOAT64)
    team_sum, warps = make_team_sum(threads), max(1, threads // WARP)
    smem_size, kind, zero = _SMEM_PER_WARP * warps, FLOAT64.compute_type, constant(element, 0.0)

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
