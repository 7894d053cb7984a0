"""Running statistics of `numnorm.jax.instance_norm`: those of NumPy, returned and not updated."""

import numpy as np
import pytest

import numnorm

jax = pytest.importorskip("jax", reason="JAX is not installed")
import jax.numpy as jnp  # noqa: E402

import numnorm.jax  # noqa: E402

pytestmark = pytest.mark.jax

RNG = np.random.default_rng(12)
X, DY = RNG.normal(3.0, 2.0, (2, 5, 3, 4, 6))
GAMMA, BETA = np.array([0.5, 1.5, -2.0]), np.array([0.0, 1.0, 3.0])
MEAN, VAR = np.array([0.5, -1.0, 2.0]), np.array([1.0, 4.0, 0.25])
MASK = RNG.random(X.shape) < 0.7
UPDATES = {
    "torch": {},
    "keras": {"convention": "keras"},
    "momentum": {"momentum": 0.3, "unbiased": False},
    "cumulative": {"momentum": "cumulative", "batches": 3, "channel_axis": -1},
}


def of_numpy(x, dy, mean, var, options):
    """NumPy's result and new running statistics, and its gradients."""
    mean, var = mean.copy(), var.copy()
    given = {"running_mean": mean, "running_var": var}
    gamma, beta = GAMMA.astype(x.dtype), BETA.astype(x.dtype)
    y, *saved = numnorm.instance_norm_forward(x, gamma, beta, **given, **options)
    own = {n: v for n, v in options.items() if n in ("channel_axis", "training", "where")}
    gradients = numnorm.instance_norm_backward(dy, x, *saved, gamma, **own)
    return (y, mean, var), gradients


def pulled(options):
    def call(x, dy, mean, var):
        def norm(x, gamma, beta, mean, var):
            given = {"running_mean": mean, "running_var": var}
            return numnorm.jax.instance_norm(x, gamma, beta, **given, **options)

        gamma, beta = GAMMA.astype(x.dtype), BETA.astype(x.dtype)
        result, pull = jax.vjp(norm, x, gamma, beta, mean, var)
        if not options.get("training", True):
            return (result, mean, var), pull(dy)
        # A gradient of running statistics goes nowhere.
        return tuple(result), pull(result._replace(y=dy))

    return call


def assert_equal(found, expected):
    (results, gradients), (right, right_gradients) = found, expected
    for each, other in zip(results, right, strict=True):
        assert each.dtype == other.dtype
        np.testing.assert_array_equal(each, other)
    for each, other in zip(gradients[:3], right_gradients, strict=True):
        assert each.dtype == other.dtype
        np.testing.assert_array_equal(each, other)
    assert not any(np.any(gradient) for gradient in gradients[3:])


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_bytes_of_numpy(dtype, update, wrap, float64):
    options = UPDATES[update]
    moved = (a if "channel_axis" not in options else np.moveaxis(a, 1, -1) for a in (X, DY))
    x, dy = (np.ascontiguousarray(a, dtype) for a in moved)
    before = jnp.asarray(MEAN, dtype), jnp.asarray(VAR, dtype)
    expected = of_numpy(x, dy, MEAN.astype(dtype), VAR.astype(dtype), options)
    assert_equal(wrap(pulled(options))(x, dy, *before), expected)
    np.testing.assert_array_equal(before, (MEAN, VAR))


@pytest.mark.parametrize("masked", [False, True])
def test_inference(masked, float64):
    options = {"training": False, **({"where": MASK} if masked else {})}
    expected = of_numpy(X, DY, MEAN, VAR, options)
    assert_equal(jax.jit(pulled(options))(X, DY, MEAN, VAR), expected)
    if not masked:  # the definition, with some roundings of float64
        columns = [a.reshape(-1, 1, 1) for a in (MEAN, VAR, GAMMA, BETA)]
        y = (X - columns[0]) / np.sqrt(columns[1] + 1e-5) * columns[2] + columns[3]
        np.testing.assert_allclose(expected[0][0], y, rtol=1e-13, atol=1e-13)


