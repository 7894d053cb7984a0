"""All steps of a recurrent cell in one cooperative kernel, if its blocks fit the device."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.backends.contract.norms import Scaling
from numnorm.backends.contract.recurrent import GRUSpec, LSTMSpec, PackedSteps, RNNSpec
from numnorm.backends.cuda.arrays.device_array import DeviceArray
from numnorm.backends.cuda.arrays.launch import check_loaded, launch, launch_cooperative
from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import Kernel, device_limits
from numnorm.backends.cuda.recurrent.cell_kind import BackwardArrays, CellKind, ForwardArrays
from numnorm.backends.cuda.recurrent.cell_norm import NUMBERS
from numnorm.backends.cuda.recurrent.pass_arrays import (
    Table,
    Weights,
    coefficient_numbers,
    is_whole,
    new,
    scaling_numbers,
    shape_for,
)
from numnorm.backends.cuda.recurrent.persistent import (
    gru_forward_step,
    lstm_forward_step,
    rnn_forward_step,
)
from numnorm.backends.cuda.recurrent.persistent.kernels import (
    Arrays,
    BackwardInputs,
    Inputs,
    PersistentStep,
    Sizes,
    make_backward,
    make_forward,
    make_product_statistics,
    sums_of_row,
)
from numnorm.backends.cuda.recurrent.persistent.plans import (
    Plan,
    SliceShape,
    backward_plan,
    forward_plan,
)
from numnorm.backends.cuda.recurrent.product_norm import ProductNorm
from numnorm.backends.cuda.recurrent.step_kernels import AdaNumbers, Incoming, OfNorms, StepKind
from numnorm.backends.cuda.threads.row_shape import blocks_of

_STEPS: dict[type, PersistentStep] = {
    LSTMSpec: lstm_forward_step.STEP,
    GRUSpec: gru_forward_step.STEP,
    RNNSpec: rnn_forward_step.STEP,
}
_statistics_kernel = functools.cache(make_product_statistics)
_backward_kernel = functools.cache(make_backward)


@functools.cache
def _most_blocks(kernel: Kernel, memory: int, device: int) -> int:
    """Return how many blocks the current device, which has this number, runs at a time."""
    return kernel.most_cooperative(memory)


@functools.cache
def _forward_kernel(
    step: StepKind, gates: int, spec: Any, element: ElementType, shape: SliceShape
) -> Kernel:
    take_step = _STEPS[type(spec)].make_step(spec, element, shape)
    return make_forward(gates, step.weights, element, shape, take_step)


def forward_kernel(kind: CellKind, spec: Any, element: ElementType, shape: SliceShape) -> Kernel:
    """Return the forward kernel of all steps of a cell."""
    return _forward_kernel(kind.step, kind.gates, spec, element, shape)


def backward_kernel(kind: CellKind, spec: Any, element: ElementType, shape: SliceShape) -> Kernel:
    """Return the backward kernel of all steps of a cell."""
    return _backward_kernel(kind.step, kind.gates, kind.facts_of(spec), spec, element, shape)


def planned_forward(kind: CellKind, spec: Any, x: DeviceArray, state: Any, batch: int) -> Any:
    """Return the function that runs all steps forward, with the parameters of `_run_forward`.

    Return None if the blocks do not fit the device.
    """
    units = x.lib.shape(state)[1]
    whole = is_whole(units, x, (state,))
    limits = device_limits(x.device)
    plan = forward_plan(batch, units, kind.gates, x.element, limits, whole=whole)
    return _planned(_run_forward, forward_kernel, plan, kind, spec, x)


def planned_backward(kind: CellKind, spec: Any, x: DeviceArray, batch: int, units: int) -> Any:
    """Return the function that runs all steps backward; see `planned_forward`."""
    plan = backward_plan(batch, units, kind.gates, x.element, device_limits(x.device))
    return _planned(_run_backward, backward_kernel, plan, kind, spec, x)


def _planned(
    run: Any, make: Callable[..., Kernel], plan: Plan | None, kind: CellKind, spec: Any,
    x: DeviceArray,
) -> Any:  # fmt: skip
    if plan is None:
        return None
    kernel = make(kind, spec, x.element, plan.shape)
    check_loaded(kernel, x)
    # The plan only estimates the registers, and a driver may reserve a part of the device.
    fits = plan.blocks <= _most_blocks(kernel, plan.memory, x.device)
    return functools.partial(run, plan, kernel) if fits else None


def _launch(
    plan: Plan, kernel: Kernel, x: DeviceArray, steps: PackedSteps, batch: int, units: int,
    groups: tuple[Any, ...], numbers: tuple[Any, ...], *, save_cells: bool,
) -> None:  # fmt: skip
    """Launch the kernel of all steps on its groups of arrays and of numbers."""
    sizes = Sizes(
        len(steps.batch_sizes), x.shape[0], batch, plan.rows, plan.slices, units, int(save_cells)
    )
    launch_cooperative(kernel, plan.blocks, plan.memory, x, groups, (*numbers, sizes))


def _batch_sizes_of(x: DeviceArray, steps: PackedSteps, batch: int) -> Any:
    """Return the batch sizes on the device; None if each is that of the batch."""
    if (steps.batch_sizes == batch).all():
        return None
    return x.lib.from_host(x.array, steps.batch_sizes.astype(np.int32))


def _input_statistics(
    of: ProductNorm, scaling: Scaling, x: DeviceArray, xp: Any, table: Table
) -> None:
    """Compute the statistics of the products with x, if a norm is taken of each product."""
    if of.norm is None or not of.norm_each_product:
        return
    rows, wide = x.lib.shape(xp)
    units = wide // of.gates.gates
    gates = of.gates
    shape = shape_for(units, x, xp)
    kernel = _statistics_kernel(of.norm, gates.count, x.element, shape)
    sizes = rows, units, gates.gates, gates.first, table.sites, of.first_site + of.distance
    numbers = scaling_numbers(scaling, gates.count * units)
    launch(kernel, blocks_of(rows, shape), x, (xp, table.array), (*sizes, numbers))


def _run_forward(
    plan: Plan, kernel: Kernel, kind: CellKind, spec: Any, scaling: Scaling, x: DeviceArray,
    steps: PackedSteps, weights: Weights, arrays: ForwardArrays, history: tuple[Any, ...],
    table: Table, *, save: bool,
) -> Any:  # fmt: skip
    """Run all steps.

    Return the products W_h h with the state if they are saved as an array of their own, which is if
    each product has its own norm. Otherwise return None: the kernel then saves the sums of both
    products in the array of the products with x.
    """
    (xp, masks, cell, *_), (state, *cells), step = arrays, history, _STEPS[type(spec)]
    total, units = x.lib.shape(state)
    rows = x.shape[0]
    batch = total - rows
    facts = kind.facts_of(spec)
    for of in step.product_norms(spec):
        _input_statistics(of, scaling, x, xp, table)
    products = new(x, (rows, kind.gates * units)) if save and facts.norm_each_product else None
    slices = new(x, (batch * max(1, step.slice_sites(spec)) * plan.slices, NUMBERS))
    mask_h, mask_c = (*masks, None)[:2]
    saved = (products if facts.norm_each_product else xp) if save else None
    (carried,) = cells or (None,)
    groups = (
        Inputs(weights.h, xp, state, history[-1], slices, _batch_sizes_of(x, steps, batch)),
        Arrays(mask_h, mask_c, carried, saved, cell, table.array),
        kind.step.weights(*weights.others),
    )
    scalings = OfNorms(
        scaling_numbers(scaling, facts.normalized * units), scaling_numbers(scaling, units)
    )
    numbers = AdaNumbers(*weights.numbers), scalings
    _launch(plan, kernel, x, steps, batch, units, groups, numbers, save_cells=save)
    return products


def _run_backward(
    plan: Plan, kernel: Kernel, kind: CellKind, spec: Any, scaling: Scaling, x: DeviceArray,
    steps: PackedSteps, weights: Weights, arrays: BackwardArrays, last: tuple[Any, ...],
) -> Any:  # fmt: skip
    """Run all steps backward; return the gradient of the first states through the products."""
    saved, masks, dy, results, *_ = arrays
    batch, units = x.lib.shape(last[0])
    product = new(x, (batch, units))
    sums = new(x, (batch * max(1, sums_of_row(kind.step, spec)) * plan.slices,))
    (dh, dc), (mask_h, mask_c) = ((*pair, None)[:2] for pair in (last, masks))
    groups = (
        BackwardInputs(weights.h, sums, _batch_sizes_of(x, steps, batch)),
        saved,
        kind.step.weights(*weights.others),
        Incoming(dy, product, dh, dc, mask_h, mask_c),
        results,
    )
    facts = kind.facts_of(spec)
    coefficients = OfNorms(
        coefficient_numbers(facts.norms[0], scaling, facts.normalized * units),
        coefficient_numbers(facts.norms[1], scaling, units),
    )
    numbers = AdaNumbers(*weights.numbers), coefficients
    _launch(plan, kernel, x, steps, batch, units, groups, numbers, save_cells=True)
    return product
