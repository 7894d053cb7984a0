"""The forward kernel of every norm whose statistics are shared by a row, held in registers."""

from typing import Any

from numnorm.backends.contract import Formula
from numnorm.backends.cuda.elements import Element
from numnorm.backends.cuda.row_parts import make_as_tuple, make_read, make_shift, make_write
from numnorm.backends.cuda.row_shape import RowShape
from numnorm.backends.cuda.row_statistics import make_inverse_deviation, make_power_of_two
from numnorm.backends.cuda.row_weights import Weights, make_weight
from numnorm.backends.cuda.saved_statistics import make_joined_statistics
from numnorm.backends.cuda.target import (
    Kernel,
    constant,
    cuda,
    device,
    make_load_one,
    make_store_one,
)
from numnorm.backends.cuda.team_sums import WARP, make_team_largest, make_team_sum

# Folds that no barrier keeps apart need places of their own in shared memory.
_ROOMS = 4


def _make_spread(formula: Formula, element: Element, shape: RowShape) -> Any:
    """Return a device function ``spread(values, origin, at, width, share, room)``.

    It finds ``high, low, m2`` of a row in registers: the mean is ``high + low``, or 0 if the norm
    is not centred, and `m2` the sum of the squared deviations. The values become what they deviate
    from `high`. `origin` is any of them: a constant row then gives exactly that constant.
    """
    team_sum, zero = make_team_sum(element, shape.team), constant(element, 0.0)
    vector, pieces, whole = element.vector, shape.pieces, shape.whole
    stride, warps = shape.team * vector, max(1, shape.threads // WARP)

    @device
    def mean_of(values, origin, at, width, share, room):
        total = zero
        for p in range(pieces):
            here = at + p * stride
            for j in range(vector):
                if here < width if whole else 0 <= here + j < width:
                    total += values[p * vector + j] - origin
        return origin + team_sum(total, room) * share

    @device
    def centred(values, origin, at, width, share, room):
        high = mean_of(values, origin, at, width, share, room)
        first, second = zero, zero
        for p in range(pieces):
            here = at + p * stride
            for j in range(vector):
                if here < width if whole else 0 <= here + j < width:
                    deviation = values[p * vector + j] - high
                    values[p * vector + j] = deviation
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
        for k in range(pieces * vector):
            second += values[k] * values[k]  # those that are not there are 0
        return zero, zero, team_sum(second, room[warps:])

    return centred if formula.centred else uncentred


def make_read_row(element: Element, shape: RowShape) -> Any:
    """Return a device function ``read_row(x, first, at, width, values)``: a row into registers.

    The thread's first piece begins `at` elements behind the row's first; what is not of the row
    becomes 0.
    """
    vector, pieces, stride = element.vector, shape.pieces, shape.team * element.vector
    read, zero = make_read(element, whole=shape.whole), constant(element, 0.0)

    @device
    def read_row(x, first, at, width, values):
        for p in range(pieces):
            here = at + p * stride
            if here < width:
                read(x, first, here, width, values, p * vector)
            else:
                for j in range(vector):
                    values[p * vector + j] = zero

    return read_row


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


def make_row_forward(
    formula: Formula, element: Element, saved: Element, weights: Weights, shape: RowShape
) -> Kernel:
    """Return the kernel of rows that fit the registers of a team.

    It takes ``x, gamma, beta, y, mean, rstd`` as addresses, mean and rstd 0 if they are not to be
    saved; ``rows, width, run, channels``; and the numbers ``gamma, beta`` where there are no
    arrays of them, ``share`` (1 / width), ``scale_share`` (1 over the divisor of the squares),
    ``eps, eps_on_deviation`` and ``root_eps``, the root of eps.
    """
    vector, slots, working = element.vector, shape.pieces * element.vector, element.working
    team, teams, pieces, stride = shape.team, shape.teams, shape.pieces, shape.team * vector
    shift_of, write = make_shift(element, whole=shape.whole), make_write(element, whole=shape.whole)
    as_tuple, load_one = make_as_tuple(element), make_load_one(element)
    read_row, rescale = make_read_row(element, shape), _make_rescale(element, shape)
    gamma_of = make_weight(element, weights.gamma, shared=weights.shared, whole=shape.whole)
    beta_of = make_weight(element, weights.beta, shared=weights.shared, whole=shape.whole)
    forward, spread = device(formula.forward), _make_spread(formula, element, shape)
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
        weight = cuda.local.array(vector, working)
        bias = cuda.local.array(vector, working)
        thread, scale = cuda.threadIdx.x, one
        # A team behind the last row goes along, for the barriers' sake, and stores nothing.
        row = cuda.blockIdx.x * teams + thread // team
        there = row < rows
        row = min(row, rows - 1)
        first = row * width
        at = thread % team * vector - shift_of(x, first)
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
        for p in range(pieces):
            here = at + p * stride
            if there and here < width:
                gamma_of(gamma, gamma_number, row, here, (width, run, channels), weight)
                beta_of(beta, beta_number, row, here, (width, run, channels), bias)
                for j in range(vector):
                    xhat = (values[p * vector + j] - low) * factor
                    weight[j] = forward(xhat, weight[j], bias[j])
                write(y, first, here, width, as_tuple(weight, 0))
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
