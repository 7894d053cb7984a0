"""Weights of Keras: its layers by their equations, there and back, and what is refused.

The equations are those of the documentation of Keras 3 (LSTM, GRU, SimpleRNN, Bidirectional), in
float64; test_keras_layers.py asks Keras itself.
"""

import ml_dtypes
import numpy as np
import pytest
from recurrent_reference import sigmoid

from numnorm import rnn

TIME, BATCH, INPUTS, HIDDEN = 5, 3, 4, 2
GATES = {"lstm": 4, "gru": 3, "rnn": 1}
# A few sums of some products below sigmoids and tanhs, in another order.
CLOSE = {"rtol": 0, "atol": 1e-13}
# What a layer may have.
BIASES = {"bias": True, "no bias": False}


def drawn(kind, bias=True, reset_after=True, dtype=np.float64, inputs=INPUTS, seed=0):
    """Return what ``layer.get_weights()`` returns for a layer."""
    rng, columns = np.random.default_rng(seed), GATES[kind] * HIDDEN
    shapes = [(inputs, columns), (HIDDEN, columns)]
    if bias:
        shapes.append((2, columns) if kind == "gru" and reset_after else (columns,))
    return [rng.normal(size=shape).astype(dtype) for shape in shapes]


def keras_lstm(weights, x):
    kernel, recurrent_kernel, bias = [*weights, 0][:3]
    h = c = np.zeros((x.shape[1], len(recurrent_kernel)))
    y = []
    for step in x:
        i, f, new, o = np.split(step @ kernel + h @ recurrent_kernel + bias, 4, axis=-1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(new)
        h = sigmoid(o) * np.tanh(c)
        y.append(h)
    return np.array(y), h, c


def keras_gru(weights, x, reset_after=True):
    kernel, recurrent_kernel, bias = [*weights, np.zeros(2)][:3]
    of_input, of_state = bias if reset_after else (bias, 0)
    if not reset_after and len(weights) == 2:
        of_input = 0
    h, y = np.zeros((x.shape[1], len(recurrent_kernel))), []
    part = len(recurrent_kernel)
    for step in x:
        x_z, x_r, x_h = np.split(step @ kernel + of_input, 3, axis=-1)
        h_z, h_r, h_h = np.split(h @ recurrent_kernel + of_state, 3, axis=-1)
        z, r = sigmoid(x_z + h_z), sigmoid(x_r + h_r)
        inner = r * h_h if reset_after else (r * h) @ recurrent_kernel[:, 2 * part :]
        h = z * h + (1 - z) * np.tanh(x_h + inner)
        y.append(h)
    return np.array(y), h


def keras_rnn(weights, x, activation=np.tanh):
    kernel, recurrent_kernel, bias = [*weights, 0][:3]
    h, y = np.zeros((x.shape[1], len(recurrent_kernel))), []
    for step in x:
        h = activation(step @ kernel + h @ recurrent_kernel + bias)
        y.append(h)
    return np.array(y), h


X = np.random.default_rng(7).normal(size=(TIME, BATCH, INPUTS))


@pytest.mark.parametrize("bias", BIASES.values(), ids=BIASES)
def test_lstm(bias):
    weights = drawn("lstm", bias)
    parameters = rnn.lstm_from_keras(*weights)
    assert (parameters.bias is None) == (not bias)
    for mine, theirs in zip(
        rnn.lstm(X, parameters, norm=None), keras_lstm(weights, X), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, **CLOSE)


@pytest.mark.parametrize("reset_after", [True, False])
@pytest.mark.parametrize("bias", BIASES.values(), ids=BIASES)
def test_gru(bias, reset_after):
    weights = drawn("gru", bias, reset_after)
    parameters = rnn.gru_from_keras(*weights)
    mine = rnn.gru(X, parameters, norm=None, reset_after=reset_after)
    for one, other in zip(mine, keras_gru(weights, X, reset_after), strict=True):
        np.testing.assert_allclose(one, other, **CLOSE)


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
@pytest.mark.parametrize("bias", BIASES.values(), ids=BIASES)
def test_rnn(bias, nonlinearity):
    weights = drawn("rnn", bias)
    activation = np.tanh if nonlinearity == "tanh" else lambda z: np.maximum(z, 0)
    mine = rnn.rnn(X, rnn.rnn_from_keras(*weights), norm=None, nonlinearity=nonlinearity)
    for one, other in zip(mine, keras_rnn(weights, X, activation), strict=True):
        np.testing.assert_allclose(one, other, **CLOSE)


CELLS = {"lstm": keras_lstm, "gru": keras_gru, "rnn": keras_rnn}


@pytest.mark.parametrize("bias", BIASES.values(), ids=BIASES)
@pytest.mark.parametrize("kind", CELLS)
def test_stack_with_both_directions(kind, bias):
    """Bidirectional turns the outputs of the backward layer around, and concatenates them."""
    first = drawn(kind, bias) + drawn(kind, bias, seed=1)
    second = drawn(kind, bias, inputs=2 * HIDDEN, seed=2)
    layers = rnn.layers_from_keras([first, second], getattr(rnn, f"{kind}_from_keras"))
    half, cell = len(first) // 2, CELLS[kind]
    backward = cell(first[half:], X[::-1])[0][::-1]
    between = np.concatenate([cell(first[:half], X)[0], backward], axis=-1)
    np.testing.assert_allclose(
        rnn.stacked(X, layers, norm=None).y, cell(second, between)[0], **CLOSE
    )


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("reset_after", [True, False])
@pytest.mark.parametrize("kind", CELLS)
def test_there_and_back(kind, reset_after, dtype):
    weights = drawn(kind, True, reset_after, dtype)
    parameters = getattr(rnn, f"{kind}_from_keras")(*weights)
    options = {"reset_after": reset_after} if kind == "gru" else {}
    back = getattr(rnn, f"{kind}_to_keras")(parameters, **options)
    for n, (mine, theirs) in enumerate(zip(back, weights, strict=True)):
        assert mine.dtype == theirs.dtype == dtype
        assert mine.flags.c_contiguous
        assert not np.shares_memory(mine, theirs)
        if n < 2 or not (kind == "gru" and reset_after):
            np.testing.assert_array_equal(mine, theirs)
    # Two biases of a gate are one sum: the layer is the same, and from then on its weights are.
    again = getattr(rnn, f"{kind}_from_keras")(*back)
    for one, other in zip(again, parameters, strict=True):
        np.testing.assert_array_equal(one, other)


def test_bias_inside_the_product_moves_out_where_nothing_scales_it():
    parameters = rnn.gru_from_keras(*drawn("gru"))
    assert parameters.bias_h.any()
    weights = rnn.gru_to_keras(parameters, reset_after=False)
    mine = rnn.gru(X, parameters, norm=None, reset_after=False)
    for one, other in zip(mine, keras_gru(weights, X, reset_after=False), strict=True):
        np.testing.assert_allclose(one, other, **CLOSE)


def test_biases_that_are_missing_are_zeros_in_keras():
    for kind in CELLS:
        bare = getattr(rnn, f"{kind}_from_keras")(*drawn(kind, False, dtype=np.float32))
        *_, bias = getattr(rnn, f"{kind}_to_keras")(bare)
        assert bias.dtype == np.float32
        assert bias.shape == drawn(kind)[2].shape
        assert not bias.any()


@pytest.mark.parametrize("kind", CELLS)
def test_a_norm_raises(kind):
    parameters = getattr(rnn, f"{kind}_from_keras")(*drawn(kind))
    for norm in ({}, {"norm": "rms"}, {"norm": "ada"}):
        with pytest.raises(ValueError, match="norm must be None for parameters"):
            getattr(rnn, kind)(X, parameters, **norm)


def test_arrays_are_new():
    for kind in CELLS:
        weights = drawn(kind)
        parameters = getattr(rnn, f"{kind}_from_keras")(*weights)
        own = [p for p in parameters if p is not None]
        assert not any(np.shares_memory(a, b) for a in own for b in weights)
        assert all(p.flags.c_contiguous for p in own)


K, R = np.zeros((4, 6)), np.zeros((2, 6))
LSTM = rnn.lstm_init(2, 2, rng=np.random.default_rng(0), norm=None)
MESSAGES = {
    "recurrent_kernel must have shape (H, 3H), got (4, 6)": lambda: rnn.gru_from_keras(R, K),
    "recurrent_kernel must have shape (H, 4H), got (2, 6)": lambda: rnn.lstm_from_keras(K, R),
    "recurrent_kernel must have shape (H, H), got (6,)": lambda: rnn.rnn_from_keras(K, R[0]),
    "kernel must have shape (I, 6), got (6, 4)": lambda: rnn.gru_from_keras(K.T, R),
    "kernel must have shape (I, 6), got (6,)": lambda: rnn.gru_from_keras(np.zeros(6), R),
    "bias must have shape (6,), that of the gates, got (4,)": lambda: rnn.gru_from_keras(
        K, R, np.zeros(4)
    ),
    "bias[0] must have shape (6,), that of the gates, got (4,)": lambda: rnn.gru_from_keras(
        K, R, np.zeros((2, 4))
    ),
    "bias must have shape (2, 3H), or (3H,) without reset_after, got (3, 6)": lambda: (
        rnn.gru_from_keras(K, R, np.zeros((3, 6)))
    ),
    "bias must have shape (8,), that of the gates, got (2, 8)": lambda: rnn.lstm_from_keras(
        np.zeros((4, 8)), np.zeros((2, 8)), np.zeros((2, 8))
    ),
    "kernel must have dtype float16, bfloat16, float32": lambda: rnn.gru_from_keras(K * 1j, R),
    "parameters must be a GRUParameters, got an object of type LST": lambda: rnn.gru_to_keras(LSTM),
    "parameters must have no projection for Keras, got one": lambda: rnn.lstm_to_keras(
        rnn.lstm_init(3, 4, rng=np.random.default_rng(0), norm=None, proj_size=2)
    ),
    "reset_after must be True or False, got 1": lambda: rnn.gru_to_keras(
        rnn.gru_from_keras(K, R), reset_after=1
    ),
    "weights must be a list or tuple, a list for each layer, got an object": lambda: (
        rnn.layers_from_keras(K, rnn.gru_from_keras)
    ),
    "weights[0] must be a list or tuple, the arrays of layer.get_weights(), got an": lambda: (
        rnn.layers_from_keras([K, R], rnn.gru_from_keras)
    ),
    "from_keras must be a function, such as lstm_from_keras, got 'gru'": lambda: (
        rnn.layers_from_keras([[K, R]], "gru")
    ),
    "weights[1]: recurrent_kernel must have shape (H, 3H), got (4, 6)": lambda: (
        rnn.layers_from_keras([[K, R], [R, K]], rnn.gru_from_keras)
    ),
    "weights[0], direction 1: kernel must have shape (I, 6), got (4, 5)": lambda: (
        rnn.layers_from_keras([[K, R, K[:, :5], R]], rnn.gru_from_keras)
    ),
    # As of a whole model with two layers.
    "weights[0] must be one layer, whose directions have the same inputs, got ker": lambda: (
        rnn.layers_from_keras([[K, R, R, R]], rnn.gru_from_keras)
    ),
}


@pytest.mark.parametrize("message", MESSAGES)
def test_errors(message):
    with pytest.raises((TypeError, ValueError)) as caught:
        MESSAGES[message]()
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_gru_with_one_bias_is_not_run_with_reset_after():
    """Nothing else in the weights says that ``reset_after`` was False."""
    weights = drawn("gru", reset_after=False)
    layer = rnn.gru_from_keras(*weights)
    expected = keras_gru(weights, X, reset_after=False)[0]
    copy = layer._replace(weight_x=layer.weight_x + 0)
    for parameters in (layer, copy):
        y = rnn.gru(X, parameters, norm=None, reset_after=False).y
        np.testing.assert_allclose(y, expected, **CLOSE)
    for call in (
        lambda: rnn.gru(X, layer, norm=None),
        lambda: rnn.gru_cell(X[0], layer, norm=None),
        lambda: rnn.gru_pack(layer, norm=None),
        lambda: rnn.stacked(X, [layer], norm=None),
        lambda: rnn.gru_to_torch(layer),
        lambda: rnn.gru_to_keras(layer),
    ):
        with pytest.raises(ValueError, match=r"reset_after must be False .*bias_h has size 0"):
            call()
    # Training goes on: the gradient has the same size.
    y, _, saved = rnn.gru_forward(X, layer, norm=None, reset_after=False)
    gradients = rnn.gru_backward(np.ones_like(y), saved).parameters
    assert gradients.bias_h.shape == (0,)
    assert gradients.bias.shape == (3 * HIDDEN,)
