"""Plain recurrent networks on arrays of a device: a whole pass, step by step.

The products are those of the arrays' own library: of x for all steps at once, of the state in each
step. What is between two of them is one kernel.
"""

import functools
from typing import Any, NamedTuple

from numnorm.arguments import Shape
from numnorm.backends.contract import CellGradients, RNNForm, Scaling, Steps
from numnorm.backends.cuda.arrays import DeviceArray
from numnorm.backends.cuda.cell_passes import (
    StepArrays,
    Table,
    Weights,
    added_up,
    array_or_none,
    column_sums,
    copied,
    flow_numbers,
    is_whole,
    make_weights,
    new,
    new_table,
    norm_numbers,
    parameter_or,
    scaling_numbers,
    states_before,
)
from numnorm.backends.cuda.cell_shape import cell_shape
from numnorm.backends.cuda.elements import Element
from numnorm.backends.cuda.launch import blocks_of
from numnorm.backends.cuda.queues import queue
from numnorm.backends.cuda.rnn_backward_kernel import make_rnn_backward
from numnorm.backends.cuda.rnn_forward_kernel import make_rnn_forward
from numnorm.backends.cuda.row_shape import RowShape
from numnorm.backends.cuda.taken_rows import write_rows
from numnorm.backends.cuda.target import Kernel


class Saved(NamedTuple):
    """What the backward pass of a plain recurrent network reads, rows in the order of the steps.

    Attributes
    ----------
    z : array (rows, H)
        The sums of the products with x and with the state.
    state : array (batch + rows, H)
        The states; first those given.
    table : Table
        The statistics of z.
    """

    z: Any
    state: Any
    table: Table


@functools.cache
def _forward_kernel(form: RNNForm, element: Element, shape: RowShape) -> Kernel:
    return make_rnn_forward(form, element, shape)


@functools.cache
def _backward_kernel(form: RNNForm, element: Element, shape: RowShape) -> Kernel:
    return make_rnn_backward(form, element, shape)


def weights(form: RNNForm, given: Any, ada: tuple[float, float]) -> Weights:
    """Return the parameters of a plain recurrent network; beta joins the bias."""
    like = given.weight_h
    units = like.shape[1]
    others = (
        added_up(like, (units,), array_or_none(given.bias), array_or_none(given.beta)),
        parameter_or(1.0, given.gamma, form.norm, 1, like, units),
    )
    return make_weights(given, others, norm_numbers(form.norm, ada))


def forward(
    form: RNNForm,
    scaling: Scaling,
    x: DeviceArray,
    steps: Steps,
    weights: Weights,
    states: tuple[DeviceArray, ...],
    keeps: tuple[DeviceArray | None, ...],
    save: bool,
) -> tuple[tuple[Any], Saved | None]:
    """Return all states, and what the backward pass needs."""
    owner, rows, (given,), (keep,) = x.owner, x.shape[0], states, keeps
    batch, units = given.shape
    state = new(x, (batch + rows, units))
    write_rows(given, given.element, given.shape, state)
    if not rows:
        return (state,), Saved(None, state, Table(None, 0))
    z = owner.product(x.array, weights.turned_x)
    table = new_table(x, rows, 1) if save and form.norm else Table(None, 0)
    arrays = z, array_or_none(keep), table.array
    _run_forward(form, scaling, x, steps, weights, arrays, state, save)
    return (state,), Saved(z, state, table) if save else None


