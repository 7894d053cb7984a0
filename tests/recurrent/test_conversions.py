"""Weights of other libraries: their equations, there and back, what is refused.

The libraries themselves are asked in test_lstm_torch.py, test_gru_rnn_torch.py,
test_lstm_onnx.py and test_gru_rnn_onnx.py.
"""

import ml_dtypes
import numpy as np
import pytest
import recurrent_reference as recurrent
from recurrent_reference import sigmoid

from numnorm import rnn

GATES = {"lstm": 4, "gru": 3, "rnn": 1}
LIBRARIES = ["torch", "onnx"]
INPUTS, HIDDEN = 3, 2


def call(kind, direction, library):
    return getattr(rnn, f"{kind}_{direction}_{library}")


def drawn(kind, library, dtype=np.float64):
    """Weights and two biases, as the library has them, none of them special."""
    rng, rows = np.random.default_rng(0), GATES[kind] * HIDDEN
    w, r = rng.normal(size=(rows, INPUTS)), rng.normal(size=(rows, HIDDEN))
    biases = rng.normal(size=(2, rows))
    arrays = (w, r, *biases) if library == "torch" else (w[None], r[None], biases.reshape(1, -1))
    return [array.astype(dtype) for array in arrays]


# One step as torch.nn.LSTM, GRU and RNN, and the ONNX operators, are documented.


def peer_lstm(library, of_x, of_h, h, c):
    z = of_x + of_h
    if library == "torch":
        i, f, g, o = np.split(z, 4)
    else:
        i, o, f, g = np.split(z, 4)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def peer_gru(library, of_x, of_h, h):
    x_gates, h_gates = np.split(of_x, 3), np.split(of_h, 3)
    place_r, place_z = (0, 1) if library == "torch" else (1, 0)
    r, z = (sigmoid(x_gates[place] + h_gates[place]) for place in (place_r, place_z))
    new = np.tanh(x_gates[2] + r * h_gates[2])
    return ((1 - z) * new + z * h,)


def peer_rnn(library, of_x, of_h, h):
    return (np.tanh(of_x + of_h),)


PEERS = {"lstm": peer_lstm, "gru": peer_gru, "rnn": peer_rnn}


def own_step(kind, p, x, states):
    norm, p = recurrent.Norm(None, 0), p._asdict()
    if kind == "lstm":
        return recurrent.lstm_step(norm, "paper", p, x, *states)
    step = recurrent.gru_step if kind == "gru" else recurrent.rnn_step
    return (step(norm, p, x, *states),)


