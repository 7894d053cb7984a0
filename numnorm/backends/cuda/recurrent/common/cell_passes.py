"""The forward and backward pass of a recurrent cell of any kind on arrays of a device.

The arrays' own library computes the matrix products: with x once, before the first step, and with
the state in every step. One kernel computes the rest of a step. A persistent kernel, where
possible, computes all steps.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from numnorm.backends.contract.norms import Norm, Scaling
from numnorm.backends.contract.recurrent import CellGradients, PackedSteps
from numnorm.backends.cuda.arrays.device_array import DeviceArray
from numnorm.backends.cuda.arrays.launch import launch
from numnorm.backends.cuda.compiler.device_limits import CooperativeLaunchRefused
from numnorm.backends.cuda.recurrent.common.pass_arrays import (
    StepArrays,
    Table,
    Weights,
    added_up,
    addresses,
    array_or_none,
    coefficient_numbers,
    copied,
    gradients_without_steps,
    new,
    new_states,
    new_table,
    scaling_numbers,
    shape_for,
    step_ranges,
    weight_gradients,
)
from numnorm.backends.cuda.recurrent.common.step_kernels import (
    StepKind,
    make_cell_backward,
    make_cell_forward,
)
from numnorm.backends.cuda.recurrent.common.step_parameters import (
    AdaNumbers,
    Incoming,
    OfNorms,
    Products,
    ReadBack,
    Results,
    StepSaved,
    StepStates,
)
from numnorm.backends.cuda.recurrent.persistent_kernels import (
    persistent_backward,
    persistent_forward,
)
from numnorm.backends.cuda.threads.row_launch import blocks_of

_forward_kernel = functools.cache(make_cell_forward)
_backward_kernel = functools.cache(make_cell_backward)

Masks = tuple[DeviceArray | None, ...]
States = tuple[DeviceArray, ...]


class Saved(NamedTuple):
    """The arrays that the forward pass writes and the backward pass reads, rows ordered by step.

    Attributes
    ----------
    z, xp : array (rows, gates * H)
        The products W_h h with the state and W_x x; their sum and None unless each has its norm.
    cell : array (rows, H) or None
        An LSTM's cell before its norm.
    history : tuple of array (batch + rows, H)
        For each state, the first states and then the states after every step.
    table : Table
        The statistics.
    """

    z: Any
    xp: Any
    cell: Any
    history: tuple[Any, ...]
    table: Table


class ForwardArrays(NamedTuple):
    """The arrays of all forward steps besides weights, states and statistics.

    Attributes
    ----------
    xp : array (rows, gates * H)
        The products with x. Read, then overwritten with the sums of both products if these are
        saved.
    masks : tuple of array (rows, H) or None
        The zoneout masks, one for each state. Read.
    cell : array (rows, H) or None
        Written: an LSTM's cell before its norm.
    """

    xp: Any
    masks: tuple[Any, ...]
    cell: Any


class BackwardArrays(NamedTuple):
    """The arrays of all backward steps besides weights and the gradients of states.

    Attributes
    ----------
    saved : ReadBack
        The arrays of the forward pass. Read.
    masks : tuple of array (rows, H) or None
        The zoneout masks, one for each state. Read.
    dy : array (rows, H)
        The gradients of all outputs. Read.
    results : Results
        The gradients that the steps write.
    """

    saved: ReadBack
    masks: tuple[Any, ...]
    dy: Any
    results: Results


class SpecFacts(NamedTuple):
    """The facts about a cell's spec that the passes need, for any kind of cell.

    Attributes
    ----------
    norms : tuple of Norm or None
        The norm of the gates, and the other norm, as in `OfNorms`.
    norm_each_product : bool
        Whether the norm of the gates normalizes each product, else their sum.
    normalized : int
        The number of gates that it normalizes as one row.
    sites : int
        The number of sites in a row of the table of statistics.
    is_cell_apart : bool
        Whether the next step gets another cell than the one before the norm.
    other_sections : int
        The numbers for each unit in `Results.other`.
    """

    norms: tuple[Norm | None, Norm | None]
    norm_each_product: bool
    normalized: int
    sites: int
    is_cell_apart: bool = False
    other_sections: int = 0


@dataclasses.dataclass(frozen=True)
class CellKind:
    """A kind of cell.

    Parameters
    ----------
    step : StepKind
        Its device functions for a step.
    gates : int
        The number of gates of a unit.
    sizes : dict of int
        By name, the numbers for each unit of the parameters other than the weight matrices.
    facts_of : callable
        Returns `SpecFacts` of a spec.
    parameter_sums : callable
        Takes ``spec, x, saved, results`` and returns the gradients of biases and norms by name.
    past_every_step : bool
        Whether the new state depends on the old one also directly, not only through the product
        (and zoneout).
    """

    step: StepKind
    gates: int
    sizes: dict[str, int]
    facts_of: Callable[[Any], SpecFacts]
    parameter_sums: Callable[[Any, DeviceArray, Saved, Results], dict[str, Any]]
    past_every_step: bool = False


def _of_both(arrays: tuple[Any, ...]) -> tuple[Any, Any]:
    """Return the arrays of the state and of an LSTM's cell; None for the cell of other kinds."""
    first, second = (*arrays, None)[:2]
    return first, second


