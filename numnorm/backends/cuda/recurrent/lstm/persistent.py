"""All steps of an LSTM in one kernel, where its blocks can run at the same time."""

import functools
from typing import Any

from numnorm.backends.contract.norms import Scaling
from numnorm.backends.contract.recurrent import LSTMForm, Steps
from numnorm.backends.cuda.arrays.device_array import DeviceArray
from numnorm.backends.cuda.arrays.launch import queue_together
from numnorm.backends.cuda.recurrent.common.cell_norm import NUMBERS
from numnorm.backends.cuda.recurrent.common.cell_passes import BackwardArrays, ForwardArrays
from numnorm.backends.cuda.recurrent.common.gate_norm_gradient import Stretch
from numnorm.backends.cuda.recurrent.common.passes import (
    Table,
    Weights,
    flow_numbers,
    new,
    scaling_numbers,
)
from numnorm.backends.cuda.recurrent.lstm.gates import GATES, normalized_units
from numnorm.backends.cuda.recurrent.lstm.persistent_backward_kernel import (
    make_lstm_persistent_backward,
    slice_sums,
)
from numnorm.backends.cuda.recurrent.lstm.persistent_forward_kernel import (
    make_lstm_persistent,
    slice_places,
)
from numnorm.backends.cuda.recurrent.persistent.passes import (
    counts_of,
    find_statistics,
    planned_backward,
    planned_forward,
)
from numnorm.backends.cuda.recurrent.persistent.plans import Plan

_kernel = functools.cache(make_lstm_persistent)
_backward_kernel = functools.cache(make_lstm_persistent_backward)


def plan_for(form: LSTMForm, x: DeviceArray, state: Any, batch: int) -> Plan | None:
    """Return how the device takes all steps at once; None if it has to take them one by one."""
    return planned_forward(_kernel, form, GATES, x, state, batch)


def plan_back_for(form: LSTMForm, x: DeviceArray, batch: int, units: int) -> Plan | None:
    """Return how the device takes all steps back at once; None if it takes them one by one."""
    return planned_backward(_backward_kernel, form, GATES, x, batch, units)


def run_forward(
    plan: Plan,
    form: LSTMForm,
    scaling: Scaling,
    x: DeviceArray,
    steps: Steps,
    weights: Weights,
    arrays: ForwardArrays,
    states: tuple[Any, ...],
    table: Table,
    *,
    save: bool,
) -> Any:
    """Take all steps, and return the products with the state if they are to be kept."""
    (xp, keeps, cell), owner, (state, _) = arrays, x.owner, states
    units, rows = owner.shape(state)[1], x.shape[0]
    batch = owner.shape(state)[0] - rows
    numbers = scaling_numbers(scaling, normalized_units(form, units))
    if form.gates is not None and form.by_product:
        find_statistics(form.gates, scaling, x, xp, table, Stretch(GATES, 0, GATES), 1)
    products = new(x, (rows, GATES * units)) if save and form.by_product else None
    slices = new(x, (batch * max(1, slice_places(form)) * plan.slices, NUMBERS))
    saved = products if form.by_product else xp
    kernel = _kernel(form, x.element, plan.shape)
    queue_together(
        kernel, plan.blocks, plan.memory, x,
        (
            weights.h, xp, *weights.others, *keeps, *states, saved if save else None, cell,
            table.array, slices, counts_of(x, steps, batch),
        ),
        (
            len(steps.counts), batch, plan.rows, plan.slices, units, int(save),
            *weights.numbers, *numbers, *scaling_numbers(scaling, units),
        ),
    )  # fmt: skip
    return products


def run_backward(
    plan: Plan,
    form: LSTMForm,
    scaling: Scaling,
    x: DeviceArray,
    steps: Steps,
    weights: Weights,
    arrays: BackwardArrays,
    slopes: tuple[Any, ...],
) -> Any:
    """Take all steps back, and return what the first states get through the products.

    The slopes are those of the last states, which become what goes past the products.
    """
    (saved, keeps, dy, results), owner = arrays, x.owner
    rows, (batch, units) = x.shape[0], owner.shape(slopes[0])
    product = new(x, (batch, units))
    sums = new(x, (batch * max(1, sum(slice_sums(form))) * plan.slices,))
    queue_together(
        _backward_kernel(form, x.element, plan.shape), plan.blocks, plan.memory, x,
        (
            weights.h, *saved, *weights.others, *keeps, dy, product, *slopes, *results, sums,
            counts_of(x, steps, batch),
        ),
        (
            len(steps.counts), rows, batch, plan.rows, plan.slices, units, *weights.numbers,
            *flow_numbers(form.gates, scaling, normalized_units(form, units)),
            *flow_numbers(form.cell, scaling, units),
        ),
    )  # fmt: skip
    return product
