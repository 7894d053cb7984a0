"""`numnorm.jax`: NumPy's bytes, gradients under jit and vmap, second derivatives, errors."""

import sys

import numpy as np
import pytest

import numnorm

jax = pytest.importorskip("jax", reason="JAX is not installed")
import jax.numpy as jnp  # noqa: E402
from jax.test_util import check_grads  # noqa: E402

import numnorm.jax  # noqa: E402

pytestmark = pytest.mark.jax

HALVES = ["float16", "bfloat16"]
DTYPES = [*HALVES, "float32", "float64"]


def draw(shape, dtype="float32", seed=0):
    values = np.random.default_rng(seed).normal(0.5, 1.5, shape)
    return jnp.asarray(values, jnp.float32 if dtype != "float64" else jnp.float64).astype(dtype)


# The name, the arguments, the shapes of x and of the parameters.
CASES = {
    "layer": ("layer_norm", {}, (5, 7), (7,), 2),
    "layer_wide": ("layer_norm", {"eps": 1e-3}, (3, 300), (300,), 2),
    "layer_axes": ("layer_norm", {"axis": (0, 2)}, (4, 3, 6), (4, 6), 2),
    "rms": ("rms_norm", {}, (2, 5, 33), (33,), 1),
    "rms_first": ("rms_norm", {"axis": 0}, (8, 5), (8,), 1),
    "ada": ("ada_norm", {"scale": 1.5, "detach_factor": False}, (5, 9), None, 0),
    "ada_std": ("ada_norm", {"eps_in": "std", "ddof": 1}, (5, 9), None, 0),
    "snv": ("standard_normal_variate", {"ddof": 1}, (4, 12), None, 0),
    "group": ("group_norm", {"groups": 2}, (3, 4, 5), (4,), 2),
    "group_last": ("group_norm", {"groups": 2, "channel_axis": -1}, (3, 5, 4), (4,), 2),
    "instance": ("instance_norm", {}, (3, 4, 6), (4,), 2),
    "batch": ("batch_norm", {}, (6, 4), (4,), 2),
    "batch_space": ("batch_norm", {"channel_axis": -1}, (3, 5, 4), (4,), 2),
    "weight": ("weight_norm", {}, (4, 6), (4,), 1),
}
# Its gradient is that of a constant factor, which no difference quotient has.
DETACHED = {"ada_std"}


def case(name, dtype="float32"):
    """The function of x and its parameters, and these arrays."""
    function, options, shape, of_parameters, count = CASES[name]
    arrays = [draw(shape, dtype)]
    arrays += [draw(of_parameters, dtype, seed) for seed in range(1, count + 1)]
    return lambda *arrays: getattr(numnorm.jax, function)(*arrays, **options), arrays


def as_numpy(name, arrays, dy):
    """The result and the gradients of numnorm on NumPy arrays."""
    function, options, *_, count = CASES[name]
    x, *weights = map(np.asarray, arrays)
    options = dict(options)
    detach_factor = options.pop("detach_factor", True)
    y, *saved = getattr(numnorm, f"{function}_forward")(x, *weights, **options)
    if function == "ada_norm":
        return y, (
            numnorm.ada_norm_backward(dy, x, *saved, **options, detach_factor=detach_factor),
        )
    options.pop("eps", None)
    gradients = getattr(numnorm, f"{function}_backward")(dy, x, *saved, *weights[:1], **options)
    return y, gradients[: 1 + count] if weights else (gradients,)


def is_float64_without_x64(dtype, x64):
    return dtype == "float64" and not x64


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients_are_those_of_numpy_byte_for_byte(name, dtype, x64):
    if is_float64_without_x64(dtype, x64):
        pytest.skip("JAX has no float64 then")
    function, arrays = case(name, dtype)
    y, pull = jax.vjp(function, *arrays)
    dy = draw(y.shape, dtype, 9)
    expected, gradients = as_numpy(name, arrays, np.asarray(dy))
    assert y.dtype == arrays[0].dtype
    assert np.asarray(y).tobytes() == expected.tobytes()
    for k, (found, right) in enumerate(zip(pull(dy), gradients, strict=True)):
        assert found.dtype == arrays[k].dtype
        if k and dtype in HALVES:
            # Sums are rounded to float32 first, and then to the dtype: half a unit more.
            unit = float(jnp.finfo(dtype).eps)
            np.testing.assert_allclose(
                np.asarray(found, float), np.asarray(right, float), rtol=unit, atol=unit * 1e-2
            )
        else:
            assert np.asarray(found).tobytes() == np.asarray(right).tobytes()


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("name", [name for name in CASES if name not in DETACHED])
def test_gradients_are_those_of_difference_quotients(name, wrap, float64):
    function, arrays = case(name, "float64")
    check_grads(wrap(function), arrays, order=1, modes=["rev"])


