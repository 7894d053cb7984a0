"""The backward kernel of every norm whose statistics are shared by a row, held in registers."""

from typing import Any

from numnorm.backends.contract.norms import Formula
from numnorm.backends.cuda.compiler.element_type import Element
from numnorm.backends.cuda.compiler.target import Kernel, constant, cuda, device
from numnorm.backends.cuda.rows.gradient_sums import (
    make_column_gradient_sums,
    make_run_gradient_sums,
    room_for_sums,
)
from numnorm.backends.cuda.rows.parameter_sums import (
    ROWS_BETWEEN_FLUSHES,
    make_flush,
    room_for_folding,
)
from numnorm.backends.cuda.statistics.saved import make_means, make_saved_statistics
from numnorm.backends.cuda.threads.group_reductions import make_team_two_sums
from numnorm.backends.cuda.threads.row_columns import (
    RowColumns,
    make_column_weight,
    make_read_columns,
    make_write_columns,
    row_columns,
)
from numnorm.backends.cuda.threads.row_parameters import Weights
from numnorm.backends.cuda.threads.row_shape import RowShape
from numnorm.backends.formulas.norms import centre, input_gradient


def make_normalize(element: Element, columns: RowColumns) -> Any:
    """Return a device function ``normalize(values, at, limit, terms)``: x becomes xhat.

    The terms are those of `make_saved_statistics`. Columns from `limit` on become 0.
    """
    lanes, pieces, stride = columns.lanes, columns.pieces, columns.stride
    centred, zero = device(centre), constant(element, 0.0)

    @device
    def normalize(values, at, limit, terms):
        scale, high, low, factor = terms
        for p in range(pieces):
            there = at + p * stride < limit
            for j in range(lanes):
                k = p * lanes + j
                # What is not there has no xhat, which is infinite at worst.
                values[k] = centred(values[k] * scale, high, low) * factor if there else zero

    return normalize


def _make_read_normalized(
    formula: Formula, element: Element, saved: Element, shape: RowShape
) -> Any:
    """Return a device function that reads a row: xhat into `values`, dy into `slopes`.

    ``read_normalized(dy, x, mean, rstd, row, width, limit, at, values, slopes)`` returns
    ``scale, factor``, whose product is rstd. Columns from `limit` on become 0.
    """
    columns = row_columns(element, shape)
    read_columns, normalize = make_read_columns(element, columns), make_normalize(element, columns)
    statistics = make_saved_statistics(formula, element, saved)

    @device
    def read_normalized(dy, x, mean, rstd, row, width, limit, at, values, slopes):
        read_columns(x, row * width, at, limit, values)
        read_columns(dy, row * width, at, limit, slopes)
        terms = statistics(mean, rstd, row)
        normalize(values, at, limit, terms)
        return terms[0], terms[3]

    return read_normalized


def make_write_gradient(element: Element, columns: RowColumns) -> Any:
    """Return a device function that stores dx of a row from g and xhat in registers.

    ``write_gradient(dx, first, at, limit, slopes, values, means, scale, factor)``.
    """
    write_columns, gradient = make_write_columns(element, columns), device(input_gradient)
    slots = columns.slots

    @device
    def write_gradient(dx, first, at, limit, slopes, values, means, scale, factor):
        for k in range(slots):
            slope = gradient(slopes[k], values[k], means[0], means[1], factor)
            values[k] = slope * scale
        write_columns(dx, first, at, limit, values)

    return write_gradient


def make_row_backward(
    formula: Formula,
    element: Element,
    saved: Element,
    weights: Weights,
    parameters: int,
    shape: RowShape,
) -> Kernel:
    """Return the kernel of rows that fit the registers of a team.

    Launched with as many blocks as `parts`, it takes ``dy, x, mean, rstd, gamma, beta, dx, sums,
    rests`` as addresses; ``rows, width, run, channels, parts``; and the numbers ``gamma, beta``
    where there are no arrays of them, ``mean_share, scale_share`` (1 over the number of elements,
    or 0 for a detached statistic) and ``eps_on_deviation``. dx may be dy or x.

    A norm that shares parameters leaves the sums of each run in ``sums (parameters, rows *
    runs)``. One that does not leaves those of its parts in ``sums (parameters, parts, width)``;
    `parts` is then a multiple of `channels`, and `rests` of the same size if a team has more than
    `ROWS_BETWEEN_FLUSHES` rows. Both are float64, or float32 for what is computed in it.
    """
    if weights.shared and parameters:
        return _of_runs(formula, element, saved, weights, parameters, shape)
    return _of_columns(formula, element, saved, weights, parameters, shape)


_ADDRESSES = ("address",) * 9
_INDICES = ("index",) * 5


def _make_gradient_of_row(
    formula: Formula, element: Element, saved: Element, parameters: int, shape: RowShape
) -> Any:
    """Return a device function that stores dx of a row, and adds to the sums of its columns.

    ``gradient_of_row(arrays, row, width, limit, at, registers, of_parameters, room, shares)``.
    """
    columns = row_columns(element, shape)
    read_normalized = _make_read_normalized(formula, element, saved, shape)
    gradient_sums = make_column_gradient_sums(formula, element, parameters, columns)
    team_two_sums, means_of = make_team_two_sums(element, shape.team), make_means(element)
    write_gradient = make_write_gradient(element, columns)

    @device
    def gradient_of_row(arrays, row, width, limit, at, registers, of_parameters, room, shares):
        dy, x, mean, rstd, dx = arrays
        values, slopes, weight, bias = registers
        scale, factor = read_normalized(dy, x, mean, rstd, row, width, limit, at, values, slopes)
        of_gamma, of_beta = of_parameters
        g, g_xhat = gradient_sums(slopes, values, weight, bias, of_gamma, of_beta)
        g, g_xhat = team_two_sums(g, g_xhat, room)
        means = means_of(g, g_xhat, scale, factor, shares[0], shares[1], shares[2])
        write_gradient(dx, row * width, at, limit, slopes, values, means, scale, factor)

    return gradient_of_row


