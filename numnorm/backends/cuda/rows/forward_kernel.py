"""The forward kernel of all row norms, for rows that fit the registers of a team."""

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
    make_store_one,
)
from numnorm.backends.cuda.rows.arguments import (
    ADDITION,
    SIZES,
    STATISTICS,
    parameters_kind,
    scaling_kind,
)
from numnorm.backends.cuda.statistics.row_statistics import (
    make_inverse_deviation,
    make_joined_statistics,
    make_leaves_range,
    make_power_of_two,
    make_squared_deviations,
    normalized,
)
from numnorm.backends.cuda.threads.reductions import (
    WARP,
    make_any,
    make_team_largest,
    make_team_sum,
    make_team_two_sums,
)
from numnorm.backends.cuda.threads.row_columns import (
    RowColumns,
    Weights,
    make_first_weight,
    make_read_columns,
    make_weight,
    make_write_columns,
    row_columns,
)
from numnorm.backends.cuda.threads.row_shape import RowShape

# Reductions that no barrier separates need different parts of shared memory.
_SMEM_PER_WARP = 4


def forward_parameters(element: ElementType) -> tuple[Any, ...]:
    """Return the kinds of the parameters of a forward kernel.

    They are the address of x; `Addition`; `RowParameters`; the address of y; `SavedStatistics`;
    `RowSizes`; `RowScaling`; and the numbers ``eps`` and ``root_eps``, the square root of eps.
    """
    numbers = scaling_kind(element), element.compute_name, element.compute_name
    groups = ADDITION, parameters_kind(element), "address", STATISTICS, SIZES
    return "address", *groups, *numbers


def _columns_in_registers(element: ElementType, shape: RowShape) -> tuple[RowColumns, RowColumns]:
    """Return all columns of a thread, and the columns of one 16-byte vector.

    Only the last vector of a thread can lie behind the end of the row.
    """
    step = row_columns(element, dataclasses.replace(shape, vectors=1))
    columns = row_columns(element, shape)
    return dataclasses.replace(columns, sure=columns.vectors - step.vectors), step


