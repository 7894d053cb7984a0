"""`numnorm.jax`: moving norms, and norms with missing values and weights, as those of NumPy."""

import numpy as np
import pytest

import numnorm

jax = pytest.importorskip("jax", reason="JAX is not installed")
import jax.numpy as jnp  # noqa: E402

import numnorm.jax  # noqa: E402

pytestmark = pytest.mark.jax

RNG = np.random.default_rng(11)
X, DY = RNG.normal(2.0, 1.5, (2, 4, 6, 5))
MASK = RNG.random(X.shape) < 0.75
WEIGHTS = RNG.random(X.shape) + 0.1
HOLED = np.where(RNG.random(X.shape) < 0.8, X, np.nan)

# The arguments by position, those by keyword, and the shapes of the parameters.
NORMS = {
    "layer_norm": ((), {"eps": 1e-3}, [(5,), (5,)]),
    "layer_norm over two axes": ((), {"axis": (0, 2)}, [(4, 5), (4, 5)]),
    "rms_norm": ((), {"axis": 1}, [(6,)]),
    "ada_norm": ((), {"k": 0.3, "ddof": 1}, []),
    "standard_normal_variate": ((), {"ddof": 1}, []),
    "weight_norm": ((), {"axis": (1, 2)}, [(4,)]),
    "group_norm": ((), {"groups": 3}, [(6,), (6,)]),
    "instance_norm": ((), {"channel_axis": -1}, [(5,), (5,)]),
    "batch_norm": ((), {"eps": 1e-3}, [(6,), (6,)]),
    "batch_norm over two axes": ((), {"channel_axis": (0, 2)}, [(4, 5), (4, 5)]),
}
MOVING = {
    "moving_norm": ((3,), {"axis": 1}, []),
    "moving_norm by its past": ((4,), {"axis": 1, "center": False, "with_std": False}, []),
    "exponential_norm": ((0.3,), {"axis": 1}, []),
    "exponential_norm not adjusted": ((0.3,), {"axis": 1, "adjust": False, "initial": 2}, []),
}
ALL = {**NORMS, **MOVING}
KEYWORDS = {
    "where": (X, {"where": MASK, "fill": 7.0}),
    "where for all rows": (X, {"where": MASK[0, 0]}),
    "nan_policy": (HOLED, {"nan_policy": "omit"}),
}
WEIGHTED = {
    "weights": (X, {"weights": WEIGHTS}),
    "all": (HOLED, {"where": MASK, "weights": WEIGHTS, "nan_policy": "omit", "fill": -1.0}),
}
CASES = [(name, {"plain": (X, {})}, "plain") for name in MOVING]
CASES += [(name, KEYWORDS, kind) for name in ALL for kind in KEYWORDS]
CASES += [(name, WEIGHTED, kind) for name in NORMS for kind in WEIGHTED]
LABELLED = {
    "labels": (X, {"labels": list("babc")}),
    "labels and all": (HOLED, {"labels": list("babc"), **WEIGHTED["all"][1]}),
}
CASES += [("batch_norm", LABELLED, kind) for kind in LABELLED]


def called(name, module, suffix=""):
    return getattr(module, name.partition(" ")[0] + suffix)


def parameters_of(name):
    rng = np.random.default_rng(3)
    return [rng.normal(1.0, 0.5, shape) for shape in ALL[name][2]]


