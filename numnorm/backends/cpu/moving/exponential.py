"""Exponential norms, forward and backward, with missing steps, and chunk by chunk."""

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from numnorm.arguments import check_number
from numnorm.backends.contract.moving import Decay, ExponentialState
from numnorm.backends.contract.weighting import KEEP_ALL, Weighting
from numnorm.backends.cpu.memory.host_arrays import Array, as_statistic
from numnorm.backends.cpu.memory.left_out import selected_by
from numnorm.backends.cpu.moving.arrays import (
    Plan,
    groups_of,
    in_own_dtype,
    new_statistics,
    plan_of,
    result_of,
    saved_statistics,
    target_of,
)
from numnorm.backends.cpu.moving.exponential_kernels import (
    MOST,
    make_exponential_gradients_kernel,
    make_exponential_kernel,
)
from numnorm.backends.cpu.moving.masked_exponential_kernels import (
    make_masked_exponential_kernel,
    make_shares_kernel,
)
from numnorm.backends.cpu.moving.missing_steps import as_mask, gradient_of_sequences
from numnorm.backends.cpu.moving.timed_exponential import run_timed, shares_of_all, timed_shares
from numnorm.layouts import MovingLayout

# All steps


_kernel = functools.cache(make_exponential_kernel)
_gradients_kernel = functools.cache(make_exponential_gradients_kernel)


def exponential_forward(
    x: Array, layout: MovingLayout, decay: Decay, out: Any, save: bool
) -> tuple[Array, Array | None, Array | None]:
    """Return y and, if `save` is true, mean and rstd of each step."""
    plan = plan_of(x.dtype, layout)
    source = plan.flat(x)
    target = target_of(source, x, out, (source,))
    mean, rstd = new_statistics(x, save)
    state = np.zeros((3, layout.outer * layout.inner))
    run_exponential(plan, (source, target, mean, rstd), state, 0.0, decay)
    y = result_of(target, x, out)
    return y, *saved_statistics(plan, x, save, mean, rstd)


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
    if decay.fading is not None:
        return run_timed(plan, arrays, state, weight, decay)
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
        if shares is None and decay.fading is not None:
            shares, _ = shares_of_all(layout.steps, 0.0, decay)
        elif shares is None:
            shares = _shares(layout.steps, decay)
        given = (*inputs, target, shares, plan.shape, counts, decay.eps)
        plan.run(kernel, given, parts, 5)
    return result_of(target, x, out)


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


# Missing steps


_shares_kernel = functools.cache(make_shares_kernel)
_masked_kernel = functools.cache(make_masked_exponential_kernel)


class Past(NamedTuple):
    """The weight of each channel, and its statistics ``(3, channels)``: see `ExponentialState`."""

    weights: Array
    statistics: Array


def empty_past(channels: int) -> Past:
    """Return what is before the first step."""
    statistics = np.zeros((3, channels))
    statistics[0] = np.nan
    return Past(np.zeros(channels), statistics)


def masked_exponential_forward(
    weighting: Weighting, x: Array, layout: MovingLayout, decay: Decay, out: Any, save: bool
) -> tuple[Array, Array | None, Array | None]:
    """Return y and, if `save` is true, mean and rstd of each step."""
    keep, fill = selected_by(weighting, x)
    past = empty_past(layout.outer * layout.inner)
    y, (mean, rstd), _ = run_masked(x, keep, past, layout, decay, out, save)
    return fill(y), *saved_statistics(plan_of(x.dtype, layout), x, save, mean, rstd)


