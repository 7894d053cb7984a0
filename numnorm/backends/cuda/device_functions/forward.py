"""A row that the threads of somebody's own kernel hold: its statistics, and its result in place.

Element k of the team's thread t is column ``t + k * team`` of the row. Elements from the row's
width on are neither read nor written. Every thread of a warp, and of a team wider than one, comes
along: the sums are over threads.
"""

import dataclasses
import functools
from typing import Any

from numnorm.backends.contract.norms import Norm
from numnorm.backends.cuda.compiler.element_type import FLOAT64, Element
from numnorm.backends.cuda.compiler.target import constant, cuda, device, reciprocal, square_root
from numnorm.backends.cuda.statistics.row_normalizer import (
    make_inverse_deviation,
    make_power_of_two,
)
from numnorm.backends.cuda.statistics.saved import make_joined_statistics
from numnorm.backends.cuda.threads.group_reductions import (
    WARP,
    make_team_largest,
    make_team_sum,
    make_team_two_sums,
)
from numnorm.backends.formulas.norms import centre


@dataclasses.dataclass(frozen=True)
class TeamRow:
    """What is known of a row when the functions for it are made.

    Parameters
    ----------
    norm : Norm
        Its formula, and how many parameters it has: arrays, or two numbers if it has none.
    element : Element
        What it is computed in: float32 or float64.
    team : int
        The number of threads that hold it, a power of two: all of a block, if more than a warp.
    slots : int
        How many elements each of them holds.
    ddof : int
        The squares are divided by the width less this.
    """

    norm: Norm
    element: Element
    team: int
    slots: int
    ddof: int = 0

    @property
    def warps(self) -> int:
        """How many warps hold it; 0 for a part of one, or one, whose sums need no shared memory."""
        return self.team // WARP if self.team > WARP else 0


def make_parameter(row: TeamRow, missing: float) -> Any:
    """Return a device function ``parameter(values, column)``: an array or None, or a number."""
    working, absent = row.element.working, constant(row.element, missing)
    if row.norm.parameters == 0:
        return device(lambda number, column: working(number))

    @device
    def parameter(values, column):
        if values is None:
            return absent
        return working(values[column])

    return parameter


def _make_any(row: TeamRow) -> Any:
    """Return a device function ``of_any(asked)``: whether any team of a warp asks for more.

    All of them must come along, because threads of a warp meet in each sum. A wider team agrees.
    """
    if row.team >= WARP:
        return device(lambda asked: asked)
    largest_of = make_team_largest(row.element, WARP)
    zero, one = constant(row.element, 0.0), constant(row.element, 1.0)
    return device(lambda asked: largest_of(one if asked else zero, None) > zero)


def _make_around(row: TeamRow) -> Any:
    """Return a device function ``around(values, at, width, high, share, room)``.

    Of the deviations from `high` it returns the mean, the part of their squares that this mean
    accounts for, and their squares.
    """
    two_sums, zero = make_team_two_sums(row.element, row.team), constant(row.element, 0.0)
    slots, team = row.slots, row.team

    @device
    def around(values, at, width, high, share, room):
        first, second = zero, zero
        for k in range(slots):
            if at + k * team < width:
                deviation = values[k] - high
                first += deviation
                second += deviation * deviation
        first, second = two_sums(first, second, room)
        low = first * share
        return low, first * low, second

    return around


def _make_spread(row: TeamRow) -> Any:
    """Return a device function ``spread(values, at, width, share, room)``: ``high, low, m2``.

    The mean is ``high + low``, or 0 if the norm is not centred, and `m2` the sum of the squared
    deviations. They are taken around the rounded mean, and once more around a better one where
    that was a poor one: where a mean is large beside the deviations, or all of them are equal.
    """
    team_sum, of_any, around = (
        make_team_sum(row.element, row.team),
        _make_any(row),
        _make_around(row),
    )
    slots, team, warps = row.slots, row.team, row.warps
    zero = constant(row.element, 0.0)

    @device
    def centred(values, at, width, share, room):
        total = zero
        for k in range(slots):
            if at + k * team < width:
                total += values[k]
        high = team_sum(total, room) * share
        low, lost, squares = around(values, at, width, high, share, room[warps:])
        poor = lost > squares - lost
        if of_any(poor):
            high = high + low if poor else high
            low, lost, squares = around(values, at, width, high, share, room[3 * warps :])
        m2 = squares - lost
        # max() would turn a NaN into 0.
        return high, low, zero if m2 < zero else m2

    @device
    def uncentred(values, at, width, share, room):
        squares = zero
        for k in range(slots):
            if at + k * team < width:
                squares += values[k] * values[k]
        if warps > 0:
            # Somebody may still look at the sum before: of another row.
            cuda.syncthreads()
        return zero, zero, team_sum(squares, room)

    return centred if row.norm.formula.centred else uncentred


