"""LSTM with batch norm on arrays of a device: a whole pass, step by step.

The products are those of the arrays' own library: of x for all steps at once, of the state in each
step. What is between two of them is one kernel, statistics included.
"""

import functools
import itertools
import math
from typing import Any, NamedTuple, cast

from numnorm.backends.contract.norms import Norm
from numnorm.backends.contract.recurrent import CellGradients, LSTMForm, RunningSteps, Steps
from numnorm.backends.cuda.arrays.device_array import DeviceArray
from numnorm.backends.cuda.arrays.launch import Behind, on_device_of, queue
from numnorm.backends.cuda.compiler.element_type import FLOAT64
from numnorm.backends.cuda.recurrent.batch_norm_lstm.backward_kernel import (
    make_batch_lstm_backward,
    sums_of,
)
from numnorm.backends.cuda.recurrent.batch_norm_lstm.column_threads import blocks_for
from numnorm.backends.cuda.recurrent.batch_norm_lstm.forward_kernel import make_batch_lstm_forward
from numnorm.backends.cuda.recurrent.batch_norm_lstm.running_statistics_kernel import (
    make_given_statistics,
)
from numnorm.backends.cuda.recurrent.batch_norm_lstm.step_statistics import columns_of
from numnorm.backends.cuda.recurrent.common.cell_norm import NUMBERS
from numnorm.backends.cuda.recurrent.common.passes import (
    StepArrays,
    Weights,
    addresses,
    column_sums,
    copied,
    gradients_of_nothing,
    new,
    new_states,
    step_places,
    weight_gradients,
)
from numnorm.backends.cuda.recurrent.lstm.gates import GATES
from numnorm.backends.cuda.recurrent.lstm.passes import SIZES
from numnorm.backends.cuda.recurrent.lstm.passes import weights as weights_of
from numnorm.backends.cuda.statistics.stored import Statistic, float64_memory, move_running

_given_statistics = functools.cache(make_given_statistics)
_forward_kernel = functools.cache(make_batch_lstm_forward)
_backward_kernel = functools.cache(make_batch_lstm_backward)


class _Table(NamedTuple):
    """The statistics of all steps, for each place its steps' columns.

    Attributes
    ----------
    numbers : array
        As the kernels normalize by them; None where there is nothing to normalize.
    means, variances : array or None
        Of float64, for the running statistics.
    steps : int
    constant : bool
        Whether they were given.
    """

    numbers: Any
    means: Any
    variances: Any
    steps: int
    constant: bool


class _Saved(NamedTuple):
    """What the backward pass reads, rows in the order of the steps.

    Attributes
    ----------
    z, xp : array (rows, 4H)
        The products with the state and with x; their sum and None where no norm is taken of each.
    cell : array (rows, H)
        Before its norm.
    carried, state : array (batch + rows, H)
        The cell as each step was handed it, and the states; first those given.
    """

    form: LSTMForm
    x: DeviceArray
    steps: Steps
    weights: Weights
    table: _Table
    z: Any
    xp: Any
    cell: Any
    carried: Any
    state: Any


def batch_cell_forward(
    form: LSTMForm,
    eps: float,
    x: DeviceArray,
    steps: Steps,
    given: Any,
    states: tuple[DeviceArray, ...],
    running: dict[str, RunningSteps],
) -> tuple[tuple[Any, Any], _Saved]:
    """Return all states and cells, those given first, and what the backward pass needs."""
    rows, (batch, units) = x.shape[0], states[0].shape
    with on_device_of(x):
        weights = weights_of(form, given, (1.0, 0.0))
        state, carried = (new_states(x, first) for first in states)
        table = _new_table(form, eps, x, steps, units, running)
        z = xp = cell = None
        if rows:
            xp = x.owner.product(x.array, weights.turned_x)
            cell = new(x, (rows, units)) if form.carries_normalized else None
            arrays = xp, state, carried, cell
            products = _run_forward(form, eps, x, steps, weights, arrays, table, running)
            z, xp = (x.owner.concatenated(products), xp) if form.by_product else (xp, None)
            if cell is None:
                cell = x.owner.rows(carried, batch, batch + rows)
            _update(form, x, steps, units, table, running)
    return (state, carried), _Saved(
        form, x, steps, weights, table, z, xp, cell, carried, state
    )  # fmt: skip