def masked_exponential_backward(
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
    dx_of = functools.partial(_masked_dx, decay=decay)
    return gradient_of_sequences(dx_of, weighting, dy, x, mean, rstd, layout, out)


def _masked_dx(
    keep: Array, dy: Array, x: Array, mean: Array, rstd: Array, layout: MovingLayout, decay: Decay
) -> Array:
    before = np.zeros(layout.outer * layout.inner)
    shares, _ = _masked_shares(plan_of(x.dtype, layout), keep, before, decay)
    statistics = mean.reshape(-1), rstd.reshape(-1)
    return exponential_dx(dy, x, statistics, layout, decay, None, shares)


def run_masked(
    x: Array, keep: Array, past: Past, layout: MovingLayout, decay: Decay, out: Any, save: bool
) -> tuple[Array, tuple[Array, Array], Past]:
    """Return y, mean and rstd of each step, and the state after the last one."""
    plan = plan_of(x.dtype, layout)
    source = plan.flat(x)
    target = target_of(source, x, out, (source,))
    statistics = new_statistics(x, save)
    if plan.size:
        shares, weights = _masked_shares(plan, keep, past.weights, decay)
        after = np.empty(past.statistics.size)
        groups, parts = groups_of(plan)
        counts = groups, min(decay.initial, layout.steps), parts
        arrays = source, shares, target, *statistics, past.statistics.reshape(-1), after
        kernel = _masked_kernel(plan.element_type, plan.across)
        plan.run(kernel, (*arrays, plan.shape, counts, decay.eps), parts, 3)
        past = Past(weights, after.reshape(past.statistics.shape))
    return result_of(target, x, out), statistics, past


def _masked_shares(plan: Plan, keep: Array, weights: Array, decay: Decay) -> tuple[Array, Array]:
    """Return the share of each step, behind all shares 1 - share, and the weights at the end."""
    if decay.fading is not None:
        return timed_shares(plan, as_mask(keep), weights, decay)
    shares, after = np.empty(2 * plan.size), np.empty_like(weights)
    if plan.size:
        groups, parts = groups_of(plan)
        arrays = as_mask(keep), shares, weights, after
        given = (*arrays, plan.shape, (groups, parts), (decay.alpha, decay.adjust))
        plan.run(_shares_kernel(plan.across), given, parts, 3)
    return shares, after


# Chunk by chunk


Results = tuple[Array, Array | None, Array | None]
"""The array y, and mean and rstd of each step if they are to be saved."""


def exponential_step(
    x: Array,
    state: ExponentialState | None,
    layout: MovingLayout,
    decay: Decay,
    out: Any,
    save: bool,
) -> tuple[Results, ExponentialState]:
    """Return the results for the next chunk, and the state after it."""
    if state is not None and isinstance(state.weight, np.generic | np.ndarray):
        # Values were missing.
        return masked_exponential_step(KEEP_ALL, x, state, layout, decay, out, save)
    shape = _channels(x, layout)
    weight, before = 0.0, np.zeros((3, layout.outer * layout.inner))
    if state is not None:
        weight = check_number("state.weight", state.weight, least=0.0)
        before = _statistics(state, shape)
    plan = plan_of(x.dtype, layout)
    source = plan.flat(x)
    target = target_of(source, x, out, (source,))
    statistics = new_statistics(x, save)
    weight, after = run_exponential(plan, (source, target, *statistics), before, weight, decay)
    results = result_of(target, x, out), *saved_statistics(plan, x, save, *statistics)
    return results, ExponentialState(weight, *(row.reshape(shape).copy() for row in after))


def masked_exponential_step(
    weighting: Weighting,
    x: Array,
    state: ExponentialState | None,
    layout: MovingLayout,
    decay: Decay,
    out: Any,
    save: bool,
) -> tuple[Results, ExponentialState]:
    """Return what `exponential_step` returns, with statistics of what a weighting keeps."""
    keep, fill = selected_by(weighting, x)
    shape, past = _channels(x, layout), empty_past(layout.outer * layout.inner)
    if state is not None:
        # Where no values were missing, there is one weight for all channels.
        weight = np.full(shape, state.weight) if np.ndim(state.weight) == 0 else state.weight
        weights = as_statistic("state.weight", weight, shape, "one for each channel")
        past = Past(weights, _statistics(state, shape))
    y, saved, past = run_masked(x, keep, past, layout, decay, out, save)
    results = fill(y), *saved_statistics(plan_of(x.dtype, layout), x, save, *saved)
    rows = past.weights, *past.statistics
    return results, ExponentialState(*(row.reshape(shape).copy() for row in rows))


def _channels(x: Array, layout: MovingLayout) -> tuple[int, ...]:
    return x.shape[: layout.axis] + x.shape[layout.axis + 1 :]


def _statistics(state: ExponentialState, shape: tuple[int, ...]) -> Array:
    """Return the statistics of a state as rows."""
    rows = (
        as_statistic(f"state.{name}", getattr(state, name), shape, "one for each channel")
        for name in ("mean", "mean_lo", "variance")
    )
    return np.stack([row.reshape(-1) for row in rows])
