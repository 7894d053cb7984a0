"""Exponential norms in which steps are missing, forward and backward."""

import functools
from typing import Any, NamedTuple

import numpy as np

from numnorm.backends.contract.moving import Decay
from numnorm.backends.contract.weighting import Weighting
from numnorm.backends.cpu.memory.host_arrays import Array
from numnorm.backends.cpu.memory.left_out import selected_by
from numnorm.backends.cpu.moving.arrays import (
    Plan,
    plan_of,
    result_of,
    statistics_for,
    statistics_of,
    target_of,
)
from numnorm.backends.cpu.moving.exponential import exponential_dx, groups_of
from numnorm.backends.cpu.moving.missing.exponential_kernels import (
    make_missing_exponential_kernel,
    make_shares_kernel,
)
from numnorm.backends.cpu.moving.missing.kept import as_mask, gradient_of_sequences
from numnorm.layouts import MovingLayout

_shares_kernel = functools.cache(make_shares_kernel)
_kernel = functools.cache(make_missing_exponential_kernel)


class Past(NamedTuple):
    """The weight of each channel, and its statistics ``(3, channels)``: see `ExponentialState`."""

    weights: Array
    statistics: Array


def nothing(channels: int) -> Past:
    """Return what is before the first step."""
    statistics = np.zeros((3, channels))
    statistics[0] = np.nan
    return Past(np.zeros(channels), statistics)


def missing_exponential_forward(
    weighting: Weighting, x: Array, layout: MovingLayout, decay: Decay, out: Any, save: bool
) -> tuple[Array, Array | None, Array | None]:
    """Return y and, if `save` is true, mean and rstd of each step."""
    keep, fill = selected_by(weighting, x)
    past = nothing(layout.outer * layout.inner)
    y, (mean, rstd), _ = run_missing(x, keep, past, layout, decay, out, save)
    return fill(y), *statistics_of(plan_of(x.dtype, layout), x, save, mean, rstd)


def missing_exponential_backward(
    weighting: Weighting,
    dy: Any,
    x: Array,
    mean: Any,
    rstd: Any,
    layout: MovingLayout,
    decay: Decay,
    out: Any,
) -> Array:
    """Return dx."""
    dx_of = functools.partial(_dx, decay=decay)
    return gradient_of_sequences(dx_of, weighting, dy, x, mean, rstd, layout, out)


def _dx(
    keep: Array, dy: Array, x: Array, mean: Array, rstd: Array, layout: MovingLayout, decay: Decay
) -> Array:
    before = np.zeros(layout.outer * layout.inner)
    shares, _ = _shares(plan_of(x.dtype, layout), keep, before, decay)
    statistics = mean.reshape(-1), rstd.reshape(-1)
    return exponential_dx(dy, x, statistics, layout, decay, None, shares)


def run_missing(
    x: Array, keep: Array, past: Past, layout: MovingLayout, decay: Decay, out: Any, save: bool
) -> tuple[Array, tuple[Array, Array], Past]:
    """Return y, mean and rstd of each step, and the state after the last one."""
    plan = plan_of(x.dtype, layout)
    source = plan.flat(x)
    target = target_of(source, x, out, (source,))
    statistics = statistics_for(x, save)
    if plan.size:
        shares, weights = _shares(plan, keep, past.weights, decay)
        after = np.empty(past.statistics.size)
        groups, parts = groups_of(plan)
        counts = groups, min(decay.initial, layout.steps), parts
        arrays = source, shares, target, *statistics, past.statistics.reshape(-1), after
        kernel = _kernel(plan.element_type, plan.across)
        plan.run(kernel, (*arrays, plan.shape, counts, decay.eps), parts, 3)
        past = Past(weights, after.reshape(past.statistics.shape))
    return result_of(target, x, out), statistics, past


def _shares(plan: Plan, keep: Array, weights: Array, decay: Decay) -> tuple[Array, Array]:
    """Return the share of each step, behind all shares 1 - share, and the weights at the end."""
    shares, after = np.empty(2 * plan.size), np.empty_like(weights)
    if plan.size:
        groups, parts = groups_of(plan)
        arrays = as_mask(keep), shares, weights, after
        given = (*arrays, plan.shape, (groups, parts), (decay.alpha, decay.adjust))
        plan.run(_shares_kernel(plan.across), given, parts, 3)
    return shares, after