def _new_table(
    form: LSTMForm,
    eps: float,
    x: DeviceArray,
    steps: Steps,
    units: int,
    running: dict[str, RunningSteps],
) -> _Table:
    """Return room for the statistics of all steps, or those that were given."""
    count, places = steps.counts.size, form.places(units)
    constant = any(not of_place.training for of_place in running.values())
    if not count:
        return _Table(None, None, None, 0, constant)
    columns = sum(places.values())
    numbers = new(x, (count, columns * NUMBERS))
    if not constant:
        means, variances = (
            float64_memory(x, count * columns) if running else None for _ in range(2)
        )
        return _Table(numbers, means, variances, count, constant)
    begins, formula = columns_of(form, units), cast(Norm, form.cell).formula
    for place, size in places.items():
        found = running[place]
        mean, variance, last = found.mean, found.variance, found.mean.shape[0] - 1
        kernel = _given_statistics(formula, x.element, mean.element, variance.element)
        offset = begins[place] * count * NUMBERS * x.element.itemsize
        arrays = mean.array, variance.array, Behind(numbers, offset)
        sizes = count * size, size, found.first, last, eps
        queue(kernel, -(-count * size // kernel.threads), x, arrays, sizes)
    return _Table(numbers, None, None, count, constant)


def _run_forward(
    form: LSTMForm,
    eps: float,
    x: DeviceArray,
    steps: Steps,
    weights: Weights,
    arrays: tuple[Any, Any, Any, Any],
    table: _Table,
    running: dict[str, RunningSteps],
) -> list[Any]:
    """Take all steps, and return the products with the state if they are to be kept."""
    owner, (_, state, carried, _) = x.owner, arrays
    batch, units = owner.shape(state)[0] - x.shape[0], owner.shape(state)[1]
    kernel = _forward_kernel(form, x.element, training=not table.constant)
    at, products = StepArrays(x, *arrays, carried), []
    others, of_all = addresses(x, weights.others), addresses(x, table[:3])
    ddof = next((of_place.ddof for of_place in running.values()), 0)
    numbers, blocks = (eps, math.sqrt(eps)), blocks_for(units)
    for t, (start, count, before) in enumerate(step_places(steps, batch)):
        z = owner.product(owner.rows(state, before, before + count), weights.turned_h)
        now = batch + start
        xp, h, c, of_cell, c_before = at.behind(start, now, now, start, before)
        queue(
            kernel, blocks, x, (z, xp, *others, c_before, h, c, of_cell or c, *of_all),
            (t, table.steps, count, units, 1.0 / count, *numbers, 1.0 / max(1, count - ddof)),
        )  # fmt: skip
        if form.by_product:
            products.append(z)
    return products


def _update(
    form: LSTMForm,
    x: DeviceArray,
    steps: Steps,
    units: int,
    table: _Table,
    running: dict[str, RunningSteps],
) -> None:
    """Move the statistics of the steps of the call that have some, and of which a variance is."""
    begins, several = columns_of(form, units), int((steps.counts > 1).sum())
    for place, size in form.places(units).items():
        found = running.get(place)
        if found is None or table.constant:
            continue
        first, stop = found.first, min(found.first + several, found.mean.shape[0])
        if first >= stop:
            continue
        shape, offset = (stop - first, size), begins[place] * table.steps * FLOAT64.itemsize
        for of_place, moments in ((found.mean, table.means), (found.variance, table.variances)):
            rows = _rows(of_place, first, stop)
            memory = Behind(moments, offset)
            fresh = Statistic(rows.name, memory, x.owner, FLOAT64, shape, x.device, x)
            move_running(rows, fresh, found.share)


def _rows(array: DeviceArray, start: int, stop: int) -> DeviceArray:
    """Return some rows of an array, as a view."""
    view, shape = array.owner.rows(array.array, start, stop), (stop - start, *array.shape[1:])
    return DeviceArray(array.name, view, array.owner, array.element, shape, array.device)


def batch_cell_backward(
    saved: _Saved, dy: DeviceArray, dstates: tuple[DeviceArray, ...]
) -> CellGradients:
    """Return all gradients, from those of every state and of the last states."""
    form, x, steps, weights = saved.form, saved.x, saved.steps, saved.weights
    owner, rows, units = x.owner, x.shape[0], dstates[0].shape[1]
    with on_device_of(x):
        dh, dc = map(copied, dstates)
        if not rows:
            return CellGradients(
                copied(x), (dh, dc), gradients_of_nothing(x, weights, units, SIZES)
            )
        wide, sizes = (rows, GATES * units), sums_of(form, units)
        dz, dxp = new(x, wide), new(x, wide) if form.by_product else None
        sums = new(x, (saved.table.steps, sum(sizes.values())))
        dh = _run_backward(saved, (dy.array, dz, dxp, sums), (dh, dc))
        of_x = dxp if form.by_product else dz
        _, totals = column_sums(x, sums)
        stops = itertools.accumulate(sizes.values())
        found = {
            name: owner.rows(totals, stop - sizes[name], stop)
            for name, stop in zip(sizes, stops, strict=True)
        }
        found |= dict.fromkeys(("beta_x", "beta_h"), found["bias"])
        found |= weight_gradients(x, steps, saved.state, of_x, dz)
        return CellGradients(owner.product(of_x, weights.x), (dh, dc), found)


def _run_backward(saved: _Saved, results: tuple[Any, ...], slopes: tuple[Any, Any]) -> Any:
    """Take all steps back, and return the gradient of the first states; that of the cells is dc."""
    form, x, steps, weights, table = saved[:5]
    owner, (dh, dc), (dy, dz, dxp, sums) = x.owner, slopes, results
    batch, units = owner.shape(dh)
    kernel, blocks = _backward_kernel(form, x.element), blocks_for(units)
    at = StepArrays(x, saved.z, saved.xp, saved.cell, saved.carried, dy, dz, dxp, sums)
    others = addresses(x, weights.others)
    dn = new(x, (batch, units))  # for the kernel's own use
    numbers, *last = addresses(x, (table.numbers, dh, dc))
    later, product = 0, None
    for t, (start, count, before) in reversed([*enumerate(step_places(steps, batch))]):
        *read, of_y, of_z, of_xp, of_sums = at.behind(*(start,) * 3, before, *(start,) * 3, t)
        queue(
            kernel, blocks, x,
            (*read, numbers, *others, of_y, product, *last, of_z, of_xp, dn, of_sums),
            (t, table.steps, count, later, units, 0.0 if table.constant else 1.0 / count),
        )  # fmt: skip
        later, product = count, owner.product(owner.rows(dz, start, start + count), weights.h)
    return product
