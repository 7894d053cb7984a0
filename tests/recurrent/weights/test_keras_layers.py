"""Layers of Keras 3, on whatever backend `KERAS_BACKEND` names, and their weights in numnorm."""

import os

import numpy as np
import pytest

from numnorm import rnn

pytestmark = [
    pytest.mark.keras,
    # Of libraries below Keras.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

TIME, BATCH, INPUTS, HIDDEN = 7, 3, 5, 6
# float32 sums of some products in another order, through seven steps.
CLOSE = {"rtol": 0, "atol": 1e-6}


@pytest.fixture(scope="module")
def keras():
    os.environ.setdefault("KERAS_BACKEND", "jax")
    return pytest.importorskip("keras")


@pytest.fixture
def x():
    return np.random.default_rng(0).standard_normal((TIME, BATCH, INPUTS), np.float32)


def disturbed(layer, x):
    """Build a layer, and let no weight of it be special, such as a bias of zeros."""
    layer(x.swapaxes(0, 1))
    rng = np.random.default_rng(1)
    layer.set_weights(
        [w + 0.3 * rng.standard_normal(w.shape, np.float32) for w in layer.get_weights()]
    )
    return layer


def outputs(keras, layer, x):
    """Return what a layer returns, of time first."""
    results = layer(x.swapaxes(0, 1))
    results = results if isinstance(results, list | tuple) else [results]
    y, *states = (keras.ops.convert_to_numpy(result) for result in results)
    return [y.swapaxes(0, 1), *states]


CASES = {
    "LSTM": ("LSTM", "lstm", {}, {}),
    "LSTM without bias": ("LSTM", "lstm", {"use_bias": False}, {}),
    "LSTM, bias of zeros": ("LSTM", "lstm", {"unit_forget_bias": False}, {}),
    "GRU": ("GRU", "gru", {}, {}),
    "GRU without bias": ("GRU", "gru", {"use_bias": False}, {}),
    "GRU, reset before": ("GRU", "gru", {"reset_after": False}, {"reset_after": False}),
    "GRU, reset before, without bias": (
        "GRU",
        "gru",
        {"reset_after": False, "use_bias": False},
        {"reset_after": False},
    ),
    "SimpleRNN": ("SimpleRNN", "rnn", {}, {}),
    "SimpleRNN, relu": ("SimpleRNN", "rnn", {"activation": "relu"}, {"nonlinearity": "relu"}),
    "SimpleRNN without bias": ("SimpleRNN", "rnn", {"use_bias": False}, {}),
}


def made(keras, case, x):
    name, kind, layer_options, options = CASES[case]
    layer = getattr(keras.layers, name)(
        HIDDEN, return_sequences=True, return_state=True, **layer_options
    )
    return kind, disturbed(layer, x), options


@pytest.mark.parametrize("case", CASES)
def test_one_layer(keras, x, case):
    kind, layer, options = made(keras, case, x)
    parameters = getattr(rnn, f"{kind}_from_keras")(*layer.get_weights())
    mine = getattr(rnn, kind)(x, parameters, norm=None, **options)
    for one, other in zip(mine, outputs(keras, layer, x), strict=True):
        np.testing.assert_allclose(one, other, **CLOSE)


@pytest.mark.parametrize("case", [case for case in CASES if "without bias" not in case])
def test_weights_go_back(keras, x, case):
    kind, layer, options = made(keras, case, x)
    before = outputs(keras, layer, x)
    parameters = getattr(rnn, f"{kind}_from_keras")(*layer.get_weights())
    after = {name: value for name, value in options.items() if name == "reset_after"}
    layer.set_weights(getattr(rnn, f"{kind}_to_keras")(parameters, **after))
    for one, other in zip(outputs(keras, layer, x), before, strict=True):
        np.testing.assert_allclose(one, other, **CLOSE)


@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("name", ["LSTM", "GRU", "SimpleRNN"])
def test_stack_with_both_directions(keras, x, name, use_bias):
    kind = {"LSTM": "lstm", "GRU": "gru", "SimpleRNN": "rnn"}[name]
    cell = getattr(keras.layers, name)
    options = {"return_sequences": True, "use_bias": use_bias}
    both = disturbed(keras.layers.Bidirectional(cell(HIDDEN, **options)), x)
    (between,) = outputs(keras, both, x)
    last = disturbed(cell(4, **options), between)
    layers = rnn.layers_from_keras(
        [layer.get_weights() for layer in (both, last)], getattr(rnn, f"{kind}_from_keras")
    )
    np.testing.assert_allclose(
        rnn.stacked(x, layers, norm=None).y, outputs(keras, last, between)[0], **CLOSE
    )


def test_dropout_adds_no_weights(keras, x):
    layer = disturbed(
        keras.layers.LSTM(HIDDEN, dropout=0.3, recurrent_dropout=0.3, return_sequences=True), x
    )
    mine = rnn.lstm(x, rnn.lstm_from_keras(*layer.get_weights()), norm=None).y
    np.testing.assert_allclose(mine, outputs(keras, layer, x)[0], **CLOSE)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_layers_of_half_precision(keras, x, dtype):
    # JAX has no orthogonal matrices of half precision, the default.
    options = {"recurrent_initializer": "glorot_uniform", "return_sequences": True}
    layer = keras.layers.LSTM(HIDDEN, dtype=dtype, **options)
    y = np.float32(outputs(keras, layer, x)[0])
    parameters = rnn.lstm_from_keras(*layer.get_weights())
    assert {p.dtype.name for p in parameters if p is not None} == {dtype}
    # Keras rounds each intermediate result to 8 digits of bfloat16, numnorm here none.
    np.testing.assert_allclose(rnn.lstm(x, parameters, norm=None).y, y, rtol=0, atol=0.02)


def test_layer_norm_lstm_of_addons_written_in_keras(keras, x):
    """The cell of TensorFlow Addons, of Keras's own layers: their norms and kernels are real."""
    kernel, recurrent = (
        disturbed(keras.layers.Dense(4 * HIDDEN, use_bias=False), array)
        for array in (x, np.zeros((TIME, BATCH, HIDDEN), np.float32))
    )
    wide = np.zeros((TIME, BATCH, 4 * HIDDEN), np.float32)
    norms = [
        disturbed(keras.layers.LayerNormalization(epsilon=1e-3), array)
        for array in (wide, wide, wide[..., :HIDDEN])
    ]
    bias = np.random.default_rng(5).standard_normal(4 * HIDDEN, np.float32)
    weights = [kernel.get_weights()[0], recurrent.get_weights()[0], bias]
    for norm in norms:
        weights += norm.get_weights()
    mine = rnn.lstm(x, rnn.lstm_from_tfa(*weights), variant="normalized_cell", eps=1e-3)
    ops, (kernel_norm, recurrent_norm, state_norm) = keras.ops, norms
    bias = ops.convert_to_tensor(bias)
    h = c = ops.zeros((BATCH, HIDDEN))
    for step, y in zip(x, mine.y, strict=True):
        z = kernel_norm(kernel(step)) + recurrent_norm(recurrent(h)) + bias
        i, f, new, o = ops.split(z, 4, axis=-1)
        c = state_norm(ops.sigmoid(f) * c + ops.sigmoid(i) * ops.tanh(new))
        h = ops.sigmoid(o) * ops.tanh(c)
        np.testing.assert_allclose(y, ops.convert_to_numpy(h), **CLOSE)
    np.testing.assert_allclose(mine.c, ops.convert_to_numpy(c), rtol=0, atol=1e-5)
