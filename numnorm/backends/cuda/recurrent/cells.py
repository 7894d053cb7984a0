"""The forward and backward pass of recurrent cells on arrays of a device.

The arrays' own library computes the matrix products: with x once, before the first step, and with
the state in every step. One kernel computes the rest of a step. A persistent kernel, where
possible, computes all steps.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeGuard

from numnorm.backends.contract.norms import Scaling
from numnorm.backends.contract.recurrent import (
    CellGradients,
    CellSpec,
    GRUSpec,
    LSTMSpec,
    PackedSteps,
    RNNSpec,
    may_persist,
)
from numnorm.backends.cuda.arrays.device_array import DeviceArray, with_array
from numnorm.backends.cuda.arrays.gather_rows import write_rows
from numnorm.backends.cuda.arrays.launch import ArrayOffset, on_device_of
from numnorm.backends.cuda.compiler.device_limits import CooperativeLaunchRefused
from numnorm.backends.cuda.recurrent import gru as gru_cells
from numnorm.backends.cuda.recurrent import gru_reset
from numnorm.backends.cuda.recurrent import lstm as lstm_cells
from numnorm.backends.cuda.recurrent import rnn as rnn_cells
from numnorm.backends.cuda.recurrent.cell_kind import BackwardArrays, CellKind, ForwardArrays, Saved
from numnorm.backends.cuda.recurrent.parameter_gradients import (
    gradients_without_steps,
    operands_before,
    weight_gradients,
)
from numnorm.backends.cuda.recurrent.pass_arrays import (
    StepArrays,
    Table,
    Weights,
    added_up,
    addresses,
    array_or_none,
    coefficient_numbers,
    copied,
    new,
    new_states,
    new_table,
    scaling_numbers,
    shape_for,
)
from numnorm.backends.cuda.recurrent.persistent.passes import planned_backward, planned_forward
from numnorm.backends.cuda.recurrent.step_kernels import (
    AdaNumbers,
    Incoming,
    OfNorms,
    Products,
    ReadBack,
    Results,
    StepSaved,
    StepStates,
    make_added_gradients,
    make_cell_backward,
    make_cell_forward,
)
from numnorm.backends.cuda.recurrent.step_launches import (
    StepDropout,
    StepLaunches,
    StepProducts,
    StepRows,
    step_rows,
)
from numnorm.backends.cuda.threads.row_shape import blocks_of

__all__ = ["cell_backward", "cell_forward", "cell_weights", "prepared_step"]

_forward_kernel = functools.cache(make_cell_forward)
_backward_kernel = functools.cache(make_cell_backward)
_added_gradients = functools.cache(make_added_gradients)

Masks = tuple[DeviceArray | None, ...]
States = tuple[DeviceArray, ...]


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
    dropout: Any,
    save: bool,
) -> tuple[tuple[Any, ...], Saved | None]:
    """Return the history of each state, and what the backward pass needs.

    Without `save` there is no history of cells, only the last ones.
    """
    library = x.lib
    rows = x.shape[0]
    batch, units = states[-1].shape
    facts = kind.facts_of(spec)
    state, *cells = states
    history = new_states(x, state, rows), *(new_states(x, c, rows * save) for c in cells)
    if not rows:
        return history, Saved(None, None, None, history, Table(None, 0))
    xp = library.matmul(x.array, weights.transposed_x)
    cell = new(x, (rows, units)) if save and facts.is_cell_apart else None
    outputs = None
    if weights.projection is not None:
        outputs = new(x, (rows if save else batch, units))
    arrays = ForwardArrays(xp, tuple(map(array_or_none, masks)), cell, dropout, outputs)
    persistent = None
    if _may_persist(weights, dropout):
        persistent = planned_forward(kind, spec, x, history[0], batch)
    table = new_table(x, rows, facts.sites) if save or persistent else Table(None, 0)
    run = _or_step_by_step(persistent, _run_forward)
    products = run(kind, spec, scaling, x, steps, weights, arrays, history, table, save=save)
    if not save:
        return history, None
    if cells and not facts.is_cell_apart:
        cell = library.rows(history[1], batch, batch + rows)
    z, xp = (products, xp) if facts.norm_each_product else (xp, None)
    return history, Saved(z, xp, cell, history, table, outputs)


def _may_persist(weights: Weights, dropout: Any) -> bool:
    """Return whether the caller allows a kernel of all steps, which has neither of the two."""
    return may_persist.get() and dropout is None and weights.projection is None


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
    library = x.lib
    (state, cells), outputs = _of_both(history), arrays.outputs
    facts = kind.facts_of(spec)
    batch, units = library.shape(state)[0] - x.shape[0], library.shape(history[-1])[1]
    all_arrays = (
        arrays.xp, *_of_both(arrays.masks), arrays.cell, table.array,
        state if outputs is None else outputs, cells,
    )  # fmt: skip
    shape = shape_for(units, x, *all_arrays, *weights.others)
    kernel = _forward_kernel(kind.step, spec, x.element, shape)
    others = kind.step.weights(*addresses(x, weights.others))
    widths = facts.normalized * units, units
    scalings = OfNorms(*(scaling_numbers(scaling, width) for width in widths))
    rows = step_rows(steps, batch)
    start, count, before, after, _ = rows
    old_cell, new_cell = (before, after) if save else (0, 0)
    output = after if outputs is None else start * save
    arrays_at = StepArrays(x, *all_arrays).at_rows
    xp, mask_h, mask_c, cell, stats, h, c = arrays_at(*(start,) * 5, output, new_cell)
    *_, h_before, c_before = arrays_at(*(start,) * 5, before, old_cell)
    sums = xp if save and not facts.norm_each_product else 0
    launches = StepLaunches(
        kernel, x, blocks_of(count, shape),
        (
            Products(-1, xp), others, StepStates(mask_h, mask_c, h_before, c_before, h, c),
            StepSaved(sums, cell, stats), count, units, AdaNumbers(*weights.numbers), scalings,
        ),
    )  # fmt: skip
    keep = save and facts.norm_each_product
    products = StepProducts(x, weights.transposed_h, rows, keep=keep)
    dropout = StepDropout(x, arrays.dropout, rows)
    for step, (at, size) in enumerate(zip(before.tolist(), count.tolist(), strict=True)):
        operand = dropout.of_step(step, library.rows(state, at, at + size))
        launches.run(step, products.of_step(step, operand))
        if outputs is not None:
            first = int(output[step])
            of_step = library.rows(outputs, first, first + size)
            _project(x, of_step, weights.transposed_projection, state, int(after[step]))
    return products.of_all_steps() if keep else None


def _project(x: DeviceArray, outputs: Any, projection: Any, history: Any, row: int) -> None:
    """Write the projections of a step's outputs to the history of states, from a row on."""
    library = x.lib
    count, width = library.shape(outputs)[0], library.shape(history)[1]
    if library.writable:
        library.matmul(outputs, projection, library.rows(history, row, row + count))
        return
    source = with_array(x, library.matmul(outputs, projection))
    target = ArrayOffset(history, row * width * x.element.itemsize)
    write_rows(source, x.element, (count, width), target)


