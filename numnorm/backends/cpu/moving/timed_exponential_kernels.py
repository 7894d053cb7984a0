"""The kernels of exponential norms whose steps have times.

What is left of a weight depends on the time since the step before, the same in all channels. Where
no step is missing, so do the shares.
"""

import numpy as np

from numnorm.backends.cpu.compiler.jit import Kernel, inlined, make_kernel
from numnorm.backends.cpu.memory.kernel_arrays import make_scratch
from numnorm.backends.cpu.moving.exponential_kernels import (
    advance,
    halves,
    make_first_block,
    make_outputs,
    make_share_of,
    rstd_of,
)
from numnorm.backends.cpu.moving.lanes import LANES, lane_access, make_locate
from numnorm.backends.cpu.moving.masked_exponential_kernels import adjusted
from numnorm.backends.cpu.moving.missing_steps import HALF, MASK
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.functions import make_at_least, where_at_most
from numnorm.backends.cpu.simd.vector import multiply_add

# Of a step that counts. Without `adjust`, one at the time of the step before has no weight; a share
# of 0 would say that it is missing.
_LEAST_SHARE = 1e-300


def make_timed_shares_kernel(across: bool) -> Kernel:
    """Return a kernel ``(keep, fading, shares, state, after, shape, counts, adjust)``.

    ``fading`` is that of `Decay`. The other arguments are as for `make_shares_kernel`.
    """
    access, at_least = lane_access(MASK, across), make_at_least(_LEAST_SHARE)
    read, read_state, write = access.read, access.read_statistic, access.write_statistic
    locate, scratch = make_locate(across, 1, 0), make_scratch(np.int64, LANES)

    @inlined
    def unadjusted(weight, gone, held, left, lost):
        # The weight is what has been left since the last step: 1 just after it, and 0 before the
        # first one. What is gone has digits of its own.
        gone = multiply_add(weight, lost, gone)
        weight = weight * left
        share = where_at_most(at_least(gone), HALF, held)
        rest = where_at_most(weight, HALF, held) + where_at_most(1.0 - held, held, HALF)
        weight, gone = where_at_most(weight, held, HALF) + held, where_at_most(gone, held, HALF)
        return weight, gone, share, rest

    @inlined
    def steps_of(keep, fading, shares, states, starts, columns, stride, steps, adjust):
        state, after = states
        weight = read_state(state, columns, 0)
        gone = 1.0 - weight
        for t in range(steps):
            held = read(keep, starts, t * stride)
            if adjust:
                weight, share, rest = adjusted(weight, held, fading[0][t])
            else:
                weight, gone, share, rest = unadjusted(
                    weight, gone, held, fading[0][t], fading[1][t]
                )
            write(shares[0], starts, t * stride, share)
            write(shares[1], starts, t * stride, rest)
        write(after, columns, 0, weight)

    def kernel(keep, fading, shares, state, after, shape, counts, adjust, first, last):
        groups, parts = counts
        starts, columns, states = scratch(), scratch(), (state, after)
        left, both = halves(fading), halves(shares)
        for group in range(groups * first // parts, groups * last // parts):
            locate(group, shape, 1, 0, 0, starts)
            locate(group, (shape[0], 1, shape[2]), 1, 0, 0, columns)
            steps_of(keep, left, both, states, starts, columns, shape[2], shape[1], adjust)

    return make_kernel(f"moving.timed_shares.{'across' if across else 'along'}", kernel)


def make_timed_exponential_kernel(element_type: ElementType, across: bool) -> Kernel:
    """Return a kernel ``(x, shares, y, mean, rstd, state, after, shape, counts, eps)``.

    ``shares`` are the share of each step, the same in all channels, and behind all shares what each
    leaves of 1. The other arguments are as for `make_exponential_kernel`; `after` gets no weight.
    """
    access = lane_access(element_type, across)
    read, output, first_block = access.read, make_outputs(access), make_first_block(access)
    read_state, write_state = access.read_statistic, access.write_statistic
    share_of = make_share_of(access, False)
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
            (mean, lost, variance), deviation = advance(value, (mean, lost, variance), share, rest)
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
                first_block(arrays, starts, stride, min(initial, steps), eps)
            steps_of(arrays, both, states, starts, columns, stride, steps, initial, eps)

    name = f"moving.timed_exponential.{'across' if across else 'along'}.{element_type.name}"
    return make_kernel(name, kernel)
