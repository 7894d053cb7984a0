"""The LSTM on real device arrays, beside the one of the host."""

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
    on_device = type(parameters)(*(None if p is None else library.take(p) for p in parameters))
    *results, saved = rnn.lstm_forward(library.take(x), on_device, **options)
    *expected, saved_here = rnn.lstm_forward(x, parameters, **options)
    compare(library, results, expected)
    gradients = rnn.lstm_backward(library.take(dy), saved)
    compare(library, gradients, rnn.lstm_backward(dy, saved_here))


@pytest.mark.parametrize("training", [None, True, False], ids=["batch", "training", "inference"])
@pytest.mark.parametrize("variant", ["paper", "normalized_cell", "per_gate", "cell_only"])
def test_batch_norm(library, variant, training):
    pytest.importorskip("cupy")  # which makes the products of Numba's arrays
    if training and type(library).__name__ == "OfJax":
        pytest.skip("running statistics of JAX cannot be updated")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(5, 70, 20)).astype(np.float32)
    dy, h, c = (rng.normal(size=(*n, 70, 36)).astype(np.float32) for n in ((5,), (), ()))
    parameters = rnn.lstm_init(20, 36, rng=rng, variant=variant, dtype=np.float32)
    statistics = rnn.lstm_statistics_init(4, 36, variant=variant)
    options = {"variant": variant, "lengths": rng.integers(1, 6, 70)}

    def run(take, norm):
        given = type(parameters)(*(None if p is None else take(p) for p in parameters))
        states = take(h), take(c)
        *results, saved = rnn.lstm_forward(take(x), given, *states, norm=norm, **options)
        return [*results, *rnn.lstm_backward(take(dy), saved)]

    of_device = type(statistics)(*(None if s is None else library.take(s) for s in statistics))
    norms = [
        "batch" if training is None else rnn.RecurrentBatchNorm(s, training=training)
        for s in (of_device, statistics)
    ]
    compare(library, run(library.take, norms[0]), run(lambda array: array, norms[1]))
    compare(library, of_device, statistics)


def compare(library, found, expected):
    """All arrays, those of parameters included, relative to the largest."""
    for mine, exact in zip(found, expected, strict=True):
        if isinstance(exact, tuple):
            compare(library, mine, exact)
        elif exact is not None:
            np.testing.assert_allclose(
                library.give(mine), exact, rtol=0, atol=TOLERANCE * np.abs(exact).max()
            )
