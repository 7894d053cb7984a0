"""The gradients of rows that no team's registers hold: they are read twice, a row a block.

A block that has read a row twice has it mostly from the caches, and writes dx.

Where parameters belong to columns, their gradients are sums over rows that no registers of a block
hold either. To keep them in memory would be 16 bytes of each element to read and write (32 with
what rounding loses) beside the 12, or 6 of halves, that the row itself takes, in a table with a
wide row for every block, which is beyond most caches. So a row is then read here for its own two
sums alone, and `make_row_backward_columns` reads all rows once more, by columns: its threads have
the sums of theirs in registers. That is 20 bytes of each element in all, 10 of halves, and no cache
has to hold anything.
"""

import dataclasses
from typing import Any

from numnorm.backends.contract.norms import Formula
from numnorm.backends.cuda.compiler.element_type import Element, working_element
from numnorm.backends.cuda.compiler.target import Kernel, constant, cuda, device, make_store_one
from numnorm.backends.cuda.rows.backward_coefficients import TERMS, make_write_terms
from numnorm.backends.cuda.rows.backward_kernel import make_normalize, make_write_gradient
from numnorm.backends.cuda.rows.gradient_sums import (
    make_column_gradient_sums,
    make_run_weight,
    make_sums_in_run,
    room_for_sums,
)
from numnorm.backends.cuda.statistics.saved import make_means, make_saved_statistics
from numnorm.backends.cuda.threads.compensated_sums import make_add_each, make_joined
from numnorm.backends.cuda.threads.group_reductions import make_team_two_sums
from numnorm.backends.cuda.threads.row_columns import (
    RowColumns,
    make_column_weight,
    make_read_columns,
    row_columns,
)
from numnorm.backends.cuda.threads.row_parameters import Weights
from numnorm.backends.cuda.threads.row_shape import RowShape

# Pieces of 16 bytes that a thread asks for at a time, of x and of dy. Where it writes, too, more
# than eight elements would take so many registers that no other block shared its multiprocessor.
_PIECES = 2


def _columns(element: Element, shape: RowShape, pieces: int) -> RowColumns:
    """Return what a thread holds at a time."""
    return row_columns(element, dataclasses.replace(shape, pieces=pieces))


def _columns_of_run(element: Element, shape: RowShape) -> RowColumns:
    """Return what a thread holds at a time of a run."""
    few = shape.whole and element.itemsize > 2
    return _columns(element, shape, _PIECES if few else 1)


def _make_read_run(formula: Formula, element: Element, columns: RowColumns) -> Any:
    """Return a device function that reads the thread's next columns of a run.

    ``read_run(dy, x, first, at, limit, terms, gamma, beta, values, slopes)`` puts xhat into
    `values` and g into `slopes`, and returns the sums of `make_sums_in_run`.
    """
    read_columns, normalize = make_read_columns(element, columns), make_normalize(element, columns)
    sums_in_run = make_sums_in_run(formula, element, columns)

    @device
    def read_run(dy, x, first, at, limit, terms, gamma, beta, values, slopes):
        read_columns(x, first, at, limit, values)
        read_columns(dy, first, at, limit, slopes)
        normalize(values, at, limit, terms)
        return sums_in_run(slopes, values, at, 0, limit, gamma, beta)

    return read_run