def forward(
    kind: CellKind,
    spec: Any,
    scaling: Scaling,
    x: DeviceArray,
    steps: PackedSteps,
    weights: Weights,
    states: States,
    masks: Masks,
    save: bool,
) -> tuple[tuple[Any, ...], Saved | None]:
    """Return the history of each state, and what the backward pass needs.

    Without `save` there is no history of cells, only the last ones.
    """
    library, rows, (batch, units) = x.lib, x.shape[0], states[0].shape
    (given, *cells), facts = states, kind.facts_of(spec)
    history = new_states(x, given, rows), *(new_states(x, c, rows * save) for c in cells)
    if not rows:
        return history, Saved(None, None, None, history, Table(None, 0))
    xp = library.matmul(x.array, weights.transposed_x)
    cell = new(x, (rows, units)) if save and facts.is_cell_apart else None
    arrays = ForwardArrays(xp, tuple(map(array_or_none, masks)), cell)
    persistent = persistent_forward(kind, spec, x, history[0], batch)
    table = new_table(x, rows, facts.sites) if save or persistent else Table(None, 0)
    run = _or_step_by_step(persistent, _run_forward)
    products = run(kind, spec, scaling, x, steps, weights, arrays, history, table, save=save)
    if not save:
        return history, None
    if cells and not facts.is_cell_apart:
        cell = library.rows(history[1], batch, batch + rows)
    z, xp = (products, xp) if facts.norm_each_product else (xp, None)
    return history, Saved(z, xp, cell, history, table)


def _or_step_by_step(persistent: Any, step_by_step: Any) -> Any:
    """Return a function that runs all steps in one kernel; step by step if the device refuses it.

    `persistent` is None if there is no such kernel.
    """
    if persistent is None:
        return step_by_step

    def run(*arguments: Any, **options: Any) -> Any:
        try:
            return persistent(*arguments, **options)
        except CooperativeLaunchRefused:
            return step_by_step(*arguments, **options)

    return run


def _run_forward(
    kind: CellKind,
    spec: Any,
    scaling: Scaling,
    x: DeviceArray,
    steps: PackedSteps,
    weights: Weights,
    arrays: ForwardArrays,
    history: tuple[Any, ...],
    table: Table,
    *,
    save: bool,
) -> Any:
    """Compute all steps.

    Return the products W_h h with the state if they are saved as an array of their own, which is if
    each product has its own norm. Otherwise return None: the steps then save the sums of both
    products in the array of the products with x.
    """
    library, (state, cells), facts = x.lib, _of_both(history), kind.facts_of(spec)
    total, units = library.shape(state)
    batch = total - x.shape[0]
    all_arrays = (
        arrays.xp, *_of_both(arrays.masks), arrays.cell, table.array, state, cells
    )  # fmt: skip
    shape = shape_for(units, x, *all_arrays, *weights.others)
    kernel = _forward_kernel(kind.step, spec, x.element, shape)
    of_steps, others = StepArrays(x, *all_arrays), kind.step.weights(*addresses(x, weights.others))
    widths = facts.normalized * units, units
    scalings = OfNorms(*(scaling_numbers(scaling, width) for width in widths))
    ada = AdaNumbers(*weights.numbers)
    products, norm_each_product = [], facts.norm_each_product
    for start, count, before in step_ranges(steps, batch):
        z = library.matmul(library.rows(state, before, before + count), weights.transposed_h)
        after = batch + start
        old_cell, new_cell = (before, after) if save else (0, 0)
        xp, mask_h, mask_c, cell, stats, h, c = of_steps.at_rows(*(start,) * 5, after, new_cell)
        *_, h_before, c_before = of_steps.at_rows(*(start,) * 5, before, old_cell)
        launch(
            kernel, blocks_of(count, shape), x,
            (
                Products(z, xp), others, StepStates(mask_h, mask_c, h_before, c_before, h, c),
                StepSaved(xp if save and not norm_each_product else 0, cell, stats),
            ),
            (count, units, ada, scalings),
        )  # fmt: skip
        if save and norm_each_product:
            products.append(z)
    return library.concatenated(products) if products else None


