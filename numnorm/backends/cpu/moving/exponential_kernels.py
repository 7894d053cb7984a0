"""The kernels of exponential norms, which take eight channels through time side by side.

The mean is a sum of two numbers. At an offset the larger one alone would lose digits at every step.
The gradients go back through time. They also serve the norms in which steps are missing, so the
share of a step in its statistics is one for all channels, or one for each.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.backends.cpu.compiler.jit import Kernel, inlined, make_kernel
from numnorm.backends.cpu.memory.kernel_arrays import (
    halves,
    make_aligned_zeros,
    make_scratch,
    release,
)
from numnorm.backends.cpu.moving.lanes import LANES, LaneAccess, lane_access, make_locate
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.functions import (
    inverse_root,
    make_at_least,
    maximum,
    reciprocal,
    where_at_most,
)
from numnorm.backends.cpu.simd.vector import make_load, make_zeros, multiply_add, store
from numnorm.backends.formulas import moving as formulas

# The share of a step


# The least number above 0: what a share or a rest that is not 0 is at least.
ABOVE_ZERO = 5e-324
MOST = formulas.MOST_SHARE
_MORE = float(np.nextafter(MOST, 1.0))


@inlined
def chosen(share, one, other):
    """Return the lane of `one` where the share is at most `MOST`, else the lane of `other`."""
    return where_at_most(one, share, MOST) + where_at_most(other, _MORE, share)


def make_share_of(access: LaneAccess, masked: bool) -> Callable[..., Any]:
    """Return a compiled ``share_of(shares, starts, t, offset)``: the share of step t, and the rest.

    ``shares`` are the shares of all steps, and what these leave of 1.
    """
    read = access.read_statistic

    @inlined
    def of_all(shares, starts, t, offset):
        return shares[0][t], shares[1][t]

    @inlined
    def of_each(shares, starts, t, offset):
        return read(shares[0], starts, offset), read(shares[1], starts, offset)

    return of_each if masked else of_all


def make_shared_counts(access: LaneAccess, masked: bool) -> Callable[..., Any]:
    """Return a compiled ``inverse_count(shares, starts, stride, count)``.

    It returns the reciprocal of the number of first steps that count, which is infinite for none.
    """
    read, zeros = access.read_statistic, make_zeros(np.float64, LANES)

    @inlined
    def of_all(shares, starts, stride, count):
        return 1.0 / count

    @inlined
    def of_each(shares, starts, stride, count):
        counted = zeros()
        for t in range(count):
            share = read(shares[0], starts, t * stride)
            counted = counted + where_at_most(zeros() + 1.0, ABOVE_ZERO, share)
        return reciprocal(counted)

    return of_each if masked else of_all


# Forward


@inlined
def _next_weight(weight: float, alpha: float, adjust: bool) -> tuple[float, float, float]:
    """Return the sum of the weights with a new step, the share of this step, and 1 - share."""
    if adjust:
        older = (1.0 - alpha) * weight
        weight = 1.0 + older
        share = 1.0 / weight
        return weight, share, (1.0 - share if share <= MOST else older * share)
    share = alpha if weight > 0.0 else 1.0
    return 1.0, share, 1.0 - share


@inlined
def rstd_of(variance: Any, eps: float) -> Any:
    """Return the reciprocal of the deviation, or of the least one."""
    return inverse_root(maximum(variance, eps * eps))


def make_outputs(access: LaneAccess) -> Callable[..., Any]:
    """Return a compiled ``output(arrays, starts, offset, deviation, mean, rstd)``."""
    write, write_statistic = access.write, access.write_statistic

    @inlined
    def output(arrays, starts, offset, deviation, mean, rstd):
        _, y, means, rstds = arrays
        write(y, starts, offset, deviation * rstd)
        if means.size > 0:
            write_statistic(means, starts, offset, mean)
            write_statistic(rstds, starts, offset, rstd)

    return output


def make_first_block(access: LaneAccess) -> Callable[..., Any]:
    """Return a compiled ``first_block(arrays, starts, stride, count, eps)``.

    It normalizes the first steps by their own mean and deviation.
    """
    read, output, zeros = access.read, make_outputs(access), make_zeros(np.float64, LANES)
    at_least_zero = make_at_least(0.0)

    @inlined
    def first_block(arrays, starts, stride, count, eps):
        x, first, second = arrays[0], zeros(), zeros()
        pivot = read(x, starts, 0)
        for t in range(count):
            first = first + (read(x, starts, t * stride) - pivot)
        mean = first * (1.0 / count)
        for t in range(count):
            deviation = (read(x, starts, t * stride) - pivot) - mean
            second = multiply_add(deviation, deviation, second)
        rstd = rstd_of(at_least_zero(second * (1.0 / count)), eps)
        for t in range(count):
            deviation = (read(x, starts, t * stride) - pivot) - mean
            output(arrays, starts, t * stride, deviation, pivot + mean, rstd)

    return first_block


_from_mean, _from_value = inlined(formulas.from_mean), inlined(formulas.from_value)


@inlined
def advance(value, statistics, share, rest):
    """Return the statistics with a new value, and the value's deviation from its mean.

    The statistics are the mean, what it lost by rounding, and the variance. `share` is that of the
    value, and `rest` is ``1 - share``, which has more digits where the share is near 1.
    """
    mean, lost, variance = statistics
    distance = (value - mean) - lost
    before = mean, lost, variance, distance * rest
    if share <= MOST:
        return _from_mean(distance, before, share, multiply_add), before[3]
    return _from_value(value, before, share, rest, multiply_add), before[3]


@inlined
def advance_each(value, statistics, share, rest):
    """Return what `advance` returns, for a share of each lane."""
    mean, lost, variance = statistics
    distance = (value - mean) - lost
    before = mean, lost, variance, distance * rest
    one = _from_mean(distance, before, share, multiply_add)
    other = _from_value(value, before, share, rest, multiply_add)
    mean, lost = chosen(share, one[0], other[0]), chosen(share, one[1], other[1])
    return (mean, lost, chosen(share, one[2], other[2])), before[3]


def make_exponential_kernel(element_type: ElementType, across: bool) -> Kernel:
    """Return a kernel ``(x, y, mean, rstd, state, after, shape, counts, weights)``.

    The arrays are flat; mean and rstd have no elements if they are not to be saved. The ``state (3,
    channels)`` has the mean, what it lost by rounding, and the variance of each channel; `after`
    gets the same three numbers after the last step, and then the weight. The `shape` is
    ``(outer, steps, inner)``. ``counts`` are the number of groups, of first steps that have the
    statistics of their block, and of parts. ``weights`` are the weight of the state, alpha, whether
    to adjust, and the least deviation.
    """
    access = lane_access(element_type, across)
    read, output, first_block = access.read, make_outputs(access), make_first_block(access)
    read_state, write_state = access.read_statistic, access.write_statistic
    locate, scratch = make_locate(across, 1, 0), make_scratch(np.int64, LANES)

    @inlined
    def steps_of(arrays, states, starts, columns, stride, steps, initial, weights):
        weight, alpha, adjust, eps = weights
        state, after = states
        channels = state.size // 3
        mean, lost = read_state(state, columns, 0), read_state(state, columns, channels)
        variance = read_state(state, columns, 2 * channels)
        for t in range(steps):
            weight, share, rest = _next_weight(weight, alpha, adjust)
            value = read(arrays[0], starts, t * stride)
            (mean, lost, variance), deviation = advance(value, (mean, lost, variance), share, rest)
            if t >= initial:
                output(arrays, starts, t * stride, deviation, mean, rstd_of(variance, eps))
        write_state(after, columns, 0, mean)
        write_state(after, columns, channels, lost)
        write_state(after, columns, 2 * channels, variance)
        after[3 * channels] = weight

    def kernel(x, y, mean, rstd, state, after, shape, counts, weights, first, last):
        steps, stride = shape[1], shape[2]
        groups, initial, parts = counts
        starts, columns = scratch(), scratch()
        arrays, states = (x, y, mean, rstd), (state, after)
        for group in range(groups * first // parts, groups * last // parts):
            locate(group, shape, 1, 0, 0, starts)
            locate(group, (shape[0], 1, stride), 1, 0, 0, columns)
            if initial > 0:
                first_block(arrays, starts, stride, min(initial, steps), weights[3])
            steps_of(arrays, states, starts, columns, stride, steps, initial, weights)

    name = f"moving.exponential.{'across' if across else 'along'}.{element_type.name}"
    return make_kernel(name, kernel)


# Backward


# Where rstd * eps is above this, the deviation was below eps, and rstd is 1 / eps up to rounding.
_NEARLY_ONE = 1.0 - 1e-6


def _make_block_means(access: LaneAccess, masked: bool) -> Callable[..., Any]:
    """Return a compiled ``block_means(arrays, shares, starts, stride, count, eps)``.

    It returns the means of dy and of ``dy * xhat`` of the first steps, as for a layer norm; the
    second is 0 where the deviation is a constant.
    """
    read, read_statistic = access.read, access.read_statistic
    zeros, inverse_count = make_zeros(np.float64, LANES), make_shared_counts(access, masked)

    @inlined
    def block_means(arrays, shares, starts, stride, count, eps):
        dy, x, means, rstds = arrays
        mean, rstd = read_statistic(means, starts, 0), read_statistic(rstds, starts, 0)
        total, projected = zeros(), zeros()
        for t in range(count):
            gradient = read(dy, starts, t * stride)
            total = total + gradient
            xhat = (read(x, starts, t * stride) - mean) * rstd
            projected = multiply_add(gradient, xhat, projected)
        inverse = inverse_count(shares, starts, stride, count)
        projected = where_at_most(projected * inverse, rstd * eps, _NEARLY_ONE)
        return total * inverse, projected

    return block_means


def _make_deviations(access: LaneAccess, masked: bool) -> Callable[..., Any]:
    """Return a compiled ``deviations(x, starts, stride, count, shares, table)``.

    The table gets the deviations of the first steps from their exponential means.
    """
    read, zeros = access.read, make_zeros(np.float64, LANES)
    share_of, step = make_share_of(access, masked), advance_each if masked else advance

    @inlined
    def deviations(x, starts, stride, count, shares, table):
        statistics = zeros(), zeros(), zeros()
        for t in range(count):
            value = read(x, starts, t * stride)
            share, rest = share_of(shares, starts, t, t * stride)
            statistics, deviation = step(value, statistics, share, rest)
            store(table, LANES * t, deviation)

    return deviations


def _make_deviation(access: LaneAccess, masked: bool) -> Callable[..., Any]:
    """Return a compiled ``deviation_of(x, means, starts, offset, before, shares)``.

    It returns the deviation of a step from its saved mean. Where the share of the step is near 1
    the two are near each other, and the deviation is a part of the distance from the mean of the
    step before, ``before`` from the offset; 0 if no mean is there.
    """
    read, read_statistic = access.read, access.read_statistic

    @inlined
    def deviation_of_all(x, means, starts, offset, before, shares):
        share, rest = shares
        value = read(x, starts, offset)
        if share <= MOST or before == 0:
            return value - read_statistic(means, starts, offset)
        return (value - read_statistic(means, starts, offset - before)) * rest

    @inlined
    def deviation_of_each(x, means, starts, offset, before, shares):
        share, rest = shares
        value = read(x, starts, offset)
        deviation = value - read_statistic(means, starts, offset)
        if before == 0:
            return deviation
        distance = value - read_statistic(means, starts, offset - before)
        return chosen(share, deviation, distance * rest)

    return deviation_of_each if masked else deviation_of_all


_through_mean = inlined(formulas.through_mean)
_through_later_mean = inlined(formulas.through_later_mean)


def _make_through_mean(masked: bool) -> Callable[..., Any]:
    """Return a compiled ``through_mean(of_mean, kept, passed, shares)``.

    It returns the gradient of the mean of a step, from that of the step behind it, and dx.
    """

    @inlined
    def through_mean_of_all(of_mean, kept, passed, shares):
        after = multiply_add(of_mean, kept, passed)
        if shares[0] <= MOST:
            return after, _through_mean(after, passed, shares[0], multiply_add)
        return after, _through_later_mean(
            of_mean * kept, passed, shares[0], shares[1], multiply_add
        )

    @inlined
    def through_mean_of_each(of_mean, kept, passed, shares):
        after = multiply_add(of_mean, kept, passed)
        share, rest = shares
        one = _through_mean(after, passed, share, multiply_add)
        other = _through_later_mean(of_mean * kept, passed, share, rest, multiply_add)
        return after, chosen(share, one, other)

    return through_mean_of_each if masked else through_mean_of_all


def _make_block(access: LaneAccess, masked: bool) -> Callable[..., Any]:
    """Return a compiled function that stores dx of the first steps, which share their statistics.

    It is ``block_of(arrays, dx, shares, starts, stride, initial, of_block, through, table)``, with
    what `block_means` returns, the gradients that come back from later steps, and the deviations.
    """
    read, read_statistic, write = access.read, access.read_statistic, access.write
    load, share_of = make_load(LANES), make_share_of(access, masked)

    @inlined
    def block_of(arrays, dx, shares, starts, stride, initial, of_block, through, table):
        dy, x, means, rstds = arrays
        of_variance, of_mean, kept = through
        for back in range(initial):
            t = initial - 1 - back
            offset = t * stride
            share, rest = share_of(shares, starts, t, offset)
            rstd = read_statistic(rstds, starts, offset)
            xhat = (read(x, starts, offset) - read_statistic(means, starts, offset)) * rstd
            own = multiply_add(xhat, 0.0 - of_block[1], read(dy, starts, offset) - of_block[0])
            of_variance = of_variance * kept
            scaled = of_variance * load(table, LANES * t)
            of_mean = multiply_add(of_mean, kept, scaled * (0.0 - share))
            passed = multiply_add(scaled, 0.0 - share, own * rstd)
            write(dx, starts, offset, multiply_add(of_mean, 0.0 - share, passed))
            kept = rest

    return block_of


def make_exponential_gradients_kernel(
    element_type: ElementType, across: bool, masked: bool
) -> Kernel:
    """Return a kernel ``(dy, x, mean, rstd, dx, shares, shape, counts, eps)``.

    The arrays are flat. ``shares`` are the shares of each step in its statistics, and behind them
    what they leave of 1; if they are ``masked``, of each step of each channel. A missing step
    has a share of 0, a dy of 0 and any x. `shape` and ``counts`` are as for
    `make_exponential_kernel`; `eps` is the least deviation.
    """
    access = lane_access(element_type, across)
    block_means = _make_block_means(access, masked)
    deviations, share_of = _make_deviations(access, masked), make_share_of(access, masked)
    read, read_statistic, write = access.read, access.read_statistic, access.write
    deviation_of, through_mean = _make_deviation(access, masked), _make_through_mean(masked)
    block_of, zeros = _make_block(access, masked), make_zeros(np.float64, LANES)
    new_table = make_aligned_zeros(np.float64, 1)
    locate, scratch = make_locate(across, 1, 0), make_scratch(np.int64, LANES)

    @inlined
    def steps_of(arrays, dx, shares, starts, steps, stride, initial, eps, table):
        dy, x, means, rstds = arrays
        # -2 V and -M of docs/norms/moving.md. Each `multiply_add` is written out: LLVM may contract
        # `a * b + c` in one of the two kernels and not in the other, and their bytes would differ.
        of_variance, of_mean = zeros(), zeros()
        kept = share_of(shares, starts, steps - 1, (steps - 1) * stride)[1]
        for back in range(steps - initial):
            t = steps - 1 - back
            offset = t * stride
            share, rest = share_of(shares, starts, t, offset)
            before = stride if t > initial else 0
            deviation = deviation_of(x, means, starts, offset, before, (share, rest))
            rstd = read_statistic(rstds, starts, offset)
            own = read(dy, starts, offset) * rstd
            of_scale = where_at_most(own * (deviation * rstd) * rstd, rstd * eps, _NEARLY_ONE)
            of_variance = multiply_add(of_variance, kept, of_scale)
            passed = multiply_add(of_variance, deviation * (0.0 - share), own)
            of_mean, result = through_mean(of_mean, kept, passed, (share, rest))
            write(dx, starts, offset, result)
            kept = rest
        if initial > 0:
            of_block = block_means(arrays, shares, starts, stride, initial, eps)
            deviations(x, starts, stride, initial, shares, table)
            through = of_variance, of_mean, kept
            block_of(arrays, dx, shares, starts, stride, initial, of_block, through, table)

    def kernel(dy, x, mean, rstd, dx, shares, shape, counts, eps, first, last):
        groups, initial, parts = counts
        starts, arrays, both = scratch(), (dy, x, mean, rstd), halves(shares)
        table = new_table((LANES * initial,), 0)
        for group in range(groups * first // parts, groups * last // parts):
            locate(group, shape, 1, 0, 0, starts)
            steps_of(arrays, dx, both, starts, shape[1], shape[2], initial, eps, table)
        release(table)

    kind = ("masked_" if masked else "") + ("across" if across else "along")
    return make_kernel(f"moving.exponential_gradients.{kind}.{element_type.name}", kernel)
