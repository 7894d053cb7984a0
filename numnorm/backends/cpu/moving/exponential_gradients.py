"""The kernel of the gradients of exponential norms: eight channels go back through time."""

from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.backends.cpu.compiler.jit import Kernel, inlined, make_kernel
from numnorm.backends.cpu.memory.allocated import make_aligned_zeros, release
from numnorm.backends.cpu.memory.borrowed import make_scratch
from numnorm.backends.cpu.moving.exponential_kernels import advance, advance_each
from numnorm.backends.cpu.moving.lanes import LANES, LaneAccess, lane_access, make_locate
from numnorm.backends.cpu.moving.shares import (
    MOST,
    chosen,
    halves,
    make_share_of,
    make_shared_counts,
)
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.functions import where_at_most
from numnorm.backends.cpu.simd.vector import make_load, make_zeros, multiply_add, store

# Where rstd * eps is above this, the deviation was below eps, and rstd is 1 / eps up to rounding.
_NEARLY_ONE = 1.0 - 1e-6


def _make_block_means(access: LaneAccess, missing: bool) -> Callable[..., Any]:
    """Return a compiled ``block_means(arrays, shares, starts, stride, count, eps)``.

    It returns the means of dy and of ``dy * xhat`` of the first steps, as for a layer norm; the
    second is 0 where the deviation is a constant.
    """
    read, read_statistic = access.read, access.read_statistic
    zeros, inverse_count = make_zeros(np.float64, LANES), make_shared_counts(access, missing)

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


def _make_deviations(access: LaneAccess, missing: bool) -> Callable[..., Any]:
    """Return a compiled ``deviations(x, starts, stride, count, shares, table)``.

    The table gets the deviations of the first steps from their exponential means.
    """
    read, zeros = access.read, make_zeros(np.float64, LANES)
    share_of, step = make_share_of(access, missing), advance_each if missing else advance

    @inlined
    def deviations(x, starts, stride, count, shares, table):
        statistics = zeros(), zeros(), zeros()
        for t in range(count):
            value = read(x, starts, t * stride)
            share, rest = share_of(shares, starts, t, t * stride)
            statistics, deviation = step(value, statistics, share, rest)
            store(table, LANES * t, deviation)

    return deviations


def _make_deviation(access: LaneAccess, missing: bool) -> Callable[..., Any]:
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

    return deviation_of_each if missing else deviation_of_all


def _make_through_mean(missing: bool) -> Callable[..., Any]:
    """Return a compiled ``through_mean(of_mean, kept, passed, shares)``.

    It returns the gradient of the mean of a step, from that of the step behind it, and dx.
    """

    @inlined
    def from_mean(of_mean, passed, share):
        return multiply_add(of_mean, 0.0 - share, passed)

    @inlined
    def from_later(later, passed, shares):
        # What passes through the step's own mean is the share of what passes through its value.
        return multiply_add(later, 0.0 - shares[0], passed * shares[1])

    @inlined
    def through_mean_of_all(of_mean, kept, passed, shares):
        after = multiply_add(of_mean, kept, passed)
        if shares[0] <= MOST:
            return after, from_mean(after, passed, shares[0])
        return after, from_later(of_mean * kept, passed, shares)

    @inlined
    def through_mean_of_each(of_mean, kept, passed, shares):
        after = multiply_add(of_mean, kept, passed)
        one, other = (
            from_mean(after, passed, shares[0]),
            from_later(of_mean * kept, passed, shares),
        )
        return after, chosen(shares[0], one, other)

    return through_mean_of_each if missing else through_mean_of_all


def _make_block(access: LaneAccess, missing: bool) -> Callable[..., Any]:
    """Return a compiled function that stores dx of the first steps, which share their statistics.

    It is ``block_of(arrays, dx, shares, starts, stride, initial, of_block, through, table)``, with
    what `block_means` returns, the gradients that come back from later steps, and the deviations.
    """
    read, read_statistic, write = access.read, access.read_statistic, access.write
    load, share_of = make_load(LANES), make_share_of(access, missing)

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
    element_type: ElementType, across: bool, missing: bool
) -> Kernel:
    """Return a kernel ``(dy, x, mean, rstd, dx, shares, shape, counts, eps)``.

    The arrays are flat. ``shares`` are the shares of each step in its statistics, and behind them
    what they leave of 1; if steps are ``missing``, of each step of each channel. A missing step
    has a share of 0, a dy of 0 and any x. `shape` and ``counts`` are as for
    `make_exponential_kernel`; `eps` is the least deviation.
    """
    access = lane_access(element_type, across)
    block_means = _make_block_means(access, missing)
    deviations, share_of = _make_deviations(access, missing), make_share_of(access, missing)
    read, read_statistic, write = access.read, access.read_statistic, access.write
    deviation_of, through_mean = _make_deviation(access, missing), _make_through_mean(missing)
    block_of, zeros = _make_block(access, missing), make_zeros(np.float64, LANES)
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

    kind = ("missing_" if missing else "") + ("across" if across else "along")
    return make_kernel(f"moving.exponential_gradients.{kind}.{element_type.name}", kernel)
