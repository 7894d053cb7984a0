"""All steps of a plain recurrent network in one kernel, where its blocks can run together."""

import functools
from typing import Any

from numnorm.backends.contract.norms import Scaling
from numnorm.backends.contract.recurrent import RNNForm, Steps
from numnorm.backends.cuda.arrays.device_array import DeviceArray
from numnorm.backends.cuda.arrays.launch import queue_together
from numnorm.backends.cuda.recurrent.common.cell_norm import NUMBERS
from numnorm.backends.cuda.recurrent.common.cell_passes import BackwardArrays, ForwardArrays
from numnorm.backends.cuda.recurrent.common.passes import (
    Table,
    Weights,
    flow_numbers,
    new,
    scaling_numbers,
)
from numnorm.backends.cuda.recurrent.persistent.passes import (
    counts_of,
    planned_backward,
    planned_forward,
)
from numnorm.backends.cuda.recurrent.persistent.plans import Plan
from numnorm.backends.cuda.recurrent.rnn.persistent_backward_kernel import (
    SUMS,
    make_rnn_persistent_backward,
)
from numnorm.backends.cuda.recurrent.rnn.persistent_forward_kernel import GATES, make_rnn_persistent

_kernel = functools.cache(make_rnn_persistent)
_backward_kernel = functools.cache(make_rnn_persistent_backward)


def plan_for(form: RNNForm, x: DeviceArray, state: Any, batch: int) -> Plan | None:
    """Return how the device takes all steps at once; None if it has to take them one by one."""
    return planned_forward(_kernel, form, GATES, x, state, batch)


def plan_back_for(form: RNNForm, x: DeviceArray, batch: int, units: int) -> Plan | None:
    """Return how the device takes all steps back at once; None if it takes them one by one."""
    return planned_backward(_backward_kernel, form, GATES, x, batch, units)


def run_forward(
    plan: Plan,
    form: RNNForm,
    scaling: Scaling,
    x: DeviceArray,
    steps: Steps,
    weights: Weights,
    arrays: ForwardArrays,
    history: tuple[Any, ...],
    table: Table,
    *,
    save: bool,
) -> None:
    """Take all steps; the products with x become the sums of both, if they are to be kept."""
    (xp, (keep,), _), (state,) = arrays, history
    total, units = x.owner.shape(state)
    batch = total - x.shape[0]
    slices = new(x, (batch * plan.slices, NUMBERS))
    queue_together(
        _kernel(form, x.element, plan.shape), plan.blocks, plan.memory, x,
        (
            weights.h, xp, *weights.others, keep, state, xp if save else None, table.array,
            slices, counts_of(x, steps, batch),
        ),
        (
            len(steps.counts), batch, plan.rows, plan.slices, units, *weights.numbers,
            *scaling_numbers(scaling, units),
        ),
    )  # fmt: skip


def run_backward(
    plan: Plan,
    form: RNNForm,
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
    (saved, keeps, dy, results), (batch, units) = arrays, x.owner.shape(slopes[0])
    product, sums = new(x, (batch, units)), new(x, (batch * SUMS * plan.slices,))
    queue_together(
        _backward_kernel(form, x.element, plan.shape), plan.blocks, plan.memory, x,
        (
            weights.h, saved.z, saved.table, *weights.others, *keeps, dy, product, *slopes,
            results.dz, results.gates, sums, counts_of(x, steps, batch),
        ),
        (
            len(steps.counts), x.shape[0], batch, plan.rows, plan.slices, units,
            *weights.numbers, *flow_numbers(form.norm, scaling, units),
        ),
    )  # fmt: skip
    return product
