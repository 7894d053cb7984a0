"""The forward kernel of rows that no team's registers hold: they are read twice."""

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
    reciprocal,
)
from numnorm.backends.cuda.rows.forward_kernel import make_save, make_write_normalized
from numnorm.backends.cuda.statistics.row_normalizer import (
    make_inverse_deviation,
    make_power_of_two,
)
from numnorm.backends.cuda.threads.group_reductions import WARP, make_team_largest, make_team_sum
from numnorm.backends.cuda.threads.row_columns import RowColumns, make_read_columns, row_columns
from numnorm.backends.cuda.threads.row_parameters import Weights, make_first_weight
from numnorm.backends.cuda.threads.row_shape import RowShape

# Folds that no barrier keeps apart need places of their own in shared memory.
_ROOMS = 4
# Reads of single elements are short ones, of which more must be under way: 16 bytes of halves are
# enough of them.
_SINGLE_PIECES = 2


def _columns_of_turn(element: Element, shape: RowShape) -> tuple[RowColumns, RowColumns]:
    """Return what a thread holds at a time, and the same where no column of it is missing."""
    few = shape.whole or element.itemsize == 2
    pieces = 1 if few else _SINGLE_PIECES
    columns = row_columns(element, dataclasses.replace(shape, pieces=pieces))
    return columns, dataclasses.replace(columns, sure=columns.pieces)


def _make_sums(element: Element, shape: RowShape) -> Any:
    """Return a device function ``sums(x, first, at, stop, scale, high, values)``.

    The thread's sums of ``x * scale - high`` and of its squares, over the columns up to `stop`.
    """
    columns, all_sure = _columns_of_turn(element, shape)
    read_some, read_all = make_read_columns(element, columns), make_read_columns(element, all_sure)
    lanes, pieces, stride, slots = columns.lanes, columns.pieces, columns.stride, columns.slots
    reach, last, zero = columns.reach, (pieces - 1) * stride, constant(element, 0.0)

    @device
    def sums(x, first, at, stop, scale, high, values):
        total, squares = zero, zero
        while at + last < stop:
            read_all(x, first, at, stop, values)
            for k in range(slots):
                deviation = values[k] * scale - high
                total += deviation
                squares += deviation * deviation
            at += reach
        if at < stop:
            read_some(x, first, at, stop, values)
            for p in range(pieces):
                if at + p * stride < stop:
                    for j in range(lanes):
                        deviation = values[p * lanes + j] * scale - high
                        total += deviation
                        squares += deviation * deviation
        return total, squares

    return sums


def _make_statistics(formula: Formula, element: Element, shape: RowShape) -> Any:
    """Return a device function that finds ``high, low, m2`` of a row times a scale.

    ``statistics(x, first, at, width, scale, share, values, room)``. The sums are taken around the
    mean of the row's first columns, and once more around the mean that follows from them where that
    was a poor guess.
    """
    sums, team_sum = _make_sums(element, shape), make_team_sum(element, shape.threads)
    load_one, inverse = make_load_one(element), reciprocal(element)
    zero, warps, working = constant(element, 0.0), shape.threads // WARP, element.working
    reach = _columns_of_turn(element, shape)[0].reach

    @device
    def around(x, first, at, width, scale, high, share, values, room):
        total, squares = sums(x, first, at, width, scale, high, values)
        total = team_sum(total, room[warps:])
        low = total * share
        return low, total * low, team_sum(squares, room[2 * warps :])

    @device
    def centred(x, first, at, width, scale, share, values, room):
        origin = load_one(x, first) * scale
        seen = min(width, reach)
        total, _ = sums(x, first, at, seen, scale, origin, values)
        high = origin + team_sum(total, room) * inverse(working(seen))
        low, lost, squares = around(x, first, at, width, scale, high, share, values, room)
        if lost > squares - lost:
            high += low
            low, lost, squares = around(x, first, at, width, scale, high, share, values, room)
        m2 = squares - lost
        # max() would turn a NaN into 0.
        return high, low, zero if m2 < zero else m2

    @device
    def uncentred(x, first, at, width, scale, share, values, room):
        _, squares = sums(x, first, at, width, scale, zero, values)
        return zero, zero, team_sum(squares, room)

    return centred if formula.centred else uncentred


