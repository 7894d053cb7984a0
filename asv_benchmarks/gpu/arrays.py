"""The input arrays of all contestants, in the device's memory."""

from __future__ import annotations

from typing import Any

from peers import arrays as peers_arrays

from numnorm import rnn

from .cases import Case
from .sequences import SequenceCase


class Arrays:
    """The inputs of a norm, made by a device: x, dy, gamma, beta, and an output array."""

    def __init__(self, device: Any, case: Case) -> None:
        shape = (case.rows, case.width)
        self.x, self.dy = device.normal(shape, case.dtype), device.normal(shape, case.dtype)
        self.gamma, self.beta = (device.normal((case.width,), case.dtype) for _ in range(2))
        self.out = device.normal(shape, case.dtype)


class Sequences:
    """The inputs of a cell, copied to a device: x, dy, and numnorm's parameters."""

    def __init__(self, device: Any, case: SequenceCase) -> None:
        drawn = peers_arrays.arrays_of(case.as_peers_case)
        self.x, self.dy = device.taken(drawn.x), device.taken(drawn.dy)
        self.parameters = rnn.LSTMParameters(*map(device.taken, drawn.parameters))


def arrays_of(device: Any, case: Case | SequenceCase) -> Arrays | Sequences:
    """Return the input arrays of a case."""
    return Arrays(device, case) if isinstance(case, Case) else Sequences(device, case)
