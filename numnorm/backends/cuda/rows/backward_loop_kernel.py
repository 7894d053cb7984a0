"""The backward kernels of rows that do not fit the registers of a block. Each block has one row.

If segments share parameters, or the norm has none, a block reads its row twice: for the sums, and
for dx, mostly from caches.

If columns have parameters, their gradients are sums over rows. These sums do not fit the registers
of a block either, and a table of them would cause more memory traffic than the rows. So one kernel
only computes the coefficients of each row, and `make_row_backward_columns` reads all rows again by
columns: each thread has the sums of a few columns in registers.

A row of the table of coefficients has eight numbers of the compute type: ``scale, mean_hi, mean_lo,
factor`` of `make_saved_statistics`, the means of g = dL/dxhat and of g * xhat over the row, as
`make_means` returns them, and two zeros. Kernels access it in 16-byte vectors.
"""

import dataclasses
import functools
from typing import Any

from numnorm.backends.contract.norms import Formula
from numnorm.backends.cuda.compiler.element_type import ElementType, compute_element_type
from numnorm.backends.cuda.compiler.target import (
    Kernel,
    constant,
    cuda,
    device,
    make_load,
    make_store,
    make_store_one,
)
from numnorm.backends.cuda.compiler.vector_access import make_as_tuple
from numnorm.backends.cuda.rows.arguments import (
    SIZES,
    STATISTICS,
    SUMS,
    parameters_kind,
    scaling_kind,
)
from numnorm.backends.cuda.rows.backward_kernel import (
    backward_parameters,
    make_column_gradient_sums,
    make_normalize,
    make_row_means,
    make_segment_weight,
    make_sums_in_segment,
    make_write_gradient,
    smem_for_sums,
)
from numnorm.backends.cuda.rows.parameter_sums import ROWS_BETWEEN_FLUSHES, make_flush
from numnorm.backends.cuda.statistics.row_statistics import make_saved_statistics
from numnorm.backends.cuda.threads.reductions import make_add_each, make_joined, make_team_two_sums
from numnorm.backends.cuda.threads.row_columns import (
    RowColumns,
    Weights,
    make_first_weight,
    make_read_columns,
    make_weight,
    row_columns,
)
from numnorm.backends.cuda.threads.row_shape import RowShape

# The table of coefficients

COEFFICIENTS = 8
_USED = 6


@functools.cache
def make_write_coefficients(element: ElementType) -> Any:
    """Return a device function ``write_coefficients(address, row, coefficients, means, buffer)``.

    It stores a row of the table at `address`: the four numbers `coefficients` and the two numbers
    `means`, those of g and of g * xhat. `buffer` is a local array of `COEFFICIENTS` numbers.
    """
    of = compute_element_type(element)
    store, as_tuple = make_store(of), make_as_tuple(of)
    vector = of.vector
    zero = constant(of, 0.0)

    @device
    def write_coefficients(address, row, coefficients, means, buffer):
        for k in range(4):
            buffer[k] = coefficients[k]
        for k in range(2):
            buffer[4 + k], buffer[6 + k] = means[k], zero
        for k in range(0, COEFFICIENTS, vector):
            store(address, row * COEFFICIENTS + k, as_tuple(buffer, k))

    return write_coefficients


@functools.cache
def make_read_coefficients(element: ElementType) -> Any:
    """Return a device function ``read_coefficients(address, row, buffer)``.

    It returns ``(scale, mean_hi, mean_lo, factor), (mean of g, mean of g * xhat)`` from a row of
    the table at `address`. `buffer` is a local array of `COEFFICIENTS` numbers.
    """
    of = compute_element_type(element)
    load = make_load(of, unchanging=True)
    vector = of.vector

    @device
    def read_coefficients(address, row, buffer):
        for k in range(0, _USED, vector):
            numbers = load(address, row * COEFFICIENTS + k)
            for j in range(vector):
                buffer[k + j] = numbers[j]
        return (buffer[0], buffer[1], buffer[2], buffer[3]), (buffer[4], buffer[5])

    return read_coefficients


# Kernels of a row for each block

# The most 16-byte vectors of x and of dy that a thread loads at a time. A kernel that also writes
# loads at most eight elements, because registers limit the blocks of a multiprocessor.
_VECTORS = 2


def _columns(element: ElementType, shape: RowShape, vectors: int) -> RowColumns:
    """Return the columns that a thread holds at a time."""
    return row_columns(element, dataclasses.replace(shape, vectors=vectors))