@pytest.mark.parametrize("name", [name for name in CASES if name not in DETACHED])
def test_gradients_of_mapped_functions_are_those_of_difference_quotients(name, float64):
    function, arrays = case(name, "float64")
    stacked = [jnp.stack([a, 2 * a + 1, a - 1]) for a in arrays]
    check_grads(jax.jit(jax.vmap(function)), stacked, order=1, modes=["rev"])


MAPPED = {"x": (True, False), "parameters": (False, True), "both": (True, True)}


@pytest.mark.parametrize("which", MAPPED)
@pytest.mark.parametrize("name", [name for name in CASES if CASES[name][4]])
def test_a_mapped_axis_gives_what_a_loop_gives(name, which):
    function, arrays = case(name)
    mapped = [MAPPED[which][k > 0] for k in range(len(arrays))]
    stacked = [
        jnp.stack([a, 2 * a + 1]) if there else a for a, there in zip(arrays, mapped, strict=True)
    ]

    def pulled(*arrays):
        y, pull = jax.vjp(function, *arrays)
        return y, *pull(jnp.cos(y))

    found = jax.vmap(pulled, [0 if there else None for there in mapped])(*stacked)
    for k in range(2):
        one = [a[k] if there else a for a, there in zip(stacked, mapped, strict=True)]
        for each, right in zip(found, pulled(*one), strict=True):
            np.testing.assert_array_equal(each[k], right)


def test_axes_mapped_twice_and_last():
    x, gamma = draw((2, 3, 5, 7)), draw((3, 7), seed=1)
    norm = jax.grad(lambda x, gamma: jnp.sin(numnorm.jax.layer_norm(x, gamma)).sum(), (0, 1))
    found = jax.vmap(jax.vmap(norm, (0, None)), (1, 0))(x, gamma)
    last = jax.vmap(norm, (1, None))(x[0], gamma[0])
    for i in range(3):
        for k in range(2):
            for each, right in zip(found, norm(x[k, i], gamma[i]), strict=True):
                np.testing.assert_array_equal(each[i, k], right)
    for k in range(5):
        np.testing.assert_array_equal(last[1][k], norm(x[0, :, k], gamma[0])[1])


def test_gradient_of_shared_parameters_is_summed_over_a_mapped_axis():
    x, gamma, beta = draw((6, 4, 5)), draw(5, seed=1), draw(5, seed=2)

    def loss(gamma, beta, norm):
        return jnp.sin(jax.vmap(lambda x: norm(x, gamma, beta))(x)).sum()

    def plain(x, gamma, beta):
        deviation = x - x.mean(-1, keepdims=True)
        return deviation / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5) * gamma + beta

    for wrt in (0, 1):
        found = jax.grad(loss, wrt)(gamma, beta, numnorm.jax.layer_norm)
        right = jax.grad(loss, wrt)(gamma, beta, plain)
        # Two orders of sums of 24 terms in float32.
        np.testing.assert_allclose(found, right, rtol=24 * 2.0**-24, atol=24 * 2.0**-24)


def test_running_statistics_are_returned():
    x, mean, var = draw((6, 4)), jnp.zeros(4), jnp.ones(4)
    result = numnorm.jax.batch_norm(x, running_mean=mean, running_var=var, momentum=0.25)
    right = np.zeros(4, np.float32), np.ones(4, np.float32)
    y = numnorm.batch_norm(
        np.asarray(x), running_mean=right[0], running_var=right[1], momentum=0.25
    )
    for found, expected in zip(result, (y, *right), strict=True):
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(mean, 0.0)  # nothing is updated in place


