"""Stacks of layers beside PyTorch's LSTM: two layers, both directions, packed or not."""

import numpy as np
import pytest

from numnorm import rnn

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.torch

# Both sides add up a few dozen terms, through 7 steps and two layers; relative to the largest.
TOLERANCE = 1e-13
TIME, BATCH, INPUTS, HIDDEN = 7, 5, 11, 19


def assert_close(mine, theirs):
    theirs = theirs.detach().numpy() if isinstance(theirs, torch.Tensor) else theirs
    assert mine.shape == theirs.shape
    limit = TOLERANCE * max(1.0, np.abs(theirs).max(initial=0))
    assert np.abs(mine - theirs).max(initial=0) <= limit


def on_their_side(module, x, states, slopes, lengths):
    """Outputs, and gradients of x and the first states, after a backward pass."""
    tensors = [torch.from_numpy(a.copy()).requires_grad_() for a in (x, *states)]
    given = tensors[0]
    if lengths is not None:
        pack = torch.nn.utils.rnn.pack_padded_sequence
        given = pack(given, torch.tensor(lengths), enforce_sorted=False)
    y, last = module(given, tuple(tensors[1:]))
    if lengths is not None:
        y, _ = torch.nn.utils.rnn.pad_packed_sequence(y, total_length=TIME)
    torch.autograd.backward([y, *last], [torch.from_numpy(a) for a in slopes])
    return (y, *last), [tensor.grad for tensor in tensors]


def as_layers(h, c, directions):
    """PyTorch's states (layers * directions, B, H), in the structure of the layers."""
    each = list(zip(h, c, strict=True))
    if directions == 1:
        return each
    return [each[n : n + 2] for n in range(0, len(each), 2)]


def of_torch(states, directions, n):
    """The n-th kind of state, as PyTorch has it."""
    each = [s for layer in states for s in (layer if directions == 2 else [layer])]
    return np.stack([s[n] for s in each])


@pytest.mark.parametrize("lengths", [None, [7, 3, 1, 5, 7]], ids=["even", "ragged"])
@pytest.mark.parametrize("directions", [1, 2])
def test_two_layers(directions, lengths):
    torch.manual_seed(0)
    module = torch.nn.LSTM(INPUTS, HIDDEN, num_layers=2, bidirectional=directions == 2).double()
    layers = rnn.layers_from_torch(module.state_dict(), rnn.lstm_from_torch)
    rng = np.random.default_rng(1)
    x = rng.normal(size=(TIME, BATCH, INPUTS))
    first, dlast = rng.normal(size=(2, 2, 2 * directions, BATCH, HIDDEN))
    dy = rng.normal(size=(TIME, BATCH, directions * HIDDEN))
    y, last, saved = rnn.stacked_forward(
        x, layers, as_layers(*first, directions), norm=None, lengths=lengths
    )
    gradients = rnn.stacked_backward(dy, saved, as_layers(*dlast, directions))

    outputs, slopes = on_their_side(module, x, first, (dy, *dlast), lengths)
    assert_close(y, outputs[0])
    assert_close(gradients.dx, slopes[0])
    for n in range(2):
        assert_close(of_torch(last, directions, n), outputs[1 + n])
        assert_close(of_torch(gradients.states, directions, n), slopes[1 + n])
    # Of the two biases one, as both have the gradient of their sum.
    theirs = rnn.layers_from_torch(
        {n: p.grad for n, p in module.named_parameters() if not n.startswith("bias_hh")},
        rnn.lstm_from_torch,
    )
    for mine, expected in zip(gradients.layers, theirs, strict=True):
        pairs = zip(mine, expected, strict=True) if directions == 2 else [(mine, expected)]
        for of_direction, of_theirs in pairs:
            for name in ("weight_x", "weight_h", "bias"):
                assert_close(getattr(of_direction, name), getattr(of_theirs, name))
