"""Arrays of JAX on the CPU: arrays of JAX come back."""

import ml_dtypes
import numpy as np
import pytest
from library_calls import CALLS, check_call, draw

import numnorm
from numnorm import rnn

jax = pytest.importorskip("jax", reason="JAX is not installed")

pytestmark = pytest.mark.jax
KIND = type(jax.numpy.ones(1))


@pytest.fixture
def float64():
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_arrays_of_jax_give_arrays_of_jax(call, float64):
    check_call(call, jax.numpy.asarray, KIND, np.asarray)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.int32, np.bool_])
def test_without_float64(dtype):
    x = (3 * draw(4, 9)).astype(np.int32).astype(dtype)
    y, *statistics = numnorm.layer_norm_forward(jax.numpy.asarray(x))
    expected, *exact = numnorm.layer_norm_forward(x)
    assert type(y) is KIND
    wanted = np.float32 if expected.dtype == np.float64 else expected.dtype
    assert y.dtype == wanted
    np.testing.assert_array_equal(np.asarray(y), expected.astype(wanted))
    for mine, one in zip(statistics, exact, strict=True):
        assert type(mine) is (KIND if one.dtype == np.float32 else np.ndarray)
        np.testing.assert_array_equal(mine, one, strict=type(mine) is np.ndarray)


@pytest.mark.parametrize("name", ["layer_norm", "instance_norm", "batch_norm"])
def test_gradients_far_from_0_without_float64(name):
    x, dy = 1e7 + draw(6, 5, 40), draw(6, 5, 40, seed=1)
    forward, backward = (getattr(numnorm, f"{name}_{way}") for way in ("forward", "backward"))
    expected = backward(dy, x, *forward(x)[1:])
    given = jax.numpy.asarray(x)
    gradients = backward(jax.numpy.asarray(dy), given, *forward(given)[1:])
    assert {type(gradient) for gradient in gradients} == {KIND}
    for gradient, one in zip(gradients, expected, strict=True):
        np.testing.assert_array_equal(np.asarray(gradient), one)


@pytest.mark.parametrize("channel_axis", [1, (1, 2)])
def test_moments_far_from_0_without_float64(channel_axis):
    x = 1e7 + draw(60, 2, 3)
    others = 0 if channel_axis != 1 else (0, 2)
    moments = None
    for chunk in np.split(x, 4):
        moments = numnorm.batch_moments(
            jax.numpy.asarray(chunk), channel_axis=channel_axis, after=moments
        )
    both = numnorm.batch_moments(jax.numpy.asarray(x), channel_axis=channel_axis).merge(moments)
    for found in (moments, both):  # the squares are of float32
        expected = np.var(x, others, np.float64)
        np.testing.assert_allclose(found.var(), expected, rtol=2.0**-24)


def test_large_results_are_not_copied(monkeypatch):
    from numnorm.backends import cpu

    seen, row_forward = [], cpu.row_forward

    def spy(norm, x, *others):
        results = row_forward(norm, x, *others)
        seen.extend(array.__array_interface__["data"][0] for array in (x, results[0]))
        return results

    monkeypatch.setattr(cpu, "row_forward", spy)
    x = jax.numpy.asarray(draw(4096, 64))  # smaller results may not be aligned
    y = numnorm.layer_norm(x)
    assert seen == [x.unsafe_buffer_pointer(), y.unsafe_buffer_pointer()]
    # The memory belongs to the result alone: it stays as it is when others come and go.
    before = np.array(y)
    for _ in range(5):
        numnorm.layer_norm(x + 1.0)
    np.testing.assert_array_equal(np.asarray(y), before)


def test_the_result_is_on_the_device_of_x_and_committed_as_x():
    x = jax.numpy.asarray(draw(4, 9))
    y = numnorm.layer_norm(x)
    assert y.devices() == x.devices()
    assert y.committed == x.committed
    given = jax.device_put(x, jax.devices("cpu")[0])
    assert numnorm.layer_norm(given).committed