def _make_sums_of_runs(
    formula: Formula, element: Element, weights: Weights, parameters: int, shape: RowShape
) -> Any:
    """Return a device function that adds up a row's runs, and stores the sums of each of them.

    ``sums_of_runs(arrays, row, at, cut, terms, numbers, values, slopes, room)`` returns this
    thread's parts of the row's sums, and which half of the room is free.
    """
    columns, working = _columns_of_run(element, shape), element.working
    zero, table = constant(element, 0.0), working_element(element)
    team, teams, step = shape.team, shape.teams, columns.reach
    gamma_of, beta_of = (make_run_weight(element, of) for of in (weights.gamma, weights.beta))
    read_run, add_each = _make_read_run(formula, element, columns), make_add_each(4)
    joined, store_one = make_joined(element, table), make_store_one(table)
    team_two_sums, half = make_team_two_sums(element, team), room_for_sums(shape)

    @device
    def sums_of_runs(arrays, row, at, cut, terms, numbers, values, slopes, room):
        dy, x, gammas, betas, sums = arrays
        rows, run, runs, channels = cut
        high, low = cuda.local.array(4, working), cuda.local.array(4, working)
        for k in range(4):
            high[k], low[k] = zero, zero
        mine, start, turn = cuda.threadIdx.x // team, 0, 0
        channel, next_channel = (row * runs + mine) % channels, teams % channels
        while start < runs:
            # A team behind the last run goes along, for the others' sake, with none of it.
            here, limit = at, run if start + mine < runs else 0
            gamma = gamma_of(gammas, numbers[0], channel)
            beta = beta_of(betas, numbers[1], channel)
            first, place = (row * runs + start + mine) * run, row * runs + start + mine
            while here < limit:
                found = read_run(dy, x, first, here, limit, terms, gamma, beta, values, slopes)
                add_each(found, high, low)
                here += step
            if parameters > 0:
                of_gamma, of_beta = joined(high[2], low[2]), joined(high[3], low[3])
                of_gamma, of_beta = team_two_sums(of_gamma, of_beta, room[turn:])
                turn = half - turn
                if limit > 0 and cuda.threadIdx.x % team == 0:
                    store_one(sums, place, of_gamma)
                    if parameters > 1:
                        store_one(sums, rows * runs + place, of_beta)
                for k in range(2, 4):
                    high[k], low[k] = zero, zero
            channel += next_channel
            channel -= channels if channel >= channels else 0
            start += teams
        return joined(high[0], low[0]), joined(high[1], low[1]), turn

    return sums_of_runs


def _make_write_runs(formula: Formula, element: Element, weights: Weights, shape: RowShape) -> Any:
    """Return a device function that stores dx of a row, every element where it was read before.

    ``write_runs(arrays, dx, row, at, cut, terms, means, numbers, values, slopes)``.
    """
    columns, team, teams = _columns_of_run(element, shape), shape.team, shape.teams
    gamma_of, beta_of = (make_run_weight(element, of) for of in (weights.gamma, weights.beta))
    read_run, step = _make_read_run(formula, element, columns), columns.reach
    write_gradient = make_write_gradient(element, columns)

    @device
    def write_runs(arrays, dx, row, at, cut, terms, means, numbers, values, slopes):
        dy, x, gammas, betas, _ = arrays
        _, run, runs, channels = cut
        number = cuda.threadIdx.x // team
        channel, next_channel = (row * runs + number) % channels, teams % channels
        while number < runs:
            gamma = gamma_of(gammas, numbers[0], channel)
            beta = beta_of(betas, numbers[1], channel)
            first, here = (row * runs + number) * run, at
            while here < run:
                read_run(dy, x, first, here, run, terms, gamma, beta, values, slopes)
                write_gradient(dx, first, here, run, slopes, values, means, terms[0], terms[3])
                here += step
            channel += next_channel
            channel -= channels if channel >= channels else 0
            number += teams

    return write_runs


