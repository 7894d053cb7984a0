"""The kernels of exponential norms whose steps have times.

What is left of a weight depends on the time since the step before, the same in all channels. Where
no step is missing, so do the shares.
"""

import numpy as np

from numnorm.backends.cpu.compiler.jit import Kernel, inlined, make_kernel
from numnorm.backends.cpu.memory.kernel_arrays import halves, make_scratch
from numnorm.backends.cpu.moving.exponential_kernels import (
    advance,
    make_first_block,
    make_share_of,
)
from numnorm.backends.cpu.moving.lanes import LANES, lane_access, make_locate
from numnorm.backends.cpu.moving.masked_exponential_kernels import adjusted, make_kernel_of_shares
from numnorm.backends.cpu.moving.missing_steps import HALF, MASK
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.functions import make_at_least, where_at_most
from numnorm.backends.cpu.simd.vector import multiply_add

# The share of a step that counts without weight: without `adjust`, one at the time of the step
# before. A share of 0 would say that it is missing.
_WEIGHTLESS = 1e-300


def make_timed_shares_kernel(across: bool) -> Kernel:
    """Return a kernel ``(keep, fading, shares, state, after, shape, counts, adjust)``.

    ``fading`` is that of `Decay`. The other arguments are as for `make_shares_kernel`.
    """
    access, at_least = lane_access(MASK, across), make_at_least(_WEIGHTLESS)
    read, read_state, write = access.read, access.read_statistic, access.write_statistic
    locate, scratch = make_locate(across, 1, 0), make_scratch(np.int64, LANES)

    @inlined
    def unadjusted(weight, held, left, faded):
        # The weight is what has been left since the last step: 1 just after it, and 0 before the
        # first one. Just after a step, what is gone has all digits of `faded`.
        gone = multiply_add(weight, faded, 1.0 - weight)
        weight = weight * left
        share = where_at_most(at_least(gone), HALF, held)
        rest = where_at_most(weight, HALF, held) + where_at_most(1.0 - held, held, HALF)
        return where_at_most(weight, held, HALF) + held, share, rest

    @inlined
    def steps_of(keep, fading, shares, states, starts, columns, stride, steps, adjust):
        state, after = states
        weight = read_state(state, columns, 0)
        for t in range(steps):
            held = read(keep, starts, t * stride)
            if adjust:
                weight, share, rest = adjusted(weight, held, fading[0][t])
            else:
                weight, share, rest = unadjusted(weight, held, fading[0][t], fading[1][t])
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
    first_of_all = make_first_block(access)

    @inlined
    def first_block(arrays, shares, starts, stride, count, eps):
        first_of_all(arrays, starts, stride, count, eps)

    functions = first_block, make_share_of(access, False), advance
    return make_kernel_of_shares("timed_exponential", element_type, across, functions)
