"""The forward kernel of every norm whose statistics are shared by a row, held in registers."""

import dataclasses
from typing import Any

from numnorm.backends.contract.norms import Formula
from numnorm.backends.cuda.compiler.element_type import Element
from numnorm.backends.cuda.compiler.target import (
    Kernel,
    constant,
    cuda,
    device,
    make_load_one,
    make_store_one,
)
from numnorm.backends.cuda.statistics.row_normalizer import (
    make_inverse_deviation,
    make_power_of_two,
)
from numnorm.backends.cuda.statistics.saved import make_joined_statistics
from numnorm.backends.cuda.threads.group_reductions import WARP, make_team_largest, make_team_sum
from numnorm.backends.cuda.threads.row_columns import (
    RowColumns,
    make_read_columns,
    make_write_columns,
    row_columns,
)
from numnorm.backends.cuda.threads.row_parameters import Weights, make_first_weight, make_weight
from numnorm.backends.cuda.threads.row_shape import RowShape

# Folds that no barrier keeps apart need places of their own in shared memory.
_ROOMS = 4


def _columns_in_registers(element: Element, shape: RowShape) -> tuple[RowColumns, RowColumns]:
    """Return a thread's columns, and those of 16 bytes of them, which it handles at a time.

    A row fills all that its threads hold but the last 16 bytes of each.
    """
    step = row_columns(element, dataclasses.replace(shape, pieces=1))
    columns = row_columns(element, shape)
    return dataclasses.replace(columns, sure=columns.pieces - step.pieces), step


