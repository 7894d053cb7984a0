"""`denormalize` for arrays of JAX: the results of NumPy, gradients, and transformations."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import numnorm  # noqa: E402
import numnorm.jax  # noqa: E402

jnp = jax.numpy
RNG = np.random.default_rng(19)
Y = RNG.normal(size=(4, 6, 5)).astype(np.float32)


def statistics(shape):
    return RNG.normal(size=shape).astype("f4"), RNG.uniform(1, 2, shape).astype("f4")


@pytest.mark.parametrize(
    "shape, keywords",
    [((4, 6), {}), ((4, 3), {"channel_axis": 1}), ((5,), {"channel_axis": 2}), ((4, 1, 5), {})],
)
def test_as_numpy(shape, keywords):
    mean, rstd = statistics(shape)
    rstd[0] = 0.0
    gamma, beta = RNG.uniform(1, 2, (2, 6 if keywords.get("channel_axis") == 1 else 5)).astype("f4")
    expected = numnorm.denormalize(Y, mean, rstd, gamma, beta, **keywords)

    @jax.jit
    def function(*arrays):
        return numnorm.jax.denormalize(*arrays, **keywords)

    got = function(Y, mean, rstd, gamma, beta)
    assert got.dtype == jnp.float32
    # Half a dozen roundings to float32.
    np.testing.assert_allclose(got, expected, rtol=4e-7, atol=2e-6)
    without = numnorm.jax.denormalize(Y, None, rstd, **keywords)
    np.testing.assert_allclose(without, numnorm.denormalize(Y, None, rstd, **keywords), rtol=4e-7)


def test_gradients():
    (mean, rstd), gamma, beta = statistics((4, 6)), RNG.uniform(1, 2, 5), RNG.normal(size=5)
    rstd[1, 2] = 0.0
    arrays = [jnp.asarray(a, jnp.float32) for a in (Y, mean, rstd, gamma, beta)]
    weight = RNG.normal(size=Y.shape).astype("f4")
    found = jax.grad(lambda *arrays: jnp.sum(weight * numnorm.jax.denormalize(*arrays)), range(5))(
        *arrays
    )
    wanted = numnorm.denormalize_backward(weight, *map(np.asarray, arrays))
    for got, expected in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    mapped = jax.vmap(lambda y, m, r: numnorm.jax.denormalize(y, m, r))(*arrays[:3])
    np.testing.assert_allclose(mapped, numnorm.jax.denormalize(*arrays[:3]), rtol=1e-6)


def test_halves_and_errors():
    assert numnorm.jax.denormalize(jnp.ones(3, jnp.bfloat16), 0.0, 1.0).dtype == jnp.bfloat16
    with pytest.raises(ValueError, match=r"^mean must have shape"):
        numnorm.jax.denormalize(Y, np.ones(3), 1.0)
    with pytest.raises(TypeError, match=r"^rstd must be an array"):
        numnorm.jax.denormalize(Y, None, None)
