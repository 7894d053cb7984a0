"""The forward kernel of rows that do not fit the registers of a block: it reads them twice."""

import dataclasses
from typing import Any

from numnorm.backends.contract.norms import Formula
from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import (
    Kernel,
    constant,
    cuda,
    device,
    make_load_one,
    reciprocal,
)
from numnorm.backends.cuda.rows.forward_kernel import (
    forward_parameters,
    make_save,
    make_write_normalized,
)
from numnorm.backends.cuda.statistics.row_statistics import (
    make_inverse_deviation,
    make_leaves_range,
    make_power_of_two,
    make_squared_deviations,
)
from numnorm.backends.cuda.threads.reductions import WARP, make_team_largest, make_team_sum
from numnorm.backends.cuda.threads.row_columns import (
    RowColumns,
    Weights,
    make_first_weight,
    make_read_columns,
    row_columns,
)
from numnorm.backends.cuda.threads.row_shape import RowShape

# Reductions that no barrier separates need different parts of shared memory.
_SMEM_PER_WARP = 4
# The 16-byte vectors that a thread reads at a time if it reads element by element. One vector of
# 16-bit elements is eight loads already.
_SINGLE_VECTORS = 2


def _columns_of_turn(element: ElementType, shape: RowShape) -> tuple[RowColumns, RowColumns]:
    """Return a thread's columns of one turn of the loop, and of a turn that is inside the row."""
    few = shape.whole or element.itemsize == 2
    vectors = 1 if few else _SINGLE_VECTORS
    columns = row_columns(element, dataclasses.replace(shape, vectors=vectors))
    return columns, dataclasses.replace(columns, sure=columns.vectors)


def _make_sums(element: ElementType, shape: RowShape) -> Any:
    """Return a device function ``sums(x, first, at, stop, scale, mean_hi, values)``.

    It returns a thread's sums of ``x * scale - mean_hi`` and of its square, over the columns
    before `stop`.
    """
    columns, all_sure = _columns_of_turn(element, shape)
    read_some = make_read_columns(element, columns)
    read_all = make_read_columns(element, all_sure)
    lanes, vectors, stride, slots = columns.lanes, columns.vectors, columns.stride, columns.slots
    reach = columns.reach
    last = (vectors - 1) * stride
    zero = constant(element, 0.0)

    @device
    def sums(x, first, at, stop, scale, mean_hi, values):
        total, squares = zero, zero
        while at + last < stop:
            read_all(x, first, at, stop, values)
            for k in range(slots):
                deviation = values[k] * scale - mean_hi
                total += deviation
                squares += deviation * deviation
            at += reach
        if at < stop:
            read_some(x, first, at, stop, values)
            for p in range(vectors):
                if at + p * stride < stop:
                    for j in range(lanes):
                        deviation = values[p * lanes + j] * scale - mean_hi
                        total += deviation
                        squares += deviation * deviation
        return total, squares

    return sums


def _make_statistics(formula: Formula, element: ElementType, shape: RowShape) -> Any:
    """Return a device function that computes ``mean_hi, mean_lo, m2`` of a row times a scale.

    ``statistics(x, first, at, width, scale, inv_count, values, smem)``. It sums deviations from the
    mean of the row's first columns. If the true mean is far from that mean, it sums once more,
    around the mean that the first sums give.
    """
    sums = _make_sums(element, shape)
    team_sum = make_team_sum(shape.threads)
    load_one, inverse = make_load_one(element), reciprocal(element)
    squared_deviations = make_squared_deviations(element)
    zero = constant(element, 0.0)
    warps = shape.threads // WARP
    compute_type = element.compute_type
    reach = _columns_of_turn(element, shape)[0].reach

    @device
    def around(x, first, at, width, scale, mean_hi, inv_count, values, smem):
        total, squares = sums(x, first, at, width, scale, mean_hi, values)
        total = team_sum(total, smem[warps:])
        mean_lo = total * inv_count
        m2 = squared_deviations(team_sum(squares, smem[2 * warps :]), total, mean_lo)
        return mean_lo, m2, total * mean_lo

    @device
    def centred(x, first, at, width, scale, inv_count, values, smem):
        pivot = load_one(x, first) * scale
        seen = min(width, reach)
        total, _ = sums(x, first, at, seen, scale, pivot, values)
        mean_hi = pivot + team_sum(total, smem) * inverse(compute_type(seen))
        mean_lo, m2, lost = around(x, first, at, width, scale, mean_hi, inv_count, values, smem)
        if lost > m2:
            mean_hi += mean_lo
            mean_lo, m2, _ = around(x, first, at, width, scale, mean_hi, inv_count, values, smem)
        return mean_hi, mean_lo, m2

    @device
    def uncentred(x, first, at, width, scale, inv_count, values, smem):
        _, squares = sums(x, first, at, width, scale, zero, values)
        return zero, zero, team_sum(squares, smem)

    return centred if formula.centred else uncentred


