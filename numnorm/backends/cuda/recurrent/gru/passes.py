"""Gated recurrent units on arrays of a device: a whole pass, as of an LSTM."""

import functools
from typing import Any, NamedTuple

from numnorm.backends.contract.norms import Scaling
from numnorm.backends.contract.recurrent import CellGradients, GRUForm, Steps
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
from numnorm.backends.cuda.recurrent.gru.backward_kernel import make_gru_backward
from numnorm.backends.cuda.recurrent.gru.forward_kernel import make_gru_forward
from numnorm.backends.cuda.recurrent.gru.gates import GATES, places
from numnorm.backends.cuda.recurrent.persistent_kernels import (
    persistent_backward,
    persistent_forward,
)
from numnorm.backends.cuda.threads.row_launch import blocks_of

_forward_kernel = functools.cache(make_gru_forward)
_backward_kernel = functools.cache(make_gru_backward)

# How many numbers for each unit the parameters besides the weights have.
_SIZES = dict.fromkeys(("bias", "beta_x", "beta_h", "gamma_x", "gamma_h"), GATES) | {"bias_h": 1}


class Saved(NamedTuple):
    """What the backward pass of a gated recurrent unit reads, rows in the order of the steps.

    Attributes
    ----------
    z, xp : array (rows, 3H)
        The products with the state and with x.
    state : array (batch + rows, H)
        The states; first those given.
    table : Table
        The statistics.
    """

    z: Any
    xp: Any
    state: Any
    table: Table


def weights(form: GRUForm, given: Any, ada: tuple[float, float]) -> Weights:
    """Return the parameters of a gated recurrent unit; the betas join the biases."""
    like = given.weight_h
    units = like.shape[1]
    two, wide = 2 * units, GATES * units

    def part(value: DeviceArray | None, start: int, stop: int) -> Any:
        return None if value is None else value.owner.rows(value.array, start, stop)

    terms = given.bias, given.beta_x, given.beta_h
    others = (
        added_up(like, (two,), *(part(p, 0, two) for p in terms)),
        added_up(like, (units,), *(part(p, two, wide) for p in terms[:2])),
        added_up(like, (units,), array_or_none(given.bias_h), part(given.beta_h, two, wide)),
        parameter_or(1.0, given.gamma_h, form.norm, 1, like, wide),
        parameter_or(1.0, given.gamma_x, form.norm, 1, like, wide),
    )
    return make_weights(given, others, norm_numbers(form.norm, ada))


def forward(
    form: GRUForm,
    scaling: Scaling,
    x: DeviceArray,
    steps: Steps,
    weights: Weights,
    states: tuple[DeviceArray, ...],
    keeps: tuple[DeviceArray | None, ...],
    save: bool,
) -> tuple[tuple[Any], Saved | None]:
    """Return all states, and what the backward pass needs."""
    owner, rows, (given,) = x.owner, x.shape[0], states
    state = new_states(x, given)
    if not rows:
        return (state,), Saved(None, None, state, Table(None, 0))
    xp = owner.product(x.array, weights.turned_x)
    arrays = xp, array_or_none(keeps[0]), state
    persistent = persistent_forward(form, x, state, given.shape[0])
    table = new_table(x, rows, places(form)) if save or persistent else Table(None, 0)
    run = persistent or _run_forward
    products = run(form, scaling, x, steps, weights, arrays, table, save=save)
    return (state,), Saved(products, xp, state, table) if save else None


