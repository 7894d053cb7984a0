"""Functions of `numnorm.jax` on the devices of a mesh: values, gradients, types."""

import numpy as np
import pytest
import test_jax_norms
import test_recurrent

jax = pytest.importorskip("jax", reason="JAX is not installed")
import jax.numpy as jnp  # noqa: E402
from jax.sharding import Mesh  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

import numnorm.jax  # noqa: E402

pytestmark = [
    pytest.mark.jax,
    pytest.mark.skipif(not hasattr(jax, "shard_map"), reason="needs JAX 0.7"),
]
DEVICES = 4


def batch_norm(x, mean, var):
    return numnorm.jax.batch_norm(x, running_mean=mean, running_var=var)


def inference(x, mean, var):
    return numnorm.jax.batch_norm(x, running_mean=mean, running_var=var, training=False)


def case(name):
    """A function of x and of its parameters, and these two."""
    if name in ("running", "inference"):
        parameters = jnp.zeros(4), jnp.ones(4)
        function = batch_norm if name == "running" else inference
        return lambda x, p: function(x, *p), test_jax_norms.draw((6, 4)), parameters
    if name in test_recurrent.CASES:
        x, parameters, function = test_recurrent.case(name, "float32")
        return function, x, parameters
    function, (x, *weights) = test_jax_norms.case(name)
    return lambda x, p: function(x, *p), x, tuple(weights)


# Each way to XLA: compiled handlers of rows and columns, and those that enter Python.
NAMES = ["layer", "ada", "group_last", "weight", "batch", "running", "inference"]
NAMES += ["lstm_lengths", "gru"]


def on_mesh(function, is_varying, out):
    """The function on each device, of its own arrays where they vary, else of the same ones."""

    def local(*given):
        own = [
            jax.tree.map(lambda a: a[0], argument) if there else argument
            for argument, there in zip(given, is_varying, strict=True)
        ]
        return jax.tree.map(lambda a: a[None], function(*own))

    mesh = Mesh(np.array(jax.devices()[:DEVICES]), ("d",))
    specs = tuple(P("d") if there else P() for there in is_varying)
    return jax.jit(jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=out))


def stacked(tree):
    return jax.tree.map(lambda a: jnp.stack([a * (1 + k / 2) for k in range(DEVICES)]), tree)


def pulled(function, *given):
    """The results, and the gradients of a loss."""
    results, pull = jax.vjp(function, *given)
    return results, pull(jax.tree.map(jnp.cos, results))


@pytest.mark.parametrize("is_varying", [(True, False), (False, True)])
@pytest.mark.parametrize("name", NAMES)
def test_each_device_gets_what_a_loop_gives_it(name, is_varying):
    function, *given = case(name)
    if is_varying == (False, True) and not given[1]:
        pytest.skip("has no parameters")
    arrays = [stacked(a) if there else a for a, there in zip(given, is_varying, strict=True)]
    mapped = on_mesh(function, is_varying, P("d"))
    # The gradient of the mapped function, and that of the function on each device.
    outside = pulled(mapped, *arrays)
    inside = on_mesh(lambda *own: pulled(function, *own), is_varying, P("d"))(*arrays)
    each = []
    for k in range(DEVICES):
        own = [
            jax.tree.map(lambda a: a[k], a) if there else a
            for a, there in zip(arrays, is_varying, strict=True)
        ]
        each.append(pulled(function, *own))
    together = jax.tree.map(lambda *a: jnp.stack(a), *each)
    jax.tree.map(np.testing.assert_array_equal, outside[0], together[0])
    jax.tree.map(np.testing.assert_array_equal, inside[0], together[0])
    for k, there in enumerate(is_varying):
        expected = together[1][k]
        for found, is_inside in ((outside[1][k], False), (inside[1][k], True)):
            if there:
                jax.tree.map(np.testing.assert_array_equal, found, expected)
                continue
            summed = jax.tree.map(lambda a: a.sum(0), expected)
            # Inside, each device gets the sum, and one axis more.
            found = jax.tree.map(lambda a: a[0], found) if is_inside else found
            jax.tree.map(_assert_nearly_equal, found, summed)


def _assert_nearly_equal(found, expected):
    # Four float32 numbers are added in another order, which may cancel.
    scale = float(jnp.abs(expected).max(initial=0.0))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6 * scale)


@pytest.mark.parametrize("is_varying", [(True, False), (False, True)])
@pytest.mark.parametrize("name", ["layer", "batch", "gru"])
def test_results_that_differ_do_not_leave_as_one(name, is_varying):
    function, *given = case(name)
    arrays = [stacked(a) if there else a for a, there in zip(given, is_varying, strict=True)]
    with pytest.raises(ValueError, match="out_specs"):
        on_mesh(function, is_varying, P())(*arrays)


@pytest.mark.parametrize("name", ["layer", "batch", "gru"])
def test_results_of_equal_arrays_leave_as_one(name):
    function, *given = case(name)
    found = on_mesh(function, (False, False), P())(*given)
    expected = jax.tree.map(lambda a: a[None], function(*given))
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_gradient_of_a_mapped_axis_on_each_device():
    function, x, parameters = case("layer")
    one = on_mesh(function, (True, False), P("d"))
    many = on_mesh(jax.vmap(function, (0, None)), (True, False), P("d"))
    x = stacked(jnp.stack([x, 2 * x]))
    found, (dx, gradients) = pulled(many, x, parameters)
    each = [pulled(one, x[:, k], parameters) for k in range(2)]
    np.testing.assert_array_equal(found, jnp.stack([y for y, _ in each], axis=1))
    np.testing.assert_array_equal(dx, jnp.stack([g[0] for _, g in each], axis=1))
    summed = jax.tree.map(jnp.add, *(g[1] for _, g in each))
    jax.tree.map(_assert_nearly_equal, gradients, summed)


def test_empty_arrays_vary_as_others_do():
    found, (dx, dgamma) = pulled(
        on_mesh(numnorm.jax.layer_norm, (True, False), P("d")),
        jnp.zeros((DEVICES, 0, 3)),
        jnp.ones(3),
    )
    assert found.shape == dx.shape == (DEVICES, 0, 3)
    np.testing.assert_array_equal(dgamma, np.zeros(3))
