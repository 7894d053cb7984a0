"""All steps of an LSTM in one kernel, where its blocks can run at the same time."""

import functools
from typing import Any

import numpy as np

from numnorm.backends.contract import LSTMForm, Scaling, Steps
from numnorm.backends.cuda.arrays import DeviceArray
from numnorm.backends.cuda.cell_norms import NUMBERS
from numnorm.backends.cuda.cell_passes import (
    Table,
    Weights,
    is_whole,
    new,
    scaling_numbers,
)
from numnorm.backends.cuda.cell_shape import cell_shape
from numnorm.backends.cuda.launch import blocks_of
from numnorm.backends.cuda.lstm_gates import GATES, normalized_units
from numnorm.backends.cuda.lstm_persistent_kernel import make_lstm_persistent, slice_places
from numnorm.backends.cuda.lstm_statistics_kernel import make_lstm_statistics
from numnorm.backends.cuda.persistent_plans import Plan, persistent_plan
from numnorm.backends.cuda.queues import queue, queue_together
from numnorm.backends.cuda.target import device_limits

_kernel = functools.cache(make_lstm_persistent)
_statistics_kernel = functools.cache(make_lstm_statistics)


def plan_for(
    form: LSTMForm, x: DeviceArray, weights: Weights, states: tuple[Any, Any], batch: int
) -> Plan | None:
    """Return how the device takes all steps at once; None if it has to take them one by one."""
    owner, (state, _) = x.owner, states
    units = owner.shape(state)[1]
    whole = is_whole(units, x, (state,))
    plan = persistent_plan(batch, units, GATES, x.element, device_limits(x.device), whole=whole)
    if plan is None:
        return None
    # Only the compiled kernel tells what it takes; a driver may also keep a part for others.
    most = _kernel(form, x.element, plan.shape).most_together(plan.memory)
    return plan if plan.blocks <= most else None


def run_forward(
    plan: Plan,
    form: LSTMForm,
    scaling: Scaling,
    x: DeviceArray,
    steps: Steps,
    weights: Weights,
    arrays: tuple[Any, ...],
    states: tuple[Any, Any],
    table: Table,
    *,
    save: bool,
) -> Any:
    """Take all steps, and return the products with the state if they are to be kept.

    The arrays are the products with x, what zoneout keeps, and room for the cells before the norm.
    """
    (xp, *keeps, cell), owner, (state, _) = arrays, x.owner, states
    units, rows = owner.shape(state)[1], x.shape[0]
    batch = owner.shape(state)[0] - rows
    numbers = scaling_numbers(scaling, normalized_units(form, units))
    if form.by_product:
        shape = cell_shape(units, x.element, whole=is_whole(units, x, (xp,)))
        kernel = _statistics_kernel(form, x.element, shape)
        queue(kernel, blocks_of(rows, shape), x, (xp, table.array), (rows, units, *numbers))
    products = new(x, (rows, GATES * units)) if save and form.by_product else None
    counts = None
    if (steps.counts != batch).any():
        counts = owner.from_host(x.array, steps.counts.astype(np.int32))
    slices = new(x, (batch * max(1, slice_places(form)) * plan.slices, NUMBERS))
    saved = products if form.by_product else xp
    kernel = _kernel(form, x.element, plan.shape)
    queue_together(
        kernel, plan.blocks, plan.memory, x,
        (
            weights.h, xp, *weights.others, *keeps, *states, saved if save else None, cell,
            table.array, slices, counts,
        ),
        (
            len(steps.counts), batch, plan.rows, plan.slices, units, int(save),
            *weights.numbers, *numbers, *scaling_numbers(scaling, units),
        ),
    )  # fmt: skip
    return products
