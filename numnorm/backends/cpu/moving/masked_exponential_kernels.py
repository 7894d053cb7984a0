"""The kernels of exponential norms in which steps are missing.

The share of a step in its statistics depends on the steps that were missing before it, so it has a
share in each channel. The share of a missing step is 0.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.backends.cpu.compiler.jit import Kernel, inlined, make_kernel
from numnorm.backends.cpu.memory.kernel_arrays import halves, make_scratch
from numnorm.backends.cpu.moving.exponential_kernels import (
    ABOVE_ZERO,
    advance_each,
    chosen,
    make_outputs,
    make_share_of,
    make_shared_counts,
    rstd_of,
)
from numnorm.backends.cpu.moving.lanes import LANES, LaneAccess, lane_access, make_locate
from numnorm.backends.cpu.moving.missing_steps import HALF, MASK
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.functions import make_at_least, reciprocal, where_at_most
from numnorm.backends.cpu.simd.vector import make_zeros, multiply_add


@inlined
def adjusted(weight, held, fading):
    """Return the sum of the weights, the share of the step, and 1 - share."""
    older = weight * fading
    weight = multiply_add(weight, fading, held)
    share = where_at_most(reciprocal(weight), HALF, held)
    return weight, share, chosen(share, 1.0 - share, older * share)


def make_shares_kernel(across: bool) -> Kernel:
    """Return a kernel ``(keep, shares, state, after, shape, counts, weights)``.

    It stores the share of each step and behind all shares what each leaves of 1, twice the size of
    ``keep``, which is 1 for each step that counts, or else 0. The ``state`` has a weight for each
    channel and `after` gets it after the last step. The `shape` is ``(outer, steps, inner)``.
    ``counts`` are the number of groups and of parts, ``weights`` are alpha and whether to adjust.
    """
    access, zeros = lane_access(MASK, across), make_zeros(np.float64, LANES)
    read, read_state, write = access.read, access.read_statistic, access.write_statistic
    locate, scratch = make_locate(across, 1, 0), make_scratch(np.int64, LANES)

    @inlined
    def unadjusted(weight, held, alpha, fading):
        # The weight is what fading has left since the last step: 1 just after it.
        older = weight * fading
        total = multiply_add(weight, fading, zeros() + alpha)
        share = where_at_most(alpha / total, ABOVE_ZERO, weight)
        share = where_at_most(share + where_at_most(zeros() + 1.0, weight, 0.0), HALF, held)
        rest = chosen(share, 1.0 - share, older / total)
        return where_at_most(older, held, HALF) + held, share, rest

    @inlined
    def steps_of(keep, shares, states, starts, columns, stride, steps, weights):
        state, after = states
        alpha, adjust = weights
        weight = read_state(state, columns, 0)
        for t in range(steps):
            held = read(keep, starts, t * stride)
            if adjust:
                weight, share, rest = adjusted(weight, held, 1.0 - alpha)
            else:
                weight, share, rest = unadjusted(weight, held, alpha, 1.0 - alpha)
            write(shares[0], starts, t * stride, share)
            write(shares[1], starts, t * stride, rest)
        write(after, columns, 0, weight)

    def kernel(keep, shares, state, after, shape, counts, weights, first, last):
        groups, parts = counts
        starts, columns, both, states = scratch(), scratch(), halves(shares), (state, after)
        for group in range(groups * first // parts, groups * last // parts):
            locate(group, shape, 1, 0, 0, starts)
            locate(group, (shape[0], 1, shape[2]), 1, 0, 0, columns)
            steps_of(keep, both, states, starts, columns, shape[2], shape[1], weights)

    return make_kernel(f"moving.shares.{'across' if across else 'along'}", kernel)


def _make_first_block(access: LaneAccess) -> Callable[..., Any]:
    """Return a compiled ``first_block(arrays, shares, starts, stride, count, eps)``.

    It normalizes the first steps. Their mean and deviation are of the steps among them that count.
    """
    read, output, zeros = access.read, make_outputs(access), make_zeros(np.float64, LANES)
    read_share, at_least_zero = access.read_statistic, make_at_least(0.0)
    inverse_count = make_shared_counts(access, True)

    @inlined
    def first_block(arrays, shares, starts, stride, count, eps):
        x, first, second, pivot = arrays[0], zeros(), zeros(), zeros()
        for back in range(count):
            offset = (count - 1 - back) * stride
            share = read_share(shares[0], starts, offset)
            value = where_at_most(read(x, starts, offset), ABOVE_ZERO, share)
            pivot = where_at_most(pivot, share, 0.0) + value
        inverse = inverse_count(shares, starts, stride, count)
        for t in range(count):
            share = read_share(shares[0], starts, t * stride)
            deviation = read(x, starts, t * stride) - pivot
            first = first + where_at_most(deviation, ABOVE_ZERO, share)
        mean = first * inverse
        for t in range(count):
            share = read_share(shares[0], starts, t * stride)
            deviation = (read(x, starts, t * stride) - pivot) - mean
            deviation = where_at_most(deviation, ABOVE_ZERO, share)
            second = multiply_add(deviation, deviation, second)
        rstd = rstd_of(at_least_zero(second * inverse), eps)
        for t in range(count):
            deviation = (read(x, starts, t * stride) - pivot) - mean
            output(arrays, starts, t * stride, deviation, pivot + mean, rstd)

    return first_block


def make_masked_exponential_kernel(element_type: ElementType, across: bool) -> Kernel:
    """Return a kernel ``(x, shares, y, mean, rstd, state, after, shape, counts, eps)``.

    ``shares`` are what the kernel of `make_shares_kernel` stores. In the ``state``, a
    channel before its first value has a mean of NaN. The other arguments are as for
    `make_exponential_kernel`; `after` gets no weight.
    """

    @inlined
    def taken(value, statistics, share, rest):
        mean, lost, variance = statistics
        value = where_at_most(value, ABOVE_ZERO, share)
        # A first value leaves nothing, and replaces statistics that may be NaN.
        mean = where_at_most(mean, ABOVE_ZERO, rest) + where_at_most(value, rest, 0.0)
        lost = where_at_most(lost, ABOVE_ZERO, rest)
        variance = where_at_most(variance, ABOVE_ZERO, rest)
        value = value + where_at_most(mean, share, 0.0)
        return advance_each(value, (mean, lost, variance), share, rest)

    access = lane_access(element_type, across)
    functions = _make_first_block(access), make_share_of(access, True), taken
    return make_kernel_of_shares("masked_exponential", element_type, across, functions)


def make_kernel_of_shares(
    name: str, element_type: ElementType, across: bool, functions: tuple[Any, Any, Any]
) -> Kernel:
    """Return a kernel whose steps have shares that are stored.

    Parameters
    ----------
    name : str
    element_type : ElementType
    across : bool
    functions : tuple of callable
        ``first_block(arrays, shares, starts, stride, count, eps)``, which normalizes the first
        steps; what `make_share_of` returns; and ``taken(value, statistics, share, rest)``, which
        returns the statistics with a new value, and its deviation from the mean.
    """
    first_block, share_of, taken = functions
    access = lane_access(element_type, across)
    read, output = access.read, make_outputs(access)
    read_state, write_state = access.read_statistic, access.write_statistic
    locate, scratch = make_locate(across, 1, 0), make_scratch(np.int64, LANES)

    @inlined
    def steps_of(arrays, shares, states, starts, columns, stride, steps, initial, eps):
        state, after = states
        channels = state.size // 3
        mean, lost = read_state(state, columns, 0), read_state(state, columns, channels)
        variance = read_state(state, columns, 2 * channels)
        for t in range(steps):
            share, rest = share_of(shares, starts, t, t * stride)
            value = read(arrays[0], starts, t * stride)
            (mean, lost, variance), deviation = taken(value, (mean, lost, variance), share, rest)
            if t >= initial:
                output(arrays, starts, t * stride, deviation, mean, rstd_of(variance, eps))
        write_state(after, columns, 0, mean)
        write_state(after, columns, channels, lost)
        write_state(after, columns, 2 * channels, variance)

    def kernel(x, shares, y, mean, rstd, state, after, shape, counts, eps, first, last):
        steps, stride = shape[1], shape[2]
        groups, initial, parts = counts
        starts, columns, both = scratch(), scratch(), halves(shares)
        arrays, states = (x, y, mean, rstd), (state, after)
        for group in range(groups * first // parts, groups * last // parts):
            locate(group, shape, 1, 0, 0, starts)
            locate(group, (shape[0], 1, stride), 1, 0, 0, columns)
            if initial > 0:
                first_block(arrays, both, starts, stride, min(initial, steps), eps)
            steps_of(arrays, both, states, starts, columns, stride, steps, initial, eps)

    return make_kernel(
        f"moving.{name}.{'across' if across else 'along'}.{element_type.name}", kernel
    )
