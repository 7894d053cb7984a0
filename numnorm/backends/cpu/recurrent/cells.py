"""Recurrent cells on NumPy arrays: whose functions serve which form."""

from typing import Any

import numpy as np

from numnorm.backends.contract.norms import Scaling
from numnorm.backends.contract.recurrent import (
    CellForm,
    CellGradients,
    GRUForm,
    LSTMForm,
    RNNForm,
    Steps,
)
from numnorm.backends.cpu.memory.host_arrays import Array
from numnorm.backends.cpu.recurrent.gru import passes as gru_cells
from numnorm.backends.cpu.recurrent.lstm import passes as lstm_cells
from numnorm.backends.cpu.recurrent.rnn import passes as rnn_cells
from numnorm.backends.cpu.simd.element_type import storage_of

_HOMES: dict[type, Any] = {LSTMForm: lstm_cells, GRUForm: gru_cells, RNNForm: rnn_cells}


def working(x: Array) -> Array:
    """Return an array in the dtype that it is computed in, C-contiguous."""
    return np.ascontiguousarray(x, storage_of(x.dtype).working_dtype)


def cell_weights(form: CellForm, given: Any, ada_scale: float, ada_k: float, keep: bool) -> Any:
    """Return the parameters of a recurrent cell as its forward pass takes them."""
    return _HOMES[type(form)].weights(form, given, (ada_scale, ada_k), keep)


def cell_forward(
    form: CellForm,
    scaling: Scaling,
    x: Array,
    steps: Steps,
    weights: Any,
    states: tuple[Array, ...],
    keeps: tuple[Array | None, ...],
    save: bool,
) -> tuple[tuple[Array, ...], Any]:
    """Return the history of each state, those given first, and what the backward pass needs."""
    home = _HOMES[type(form)]
    history, saved = home.forward(form, scaling, x, steps, weights, states, keeps, save)
    if not save:
        # The others are in memory that is used again.
        history = history[0], *(h.copy() for h in history[1:])
    return history, saved


def cell_backward(
    form: CellForm,
    scaling: Scaling,
    x: Array,
    steps: Steps,
    weights: Any,
    saved: Any,
    keeps: tuple[Array | None, ...],
    dy: Array,
    dstates: tuple[Array, ...],
) -> CellGradients:
    """Return all gradients, from those of every state h and of the last states."""
    home = _HOMES[type(form)]
    found: CellGradients = home.backward(
        form, scaling, x, steps, weights, saved, keeps, dy, dstates
    )
    return found