def _run_forward(
    form: RNNForm,
    scaling: Scaling,
    x: DeviceArray,
    steps: Steps,
    weights: Weights,
    arrays: tuple[Any, ...],
    state: Any,
    save: bool,
) -> None:
    """Take all steps; the products with x become the sums of both, if they are to be kept."""
    owner, (total, units) = x.owner, x.owner.shape(state)
    batch = total - x.shape[0]
    # A new product begins at a multiple of 16 bytes, as all memory of the libraries does.
    whole = is_whole(units, x, (*arrays, state, *weights.others))
    shape = cell_shape(units, x.element, whole=whole)
    kernel, at = _forward_kernel(form, x.element, shape), StepArrays(x, *arrays, state)
    numbers = *weights.numbers, *scaling_numbers(scaling, units)
    others = [0 if a is None else owner.address(a) for a in weights.others]
    before = 0
    for start, count in zip(steps.starts.tolist(), steps.counts.tolist(), strict=True):
        product = owner.product(owner.rows(state, before, before + count), weights.turned_h)
        now = batch + start
        *_, old = at.behind(start, start, start, before)
        xp, keep, table, h = at.behind(start, start, start, now)
        addresses = product, xp, *others, keep, old, h, xp if save else 0, table
        queue(kernel, blocks_of(count, shape), x, addresses, (count, units, *numbers))
        before = now


def backward(
    form: RNNForm,
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
    owner, rows, (last,), (keep,) = x.owner, x.shape[0], dstates, keeps
    units, dh = last.shape[1], copied(last)
    if not rows:
        return CellGradients(copied(x), (dh,), _of_nothing(x, weights, units))
    slopes = new(x, (rows, units))
    dz = new(x, (rows, units)) if form.norm else slopes
    arrays = saved.z, saved.table.array, array_or_none(keep), dy.array, dz, slopes
    dh = _run_backward(form, scaling, x, steps, weights, arrays, dh)
    found = _parameter_sums(form, x, saved, slopes)
    turned = owner.permuted(dz, (1, 0))
    found["weight_x"] = owner.product(turned, x.array)
    found["weight_h"] = owner.product(turned, states_before(x, steps, saved.state))
    return CellGradients(owner.product(dz, weights.x), (dh,), found)


def _run_backward(
    form: RNNForm,
    scaling: Scaling,
    x: DeviceArray,
    steps: Steps,
    weights: Weights,
    arrays: tuple[Any, ...],
    dh: Any,
) -> Any:
    """Take all steps back, and return the gradient of the first states."""
    owner, (batch, units), dz = x.owner, x.owner.shape(dh), arrays[4]
    whole = is_whole(units, x, (*arrays, dh, *weights.others))
    shape = cell_shape(units, x.element, whole=whole)
    kernel, at = _backward_kernel(form, x.element, shape), StepArrays(x, *arrays)
    others = [0 if a is None else owner.address(a) for a in weights.others]
    last, numbers = owner.address(dh), (*weights.numbers, *flow_numbers(form.norm, scaling, units))
    later, product = 0, None
    for start, count in reversed([*zip(steps.starts.tolist(), steps.counts.tolist(), strict=True)]):
        z, table, keep, dy, *results = at.behind(*(start,) * 6)
        addresses = z, table, *others, keep, dy, product, last, *results
        queue(kernel, blocks_of(count, shape), x, addresses, (count, later, units, *numbers))
        later, product = count, owner.product(owner.rows(dz, start, start + count), weights.h)
    return added_up(x, (batch, units), product, dh) if form.zoneout else product


def _parameter_sums(form: RNNForm, x: DeviceArray, saved: Saved, slopes: Any) -> dict[str, Any]:
    """Return the gradients of the bias and the norm's parameters, by name."""
    found = {}
    if form.norm is not None and form.norm.parameters > 0:
        found["gamma"], offset = column_sums(x, slopes, saved.z, saved.table)
    else:
        _, offset = column_sums(x, slopes)
    return found | {"bias": offset, "beta": offset}


def _of_nothing(x: DeviceArray, weights: Weights, units: int) -> dict[str, Any]:
    """Return the gradients of the parameters where there are no steps: sums of nothing."""
    owner = x.owner
    shapes: dict[str, Shape] = dict.fromkeys(("bias", "beta", "gamma"), (units,))
    shapes |= {"weight_x": owner.shape(weights.x), "weight_h": owner.shape(weights.h)}
    return {name: owner.full(x.array, s, x.element.name, 0.0) for name, s in shapes.items()}
