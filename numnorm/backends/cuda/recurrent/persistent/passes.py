"""What the passes that take all steps of a recurrent cell at once share, whatever its kind."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.backends.contract.norms import Norm, Scaling
from numnorm.backends.contract.recurrent import Steps
from numnorm.backends.cuda.arrays.device_array import DeviceArray
from numnorm.backends.cuda.arrays.launch import queue
from numnorm.backends.cuda.compiler.element_type import Element
from numnorm.backends.cuda.compiler.target import Kernel, device_limits
from numnorm.backends.cuda.recurrent.common.gate_norm_gradient import Stretch
from numnorm.backends.cuda.recurrent.common.passes import (
    Table,
    is_whole,
    scaling_numbers,
    shape_for,
)
from numnorm.backends.cuda.recurrent.persistent.input_statistics_kernel import (
    make_product_statistics,
)
from numnorm.backends.cuda.recurrent.persistent.plans import (
    Plan,
    SliceShape,
    backward_plan,
    forward_plan,
)
from numnorm.backends.cuda.threads.row_launch import blocks_of

_statistics_kernel = functools.cache(make_product_statistics)

# Makes the kernel of a form.
MakeKernel = Callable[[Any, Element, SliceShape], Kernel]


def planned_forward(
    make: MakeKernel, form: Any, gates: int, x: DeviceArray, state: Any, batch: int
) -> Plan | None:
    """Return how the device takes all steps at once; None if it has to take them one by one.

    The cell has so many gates of each unit, and the array of its states is given.
    """
    units = x.owner.shape(state)[1]
    whole, limits = is_whole(units, x, (state,)), device_limits(x.device)
    plan = forward_plan(batch, units, gates, x.element, limits, whole=whole)
    return plan if plan and _runs(plan, make(form, x.element, plan.shape)) else None


def planned_backward(
    make: MakeKernel, form: Any, gates: int, x: DeviceArray, batch: int, units: int
) -> Plan | None:
    """Return how the device takes all steps back at once; None if it takes them one by one."""
    plan = backward_plan(batch, units, gates, x.element, device_limits(x.device))
    return plan if plan and _runs(plan, make(form, x.element, plan.shape)) else None


def _runs(plan: Plan, kernel: Kernel) -> bool:
    # Only the compiled kernel tells what it takes; a driver may also keep a part for others.
    return plan.blocks <= kernel.most_together(plan.memory)


def counts_of(x: DeviceArray, steps: Steps, batch: int) -> Any:
    """Return the number of rows of each step, on the device; None if that is always the batch."""
    if (steps.counts == batch).all():
        return None
    return x.owner.from_host(x.array, steps.counts.astype(np.int32))


def find_statistics(
    norm: Norm, scaling: Scaling, x: DeviceArray, xp: Any, table: Table, stretch: Stretch,
    place: int,
) -> None:  # fmt: skip
    """Find the statistics of a stretch of the products with x, of all steps, for a place."""
    rows, wide = x.owner.shape(xp)
    units = wide // stretch.gates
    shape = shape_for(units, x, xp)
    kernel = _statistics_kernel(norm, stretch.count, x.element, shape)
    numbers = scaling_numbers(scaling, stretch.count * units)
    sizes = rows, units, stretch.gates, stretch.first, table.places, place
    queue(kernel, blocks_of(rows, shape), x, (xp, table.array), (*sizes, *numbers))
