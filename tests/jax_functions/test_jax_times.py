"""Norms of irregular steps inside JAX: the results and gradients of NumPy's arrays."""

import numpy as np
import pytest

import numnorm

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.jax

RNG = np.random.default_rng(54)
TIMES = np.datetime64("2026-01-01", "h") + np.cumsum(RNG.integers(0, 30, 20))
CALLS = {
    "moving_norm": {"window": np.timedelta64(4, "D"), "closed": "both"},
    "exponential_norm": {"halflife": np.timedelta64(4, "D")},
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("masked", [False, True])
def test_results_and_gradients(name, masked):
    norm = getattr(pytest.importorskip("numnorm.jax"), name)
    x, dy, keep = *RNG.normal(size=(2, 20, 3)), RNG.random((20, 3)) < 0.7
    options = {"axis": 0, "times": TIMES, "where": keep if masked else None, **CALLS[name]}
    y, *saved = getattr(numnorm, f"{name}_forward")(x, **options)
    dx = getattr(numnorm, f"{name}_backward")(dy, x, *saved, **options)
    with jax.enable_x64(True):
        found = jax.jit(lambda x: norm(x, **options))(x)
        gradient = jax.grad(lambda x: (norm(x, **options) * dy).sum())(x)
    np.testing.assert_array_equal(found, y)
    np.testing.assert_array_equal(gradient, dx)


def test_traced_times_are_refused():
    norm = pytest.importorskip("numnorm.jax").moving_norm
    with pytest.raises(TypeError, match="times must be known when the caller is traced"):
        jax.jit(lambda x, times: norm(x, 2, times=times))(np.ones(3), np.arange(3))
    with pytest.raises(ValueError, match=r"times must have shape \(3,\)"):
        norm(np.ones(3), 2, times=[0, 1])