def as_numpy(name, x, dy, parameters, keywords):
    """The result of numnorm, and what its backward pass returns."""
    given, options, _ = ALL[name]
    y, *saved = called(name, numnorm, "_forward")(x, *given, *parameters, **options, **keywords)
    left_out = {"fill"} if name.startswith("ada") else {"fill", "eps"}
    both = {k: v for k, v in {**options, **keywords}.items() if k not in left_out}
    backward = called(name, numnorm, "_backward")
    gradients = backward(dy, x, *saved, *given, *parameters[:1], **both)
    return y, gradients if isinstance(gradients, tuple) else (gradients,)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize(
    "name, kinds, kind", CASES, ids=[f"{name}-{kind}" for name, _, kind in CASES]
)
def test_results_and_gradients_are_those_of_numpy(name, kinds, kind, wrap, float64):
    x, keywords = kinds[kind]
    given, options, _ = ALL[name]
    traced = {k: v for k, v in keywords.items() if k in ("where", "weights")}
    static = {k: v for k, v in keywords.items() if k not in traced}

    def pulled(dy, traced, x, *parameters):
        def norm(x, *parameters):
            return called(name, numnorm.jax)(x, *given, *parameters, **options, **traced, **static)

        y, pull = jax.vjp(norm, x, *parameters)
        return y, pull(dy)

    parameters = parameters_of(name)
    y, gradients = wrap(pulled)(DY, traced, x, *parameters)
    expected, right = as_numpy(name, x, DY, parameters, keywords)
    np.testing.assert_allclose(y, expected, rtol=1e-12, atol=1e-12)
    for found, wanted in zip(gradients, right, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("name", ["layer_norm", "moving_norm", "exponential_norm"])
def test_dtypes_are_those_of_x(name, dtype, x64):
    given, options, _ = ALL[name]
    x, mask = jnp.asarray(X, dtype), jnp.asarray(MASK)
    y, pull = jax.vjp(lambda x: called(name, numnorm.jax)(x, *given, **options, where=mask), x)
    dx = pull(jnp.asarray(DY, dtype))[0]
    assert y.dtype == dx.dtype == x.dtype
    expected, (right, *_) = as_numpy(
        name, np.asarray(x), np.asarray(jnp.asarray(DY, dtype)), [], {"where": MASK}
    )
    assert np.asarray(y).tobytes() == expected.tobytes()
    assert np.asarray(dx).tobytes() == right.tobytes()


@pytest.mark.parametrize("name", ["layer_norm", *MOVING])
def test_a_mapped_axis_gives_what_a_loop_gives(name):
    given, options, _ = ALL[name]
    options = {k: v - 1 if k == "axis" else v for k, v in options.items()}

    def pulled(x, mask):
        norm = called(name, numnorm.jax)
        y, pull = jax.vjp(lambda x: norm(x, *given, **options, where=mask), x)
        return y, *pull(jnp.cos(y))

    x, mask = jnp.asarray(X), jnp.asarray(MASK)
    found = jax.vmap(pulled)(x, mask)
    shared = jax.vmap(pulled, (0, None))(x, mask[0])
    for k in range(len(x)):
        for each, right in zip(found, pulled(x[k], mask[k]), strict=True):
            np.testing.assert_array_equal(each[k], right)
        for each, right in zip(shared, pulled(x[k], mask[0]), strict=True):
            np.testing.assert_array_equal(each[k], right)


LABELS = np.array([4, 2, 4, 4, 7, 2])
STORED = numnorm.batch_moments(X[0], labels=LABELS)


def labelled(x, labels, dy):
    y, pull = jax.vjp(lambda x: numnorm.jax.batch_norm(x, labels=labels), x)
    return y, *pull(dy)


@pytest.mark.parametrize("labels", [LABELS, LABELS.tolist(), list("abaacb")], ids=["", "list", "s"])
def test_labels_that_are_known_and_traced_ones(labels, float64):
    x, dy = X[0], DY[0]
    expected, *saved = numnorm.batch_norm_forward(x, labels=LABELS)
    right = numnorm.batch_norm_backward(dy, x, *saved, labels=LABELS).dx
    found = [jax.jit(lambda x, dy: labelled(x, labels, dy))(x, dy)]
    found += [jax.jit(labelled)(x, LABELS, dy)]
    # The labels of each of two batches.
    found += [
        [a[1] for a in jax.vmap(labelled)(*(np.stack([a[::-1], a]) for a in (x, LABELS, dy)))]
    ]
    for y, dx in found:
        np.testing.assert_array_equal(y, expected)
        np.testing.assert_array_equal(dx, right)


def test_stored_statistics_of_labels(x64):
    x, dy, labels = X[0].astype("f4"), DY[0].astype("f4"), list("abaacb")
    stored = numnorm.batch_moments(DY[0], labels=list("bacbac"))

    def norm(x):
        return numnorm.jax.batch_norm(x, labels=labels, statistics=stored)

    y, pull = jax.vjp(jax.jit(norm), x)
    given = {"labels": labels, "statistics": stored}
    expected, *saved = numnorm.batch_norm_forward(x, **given)
    right = numnorm.batch_norm_backward(dy, x, *saved, labels=labels, training=False)
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(pull(dy)[0], right.dx)
    with pytest.raises(TypeError, match=r"^labels and statistics must be known when the caller is"):
        jax.jit(lambda labels: numnorm.jax.batch_norm(x, labels=labels, statistics=stored))(LABELS)


@pytest.mark.parametrize("training", [True, False])
def test_running_statistics_of_what_counts(training, float64):
    x, mask, kept = HOLED, MASK, {"nan_policy": "omit", "training": training}
    rng = np.random.default_rng(2)
    gamma, mean, var = rng.random((3, 6))

    @jax.jit
    def pulled(x, gamma, mask, dy, **running):
        def norm(x, gamma, running):
            return numnorm.jax.batch_norm(x, gamma, where=mask, **running, **kept)

        result, pull = jax.vjp(norm, x, gamma, running)
        zeros = jax.tree.map(jnp.zeros_like, result)
        return result, pull(zeros._replace(y=dy) if training else dy)

    result, (dx, dgamma, of_running) = pulled(
        x, gamma, mask, DY, running_mean=mean, running_var=var
    )
    moved = {"running_mean": mean.copy(), "running_var": var.copy()}
    expected, *saved = numnorm.batch_norm_forward(x, gamma, where=mask, **moved, **kept)
    right = numnorm.batch_norm_backward(DY, x, *saved, gamma, where=mask, **kept)
    np.testing.assert_array_equal(result.y if training else result, expected)
    for name, statistic in moved.items() if training else ():
        np.testing.assert_array_equal(getattr(result, name), statistic)
    np.testing.assert_array_equal(dx, right.dx)
    np.testing.assert_array_equal(dgamma, right.dgamma)
    assert not any(np.any(gradient) for gradient in of_running.values())


def test_integers_of_a_mask_count_as_in_numpy(float64):
    found = numnorm.jax.layer_norm(X, where=MASK.astype(int))
    np.testing.assert_array_equal(found, numnorm.layer_norm(X, where=MASK))


def test_weights_of_the_normalized_axes(float64):
    found = numnorm.jax.layer_norm(X, weights=WEIGHTS[0, 0, 0])
    np.testing.assert_array_equal(found, numnorm.layer_norm(X, weights=WEIGHTS[0, 0, 0]))


@pytest.mark.parametrize("shape", [(0, 5), (3, 0)])
def test_empty_arrays(shape):
    for norm in (numnorm.jax.layer_norm, lambda x, **o: numnorm.jax.moving_norm(x, 3, **o)):
        y, pull = jax.vjp(
            lambda x, norm=norm: norm(x, where=jnp.ones(shape, bool)), jnp.ones(shape)
        )
        assert y.shape == pull(y)[0].shape == shape


@pytest.mark.parametrize("name", ["layer_norm", "moving_norm", "exponential_norm"])
def test_a_second_derivative_raises_one_clear_line(name):
    given, options, _ = ALL[name]

    def loss(x):
        return jnp.sin(called(name, numnorm.jax)(x, *given, **options, where=MASK)).sum()

    with pytest.raises(NotImplementedError, match=r"^numnorm.jax has no second derivatives"):
        jax.grad(lambda x: jax.grad(loss)(x).sum())(jnp.asarray(X))


WRONG = {
    "window": (lambda n: n.moving_norm(X, 0), ValueError, "^window must be at least 1"),
    "alpha": (lambda n: n.exponential_norm(X, 2.0), ValueError, "^alpha must be"),
    "axis": (lambda n: n.moving_norm(X, 3, axis=4), ValueError, "^axis must be between"),
    "where": (lambda n: n.layer_norm(X, where=MASK[:3]), ValueError, "^where must broadcast"),
    "mask": (lambda n: n.layer_norm(X, where=X), TypeError, "^where must have dtype bool"),
    "weights": (lambda n: n.rms_norm(X, weights=X[:3]), ValueError, "^weights must broadcast"),
    "policy": (lambda n: n.rms_norm(X, nan_policy="drop"), ValueError, "^nan_policy must be"),
    "policy of steps": (
        lambda n: n.moving_norm(X, 3, nan_policy="drop"), ValueError, "^nan_policy must be"
    ),
    "fill": (lambda n: n.layer_norm(X, where=MASK, fill="a"), TypeError, "^fill must be a number"),
    "gamma": (
        lambda n: n.layer_norm(X, X, where=MASK), ValueError, r"^gamma must have shape \(5,\)"
    ),
    "eps": (lambda n: n.layer_norm(X, where=MASK, eps=-1), ValueError, "^eps must be at least 0"),
    "labels": (lambda n: n.batch_norm(X, labels=[1]), ValueError, "^labels must have shape"),
    "missing": (
        lambda n: n.batch_norm(X, labels=[np.nan] * 4), ValueError, "^labels must have a label for"
    ),
    "mixed": (lambda n: n.batch_norm(X, labels=[1, "1", 2, 2]), TypeError, "^labels must have"),
    "no sample": (
        lambda n: n.batch_norm(X[:0], labels=[]), ValueError, "^x must have at least 1 sample"
    ),
    "running": (
        lambda n: n.batch_norm(X, labels=[1, 2, 1, 2], running_mean=X[0, :, 0]),
        ValueError, "^running_mean must be None with labels",
    ),
    "unknown label": (
        lambda n: n.batch_norm(X[0], labels=[3] * 6, statistics=STORED),
        ValueError, "^labels must have labels that statistics",
    ),
    "statistics alone": (
        lambda n: n.batch_norm(X[0], statistics=STORED),
        ValueError, "^labels must be given with statistics",
    ),
    "mask of batch norm": (
        lambda n: n.batch_norm(X, where=MASK[:, :3]), ValueError, "^where must broadcast"
    ),
    "policy of batch norm": (
        lambda n: n.batch_norm(X, nan_policy="drop"), ValueError, "^nan_policy must be"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_raise_when_the_function_is_traced(name):
    call, error, message = WRONG[name]
    with pytest.raises(error, match=message):
        jax.make_jaxpr(lambda: call(numnorm.jax))()


@pytest.mark.parametrize(
    "keywords",
    [{"nan_policy": "raise"}, {"weights": -WEIGHTS}, {"where": 2 * MASK.astype(int)}],
    ids=["nan", "weights", "where"],
)
def test_wrong_values_raise_when_the_function_runs(keywords):
    message = "must not contain NaN|weights must be finite|where must hold only 0 and 1"
    with pytest.raises(Exception, match=message):
        jax.block_until_ready(numnorm.jax.layer_norm(HOLED, **keywords))


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "uint8", "uint16", "uint32"])
def test_masks_weights_and_labels_of_integers(dtype):
    x = X[0].astype(np.float32)
    mask = np.arange(x.shape[1]) % 2
    labels = np.arange(x.shape[0]) % 3
    for name, given in [("where", mask), ("weights", mask), ("labels", labels)]:
        norm = "batch_norm" if name == "labels" else "layer_norm"
        expected = getattr(numnorm, norm)(x, **{name: given})
        call = jax.jit(
            lambda x, array, norm=norm, name=name: getattr(numnorm.jax, norm)(x, **{name: array})
        )
        found = call(jnp.asarray(x), jnp.asarray(given.astype(dtype)))
        np.testing.assert_array_equal(found, expected)