def _of_columns(
    formula: Formula,
    element: Element,
    saved: Element,
    weights: Weights,
    parameters: int,
    shape: RowShape,
) -> Kernel:
    columns, working, zero = row_columns(element, shape), element.working, constant(element, 0.0)
    team, teams, lanes, slots = shape.team, shape.teams, columns.lanes, columns.slots
    weight_of = make_column_weight(element, weights.gamma, columns)
    bias_of = make_column_weight(element, weights.beta, columns)
    gradient_of_row = _make_gradient_of_row(formula, element, saved, parameters, shape)
    flush = make_flush(element, shape)
    folding = room_for_folding(element, shape) if parameters else 1
    half, both = room_for_sums(shape), 2 * room_for_sums(shape)

    def kernel(
        dy, x, mean, rstd, gamma, beta, dx, sums, rests, rows, width, run, channels, parts,
        gamma_number, beta_number, mean_share, scale_share, eps_on_deviation,
    ):  # fmt: skip
        room = cuda.shared.array(both, working)
        places = cuda.shared.array(folding, working)
        values = cuda.local.array(slots, working)
        slopes = cuda.local.array(slots, working)
        weight = cuda.local.array(slots, working)
        bias = cuda.local.array(slots, working)
        of_gamma = cuda.local.array(slots, working)
        of_beta = cuda.local.array(slots, working)
        thread, part = cuda.threadIdx.x, cuda.blockIdx.x
        at, turn, fresh = thread % team * lanes, 0, True
        # A part has rows of one channel alone. No division where there is but one: it is slow.
        channel = part % channels if channels > 1 else 0
        start, mine = (part - channel) * teams + channel, thread // team * channels
        weight_of(gamma, gamma_number, channel * width, at, width, weight)
        bias_of(beta, beta_number, channel * width, at, width, bias)
        while fresh or start < rows:
            for k in range(slots):
                of_gamma[k], of_beta[k] = zero, zero
            stop = min(start + ROWS_BETWEEN_FLUSHES * teams * parts, rows)
            while start < stop:
                # A team behind the last row goes along, for the barriers' sake, with none of it.
                there = start + mine < rows
                row, limit = (start + mine, width) if there else (0, 0)
                gradient_of_row(
                    (dy, x, mean, rstd, dx), row, width, limit, at, (values, slopes, weight, bias),
                    (of_gamma, of_beta), room[turn:], (mean_share, scale_share, eps_on_deviation),
                )  # fmt: skip
                turn, start = half - turn, start + teams * parts
            last, first = start >= rows, part * width
            if parameters > 0:
                flush(of_gamma, at, width, first, fresh, last, sums, rests, places)
            if parameters > 1:
                first += parts * width
                flush(of_beta, at, width, first, fresh, last, sums, rests, places)
            fresh = False

    numbers = (element.working_name,) * 5
    return Kernel(kernel, _ADDRESSES + _INDICES + numbers, shape.threads)


def _of_runs(
    formula: Formula,
    element: Element,
    saved: Element,
    weights: Weights,
    parameters: int,
    shape: RowShape,
) -> Kernel:
    columns, working = row_columns(element, shape), element.working
    team, teams, lanes, slots = shape.team, shape.teams, columns.lanes, columns.slots
    read_normalized = _make_read_normalized(formula, element, saved, shape)
    gradient_sums = make_run_gradient_sums(formula, element, weights, parameters, shape)
    team_two_sums, means_of = make_team_two_sums(element, team), make_means(element)
    write_gradient, half = make_write_gradient(element, columns), room_for_sums(shape)
    both = 2 * half

    def kernel(
        dy, x, mean, rstd, gamma, beta, dx, sums, rests, rows, width, run, channels, parts,
        gamma_number, beta_number, mean_share, scale_share, eps_on_deviation,
    ):  # fmt: skip
        room = cuda.shared.array(both, working)
        values = cuda.local.array(slots, working)
        slopes = cuda.local.array(slots, working)
        thread, part = cuda.threadIdx.x, cuda.blockIdx.x
        at, turn = thread % team * lanes, 0
        runs, start, mine = width // run, part * teams, thread // team
        channel, next_channel = (start + mine) * runs % channels, parts * teams * runs % channels
        while start < rows:
            row, there = start + mine, start + mine < rows
            limit = width if there else 0
            row = row if there else 0
            scale, factor = read_normalized(
                dy, x, mean, rstd, row, width, limit, at, values, slopes
            )
            g, g_xhat, turn = gradient_sums(
                slopes, values, row, there, at, (rows, run, runs, channels), channel, (gamma, beta),
                (gamma_number, beta_number), sums, room, turn,
            )  # fmt: skip
            g, g_xhat = team_two_sums(g, g_xhat, room[turn:])
            turn = half - turn
            means = means_of(g, g_xhat, scale, factor, mean_share, scale_share, eps_on_deviation)
            write_gradient(dx, row * width, at, limit, slopes, values, means, scale, factor)
            channel += next_channel
            channel -= channels if channel >= channels else 0
            start += teams * parts

    numbers = (element.working_name,) * 5
    return Kernel(kernel, _ADDRESSES + _INDICES + numbers, shape.threads)
