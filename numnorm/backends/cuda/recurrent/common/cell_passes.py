"""A whole pass of a recurrent cell on arrays of a device, whatever the kind of the cell.

Step by step, the products are those of the arrays' own library: of x before the first step, of the
state in each. What is between two of them is one kernel. Where there is room, one kernel takes all
steps at once.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from numnorm.backends.contract.norms import Norm, Scaling
from numnorm.backends.contract.recurrent import CellGradients, PackedSteps
from numnorm.backends.cuda.arrays.device_array import DeviceArray
from numnorm.backends.cuda.arrays.launch import launch
from numnorm.backends.cuda.recurrent.common.passes import (
    StepArrays,
    Table,
    Weights,
    added_up,
    addresses,
    array_or_none,
    coefficient_numbers,
    copied,
    gradients_of_nothing,
    new,
    new_states,
    new_table,
    scaling_numbers,
    shape_for,
    step_places,
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
    """What the backward pass reads, rows in the order of the steps.

    Attributes
    ----------
    z, xp : array (rows, gates * H)
        The products with the state and with x; their sum and None where no norm is taken of each.
    cell : array (rows, H) or None
        An LSTM's cell before its norm.
    history : tuple of array (batch + rows, H)
        Each state as the steps were handed it; first those given.
    table : Table
        The statistics.
    """

    z: Any
    xp: Any
    cell: Any
    history: tuple[Any, ...]
    table: Table


class ForwardArrays(NamedTuple):
    """The products with x, zoneout's masks, and room for an LSTM's cell before its norm."""

    xp: Any
    masks: tuple[Any, ...]
    cell: Any


class BackwardArrays(NamedTuple):
    """What all steps back read and store."""

    saved: ReadBack
    masks: tuple[Any, ...]
    dy: Any
    results: Results


class FormFacts(NamedTuple):
    """What the passes need to know of a form of any kind of cell.

    Attributes
    ----------
    norms : tuple of Norm or None
        That of what enters the gates, and the other one.
    by_product : bool
        Whether the former is taken of each product, else of their sum.
    normalized : int
        How many gates it normalizes together.
    places : int
        How many statistics a row has.
    is_cell_apart : bool
        Whether the next step is handed another cell than that before the norm.
    other_sections : int
        How many numbers of each unit `Results.other` has.
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
        What its steps are.
    gates : int
        How many gates of each unit there are.
    sizes : dict of int
        How many numbers for each unit the parameters besides the weights have.
    facts_of : callable
        Returns `FormFacts` of a form.
    parameter_sums : callable
        Returns the gradients of biases and norms by name, of ``spec, x, saved, results``.
    past_every_step : bool
        Whether something of the state goes past a step's product, also without zoneout.
    """

    step: StepKind
    gates: int
    sizes: dict[str, int]
    facts_of: Callable[[Any], FormFacts]
    parameter_sums: Callable[[Any, DeviceArray, Saved, Results], dict[str, Any]]
    past_every_step: bool = False


def _of_both(arrays: tuple[Any, ...]) -> tuple[Any, Any]:
    """Return what belongs to the state and to an LSTM's cell, None where there is no cell."""
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
    """Return the history of each state; if nothing is saved, the cells are the last ones alone."""
    library, rows, (batch, units) = x.library, x.shape[0], states[0].shape
    (given, *cells), facts = states, kind.facts_of(spec)
    history = new_states(x, given), *(new_states(x, c, behind=rows * save) for c in cells)
    if not rows:
        return history, Saved(None, None, None, history, Table(None, 0))
    xp = library.product(x.array, weights.turned_x)
    cell = new(x, (rows, units)) if save and facts.is_cell_apart else None
    arrays = ForwardArrays(xp, tuple(map(array_or_none, masks)), cell)
    persistent = persistent_forward(kind, spec, x, history[0], batch)
    table = new_table(x, rows, facts.sites) if save or persistent else Table(None, 0)
    run = persistent or _run_forward
    products = run(kind, spec, scaling, x, steps, weights, arrays, history, table, save=save)
    if not save:
        return history, None
    if cells and not facts.is_cell_apart:
        cell = library.rows(history[1], batch, batch + rows)
    z, xp = (products, xp) if facts.norm_each_product else (xp, None)
    return history, Saved(z, xp, cell, history, table)


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
    """Take all steps, and return the products with the state if they are to be kept."""
    library, (state, carried), facts = x.library, _of_both(history), kind.facts_of(spec)
    total, units = library.shape(state)
    batch = total - x.shape[0]
    all_arrays = (
        arrays.xp, *_of_both(arrays.masks), arrays.cell, table.array, state, carried
    )  # fmt: skip
    shape = shape_for(units, x, *all_arrays, *weights.others)
    kernel = _forward_kernel(kind.step, spec, x.element, shape)
    at, others = StepArrays(x, *all_arrays), kind.step.weights(*addresses(x, weights.others))
    numbers = (
        AdaNumbers(*weights.numbers),
        OfNorms(
            scaling_numbers(scaling, facts.normalized * units), scaling_numbers(scaling, units)
        ),
    )
    products, norm_each_product = [], facts.norm_each_product
    for start, count, before in step_places(steps, batch):
        z = library.product(library.rows(state, before, before + count), weights.turned_h)
        now = batch + start
        old_cell, new_cell = (before, now) if save else (0, 0)
        xp, mask_h, mask_c, cell, statistics, h, c = at.behind(*(start,) * 5, now, new_cell)
        *_, h_before, c_before = at.behind(*(start,) * 5, before, old_cell)
        launch(
            kernel, blocks_of(count, shape), x,
            (
                Products(z, xp), others, StepStates(mask_h, mask_c, h_before, c_before, h, c),
                StepSaved(xp if save and not norm_each_product else 0, cell, statistics),
            ),
            (count, units, *numbers),
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
        return CellGradients(copied(x), last, gradients_of_nothing(x, weights, units, kind.sizes))
    results = _new_results(kind, spec, x, units)
    of_steps = ReadBack(saved.z, saved.xp, saved.cell, saved.history[-1], saved.table.array)
    arrays = BackwardArrays(of_steps, tuple(map(array_or_none, masks)), dy.array, results)
    run = persistent_backward(kind, spec, x, batch, units) or _run_backward
    dh = product = run(kind, spec, scaling, x, steps, weights, arrays, last)
    if spec.zoneout or kind.past_every_step:
        dh = added_up(x, (batch, units), product, last[0])
    of_x = results.dxp if kind.facts_of(spec).norm_each_product else results.dz
    found = kind.parameter_sums(spec, x, saved, results)
    found |= weight_gradients(x, steps, saved.history[0], of_x, results.dz)
    return CellGradients(x.library.product(of_x, weights.x), (dh, *last[1:]), found)


def _new_results(kind: CellKind, spec: Any, x: DeviceArray, units: int) -> Results:
    """Return room for what the steps back store."""
    rows, facts = x.shape[0], kind.facts_of(spec)
    wide, of_other, normed = (rows, kind.gates * units), facts.other_sections, facts.norms[0]
    gates, other = new(x, wide), new(x, (rows, of_other * units)) if of_other else None
    dxp = (new(x, wide) if normed else other) if facts.norm_each_product else None
    return Results(new(x, wide) if normed else gates, dxp, gates, other)


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
    """Take all steps back, and return what the first states get through the products."""
    library, (saved, masks, dy, results) = x.library, arrays
    batch, units = library.shape(last[0])
    all_arrays = *saved, *_of_both(masks), dy, *results
    shape = shape_for(units, x, *all_arrays, *last, *weights.others)
    kernel = _backward_kernel(kind.step, spec, x.element, shape)
    at, others = StepArrays(x, *all_arrays), kind.step.weights(*addresses(x, weights.others))
    dh, dc = _of_both(tuple(addresses(x, last)))
    facts = kind.facts_of(spec)
    numbers = (
        AdaNumbers(*weights.numbers),
        OfNorms(
            coefficient_numbers(facts.norms[0], scaling, facts.normalized * units),
            coefficient_numbers(facts.norms[1], scaling, units),
        ),
    )
    later, product = 0, None
    for start, count, before in reversed(step_places(steps, batch)):
        sites = *(start,) * 3, before, *(start,) * 8
        z, xp, cell, state, table, mask_h, mask_c, of_y, *targets = at.behind(*sites)
        launch(
            kernel, blocks_of(count, shape), x,
            (
                ReadBack(z, xp, cell, state, table), others,
                Incoming(of_y, product, dh, dc, mask_h, mask_c), Results(*targets),
            ),
            (count, later, units, *numbers),
        )  # fmt: skip
        dz = library.rows(results.dz, start, start + count)
        later, product = count, library.product(dz, weights.h)
    return product