def _make_largest(element: Element, shape: RowShape) -> Any:
    """Return a device function ``largest(x, first, at, width, least, values, room)``.

    It is the largest absolute value of a row, or `least`.
    """
    columns = _columns_of_turn(element, shape)[0]
    read, team_largest = (
        make_read_columns(element, columns),
        make_team_largest(element, shape.threads),
    )
    slots, reach = columns.slots, columns.reach

    @device
    def largest(x, first, at, width, least, values, room):
        found = least
        while at < width:
            read(x, first, at, width, values)
            for k in range(slots):
                found = max(found, abs(values[k]))
            at += reach
        return team_largest(found, room)

    return largest


def _make_write_turn(
    formula: Formula, element: Element, weights: Weights, columns: RowColumns
) -> Any:
    """Return a device function that reads a thread's columns once more, and stores y there.

    ``write_turn(x, arrays, numbers, firsts, at, cut, terms, values)``: the terms are ``scale, high,
    low, factor``, the rest is that of `make_write_normalized`.
    """
    read_columns, slots = make_read_columns(element, columns), columns.slots
    write_normalized = make_write_normalized(formula, element, weights, columns)

    @device
    def write_turn(x, arrays, numbers, firsts, at, cut, terms, values):
        scale, high, low, factor = terms
        read_columns(x, firsts[0], at, cut[0], values)
        for k in range(slots):
            values[k] = values[k] * scale - high
        write_normalized(arrays, numbers, firsts, at, cut, low, factor, values, 0)

    return write_turn


def make_row_forward_loop(
    formula: Formula, element: Element, saved: Element, weights: Weights, shape: RowShape
) -> Kernel:
    """Return the kernel of rows of any width, one a block.

    It takes what `make_row_forward` takes; y may be x.
    """
    columns, all_sure = _columns_of_turn(element, shape)
    working, warps = element.working, shape.threads // WARP
    lanes, slots, reach = columns.lanes, columns.slots, columns.reach
    write_some = _make_write_turn(formula, element, weights, columns)
    write_all = _make_write_turn(formula, element, weights, all_sure)
    first_weight = make_first_weight(shared=weights.shared)
    statistics, largest = _make_statistics(formula, element, shape), _make_largest(element, shape)
    inverse_deviation, save = make_inverse_deviation(element), make_save(formula, element, saved)
    power_of_two, last = make_power_of_two(element), (columns.pieces - 1) * columns.stride
    smallest = constant(element, element.smallest_variance)
    one, infinity = constant(element, 1.0), constant(element, float("inf"))
    rooms = _ROOMS * warps

    def kernel(
        x, gamma, beta, y, mean, rstd, rows, width, run, channels,
        gamma_number, beta_number, share, scale_share, eps, eps_on_deviation, root_eps,
    ):  # fmt: skip
        room = cuda.shared.array(rooms, working)
        values = cuda.local.array(slots, working)
        thread, row, scale = cuda.threadIdx.x, cuda.blockIdx.x, one
        first, at = row * width, thread * lanes
        high, low, m2 = statistics(x, first, at, width, scale, share, values, room)
        total = m2 * scale_share + eps + eps_on_deviation * eps_on_deviation
        if not (smallest < total and total < infinity):
            least = max(root_eps, eps_on_deviation)
            scale = power_of_two(largest(x, first, at, width, least, values, room[3 * warps :]))
            high, low, m2 = statistics(x, first, at, width, scale, share, values, room)
            eps = root_eps * scale * (root_eps * scale)
            eps_on_deviation = eps_on_deviation * scale
        factor = inverse_deviation(m2 * scale_share, eps, eps_on_deviation)
        arrays, numbers = (gamma, beta, y), (gamma_number, beta_number)
        cut, terms = (width, run, channels), (scale, high, low, factor)
        firsts = first, first_weight(row, cut)
        while at + last < width:
            write_all(x, arrays, numbers, firsts, at, cut, terms, values)
            at += reach
        if at < width:
            write_some(x, arrays, numbers, firsts, at, cut, terms, values)
        if mean != 0 and thread == 0:
            save(mean, rstd, row, high, low, factor, scale)

    numbers = (element.working_name,) * 7
    return Kernel(kernel, ("address",) * 6 + ("index",) * 4 + numbers, shape.threads)
