"""Exponential norms whose steps have times: the shares of the steps, and the forward pass."""

import functools
from typing import Any

import numpy as np

from numnorm.backends.contract.moving import Decay
from numnorm.backends.cpu.memory.host_arrays import Array
from numnorm.backends.cpu.moving.arrays import Plan, groups_of, plan_of
from numnorm.backends.cpu.moving.missing_steps import MASK
from numnorm.backends.cpu.moving.timed_exponential_kernels import (
    make_timed_exponential_kernel,
    make_timed_shares_kernel,
)
from numnorm.layouts import sequences_by

_shares_kernel = functools.cache(make_timed_shares_kernel)
_kernel = functools.cache(make_timed_exponential_kernel)


def timed_shares(plan: Plan, mask: Array, weights: Array, decay: Decay) -> tuple[Array, Array]:
    """Return the share of each step, behind all shares 1 - share, and the weights at the end.

    The mask has 1 for each step that counts, or else 0; there is a weight for each channel.
    """
    if not plan.size:
        return np.empty(0), weights
    shares, after = np.empty(2 * plan.size), np.empty_like(weights)
    groups, parts = groups_of(plan)
    given = mask, decay.fading, shares, weights, after, plan.shape, (groups, parts), decay.adjust
    plan.run(_shares_kernel(plan.across), given, parts, 3)
    return shares, after


def shares_of_all(steps: int, weight: float, decay: Decay) -> tuple[Array, float]:
    """Return what `timed_shares` returns for steps that all count: the same in all channels."""
    one = plan_of(MASK.storage_dtype, sequences_by(1, steps, 1, 0))
    mask = np.ones(steps, MASK.storage_dtype)
    shares, after = timed_shares(one, mask, np.full(1, weight), decay)
    return shares, float(after[0])


def run_timed(
    plan: Plan, arrays: tuple[Any, ...], state: Array, weight: float, decay: Decay
) -> tuple[float, Array]:
    """Run the forward kernel; return the weight and the state after it."""
    x, *others = arrays
    shares, weight = shares_of_all(plan.shape[1], weight, decay)
    after = np.empty(state.size)
    groups, parts = groups_of(plan)
    counts = groups, min(decay.initial, plan.shape[1]), parts
    given = x, shares, *others, state.reshape(-1), after, plan.shape, counts, decay.eps
    plan.run(_kernel(plan.element_type, plan.across), given, parts, len(arrays))
    return weight, after.reshape(state.shape)
