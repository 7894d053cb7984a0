"""The kernels of exponential norms, which take eight channels through time side by side.

The mean is a sum of two numbers. At an offset the larger one alone would lose digits at every step.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.backends.cpu.compiler.jit import Kernel, inlined, make_kernel
from numnorm.backends.cpu.memory.borrowed import make_scratch
from numnorm.backends.cpu.moving.lanes import LANES, LaneAccess, lane_access, make_locate
from numnorm.backends.cpu.moving.shares import MOST, chosen
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.functions import inverse_root, make_at_least, maximum
from numnorm.backends.cpu.simd.vector import make_zeros, multiply_add


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


def _make_first_block(access: LaneAccess) -> Callable[..., Any]:
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


@inlined
def _from_mean(distance, statistics, share):
    """Return the statistics with a new value, at a distance from the mean."""
    mean, lost, variance, deviation = statistics
    low = multiply_add(distance, share, lost)
    rounded = mean + low
    variance = multiply_add(deviation * deviation - variance, share, variance)
    return rounded, low - (rounded - mean), variance


@inlined
def _from_value(value, statistics, share, rest):
    """Return the same, where the value is near the new mean, and little is left of the old one."""
    _, _, variance, deviation = statistics
    rounded = value - deviation
    variance = multiply_add(variance, rest, deviation * deviation * share)
    return rounded, (value - rounded) - deviation, variance


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
        return _from_mean(distance, before, share), before[3]
    return _from_value(value, before, share, rest), before[3]


@inlined
def advance_each(value, statistics, share, rest):
    """Return what `advance` returns, for a share of each lane."""
    mean, lost, variance = statistics
    distance = (value - mean) - lost
    before = mean, lost, variance, distance * rest
    one, other = _from_mean(distance, before, share), _from_value(value, before, share, rest)
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
    read, output, first_block = access.read, make_outputs(access), _make_first_block(access)
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
