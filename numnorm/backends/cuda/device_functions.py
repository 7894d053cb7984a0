"""The functions of a norm for kernels that users write: ``forward``, ``xhat``, ``backward``.

Their arguments depend on the norm's parameters and statistics. They work on a row in place: element
k of a team's thread t is column ``t + k * team`` of the row. Elements from the width of the row on
are neither read nor written. All threads of a warp, and of a team that is wider than a warp, must
call the function, because they exchange sums.
"""

import dataclasses
import functools
from typing import Any

from numnorm.backends.contract.norms import Detached, Norm
from numnorm.backends.cuda.compiler.element_type import ELEMENT_TYPES, FLOAT64, ElementType
from numnorm.backends.cuda.compiler.target import constant, cuda, device, make_sqrt, reciprocal
from numnorm.backends.cuda.statistics.row_statistics import (
    make_inverse_deviation,
    make_joined_statistics,
    make_leaves_range,
    make_means,
    make_power_of_two,
    make_split_statistics,
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
from numnorm.backends.formulas.norms import input_gradient

# Forward


@dataclasses.dataclass(frozen=True)
class TeamRow:
    """The properties of a row that device functions are compiled for.

    Parameters
    ----------
    norm : Norm
        The norm. Without parameters it takes two numbers instead of arrays.
    element : ElementType
        The type of its elements: float32 or float64.
    team : int
        The number of threads that hold the row, a power of two. A team that is wider than a warp
        is a whole block.
    slots : int
        The number of elements of each thread.
    ddof : int
        The variance is the sum of squares divided by width - ddof.
    """

    norm: Norm
    element: ElementType
    team: int
    slots: int
    ddof: int = 0

    @property
    def warps(self) -> int:
        """The number of warps of a team, or 0 if sums need no shared memory: up to one warp."""
        return self.team // WARP if self.team > WARP else 0


def make_parameter(row: TeamRow, missing: float) -> Any:
    """Return a device function ``parameter(values, column)``.

    `values` are an array or None, or a number if the norm has no parameters.
    """
    compute_type = row.element.compute_type
    absent = constant(row.element, missing)
    if row.norm.parameters == 0:
        return device(lambda number, column: compute_type(number))

    @device
    def parameter(values, column):
        if values is None:
            return absent
        return compute_type(values[column])

    return parameter


def _make_around(row: TeamRow) -> Any:
    """Return a device function ``around(values, at, width, mean_hi, inv_count, smem)``.

    It returns three numbers: `mean_lo`, the mean deviation from `mean_hi`; m2, the sum of squared
    deviations from the true mean; and the difference between the sum of squares around `mean_hi`
    and m2, which is n * mean_lo**2.
    """
    two_sums = make_team_two_sums(row.team)
    zero = constant(row.element, 0.0)
    slots, team = row.slots, row.team
    squared_deviations = make_squared_deviations(row.element)

    @device
    def around(values, at, width, mean_hi, inv_count, smem):
        first, second = zero, zero
        for k in range(slots):
            if at + k * team < width:
                deviation = values[k] - mean_hi
                first += deviation
                second += deviation * deviation
        first, second = two_sums(first, second, smem)
        mean_lo = first * inv_count
        return mean_lo, squared_deviations(second, first, mean_lo), first * mean_lo

    return around


def _make_row_statistics(row: TeamRow) -> Any:
    """Return a device function ``row_statistics(values, at, width, inv_count, smem)``.

    It returns ``mean_hi, mean_lo, m2``: the mean is ``mean_hi + mean_lo``, or 0 if the norm is not
    centred, and `m2` is the sum of the squared deviations. It sums around the rounded mean. If the
    rounding is large beside the deviations, it sums once more around a better mean.
    """
    team_sum = make_team_sum(row.team)
    of_any = make_any(row.element, row.team)
    around = _make_around(row)
    slots, team, warps = row.slots, row.team, row.warps
    zero = constant(row.element, 0.0)

    @device
    def centred(values, at, width, inv_count, smem):
        total = zero
        for k in range(slots):
            if at + k * team < width:
                total += values[k]
        mean_hi = team_sum(total, smem) * inv_count
        mean_lo, m2, lost = around(values, at, width, mean_hi, inv_count, smem[warps:])
        poor = lost > m2
        if of_any(poor):
            mean_hi = mean_hi + mean_lo if poor else mean_hi
            mean_lo, m2, _ = around(values, at, width, mean_hi, inv_count, smem[3 * warps :])
        return mean_hi, mean_lo, m2

    @device
    def uncentred(values, at, width, inv_count, smem):
        squares = zero
        for k in range(slots):
            if at + k * team < width:
                squares += values[k] * values[k]
        if warps > 0:
            # Another thread may still read the sum of the row before.
            cuda.syncthreads()
        return zero, zero, team_sum(squares, smem)

    return centred if row.norm.formula.centred else uncentred


# Elements of shared memory for each warp: the mean, two sums, two sums again, the largest value.
# Each of these reductions has its own elements, so before an element is written again, every
# thread has passed the barrier of another reduction.
_SMEM_PER_WARP = 6


def _make_rescale(row: TeamRow) -> Any:
    """Return a device function ``rescale(values, at, width, least, smem)``.

    It multiplies a row by a power of two that brings the largest absolute value of the row, or
    `least`, near 1, so that sums of squares stay in range. It returns the power.
    """
    largest_of = make_team_largest(row.team)
    power_of_two = make_power_of_two(row.element)
    slots, team = row.slots, row.team

    @device
    def rescale(values, at, width, least, smem):
        largest = least
        for k in range(slots):
            if at + k * team < width:
                largest = max(largest, abs(values[k]))
        scale = power_of_two(largest_of(largest, smem))
        for k in range(slots):
            if at + k * team < width:
                values[k] *= scale
        return scale

    return rescale


def _make_statistics(row: TeamRow) -> Any:
    """Return a device function ``statistics(values, at, width, eps, eps_on_deviation, smem)``.

    It returns ``mean_hi, mean_lo, factor, scale``: ``((x * scale - mean_hi) - mean_lo) * factor``
    is the normalized value. It multiplies the values by the scale, which is 1 if their squares are
    in range.
    """
    element, ddof = row.element, row.ddof
    row_statistics, rescale = _make_row_statistics(row), _make_rescale(row)
    of_any = make_any(row.element, row.team)
    leaves_range = make_leaves_range(element)
    inverse_deviation = make_inverse_deviation(element)
    inverse, sqrt = reciprocal(element), make_sqrt(element)
    compute_type = element.compute_type
    offset = (_SMEM_PER_WARP - 1) * row.warps
    one, infinity = constant(element, 1.0), constant(element, float("inf"))

    @device
    def statistics(values, at, width, eps, eps_on_deviation, smem):
        # A team without a row has a width of 0.
        inv_count = inverse(compute_type(max(width, 1)))
        inv_divisor, scale = inverse(compute_type(max(width - ddof, 1))), one
        mean_hi, mean_lo, m2 = row_statistics(values, at, width, inv_count, smem)
        poor = leaves_range(m2 * inv_divisor, eps, eps_on_deviation)
        if of_any(poor):
            root_eps = sqrt(eps)
            least = max(root_eps, eps_on_deviation) if poor else infinity
            scale = rescale(values, at, width, least, smem[offset:])
            mean_hi, mean_lo, m2 = row_statistics(values, at, width, inv_count, smem)
            eps = root_eps * scale * (root_eps * scale) if poor else eps
            eps_on_deviation = eps_on_deviation * scale
        return mean_hi, mean_lo, inverse_deviation(m2 * inv_divisor, eps, eps_on_deviation), scale

    return statistics


@functools.cache
def make_team_forward(row: TeamRow) -> Any:
    """Return a device function that normalizes a row in place, and returns its mean and rstd.

    ``forward(values, width, gamma, beta, eps, eps_on_deviation)`` returns float64 numbers; the
    mean is 1 / rstd if the norm is not centred.
    """
    element, team, slots = row.element, row.team, row.slots
    statistics = _make_statistics(row)
    mapped = device(row.norm.formula.forward)
    joined = make_joined_statistics(row.norm.formula, element, FLOAT64)
    gamma_of = make_parameter(row, 1.0)
    beta_of = make_parameter(row, 0.0)
    compute_type = element.compute_type
    smem_size = max(1, _SMEM_PER_WARP * row.warps)

    @device
    def forward(values, width, gamma, beta, eps, eps_on_deviation):
        smem = cuda.shared.array(smem_size, compute_type)
        at = cuda.threadIdx.x % team
        mean_hi, mean_lo, factor, scale = statistics(
            values, at, width, compute_type(eps), compute_type(eps_on_deviation), smem
        )
        for k in range(slots):
            column = at + k * team
            if column < width:
                xhat = normalized(values[k], mean_hi, mean_lo, factor)
                values[k] = mapped(xhat, gamma_of(gamma, column), beta_of(beta, column))
        return joined(mean_hi, mean_lo, factor, scale)

    return forward


# Backward


@functools.cache
def make_team_xhat(row: TeamRow) -> Any:
    """Return a device function ``xhat(values, width, mean, rstd)``: x becomes xhat, in place."""
    element, team, slots = row.element, row.team, row.slots
    split = make_split_statistics(row.norm.formula, element, FLOAT64)
    wide = FLOAT64.compute_type

    @device
    def xhat(values, width, mean, rstd):
        at = cuda.threadIdx.x % team
        scale, mean_hi, mean_lo, factor = split(wide(mean), wide(rstd))
        for k in range(slots):
            if at + k * team < width:
                values[k] = normalized(values[k] * scale, mean_hi, mean_lo, factor)

    return xhat


@functools.cache
def make_team_backward(row: TeamRow, detached: Detached) -> Any:
    """Return a device function that turns dy into dx, in place, from xhat.

    ``backward(grads, xhats, width, gamma, beta, rstd, eps_on_deviation)``; `grads` are dy.
    """
    element, team, slots, ddof = row.element, row.team, row.slots, row.ddof
    split = make_split_statistics(row.norm.formula, element, FLOAT64)
    means_of = make_means(element)
    team_two_sums = make_team_two_sums(team)
    inverse = reciprocal(element)
    gamma_of = make_parameter(row, 1.0)
    beta_of = make_parameter(row, 0.0)
    grad_of, gradient = device(row.norm.formula.backward), device(input_gradient)
    compute_type = element.compute_type
    wide = FLOAT64.compute_type
    warps = row.warps
    zero, none = constant(element, 0.0), constant(FLOAT64, 0.0)
    smem_size = max(1, 2 * warps)
    through_mean = row.norm.formula.centred and not detached.mean
    through_scale = not detached.scale

    @device
    def backward(grads, xhats, width, gamma, beta, rstd, eps_on_deviation):
        smem = cuda.shared.array(smem_size, compute_type)
        at = cuda.threadIdx.x % team
        sum_g, sum_g_xhat = zero, zero
        for k in range(slots):
            column = at + k * team
            if column < width:
                g = grad_of(grads[k], xhats[k], gamma_of(gamma, column), beta_of(beta, column))
                sum_g += g
                sum_g_xhat += g * xhats[k]
                grads[k] = g
        if warps > 0:
            # Another thread may still read the sums of the row before.
            cuda.syncthreads()
        sum_g, sum_g_xhat = team_two_sums(sum_g, sum_g_xhat, smem)
        scale, _, _, factor = split(none, wide(rstd))
        inv_count = inverse(compute_type(max(width, 1))) if through_mean else zero
        inv_divisor = inverse(compute_type(max(width - ddof, 1))) if through_scale else zero
        mean_g, mean_g_xhat = means_of(
            sum_g, sum_g_xhat, scale, factor, inv_count, inv_divisor, compute_type(eps_on_deviation)
        )
        for k in range(slots):
            if at + k * team < width:
                grads[k] = gradient(grads[k], xhats[k], mean_g, mean_g_xhat, factor) * scale

    return backward


# The functions of a norm


def team_row(norm: Norm, dtype: str, team: int, slots: int, ddof: int) -> TeamRow:
    """Return the row that device functions are compiled for."""
    return TeamRow(norm, ELEMENT_TYPES[dtype], team, slots, ddof)


@functools.cache
def make_row_functions(
    row: TeamRow, detached: Detached, eps_on_deviation: bool = False, factor_flows: bool = False
) -> tuple[Any, Any, Any]:
    """Return ``forward, xhat, backward`` for the norm of a row.

    Parameters
    ----------
    row : TeamRow
        The norm, and the threads that hold the row.
    detached : Detached
        The statistics that the gradient does not flow through.
    eps_on_deviation : bool
        For a norm without parameters: whether eps is added to the deviation, not the variance.
    factor_flows : bool
        For a norm without parameters: whether the gradient flows through the factor 1 - k * xhat.
    """
    if row.norm.parameters == 0:
        return _with_numbers(row, detached, eps_on_deviation, factor_flows)
    return (_with_gain if row.norm.parameters == 1 else _with_gain_and_bias)(row, detached)


def _with_gain_and_bias(row: TeamRow, detached: Detached) -> tuple[Any, Any, Any]:
    normalize = make_team_forward(row)
    gradient = make_team_backward(row, detached)
    zero = constant(row.element, 0.0)

    @device
    def forward(values, width, gamma, beta, eps):
        return normalize(values, width, gamma, beta, eps, zero)

    @device
    def backward(grads, xhats, width, gamma, rstd):
        gradient(grads, xhats, width, gamma, None, rstd, zero)

    return forward, make_team_xhat(row), backward


def _with_gain(row: TeamRow, detached: Detached) -> tuple[Any, Any, Any]:
    normalize = make_team_forward(row)
    gradient = make_team_backward(row, detached)
    normalized = make_team_xhat(row)
    zero = constant(row.element, 0.0)

    @device
    def forward(values, width, gamma, eps):
        return normalize(values, width, gamma, None, eps, zero)[1]

    @device
    def xhat(values, width, rstd):
        normalized(values, width, zero, rstd)

    @device
    def backward(grads, xhats, width, gamma, rstd):
        gradient(grads, xhats, width, gamma, None, rstd, zero)

    return forward, xhat, backward


def _with_numbers(
    row: TeamRow, detached: Detached, eps_on_deviation: bool, factor_flows: bool
) -> tuple[Any, Any, Any]:
    normalize = make_team_forward(row)
    gradient = make_team_backward(row, detached)
    zero = constant(row.element, 0.0)
    compute_type = row.element.compute_type
    # The derivative of (1 - k * xhat) * xhat is 1 - 2 * k * xhat. With a constant factor it is
    # 1 - k * xhat.
    times = constant(row.element, 2.0 if factor_flows else 1.0)

    @device
    def forward(values, width, scale, k, eps):
        if eps_on_deviation:
            return normalize(values, width, scale, k, zero, eps)
        return normalize(values, width, scale, k, eps, zero)

    @device
    def backward(grads, xhats, width, scale, k, eps, rstd):
        on_deviation = compute_type(eps) if eps_on_deviation else zero
        gradient(grads, xhats, width, scale, compute_type(k) * times, rstd, on_deviation)

    return forward, make_team_xhat(row), backward
