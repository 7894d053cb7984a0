"""`torch.nn.LSTM` with its default, TF32 products."""

from __future__ import annotations

from ...arrays import Sequences
from ...sequences import SequenceCase
from .. import Call
from .torch_nn import call_of as module_of


def call_of(case: SequenceCase, arrays: Sequences) -> Call | None:
    """Return a call of the module with TF32 products on tensor cores."""
    return module_of(case, arrays, rounded=True)
