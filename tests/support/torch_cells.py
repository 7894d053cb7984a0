"""Shared parts of the comparisons of recurrent cells with PyTorch: modules, and equations.

Without PyTorch, tests that import this are skipped.
"""

import functools
from typing import Any, NamedTuple

import numpy as np
import pytest

from numnorm import rnn

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

# Relative to the largest value, for sums of a few dozen terms in 7 steps.
TOLERANCE = {np.float32: 2e-5, np.float64: 1e-13}
SIZES = {"time": 7, "batch": 5, "inputs": 11, "hidden": 19}
LENGTHS = [7, 3, 1, 5, 7]
DTYPES = [np.float32, np.float64]


def assert_close(mine, theirs, dtype=np.float64):
    theirs = theirs.detach().numpy() if isinstance(theirs, torch.Tensor) else theirs
    assert mine.dtype == dtype
    assert mine.shape == theirs.shape
    limit = TOLERANCE[dtype] * max(1.0, np.abs(theirs).max(initial=0))
    assert np.abs(mine - theirs).max(initial=0) <= limit


class Passes(NamedTuple):
    """The results of both passes: y and last states; gradients of x and of the first states."""

    outputs: list[Any]
    gradients: list[Any]
    parameters: Any


def assert_passes_close(mine, theirs, dtype):
    for name in ("outputs", "gradients", "parameters"):
        for one, other in zip(getattr(mine, name), getattr(theirs, name), strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                assert_close(one, other, dtype)


def own_passes(cell, x, parameters, states, grads, **options):
    """Run both passes of numnorm's cell "lstm", "gru" or "rnn"."""
    forward, backward = (getattr(rnn, f"{cell}_{name}") for name in ("forward", "backward"))
    *outputs, saved = forward(x, parameters, *states, **options)
    *gradients, of_parameters = backward(grads[0], saved, *grads[1:])
    return Passes(outputs, gradients, of_parameters)


def draw(seed, *shapes, dtype=np.float64):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape).astype(dtype) for shape in shapes]


def draw_problem(seed, states, dtype):
    """Return an input, first states, and gradients of all outputs."""
    time, batch, inputs, hidden = SIZES.values()
    one = (batch, hidden)
    x, *rest = draw(
        seed, (time, batch, inputs), *[one] * states, (time, batch, hidden), *[one] * states,
        dtype=dtype,
    )  # fmt: skip
    return x, rest[:states], rest[states:]


def noisy(parameters, rng, dtype):
    """Return the parameters with noise, so that none is 0 or 1."""
    return type(parameters)(
        *(
            p if p is None else (p + rng.normal(size=p.shape) * 0.2).astype(dtype)
            for p in parameters
        )
    )


def as_tensors(arrays):
    """Return copies that require gradients."""
    return [None if a is None else torch.from_numpy(a.copy()).requires_grad_() for a in arrays]


def module_of(kind, dtype, **options):
    torch.manual_seed(0)
    module = getattr(torch.nn, kind)(SIZES["inputs"], SIZES["hidden"], **options)
    return module.to(torch.from_numpy(np.zeros(0, dtype)).dtype)


def module_passes(module, from_torch, x, states, grads, lengths=None):
    """Run a module; the states are (layers * directions, B, H), the parameters those of layers."""
    tensors = as_tensors([x, *states])
    given, *first = tensors
    if lengths is not None:
        pack = torch.nn.utils.rnn.pack_padded_sequence
        given = pack(given, torch.tensor(lengths), enforce_sorted=False)
    y, last = module(given, tuple(first) if len(first) > 1 else first[0])
    if lengths is not None:
        y, _ = torch.nn.utils.rnn.pad_packed_sequence(y, total_length=x.shape[0])
    outputs = [y, *(last if len(first) > 1 else [last])]
    torch.autograd.backward(outputs, [torch.from_numpy(a) for a in grads])
    layers = rnn.layers_from_torch(_gradients_by_name(module), from_torch)
    return Passes(outputs, [tensor.grad for tensor in tensors], layers)


def layer_passes(module, from_torch, x, states, grads, lengths=None):
    """Run a module of one layer in one direction; the states are (B, H)."""
    first, grads = [s[None] for s in states], [grads[0], *(s[None] for s in grads[1:])]
    passes = module_passes(module, from_torch, x, first, grads, lengths)
    outputs, gradients = ([a, *(s[0] for s in rest)] for a, *rest in passes[:2])
    return Passes(outputs, gradients, passes.parameters[0])


