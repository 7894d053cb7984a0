"""The forward kernel of rows that no team's registers hold: they are read twice."""

from typing import Any

from numnorm.backends.contract import Formula
from numnorm.backends.cuda.elements import Element
from numnorm.backends.cuda.row_forward_kernel import make_save
from numnorm.backends.cuda.row_parts import make_as_tuple, make_read, make_shift, make_write
from numnorm.backends.cuda.row_shape import RowShape
from numnorm.backends.cuda.row_statistics import make_inverse_deviation, make_power_of_two
from numnorm.backends.cuda.row_weights import Weights, make_weight
from numnorm.backends.cuda.target import (
    Kernel,
    constant,
    cuda,
    device,
    make_load_one,
    reciprocal,
)
from numnorm.backends.cuda.team_sums import WARP, make_team_largest, make_team_sum

# Folds that no barrier keeps apart need places of their own in shared memory.
_ROOMS = 4


def _make_sums(element: Element, shape: RowShape) -> Any:
    """Return a device function ``sums(x, first, at, stop, width, scale, high, values)``.

    The thread's sums of ``x * scale - high`` and of its squares, over the pieces that begin less
    than `stop` elements behind the row's first.
    """
    read, zero = make_read(element, whole=shape.whole), constant(element, 0.0)
    vector, stride, whole = element.vector, shape.threads * element.vector, shape.whole

    @device
    def sums(x, first, at, stop, width, scale, high, values):
        total, squares = zero, zero
        while at < stop:
            read(x, first, at, width, values, 0)
            for j in range(vector):
                if whole or 0 <= at + j < width:
                    deviation = values[j] * scale - high
                    total += deviation
                    squares += deviation * deviation
            at += stride
        return total, squares

    return sums


def _make_statistics(formula: Formula, element: Element, shape: RowShape) -> Any:
    """Return a device function that finds ``high, low, m2`` of a row times a scale.

    ``statistics(x, first, at, width, scale, share, values, room)``. The sums are taken around the
    mean of the row's first pieces, and once more around the mean that follows from them where that
    was a poor guess.
    """
    sums, team_sum = _make_sums(element, shape), make_team_sum(element, shape.threads)
    load_one, inverse = make_load_one(element), reciprocal(element)
    zero, warps, working = constant(element, 0.0), shape.threads // WARP, element.working
    vector, reach = element.vector, shape.threads * element.vector

    @device
    def around(x, first, at, width, scale, high, share, values, room):
        total, squares = sums(x, first, at, width, width, scale, high, values)
        total = team_sum(total, room[warps:])
        low = total * share
        return low, total * low, team_sum(squares, room[2 * warps :])

    @device
    def centred(x, first, at, width, scale, share, values, room):
        origin = load_one(x, first) * scale
        # The thread 0 begins at the first element, or up to a piece before it.
        seen = min(width, reach + at - cuda.threadIdx.x * vector)
        total, _ = sums(x, first, at, seen, width, scale, origin, values)
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
        _, squares = sums(x, first, at, width, width, scale, zero, values)
        return zero, zero, team_sum(squares, room)

    return centred if formula.centred else uncentred


def _make_largest(element: Element, shape: RowShape) -> Any:
    """Return a device function ``largest(x, first, at, width, least, values, room)``.

    It is the largest absolute value of a row, or `least`.
    """
    read, team_largest = (
        make_read(element, whole=shape.whole),
        make_team_largest(element, shape.threads),
    )
    vector, stride = element.vector, shape.threads * element.vector

    @device
    def largest(x, first, at, width, least, values, room):
        found = least
        while at < width:
            read(x, first, at, width, values, 0)
            for j in range(vector):
                found = max(found, abs(values[j]))
            at += stride
        return team_largest(found, room)

    return largest


def make_row_forward_loop(
    formula: Formula, element: Element, saved: Element, weights: Weights, shape: RowShape
) -> Kernel:
    """Return the kernel of rows of any width, one a block.

    It takes what `make_row_forward` takes; y may be x.
    """
    vector, working, threads = element.vector, element.working, shape.threads
    stride, warps = threads * vector, threads // WARP
    shift_of, write = make_shift(element, whole=shape.whole), make_write(element, whole=shape.whole)
    read, as_tuple = make_read(element, whole=shape.whole), make_as_tuple(element)
    gamma_of = make_weight(element, weights.gamma, shared=weights.shared, whole=shape.whole)
    beta_of = make_weight(element, weights.beta, shared=weights.shared, whole=shape.whole)
    statistics, largest = _make_statistics(formula, element, shape), _make_largest(element, shape)
    inverse_deviation, save = make_inverse_deviation(element), make_save(formula, element, saved)
    forward, power_of_two = device(formula.forward), make_power_of_two(element)
    smallest = constant(element, element.smallest_variance)
    one, infinity = constant(element, 1.0), constant(element, float("inf"))
    rooms = _ROOMS * warps

    def kernel(
        x, gamma, beta, y, mean, rstd, rows, width, run, channels,
        gamma_number, beta_number, share, scale_share, eps, eps_on_deviation, root_eps,
    ):  # fmt: skip
        room = cuda.shared.array(rooms, working)
        values = cuda.local.array(vector, working)
        weight = cuda.local.array(vector, working)
        bias = cuda.local.array(vector, working)
        thread, row, scale = cuda.threadIdx.x, cuda.blockIdx.x, one
        first = row * width
        at = thread * vector - shift_of(x, first)
        high, low, m2 = statistics(x, first, at, width, scale, share, values, room)
        total = m2 * scale_share + eps + eps_on_deviation * eps_on_deviation
        if not (smallest < total and total < infinity):
            least = max(root_eps, eps_on_deviation)
            scale = power_of_two(largest(x, first, at, width, least, values, room[3 * warps :]))
            high, low, m2 = statistics(x, first, at, width, scale, share, values, room)
            eps = root_eps * scale * (root_eps * scale)
            eps_on_deviation = eps_on_deviation * scale
        factor = inverse_deviation(m2 * scale_share, eps, eps_on_deviation)
        while at < width:
            read(x, first, at, width, values, 0)
            gamma_of(gamma, gamma_number, row, at, (width, run, channels), weight)
            beta_of(beta, beta_number, row, at, (width, run, channels), bias)
            for j in range(vector):
                xhat = (values[j] * scale - high - low) * factor
                weight[j] = forward(xhat, weight[j], bias[j])
            write(y, first, at, width, as_tuple(weight, 0))
            at += stride
        if mean != 0 and thread == 0:
            save(mean, rstd, row, high, low, factor, scale)

    numbers = (element.working_name,) * 7
    return Kernel(kernel, ("address",) * 6 + ("index",) * 4 + numbers, threads)
