"""LSTM and GRU of `numnorm.jax`: NumPy's bytes, gradients under jit and vmap, errors."""

import inspect
import pickle

import numpy as np
import pytest

from numnorm import rnn
from numnorm.rnn.cells import CELLS

jax = pytest.importorskip("jax", reason="JAX is not installed")
import jax.numpy as jnp  # noqa: E402
from jax.test_util import check_grads  # noqa: E402

import numnorm.jax  # noqa: E402

pytestmark = pytest.mark.jax

LENGTHS = [4, 2, 0, 3, 4]
CASES = {
    "lstm": ("lstm", {}),
    "lstm_plain": ("lstm", {"norm": None}),
    "lstm_cell": ("lstm", {"norm": "rms", "variant": "normalized_cell"}),
    "lstm_lengths": ("lstm", {"lengths": LENGTHS, "reverse": True}),
    "gru": ("gru", {}),
    "gru_before": ("gru", {"reset_after": False, "norm": None}),
    "gru_lengths": ("gru", {"lengths": LENGTHS, "norm": "rms"}),
}


def case(name, dtype):
    """x, the parameters and the function of both."""
    kind, options = CASES[name]
    rng = np.random.default_rng(0)
    chosen = {key: options[key] for key in ("norm",) if key in options}
    parameters = getattr(rnn, f"{kind}_init")(3, 2, dtype=dtype, rng=rng, **chosen)
    parameters = jax.tree.map(jnp.asarray, parameters)
    x = jnp.asarray(rng.normal(size=(4, 5, 3)).astype(np.float32)).astype(dtype)
    return x, parameters, lambda *given: getattr(numnorm.jax, kind)(*given, **options)


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_a_cell_takes_what_the_public_function_takes_but_masks(name):
    function = getattr(numnorm.jax, name)
    taken = inspect.signature(function, eval_str=True)
    public = inspect.signature(CELLS[name].call)
    masks = "dropout", "recurrent_dropout", "zoneout", "rng"
    assert [(p.name, p.kind, p.default) for p in taken.parameters.values()] == [
        (p.name, p.kind, p.default) for p in public.parameters.values() if p.name not in masks
    ]
    assert taken.return_annotation is public.return_annotation
    assert pickle.loads(pickle.dumps(function)) is function
    documented = function.__doc__.partition("Returns")[0]
    assert all(f"{p} : " in documented or f"{p}, " in documented for p in taken.parameters)
    assert "dropout" not in documented


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients_are_those_of_numpy_byte_for_byte(name, dtype, x64):
    if dtype == "float64" and not x64:
        pytest.skip("JAX has no float64 then")
    kind, options = CASES[name]
    x, parameters, function = case(name, dtype)
    results, pull = jax.vjp(function, x, parameters)
    rng = np.random.default_rng(1)
    given = jax.tree.map(lambda a: jnp.asarray(rng.normal(size=a.shape), a.dtype), results)
    dx, gradients = pull(given)
    numpy = jax.tree.map(np.asarray, parameters)
    *expected, saved = getattr(rnn, f"{kind}_forward")(np.asarray(x), numpy, **options)
    right = getattr(rnn, f"{kind}_backward")(
        np.asarray(given[0]), saved, *map(np.asarray, given[1:])
    )
    pairs = [*zip(results, expected, strict=True), (dx, right.dx)]
    pairs += [pair for pair in zip(gradients, right.parameters, strict=True) if pair[1] is not None]
    for found, wanted in pairs:
        assert found.dtype == wanted.dtype
        assert np.asarray(found).tobytes() == np.asarray(wanted).tobytes()


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_difference_quotients(name, float64):
    x, parameters, function = case(name, "float64")
    # Rows of two units have large third derivatives: a step of 1e-4, the default, is too long.
    check_grads(jax.jit(function), (x, parameters), order=1, modes=["rev"], eps=1e-6)
    stacked = jax.tree.map(lambda a: jnp.stack([a, 1.5 * a]), (x, parameters))
    check_grads(jax.vmap(function), stacked, order=1, modes=["rev"], eps=1e-6)


