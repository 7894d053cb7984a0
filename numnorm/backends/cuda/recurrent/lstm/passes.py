"""LSTM on arrays of a device: a whole pass, step by step or, where there is room, all at once.

Step by step, the products are those of the arrays' own library: of x before the first step, of the
state in each. What is between two of them is one kernel.
"""

import functools
from typing import Any, NamedTuple

from numnorm.backends.contract.norms import Scaling
from numnorm.backends.contract.recurrent import CellGradients, LSTMForm, Steps
from numnorm.backends.cuda.arrays.device_array import DeviceArray
from numnorm.backends.cuda.arrays.gather_rows import write_rows
from numnorm.backends.cuda.arrays.launch import queue
from numnorm.backends.cuda.recurrent.common.passes import (
    StepArrays,
    Table,
    Weights,
    added_up,
    addresses,
    array_or_none,
    column_sums,
    copied,
    flow_numbers,
    gradients_of_nothing,
    make_weights,
    new,
    new_table,
    norm_numbers,
    parameter_or,
    scaling_numbers,
    shape_for,
    step_places,
    weight_gradients,
)
from numnorm.backends.cuda.recurrent.lstm.backward_kernel import make_lstm_backward
from numnorm.backends.cuda.recurrent.lstm.forward_kernel import make_lstm_forward
from numnorm.backends.cuda.recurrent.lstm.gates import GATES, gate_parts, normalized_units, places
from numnorm.backends.cuda.recurrent.persistent_kernels import (
    persistent_backward,
    persistent_forward,
)
from numnorm.backends.cuda.threads.row_launch import blocks_of

_forward_kernel = functools.cache(make_lstm_forward)
_backward_kernel = functools.cache(make_lstm_backward)

# How many numbers for each unit the parameters besides the weights have.
SIZES = dict.fromkeys(("bias", "beta_x", "beta_h", "gamma_x", "gamma_h"), GATES) | dict.fromkeys(
    ("gamma_c", "beta_c"), 1
)


class Saved(NamedTuple):
    """What the backward pass of an LSTM reads, rows in the order of the steps.

    Attributes
    ----------
    z, xp : array (rows, 4H)
        The products with the state and with x; their sum and None where no norm is taken of each.
    cell : array (rows, H)
        Before its norm.
    carried, state : array (batch + rows, H)
        The cell as each step was handed it, and the states; first those given.
    table : Table
        The statistics.
    """

    z: Any
    xp: Any
    cell: Any
    carried: Any
    state: Any
    table: Table


def weights(form: LSTMForm, given: Any, ada: tuple[float, float]) -> Weights:
    """Return the parameters of an LSTM; the betas of the products join the bias."""
    like = given.weight_h
    units = like.shape[1]
    wide, of_x = GATES * units, form.gates if form.by_product else None
    terms = (p if p is None else p.array for p in (given.bias, given.beta_x, given.beta_h))
    others = (
        added_up(like, (wide,), *terms),
        parameter_or(1.0, given.gamma_h, form.gates, 1, like, wide),
        parameter_or(1.0, given.gamma_x, of_x, 1, like, wide),
        parameter_or(1.0, given.gamma_c, form.cell, 1, like, units),
        parameter_or(0.0, given.beta_c, form.cell, 2, like, units),
    )
    return make_weights(given, others, norm_numbers(form.cell or form.gates, ada))


def _is_apart(form: LSTMForm) -> bool:
    """Return whether the cell that is handed on is not that before its norm."""
    return form.carries_normalized or form.zoneout


def forward(
    form: LSTMForm,
    scaling: Scaling,
    x: DeviceArray,
    steps: Steps,
    weights: Weights,
    states: tuple[DeviceArray, ...],
    keeps: tuple[DeviceArray | None, ...],
    save: bool,
) -> tuple[tuple[Any, Any], Saved | None]:
    """Return all states and cells; if nothing is saved, the cells are the last ones alone."""
    owner, rows, (batch, units) = x.owner, x.shape[0], states[0].shape
    state, carried = new(x, (batch + rows, units)), new(x, (batch + rows * save, units))
    for given, target in zip(states, (state, carried), strict=True):
        write_rows(given, given.element, given.shape, target)
    if not rows:
        return (state, carried), Saved(*(None,) * 3, carried, state, Table(None, 0))
    xp = owner.product(x.array, weights.turned_x)
    cell = new(x, (rows, units)) if save and _is_apart(form) else None
    arrays, history = (xp, *map(array_or_none, keeps), cell), (state, carried)
    persistent = persistent_forward(form, x, state, batch)
    table = new_table(x, rows, places(form)) if save or persistent else Table(None, 0)
    run = persistent or _run_forward
    of_each = run(form, scaling, x, steps, weights, arrays, history, table, save=save)
    if not save:
        return history, None
    if not _is_apart(form):
        cell = owner.rows(carried, batch, batch + rows)
    z, xp = (of_each, xp) if form.by_product else (xp, None)
    return history, Saved(z, xp, cell, carried, state, table)


