"""Stacks of layers beside PyTorch's modules: two layers, both directions, packed or not."""

import ml_dtypes
import numpy as np
import pytest
from torch_cells import LENGTHS, SIZES, assert_close, draw, module_of, module_passes, torch

from numnorm import rnn

pytestmark = pytest.mark.torch

CONVERTERS = {"LSTM": rnn.lstm_from_torch, "GRU": rnn.gru_from_torch, "RNN": rnn.rnn_from_torch}


def as_layers(states, directions):
    """PyTorch's states (layers * directions, B, H), in the structure of the layers."""
    each = list(zip(*states, strict=True))
    if directions == 1:
        return each
    return [each[n : n + 2] for n in range(0, len(each), 2)]


def of_torch(states, directions, n):
    """The n-th kind of state, as PyTorch has it."""
    each = [s for layer in states for s in (layer if directions == 2 else [layer])]
    return np.stack([s[n] for s in each])


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["even", "ragged"])
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("kind", CONVERTERS)
def test_two_layers(kind, directions, lengths):
    time, batch, inputs, hidden = SIZES.values()
    module = module_of(kind, np.float64, num_layers=2, bidirectional=directions == 2)
    from_torch = CONVERTERS[kind]
    layers = rnn.layers_from_torch(module)
    kinds = 2 if kind == "LSTM" else 1
    state = (2 * directions, batch, hidden)
    x, dy, *rest = draw(
        1, (time, batch, inputs), (time, batch, directions * hidden), *[state] * (2 * kinds)
    )
    first, dlast = rest[:kinds], rest[kinds:]
    y, last, saved = rnn.stacked_forward(
        x, layers, as_layers(first, directions), norm=None, lengths=lengths
    )
    gradients = rnn.stacked_backward(dy, saved, as_layers(dlast, directions))

    theirs = module_passes(module, from_torch, x, first, (dy, *dlast), lengths)
    assert_close(y, theirs.outputs[0])
    assert_close(gradients.dx, theirs.gradients[0])
    for n in range(kinds):
        assert_close(of_torch(last, directions, n), theirs.outputs[1 + n])
        assert_close(of_torch(gradients.states, directions, n), theirs.gradients[1 + n])
    for mine, expected in zip(gradients.layers, theirs.parameters, strict=True):
        pairs = zip(mine, expected, strict=True) if directions == 2 else [(mine, expected)]
        for of_direction, of_theirs in pairs:
            for name, value in of_theirs._asdict().items():
                assert (getattr(of_direction, name) is None) == (value is None)
                if value is not None:
                    assert_close(getattr(of_direction, name), value)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("kind", CONVERTERS)
def test_modules_in_half_precision(kind, dtype):
    """Their weights stay as they are, and the results are near those of the module in float64."""
    time, batch, inputs, _ = SIZES.values()
    module = module_of(kind, np.float32, num_layers=2, bidirectional=True)
    half = torch.bfloat16 if dtype is ml_dtypes.bfloat16 else torch.float16
    module = module.to(half)
    layers = rnn.layers_from_torch(module.state_dict(), CONVERTERS[kind])
    module = module.double()
    exact = rnn.layers_from_torch(module.state_dict(), CONVERTERS[kind])
    for one, other in zip(layers[1][1], exact[1][1], strict=True):
        if one is not None:
            assert one.dtype == dtype
            np.testing.assert_array_equal(one, other.astype(dtype))
    x = torch.from_numpy(draw(1, (time, batch, inputs))[0]).to(half)
    y = rnn.stacked(x, layers, norm=None).y
    assert y.dtype is half
    with torch.no_grad():
        expected = module(x.double())[0]
    # The sum of both biases and the states of each step are rounded, to half a unit each.
    assert (y.double() - expected).abs().max() <= 4 * float(ml_dtypes.finfo(dtype).eps)


@pytest.mark.parametrize("options", [{}, {"num_layers": 2}, {"bidirectional": True}], ids=str)
@pytest.mark.parametrize("kind", CONVERTERS)
def test_a_module_is_its_state_dict(kind, options):
    options = options | ({"proj_size": 5} if kind == "LSTM" else {})
    module = module_of(kind, np.float32, **options)
    of_module = rnn.layers_from_torch(module)
    of_state = rnn.layers_from_torch(module.state_dict(), CONVERTERS[kind])
    np.testing.assert_equal(of_module, of_state)


@pytest.mark.parametrize("module", [torch.nn.LSTMCell(2, 3), torch.nn.Sequential()], ids=str)
def test_other_modules_are_refused(module):
    with pytest.raises(TypeError, match=r"^state must be a torch\.nn\.LSTM, GRU or RNN, or a"):
        rnn.layers_from_torch(module)