def _columns_of_segment(element: ElementType, shape: RowShape) -> RowColumns:
    """Return the columns of a segment that a thread holds at a time."""
    few = shape.whole and element.itemsize > 2
    return _columns(element, shape, _VECTORS if few else 1)


def _make_read_segment(formula: Formula, element: ElementType, columns: RowColumns) -> Any:
    """Return a device function that reads a thread's next columns of a segment.

    ``read_segment(arrays, first, at, limit, coefficients, weights, registers)`` returns the sums
    of `make_sums_in_segment`. `arrays` are dy and x; `weights` are gamma and beta of the segment;
    `registers` are local arrays that become xhat and g.
    """
    read_columns, normalize = make_read_columns(element, columns), make_normalize(element, columns)
    sums_in_segment = make_sums_in_segment(formula, element, columns)

    @device
    def read_segment(arrays, first, at, limit, coefficients, weights, registers):
        values, grads = registers
        read_columns(arrays[1], first, at, limit, values)
        read_columns(arrays[0], first, at, limit, grads)
        normalize(values, at, limit, coefficients)
        return sums_in_segment(grads, values, at, 0, limit, weights[0], weights[1])

    return read_segment


def _make_sums_of_segments(
    formula: Formula, element: ElementType, weights: Weights, count: int, shape: RowShape
) -> Any:
    """Return a device function that stores the sums of each segment of a row.

    ``sums_of_segments(arrays, parameters, sums, row, at, sizes, coefficients, registers, smem)``
    returns this thread's parts of the sums of g and of g * xhat over the row, and the index of the
    half of `smem` that is free.
    """
    columns = _columns_of_segment(element, shape)
    compute_type = element.compute_type
    zero = constant(element, 0.0)
    table = compute_element_type(element)
    team, teams = shape.team, shape.teams
    step = columns.reach
    gamma_of, beta_of = (make_segment_weight(element, of) for of in (weights.gamma, weights.beta))
    read_segment = _make_read_segment(formula, element, columns)
    add_each = make_add_each(4)
    joined = make_joined(element, table)
    store_one = make_store_one(table)
    team_two_sums = make_team_two_sums(team)
    half = smem_for_sums(shape)

    @device
    def sums_of_segments(arrays, parameters, sums, row, at, sizes, coefficients, registers, smem):
        rows, width, segment, channels = sizes
        segment_count = width // segment
        hi, lo = cuda.local.array(4, compute_type), cuda.local.array(4, compute_type)
        for k in range(4):
            hi[k], lo[k] = zero, zero
        mine, start, turn = cuda.threadIdx.x // team, 0, 0
        channel, next_channel = (row * segment_count + mine) % channels, teams % channels
        while start < segment_count:
            # A team behind the last segment takes part in the sums with a segment of no elements.
            here, limit = at, segment if start + mine < segment_count else 0
            of_segment = gamma_of(parameters.gamma, channel), beta_of(parameters.beta, channel)
            index = row * segment_count + start + mine
            first = index * segment
            while here < limit:
                sums_here = read_segment(
                    arrays, first, here, limit, coefficients, of_segment, registers
                )
                add_each(sums_here, hi, lo)
                here += step
            if count > 0:
                of_gamma, of_beta = joined(hi[2], lo[2]), joined(hi[3], lo[3])
                of_gamma, of_beta = team_two_sums(of_gamma, of_beta, smem[turn:])
                turn = half - turn
                if limit > 0 and cuda.threadIdx.x % team == 0:
                    store_one(sums, index, of_gamma)
                    if count > 1:
                        store_one(sums, rows * segment_count + index, of_beta)
                for k in range(2, 4):
                    hi[k], lo[k] = zero, zero
            channel += next_channel
            channel -= channels if channel >= channels else 0
            start += teams
        return joined(hi[0], lo[0]), joined(hi[1], lo[1]), turn

    return sums_of_segments


