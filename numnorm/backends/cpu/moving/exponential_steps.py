"""Exponential norms, chunk by chunk."""

from typing import Any

import numpy as np

from numnorm.arguments import check_number
from numnorm.backends.contract.moving import Decay, ExponentialState
from numnorm.backends.contract.weighting import KEEP_ALL, Weighting
from numnorm.backends.cpu.memory.host_arrays import Array, as_statistic
from numnorm.backends.cpu.memory.left_out import selected_by
from numnorm.backends.cpu.moving.arrays import (
    plan_of,
    result_of,
    statistics_for,
    statistics_of,
    target_of,
)
from numnorm.backends.cpu.moving.exponential import run_exponential
from numnorm.backends.cpu.moving.missing.exponential import Past, nothing, run_missing
from numnorm.layouts import MovingLayout

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
        return missing_exponential_step(KEEP_ALL, x, state, layout, decay, out, save)
    shape = _channels(x, layout)
    weight, before = 0.0, np.zeros((3, layout.outer * layout.inner))
    if state is not None:
        weight = check_number("state.weight", state.weight, least=0.0)
        before = _statistics(state, shape)
    plan = plan_of(x.dtype, layout)
    source = plan.flat(x)
    target = target_of(source, x, out, (source,))
    statistics = statistics_for(x, save)
    weight, after = run_exponential(plan, (source, target, *statistics), before, weight, decay)
    results = result_of(target, x, out), *statistics_of(plan, x, save, *statistics)
    return results, ExponentialState(weight, *(row.reshape(shape).copy() for row in after))


def missing_exponential_step(
    weighting: Weighting,
    x: Array,
    state: ExponentialState | None,
    layout: MovingLayout,
    decay: Decay,
    out: Any,
    save: bool,
) -> tuple[Results, ExponentialState]:
    """Return the same, with statistics of what a weighting keeps."""
    keep, fill = selected_by(weighting, x)
    shape, past = _channels(x, layout), nothing(layout.outer * layout.inner)
    if state is not None:
        weight, statistics = np.broadcast_to(state.weight, shape), _statistics(state, shape)
        weights = as_statistic("state.weight", weight, shape, "one for each channel")
        past = Past(weights, statistics)
    y, statistics, past = run_missing(x, keep, past, layout, decay, out, save)
    results = fill(y), *statistics_of(plan_of(x.dtype, layout), x, save, *statistics)
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
