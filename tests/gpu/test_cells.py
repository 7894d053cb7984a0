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
    check(library, "lstm", 64, norm=norm, variant=variant)


# Parts of a warp with 16 bytes of each gate, and several warps with single elements.
@pytest.mark.parametrize("units", [64, 331])
@pytest.mark.parametrize("norm", ["layer", "rms", "ada", None])
def test_gru(library, norm, units):
    check(library, "gru", units, norm=norm)


def test_gru_with_zoneout(library):
    check(library, "gru", 64, zoneout=0.25)


def check(library, kind, units, *, zoneout=0.0, **norm):
    """The states and all gradients of ragged sequences."""
    pytest.importorskip("cupy")  # which makes the products of Numba's arrays
    forward, backward = getattr(rnn, f"{kind}_forward"), getattr(rnn, f"{kind}_backward")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(9, 12, 20)).astype(np.float32)
    dy = rng.normal(size=(9, 12, units)).astype(np.float32)
    parameters = getattr(rnn, f"{kind}_init")(20, units, rng=rng, dtype=np.float32, **norm)
    options = norm | {"lengths": rng.integers(1, 10, 12), "zoneout": zoneout}
    on_device = type(parameters)(*(None if p is None else library.take(p) for p in parameters))
    *results, saved = forward(library.take(x), on_device, **options)
    *expected, saved_here = forward(x, parameters, **options)
    compare(library, results, expected)
    gradients = backward(library.take(dy), saved)
    compare(library, gradients, backward(dy, saved_here))


def compare(library, found, expected):
    """All arrays, those of parameters included, relative to the largest."""
    for mine, exact in zip(found, expected, strict=True):
        if isinstance(exact, tuple):
            compare(library, mine, exact)
        elif exact is not None:
            np.testing.assert_allclose(
                library.give(mine), exact, rtol=0, atol=TOLERANCE * np.abs(exact).max()
            )
