"""All steps of a recurrent cell in one kernel, where its blocks can run at the same time."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from numnorm.backends.contract.norms import Norm, Scaling
from numnorm.backends.contract.recurrent import CellForm, GRUForm, LSTMForm, RNNForm, Steps
from numnorm.backends.cuda.arrays.device_array import DeviceArray
from numnorm.backends.cuda.arrays.launch import queue, queue_together
from numnorm.backends.cuda.compiler.element_type import Element
from numnorm.backends.cuda.compiler.target import Kernel, device_limits
from numnorm.backends.cuda.recurrent.common.cell_norm import NUMBERS
from numnorm.backends.cuda.recurrent.common.gate_norm_gradient import Stretch
from numnorm.backends.cuda.recurrent.common.passes import (
    Table,
    Weights,
    flow_numbers,
    is_whole,
    new,
    scaling_numbers,
    shape_for,
)
from numnorm.backends.cuda.recurrent.gru import gates as gru_gates
from numnorm.backends.cuda.recurrent.gru.backward_kernel import SUMS as GRU_SUMS
from numnorm.backends.cuda.recurrent.lstm import gates as lstm_gates
from numnorm.backends.cuda.recurrent.persistent import gru_kernels, lstm_kernels, rnn_kernels
from numnorm.backends.cuda.recurrent.persistent.backward_kernel import (
    BackwardInputs,
    GradientCoefficients,
)
from numnorm.backends.cuda.recurrent.persistent.forward_kernel import (
    Inputs,
    ScalingNumbers,
    Sizes,
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


class _Kind(NamedTuple):
    """A kind of cell: its kernels, its gates, and the functions that launch the kernels.

    Attributes
    ----------
    run_forward, run_backward : callable
        They take the plan, the kernel, and then what the functions of one step take.
    """

    gates: int
    forward: Callable[[Any, Element, SliceShape], Kernel]
    backward: Callable[[Any, Element, SliceShape], Kernel]
    run_forward: Callable[..., Any]
    run_backward: Callable[..., Any]


def planned_forward(form: CellForm, x: DeviceArray, state: Any, batch: int) -> Any:
    """Return what takes all steps at once; None if the device has to take them one by one."""
    units, kind = x.owner.shape(state)[1], _KINDS[type(form)]
    whole, limits = is_whole(units, x, (state,)), device_limits(x.device)
    plan = forward_plan(batch, units, kind.gates, x.element, limits, whole=whole)
    return _planned(kind.run_forward, kind.forward, plan, form, x)


def planned_backward(form: CellForm, x: DeviceArray, batch: int, units: int) -> Any:
    """Return the like for the way back."""
    kind = _KINDS[type(form)]
    plan = backward_plan(batch, units, kind.gates, x.element, device_limits(x.device))
    return _planned(kind.run_backward, kind.backward, plan, form, x)


def _planned(
    run: Any, make: Callable[..., Kernel], plan: Plan | None, form: CellForm, x: DeviceArray
) -> Any:
    if plan is None:
        return None
    kernel = make(form, x.element, plan.shape)
    # Only the compiled kernel tells what it takes; a driver may also keep a part for others.
    return functools.partial(run, plan, kernel) if runs(plan, kernel) else None


def runs(plan: Plan, kernel: Kernel) -> bool:
    """Return whether all blocks run on the device at the same time."""
    return plan.blocks <= kernel.most_together(plan.memory)


def _counts_of(x: DeviceArray, steps: Steps, batch: int) -> Any:
    """Return the number of rows of each step, on the device; None if that is always the batch."""
    if (steps.counts == batch).all():
        return None
    return x.owner.from_host(x.array, steps.counts.astype(np.int32))


def _launch(
    plan: Plan, kernel: Kernel, x: DeviceArray, steps: Steps, batch: int, groups: tuple[Any, ...],
    numbers: tuple[Any, ...], kept: bool = True,
) -> None:  # fmt: skip
    """Launch a kernel on groups of arrays: what all kernels take, those of its kind, parameters."""
    units = x.owner.shape(groups[0].weights)[1]
    sizes = Sizes(len(steps.counts), x.shape[0], batch, plan.rows, plan.slices, units, int(kept))
    queue_together(kernel, plan.blocks, plan.memory, x, groups, (*numbers, sizes))


def _launch_forward(
    plan: Plan, kernel: Kernel, x: DeviceArray, steps: Steps, weights: Weights, scaling: Scaling,
    products: tuple[Any, Any, Any], places: int, groups: tuple[Any, Any], widths: tuple[int, int],
    kept: bool = True,
) -> None:  # fmt: skip
    """Launch a forward kernel; the products are ``xp, state, before``, of `Inputs`.

    So many elements are normalized together by the first scaling, and by the other one.
    """
    batch = x.owner.shape(products[1])[0] - x.shape[0]
    slices = new(x, (batch * max(1, places) * plan.slices, NUMBERS))
    inputs = Inputs(weights.h, *products, slices, _counts_of(x, steps, batch))
    scalings = (ScalingNumbers(*scaling_numbers(scaling, width)) for width in widths)
    numbers = *weights.numbers, *scalings
    _launch(plan, kernel, x, steps, batch, (inputs, *groups), numbers, kept)


def _launch_backward(
    plan: Plan, kernel: Kernel, x: DeviceArray, steps: Steps, weights: Weights, scaling: Scaling,
    dz: Any, dh: Any, sums: int, groups: tuple[Any, Any],
    norms: tuple[tuple[Norm | None, int], ...],
) -> Any:  # fmt: skip
    """Launch a backward kernel, and return what the first states get through the products.

    The norms come with the number of elements that are normalized together.
    """
    batch, units = x.owner.shape(dh)
    product = new(x, (batch, units))
    shares = new(x, (batch * max(1, sums) * plan.slices,))
    inputs = BackwardInputs(weights.h, dz, product, shares, _counts_of(x, steps, batch))
    coefficients = (
        GradientCoefficients(*flow_numbers(norm, scaling, width)) for norm, width in norms
    )
    _launch(plan, kernel, x, steps, batch, (inputs, *groups), (*weights.numbers, *coefficients))
    return product


def _find_statistics(
    norm: Norm, scaling: Scaling, x: DeviceArray, xp: Any, table: Table, stretch: Stretch,
    place: int,
) -> None:  # fmt: skip
    """Find the statistics of a stretch of the products with x, of all steps, for a place."""
    rows, wide = x.owner.shape(xp)
    units = wide // stretch.gates
    shape = shape_for(units, x, xp)
    kernel = _statistics_kernel(norm, stretch.count, x.element, shape)
    numbers = ScalingNumbers(*scaling_numbers(scaling, stretch.count * units))
    sizes = rows, units, stretch.gates, stretch.first, table.places, place
    queue(kernel, blocks_of(rows, shape), x, (xp, table.array), (*sizes, numbers))


# Each takes what the function of the same name takes for one step after the other


def _lstm_forward(
    plan: Plan, kernel: Kernel, form: LSTMForm, scaling: Scaling, x: DeviceArray, steps: Steps,
    weights: Weights, arrays: tuple[Any, ...], states: tuple[Any, Any], table: Table, *, save: bool,
) -> Any:  # fmt: skip
    """Take all steps, and return the products with the state if they are to be kept."""
    (xp, *keeps, cell), (state, carried) = arrays, states
    units, wide = x.owner.shape(state)[1], lstm_gates.GATES
    if form.gates is not None and form.by_product:
        _find_statistics(form.gates, scaling, x, xp, table, Stretch(wide, 0, wide), 1)
    products = new(x, (x.shape[0], wide * units)) if save and form.by_product else None
    saved = products if form.by_product else xp
    groups = (
        lstm_kernels.LSTMArrays._make(
            (*keeps, carried, saved if save else None, cell, table.array)
        ),
        lstm_kernels.LSTMParameters._make(weights.others),
    )
    _launch_forward(
        plan, kernel, x, steps, weights, scaling, (xp, state, carried),
        lstm_kernels.slice_places(form), groups, (lstm_gates.normalized_units(form, units), units),
        kept=save,
    )  # fmt: skip
    return products


def _lstm_backward(
    plan: Plan, kernel: Kernel, form: LSTMForm, scaling: Scaling, x: DeviceArray, steps: Steps,
    weights: Weights, arrays: tuple[Any, ...], grad: tuple[Any, Any],
) -> Any:  # fmt: skip
    """Take all steps back, and return what the first states get through the products."""
    (*saved, dz, dxp, of_gates, dn), units = arrays, x.owner.shape(grad[0])[1]
    groups = (
        lstm_kernels.LSTMBackwardArrays._make((*saved, *grad, dxp, of_gates, dn)),
        lstm_kernels.LSTMParameters._make(weights.others),
    )
    norms = (form.gates, lstm_gates.normalized_units(form, units)), (form.cell, units)
    return _launch_backward(
        plan, kernel, x, steps, weights, scaling, dz, grad[0],
        sum(lstm_kernels.slice_sums(form)), groups, norms,
    )  # fmt: skip


def _gru_forward(
    plan: Plan, kernel: Kernel, form: GRUForm, scaling: Scaling, x: DeviceArray, steps: Steps,
    weights: Weights, arrays: tuple[Any, ...], table: Table, *, save: bool,
) -> Any:  # fmt: skip
    """Take all steps, and return the products with the state if they are to be kept."""
    (xp, keep, state), wide = arrays, gru_gates.GATES
    units = x.owner.shape(state)[1]
    if form.norm is not None:
        _find_statistics(form.norm, scaling, x, xp, table, Stretch(wide, 0, 2), 2)
        _find_statistics(form.norm, scaling, x, xp, table, Stretch(wide, 2, 1), 3)
    products = new(x, (x.shape[0], wide * units)) if save else None
    groups = (
        gru_kernels.GRUArrays(keep, products, table.array),
        gru_kernels.GRUParameters._make(weights.others),
    )
    _launch_forward(
        plan, kernel, x, steps, weights, scaling, (xp, state, state), gru_kernels.SLICE_PLACES,
        groups, (2 * units, units),
    )  # fmt: skip
    return products


def _gru_backward(
    plan: Plan, kernel: Kernel, form: GRUForm, scaling: Scaling, x: DeviceArray, steps: Steps,
    weights: Weights, arrays: tuple[Any, ...], dh: Any,
) -> Any:  # fmt: skip
    """Take all steps back, and return what the first states get through the products."""
    (*saved, dz, dxp, of_z, of_x), units = arrays, x.owner.shape(dh)[1]
    groups = (
        gru_kernels.GRUBackwardArrays._make((*saved, dh, dxp, of_z, of_x)),
        gru_kernels.GRUParameters._make(weights.others),
    )
    norms = (form.norm, 2 * units), (form.norm, units)
    return _launch_backward(
        plan, kernel, x, steps, weights, scaling, dz, dh, GRU_SUMS, groups, norms
    )


def _rnn_forward(
    plan: Plan, kernel: Kernel, form: RNNForm, scaling: Scaling, x: DeviceArray, steps: Steps,
    weights: Weights, arrays: tuple[Any, ...], state: Any, save: bool,
) -> None:  # fmt: skip
    """Take all steps; the products with x become the sums of both, if they are to be kept."""
    (xp, keep, table), units = arrays, x.owner.shape(state)[1]
    groups = (
        rnn_kernels.RNNArrays(keep, xp if save else None, table),
        rnn_kernels.RNNParameters._make(weights.others),
    )
    _launch_forward(
        plan, kernel, x, steps, weights, scaling, (xp, state, state), 1, groups, (units, units)
    )


def _rnn_backward(
    plan: Plan, kernel: Kernel, form: RNNForm, scaling: Scaling, x: DeviceArray, steps: Steps,
    weights: Weights, arrays: tuple[Any, ...], dh: Any,
) -> Any:  # fmt: skip
    """Take all steps back, and return what the first states get through the products."""
    (*saved, dz, grad), units = arrays, x.owner.shape(dh)[1]
    groups = (
        rnn_kernels.RNNBackwardArrays._make((*saved, dh, grad)),
        rnn_kernels.RNNParameters._make(weights.others),
    )
    norms = (form.norm, units), (form.norm, units)
    return _launch_backward(
        plan, kernel, x, steps, weights, scaling, dz, dh, rnn_kernels.SUMS, groups, norms
    )


_KINDS: dict[type, _Kind] = {
    LSTMForm: _Kind(
        lstm_gates.GATES,
        functools.cache(lstm_kernels.make_lstm_forward),
        functools.cache(lstm_kernels.make_lstm_backward),
        _lstm_forward,
        _lstm_backward,
    ),
    GRUForm: _Kind(
        gru_gates.GATES,
        functools.cache(gru_kernels.make_gru_forward),
        functools.cache(gru_kernels.make_gru_backward),
        _gru_forward,
        _gru_backward,
    ),
    RNNForm: _Kind(
        rnn_kernels.GATES,
        functools.cache(rnn_kernels.make_rnn_forward),
        functools.cache(rnn_kernels.make_rnn_backward),
        _rnn_forward,
        _rnn_backward,
    ),
}
