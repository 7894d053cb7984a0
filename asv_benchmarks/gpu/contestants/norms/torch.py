"""PyTorch's own kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from ...arrays import Arrays
from ...cases import Case
from .. import Call


def call_of(case: Case, arrays: Arrays) -> Call | None:
    """Return a function of PyTorch, or its gradient from what the forward pass saved."""
    function = forward_of(case)
    if function is None:
        return None
    if case.direction == "forward":
        return Call(lambda: function(arrays.x, arrays.gamma, arrays.beta))
    if case.norm == "layer_norm":
        return _layer_norm_backward(case, arrays)
    return gradient_call(function, case, arrays)


def forward_of(case: Case) -> Callable[..., Any] | None:
    """Return the norm as a function of x, gamma and beta, if there is one."""
    shape = (case.width,)
    return {
        "layer_norm": lambda x, gamma, beta: functional.layer_norm(x, shape, gamma, beta, 1e-5),
        "rms_norm": lambda x, gamma, beta: functional.rms_norm(x, shape, gamma, 1e-5),
        "batch_norm": lambda x, gamma, beta: functional.batch_norm(
            x, None, None, gamma, beta, training=True, eps=1e-5
        ),
    }.get(case.norm)


def gradient_call(function: Callable[..., Any], case: Case, arrays: Arrays) -> Call:
    """Return the backward pass of a function of x, gamma and beta, by autograd."""
    x, gamma, beta = (t.detach().requires_grad_() for t in (arrays.x, arrays.gamma, arrays.beta))
    inputs = (x, gamma) if case.norm == "rms_norm" else (x, gamma, beta)
    y = function(x, gamma, beta)
    return Call(lambda: torch.autograd.grad(y, inputs, arrays.dy, retain_graph=True))


def _layer_norm_backward(case: Case, arrays: Arrays) -> Call:
    shape, x, gamma, beta = (case.width,), arrays.x, arrays.gamma, arrays.beta
    _, mean, rstd = torch.native_layer_norm(x, shape, gamma, beta, 1e-5)
    backward, wanted = torch.ops.aten.native_layer_norm_backward, [True, True, True]
    return Call(lambda: backward(arrays.dy, x, shape, mean, rstd, gamma, beta, wanted))
