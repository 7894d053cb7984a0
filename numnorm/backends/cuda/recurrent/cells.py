"""Recurrent cells on arrays of a device: dispatch to the functions of each kind of cell."""

from typing import Any

from numnorm.backends.contract.norms import Scaling
from numnorm.backends.contract.recurrent import (
    CellGradients,
    CellSpec,
    GRUSpec,
    LSTMSpec,
    PackedSteps,
    RNNSpec,
)
from numnorm.backends.cuda.arrays.device_array import DeviceArray
from numnorm.backends.cuda.arrays.launch import on_device_of
from numnorm.backends.cuda.recurrent.common.cell_passes import CellKind, backward, forward
from numnorm.backends.cuda.recurrent.gru import passes as gru_cells
from numnorm.backends.cuda.recurrent.lstm import passes as lstm_cells
from numnorm.backends.cuda.recurrent.rnn import passes as rnn_cells

__all__ = ["cell_backward", "cell_forward", "cell_weights", "prepared_step"]

_MODULES: dict[type, Any] = {LSTMSpec: lstm_cells, GRUSpec: gru_cells, RNNSpec: rnn_cells}


def _check_offered(spec: CellSpec) -> None:
    if isinstance(spec, GRUSpec) and not spec.reset_after:
        raise NotImplementedError("reset_after must be True on a device, got False")


def _kind(spec: CellSpec) -> CellKind:
    kind: CellKind = _MODULES[type(spec)].KIND
    return kind


def cell_weights(spec: CellSpec, given: Any, ada_scale: float, ada_k: float, keep: bool) -> Any:
    """Return the parameters of a recurrent cell in its compute dtype, as the passes take them."""
    _check_offered(spec)
    if hasattr(given, "projection"):
        raise NotImplementedError("parameters must have no projection on a device, got one")
    with on_device_of(given.weight_x):
        return _MODULES[type(spec)].weights(spec, given, (ada_scale, ada_k))


def cell_forward(
    spec: CellSpec,
    scaling: Scaling,
    x: DeviceArray,
    steps: PackedSteps,
    weights: Any,
    states: tuple[DeviceArray, ...],
    zoneout_masks: tuple[DeviceArray | None, ...],
    save: bool,
    dropout_mask: None = None,
) -> tuple[tuple[Any, ...], Any]:
    """Return the history of each state, from the first one on, and what the backward pass needs."""
    with on_device_of(x):
        return forward(_kind(spec), spec, scaling, x, steps, weights, states, zoneout_masks, save)


def prepared_step(*arguments: Any) -> None:
    """Return None: a step takes the same way as a sequence."""


def cell_backward(
    spec: CellSpec,
    scaling: Scaling,
    x: DeviceArray,
    steps: PackedSteps,
    weights: Any,
    saved: Any,
    zoneout_masks: tuple[DeviceArray | None, ...],
    dy: DeviceArray,
    dstates: tuple[DeviceArray, ...],
    dropout_mask: None = None,
) -> CellGradients:
    """Return all gradients, from the gradients of every step's h and of the last states."""
    with on_device_of(x):
        return backward(
            _kind(spec), spec, scaling, x, steps, weights, saved, zoneout_masks, dy, dstates
        )