def _make_row_statistics(formula: Formula, element: ElementType, shape: RowShape) -> Any:
    """Return a device function ``row_statistics(values, pivot, at, width, inv_count, smem)``.

    It returns ``mean_hi, mean_lo, m2`` of a row in registers: the mean is ``mean_hi + mean_lo``,
    or 0 if the norm is not centred, and `m2` is the sum of the squared deviations. It subtracts
    `mean_hi` from the values. `pivot` is the pivot, one of the values: it makes the mean of a
    constant row exact.
    """
    team_sum = make_team_sum(shape.team)
    zero = constant(element, 0.0)
    team_two_sums = make_team_two_sums(shape.team)
    squared_deviations = make_squared_deviations(element)
    columns = _columns_in_registers(element, shape)[0]
    warps = max(1, shape.threads // WARP)
    lanes, vectors, stride, slots = columns.lanes, columns.vectors, columns.stride, columns.slots
    sure = columns.sure
    sure_slots = columns.sure * columns.lanes

    @device
    def mean_of(values, pivot, at, width, inv_count, smem):
        total = zero
        for k in range(sure_slots):
            total += values[k] - pivot
        for p in range(sure, vectors):
            if at + p * stride < width:
                for j in range(lanes):
                    total += values[p * lanes + j] - pivot
        return pivot + team_sum(total, smem) * inv_count

    @device
    def centred(values, pivot, at, width, inv_count, smem):
        mean_hi = mean_of(values, pivot, at, width, inv_count, smem)
        first, second = zero, zero
        for k in range(sure_slots):
            deviation = values[k] - mean_hi
            values[k] = deviation
            first += deviation
            second += deviation * deviation
        for p in range(sure, vectors):
            if at + p * stride < width:
                for j in range(lanes):
                    deviation = values[p * lanes + j] - mean_hi
                    values[p * lanes + j] = deviation
                    first += deviation
                    second += deviation * deviation
        first, second = team_two_sums(first, second, smem[warps:])
        mean_lo = first * inv_count
        return mean_hi, mean_lo, squared_deviations(second, first, mean_lo)

    @device
    def uncentred(values, pivot, at, width, inv_count, smem):
        second = zero
        for k in range(slots):
            second += values[k] * values[k]  # values behind the end of the row are 0
        return zero, zero, team_sum(second, smem[warps:])

    return centred if formula.centred else uncentred


def _make_rescale(element: ElementType, shape: RowShape) -> Any:
    """Return a device function ``rescale(values, least, smem)``.

    It multiplies a row by a power of two that brings the largest absolute value of the row, or
    `least`, near 1, so that sums of squares stay in range. It returns the power. The next sum needs
    another part of shared memory, because some threads may still read `smem`.
    """
    largest_of = make_team_largest(shape.team)
    power_of_two = make_power_of_two(element)
    slots = shape.vectors * element.vector

    @device
    def rescale(values, least, smem):
        largest = least
        for k in range(slots):
            largest = max(largest, abs(values[k]))
        scale = power_of_two(largest_of(largest, smem))
        for k in range(slots):
            values[k] *= scale
        return scale

    return rescale


def make_write_normalized(
    formula: Formula, element: ElementType, weights: Weights, columns: RowColumns
) -> Any:
    """Return a device function that stores y at a thread's columns.

    ``write_normalized(y, parameters, firsts, at, sizes, coefficients, values, slot)`` normalizes
    the values from `slot` on. `coefficients` are ``mean_hi, mean_lo, factor``; `firsts` are the
    indices of the row's first element and of its first parameter.
    """
    gamma_of = make_weight(element, weights.gamma, columns, shared=weights.shared)
    beta_of = make_weight(element, weights.beta, columns, shared=weights.shared)
    write_columns = make_write_columns(element, columns)
    forward = device(formula.forward)
    slots = columns.slots
    compute_type = element.compute_type

    @device
    def write_normalized(y, parameters, firsts, at, sizes, coefficients, values, slot):
        mean_hi, mean_lo, factor = coefficients
        weight = cuda.local.array(slots, compute_type)
        bias = cuda.local.array(slots, compute_type)
        gamma_of(parameters.gamma, firsts[1], at, sizes, weight)
        beta_of(parameters.beta, firsts[1], at, sizes, bias)
        for k in range(slots):
            xhat = normalized(values[slot + k], mean_hi, mean_lo, factor)
            weight[k] = forward(xhat, weight[k], bias[k])
        write_columns(y, firsts[0], at, sizes.width, weight)

    return write_normalized


def _make_write_row(
    formula: Formula, element: ElementType, weights: Weights, shape: RowShape
) -> Any:
    """Return a device function that stores y of a row in registers.

    ``write_row(y, parameters, row, at, sizes, coefficients, values)``: the arguments are as in
    `make_write_normalized`.
    """
    step = _columns_in_registers(element, shape)[1]
    sure_step = dataclasses.replace(step, sure=step.vectors)
    write_last = make_write_normalized(formula, element, weights, step)
    write_sure = make_write_normalized(formula, element, weights, sure_step)
    first_weight = make_first_weight(shared=weights.shared)
    last = shape.vectors - 1
    reach, slots = step.reach, step.slots

    @device
    def write_row(y, parameters, row, at, sizes, coefficients, values):
        firsts = row * sizes.width, first_weight(row, sizes)
        for p in range(last):
            here = at + p * reach
            write_sure(y, parameters, firsts, here, sizes, coefficients, values, p * slots)
        here = at + last * reach
        write_last(y, parameters, firsts, here, sizes, coefficients, values, last * slots)

    return write_row


def _make_add_row(element: ElementType, shape: RowShape) -> Any:
    """Return a device function that adds a row of the residual to the values, and stores the sum.

    ``add_row(addition, first, at, width, active, values, smem)`` returns the first value of the
    row. The values become the rounded sum. Nothing is stored unless the team is `active`.
    """
    columns = _columns_in_registers(element, shape)[0]
    read_row, write_row = make_read_columns(element, columns), make_write_columns(element, columns)
    slots, is_half, team = columns.slots, element.itemsize == 2, shape.team
    compute_type = element.compute_type

    @device
    def add_row(addition, first, at, width, active, values, smem):
        others = cuda.local.array(slots, compute_type)
        read_row(addition.residual, first, at, width, others)
        for k in range(slots):
            values[k] += others[k]
        if active:
            write_row(addition.total, first, at, width, values)
            if is_half:  # memory has the rounded sum
                read_row(addition.total, first, at, width, values)
        # Others cannot compute it: the sum may be written over x or the residual.
        if cuda.threadIdx.x % team == 0:
            smem[cuda.threadIdx.x // team] = values[0]
        cuda.syncthreads()
        return smem[cuda.threadIdx.x // team]

    return add_row


def make_row_forward(
    formula: Formula,
    element: ElementType,
    saved: ElementType,
    weights: Weights,
    shape: RowShape,
    *,
    adds: bool = False,
) -> Kernel:
    """Return the kernel of rows that fit the registers of a team.

    It takes what `forward_parameters` names. If it `adds`, it normalizes the sum with a residual.
    """
    columns = _columns_in_registers(element, shape)[0]
    compute_type = element.compute_type
    team, teams = shape.team, shape.teams
    lanes, slots = columns.lanes, columns.slots
    read_row = make_read_columns(element, columns)
    load_one = make_load_one(element)
    rescale = _make_rescale(element, shape)
    row_statistics = _make_row_statistics(formula, element, shape)
    write_row = _make_write_row(formula, element, weights, shape)
    inverse_deviation = make_inverse_deviation(element)
    save = make_save(formula, element, saved)
    any_of = make_any(element, team)
    leaves_range = make_leaves_range(element)
    zero, one = constant(element, 0.0), constant(element, 1.0)
    infinity = constant(element, float("inf"))
    warps = max(1, shape.threads // WARP)
    pivots = _SMEM_PER_WARP * warps
    smem_size = pivots + teams if adds else pivots
    add_row = _make_add_row(element, shape)

    def kernel(x, addition, parameters, y, statistics, sizes, scaling, eps, root_eps):
        smem = cuda.shared.array(smem_size, compute_type)
        values = cuda.local.array(slots, compute_type)
        thread, scale, width = cuda.threadIdx.x, one, sizes.width
        inv_count, inv_divisor, eps_on_deviation = scaling
        # A team behind the last row takes part in the barriers, and stores nothing.
        row = cuda.blockIdx.x * teams + thread // team
        active = row < sizes.rows
        row = min(row, sizes.rows - 1)
        first = row * width
        at = thread % team * lanes
        pivot = load_one(x, first)
        read_row(x, first, at, width, values)
        if adds:
            pivot = add_row(addition, first, at, width, active, values, smem[pivots:])
            x = addition.total
        mean_hi, mean_lo, m2 = row_statistics(values, pivot, at, width, inv_count, smem)
        poor = leaves_range(m2 * inv_divisor, eps, eps_on_deviation)
        if any_of(poor):
            read_row(x, first, at, width, values)
            least = max(root_eps, eps_on_deviation) if poor else infinity
            scale = rescale(values, least, smem[3 * warps :])
            mean_hi, mean_lo, m2 = row_statistics(values, pivot * scale, at, width, inv_count, smem)
            eps = root_eps * scale * (root_eps * scale) if poor else eps
            eps_on_deviation = eps_on_deviation * scale
        factor = inverse_deviation(m2 * inv_divisor, eps, eps_on_deviation)
        if active:
            # `row_statistics` has subtracted mean_hi from the values already.
            write_row(y, parameters, row, at, sizes, (zero, mean_lo, factor), values)
        if active and statistics.mean != 0 and thread % team == 0:
            save(statistics, row, mean_hi, mean_lo, factor, scale)

    return Kernel(kernel, forward_parameters(element), shape.threads)


def make_save(formula: Formula, element: ElementType, saved: ElementType) -> Any:
    """Return a device function that stores a row's mean and rstd.

    ``save(statistics, row, mean_hi, mean_lo, factor, scale)``. For a norm without a mean it stores
    1 / rstd instead of the mean.
    """
    store = make_store_one(saved)
    joined = make_joined_statistics(formula, element, saved)

    @device
    def save(statistics, row, mean_hi, mean_lo, factor, scale):
        middle, reciprocal = joined(mean_hi, mean_lo, factor, scale)
        store(statistics.rstd, row, reciprocal)
        store(statistics.mean, row, middle)

    return save