def _make_largest(element: ElementType, shape: RowShape) -> Any:
    """Return a device function ``largest(x, first, at, width, least, values, smem)``.

    It returns the largest absolute value of a row, at least `least`.
    """
    columns = _columns_of_turn(element, shape)[0]
    slots, reach = columns.slots, columns.reach
    read = make_read_columns(element, columns)
    team_largest = make_team_largest(shape.threads)

    @device
    def largest(x, first, at, width, least, values, smem):
        result = least
        while at < width:
            read(x, first, at, width, values)
            for k in range(slots):
                result = max(result, abs(values[k]))
            at += reach
        return team_largest(result, smem)

    return largest


def _make_write_turn(
    formula: Formula, element: ElementType, weights: Weights, columns: RowColumns
) -> Any:
    """Return a device function that reads a thread's columns of x again and stores y.

    ``write_turn(x, y, parameters, firsts, at, sizes, scale, coefficients, values)``:
    `coefficients` are of x * scale, and the other arguments are as in `make_write_normalized`.
    """
    read_columns = make_read_columns(element, columns)
    slots = columns.slots
    write_normalized = make_write_normalized(formula, element, weights, columns)

    @device
    def write_turn(x, y, parameters, firsts, at, sizes, scale, coefficients, values):
        read_columns(x, firsts[0], at, sizes.width, values)
        for k in range(slots):
            values[k] *= scale
        write_normalized(y, parameters, firsts, at, sizes, coefficients, values, 0)

    return write_turn


def make_row_forward_loop(
    formula: Formula, element: ElementType, saved: ElementType, weights: Weights, shape: RowShape
) -> Kernel:
    """Return the kernel of rows of any width, with one block for each row.

    It takes what `forward_parameters` names, and adds nothing; y may be x.
    """
    columns, all_sure = _columns_of_turn(element, shape)
    compute_type = element.compute_type
    warps = shape.threads // WARP
    lanes, slots, reach = columns.lanes, columns.slots, columns.reach
    write_some = _make_write_turn(formula, element, weights, columns)
    write_all = _make_write_turn(formula, element, weights, all_sure)
    first_weight = make_first_weight(shared=weights.shared)
    statistics = _make_statistics(formula, element, shape)
    largest = _make_largest(element, shape)
    inverse_deviation = make_inverse_deviation(element)
    save = make_save(formula, element, saved)
    power_of_two = make_power_of_two(element)
    last = (columns.vectors - 1) * columns.stride
    leaves_range = make_leaves_range(element)
    one = constant(element, 1.0)
    smem_size = _SMEM_PER_WARP * warps

    def kernel(x, addition, parameters, y, saved, sizes, scaling, eps, root_eps):
        smem = cuda.shared.array(smem_size, compute_type)
        values = cuda.local.array(slots, compute_type)
        row, scale, width = cuda.blockIdx.x, one, sizes.width
        inv_count, inv_divisor, eps_on_deviation = scaling
        first, at = row * width, cuda.threadIdx.x * lanes
        mean_hi, mean_lo, m2 = statistics(x, first, at, width, scale, inv_count, values, smem)
        if leaves_range(m2 * inv_divisor, eps, eps_on_deviation):
            least = max(root_eps, eps_on_deviation)
            scale = power_of_two(largest(x, first, at, width, least, values, smem[3 * warps :]))
            mean_hi, mean_lo, m2 = statistics(x, first, at, width, scale, inv_count, values, smem)
            eps = root_eps * scale * (root_eps * scale)
            eps_on_deviation = eps_on_deviation * scale
        factor = inverse_deviation(m2 * inv_divisor, eps, eps_on_deviation)
        firsts, coefficients = (first, first_weight(row, sizes)), (mean_hi, mean_lo, factor)
        while at + last < width:
            write_all(x, y, parameters, firsts, at, sizes, scale, coefficients, values)
            at += reach
        if at < width:
            write_some(x, y, parameters, firsts, at, sizes, scale, coefficients, values)
        if saved.mean != 0 and cuda.threadIdx.x == 0:
            save(saved, row, mean_hi, mean_lo, factor, scale)

    return Kernel(kernel, forward_parameters(element), shape.threads)
