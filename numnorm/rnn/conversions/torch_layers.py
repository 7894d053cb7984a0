"""Conversion of all layers of a recurrent module of PyTorch, or of its ``state_dict``."""

import itertools
import sys
from collections.abc import Callable, Mapping
from typing import Any

from numnorm.arguments import brief
from numnorm.rnn.conversions.torch import gru_from_torch, lstm_from_torch, rnn_from_torch
from numnorm.rnn.stacked_plan import naming

_KINDS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
_MODULES: dict[str, Callable[..., Any]] = {
    "LSTM": lstm_from_torch,
    "GRU": gru_from_torch,
    "RNN": rnn_from_torch,
}


def layers_from_torch(state: Any, from_torch: Callable[..., Any] | None = None) -> list[Any]:
    """Return the layers of a recurrent module of PyTorch, for `stacked` with ``norm=None``.

    Its `batch_first`, and the `nonlinearity` of an RNN, are arguments of `stacked`.

    Parameters
    ----------
    state : torch.nn.LSTM, GRU or RNN, or mapping of str to array_like
        The module, or its ``state_dict()``: ``weight_ih_l0``, ``bias_hh_l1_reverse`` and so on. If
        that is of a larger module, select a part:
        ``{n.removeprefix("lstm."): a for n, a in state.items() if n.startswith("lstm.")}``.
    from_torch : callable, optional
        Converts one direction of one layer, such as `lstm_from_torch`. A module needs none.

    Returns
    -------
    list
        For each layer the result of `from_torch`; a pair for both directions.

    Raises
    ------
    TypeError
        If `state` is neither, or `from_torch` cannot be called.
    ValueError
        If a name is missing, if `stacked` does not support one, or if an array has a wrong shape.

    Examples
    --------
    >>> import numpy as np
    >>> from numnorm import rnn
    >>> state = {  # as from torch.nn.LSTM(3, 2, num_layers=2, bias=False).state_dict()
    ...     "weight_ih_l0": np.ones((8, 3)), "weight_hh_l0": np.ones((8, 2)),
    ...     "weight_ih_l1": np.ones((8, 2)), "weight_hh_l1": np.ones((8, 2)),
    ... }
    >>> layers = rnn.layers_from_torch(state, rnn.lstm_from_torch)
    >>> rnn.stacked(np.ones((5, 1, 3)), layers, norm=None).y.shape
    (5, 1, 2)
    """
    if (convert := _converter_of(state)) is not None:
        state, from_torch = state.state_dict(), from_torch or convert
    if not isinstance(state, Mapping):
        raise TypeError(
            f"state must be a torch.nn.LSTM, GRU or RNN, or a state_dict(), got {brief(state)}"
        )
    if not callable(from_torch):
        raise TypeError(
            f"from_torch must be a function, such as lstm_from_torch, got {brief(from_torch)}"
        )
    count = next(n for n in itertools.count() if n and f"weight_ih_l{n}" not in state)
    suffixes = ("", "_reverse") if "weight_ih_l0_reverse" in state else ("",)
    layers = [[f"_l{n}{suffix}" for suffix in suffixes] for n in range(count)]
    kinds = _kinds(state)
    known = {kind + suffix for layer in layers for suffix in layer for kind in kinds}
    for name in state:
        if name not in known:
            raise ValueError(
                f"state must have nothing but {', '.join(kinds)} of {count} x {len(suffixes)} "
                f"layers and directions, from 'weight_ih_l0' on, got {name!r}"
            )
    result = []
    for layer in layers:
        directions = tuple(_direction(state, suffix, from_torch) for suffix in layer)
        result.append(directions if len(directions) == 2 else directions[0])
    return result


def _converter_of(module: Any) -> Callable[..., Any] | None:
    """Return what converts a layer of a recurrent module; None for anything else."""
    classes = sys.modules.get("torch.nn")  # whoever has a module has imported it
    for name, convert in _MODULES.items():
        if classes is not None and isinstance(module, getattr(classes, name)):
            return convert
    return None


def _kinds(state: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the arrays of each direction, without suffix."""
    return (*_KINDS, "weight_hr") if "weight_hr_l0" in state else _KINDS


def _direction(state: Mapping[str, Any], suffix: str, from_torch: Callable[..., Any]) -> Any:
    for kind in _KINDS[:2]:
        if kind + suffix not in state:
            raise ValueError(f"state must have {kind + suffix!r}, which is missing")
    with naming(suffix.removeprefix("_")):
        return from_torch(*(state.get(kind + suffix) for kind in _kinds(state)))