@pytest.mark.parametrize("mapped", [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("name", ["lstm", "gru_lengths"])
def test_a_mapped_axis_gives_what_a_loop_gives(name, mapped):
    x, parameters, function = case(name, "float32")
    stacked = [
        jax.tree.map(lambda a: jnp.stack([a, 1.5 * a]), given) if there else given
        for given, there in zip((x, parameters), mapped, strict=True)
    ]

    def pulled(*given):
        results, pull = jax.vjp(function, *given)
        return results, pull(jax.tree.map(jnp.cos, results))

    found = jax.vmap(pulled, [0 if there else None for there in mapped])(*stacked)
    for k in range(2):
        one = [
            jax.tree.map(lambda a: a[k], given) if there else given
            for given, there in zip(stacked, mapped, strict=True)
        ]
        each = jax.tree.map(lambda a: a[k], found)
        jax.tree.map(np.testing.assert_array_equal, each, pulled(*one))


def test_batch_first_and_given_states():
    x, parameters, _ = case("lstm", "float32")
    h, c = jnp.ones((5, 2)), jnp.full((5, 2), 0.5)
    y, *last = numnorm.jax.lstm(x, parameters, h, c)
    swapped, *others = numnorm.jax.lstm(x.swapaxes(0, 1), parameters, h, c, batch_first=True)
    np.testing.assert_array_equal(y, swapped.swapaxes(0, 1))
    np.testing.assert_array_equal(last, others)
    expected = rnn.lstm(np.asarray(x), jax.tree.map(np.asarray, parameters), h, c)
    np.testing.assert_array_equal(y, expected.y)


@pytest.mark.parametrize("shape", [(0, 5), (4, 0), (0, 0)])
@pytest.mark.parametrize("name", ["lstm", "gru", "lstm_plain"])
def test_no_steps_and_no_sequences_give_what_numpy_gives(name, shape):
    kind, options = CASES[name]
    _, parameters, function = case(name, "float32")
    x, states = jnp.zeros((*shape, 3)), 2 if kind == "lstm" else 1
    first = [jnp.full((shape[1], 2), 0.5 + k) for k in range(states)]

    def run(x, parameters, *first):
        return getattr(numnorm.jax, kind)(x, parameters, *first, **options)

    results, pull = jax.vjp(run, x, parameters, *first)
    given = jax.tree.map(jnp.ones_like, results)
    dx, of_parameters, *of_first = pull(given)
    numpy = jax.tree.map(np.asarray, (x, parameters, *first))
    *expected, saved = getattr(rnn, f"{kind}_forward")(*numpy, **options)
    right = getattr(rnn, f"{kind}_backward")(*map(np.asarray, given[:1]), saved, *given[1:])
    pairs = [*zip(results, expected, strict=True), (dx, right.dx), (of_first[0], right.dh)]
    pairs += [
        pair for pair in zip(of_parameters, right.parameters, strict=True) if pair[1] is not None
    ]
    for found, wanted in pairs:
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)
    for axes in ((0, None), (0, 0)):
        stacked = jax.tree.map(lambda a: jnp.stack([a, a]), parameters)
        own = parameters if axes[1] is None else stacked
        y = jax.vmap(function, axes)(jnp.stack([x, x]), own)[0]
        assert y.shape == (2, *shape, 2)


def test_parameters_without_a_norm_are_refused_by_a_norm():
    x, parameters, _ = case("lstm_plain", "float32")
    gains = {name: jnp.zeros(0) for name in ("gamma_x", "gamma_h", "gamma_c")}
    unnormalized = parameters._replace(**gains)
    with pytest.raises(ValueError, match="norm must be None for parameters that were made"):
        numnorm.jax.lstm(x, unnormalized)
    gradients = jax.grad(lambda p: numnorm.jax.lstm(x, p, norm=None).y.sum())(unnormalized)
    assert gradients.gamma_x.shape == (0,)


def test_a_second_derivative_raises_one_clear_line():
    x, parameters, function = case("gru", "float32")
    with pytest.raises(NotImplementedError, match=r"^numnorm.jax has no second derivatives"):
        jax.grad(lambda x: jax.grad(lambda x: function(x, parameters).y.sum())(x).sum())(x)


X, PARAMETERS = (
    np.ones((4, 5, 3), np.float32),
    rnn.lstm_init(3, 2, dtype="float32", rng=np.random.default_rng(0)),
)
WRONG = {
    "axes": ({"x": X[0, 0]}, ValueError, r"^x must have shape \(T, B, I\)"),
    "inputs": ({"x": X[..., :2]}, ValueError, r"^weight_x must have shape \(8, 2\)"),
    "bias": ({"parameters": PARAMETERS._replace(bias=X[0, 0])}, ValueError, "^bias must have"),
    "state": ({"h": X[0]}, ValueError, r"^h must have shape \(5, 2\)"),
    "norm": ({"norm": "batch"}, ValueError, "^norm must be 'layer', 'rms', 'ada' or None"),
    "lengths": ({"lengths": [1.0] * 5}, TypeError, "^lengths must be integers"),
    "length": ({"lengths": [1] * 4}, ValueError, r"^lengths must have shape \(5,\)"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_raise_when_the_function_is_traced(name):
    changed, error, message = WRONG[name]
    arguments = {"x": X, "parameters": PARAMETERS} | changed
    with pytest.raises(error, match=message):
        jax.make_jaxpr(lambda: numnorm.jax.lstm(**arguments))()


def test_wrong_lengths_raise_when_the_function_runs():
    with pytest.raises(Exception, match="lengths must be between 0 and 4, the length of x, got 9"):
        numnorm.jax.lstm(X, PARAMETERS, lengths=[9] * 5).y.block_until_ready()
