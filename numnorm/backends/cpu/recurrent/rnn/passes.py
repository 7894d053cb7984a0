"""Plain recurrent networks on NumPy arrays: a whole pass."""

from typing import Any, NamedTuple

import numpy as np

from numnorm.backends.contract.norms import Scaling
from numnorm.backends.contract.recurrent import CellGradients, RNNForm, Steps
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
from numnorm.backends.cpu.recurrent.rnn.backward_kernel import SECTIONS, make_rnn_backward
from numnorm.backends.cpu.recurrent.rnn.forward_kernel import make_rnn_forward
from numnorm.backends.cpu.simd.element_type import storage_of
from numnorm.memory_pool import POOL, WORKING_MEMORY


class Saved(NamedTuple):
    """What the backward pass of a plain recurrent network reads, rows in the order of the steps.

    Attributes
    ----------
    z : array (rows, H)
        The sums of the products with x and with the state.
    state : array (batch + rows, H)
        The states; first those given.
    statistics : tuple of array
        Mean and rstd of z; of size 0 without a norm.
    """

    z: Array
    state: Array
    statistics: tuple[Array, ...]


def weights(form: RNNForm, given: Any, ada: tuple[float, float], keep: bool) -> Weights:
    """Return the parameters of a plain recurrent network; beta joins the bias."""
    dtype, width = given.weight_h.dtype, given.weight_h.shape[1]
    others = (
        added_up(width, dtype, given.bias, given.beta),
        *norm_pair(form.norm, given.gamma, None, width, dtype, ada),
    )
    return make_weights(given, others, keep)


def forward(
    form: RNNForm,
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
    (z,) = tables(WORKING_MEMORY, storage.working_dtype, (rows, width))
    panels_x, panels_h = panels(weights, storage)
    (state,) = tables(POOL, storage.working_dtype, (batch + rows, width))  # the caller gets it
    state[:batch] = states[0]
    product(x, panels_x, z, storage)
    saved = Saved(z, state, statistics(rows if save and form.norm else 0))
    arguments = (
        *steps, panels_h, z, *weights.others, *scaling_numbers(scaling, width), *keeps,
        state, *saved.statistics,
    )  # fmt: skip
    run_steps(make_rnn_forward(form, storage), arguments, rows, width, batch // LEAST_ROWS)
    return (state,), saved if save else None


def backward(
    form: RNNForm,
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
    dz, slopes, weight_h = tables(
        WORKING_MEMORY,
        storage.working_dtype,
        (gradients.most_rows, width),
        (batch, width),
        packed_shape(width, width, storage),
    )
    groups = groups_of(batch, SECTIONS * width, storage)
    arguments = (
        packed(weights.h, weight_h, storage), dy, dh,
        saved.z, *weights.others, *saved.statistics, *flow_numbers(form.norm, scaling, width),
        *keeps, dz, slopes, *groups,
    )  # fmt: skip
    run_back(make_rnn_backward(form, storage), arguments, (dz, dz), groups, gradients)
    offset, gamma = np.split(groups.totals.sum(axis=0), 2)
    others = {"bias": offset, "beta": offset, "gamma": gamma}
    return CellGradients(gradients.x, (dh,), gradients.of_weights() | others)