def backward(
    kind: CellKind,
    spec: Any,
    scaling: Scaling,
    x: DeviceArray,
    steps: PackedSteps,
    weights: Weights,
    saved: Saved,
    masks: Masks,
    dropout: Any,
    dy: DeviceArray,
    dstates: States,
) -> CellGradients:
    """Return all gradients."""
    rows = x.shape[0]
    batch, units = dstates[-1].shape
    last = tuple(map(copied, dstates))
    if not rows:
        parameters = gradients_without_steps(x, weights, units, kind.sizes)
        return CellGradients(copied(x), last, parameters)
    results = _new_results(kind, spec, x, units)
    read = ReadBack(saved.z, saved.xp, saved.cell, saved.history[-1], saved.table.array)
    projected = None if weights.projection is None else new(x, dy.shape)
    arrays = BackwardArrays(
        read, tuple(map(array_or_none, masks)), dy.array, results, dropout, projected
    )
    persistent = None
    if _may_persist(weights, dropout):
        persistent = planned_backward(kind, spec, x, batch, units)
    run = _or_step_by_step(persistent, _run_backward)
    dh = product = run(kind, spec, scaling, x, steps, weights, arrays, last)
    if spec.zoneout or kind.past_every_step:
        dh = added_up(x, (batch, units), product, last[0])
    dxp = results.dxp if kind.facts_of(spec).norm_each_product else results.dz
    parameters = kind.parameter_sums(spec, x, saved, results)
    operands = operands_before(x, steps, saved.history[0], dropout)
    parameters |= weight_gradients(x, operands, dxp, results.dz)
    if projected is not None:
        transposed = x.lib.permuted(projected, (1, 0))
        parameters["projection"] = x.lib.matmul(transposed, saved.outputs)
    return CellGradients(x.lib.matmul(dxp, weights.x), (dh, *last[1:]), parameters)


def _new_results(kind: CellKind, spec: Any, x: DeviceArray, units: int) -> Results:
    """Return new arrays for the results of the backward steps."""
    rows = x.shape[0]
    facts = kind.facts_of(spec)
    shape = (rows, kind.gates * units)
    sections = facts.other_sections
    normed = facts.norms[0]
    gates = new(x, shape)
    other = new(x, (rows, sections * units)) if sections else None
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
    library = x.lib
    saved, masks, dy, results, dropout, projected = arrays
    batch, units = library.shape(last[-1])
    all_arrays = *saved, *_of_both(masks), dy, *results
    shape = shape_for(units, x, *all_arrays, *last, *weights.others)
    kernel = _backward_kernel(kind.step, spec, x.element, shape)
    others = kind.step.weights(*addresses(x, weights.others))
    dh, dc = (*addresses(x, last), 0)[:2]
    facts = kind.facts_of(spec)
    coefficients = OfNorms(
        coefficient_numbers(facts.norms[0], scaling, facts.normalized * units),
        coefficient_numbers(facts.norms[1], scaling, units),
    )
    rows = step_rows(steps, batch)
    start, count, before, _, later = rows
    arrays_at = StepArrays(x, *all_arrays).at_rows
    z, xp, cell, state, table, mask_h, mask_c, grad_y, *targets = arrays_at(
        *(start,) * 3, before, *(start,) * 8
    )
    of_outputs = None
    if projected is not None:
        of_outputs = _output_gradients(x, weights, rows, grad_y, dh, projected)
        grad_y = -2
    launches = StepLaunches(
        kernel, x, blocks_of(count, shape),
        (
            ReadBack(z, xp, cell, state, table), others,
            Incoming(grad_y, -1, dh, dc, mask_h, mask_c), Results(*targets),
            count, later, units, AdaNumbers(*weights.numbers), coefficients,
        ),
    )  # fmt: skip
    products = StepProducts(x, weights.h, rows, keep=False)
    of_dropout, product = StepDropout(x, dropout, rows), None
    for step, (at, stop) in reversed([*enumerate(rows.ranges)]):
        given = (product,) if of_outputs is None else (product, of_outputs(step, product))
        launches.run(step, *given)
        dz = library.rows(results.dz, at, stop)
        product = of_dropout.of_step(step, products.of_step(step, dz))
    return product