def _make_write_segments(
    formula: Formula, element: ElementType, weights: Weights, shape: RowShape
) -> Any:
    """Return a device function that stores dx of a row.

    ``write_segments(arrays, parameters, dx, row, at, sizes, coefficients, means, registers)``.
    Each thread writes the elements that it read for the sums, so dx may be dy or x.
    """
    columns = _columns_of_segment(element, shape)
    team, teams = shape.team, shape.teams
    gamma_of, beta_of = (make_segment_weight(element, of) for of in (weights.gamma, weights.beta))
    read_segment = _make_read_segment(formula, element, columns)
    step = columns.reach
    write_gradient = make_write_gradient(element, columns)

    @device
    def write_segments(arrays, parameters, dx, row, at, sizes, coefficients, means, registers):
        _, width, segment, channels = sizes
        segment_count, number = width // segment, cuda.threadIdx.x // team
        values, grads = registers
        scale, factor = coefficients[0], coefficients[3]
        channel, next_channel = (row * segment_count + number) % channels, teams % channels
        while number < segment_count:
            of_segment = gamma_of(parameters.gamma, channel), beta_of(parameters.beta, channel)
            first, here = (row * segment_count + number) * segment, at
            while here < segment:
                read_segment(arrays, first, here, segment, coefficients, of_segment, registers)
                write_gradient(dx, 0, first, here, segment, grads, values, means, scale, factor)
                here += step
            channel += next_channel
            channel -= channels if channel >= channels else 0
            number += teams

    return write_segments


def make_row_backward_loop(
    formula: Formula,
    element: ElementType,
    saved: ElementType,
    weights: Weights,
    count: int,
    shape: RowShape,
) -> Kernel:
    """Return the kernel of rows of any width whose segments share parameters, or have none.

    It has a block for each row, takes what `backward_parameters` names, and stores the same sums
    of each segment as `make_row_backward`. The segments of a row are divided among the teams of
    the block. Their sums need no barrier unless the block is one team.
    """
    columns = _columns_of_segment(element, shape)
    compute_type = element.compute_type
    team = shape.team
    lanes, slots = columns.lanes, columns.slots
    half = smem_for_sums(shape)
    statistics = make_saved_statistics(formula, element, saved)
    means_of = make_row_means(element)
    sums_of_segments = _make_sums_of_segments(formula, element, weights, count, shape)
    block_two_sums = make_team_two_sums(shape.threads)
    write_segments = _make_write_segments(formula, element, weights, shape)
    both = 2 * half

    def kernel(dy, x, saved, parameters, dx, dtotal, partials, sizes, parts, scaling):
        smem = cuda.shared.array(both, compute_type)
        values = cuda.local.array(slots, compute_type)
        grads = cuda.local.array(slots, compute_type)
        row, at = cuda.blockIdx.x, cuda.threadIdx.x % team * lanes
        coefficients = statistics(saved.mean, saved.rstd, row)
        arrays, registers = (dy, x), (values, grads)
        g, g_xhat, turn = sums_of_segments(
            arrays, parameters, partials.sums, row, at, sizes, coefficients, registers, smem
        )
        g, g_xhat = block_two_sums(g, g_xhat, smem[turn:])
        means = means_of(g, g_xhat, coefficients[0], coefficients[3], scaling)
        write_segments(arrays, parameters, dx, row, at, sizes, coefficients, means, registers)

    return Kernel(kernel, backward_parameters(element), shape.threads)


def make_row_backward_coefficients(
    formula: Formula, element: ElementType, saved: ElementType, weights: Weights, shape: RowShape
) -> Kernel:
    """Return the kernel that stores the coefficients of rows for `make_row_backward_columns`.

    It has a block for each row. It takes the addresses of dy and x, `SavedStatistics`,
    `RowParameters`, the address of the table of coefficients, `RowSizes` and `RowScaling`.
    """
    columns = _columns(element, shape, _VECTORS)
    compute_type = element.compute_type
    lanes, slots, step = columns.lanes, columns.slots, columns.reach
    statistics = make_saved_statistics(formula, element, saved)
    means_of = make_row_means(element)
    read_columns, normalize = make_read_columns(element, columns), make_normalize(element, columns)
    weight_of = make_weight(element, weights.gamma, columns, shared=False)
    bias_of = make_weight(element, weights.beta, columns, shared=False)
    first_weight = make_first_weight(shared=False)
    gradient_sums = make_column_gradient_sums(formula, element, 0, columns)
    add_each = make_add_each(2)
    joined = make_joined(element, compute_element_type(element))
    block_two_sums = make_team_two_sums(shape.threads)
    smem_size = smem_for_sums(shape)
    write_coefficients = make_write_coefficients(element)
    zero = constant(element, 0.0)

    def kernel(dy, x, saved, parameters, coefficients, sizes, scaling):
        smem = cuda.shared.array(smem_size, compute_type)
        values = cuda.local.array(slots, compute_type)
        grads = cuda.local.array(slots, compute_type)
        weight = cuda.local.array(slots, compute_type)
        bias = cuda.local.array(slots, compute_type)
        buffer = cuda.local.array(COEFFICIENTS, compute_type)
        hi, lo = cuda.local.array(2, compute_type), cuda.local.array(2, compute_type)
        for k in range(2):
            hi[k], lo[k] = zero, zero
        row, at, width = cuda.blockIdx.x, cuda.threadIdx.x * lanes, sizes.width
        first, first_of_weights = row * width, first_weight(row, sizes)
        of_row = statistics(saved.mean, saved.rstd, row)
        while at < width:
            read_columns(x, first, at, width, values)
            read_columns(dy, first, at, width, grads)
            weight_of(parameters.gamma, first_of_weights, at, sizes, weight)
            bias_of(parameters.beta, first_of_weights, at, sizes, bias)
            normalize(values, at, width, of_row)
            add_each(gradient_sums(grads, values, weight, bias, None, None), hi, lo)
            at += step
        g, g_xhat = block_two_sums(joined(hi[0], lo[0]), joined(hi[1], lo[1]), smem)
        if cuda.threadIdx.x == 0:
            means = means_of(g, g_xhat, of_row[0], of_row[3], scaling)
            write_coefficients(coefficients, row, of_row, means, buffer)

    groups = STATISTICS, parameters_kind(element), "address", SIZES, scaling_kind(element)
    return Kernel(kernel, ("address", "address", *groups), shape.threads)