def _make_spread(formula: Formula, element: Element, shape: RowShape) -> Any:
    """Return a device function ``spread(values, origin, at, width, share, room)``.

    It finds ``high, low, m2`` of a row in registers: the mean is ``high + low``, or 0 if the norm
    is not centred, and `m2` the sum of the squared deviations. The values become what they deviate
    from `high`. `origin` is any of them: a constant row then gives exactly that constant.
    """
    team_sum, zero = make_team_sum(element, shape.team), constant(element, 0.0)
    columns, warps = _columns_in_registers(element, shape)[0], max(1, shape.threads // WARP)
    lanes, pieces, stride, slots = columns.lanes, columns.pieces, columns.stride, columns.slots
    sure, sure_slots = columns.sure, columns.sure * columns.lanes

    @device
    def mean_of(values, origin, at, width, share, room):
        total = zero
        for k in range(sure_slots):
            total += values[k] - origin
        for p in range(sure, pieces):
            if at + p * stride < width:
                for j in range(lanes):
                    total += values[p * lanes + j] - origin
        return origin + team_sum(total, room) * share

    @device
    def centred(values, origin, at, width, share, room):
        high = mean_of(values, origin, at, width, share, room)
        first, second = zero, zero
        for k in range(sure_slots):
            deviation = values[k] - high
            values[k] = deviation
            first += deviation
            second += deviation * deviation
        for p in range(sure, pieces):
            if at + p * stride < width:
                for j in range(lanes):
                    deviation = values[p * lanes + j] - high
                    values[p * lanes + j] = deviation
                    first += deviation
                    second += deviation * deviation
        first = team_sum(first, room[warps:])
        second = team_sum(second, room[2 * warps :])
        low = first * share
        m2 = second - first * low
        # max() would turn a NaN into 0.
        return high, low, zero if m2 < zero else m2

    @device
    def uncentred(values, origin, at, width, share, room):
        second = zero
        for k in range(slots):
            second += values[k] * values[k]  # those that are not there are 0
        return zero, zero, team_sum(second, room[warps:])

    return centred if formula.centred else uncentred


def _make_rescale(element: Element, shape: RowShape) -> Any:
    """Return a device function ``rescale(values, least, room)``.

    It multiplies a row by the power of two, which it returns, that brings its largest absolute
    value, or `least`, near 1: then every sum of squares is in range, and no digit is lost. The
    room is not that of the next sum, as some threads may still look at it then.
    """
    largest_of = make_team_largest(element, shape.team)
    power_of_two, slots = make_power_of_two(element), shape.pieces * element.vector

    @device
    def rescale(values, least, room):
        largest = least
        for k in range(slots):
            largest = max(largest, abs(values[k]))
        scale = power_of_two(largest_of(largest, room))
        for k in range(slots):
            values[k] *= scale
        return scale

    return rescale


def make_write_normalized(
    formula: Formula, element: Element, weights: Weights, columns: RowColumns
) -> Any:
    """Return a device function that stores y at a thread's columns.

    ``write_normalized(arrays, numbers, firsts, at, cut, low, factor, values, slot)`` takes
    ``(values - low) * factor`` as the normalized values, from `slot` on. The arrays are ``gamma,
    beta, y``, and `firsts` are where the row begins in y and in the parameters.
    """
    gamma_of = make_weight(element, weights.gamma, columns, shared=weights.shared)
    beta_of = make_weight(element, weights.beta, columns, shared=weights.shared)
    write_columns, forward = make_write_columns(element, columns), device(formula.forward)
    slots, working = columns.slots, element.working

    @device
    def write_normalized(arrays, numbers, firsts, at, cut, low, factor, values, slot):
        weight = cuda.local.array(slots, working)
        bias = cuda.local.array(slots, working)
        gamma_of(arrays[0], numbers[0], firsts[1], at, cut, weight)
        beta_of(arrays[1], numbers[1], firsts[1], at, cut, bias)
        for k in range(slots):
            xhat = (values[slot + k] - low) * factor
            weight[k] = forward(xhat, weight[k], bias[k])
        write_columns(arrays[2], firsts[0], at, cut[0], weight)

    return write_normalized


def _make_write_row(formula: Formula, element: Element, weights: Weights, shape: RowShape) -> Any:
    """Return a device function that stores y of a row in registers.

    ``write_row(arrays, numbers, row, at, cut, low, factor, values)``, as `make_write_normalized`.
    """
    step = _columns_in_registers(element, shape)[1]
    sure_step = dataclasses.replace(step, sure=step.pieces)
    write_last = make_write_normalized(formula, element, weights, step)
    write_sure = make_write_normalized(formula, element, weights, sure_step)
    first_weight = make_first_weight(shared=weights.shared)
    last, reach, slots = shape.pieces - 1, step.reach, step.slots

    @device
    def write_row(arrays, numbers, row, at, cut, low, factor, values):
        firsts = row * cut[0], first_weight(row, cut)
        for p in range(last):
            here = at + p * reach
            write_sure(arrays, numbers, firsts, here, cut, low, factor, values, p * slots)
        here = at + last * reach
        write_last(arrays, numbers, firsts, here, cut, low, factor, values, last * slots)

    return write_row


def make_row_forward(
    formula: Formula, element: Element, saved: Element, weights: Weights, shape: RowShape
) -> Kernel:
    """Return the kernel of rows that fit the registers of a team.

    It takes ``x, gamma, beta, y, mean, rstd`` as addresses, mean and rstd 0 if they are not to be
    saved; ``rows, width, run, channels``; and the numbers ``gamma, beta`` where there are no
    arrays of them, ``share`` (1 / width), ``scale_share`` (1 over the divisor of the squares),
    ``eps, eps_on_deviation`` and ``root_eps``, the root of eps.
    """
    columns, working = _columns_in_registers(element, shape)[0], element.working
    team, teams, lanes, slots = shape.team, shape.teams, columns.lanes, columns.slots
    read_row, load_one = make_read_columns(element, columns), make_load_one(element)
    rescale, spread = _make_rescale(element, shape), _make_spread(formula, element, shape)
    write_row = _make_write_row(formula, element, weights, shape)
    inverse_deviation, save = make_inverse_deviation(element), make_save(formula, element, saved)
    any_of = make_team_largest(element, max(team, WARP))
    zero, one = constant(element, 0.0), constant(element, 1.0)
    smallest = constant(element, element.smallest_variance)
    infinity, warps = constant(element, float("inf")), max(1, shape.threads // WARP)
    rooms = _ROOMS * warps

    def kernel(
        x, gamma, beta, y, mean, rstd, rows, width, run, channels,
        gamma_number, beta_number, share, scale_share, eps, eps_on_deviation, root_eps,
    ):  # fmt: skip
        room = cuda.shared.array(rooms, working)
        values = cuda.local.array(slots, working)
        thread, scale = cuda.threadIdx.x, one
        # A team behind the last row goes along, for the barriers' sake, and stores nothing.
        row = cuda.blockIdx.x * teams + thread // team
        there = row < rows
        row = min(row, rows - 1)
        first = row * width
        at = thread % team * lanes
        origin = load_one(x, first)
        read_row(x, first, at, width, values)
        high, low, m2 = spread(values, origin, at, width, share, room)
        total = m2 * scale_share + eps + eps_on_deviation * eps_on_deviation
        poor = not (smallest < total and total < infinity)
        if any_of(one if poor else zero, room[3 * warps :]) > zero:
            read_row(x, first, at, width, values)
            least = max(root_eps, eps_on_deviation) if poor else infinity
            scale = rescale(values, least, room[2 * warps :])
            high, low, m2 = spread(values, origin * scale, at, width, share, room)
            eps = root_eps * scale * (root_eps * scale) if poor else eps
            eps_on_deviation = eps_on_deviation * scale
        factor = inverse_deviation(m2 * scale_share, eps, eps_on_deviation)
        if there:
            arrays, numbers = (gamma, beta, y), (gamma_number, beta_number)
            write_row(arrays, numbers, row, at, (width, run, channels), low, factor, values)
        if there and mean != 0 and thread % team == 0:
            save(mean, rstd, row, high, low, factor, scale)

    numbers = (element.working_name,) * 7
    return Kernel(kernel, ("address",) * 6 + ("index",) * 4 + numbers, shape.threads)


def make_save(formula: Formula, element: Element, saved: Element) -> Any:
    """Return a device function that stores a row's mean and rstd; 1 / rstd where there is none."""
    store, joined = make_store_one(saved), make_joined_statistics(formula, element, saved)

    @device
    def save(mean, rstd, row, high, low, factor, scale):
        middle, reciprocal = joined(high, low, factor, scale)
        store(rstd, row, reciprocal)
        store(mean, row, middle)

    return save
