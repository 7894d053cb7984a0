"""The backend functions of recurrent cells; they choose the kind of cell by its spec."""

from typing import Any

import numpy as np

from numnorm.backends.contract.norms import Scaling
from numnorm.backends.contract.recurrent import (
    CellGradients,
    CellSpec,
    GRUSpec,
    LSTMSpec,
    PackedSteps,
    RNNSpec,
    Step,
)
from numnorm.backends.cpu.memory.grouped_kernel import flattened
from numnorm.backends.cpu.memory.host_arrays import Array
from numnorm.backends.cpu.recurrent.common import passes
from numnorm.backends.cpu.recurrent.gru.kind import GRU
from numnorm.backends.cpu.recurrent.kernels.kind import CellKind
from numnorm.backends.cpu.recurrent.lstm.kind import LSTM
from numnorm.backends.cpu.recurrent.rnn.kind import RNN

KINDS: dict[type, CellKind] = {LSTMSpec: LSTM, GRUSpec: GRU, RNNSpec: RNN}


def cell_weights(spec: CellSpec, given: Any, ada_scale: float, ada_k: float, keep: bool) -> Any:
    """Return a cell's parameters as `cell_forward` takes them, packed if `keep` is true."""
    return passes.make_weights(KINDS[type(spec)], spec, given, (ada_scale, ada_k), keep)


def cell_forward(
    spec: CellSpec,
    scaling: Scaling,
    x: Array,
    steps: PackedSteps,
    weights: Any,
    states: tuple[Array, ...],
    zoneout_masks: tuple[Array | None, ...],
    save: bool,
    dropout_mask: Array | None = None,
) -> tuple[tuple[Array, ...], Any]:
    """Return the history of each state, initial ones first, and what the backward pass needs."""
    kind = KINDS[type(spec)]
    history, saved = passes.forward(
        kind, spec, scaling, x, steps, weights, states, (*zoneout_masks, dropout_mask), save
    )
    if not save:
        # The cells lie in a memory pool whose memory is reused.
        history = history[0], *(h.copy() for h in history[1:])
    return history, saved


def prepared_step(
    spec: CellSpec,
    scaling: Scaling,
    x: Array,
    steps: PackedSteps,
    weights: Any,
    states: tuple[Array, ...],
) -> Step | None:
    """Return a function of one step, or None if the batch is empty or worth threads."""
    x, masks = np.empty_like(x, order="C"), (None,) * (len(states) + 1)
    call = passes.prepared(
        KINDS[type(spec)], spec, scaling, x, steps, weights, states, masks, False, True
    )
    if call.work == 0 or call.max_parts > 1:
        return None
    serial, arguments = call.kernel.serial, (*flattened(call.arguments), 1, 0, 1)
    batch, (state, *cells) = x.shape[0], call.history
    first, last = (state[:batch], *cells), (state[batch:], *cells)
    # One call at a time may use the arrays; a second one at once gets None.
    free = [arguments]

    def step(inputs: Array, given: tuple[Array | None, ...]) -> tuple[Array, ...] | None:
        try:
            own = free.pop()
        except IndexError:
            return None
        x[...] = inputs
        for array, value in zip(first, given, strict=True):
            array[...] = 0 if value is None else value
        serial(*own)
        result = tuple([array.copy() for array in last])
        free.append(own)
        return result

    return step


def cell_backward(
    spec: CellSpec,
    scaling: Scaling,
    x: Array,
    steps: PackedSteps,
    weights: Any,
    saved: Any,
    zoneout_masks: tuple[Array | None, ...],
    dy: Array,
    dstates: tuple[Array, ...],
    dropout_mask: Array | None = None,
) -> CellGradients:
    """Return all gradients from `dy`, of every state h, and `dstates`, of the last states."""
    kind = KINDS[type(spec)]
    return passes.backward(
        kind, spec, scaling, x, steps, weights, saved, (*zoneout_masks, dropout_mask), dy, dstates
    )