def make_row_backward_loop(
    formula: Formula,
    element: Element,
    saved: Element,
    weights: Weights,
    parameters: int,
    shape: RowShape,
) -> Kernel:
    """Return the kernel of rows of any width whose runs share parameters, or have none.

    Launched with a block for each row, it takes what `make_row_backward` takes, and leaves the
    same sums of each run. The runs of a row are dealt out to the teams of a block, which need no
    barrier for their sums unless a team is the block.
    """
    columns, working, team = _columns_of_run(element, shape), element.working, shape.team
    lanes, slots, half = columns.lanes, columns.slots, room_for_sums(shape)
    statistics, means_of = make_saved_statistics(formula, element, saved), make_means(element)
    sums_of_runs = _make_sums_of_runs(formula, element, weights, parameters, shape)
    block_two_sums = make_team_two_sums(element, shape.threads)
    write_runs, both = _make_write_runs(formula, element, weights, shape), 2 * half

    def kernel(
        dy, x, mean, rstd, gamma, beta, dx, sums, rests, rows, width, run, channels, parts,
        gamma_number, beta_number, mean_share, scale_share, eps_on_deviation,
    ):  # fmt: skip
        room = cuda.shared.array(both, working)
        values = cuda.local.array(slots, working)
        slopes = cuda.local.array(slots, working)
        row, at = cuda.blockIdx.x, cuda.threadIdx.x % team * lanes
        terms, cut = statistics(mean, rstd, row), (rows, run, width // run, channels)
        arrays, numbers = (dy, x, gamma, beta, sums), (gamma_number, beta_number)
        g, g_xhat, turn = sums_of_runs(arrays, row, at, cut, terms, numbers, values, slopes, room)
        g, g_xhat = block_two_sums(g, g_xhat, room[turn:])
        means = means_of(g, g_xhat, terms[0], terms[3], mean_share, scale_share, eps_on_deviation)
        write_runs(arrays, dx, row, at, cut, terms, means, numbers, values, slopes)

    numbers = (element.working_name,) * 5
    return Kernel(kernel, ("address",) * 9 + ("index",) * 5 + numbers, shape.threads)


def make_row_backward_terms(
    formula: Formula, element: Element, saved: Element, weights: Weights, shape: RowShape
) -> Kernel:
    """Return the kernel that leaves, of rows of any width, what `make_row_backward_columns` takes.

    Launched with a block for each row, it takes ``dy, x, mean, rstd, gamma, beta, terms`` as
    addresses; ``width, channels``; and the numbers of `make_row_backward`.
    """
    columns, working = _columns(element, shape, _PIECES), element.working
    lanes, slots, step = columns.lanes, columns.slots, columns.reach
    statistics, means_of = make_saved_statistics(formula, element, saved), make_means(element)
    read_columns, normalize = make_read_columns(element, columns), make_normalize(element, columns)
    weight_of = make_column_weight(element, weights.gamma, columns)
    bias_of = make_column_weight(element, weights.beta, columns)
    gradient_sums = make_column_gradient_sums(formula, element, 0, columns)
    add_each, joined = make_add_each(2), make_joined(element, working_element(element))
    block_two_sums, room_size = make_team_two_sums(element, shape.threads), room_for_sums(shape)
    write_terms, zero = make_write_terms(element), constant(element, 0.0)

    def kernel(
        dy, x, mean, rstd, gamma, beta, terms, width, channels,
        gamma_number, beta_number, mean_share, scale_share, eps_on_deviation,
    ):  # fmt: skip
        room = cuda.shared.array(room_size, working)
        values = cuda.local.array(slots, working)
        slopes = cuda.local.array(slots, working)
        weight = cuda.local.array(slots, working)
        bias = cuda.local.array(slots, working)
        places = cuda.local.array(TERMS, working)
        high, low = cuda.local.array(2, working), cuda.local.array(2, working)
        for k in range(2):
            high[k], low[k] = zero, zero
        row, at = cuda.blockIdx.x, cuda.threadIdx.x * lanes
        first, first_weight = row * width, row % channels * width if channels > 1 else 0
        found = statistics(mean, rstd, row)
        while at < width:
            read_columns(x, first, at, width, values)
            read_columns(dy, first, at, width, slopes)
            weight_of(gamma, gamma_number, first_weight, at, width, weight)
            bias_of(beta, beta_number, first_weight, at, width, bias)
            normalize(values, at, width, found)
            add_each(gradient_sums(slopes, values, weight, bias, None, None), high, low)
            at += step
        g, g_xhat = block_two_sums(joined(high[0], low[0]), joined(high[1], low[1]), room)
        if cuda.threadIdx.x == 0:
            means = means_of(
                g, g_xhat, found[0], found[3], mean_share, scale_share, eps_on_deviation
            )
            write_terms(terms, row, found, means, places)

    numbers = (element.working_name,) * 5
    return Kernel(kernel, ("address",) * 7 + ("index",) * 2 + numbers, shape.threads)
