"""Exponential norms, forward and backward."""

import functools
import math
from typing import Any

import numpy as np

from numnorm.backends.contract.moving import Decay
from numnorm.backends.cpu.memory.host_arrays import Array
from numnorm.backends.cpu.moving.arrays import (
    Plan,
    in_own_dtype,
    parts_of,
    plan_of,
    result_of,
    statistics_for,
    statistics_of,
    target_of,
)
from numnorm.backends.cpu.moving.exponential_gradients import make_exponential_gradients_kernel
from numnorm.backends.cpu.moving.exponential_kernels import make_exponential_kernel
from numnorm.backends.cpu.moving.lanes import group_count
from numnorm.backends.cpu.moving.shares import MOST
from numnorm.layouts import MovingLayout

_kernel = functools.cache(make_exponential_kernel)
_gradients_kernel = functools.cache(make_exponential_gradients_kernel)


def exponential_forward(
    x: Array, layout: MovingLayout, decay: Decay, out: Any, save: bool
) -> tuple[Array, Array | None, Array | None]:
    """Return y and, if `save` is true, mean and rstd of each step."""
    plan = plan_of(x.dtype, layout)
    source = plan.flat(x)
    target = target_of(source, x, out, (source,))
    mean, rstd = statistics_for(x, save)
    state = np.zeros((3, layout.outer * layout.inner))
    run_exponential(plan, (source, target, mean, rstd), state, 0.0, decay)
    y = result_of(target, x, out)
    return y, *statistics_of(plan, x, save, mean, rstd)


def exponential_backward(
    dy: Any, x: Array, mean: Any, rstd: Any, layout: MovingLayout, decay: Decay, out: Any
) -> Array:
    """Return dx."""
    dx_of = functools.partial(exponential_dx, layout=layout, decay=decay)
    return in_own_dtype(dx_of, dy, x, mean, rstd, out)


def run_exponential(
    plan: Plan, arrays: tuple[Any, ...], state: Array, weight: float, decay: Decay
) -> tuple[float, Array]:
    """Run the forward kernel; return the weight and the state after it."""
    if plan.size == 0:
        return weight, state
    after = np.empty(state.size + 1)
    groups, parts = groups_of(plan)
    counts = groups, min(decay.initial, plan.shape[1]), parts
    weights = weight, decay.alpha, decay.adjust, decay.eps
    kernel = _kernel(plan.element_type, plan.across)
    given = (*arrays, state.reshape(-1), after, plan.shape, counts, weights)
    plan.run(kernel, given, parts, len(arrays))
    return float(after[-1]), after[:-1].reshape(state.shape)


def exponential_dx(
    dy: Array,
    x: Array,
    statistics: tuple[Array, Array],
    layout: MovingLayout,
    decay: Decay,
    out: Any,
    shares: Array | None = None,
) -> Array:
    """Return dx in the dtype that dy and x have.

    Where steps are missing, `shares` has the share of each step of each channel, and 1 - share.
    """
    plan = plan_of(x.dtype, layout)
    inputs = plan.flat(dy), plan.flat(x), *statistics
    target = target_of(inputs[1], x, out, inputs)
    if plan.size:
        groups, parts = groups_of(plan)
        counts = groups, min(decay.initial, layout.steps), parts
        kernel = _gradients_kernel(plan.element_type, plan.across, shares is not None)
        if shares is None:
            shares = _shares(layout.steps, decay)
        given = (*inputs, target, shares, plan.shape, counts, decay.eps)
        plan.run(kernel, given, parts, 5)
    return result_of(target, x, out)


def groups_of(plan: Plan) -> tuple[int, int]:
    """Return the number of groups of lanes, and into how many parts to divide them."""
    groups = group_count(plan.shape, 1, 1, plan.across)
    return groups, parts_of(groups)


def _shares(steps: int, decay: Decay) -> Array:
    """Return the share of each step in its statistics, and behind all shares 1 - share of each."""
    shares = np.full(steps, decay.alpha)
    if not decay.adjust or decay.alpha == 1.0:
        shares[0] = 1.0
        return np.append(shares, 1.0 - shares)
    # The sum of the weights of n steps is (1 - (1 - alpha)**n) / alpha; later it is 1 / alpha.
    fading = np.arange(1, min(steps, math.ceil(40.0 / decay.alpha)) + 1)
    rate = np.log1p(-decay.alpha)
    shares[: fading.size] = -decay.alpha / np.expm1(fading * rate)
    older = (1.0 - decay.alpha) * np.expm1((fading - 1) * rate) / np.expm1(fading * rate)
    rests = 1.0 - shares
    rests[: fading.size] = np.where(shares[: fading.size] > MOST, older, rests[: fading.size])
    return np.append(shares, rests)