def test_inference_normalizes_with_the_running_statistics():
    x, mean, var = draw((6, 4)), draw(4, seed=1), jnp.abs(draw(4, seed=2))

    def norm(x, gamma):
        return numnorm.jax.batch_norm(
            x, gamma, running_mean=mean, running_var=var, training=False, eps=0.0
        )

    y, pull = jax.vjp(norm, x, jnp.ones(4))
    # Three roundings in float32.
    np.testing.assert_allclose(y, (x - mean) / jnp.sqrt(var), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(pull(jnp.ones_like(y))[0], 1 / jnp.sqrt(var) * y**0, rtol=1e-6)


# No rows, rows of no elements, and neither; before them the axes that parameters have.
EMPTY = {
    "layer": ([1], [(0, 7), (5, 0)]),
    "layer_axes": ([0, 2], [(4, 0, 6), (0, 3, 6), (4, 3, 0)]),
    "rms": ([2], [(2, 0, 33), (2, 5, 0)]),
    "ada": ([], [(0, 9), (5, 0), (0, 0)]),
    "snv": ([], [(0, 12)]),
    "group": ([1], [(0, 4, 5), (3, 4, 0)]),
    "group_last": ([2], [(0, 5, 4), (3, 0, 4)]),
    "instance": ([1], [(0, 4, 6), (3, 0, 6), (3, 4, 0)]),
    "batch": ([1], [(0, 4), (6, 0)]),
    "batch_space": ([2], [(3, 0, 4), (0, 5, 0)]),
    "weight": ([0], [(0, 6), (4, 0)]),
}


@pytest.mark.parametrize("name, shape", [(n, shape) for n in EMPTY for shape in EMPTY[n][1]])
def test_empty_arrays_are_those_of_numpy(name, shape):
    function, given = case(name)
    of_parameters = [shape[axis] for axis in EMPTY[name][0]]
    arrays = [jnp.zeros(shape), *(jnp.ones(of_parameters) for _ in given[1:])]
    y, pull = jax.vjp(function, *arrays)
    gradients = pull(jnp.zeros(y.shape))
    expected, right = as_numpy(name, arrays, np.zeros(shape, np.float32))
    for found, wanted in zip((y, *gradients), (expected, *right), strict=True):
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0)])
def test_a_mapped_axis_of_empty_arrays(shape):
    def pulled(x, gamma):
        y, pull = jax.vjp(numnorm.jax.layer_norm, x, gamma)
        return y, *pull(y)

    gamma = jnp.ones(shape[1:])
    y, dx, dgamma = jax.vmap(pulled, (0, None))(jnp.zeros(shape), gamma)
    assert y.shape == dx.shape == dgamma.shape == shape
    own = jnp.ones(shape)
    for arrays in ((jnp.zeros(shape), own), (jnp.zeros((2, *shape)), jnp.stack([own, own]))):
        mapped = jax.vmap(pulled) if arrays[0].ndim == 2 else jax.vmap(jax.vmap(pulled))
        y, dx, dgamma = mapped(*arrays)
        assert y.shape == dx.shape == dgamma.shape == arrays[0].shape


def test_integers_become_floats(x64):
    y = numnorm.jax.layer_norm(jnp.array([[1, 3]]), eps=0.0)
    assert y.dtype == (jnp.float64 if x64 else jnp.float32)
    np.testing.assert_array_equal(y, [[-1, 1]])


@pytest.mark.parametrize("name", CASES)
def test_a_second_derivative_raises_one_clear_line(name):
    function, arrays = case(name)

    def loss(x):
        return jnp.sin(function(x, *arrays[1:])).sum()

    with pytest.raises(NotImplementedError, match=r"^numnorm.jax has no second derivatives"):
        jax.grad(lambda x: jax.grad(loss)(x).sum())(arrays[0])
    with pytest.raises(TypeError, match=r"forward-mode.*custom_vjp"):
        jax.hessian(loss)(arrays[0])


