"""Weights of haste: its layers by their equations, and what is refused.

The equations are those of its documentation (LSTM, GRU, LayerNormLSTM, LayerNormGRU, and zoneout)
in float64: haste itself needs a compiler for CUDA.
"""

import numpy as np
import pytest
from recurrent_reference import sigmoid

from numnorm import rnn

TIME, BATCH, INPUTS, HIDDEN = 6, 3, 4, 5
# A few sums of some products below sigmoids and tanhs, in another order.
CLOSE = {"rtol": 0, "atol": 1e-12}
X = np.random.default_rng(7).normal(size=(TIME, BATCH, INPUTS))


def state_dict(name):
    """Return the arrays that the module of haste_pytorch has, none of them special."""
    gates = 4 if "LSTM" in name else 3
    shapes = {
        "kernel": (INPUTS, gates * HIDDEN),
        "recurrent_kernel": (HIDDEN, gates * HIDDEN),
        "bias": (gates * HIDDEN,),
    }
    if gates == 3:
        shapes["recurrent_bias"] = (gates * HIDDEN,)
    if name.startswith("LayerNorm"):
        shapes["gamma"] = (2, gates * HIDDEN)
    if name == "LayerNormLSTM":
        shapes |= {"gamma_h": (HIDDEN,), "beta_h": (HIDDEN,)}
    rng = np.random.default_rng(0)
    return {key: rng.normal(size=shape) for key, shape in shapes.items()}


def layer_norm(rows, gain, bias=0):
    centred = rows - rows.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5) * gain + bias


def haste_lstm(x, kernel, recurrent_kernel, bias, gamma=None, gamma_h=None, beta_h=None, p=0.0):
    def norm(rows, gain, bias=0):
        return rows if gamma is None else layer_norm(rows, gain, bias)

    gains = (None, None) if gamma is None else gamma
    h = c = np.zeros((BATCH, HIDDEN))
    y = []
    for step in x:
        v = norm(step @ kernel, gains[0]) + norm(h @ recurrent_kernel, gains[1]) + bias
        i, g, f, o = np.split(v, 4, axis=-1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = p * h + (1 - p) * sigmoid(o) * np.tanh(norm(c, gamma_h, beta_h))
        y.append(h)
    return np.array(y), h, c


def haste_gru(x, kernel, recurrent_kernel, bias, recurrent_bias, p=0.0):
    h, y = np.zeros((BATCH, HIDDEN)), []
    for step in x:
        x_z, x_r, x_g = np.split(step @ kernel + bias, 3, axis=-1)
        h_z, h_r, h_g = np.split(h @ recurrent_kernel + recurrent_bias, 3, axis=-1)
        z, r = sigmoid(x_z + h_z), sigmoid(x_r + h_r)
        new = z * h + (1 - z) * np.tanh(x_g + r * h_g)
        h = p * h + (1 - p) * new
        y.append(h)
    return np.array(y), h


@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize("name", ["LSTM", "LayerNormLSTM"])
def test_lstm(name, p):
    state = state_dict(name)
    options = {} if name.startswith("Layer") else {"norm": None}
    mine = rnn.lstm(X, rnn.lstm_from_haste(**state), zoneout=(p, 0.0), **options)
    for one, other in zip(mine, haste_lstm(X, **state, p=p), strict=True):
        np.testing.assert_allclose(one, other, **CLOSE)


@pytest.mark.parametrize("p", [0.0, 0.3])
def test_gru(p):
    state = state_dict("GRU")
    mine = rnn.gru(X, rnn.gru_from_haste(**state), norm=None, zoneout=p)
    for one, other in zip(mine, haste_gru(X, **state, p=p), strict=True):
        np.testing.assert_allclose(one, other, **CLOSE)


def test_weights_without_a_norm_run_with_none():
    for kind, name in [("lstm", "LSTM"), ("gru", "GRU")]:
        parameters = getattr(rnn, f"{kind}_from_haste")(**state_dict(name))
        with pytest.raises(ValueError, match="norm must be None for parameters"):
            getattr(rnn, kind)(X, parameters)


def test_weights_with_a_norm_do_not_run_with_none():
    with pytest.raises(ValueError, match="gamma_x must be None, as this norm and variant do not"):
        rnn.lstm(X, rnn.lstm_from_haste(**state_dict("LayerNormLSTM")), norm=None)


def test_layer_norm_gru_is_refused():
    with pytest.raises(
        NotImplementedError, match=r"^gamma must be None: a LayerNormGRU of haste n"
    ):
        rnn.gru_from_haste(**state_dict("LayerNormGRU"))


def test_arrays_are_new():
    state = state_dict("LayerNormLSTM")
    own = [p for p in rnn.lstm_from_haste(**state) if p is not None]
    assert not any(np.shares_memory(a, b) for a in own for b in state.values())


LAYER = state_dict("LayerNormLSTM")
MESSAGES = {
    "recurrent_kernel must have shape (H, 4H), got (4, 20)": {
        "kernel": LAYER["recurrent_kernel"],
        "recurrent_kernel": LAYER["kernel"],
    },
    "kernel must have shape (I, 20), got (20, 4)": {"kernel": LAYER["kernel"].T},
    "bias must have shape (20,), that of the gates, got (5,)": {"bias": LAYER["gamma_h"]},
    "gamma must have shape (2, 20), got (20,)": {"gamma": LAYER["bias"]},
    "gamma must have shape (2, 20), got (3, 20)": {"gamma": np.ones((3, 20))},
    "gamma[0] must have shape (20,), that of the gates, got (5,)": {"gamma": np.ones((2, 5))},
    "gamma_h must have shape (5,), that of the units, got (20,)": {"gamma_h": LAYER["bias"]},
    "beta_h must be an array, as weights of other norms are, got None": {"beta_h": None},
}


@pytest.mark.parametrize("message", MESSAGES)
def test_errors(message):
    with pytest.raises((TypeError, ValueError)) as caught:
        rnn.lstm_from_haste(**LAYER | MESSAGES[message])
    assert str(caught.value) == message