def _output_gradients(
    x: DeviceArray, weights: Weights, rows: StepRows, dy: Any, dh: int, projected: Any
) -> Callable[[int, Any], Any]:
    """Return a function of the gradients of a step's outputs, which an LSTM projects.

    It takes the step and the gradient of the state through the next step's product. `dy` and `dh`
    are addresses as in `Incoming`; `projected` gets the gradients of the states.
    """
    width, kernel = x.lib.shape(projected)[1], _added_gradients(x.element)
    sizes, (target,) = rows.count * width, StepArrays(x, projected).at_rows(rows.start)
    arguments = dy, -1, dh, target, rows.later * width, sizes
    launches = StepLaunches(kernel, x, -(-sizes // kernel.threads), arguments)
    products, ranges = StepProducts(x, weights.projection, rows, keep=False), rows.ranges

    def of_step(step: int, product: Any) -> Any:
        launches.run(step, product)
        of_states = x.lib.rows(projected, *ranges[step])
        return products.of_step(step, of_states)

    return of_step


# The functions of each kind of cell


_MODULES: dict[type, Any] = {LSTMSpec: lstm_cells, GRUSpec: gru_cells, RNNSpec: rnn_cells}


def _resets_before(spec: CellSpec) -> TypeGuard[GRUSpec]:
    """Return whether the cell is a GRU with passes of its own, as a step has two products."""
    return isinstance(spec, GRUSpec) and not spec.reset_after


def _kind(spec: CellSpec) -> CellKind:
    kind: CellKind = _MODULES[type(spec)].KIND
    return kind


def cell_weights(spec: CellSpec, given: Any, ada_scale: float, ada_k: float, keep: bool) -> Any:
    """Return the parameters of a recurrent cell in its compute dtype, as the passes take them."""
    module = gru_reset if _resets_before(spec) else _MODULES[type(spec)]
    with on_device_of(given.weight_x):
        return module.weights(spec, given, (ada_scale, ada_k))


def cell_forward(
    spec: CellSpec,
    scaling: Scaling,
    x: DeviceArray,
    steps: PackedSteps,
    weights: Any,
    states: tuple[DeviceArray, ...],
    zoneout_masks: tuple[DeviceArray | None, ...],
    save: bool,
    dropout_mask: DeviceArray | None = None,
) -> tuple[tuple[Any, ...], Any]:
    """Return the history of each state, from the first one on, and what the backward pass needs."""
    kind, dropout = _kind(spec), array_or_none(dropout_mask)
    spec = spec._replace(recurrent_dropout=False)  # the same kernels
    with on_device_of(x):
        if _resets_before(spec):
            mask = array_or_none(zoneout_masks[0])
            return gru_reset.forward(
                spec, scaling, x, steps, weights, states[0], mask, dropout, save
            )
        return forward(kind, spec, scaling, x, steps, weights, states, zoneout_masks, dropout, save)


def prepared_step(*arguments: Any) -> None:
    """Return None: a step takes the same way as a sequence."""


def cell_backward(
    spec: CellSpec,
    scaling: Scaling,
    x: DeviceArray,
    steps: PackedSteps,
    weights: Any,
    saved: Any,
    zoneout_masks: tuple[DeviceArray | None, ...],
    dy: DeviceArray,
    dstates: tuple[DeviceArray, ...],
    dropout_mask: DeviceArray | None = None,
) -> CellGradients:
    """Return all gradients, from the gradients of every step's h and of the last states."""
    kind, dropout = _kind(spec), array_or_none(dropout_mask)
    spec = spec._replace(recurrent_dropout=False)
    with on_device_of(x):
        if _resets_before(spec):
            mask = array_or_none(zoneout_masks[0])
            return gru_reset.backward(
                spec, scaling, x, steps, weights, saved, mask, dropout, dy, dstates[0]
            )
        return backward(
            kind, spec, scaling, x, steps, weights, saved, zoneout_masks, dropout, dy, dstates
        )
