"""PyTorch's `torch.nn.LSTM` without norms: the yardstick of recurrent cells."""

from __future__ import annotations

from typing import Any

import torch

from numnorm import rnn

from ..arrays import Array, Sequences
from ..cases import Case
from . import Call

PACKAGES = ("torch", "numpy")

start = torch.set_num_threads


def call_of(case: Case, arrays: Any) -> Call | None:
    """Return a call of the module; its result is not checked against a cell with norms."""
    if case.family != "cells":
        return None
    call = _lstm(case, arrays)
    return call if case.norm == "lstm" else call._replace(arrays=None)


def _lstm(case: Case, arrays: Sequences) -> Call:
    x, dy = (torch.from_numpy(array).clone() for array in arrays[:2])
    module = torch.nn.LSTM(*case.shape[2:])
    weights = rnn.lstm_to_torch(arrays.parameters)
    for parameter, values in zip(module.parameters(), weights, strict=True):
        parameter.data.copy_(torch.from_numpy(values))
    if case.direction == "forward":
        return Call(torch.no_grad()(lambda: module(x)[0]), lambda y: [_array(y)])
    inputs = [x.requires_grad_(), *module.parameters()]
    return Call(lambda: torch.autograd.grad(module(x)[0], inputs, dy), _gradients)


def _gradients(gradients: Any) -> list[Array]:
    # Both biases have the same gradient; numnorm has only one bias.
    dx, *weights, _ = map(_array, gradients)
    return [dx, *rnn.lstm_from_torch(*weights)[:3]]


def _array(tensor: torch.Tensor) -> Array:
    return tensor.detach().to(torch.float64).numpy()