def _gradients_by_name(module):
    """Return the gradients of the parameters, without the second of two biases that are added.

    Both have the same gradient. In a GRU the reset gate multiplies the last third of the second
    one, which remains.
    """
    gradients = {name: p.grad.numpy() for name, p in module.named_parameters()}
    for name in [name for name in gradients if name.startswith("bias_hh")]:
        if isinstance(module, torch.nn.GRU):
            gradients[name][: 2 * module.hidden_size] = 0
        else:
            del gradients[name]
    return gradients


def normalized(name, x, gamma=None, beta=None):
    if name is None:
        return x
    if name == "layer":
        return torch.nn.functional.layer_norm(x, x.shape[-1:], gamma, beta)
    if name == "rms":
        return torch.nn.functional.rms_norm(x, x.shape[-1:], gamma, 1e-5)
    y = torch.nn.functional.layer_norm(x, x.shape[-1:])
    return (1 - 0.1 * y).detach() * y


def lstm_step(norm, variant, p, x, h, c):
    """The equations of all variants, for autograd."""
    of_x, of_h = x @ p.weight_x.T, h @ p.weight_h.T
    if variant == "per_gate":
        gammas = [None] * 4 if p.gamma_h is None else p.gamma_h.chunk(4)
        betas = [None] * 4 if p.beta_h is None else p.beta_h.chunk(4)
        parts = zip((of_x + of_h).chunk(4, 1), gammas, betas, strict=True)
        z = torch.cat([normalized(norm, *part) for part in parts], 1)
    elif variant == "cell_only":
        z = of_x + of_h
    else:
        z = normalized(norm, of_h, p.gamma_h, p.beta_h)
        z = z + normalized(norm, of_x, p.gamma_x, p.beta_x)
    f, i, o, g = (z + p.bias).chunk(4, 1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    of_c = normalized(norm, c, p.gamma_c, p.beta_c)
    h = torch.sigmoid(o) * torch.tanh(of_c)
    return h, of_c if variant == "normalized_cell" else c


def gru_step(norm, p, x, h):
    width = 2 * h.shape[1]

    def parts(product, gamma, beta):
        """Normalize the inputs of the gates and those of the new state separately."""
        weights = [[None] * 2 if w is None else (w[:width], w[width:]) for w in (gamma, beta)]
        both = (product[:, :width], product[:, width:])
        return [normalized(norm, *part) for part in zip(both, *weights, strict=True)]

    x_gates, x_new = parts(x @ p.weight_x.T, p.gamma_x, p.beta_x)
    h_gates, h_new = parts(h @ p.weight_h.T, p.gamma_h, p.beta_h)
    z, r = torch.sigmoid(x_gates + h_gates + p.bias[:width]).chunk(2, 1)
    new = torch.tanh(x_new + p.bias[width:] + r * (h_new + p.bias_h))
    return ((1 - z) * h + z * new,)


def rnn_step(norm, nonlinearity, p, x, h):
    z = normalized(norm, x @ p.weight_x.T + h @ p.weight_h.T, p.gamma, p.beta) + p.bias
    return (getattr(torch, nonlinearity)(z),)


def run_steps(step, x, states, keeps=None, lengths=None, reverse=False):
    """Return all states h and the last states of ``step(x, *states)``, one sequence at a time.

    `keeps` has a zoneout mask (T, B, H), or the probabilities, for each state.
    """
    time, batch, _ = x.shape
    columns, last = [], []
    for b in range(batch):
        now = [state[b : b + 1] for state in states]
        column = [torch.zeros_like(now[0])] * time
        steps = range(time if lengths is None else lengths[b])
        for t in reversed(steps) if reverse else steps:
            new = step(x[t, b : b + 1], *now)
            if keeps is not None:
                new = [
                    (1 - mask[t, b]) * n + mask[t, b] * old
                    for mask, n, old in zip(keeps, new, now, strict=True)
                ]
            now = new
            column[t] = now[0]
        columns.append(torch.stack(column))
        last.append(now)
    return [torch.cat(columns, 1), *(torch.cat(states) for states in zip(*last, strict=True))]


def step_passes(step, x, parameters, states, grads, **options):
    """Run ``step(parameters, x, *states)`` over sequences."""
    mirror = type(parameters)(*as_tensors(parameters))
    tensors = as_tensors([x, *states])
    outputs = run_steps(functools.partial(step, mirror), tensors[0], tensors[1:], **options)
    torch.autograd.backward(outputs, [torch.from_numpy(a) for a in grads])
    of_parameters = type(mirror)(*(None if p is None else p.grad for p in mirror))
    return Passes(outputs, [tensor.grad for tensor in tensors], of_parameters)
