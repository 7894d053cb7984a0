"""What a row adds to the sums that its gradients need, from the registers that hold it.

The sums of ``g = dL/dxhat`` and of ``g * xhat`` are those of the row. The gradients of gamma and
beta are sums of ``dy * xhat`` and of `dy`: over rows for each column, or over each run.
"""

from typing import Any

from numnorm.backends.contract.norms import Formula
from numnorm.backends.cuda.compiler.element_type import Element, working_element
from numnorm.backends.cuda.compiler.target import (
    constant,
    cuda,
    device,
    make_load_one,
    make_store_one,
)
from numnorm.backends.cuda.threads.group_reductions import WARP, make_team_two_sums
from numnorm.backends.cuda.threads.row_columns import RowColumns, row_columns
from numnorm.backends.cuda.threads.row_parameters import Weights
from numnorm.backends.cuda.threads.row_shape import RowShape


def room_for_sums(shape: RowShape) -> int:
    """Return how many numbers a block's threads share for one pair of sums."""
    return 2 * max(1, shape.threads // WARP)


def make_column_gradient_sums(
    formula: Formula, element: Element, parameters: int, columns: RowColumns
) -> Any:
    """Return a device function that turns dy into g, and adds to the sums of each column.

    ``gradient_sums(slopes, values, weight, bias, of_gamma, of_beta)`` returns this thread's parts
    of the row's sums. `slopes` are dy, and become g; `values` are xhat.
    """
    slots, backward, zero = columns.slots, device(formula.backward), constant(element, 0.0)

    @device
    def gradient_sums(slopes, values, weight, bias, of_gamma, of_beta):
        sum_g, sum_g_xhat = zero, zero
        for k in range(slots):
            slope, xhat = slopes[k], values[k]
            if parameters > 0:
                of_gamma[k] += slope * xhat
            if parameters > 1:
                of_beta[k] += slope
            g = backward(slope, xhat, weight[k], bias[k])
            sum_g += g
            sum_g_xhat += g * xhat
            slopes[k] = g
        return sum_g, sum_g_xhat

    return gradient_sums


def make_run_weight(element: Element, of: Element | None) -> Any:
    """Return a device function ``run_weight(address, number, channel)``: a run's parameter."""
    if of is None:
        return device(lambda address, number, channel: number)
    load_one, working = make_load_one(of), element.working
    return device(lambda address, number, channel: working(load_one(address, channel)))


def make_sums_in_run(formula: Formula, element: Element, columns: RowColumns) -> Any:
    """Return a device function that turns dy of one run into g, and adds up what it has there.

    ``sums_in_run(slopes, values, at, left, right, gamma, beta)`` returns this thread's parts of
    the sums of g, of g * xhat, of dy * xhat and of dy: over its columns from `left` up to `right`.
    """
    lanes, pieces, stride = columns.lanes, columns.pieces, columns.stride
    backward, zero = device(formula.backward), constant(element, 0.0)

    @device
    def sums_in_run(slopes, values, at, left, right, gamma, beta):
        sum_g, sum_g_xhat, of_gamma, of_beta = zero, zero, zero, zero
        for p in range(pieces):
            for j in range(lanes):
                k, here = p * lanes + j, at + p * stride + j
                if left <= here and here < right:
                    slope, xhat = slopes[k], values[k]
                    of_gamma += slope * xhat
                    of_beta += slope
                    g = backward(slope, xhat, gamma, beta)
                    sum_g += g
                    sum_g_xhat += g * xhat
                    slopes[k] = g
        return sum_g, sum_g_xhat, of_gamma, of_beta

    return sums_in_run


def make_run_gradient_sums(
    formula: Formula, element: Element, weights: Weights, parameters: int, shape: RowShape
) -> Any:
    """Return the like for parameters that a run shares, which stores the sums of each run.

    ``gradient_sums(slopes, values, row, there, at, cut, channel, addresses, numbers, sums, room,
    turn)``: cut is ``rows, run, runs, channels``, and the row's first run is of that channel. It
    takes the two halves of the room in turn, and also returns which one is next.
    """
    team, zero = shape.team, constant(element, 0.0)
    gamma_of, beta_of = (make_run_weight(element, of) for of in (weights.gamma, weights.beta))
    sums_in_run = make_sums_in_run(formula, element, row_columns(element, shape))
    store_one = make_store_one(working_element(element))
    team_two_sums, half = make_team_two_sums(element, team), room_for_sums(shape)

    @device
    def gradient_sums(
        slopes, values, row, there, at, cut, channel, addresses, numbers, sums, room, turn
    ):  # fmt: skip
        rows, run, runs, channels = cut
        sum_g, sum_g_xhat = zero, zero
        for r in range(runs):
            gamma = gamma_of(addresses[0], numbers[0], channel)
            beta = beta_of(addresses[1], numbers[1], channel)
            left = r * run
            g, g_xhat, of_gamma, of_beta = sums_in_run(
                slopes, values, at, left, left + run, gamma, beta
            )
            sum_g += g
            sum_g_xhat += g_xhat
            of_gamma, of_beta = team_two_sums(of_gamma, of_beta, room[turn:])
            turn = half - turn
            if there and cuda.threadIdx.x % team == 0:
                store_one(sums, row * runs + r, of_gamma)
                if parameters > 1:
                    store_one(sums, (rows + row) * runs + r, of_beta)
            channel = channel + 1 if channel + 1 < channels else 0
        return sum_g, sum_g_xhat, turn

    return gradient_sums
