"""The same loop in PyTorch, its step compiled."""

from __future__ import annotations

import torch
from peers.libraries.torch import ln_lstm_step

from ...arrays import Sequences
from ...sequences import SequenceCase
from .. import Call
from .torch import call_of as loop_of


def call_of(case: SequenceCase, arrays: Sequences) -> Call | None:
    """Return the loop, which is not compiled as a whole because that takes minutes."""
    torch.compiler.reset()
    return loop_of(case, arrays, torch.compile(ln_lstm_step, dynamic=False))
