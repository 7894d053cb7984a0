"""PyTorch's compiler on its own functions, forward."""

from __future__ import annotations

import torch

from ...arrays import Arrays
from ...cases import Case
from .. import Call
from .torch import forward_of


def call_of(case: Case, arrays: Arrays) -> Call | None:
    """Return a row norm compiled for the exact shape of the case."""
    if case.direction != "forward" or case.norm == "batch_norm":
        return None
    function = forward_of(case)
    if function is None:
        return None
    # Otherwise it would reach its limit of recompilations and run the function uncompiled.
    torch.compiler.reset()
    compiled = torch.compile(function, dynamic=False)
    return Call(lambda: compiled(arrays.x, arrays.gamma, arrays.beta))