def backward(
    kind: CellKind,
    spec: Any,
    scaling: Scaling,
    x: DeviceArray,
    steps: PackedSteps,
    weights: Weights,
    saved: Saved,
    masks: Masks,
    dy: DeviceArray,
    dstates: States,
) -> CellGradients:
    """Return all gradients."""
    rows, (batch, units) = x.shape[0], dstates[0].shape
    last = tuple(map(copied, dstates))
    if not rows:
        parameters = gradients_without_steps(x, weights, units, kind.sizes)
        return CellGradients(copied(x), last, parameters)
    results = _new_results(kind, spec, x, units)
    read = ReadBack(saved.z, saved.xp, saved.cell, saved.history[-1], saved.table.array)
    arrays = BackwardArrays(read, tuple(map(array_or_none, masks)), dy.array, results)
    run = _or_step_by_step(persistent_backward(kind, spec, x, batch, units), _run_backward)
    dh = product = run(kind, spec, scaling, x, steps, weights, arrays, last)
    if spec.zoneout or kind.past_every_step:
        dh = added_up(x, (batch, units), product, last[0])
    dxp = results.dxp if kind.facts_of(spec).norm_each_product else results.dz
    parameters = kind.parameter_sums(spec, x, saved, results)
    parameters |= weight_gradients(x, steps, saved.history[0], dxp, results.dz)
    return CellGradients(x.lib.matmul(dxp, weights.x), (dh, *last[1:]), parameters)


def _new_results(kind: CellKind, spec: Any, x: DeviceArray, units: int) -> Results:
    """Return new arrays for the results of the backward steps."""
    rows, facts = x.shape[0], kind.facts_of(spec)
    shape, sections, normed = (rows, kind.gates * units), facts.other_sections, facts.norms[0]
    gates, other = new(x, shape), new(x, (rows, sections * units)) if sections else None
    dxp = (new(x, shape) if normed else other) if facts.norm_each_product else None
    return Results(new(x, shape) if normed else gates, dxp, gates, other)


def _run_backward(
    kind: CellKind,
    spec: Any,
    scaling: Scaling,
    x: DeviceArray,
    steps: PackedSteps,
    weights: Weights,
    arrays: BackwardArrays,
    last: tuple[Any, ...],
) -> Any:
    """Compute all backward steps, and return the gradient of the first h through the products."""
    library, (saved, masks, dy, results) = x.lib, arrays
    batch, units = library.shape(last[0])
    all_arrays = *saved, *_of_both(masks), dy, *results
    shape = shape_for(units, x, *all_arrays, *last, *weights.others)
    kernel = _backward_kernel(kind.step, spec, x.element, shape)
    of_steps, others = StepArrays(x, *all_arrays), kind.step.weights(*addresses(x, weights.others))
    dh, dc = _of_both(tuple(addresses(x, last)))
    facts, ada = kind.facts_of(spec), AdaNumbers(*weights.numbers)
    coefficients = OfNorms(
        coefficient_numbers(facts.norms[0], scaling, facts.normalized * units),
        coefficient_numbers(facts.norms[1], scaling, units),
    )
    later, product = 0, None
    for start, count, before in reversed(step_ranges(steps, batch)):
        rows = *(start,) * 3, before, *(start,) * 8
        z, xp, cell, state, table, mask_h, mask_c, grad_y, *targets = of_steps.at_rows(*rows)
        launch(
            kernel, blocks_of(count, shape), x,
            (
                ReadBack(z, xp, cell, state, table), others,
                Incoming(grad_y, product, dh, dc, mask_h, mask_c), Results(*targets),
            ),
            (count, later, units, ada, coefficients),
        )  # fmt: skip
        dz = library.rows(results.dz, start, start + count)
        later, product = count, library.matmul(dz, weights.h)
    return product
