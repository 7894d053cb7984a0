"""Plain recurrent networks on arrays of a device: a whole pass, step by step or all at once.

As for an LSTM, step by step the products are those of the arrays' own library: of x before the
first step, of the state in each. What is between two of them is one kernel.
"""

import functools
from typing import Any, NamedTuple

from numnorm.backends.contract.norms import Scaling
from numnorm.backends.contract.recurrent import CellGradients, RNNForm, Steps
from numnorm.backends.cuda.arrays.device_array import DeviceArray
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
    new_states,
    new_table,
    norm_numbers,
    parameter_or,
    scaling_numbers,
    shape_for,
    step_places,
    weight_gradients,
)
from numnorm.backends.cuda.recurrent.persistent_kernels import (
    persistent_backward,
    persistent_forward,
)
from numnorm.backends.cuda.recurrent.rnn.backward_kernel import make_rnn_backward
from numnorm.backends.cuda.recurrent.rnn.forward_kernel import make_rnn_forward
from numnorm.backends.cuda.threads.row_launch import blocks_of

_forward_kernel = functools.cache(make_rnn_forward)
_backward_kernel = functools.cache(make_rnn_backward)

# How many numbers for each unit the parameters besides the weights have.
_SIZES = dict.fromkeys(("bias", "beta", "gamma"), 1)


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
    state = new_states(x, given)
    if not rows:
        return (state,), Saved(None, state, Table(None, 0))
    z = owner.product(x.array, weights.turned_x)
    table = new_table(x, rows, 1) if save and form.norm else Table(None, 0)
    arrays = z, array_or_none(keep), table.array
    run = persistent_forward(form, x, state, given.shape[0]) or _run_forward
    run(form, scaling, x, steps, weights, arrays, state, save)
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
    shape = shape_for(units, x, *arrays, state, *weights.others)
    kernel, at = _forward_kernel(form, x.element, shape), StepArrays(x, *arrays, state)
    numbers = *weights.numbers, *scaling_numbers(scaling, units)
    others = addresses(x, weights.others)
    for start, count, before in step_places(steps, batch):
        product = owner.product(owner.rows(state, before, before + count), weights.turned_h)
        *_, old = at.behind(start, start, start, before)
        xp, keep, table, h = at.behind(start, start, start, batch + start)
        given = product, xp, *others, keep, old, h, xp if save else 0, table
        queue(kernel, blocks_of(count, shape), x, given, (count, units, *numbers))


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
    rows, (last,), (keep,) = x.shape[0], dstates, keeps
    units, dh = last.shape[1], copied(last)
    if not rows:
        return CellGradients(copied(x), (dh,), gradients_of_nothing(x, weights, units, _SIZES))
    slopes = new(x, (rows, units))
    dz = new(x, (rows, units)) if form.norm else slopes
    arrays = saved.z, saved.table.array, array_or_none(keep), dy.array, dz, slopes
    run = persistent_backward(form, x, *last.shape) or _run_backward
    product = run(form, scaling, x, steps, weights, arrays, dh)
    dh = added_up(x, last.shape, product, dh) if form.zoneout else product
    found = _parameter_sums(form, x, saved, slopes)
    found |= weight_gradients(x, steps, saved.state, dz, dz)
    return CellGradients(x.owner.product(dz, weights.x), (dh,), found)


def _run_backward(
    form: RNNForm,
    scaling: Scaling,
    x: DeviceArray,
    steps: Steps,
    weights: Weights,
    arrays: tuple[Any, ...],
    dh: Any,
) -> Any:
    """Take all steps back, and return what the first states get through the products."""
    owner, (batch, units), dz = x.owner, x.owner.shape(dh), arrays[4]
    shape = shape_for(units, x, *arrays, dh, *weights.others)
    kernel, at = _backward_kernel(form, x.element, shape), StepArrays(x, *arrays)
    others = addresses(x, weights.others)
    last, numbers = owner.address(dh), (*weights.numbers, *flow_numbers(form.norm, scaling, units))
    later, product = 0, None
    for start, count, _ in reversed(step_places(steps, batch)):
        z, table, keep, dy, *results = at.behind(*(start,) * 6)
        given = z, table, *others, keep, dy, product, last, *results
        queue(kernel, blocks_of(count, shape), x, given, (count, later, units, *numbers))
        later, product = count, owner.product(owner.rows(dz, start, start + count), weights.h)
    return product


def _parameter_sums(form: RNNForm, x: DeviceArray, saved: Saved, slopes: Any) -> dict[str, Any]:
    """Return the gradients of the bias and the norm's parameters, by name."""
    found = {}
    if form.norm is not None and form.norm.parameters > 0:
        found["gamma"], offset = column_sums(x, slopes, saved.z, saved.table)
    else:
        _, offset = column_sums(x, slopes)
    return found | {"bias": offset, "beta": offset}
