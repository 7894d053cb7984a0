"""All steps of a gated recurrent unit in one kernel, where its blocks can run at the same time."""

import functools
from typing import Any

from numnorm.backends.contract.norms import Scaling
from numnorm.backends.contract.recurrent import GRUForm, Steps
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
from numnorm.backends.cuda.recurrent.gru.gates import GATES
from numnorm.backends.cuda.recurrent.gru.persistent_backward_kernel import (
    make_gru_persistent_backward,
)
from numnorm.backends.cuda.recurrent.gru.persistent_forward_kernel import (
    SLICE_PLACES,
    make_gru_persistent,
)
from numnorm.backends.cuda.recurrent.gru.step import SUMS
from numnorm.backends.cuda.recurrent.persistent.passes import (
    counts_of,
    find_statistics,
    planned_backward,
    planned_forward,
)
from numnorm.backends.cuda.recurrent.persistent.plans import Plan

_kernel = functools.cache(make_gru_persistent)
_backward_kernel = functools.cache(make_gru_persistent_backward)


def plan_for(form: GRUForm, x: DeviceArray, state: Any, batch: int) -> Plan | None:
    """Return how the device takes all steps at once; None if it has to take them one by one."""
    return planned_forward(_kernel, form, GATES, x, state, batch)


def plan_back_for(form: GRUForm, x: DeviceArray, batch: int, units: int) -> Plan | None:
    """Return how the device takes all steps back at once; None if it takes them one by one."""
    return planned_backward(_backward_kernel, form, GATES, x, batch, units)


def run_forward(
    plan: Plan,
    form: GRUForm,
    scaling: Scaling,
    x: DeviceArray,
    steps: Steps,
    weights: Weights,
    arrays: ForwardArrays,
    history: tuple[Any, ...],
    table: Table,
    *,
    save: bool,
) -> Any:
    """Take all steps, and return the products with the state if they are to be kept."""
    (xp, (keep,), _), (state,), rows = arrays, history, x.shape[0]
    total, units = x.owner.shape(state)
    batch = total - rows
    if form.norm is not None:
        find_statistics(form.norm, scaling, x, xp, table, Stretch(GATES, 0, 2), 2)
        find_statistics(form.norm, scaling, x, xp, table, Stretch(GATES, 2, 1), 3)
    products = new(x, (rows, GATES * units)) if save else None
    slices = new(x, (batch * SLICE_PLACES * plan.slices, NUMBERS))
    queue_together(
        _kernel(form, x.element, plan.shape), plan.blocks, plan.memory, x,
        (
            weights.h, xp, *weights.others, keep, state, products, table.array, slices,
            counts_of(x, steps, batch),
        ),
        (
            len(steps.counts), batch, plan.rows, plan.slices, units, *weights.numbers,
            *scaling_numbers(scaling, 2 * units), *scaling_numbers(scaling, units),
        ),
    )  # fmt: skip
    return products


def run_backward(
    plan: Plan,
    form: GRUForm,
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
            weights.h, saved.z, saved.xp, saved.before, saved.table, *weights.others, *keeps, dy,
            product, *slopes, *results, sums, counts_of(x, steps, batch),
        ),
        (
            len(steps.counts), x.shape[0], batch, plan.rows, plan.slices, units,
            *weights.numbers, *flow_numbers(form.norm, scaling, 2 * units),
            *flow_numbers(form.norm, scaling, units),
        ),
    )  # fmt: skip
    return product
