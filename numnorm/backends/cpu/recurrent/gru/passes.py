"""Gated recurrent units on NumPy arrays: a whole pass."""

from typing import Any, NamedTuple

import numpy as np

from numnorm.backends.contract.norms import Scaling
from numnorm.backends.contract.recurrent import CellGradients, GRUForm, Steps
from numnorm.backends.cpu.matmul.matmul import packed, packed_shape, product
from numnorm.backends.cpu.memory.host_arrays import Array
from numnorm.backends.cpu.memory.placement import tables
from numnorm.backends.cpu.recurrent.common.passes import (
    LEAST_ROWS,
    Weights,
    added_up,
    flow_numbers,
    groups_of,
    make_weights,
    norm_pair,
    panels,
    run_back,
    run_steps,
    scaling_numbers,
    statistics,
)
from numnorm.backends.cpu.recurrent.common.weight_gradients import ProductGradients
from numnorm.backends.cpu.recurrent.gru.backward_kernel import SECTIONS, make_gru_backward
from numnorm.backends.cpu.recurrent.gru.forward_kernel import make_gru_forward
from numnorm.backends.cpu.simd.element_type import storage_of
from numnorm.memory_pool import POOL, WORKING_MEMORY


class Saved(NamedTuple):
    """What the backward pass of a gated recurrent unit reads, rows in the order of the steps.

    Attributes
    ----------
    hp, xp : array (rows, 3H)
        The products with the state and with x.
    state : array (batch + rows, H)
        The states; first those given.
    statistics : tuple of array
        Mean and rstd of hp and of xp, of both gates and of the rest; of size 0 without a norm.
    """

    hp: Array
    xp: Array
    state: Array
    statistics: tuple[Array, ...]


def weights(form: GRUForm, given: Any, ada: tuple[float, float], keep: bool) -> Weights:
    """Return the parameters of a gated recurrent unit; the betas join the biases."""
    dtype, width = given.weight_h.dtype, given.weight_h.shape[1]
    gates_h, rest_h = None, None
    if given.beta_h is not None:
        gates_h = np.concatenate([given.beta_h[: 2 * width], np.zeros(width)])
        rest_h = given.beta_h[2 * width :]
    others = (
        added_up(3 * width, dtype, given.bias, given.beta_x, gates_h),
        added_up(width, dtype, given.bias_h, rest_h),
        *norm_pair(form.norm, given.gamma_h, None, 3 * width, dtype, ada),
        *norm_pair(form.norm, given.gamma_x, None, 3 * width, dtype, ada),
    )
    return make_weights(given, others, keep)


def forward(
    form: GRUForm,
    scaling: Scaling,
    x: Array,
    steps: Steps,
    weights: Weights,
    states: tuple[Array, ...],
    keeps: tuple[Array | None, ...],
    save: bool,
) -> tuple[tuple[Array], Saved | None]:
    """Return all states, and what the backward pass needs."""
    storage = storage_of(x.dtype)
    rows, (batch, width) = x.shape[0], states[0].shape
    xp, hp = tables(
        WORKING_MEMORY,
        storage.working_dtype,
        (rows, 3 * width),
        (rows if save else batch, 3 * width),
    )
    panels_x, panels_h = panels(weights, storage)
    (state,) = tables(POOL, storage.working_dtype, (batch + rows, width))  # the caller gets it
    state[:batch] = states[0]
    product(x, panels_x, xp, storage)
    normed = 2 * rows if save and form.norm else 0
    saved = Saved(hp, xp, state, statistics(normed, normed))
    arguments = (
        *steps, panels_h, hp, xp, *weights.others,
        *scaling_numbers(scaling, 2 * width), *scaling_numbers(scaling, width), *keeps,
        state, *saved.statistics,
    )  # fmt: skip
    run_steps(make_gru_forward(form, storage), arguments, rows, width, batch // LEAST_ROWS)
    return (state,), saved if save else None


def backward(
    form: GRUForm,
    scaling: Scaling,
    x: Array,
    steps: Steps,
    weights: Weights,
    saved: Saved,
    keeps: tuple[Array | None, ...],
    dy: Array,
    dstates: tuple[Array, ...],
) -> CellGradients:
    """Return all gradients; that of the last state becomes that of the first."""
    storage = storage_of(x.dtype)
    (dh,) = dstates
    batch, width = dh.shape
    gradients = ProductGradients(weights.x, weights.h, x, saved.state, steps, storage)
    dhp, dxp, slopes, slopes_h, weight_h = tables(
        WORKING_MEMORY,
        storage.working_dtype,
        (gradients.most_rows, 3 * width),
        (gradients.most_rows, 3 * width),
        (batch, 3 * width),
        (batch, width),
        packed_shape(3 * width, width, storage),
    )
    groups = groups_of(batch, SECTIONS * width, storage)
    arguments = (
        packed(weights.h, weight_h, storage), dy, dh,
        saved.hp, saved.xp, saved.state, *weights.others, *saved.statistics,
        *flow_numbers(form.norm, scaling, 2 * width), *flow_numbers(form.norm, scaling, width),
        *keeps, dhp, dxp, slopes, slopes_h, *groups,
    )  # fmt: skip
    run_back(make_gru_backward(form, storage), arguments, (dxp, dhp), groups, gradients)
    total = groups.totals.sum(axis=0)
    offset, offset_h, gamma_h, gamma_x = np.split(total, np.cumsum([3, 1, 3]) * width)
    others = {"bias": offset, "bias_h": offset_h, "gamma_h": gamma_h, "gamma_x": gamma_x}
    others |= {"beta_x": offset, "beta_h": np.concatenate([offset[: 2 * width], offset_h])}
    return CellGradients(gradients.x, (dh,), gradients.of_weights() | others)
