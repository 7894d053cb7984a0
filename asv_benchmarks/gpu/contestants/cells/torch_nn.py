"""`torch.nn.LSTM`, cuDNN's LSTM without norms: the yardstick of the others."""

from __future__ import annotations

import torch

from ...arrays import Sequences
from ...sequences import SequenceCase
from .. import Call


def call_of(case: SequenceCase, arrays: Sequences, *, rounded: bool = False) -> Call | None:
    """Return a call of the module; with `rounded`, its products may use TF32."""
    module = torch.nn.LSTM(case.units, case.units, device=arrays.x.device)

    def forward() -> torch.Tensor:
        with torch.no_grad(), torch.backends.cudnn.flags(enabled=True, allow_tf32=rounded):
            return module(arrays.x)[0]

    x = arrays.x.detach().requires_grad_()
    inputs = [x, *module.parameters()]

    def both() -> tuple[torch.Tensor, ...]:
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=rounded):
            return torch.autograd.grad(module(x)[0], inputs, arrays.dy)

    return Call(forward if case.direction == "forward" else both)