def _run_forward(
    form: GRUForm,
    scaling: Scaling,
    x: DeviceArray,
    steps: Steps,
    weights: Weights,
    arrays: tuple[Any, ...],
    table: Table,
    *,
    save: bool,
) -> Any:
    """Take all steps, and return the products with the state if they are to be kept."""
    owner, state, arrays = x.owner, arrays[-1], (*arrays, table.array)
    total, units = owner.shape(state)
    batch = total - x.shape[0]
    shape = shape_for(units, x, *arrays, *weights.others)
    kernel, at = _forward_kernel(form, x.element, shape), StepArrays(x, *arrays)
    others = addresses(x, weights.others)
    numbers = (
        *weights.numbers, *scaling_numbers(scaling, 2 * units), *scaling_numbers(scaling, units)
    )  # fmt: skip
    products = []
    for start, count, before in step_places(steps, batch):
        z = owner.product(owner.rows(state, before, before + count), weights.turned_h)
        xp, keep, h, statistics = at.behind(start, start, batch + start, start)
        *_, h_before, _ = at.behind(start, start, before, start)
        queue(
            kernel, blocks_of(count, shape), x,
            (z, xp, *others, keep, h_before, h, statistics), (count, units, *numbers),
        )  # fmt: skip
        if save:
            products.append(z)
    return owner.concatenated(products) if save else None


def backward(
    form: GRUForm,
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
    rows, units, dh = x.shape[0], dstates[0].shape[1], copied(dstates[0])
    if not rows:
        return CellGradients(copied(x), (dh,), gradients_of_nothing(x, weights, units, _SIZES))
    wide = rows, GATES * units
    slopes = new(x, wide), new(x, wide)
    dz, dxp = (new(x, wide), new(x, wide)) if form.norm else slopes
    arrays = (
        saved.z, saved.xp, saved.state, saved.table.array, array_or_none(keeps[0]), dy.array,
        dz, dxp, *slopes,
    )  # fmt: skip
    run = persistent_backward(form, x, *dstates[0].shape) or _run_backward
    product = run(form, scaling, x, steps, weights, arrays, dh)
    dh = added_up(x, dstates[0].shape, product, dh)
    found = _parameter_sums(form, x, saved, slopes)
    found |= weight_gradients(x, steps, saved.state, dxp, dz)
    return CellGradients(x.owner.product(dxp, weights.x), (dh,), found)


def _run_backward(
    form: GRUForm,
    scaling: Scaling,
    x: DeviceArray,
    steps: Steps,
    weights: Weights,
    arrays: tuple[Any, ...],
    dh: Any,
) -> Any:
    """Take all steps back, and return what the first states get through the products."""
    owner, dz = x.owner, arrays[6]
    batch, units = owner.shape(dh)
    shape = shape_for(units, x, *arrays, dh, *weights.others)
    kernel, at = _backward_kernel(form, x.element, shape), StepArrays(x, *arrays)
    others = addresses(x, weights.others)
    numbers = (
        *weights.numbers,
        *flow_numbers(form.norm, scaling, 2 * units),
        *flow_numbers(form.norm, scaling, units),
    )
    last, later, product = owner.address(dh), 0, None
    for start, count, before in reversed(step_places(steps, batch)):
        z, xp, h_before, table, keep, dy, *results = at.behind(
            start, start, before, *(start,) * 7
        )  # fmt: skip
        queue(
            kernel, blocks_of(count, shape), x,
            (z, xp, h_before, table, *others, keep, dy, product, last, *results),
            (count, later, units, *numbers),
        )  # fmt: skip
        later, product = count, owner.product(owner.rows(dz, start, start + count), weights.h)
    return product


def _parameter_sums(
    form: GRUForm, x: DeviceArray, saved: Saved, slopes: tuple[Any, Any]
) -> dict[str, Any]:
    """Return the gradients of biases and norms, by name."""
    (of_z, of_x), table, units = slopes, saved.table, x.owner.shape(saved.state)[1]
    found = {}
    if form.norm is not None and form.norm.parameters > 0:
        # The rest, half as wide as both gates, begins where the second of such widths does.
        found["gamma_h"], beta_h = column_sums(x, of_z, saved.z, table, 0, 2 * units)
        found["gamma_x"], beta_x = column_sums(x, of_x, saved.xp, table, 2, 2 * units)
    else:
        (_, beta_h), (_, beta_x) = column_sums(x, of_z), column_sums(x, of_x)
    bias_h = x.owner.rows(beta_h, 2 * units, GATES * units)
    return found | {"bias": beta_x, "beta_x": beta_x, "beta_h": beta_h, "bias_h": bias_h}
