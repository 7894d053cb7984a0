"""Exponential norms, chunk by chunk."""

from typing import Any

import numpy as np

from numnorm.arguments import check_number
from numnorm.backends.contract.moving import Decay, ExponentialState
from numnorm.backends.contract.weighting import KEEP_ALL, Weighting
from numnorm.backends.cpu.memory.host_arrays import Array, as_statistic
from numnorm.backends.cpu.memory.left_out import selected_by
from numnorm.backends.cpu.moving.arrays import plan_of, result_of, statistics_for, target_of
from numnorm.backends.cpu.moving.exponential import run_exponential
from numnorm.backends.cpu.moving.missing.exponential import Past, nothing, run_missing
from numnorm.layouts import MovingLayout


def exponential_step(
    x: Array, state: ExponentialState | None, layout: MovingLayout, decay: Decay, out: Any
) -> tuple[Array, ExponentialState]:
    """Return y of the next chunk, and the state after it."""
    if state is not None and isinstance(state.weight, np.generic | np.ndarray):
        # Values were missing.
        return missing_exponential_step(KEEP_ALL, x, state, layout, decay, out)
    shape = _channels(x, layout)
    weight, before = 0.0, np.zeros((3, layout.outer * layout.inner))
    if state is not None:
        weight = check_number("state.weight", state.weight, least=0.0)
        before = _statistics(state, shape)
    plan = plan_of(x.dtype, layout)
    source = plan.flat(x)
    target = target_of(source, x, out, (source,))
    arrays = source, target, *statistics_for(x, False)
    weight, after = run_exponential(plan, arrays, before, weight, decay)
    y = result_of(target, x, out)
    return y, ExponentialState(weight, *(row.reshape(shape).copy() for row in after))


def missing_exponential_step(
    weighting: Weighting,
    x: Array,
    state: ExponentialState | None,
    layout: MovingLayout,
    decay: Decay,
    out: Any,
) -> tuple[Array, ExponentialState]:
    """Return the same, with statistics of what a weighting keeps."""
    keep, fill = selected_by(weighting, x)
    shape, past = _channels(x, layout), nothing(layout.outer * layout.inner)
    if state is not None:
        weight, statistics = np.broadcast_to(state.weight, shape), _statistics(state, shape)
        weights = as_statistic("state.weight", weight, shape, "one for each channel")
        past = Past(weights, statistics)
    y, _, past = run_missing(x, keep, past, layout, decay, out, False)
    rows = past.weights, *past.statistics
    return fill(y), ExponentialState(*(row.reshape(shape).copy() for row in rows))


def _channels(x: Array, layout: MovingLayout) -> tuple[int, ...]:
    return x.shape[: layout.axis] + x.shape[layout.axis + 1 :]


def _statistics(state: ExponentialState, shape: tuple[int, ...]) -> Array:
    """Return the statistics of a state as rows."""
    rows = (
        as_statistic(f"state.{name}", getattr(state, name), shape, "one for each channel")
        for name in ("mean", "mean_lo", "variance")
    )
    return np.stack([row.reshape(-1) for row in rows])
