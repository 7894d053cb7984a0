"""LSTM beside PyTorch: its own, packed or not, and LN-LSTM written in it."""

import numpy as np
import pytest

from numnorm import rnn

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.torch

# Both sides add up a few dozen terms, through 7 steps; relative to the largest value.
TOLERANCE = {np.float32: 2e-5, np.float64: 1e-13}
SIZES = {"time": 7, "batch": 5, "inputs": 11, "hidden": 19}
DTYPES = [np.float32, np.float64]


def assert_close(mine, theirs, dtype):
    theirs = theirs.detach().numpy() if isinstance(theirs, torch.Tensor) else theirs
    assert mine.dtype == dtype
    limit = TOLERANCE[dtype] * max(1.0, np.abs(theirs).max(initial=0))
    assert np.abs(mine - theirs).max(initial=0) <= limit


def draw(seed, *shapes, dtype):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape).astype(dtype) for shape in shapes]


def torch_layer(dtype, bias):
    torch.manual_seed(0)
    layer = torch.nn.LSTM(SIZES["inputs"], SIZES["hidden"], bias=bias)
    return layer.to(torch.from_numpy(np.zeros(0, dtype)).dtype)


def of_torch(layer, attribute=lambda p: p):
    """Its parameters, or their gradients, as those of numnorm."""
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0")
    arrays = [getattr(layer, name, None) for name in names]
    return rnn.lstm_from_torch(
        *(None if p is None else attribute(p).detach().numpy() for p in arrays)
    )


@pytest.mark.parametrize("lengths", [None, [7, 3, 1, 5, 7]], ids=["even", "ragged"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_without_norm(dtype, bias, lengths):
    layer = torch_layer(dtype, bias)
    time, batch, inputs, hidden = SIZES.values()
    x, h, c, dy, dh, dc = draw(
        1, (time, batch, inputs), *[(batch, hidden)] * 2, (time, batch, hidden),
        *[(batch, hidden)] * 2, dtype=dtype,
    )  # fmt: skip
    arrays = (layer.weight_ih_l0, layer.weight_hh_l0)
    biases = (layer.bias_ih_l0, layer.bias_hh_l0) if bias else ()
    parameters = rnn.lstm_from_torch(*(p.detach().numpy() for p in (*arrays, *biases)))
    y, last_h, last_c, saved = rnn.lstm_forward(x, parameters, h, c, norm=None, lengths=lengths)
    gradients = rnn.lstm_backward(dy, saved, dh, dc)

    tx, th, tc = (torch.from_numpy(a.copy()).requires_grad_() for a in (x, h, c))
    given = tx
    if lengths is not None:
        pack = torch.nn.utils.rnn.pack_padded_sequence
        given = pack(tx, torch.tensor(lengths), enforce_sorted=False)
    ty, (tlast_h, tlast_c) = layer(given, (th[None], tc[None]))
    if lengths is not None:
        ty, _ = torch.nn.utils.rnn.pad_packed_sequence(ty, total_length=time)
    outputs = [ty, tlast_h[0], tlast_c[0]]
    slopes = [torch.from_numpy(a) for a in (dy, dh, dc)]
    torch.autograd.backward(outputs, slopes)

    for mine, theirs in zip((y, last_h, last_c), outputs, strict=True):
        assert_close(mine, theirs, dtype)
    for mine, theirs in zip(gradients[:3], (tx, th, tc), strict=True):
        assert_close(mine, theirs.grad, dtype)
    expected = of_torch(layer, lambda p: p.grad)
    for mine, theirs in zip(gradients.parameters, expected, strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None:
            assert_close(mine, theirs, dtype)


def normalized(name, x, gamma, beta):
    if name == "layer":
        return torch.nn.functional.layer_norm(x, x.shape[-1:], gamma, beta)
    if name == "rms":
        return torch.nn.functional.rms_norm(x, x.shape[-1:], gamma, 1e-5)
    y = torch.nn.functional.layer_norm(x, x.shape[-1:])
    return (1 - 0.1 * y).detach() * y


def torch_step(norm, variant, p, x, h, c):
    """The equations of the variants, for autograd."""
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


@pytest.mark.parametrize("variant", ["paper", "normalized_cell", "per_gate", "cell_only"])
@pytest.mark.parametrize("norm", ["layer", "rms", "ada"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_normalized(dtype, norm, variant):
    time, batch, inputs, hidden = SIZES.values()
    rng = np.random.default_rng(3)
    parameters = rnn.lstm_init(inputs, hidden, rng=rng, norm=norm, variant=variant, dtype=dtype)
    noisy = (p if p is None else p + rng.normal(size=p.shape) * 0.2 for p in parameters)
    parameters = rnn.LSTMParameters(*(p if p is None else p.astype(dtype) for p in noisy))
    x, h, c, dy = draw(
        4, (time, batch, inputs), *[(batch, hidden)] * 2, (time, batch, hidden), dtype=dtype
    )
    y, _, _, saved = rnn.lstm_forward(x, parameters, h, c, norm=norm, variant=variant)
    gradients = rnn.lstm_backward(dy, saved)

    mirror = rnn.LSTMParameters(
        *(None if p is None else torch.from_numpy(p.copy()).requires_grad_() for p in parameters)
    )
    tx, th, tc = (torch.from_numpy(a.copy()).requires_grad_() for a in (x, h, c))
    outputs, state, cell = [], th, tc
    for t in range(time):
        state, cell = torch_step(norm, variant, mirror, tx[t], state, cell)
        outputs.append(state)
    torch.stack(outputs).backward(torch.from_numpy(dy))
    assert_close(y, torch.stack(outputs), dtype)
    for mine, theirs in zip(gradients[:3], (tx, th, tc), strict=True):
        assert_close(mine, theirs.grad, dtype)
    for mine, theirs in zip(gradients.parameters, mirror, strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None:
            assert_close(mine, theirs.grad, dtype)


def test_conversions_there_and_back():
    layer = torch_layer(np.float32, True)
    parameters = rnn.lstm_from_torch(
        *(p.detach().numpy() for p in (layer.weight_ih_l0, layer.weight_hh_l0, layer.bias_ih_l0))
    )
    back = rnn.lstm_to_torch(parameters)
    for mine, theirs in zip(back, (layer.weight_ih_l0, layer.weight_hh_l0, layer.bias_ih_l0)):
        np.testing.assert_array_equal(mine, theirs.detach().numpy())
    again = rnn.lstm_from_onnx(*rnn.lstm_to_onnx(parameters))
    for mine, theirs in zip(again, parameters, strict=True):
        np.testing.assert_array_equal(mine, theirs)