X = np.ones((2, 3), np.float32)
WRONG = {
    "complex": (lambda n: n.layer_norm(X + 1j), TypeError, "^x must have dtype float16"),
    "text": (lambda n: n.layer_norm("a"), TypeError, "^x must be an array, got str"),
    "gamma": (lambda n: n.layer_norm(X, X), ValueError, r"^gamma must have shape \(3,\), the"),
    "beta": (lambda n: n.layer_norm(X, None, X), ValueError, r"^beta must have shape \(3,\)"),
    "axis": (lambda n: n.rms_norm(X, axis=2), ValueError, "^axis must be between -2 and 1"),
    "eps": (lambda n: n.layer_norm(X, eps=-1.0), ValueError, "^eps must be at least 0"),
    "detach": (lambda n: n.layer_norm(X, detach="x"), ValueError, "^detach must be None, 'mean'"),
    "scale": (lambda n: n.ada_norm(X, scale=0.0), ValueError, "^scale must be greater than 0"),
    "ddof": (lambda n: n.standard_normal_variate(X, ddof=3), ValueError, "^ddof must be less"),
    "groups": (lambda n: n.group_norm(X, groups=2), ValueError, "^groups must divide the 3"),
    "g": (lambda n: n.weight_norm(X, X), ValueError, r"^g must have shape \(2,\)"),
    "running": (lambda n: n.batch_norm(X, running_mean=X[0]), ValueError, "^running_var must be"),
    "inference": (lambda n: n.batch_norm(X, training=False), ValueError, "^running_mean must be"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_raise_when_the_function_is_traced(name):
    call, error, message = WRONG[name]
    with pytest.raises(error, match=message):
        jax.make_jaxpr(lambda: call(numnorm.jax))()


def test_an_array_on_another_device_is_refused(monkeypatch):
    x = jnp.ones((2, 3))

    class Device:
        platform = "gpu"

    monkeypatch.setattr(type(x), "devices", lambda array: {Device()})
    message = "^x must be on the CPU for numnorm.jax, got an array on gpu$"
    with pytest.raises(NotImplementedError, match=message):
        numnorm.jax.layer_norm(x)


@pytest.mark.parametrize("platforms", [("cuda",), ("cpu", "cuda")])
@pytest.mark.parametrize("name", ["layer_norm", "batch_norm", "moving_norm"])
def test_a_function_compiled_for_another_device_is_refused(name, platforms):
    given = (3,) if name == "moving_norm" else ()
    traced = jax.jit(lambda x: getattr(numnorm.jax, name)(x, *given)).trace(jnp.ones((2, 5)))
    traced.lower(lowering_platforms=("cpu",))
    message = r"^numnorm.jax runs on the CPU only, got a function that is compiled for cuda: "
    with pytest.raises(NotImplementedError, match=message):
        traced.lower(lowering_platforms=platforms)


def test_the_target_of_an_executable_says_where_it_runs():
    text = jax.jit(numnorm.jax.layer_norm).lower(jnp.ones((2, 3))).as_text()
    assert "numnorm.jax_runs_on_the_CPU_only" in text  # XLA's error on another device quotes it


def test_without_jax_the_import_says_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("numnorm.jax")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jax", None)
    monkeypatch.setitem(sys.modules, "jax.ffi", None)
    with pytest.raises(ImportError, match=r'pip install "numnorm\[jax\]"'):
        import numnorm.jax  # noqa: F401


@pytest.mark.parametrize("scale", [1.0, 1e-34, 1e34], ids=["usual", "tiny", "huge"])
@pytest.mark.parametrize("shape", [(2100, 3), (300, 3, 20)], ids=["across", "along"])
def test_blocks_and_scales_of_batch_norm_are_those_of_numpy(shape, scale):
    # Blocks of 1024 rows, or of 256; channels out of the usual range are scaled by powers of two.
    x, dy = (
        draw((2, *shape)) * jnp.array([1.0, scale, 1.0]).reshape(-1, *[1] * (len(shape) - 2)),
        draw((2, *shape), seed=1),
    )
    gamma, running = draw(3, seed=2), (jnp.zeros(3), jnp.ones(3))

    def norm(x, gamma):
        mean, var = running
        return numnorm.jax.batch_norm(x, gamma, running_mean=mean, running_var=var, eps=0.0)

    def pulled(x, dy):
        result, pull = jax.vjp(norm, x, gamma)
        return *result, *pull(result._replace(y=dy))

    found = jax.vmap(pulled)(x, dy)
    for g in range(2):
        mean, var = np.zeros(3, np.float32), np.ones(3, np.float32)
        given = np.asarray(x[g]), np.asarray(gamma)
        y, *saved = numnorm.batch_norm_forward(*given, running_mean=mean, running_var=var, eps=0.0)
        dx, dgamma, _ = numnorm.batch_norm_backward(np.asarray(dy[g]), given[0], *saved, given[1])
        for each, right in zip(found, (y, mean, var, dx, dgamma), strict=True):
            assert np.asarray(each[g]).tobytes() == right.tobytes()
