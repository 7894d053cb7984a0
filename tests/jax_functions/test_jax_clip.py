"""The most value of `numnorm.jax.batch_norm`, and its gradient."""

import numpy as np
import pytest

import numnorm

jax = pytest.importorskip("jax", reason="JAX is not installed")
import numnorm.jax  # noqa: E402

pytestmark = pytest.mark.jax

X = np.random.default_rng(0).normal(size=(9, 2)).astype(np.float32)
WEIGHTS = np.random.default_rng(1).normal(size=X.shape).astype(np.float32)


@pytest.mark.parametrize("labels", [None, np.arange(9) % 2])
def test_results_and_gradients(labels):
    def clipped(x):
        return numnorm.jax.batch_norm(x, clip=0.8, labels=labels)

    expected = numnorm.batch_norm(X, clip=0.8, labels=labels)
    np.testing.assert_array_equal(jax.jit(clipped)(X), expected)
    found = jax.grad(lambda x: (WEIGHTS * clipped(x)).sum())(X)
    y, *saved = numnorm.batch_norm_forward(X, labels=labels)
    passed = np.where(abs(y) < 0.8, WEIGHTS, 0)  # nothing passes where it is cut off
    wanted = numnorm.batch_norm_backward(passed, X, *saved, labels=labels).dx
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_without_centring_is_refused():
    with pytest.raises(NotImplementedError, match="with_mean must be True"):
        numnorm.jax.batch_norm(X, with_mean=False)
    np.testing.assert_array_equal(
        numnorm.batch_norm(jax.numpy.asarray(X), clip=0.8), numnorm.batch_norm(X, clip=0.8)
    )