TRACERS = {
    "jit": lambda function, x: jax.jit(function)(x),
    "grad": lambda function, x: jax.grad(lambda z: function(z).sum())(x),
    "vmap": lambda function, x: jax.vmap(function)(x),
}
CALLS_OF_ONE = {
    "x": numnorm.layer_norm,
    "gamma": lambda gamma: numnorm.layer_norm(draw(4, 9), gamma),
    "dy": lambda dy: numnorm.layer_norm_backward(dy, draw(4, 9), draw(4), draw(4)),
}


@pytest.mark.parametrize("transform", TRACERS.values(), ids=TRACERS)
@pytest.mark.parametrize("name", CALLS_OF_ONE)
def test_tracers_are_refused(name, transform):
    message = f"^{name} must have values, got a tracer of JAX: use numnorm.jax inside of jit"
    with pytest.raises(TypeError, match=message):
        transform(CALLS_OF_ONE[name], jax.numpy.asarray(draw(4, 9)))


SUMS = {
    "x": lambda x: numnorm.add_layer_norm(x, draw(4, 9)).y,
    "residual": lambda residual: numnorm.add_layer_norm(draw(4, 9), residual).y,
    "gamma": lambda gamma: numnorm.add_layer_norm(draw(4, 9), draw(4, 9), gamma).y,
    "dtotal": lambda dtotal: (
        numnorm.add_layer_norm_backward(draw(4, 9), draw(4, 9), draw(4), draw(4), dtotal=dtotal).dx
    ),
}


@pytest.mark.parametrize("transform", TRACERS.values(), ids=TRACERS)
@pytest.mark.parametrize("name", SUMS)
def test_norms_of_sums_refuse_tracers(name, transform):
    message = (
        f"^{name} must have values, got one that is traced: write the sum, "
        r"numnorm\.jax\.layer_norm\(x \+ residual\)"
    )
    with pytest.raises(TypeError, match=message):
        transform(SUMS[name], jax.numpy.asarray(draw(4, 9)))


def test_arrays_of_jax_cannot_be_written():
    x = jax.numpy.asarray(draw(4, 9))
    with pytest.raises(ValueError, match=r"^out must be writable, got a read-only array$"):
        numnorm.layer_norm(x, out=x)
    with pytest.raises(ValueError, match=r"^running_mean must be writable to be updated"):
        numnorm.batch_norm(x, running_mean=x[0], running_var=x[0])
    out = np.zeros((4, 9), np.float32)
    assert numnorm.layer_norm(x, out=out) is out


def test_a_callback_of_jax_gets_arrays_of_numpy_or_of_jax():
    x = jax.numpy.asarray(draw(4, 9))
    like = jax.ShapeDtypeStruct(x.shape, x.dtype)
    y = jax.jit(lambda z: jax.pure_callback(numnorm.layer_norm, like, z))(x)
    np.testing.assert_array_equal(np.asarray(y), np.asarray(numnorm.layer_norm(x)))


def test_states_go_from_call_to_call():
    parameters = rnn.lstm_init(3, 4, rng=np.random.default_rng(0))
    x = jax.numpy.asarray(draw(6, 2, 3))
    whole = rnn.lstm(x, parameters)
    first = rnn.lstm(x[:3], parameters)
    second = rnn.lstm(x[3:], parameters, first.h, first.c)
    np.testing.assert_array_equal(np.asarray(second.h), np.asarray(whole.h))


def test_in_an_array_of_xarray():
    xarray = pytest.importorskip("xarray", reason="xarray is not installed")
    given = jax.numpy.asarray(draw(4, 6))
    x = xarray.DataArray(given, dims=("sample", "band"))
    for result, expected in (
        (
            numnorm.xarray.group_norm(x, draw(6), groups=2, channel_dim="band", dim=()),
            numnorm.group_norm(given, draw(6), groups=2),
        ),
        (numnorm.xarray.batch_norm(x, channel_dim="band"), numnorm.batch_norm(given)),
    ):
        assert type(result.data) is KIND
        np.testing.assert_array_equal(result.values, np.asarray(expected))
