"""LSTM on NumPy arrays: a whole pass."""

from typing import Any, NamedTuple

import numpy as np

from numnorm.backends.contract.norms import Scaling
from numnorm.backends.contract.recurrent import CellGradients, LSTMForm, Steps
from numnorm.backends.cpu.matmul.matmul import packed, packed_shape, product
from numnorm.backends.cpu.memory.host_arrays import Array
from numnorm.backends.cpu.memory.placement import tables
from numnorm.backends.cpu.recurrent.common.cell_norm import NUMBERS
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
from numnorm.backends.cpu.recurrent.lstm.backward_kernel import SECTIONS, make_lstm_backward
from numnorm.backends.cpu.recurrent.lstm.forward_kernel import make_lstm_forward
from numnorm.backends.cpu.recurrent.lstm.gates import NORMS
from numnorm.backends.cpu.simd.element_type import storage_of
from numnorm.memory_pool import POOL, WORKING_MEMORY

# From so many rows on, x is multiplied in the steps: its products are still in cache then.
_LEAST_FUSED = 8


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
    statistics : tuple of array
        Mean and rstd of z, of xp and of the cell; of size 0 where there is no norm.
    """

    z: Array
    xp: Array | None
    cell: Array
    carried: Array
    state: Array
    statistics: tuple[Array, ...]


def weights(form: LSTMForm, given: Any, ada: tuple[float, float], keep: bool) -> Weights:
    """Return the parameters of an LSTM; the betas of the products join the bias."""
    dtype, hidden = given.weight_h.dtype, given.weight_h.shape[1]
    beta_c = given.beta_c
    if form.cell is not None and form.cell.parameters == 2 and beta_c is None:
        beta_c = np.zeros(hidden, dtype)
    of_x = form.gates if form.by_product else None
    others = (
        added_up(4 * hidden, dtype, given.bias, given.beta_x, given.beta_h),
        *norm_pair(form.gates, given.gamma_h, None, 4 * hidden, dtype, ada),
        *norm_pair(of_x, given.gamma_x, None, 4 * hidden, dtype, ada),
        *norm_pair(form.cell, given.gamma_c, beta_c, hidden, dtype, ada),
    )
    return make_weights(given, others, keep)


def forward(
    form: LSTMForm,
    scaling: Scaling,
    x: Array,
    steps: Steps,
    weights: Weights,
    states: tuple[Array, ...],
    keeps: tuple[Array | None, ...],
    save: bool,
) -> tuple[tuple[Array, Array], Saved | None]:
    """Return all states and cells; if nothing is saved, the cells are the last ones alone."""
    storage = storage_of(x.dtype)
    h, c = states
    rows, (batch, width) = x.shape[0], h.shape
    fused = batch >= _LEAST_FUSED
    kept, apart = rows if save else batch, form.carries_normalized or form.zoneout
    xp, products, carried, other_cell = tables(
        WORKING_MEMORY,
        storage.working_dtype,
        (rows if save or not fused else batch, 4 * width),
        (kept if form.by_product else 0, 4 * width),
        (batch + rows if save else batch, width),
        (kept if apart else 0, width),
    )
    # Not with the others, which may be kept for long.
    rooms = (batch, width), (batch, NORMS * NUMBERS)
    panels_x, panels_h, out, found = panels(weights, storage, *rooms)
    (state,) = tables(POOL, storage.working_dtype, (batch + rows, width))  # the caller gets it
    state[:batch], carried[:batch] = h, c
    cell = carried[batch:] if save else carried
    if not fused:
        product(x, panels_x, xp, storage)
    saved = Saved(
        products if form.by_product else xp,
        xp if form.by_product else None,
        other_cell if apart else cell,
        carried,
        state,
        _statistics(form, rows if save else 0),
    )
    arguments = (
        *steps, panels_h, panels_x, x if fused else x[:0], saved.z, saved.xp, *weights.others,
        *scaling_numbers(scaling, 4 * width // _norms_of_gates(form)),
        *scaling_numbers(scaling, width), *keeps,
        saved.cell, carried, state, out, found, *saved.statistics,
    )  # fmt: skip
    run_steps(make_lstm_forward(form, storage), arguments, rows, width, batch // LEAST_ROWS)
    return (state, carried), saved if save else None


def _statistics(form: LSTMForm, rows: int) -> tuple[Array, ...]:
    """Return room for mean and rstd of z, of xp and of the cell."""
    return statistics(
        rows * _norms_of_gates(form) if form.gates else 0,
        rows if form.by_product else 0,
        rows if form.cell else 0,
    )


def _norms_of_gates(form: LSTMForm) -> int:
    return 4 if form.separate else 1


def backward(
    form: LSTMForm,
    scaling: Scaling,
    x: Array,
    steps: Steps,
    weights: Weights,
    saved: Saved,
    keeps: tuple[Array | None, ...],
    dy: Array,
    dstates: tuple[Array, ...],
) -> CellGradients:
    """Return all gradients; those of the last states become those of the first."""
    storage = storage_of(x.dtype)
    dh, dc = dstates
    batch, width = dh.shape
    gradients = ProductGradients(weights.x, weights.h, x, saved.state, steps, storage)
    dz, dxp, gates, dn, dcell, weight_h = tables(
        WORKING_MEMORY,
        storage.working_dtype,
        (gradients.most_rows, 4 * width),
        (gradients.most_rows if form.by_product else 0, 4 * width),
        (batch, 4 * width),
        (batch, width),
        (batch, width),
        packed_shape(4 * width, width, storage),
    )
    groups = groups_of(batch, SECTIONS * width, storage)
    arguments = (
        packed(weights.h, weight_h, storage), dy, dh, dc,
        saved.z, saved.xp, saved.cell, saved.carried, *weights.others, *saved.statistics,
        *flow_numbers(form.gates, scaling, 4 * width // _norms_of_gates(form)),
        *flow_numbers(form.cell, scaling, width), *keeps,
        dz, dxp if form.by_product else None, gates, dn, dcell, *groups,
    )  # fmt: skip
    slopes = dxp if form.by_product else dz, dz
    run_back(make_lstm_backward(form, storage), arguments, slopes, groups, gradients)
    sections = np.cumsum([4 * width, 4 * width, 4 * width, width])
    offset, gamma_h, gamma_x, gamma_c, beta_c = np.split(groups.totals.sum(axis=0), sections)
    of_norms = {"gamma_x": gamma_x, "gamma_h": gamma_h, "gamma_c": gamma_c, "beta_c": beta_c}
    added = {"bias": offset, "beta_x": offset, "beta_h": offset}
    of_weights = gradients.of_weights()
    return CellGradients(gradients.x, (dh, dc), of_weights | of_norms | added)