# The kernel that reads rows by columns


def make_row_backward_columns(
    formula: Formula, element: ElementType, weights: Weights, count: int, shape: RowShape
) -> Kernel:
    """Return the kernel that stores dx, and sums for `count` parameters.

    It has a block for each strip of columns of each part of the rows; the blocks of a part are
    neighbours. It takes the addresses of dy and x; `RowParameters`; the address of the table of
    coefficients that `make_row_backward_coefficients` stores; the address of dx, which may be dy
    or x; `PartialSums` as for `make_row_backward`; `RowSizes`; and the number of parts.
    """
    columns = row_columns(element, shape)
    zero = constant(element, 0.0)
    compute_type = element.compute_type
    lanes, slots, reach = columns.lanes, columns.slots, columns.reach
    weight_of = make_weight(element, weights.gamma, columns, shared=False)
    bias_of = make_weight(element, weights.beta, columns, shared=False)
    first_weight = make_first_weight(shared=False)
    read_columns, normalize = make_read_columns(element, columns), make_normalize(element, columns)
    gradient_sums = make_column_gradient_sums(formula, element, count, columns)
    write_gradient = make_write_gradient(element, columns)
    read_coefficients = make_read_coefficients(element)
    flush = make_flush(element, shape)

    def kernel(dy, x, parameters, coefficients, dx, partials, sizes, parts):
        values = cuda.local.array(slots, compute_type)
        grads = cuda.local.array(slots, compute_type)
        weight = cuda.local.array(slots, compute_type)
        bias = cuda.local.array(slots, compute_type)
        of_gamma = cuda.local.array(slots, compute_type)
        of_beta = cuda.local.array(slots, compute_type)
        buffer = cuda.local.array(COEFFICIENTS, compute_type)
        rows, width, _, _ = sizes
        strips = (width + reach - 1) // reach
        row, at = cuda.blockIdx.x // strips, cuda.blockIdx.x % strips * reach
        at += cuda.threadIdx.x * lanes
        # All rows of a part have one channel.
        index, first_of_weights, fresh = row * width, first_weight(row, sizes), True
        weight_of(parameters.gamma, first_of_weights, at, sizes, weight)
        bias_of(parameters.beta, first_of_weights, at, sizes, bias)
        while fresh or row < rows:
            for k in range(slots):
                of_gamma[k], of_beta[k] = zero, zero
            stop = min(row + ROWS_BETWEEN_FLUSHES * parts, rows)
            while row < stop:
                first = row * width
                read_columns(x, first, at, width, values)
                read_columns(dy, first, at, width, grads)
                statistics, means = read_coefficients(coefficients, row, buffer)
                normalize(values, at, width, statistics)
                gradient_sums(grads, values, weight, bias, of_gamma, of_beta)
                scale, factor = statistics[0], statistics[3]
                write_gradient(dx, 0, first, at, width, grads, values, means, scale, factor)
                row += parts
            last = row >= rows
            flush(of_gamma, at, width, index, fresh, last, partials, None)
            if count > 1:
                flush(of_beta, at, width, index + parts * width, fresh, last, partials, None)
            fresh = False

    arrays = "address", "address", parameters_kind(element), "address", "address", SUMS
    return Kernel(kernel, (*arrays, SIZES, "index"), shape.threads)
