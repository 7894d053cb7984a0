"""The equations in PyTorch, a loop over the steps, differentiated by autograd."""

from __future__ import annotations

from typing import Any

import torch
from peers.libraries.torch import ln_lstm, ln_lstm_step

from numnorm import rnn

from ...arrays import Sequences
from ...sequences import SequenceCase
from .. import Call


def call_of(case: SequenceCase, arrays: Sequences, step: Any = ln_lstm_step) -> Call | None:
    """Return the loop with a function for its steps."""
    if case.direction == "forward":
        return Call(torch.no_grad()(lambda: ln_lstm(arrays.x, arrays.parameters, step)))
    x, *parameters = (tensor.detach().requires_grad_() for tensor in (arrays.x, *arrays.parameters))
    given = rnn.LSTMParameters(*parameters)
    return Call(lambda: torch.autograd.grad(ln_lstm(x, given, step), [x, *parameters], arrays.dy))
