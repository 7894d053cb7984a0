"""numnorm."""

from __future__ import annotations

from numnorm import rnn

from ...arrays import Sequences
from ...sequences import SequenceCase
from .. import Call


def call_of(case: SequenceCase, arrays: Sequences) -> Call | None:
    """Return a pass of numnorm."""
    x, parameters = arrays.x, arrays.parameters
    if case.direction == "forward":
        return Call(lambda: rnn.lstm(x, parameters).y)

    def both() -> list[object]:
        gradients = rnn.lstm_backward(arrays.dy, rnn.lstm_forward(x, parameters).saved)
        return [gradients.dx, *gradients.parameters]

    return Call(both)
