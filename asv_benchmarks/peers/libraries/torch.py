"""PyTorch: its functions, or else its operators, or else autograd."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from numnorm import rnn

from ..arrays import Array, Arrays, Sequences
from ..cases import EPS, GROUPS, Case
from ..definition import K
from . import Call

PACKAGES = ("torch", "numpy")

start = torch.set_num_threads

_aten = torch.ops.aten


def call_of(case: Case, arrays: Any) -> Call | None:
    """Return the call of PyTorch's closest function, on tensors in PyTorch's own memory."""
    if case.family == "cells":
        return _ln_lstm_call(case, arrays) if case.norm == "ln_lstm" else None
    if case.family == "inverse":
        y, mean, rstd = map(_tensor, arrays.broadcast(case))
        return Call(lambda: y / rstd + mean, lambda x: [_array(x)])
    if case.family != "norms":
        return None
    tensors = Arrays(*map(_tensor, arrays))
    if case.out:
        return _layer_norm_out(tensors) if case.norm == "layer_norm" else None
    if case.direction == "forward":
        return Call(partial(_FORWARD[case.norm], tensors), lambda y: [_array(y)])
    return Call(_BACKWARD.get(case.norm, _autograd)(case, tensors), lambda gs: [*map(_array, gs)])


def _tensor(array: Array) -> torch.Tensor:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16).clone()
    return torch.from_numpy(array).clone()


def _array(tensor: torch.Tensor) -> Array:
    return tensor.detach().to(torch.float64).numpy()


# Forward


def _layer_norm(a: Arrays) -> Any:
    return F.layer_norm(a.x, a.x.shape[1:], a.gamma, a.beta, EPS)


def _standardize(a: Arrays) -> Any:
    return F.layer_norm(a.x, a.x.shape[1:], eps=0.0)


def _rms_norm(a: Arrays) -> Any:
    return F.rms_norm(a.x, a.x.shape[1:], a.gamma, EPS)


def _ada_norm(a: Arrays) -> Any:
    xhat = F.layer_norm(a.x, a.x.shape[1:], eps=EPS)
    return (1 - K * xhat).detach() * xhat


def _group_norm(a: Arrays) -> Any:
    return F.group_norm(a.x, GROUPS, a.gamma, a.beta, EPS)


def _instance_norm(a: Arrays) -> Any:
    return F.instance_norm(a.x, weight=a.gamma, bias=a.beta, eps=EPS)


def _batch_norm(a: Arrays) -> Any:
    return F.batch_norm(a.x, None, None, a.gamma, a.beta, training=True, eps=EPS)


def _batch_norm_inference(a: Arrays) -> Any:
    return F.batch_norm(a.x, a.mean, a.variance, a.gamma, a.beta, eps=EPS)


_FORWARD = {
    "layer_norm": _layer_norm,
    "standardize": _standardize,
    "rms_norm": _rms_norm,
    "ada_norm": _ada_norm,
    "group_norm": _group_norm,
    "instance_norm": _instance_norm,
    "batch_norm": _batch_norm,
    "batch_norm_inference": _batch_norm_inference,
}


def _layer_norm_out(a: Arrays) -> Call:
    arguments = (a.x, a.x.shape[1:], a.gamma, a.beta, EPS)
    y, mean, rstd = _aten.native_layer_norm(*arguments)
    run = partial(_aten.native_layer_norm.out, *arguments, out0=y, out1=mean, out2=rstd)
    return Call(run, lambda result: [_array(result[0])])


# Backward


def _layer_norm_backward(case: Case, a: Arrays) -> Any:
    width = a.x.shape[1:]
    _, *saved = _aten.native_layer_norm(a.x, width, a.gamma, a.beta, EPS)
    wanted = [True] * 3
    operator = _aten.native_layer_norm_backward
    return partial(operator, a.dy, a.x, width, *saved, a.gamma, a.beta, wanted)


def _group_norm_backward(case: Case, a: Arrays) -> Any:
    count, channels = case.shape[:2]
    extent = (count, channels, a.x.numel() // (count * channels), GROUPS)
    _, *saved = _aten.native_group_norm(a.x, a.gamma, a.beta, *extent, EPS)
    operator = _aten.native_group_norm_backward
    return partial(operator, a.dy, a.x, *saved, a.gamma, *extent, [True] * 3)


def _batch_norm_backward(case: Case, a: Arrays) -> Any:
    training = case.norm == "batch_norm"
    running = (None, None) if training else (a.mean, a.variance)
    _, *saved = _aten.native_batch_norm(a.x, a.gamma, a.beta, *running, training, 0.1, EPS)
    operator = _aten.native_batch_norm_backward
    return partial(operator, a.dy, a.x, a.gamma, *running, *saved, training, EPS, [True] * 3)


def _autograd(case: Case, a: Arrays) -> Any:
    parameters = {"rms_norm": [a.gamma], "ada_norm": []}.get(case.norm, [a.gamma, a.beta])
    inputs = [tensor.requires_grad_() for tensor in (a.x, *parameters)]
    y = _FORWARD[case.norm](a)
    return partial(torch.autograd.grad, y, inputs, a.dy, retain_graph=True)


_BACKWARD = {
    "layer_norm": _layer_norm_backward,
    "group_norm": _group_norm_backward,
    "batch_norm": _batch_norm_backward,
    "batch_norm_inference": _batch_norm_backward,
}


# Recurrent cells; `torch_nn` has the one without a norm


def _ln_lstm_call(case: Case, arrays: Sequences) -> Call:
    x, dy = map(_tensor, arrays[:2])
    parameters = rnn.LSTMParameters(*map(_tensor, arrays.parameters))
    if case.direction == "forward":
        run = torch.no_grad()(partial(ln_lstm, x, parameters))
        return Call(run, lambda y: [_array(y)])
    inputs = [tensor.requires_grad_() for tensor in (x, *parameters)]
    return Call(
        lambda: torch.autograd.grad(ln_lstm(x, parameters), inputs, dy),
        lambda gs: [*map(_array, gs)],
    )


def ln_lstm_step(
    z: torch.Tensor, h: torch.Tensor, c: torch.Tensor, p: rnn.LSTMParameters
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the next state and cell from `z`, the input's contribution to the gates."""
    gates, hidden = p.weight_h.shape
    z = z + F.layer_norm(F.linear(h, p.weight_h), (gates,), p.gamma_h, p.beta_h, EPS)
    f, i, o, g = z.chunk(4, 1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * F.layer_norm(c, (hidden,), p.gamma_c, p.beta_c, EPS).tanh(), c


def ln_lstm(x: torch.Tensor, p: rnn.LSTMParameters, step: Any = ln_lstm_step) -> torch.Tensor:
    """Return all states by the equations of the paper, with one input product for all steps."""
    gates, hidden = p.weight_h.shape
    of_x = F.layer_norm(F.linear(x, p.weight_x), (gates,), p.gamma_x, p.beta_x, EPS) + p.bias
    h = c = x.new_zeros(x.shape[1], hidden)
    states = []
    for z in of_x.unbind():
        h, c = step(z, h, c, p)
        states.append(h)
    return torch.stack(states)
