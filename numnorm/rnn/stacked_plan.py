"""The plan of a stack of recurrent layers: the cells of each layer's directions, checked."""

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from numnorm.rnn.elman import rnn, rnn_backward, rnn_forward
from numnorm.rnn.gru import gru, gru_backward, gru_forward
from numnorm.rnn.lstm import lstm, lstm_backward, lstm_forward
from numnorm.rnn.parameters import (
    GRUParameters,
    LSTMParameters,
    ProjectedLSTMParameters,
    RNNParameters,
)
from numnorm.rnn.passes import Packed


class CellFunctions(NamedTuple):
    """The three functions of a kind of cell, and the names of its states."""

    call: Any
    forward: Any
    backward: Any
    states: tuple[str, ...]


FUNCTIONS: dict[type, CellFunctions] = {
    LSTMParameters: CellFunctions(lstm, lstm_forward, lstm_backward, ("h", "c")),
    ProjectedLSTMParameters: CellFunctions(lstm, lstm_forward, lstm_backward, ("h", "c")),
    GRUParameters: CellFunctions(gru, gru_forward, gru_backward, ("h",)),
    RNNParameters: CellFunctions(rnn, rnn_forward, rnn_backward, ("h",)),
}


def functions_of(parameters: Any) -> CellFunctions | None:
    """Return the functions of the cell with these parameters; None if there is none."""
    if isinstance(parameters, Packed):
        return FUNCTIONS[parameters.kind.parameters]
    return FUNCTIONS.get(type(parameters))


class Direction(NamedTuple):
    """One direction of a layer; its name, such as ``layers[1][0]``, is for messages."""

    name: str
    kind: CellFunctions
    parameters: Any
    reverse: bool


Plan = tuple[tuple[Direction, ...], ...]


@contextlib.contextmanager
def naming(name: str) -> Iterator[None]:
    """Prefix the errors of a cell with the name of its layer and direction."""
    try:
        yield
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{name}: {error}") from error


def planned(layers: Any) -> Plan:
    """Return the directions of each layer."""
    if not isinstance(layers, list | tuple) or functions_of(layers):
        raise TypeError(
            f"layers must be a list or tuple with the parameters of each layer, got an object of "
            f"type {type(layers).__name__}"
        )
    if not layers:
        raise ValueError("layers must have at least 1 element, got none")
    return tuple(_directions(f"layers[{n}]", layer) for n, layer in enumerate(layers))


def _directions(name: str, layer: Any) -> tuple[Direction, ...]:
    kind = functions_of(layer)
    if kind:
        return (Direction(name, kind, layer, False),)
    expected = f"{', '.join(kind.__name__ for kind in FUNCTIONS)} or Packed"
    if not isinstance(layer, list | tuple):
        raise TypeError(
            f"{name} must be one of {expected}, or a pair of them, got an object of type "
            f"{type(layer).__name__}"
        )
    if len(layer) != 2:
        raise ValueError(
            f"{name} must be one of {expected}, or a pair of them, got {len(layer)} elements"
        )
    directions = []
    for n, parameters in enumerate(layer):
        kind = functions_of(parameters)
        if not kind:
            raise TypeError(
                f"{name}[{n}] must be one of {expected}, got an object of type "
                f"{type(parameters).__name__}"
            )
        directions.append(Direction(f"{name}[{n}]", kind, parameters, n == 1))
    return tuple(directions)


def by_direction(name: str, states: Any, plan: Plan) -> tuple[tuple[Any, ...], ...]:
    """Return the states of each direction of each layer, as the arguments of its call."""
    result = []
    of_layers = _elements(name, states, len(plan), "one for each layer")
    for n, (directions, value) in enumerate(zip(plan, of_layers, strict=True)):
        path = f"{name}[{n}]"
        given = [(path, value)]
        if len(directions) == 2:
            both = _elements(path, value, 2, "one for each direction")
            given = [(f"{path}[{k}]", of_direction) for k, of_direction in enumerate(both)]
        result.append(
            tuple(
                _elements(where, of_direction, len(d.kind.states), " and ".join(d.kind.states))
                for d, (where, of_direction) in zip(directions, given, strict=True)
            )
        )
    return tuple(result)


def _elements(name: str, value: Any, count: int, meaning: str) -> tuple[Any, ...]:
    """Return the elements of a tuple or list; `count` times None for None."""
    if value is None:
        return (None,) * count
    expected = f"{name} must be None or a tuple with {count} elements, {meaning}"
    if not isinstance(value, list | tuple):
        raise TypeError(f"{expected}, got an object of type {type(value).__name__}")
    if len(value) != count:
        raise ValueError(f"{expected}, got {len(value)}")
    return tuple(value)
