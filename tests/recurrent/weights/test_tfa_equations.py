"""Weights of TensorFlow Addons: its layer-normalized cells by their equations, and errors.

The equations are those of its documentation (LayerNormLSTMCell, LayerNormSimpleRNNCell) in
float64; the package is no longer maintained, and needs an old TensorFlow.
"""

import numpy as np
import pytest
from recurrent_reference import sigmoid

from numnorm import rnn

TIME, BATCH, INPUTS, HIDDEN = 6, 3, 4, 5
# A few sums of some products below sigmoids and tanhs, in another order.
CLOSE = {"rtol": 0, "atol": 1e-12}
X = np.random.default_rng(7).normal(size=(TIME, BATCH, INPUTS))


def drawn(*shapes):
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape) for shape in shapes]


def lstm_weights():
    """Return what ``cell.get_weights()`` returns: kernels, bias, then gain and bias of 3 norms."""
    wide = (4 * HIDDEN,)
    norms = [wide] * 4 + [(HIDDEN,)] * 2
    return drawn((INPUTS, *wide), (HIDDEN, *wide), wide, *norms)


def layer_norm(rows, gamma, beta, epsilon):
    centred = rows - rows.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + epsilon) * gamma + beta


def tfa_lstm(x, weights, epsilon):
    kernel, recurrent_kernel, bias, *norms = weights
    bias = 0 if bias is None else bias
    h = c = np.zeros((BATCH, HIDDEN))
    y = []
    for step in x:
        z = layer_norm(step @ kernel, *norms[:2], epsilon) + bias
        z += layer_norm(h @ recurrent_kernel, *norms[2:4], epsilon)
        i, f, new, o = np.split(z, 4, axis=-1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(new)
        c = layer_norm(c, *norms[4:], epsilon)
        h = sigmoid(o) * np.tanh(c)
        y.append(h)
    return np.array(y), h, c


def tfa_rnn(x, kernel, recurrent_kernel, bias, gamma):
    h, y = np.zeros((BATCH, HIDDEN)), []
    for step in x:
        net = step @ kernel + h @ recurrent_kernel
        h = np.tanh(layer_norm(net, gamma, 0, 1e-5) + (0 if bias is None else bias))
        y.append(h)
    return np.array(y), h


@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("epsilon", [1e-3, 0.1])
def test_lstm(epsilon, use_bias):
    weights = lstm_weights()
    weights[2] = weights[2] if use_bias else None
    parameters = rnn.lstm_from_tfa(*weights)
    mine = rnn.lstm(X, parameters, variant="normalized_cell", eps=epsilon)
    for one, other in zip(mine, tfa_lstm(X, weights, epsilon), strict=True):
        np.testing.assert_allclose(one, other, **CLOSE)


@pytest.mark.parametrize("use_bias", [True, False])
def test_rnn(use_bias):
    kernel, recurrent_kernel, bias, gamma = drawn(
        (INPUTS, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN,), (HIDDEN,)
    )
    weights = kernel, recurrent_kernel, bias if use_bias else None, gamma
    mine = rnn.rnn(X, rnn.rnn_from_tfa(*weights))
    for one, other in zip(mine, tfa_rnn(X, *weights), strict=True):
        np.testing.assert_allclose(one, other, **CLOSE)


def test_both_directions():
    """The weights of Bidirectional(RNN(cell)) are those of both cells."""
    forward, backward = lstm_weights(), [w[::-1] for w in lstm_weights()]
    (both,) = rnn.layers_from_keras([forward + backward], rnn.lstm_from_tfa)
    y = rnn.stacked(X, [both], variant="normalized_cell", eps=1e-3).y
    expected = tfa_lstm(X, forward, 1e-3)[0], tfa_lstm(X[::-1], backward, 1e-3)[0][::-1]
    np.testing.assert_allclose(y, np.concatenate(expected, axis=-1), **CLOSE)
    (one,) = rnn.layers_from_keras(
        [drawn((INPUTS, HIDDEN), (HIDDEN, HIDDEN), HIDDEN, HIDDEN)], rnn.rnn_from_tfa
    )
    assert isinstance(one, rnn.RNNParameters)


def test_they_do_not_run_without_a_norm():
    with pytest.raises(ValueError, match="gamma_x must be None, as this norm and variant do not"):
        rnn.lstm(X, rnn.lstm_from_tfa(*lstm_weights()), norm=None)


def test_arrays_are_new():
    weights = lstm_weights()
    own = rnn.lstm_from_tfa(*weights)
    assert not any(np.shares_memory(a, b) for a in own for b in weights)


MESSAGES = {
    "recurrent_kernel must have shape (H, 4H), got (4, 20)": (1, lstm_weights()[0]),
    "kernel must have shape (I, 20), got (5,)": (0, np.ones(5)),
    "bias must have shape (20,), that of the gates, got (5,)": (2, np.ones(5)),
    "kernel_gamma must have shape (20,), that of the gates, got (5,)": (3, np.ones(5)),
    "recurrent_beta must have shape (20,), that of the gates, got (5,)": (6, np.ones(5)),
    "state_gamma must have shape (5,), that of the units, got (20,)": (7, np.ones(20)),
    "state_beta must be an array or turn into one, got None": (8, None),
}


@pytest.mark.parametrize("message", MESSAGES)
def test_errors(message):
    (place, value), weights = MESSAGES[message], lstm_weights()
    weights[place] = value
    with pytest.raises((TypeError, ValueError)) as caught:
        rnn.lstm_from_tfa(*weights)
    assert str(caught.value) == message