# Places in shared memory for each warp: of the mean, of two sums, of two sums once more, and of the
# largest value. Between two uses of a place there is a barrier of another one.
_ROOMS = 6


def _make_rescale(row: TeamRow) -> Any:
    """Return a device function ``rescale(values, at, width, least, room)``.

    It multiplies a row by the power of two, which it returns, that brings its largest absolute
    value, or `least`, near 1: then every sum of squares is in range, and no digit is lost.
    """
    largest_of = make_team_largest(row.element, row.team)
    power_of_two, slots, team = make_power_of_two(row.element), row.slots, row.team

    @device
    def rescale(values, at, width, least, room):
        largest = least
        for k in range(slots):
            if at + k * team < width:
                largest = max(largest, abs(values[k]))
        scale = power_of_two(largest_of(largest, room))
        for k in range(slots):
            if at + k * team < width:
                values[k] *= scale
        return scale

    return rescale


def _make_statistics(row: TeamRow) -> Any:
    """Return a device function ``statistics(values, at, width, eps, eps_on_deviation, room)``.

    It returns ``high, low, factor, scale``: ``((x * scale - high) - low) * factor`` is the
    normalized value. The values are multiplied by the scale, which is 1 where their squares are in
    range.
    """
    element, ddof = row.element, row.ddof
    spread, rescale, of_any = _make_spread(row), _make_rescale(row), _make_any(row)
    inverse_deviation = make_inverse_deviation(element)
    inverse, root = reciprocal(element), square_root(element)
    working, place = element.working, (_ROOMS - 1) * row.warps
    one, infinity = constant(element, 1.0), constant(element, float("inf"))
    smallest = constant(element, element.smallest_variance)

    @device
    def statistics(values, at, width, eps, eps_on_deviation, room):
        # A team without a row has a width of 0.
        share = inverse(working(max(width, 1)))
        scale_share, scale = inverse(working(max(width - ddof, 1))), one
        high, low, m2 = spread(values, at, width, share, room)
        total = m2 * scale_share + eps + eps_on_deviation * eps_on_deviation
        poor = not (smallest < total and total < infinity)
        if of_any(poor):
            root_eps = root(eps)
            least = max(root_eps, eps_on_deviation) if poor else infinity
            scale = rescale(values, at, width, least, room[place:])
            high, low, m2 = spread(values, at, width, share, room)
            eps = root_eps * scale * (root_eps * scale) if poor else eps
            eps_on_deviation = eps_on_deviation * scale
        return high, low, inverse_deviation(m2 * scale_share, eps, eps_on_deviation), scale

    return statistics


@functools.cache
def make_team_forward(row: TeamRow) -> Any:
    """Return a device function that normalizes a row in place, and returns its mean and rstd.

    ``forward(values, width, gamma, beta, eps, eps_on_deviation)``; the statistics are float64, and
    the mean is 1 / rstd if the norm is not centred.
    """
    element, team, slots = row.element, row.team, row.slots
    statistics, joined = (
        _make_statistics(row),
        make_joined_statistics(row.norm.formula, element, FLOAT64),
    )
    gamma_of, beta_of = make_parameter(row, 1.0), make_parameter(row, 0.0)
    centred, mapped = device(centre), device(row.norm.formula.forward)
    working, rooms = element.working, max(1, _ROOMS * row.warps)

    @device
    def forward(values, width, gamma, beta, eps, eps_on_deviation):
        room = cuda.shared.array(rooms, working)
        at = cuda.threadIdx.x % team
        high, low, factor, scale = statistics(
            values, at, width, working(eps), working(eps_on_deviation), room
        )
        for k in range(slots):
            column = at + k * team
            if column < width:
                xhat = centred(values[k], high, low) * factor
                values[k] = mapped(xhat, gamma_of(gamma, column), beta_of(beta, column))
        return joined(high, low, factor, scale)

    return forward
