"""Recurrent cells on real device arrays, beside those of the host."""

import numpy as np
import pytest

from numnorm import rnn

pytestmark = pytest.mark.gpu

# What two ways to sum up products of float32 differ by, after some steps.
TOLERANCE = 5e-5


@pytest.mark.parametrize("norm, variant", [
    ("layer", "paper"),
    ("layer", "normalized_cell"),
    ("rms", "per_gate"),
    ("ada", "paper"),
    ("layer", "cell_only"),
    (None, "paper"),
])  # fmt: skip
def test_lstm(library, norm, variant):
    pytest.importorskip("cupy")  # which makes the products of Numba's arrays
    rng = np.random.default_rng(0)
    x = rng.normal(size=(9, 12, 20)).astype(np.float32)
    dy = rng.normal(size=(9, 12, 64)).astype(np.float32)
    options = {"norm": norm, "variant": variant}
    parameters = rnn.lstm_init(20, 64, rng=rng, dtype=np.float32, **options)
    options["lengths"] = rng.integers(1, 10, 12)
    on_device = taken(library, parameters)
    *results, saved = rnn.lstm_forward(library.take(x), on_device, **options)
    *expected, saved_here = rnn.lstm_forward(x, parameters, **options)
    compare(library, results, expected)
    gradients = rnn.lstm_backward(library.take(dy), saved)
    compare(library, gradients, rnn.lstm_backward(dy, saved_here))


@pytest.mark.parametrize("norm, nonlinearity", [
    ("layer", "tanh"),
    ("rms", "relu"),
    ("ada", "tanh"),
    (None, "tanh"),
])  # fmt: skip
def test_rnn(library, norm, nonlinearity):
    pytest.importorskip("cupy")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(9, 12, 20)).astype(np.float32)
    dy = rng.normal(size=(9, 12, 64)).astype(np.float32)
    options = {"norm": norm, "nonlinearity": nonlinearity}
    parameters = rnn.rnn_init(20, 64, norm=norm, rng=rng)
    packed = rnn.rnn_pack(taken(library, parameters), **options)
    options["lengths"] = rng.integers(1, 10, 12)
    *results, saved = rnn.rnn_forward(library.take(x), packed, **options)
    *expected, saved_here = rnn.rnn_forward(x, parameters, **options)
    compare(library, results, expected)
    gradients = rnn.rnn_backward(library.take(dy), saved)
    compare(library, gradients, rnn.rnn_backward(dy, saved_here))


def test_stacked(library):
    pytest.importorskip("cupy")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(9, 12, 20)).astype(np.float32)
    dy = rng.normal(size=(9, 12, 48)).astype(np.float32)
    both = rnn.lstm_init(20, 32, rng=rng), rnn.rnn_init(20, 32, rng=rng)
    layers = [both, rnn.lstm_init(64, 48, rng=rng)]
    options = {"lengths": rng.integers(1, 10, 12), "dropout": 0.3, "zoneout": 0.1}
    *results, saved = rnn.stacked_forward(
        library.take(x), taken(library, layers), rng=np.random.default_rng(1), **options
    )
    *expected, saved_here = rnn.stacked_forward(x, layers, rng=np.random.default_rng(1), **options)
    compare(library, results, expected)
    gradients = rnn.stacked_backward(library.take(dy), saved)
    compare(library, gradients, rnn.stacked_backward(dy, saved_here))


def taken(library, value):
    """Arrays in any structure, those of parameters included, on the device."""
    if not isinstance(value, list | tuple):
        return None if value is None else library.take(value)
    found = [taken(library, element) for element in value]
    return type(value)(*found) if hasattr(value, "_fields") else type(value)(found)


def compare(library, found, expected):
    """All arrays, those of parameters included, relative to the largest."""
    for mine, exact in zip(found, expected, strict=True):
        if isinstance(exact, tuple):
            compare(library, mine, exact)
        elif exact is not None:
            np.testing.assert_allclose(
                library.give(mine), exact, rtol=0, atol=TOLERANCE * np.abs(exact).max()
            )