def _run_forward(
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
    """Take all steps, and return the products with the state if they are to be kept."""
    owner, (state, _) = x.owner, states
    units = owner.shape(state)[1]
    batch = owner.shape(state)[0] - x.shape[0]
    arrays = *arrays, table.array
    shape = shape_for(units, x, *arrays, *states, *weights.others)
    kernel, at = _forward_kernel(form, x.element, shape), StepArrays(x, *arrays, *states)
    sizes = units, *weights.numbers, *scaling_numbers(scaling, normalized_units(form, units))
    products, summed = [], save and not form.by_product
    others = addresses(x, weights.others)
    for start, count, before in step_places(steps, batch):
        z = owner.product(owner.rows(state, before, before + count), weights.turned_h)
        now = batch + start
        old_cell, new_cell = (before, now) if save else (0, 0)
        xp, keep_h, keep_c, cell, statistics, h, c = at.behind(*(start,) * 5, now, new_cell)
        *_, h_before, c_before = at.behind(*(start,) * 5, before, old_cell)
        queue(
            kernel, blocks_of(count, shape), x,
            (
                z, xp, *others, keep_h, keep_c, h_before, c_before, h, c, xp if summed else 0,
                cell, statistics,
            ),
            (count, *sizes, *scaling_numbers(scaling, units)),
        )  # fmt: skip
        if save and form.by_product:
            products.append(z)
    return owner.concatenated(products) if products else None


def backward(
    form: LSTMForm,
    scaling: Scaling,
    x: DeviceArray,
    steps: Steps,
    weights: Weights,
    saved: Saved,
    keeps: tuple[DeviceArray | None, ...],
    dy: DeviceArray,
    dstates: tuple[DeviceArray, ...],
) -> CellGradients:
    """Return all gradients."""
    rows, units = x.shape[0], dstates[0].shape[1]
    dh, dc = map(copied, dstates)
    if not rows:
        return CellGradients(copied(x), (dh, dc), gradients_of_nothing(x, weights, units, SIZES))
    wide = rows, GATES * units
    slopes = new(x, wide)
    dz = new(x, wide) if form.gates else slopes
    dxp = new(x, wide) if form.by_product else None
    dn = new(x, (rows, units)) if form.cell and form.cell.parameters else None
    keep_h, keep_c = map(array_or_none, keeps)
    arrays = (
        saved.z, saved.xp, saved.cell, saved.carried, saved.table.array, keep_h, keep_c, dy.array,
        dz, dxp, slopes, dn,
    )  # fmt: skip
    run = persistent_backward(form, x, *dstates[0].shape) or _run_backward
    product = run(form, scaling, x, steps, weights, arrays, (dh, dc))
    dh = added_up(x, dstates[0].shape, product, dh) if form.zoneout else product
    of_x = dxp if form.by_product else dz
    found = _parameter_sums(form, x, saved, slopes, dn)
    found |= weight_gradients(x, steps, saved.state, of_x, dz)
    return CellGradients(x.owner.product(of_x, weights.x), (dh, dc), found)


def _run_backward(
    form: LSTMForm,
    scaling: Scaling,
    x: DeviceArray,
    steps: Steps,
    weights: Weights,
    arrays: tuple[Any, ...],
    slopes: tuple[Any, Any],
) -> Any:
    """Take all steps back, and return what the first states get through the products."""
    owner, (dh, dc), dz = x.owner, slopes, arrays[8]
    batch, units = owner.shape(dh)
    shape = shape_for(units, x, *arrays, dh, dc, *weights.others)
    kernel, at = _backward_kernel(form, x.element, shape), StepArrays(x, *arrays)
    others, last = addresses(x, weights.others), addresses(x, (dh, dc))
    numbers = (
        *weights.numbers,
        *flow_numbers(form.gates, scaling, normalized_units(form, units)),
        *flow_numbers(form.cell, scaling, units),
    )
    later, product = 0, None
    for start, count, before in reversed(step_places(steps, batch)):
        z, xp, cell, c_before, table, keep_h, keep_c, dy, *results = at.behind(
            *(start,) * 3, before, *(start,) * 8
        )
        queue(
            kernel, blocks_of(count, shape), x,
            (
                z, xp, cell, c_before, table, *others, keep_h, keep_c, dy, product, *last,
                *results,
            ),
            (count, later, units, *numbers),
        )  # fmt: skip
        later, product = count, owner.product(owner.rows(dz, start, start + count), weights.h)
    return product


def _parameter_sums(
    form: LSTMForm, x: DeviceArray, saved: Saved, slopes: Any, dn: Any
) -> dict[str, Any]:
    """Return the gradients of biases and norms, by name."""
    found, table, units = {}, saved.table, x.owner.shape(saved.state)[1]
    summed = form.gates is not None and form.gates.parameters > 0
    if summed:
        found["gamma_h"], offset = column_sums(
            x, slopes, saved.z, table, 0, normalized_units(form, units)
        )  # fmt: skip
    else:
        _, offset = column_sums(x, slopes)
    if summed and form.by_product:
        found["gamma_x"], _ = column_sums(x, slopes, saved.xp, table, 1)
    if dn is not None:
        place = gate_parts(form).count
        found["gamma_c"], found["beta_c"] = column_sums(x, dn, saved.cell, table, place)
    return found | {"bias": offset, "beta_x": offset, "beta_h": offset}