def test_new_statistics_are_averages_of_the_samples(float64):
    result = numnorm.jax.instance_norm(X, running_mean=MEAN, running_var=VAR, momentum=0.25)
    assert isinstance(result, numnorm.jax.BatchNormalized)
    each = X.reshape(5, 3, -1)
    mean, var = each.mean(axis=2).mean(axis=0), each.var(axis=2, ddof=1).mean(axis=0)
    # A mean of some dozen numbers below ten and one weighted sum.
    np.testing.assert_allclose(result.running_mean, 0.75 * MEAN + 0.25 * mean, rtol=1e-14)
    np.testing.assert_allclose(result.running_var, 0.75 * VAR + 0.25 * var, rtol=1e-14)


def test_a_mapped_axis_gives_what_a_loop_gives(float64):
    x, mean = np.stack([X, 2 * X + 1]), np.stack([MEAN, -MEAN])
    found = jax.jit(jax.vmap(pulled({}), (0, None, 0, None)))(x, DY, mean, VAR)
    for k in range(2):
        own = jax.tree.map(lambda a, k=k: a[k], found)
        assert_equal(own, of_numpy(x[k], DY, mean[k], VAR, {}))


def test_a_loss_through_a_training_step(float64):
    def loss(x, running):
        y, *running = numnorm.jax.instance_norm(x, running_mean=running[0], running_var=running[1])
        return jnp.sin(y).sum(), running

    gradient, running = jax.jit(jax.grad(loss, has_aux=True))(X, (MEAN, VAR))
    (y, *right), _ = of_numpy(X, DY, MEAN, VAR, {})
    y, *saved = numnorm.instance_norm_forward(X)
    np.testing.assert_allclose(
        gradient, numnorm.instance_norm_backward(np.cos(y), X, *saved).dx, rtol=1e-12, atol=1e-14
    )
    np.testing.assert_array_equal(running, right)


def test_halves_have_statistics_in_float32_and_no_samples_change_nothing():
    x, start = jnp.asarray(X, jnp.bfloat16), {"running_mean": jnp.zeros(3, jnp.bfloat16)}
    start["running_var"] = jnp.ones(3, jnp.bfloat16)
    result = numnorm.jax.instance_norm(x, **start)
    assert [a.dtype.name for a in result] == ["bfloat16", "float32", "float32"]
    result = numnorm.jax.instance_norm(x[:0], **start)
    assert result.y.shape == (0, 3, 4, 6)
    np.testing.assert_array_equal(result[1:], ([0] * 3, [1] * 3))


def test_options_without_running_statistics_are_checked_and_change_nothing():
    y = numnorm.jax.instance_norm(jnp.asarray(X), momentum=0.5, convention="keras")
    np.testing.assert_array_equal(y, numnorm.jax.instance_norm(jnp.asarray(X)))


RUNNING = {"running_mean": MEAN, "running_var": VAR}
WRONG = {
    "variance": ({"running_mean": MEAN}, ValueError, "^running_var must be given with"),
    "inference": ({"training": False}, ValueError, "^running_mean must be given when training"),
    "shape": ({**RUNNING, "running_var": VAR[:2]}, ValueError, "^running_var must have shape"),
    "momentum": ({"momentum": 2.0}, ValueError, "^momentum must be"),
    "convention": ({**RUNNING, "convention": "a"}, ValueError, "^convention must be"),
    "training": ({**RUNNING, "training": 2}, TypeError, "^training must be"),
    "where": ({**RUNNING, "where": MASK}, NotImplementedError, "^where is not supported with"),
    "omit": ({**RUNNING, "nan_policy": "omit"}, NotImplementedError, "^nan_policy is not support"),
    "eps": ({**RUNNING, "eps": -1.0}, ValueError, "^eps must be at least 0"),
    "gamma": ({**RUNNING, "gamma": GAMMA[:2]}, ValueError, r"^gamma must have shape \(3,\)"),
    "one value": (
        {**RUNNING, "x": X[..., :1, 0]}, ValueError, "^x must have at least 2 values in"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_raise_when_the_function_is_traced(name):
    given, error, message = WRONG[name]
    with pytest.raises(error, match=message):
        jax.make_jaxpr(lambda: numnorm.jax.instance_norm(**{"x": X, **given}))()