# ONNX has both biases in one array, or none.
@pytest.mark.parametrize(
    ("library", "given"), [("torch", 0), ("torch", 1), ("torch", 2), ("onnx", 0), ("onnx", 2)]
)
@pytest.mark.parametrize("kind", GATES)
def test_equations(kind, library, given):
    arrays = drawn(kind, library)
    w, r = (array.reshape(-1, array.shape[-1]) for array in arrays[:2])
    biases = np.array(arrays[2:]).reshape(2, -1) * np.array([[given > 0], [given > 1]])
    rng = np.random.default_rng(1)
    x, states = rng.normal(size=INPUTS), list(rng.normal(size=(1 + (kind == "lstm"), HIDDEN)))
    expected = PEERS[kind](library, w @ x + biases[0], r @ states[0] + biases[1], *states)
    kept = arrays if given == 2 else arrays[: 2 + given]
    parameters = call(kind, "from", library)(*kept)
    assert (parameters.bias is None) == (given == 0)
    for mine, theirs in zip(own_step(kind, parameters, x, states), expected, strict=True):
        # A sum of seven terms of size 1, in another order, below a sigmoid or tanh.
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-14)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("kind", GATES)
def test_there_and_back(kind, library, dtype):
    there, back = call(kind, "from", library), call(kind, "to", library)
    parameters = there(*drawn(kind, library, dtype))
    again = there(*back(parameters))
    present = {name for name, p in parameters._asdict().items() if p is not None and p.size}
    assert present == {"weight_x", "weight_h", "bias"} | ({"bias_h"} if kind == "gru" else set())
    for name in present:
        mine, before = getattr(again, name), getattr(parameters, name)
        assert mine.dtype == before.dtype == dtype
        np.testing.assert_array_equal(mine, before)
    # What is handed back differs from what came in nothing but the biases' sum.
    for mine, theirs in zip(back(parameters)[:2], drawn(kind, library, dtype)[:2], strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("kind", GATES)
def test_arrays_are_new(kind, library):
    arrays = drawn(kind, library)
    parameters = call(kind, "from", library)(*arrays)
    back = call(kind, "to", library)(parameters)
    own = [p for p in parameters if p is not None]
    for new, old in [(own, arrays), (back, own)]:
        assert not any(np.shares_memory(a, b) for a in new for b in old)


@pytest.mark.parametrize("kind", GATES)
def test_biases_that_are_missing_are_zeros_elsewhere(kind):
    w, r, *_ = drawn(kind, "torch", np.float32)
    bare = call(kind, "from", "torch")(w, r)
    assert all(p is None or p.size == 0 for p in bare[2:])
    *_, first, second = call(kind, "to", "torch")(bare)
    *_, both = call(kind, "to", "onnx")(bare)
    for bias in (first, second, both):
        assert bias.dtype == np.float32
        assert not bias.any()


def test_integers_become_float64():
    # An unsigned 1 has no negative.
    weights = np.ones((6, 3), np.uint8), np.ones((6, 2), bool)
    parameters = rnn.gru_from_torch(*weights)
    np.testing.assert_array_equal(parameters.weight_x[:, 0], [-1, -1, 1, 1, 1, 1])
    assert parameters.weight_h.dtype == np.float64


def test_layers_by_the_names_of_pytorch():
    w, r, b, b_h = drawn("gru", "torch")
    state = {"weight_ih_l0": w, "weight_hh_l0": r, "bias_ih_l0": b, "bias_hh_l0": b_h}
    (layer,) = rnn.layers_from_torch(state, rnn.gru_from_torch)
    expected = rnn.gru_from_torch(w, r, b, b_h)
    for mine, theirs in zip(layer[:4], expected[:4], strict=True):
        np.testing.assert_array_equal(mine, theirs)
    with pytest.raises(ValueError, match=r"l0: weight_hh must have shape \(H, H\), got \(6, 2\)"):
        rnn.layers_from_torch(state, rnn.rnn_from_torch)


W, R = np.zeros((6, 3)), np.zeros((6, 2))
MESSAGES = {
    "weight_hh must have shape (3H, H), got (5, 2)": lambda: rnn.gru_from_torch(W, R[:5]),
    "weight_hh must have shape (4H, H), got (6, 2)": lambda: rnn.lstm_from_torch(W, R),
    "weight_hh must have shape (H, H), got (6, 2)": lambda: rnn.rnn_from_torch(W, R),
    "weight_ih must have shape (6, I), got (5, 3)": lambda: rnn.gru_from_torch(W[:5], R),
    "weight_hr must have shape (2, 3), that of weight_hh, got (3, 2)": lambda: rnn.lstm_from_torch(
        np.zeros((12, 3)), np.zeros((12, 2)), weight_hr=np.zeros((3, 2))
    ),
    "weight_hr must have shape (2, 3), that of weight_hh, got (6,)": lambda: rnn.lstm_from_torch(
        np.zeros((12, 3)), np.zeros((12, 2)), weight_hr=np.zeros(6)
    ),
    "weight_hh must have shape (4H, P), got (6, 2)": lambda: rnn.lstm_from_torch(
        W, R, weight_hr=np.zeros((2, 3))
    ),
    "projection must have shape (2, 3), that of weight_h, got (3, 2)": lambda: rnn.lstm_to_torch(
        rnn.ProjectedLSTMParameters(np.zeros((12, 3)), np.zeros((12, 2)), np.zeros((3, 2)))
    ),
    "bias_hh must have shape (6,), that of the gates, got (4,)": lambda: rnn.gru_from_torch(
        W, R, np.zeros(6), np.zeros(4)
    ),
    "weight_ih must have dtype float16, bfloat16, float32, float64, an integer": lambda: (
        rnn.gru_from_torch(W * 1j, R)
    ),
    "w must have 3 axes, the first of size 1, got (6, 3)": lambda: rnn.gru_from_onnx(W, R),
    "r must have 3 axes, the first of size 1, got (2, 6, 2)": lambda: rnn.gru_from_onnx(
        W[None], np.stack([R, R])
    ),
    "b must have shape (12,), two biases of the gates, got (6,)": lambda: rnn.gru_from_onnx(
        W[None], R[None], np.zeros((1, 6))
    ),
    "parameters must be a GRUParameters, got an object of type LSTMParameters": lambda: (
        rnn.gru_to_torch(rnn.LSTMParameters(W, R))
    ),
    "parameters must be an RNNParameters, got an object of type GRUParameters": lambda: (
        rnn.rnn_to_onnx(rnn.GRUParameters(W, R))
    ),
    "bias_h must have shape (2,), that of the units, got (6,)": lambda: rnn.gru_to_torch(
        rnn.GRUParameters(W, R, bias_h=np.zeros(6))
    ),
    "weight_h must have shape (3H, H), got (6, 3)": lambda: rnn.gru_to_onnx(
        rnn.GRUParameters(W, W)
    ),
}


@pytest.mark.parametrize("message", MESSAGES)
def test_errors(message):
    with pytest.raises((TypeError, ValueError)) as caught:
        MESSAGES[message]()
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
