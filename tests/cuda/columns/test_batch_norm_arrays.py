"""Batch norm on device arrays of every library: results, running statistics, layouts, errors."""

import ml_dtypes
import numpy as np
import pytest
import reference
from fake_libraries import STREAMS
from simulated_target import Kernel

import numnorm
from numnorm.backends import backend_for
from numnorm.backends.contract.norms import ChannelSums, Detached
from numnorm.layouts import column_layout

DTYPES = ("float16", "bfloat16", "float32", "float64")
# A shape with its channel axis: plain, channels first and last, whole and ragged.
PLACES = {
    "plain": ((9, 5), 1),
    "plain, whole": ((6, 16), 1),
    "channels first": ((3, 4, 3, 3), 1),
    "channels first, whole": ((3, 2, 4, 4), 1),
    "channels last": ((2, 3, 3, 8), -1),
    "channels foremost": ((3, 7), 0),
}


@pytest.fixture
def launched(monkeypatch):
    """The stream of each kernel that was launched."""
    streams, launch = [], Kernel.launch

    def recorded(self, blocks, stream, *arguments):
        streams.append(stream)
        launch(self, blocks, stream, *arguments)

    monkeypatch.setattr(Kernel, "launch", recorded)
    return streams


def dtype_of(name):
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def draw(shape, dtype="float32", seed=0):
    return np.random.default_rng(seed).normal(3, 2, shape).astype(dtype_of(dtype))


def skip_unless_supported(library, dtype):
    if dtype == "bfloat16" and library.called == "numba":
        pytest.skip("a dtype that Numba does not have")


def skip_unless_writable(library):
    if library.called == "jax":
        pytest.skip("JAX has no arrays to write")


def assert_close(got, expected, dtype, roundings=16):
    """So many roundings of the working type at the largest value, and one of what is stored."""
    storage = dtype_of(dtype)
    epsilon = float(np.finfo(np.float64 if dtype == "float64" else np.float32).eps)
    rounding = float(reference.exact(np.spacing(np.ones(1, storage)))[0])
    bound = roundings * epsilon * np.abs(expected).max() + rounding / 2 * np.abs(expected)
    assert got.dtype == storage
    assert np.all(np.abs(reference.exact(got) - expected) <= bound)


def assert_statistic(found, expected, dtype):
    assert found.host.dtype == ("float32" if dtype == "float16" else "float64")
    np.testing.assert_allclose(found.host, np.float64(expected), rtol=3e-6)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_training(library, dtype, place):
    skip_unless_supported(library, dtype)
    shape, axis = PLACES[place]
    x, dy = draw(shape, dtype), draw(shape, dtype, 1)
    gamma, beta = (draw(shape[axis], dtype, seed) for seed in (2, 3))
    of_x, of_gamma = library.take(x), library.take(gamma)
    y, mean, rstd = numnorm.batch_norm_forward(
        of_x, of_gamma, library.take(beta), channel_axis=axis
    )
    expected = reference.batch_norm(x, gamma, beta, axis)
    assert type(y) is type(mean) is type(rstd) is type(of_x)
    assert_close(y.host, expected[0], dtype)
    for found, wanted in zip((mean, rstd), expected[1:], strict=True):
        assert found.host.shape == (shape[axis],)
        assert_statistic(found, wanted, dtype)
    found = numnorm.batch_norm_backward(
        library.take(dy), of_x, mean, rstd, of_gamma, channel_axis=axis
    )
    expected = reference.batch_norm_backward(dy, x, gamma, axis)
    # Where terms of the size of dy cancel, their roundings are left.
    for got, wanted, roundings in zip(found, expected, (128, 64, 64), strict=True):
        assert_close(got.host, wanted, dtype, roundings)


@pytest.mark.parametrize("missing", ["gamma", "beta", "both"])
def test_parameters_may_be_missing(library, missing):
    x, dy = draw((9, 5)), draw((9, 5), seed=1)
    given = {"gamma": draw(5, seed=1), "beta": draw(5, seed=2)}
    given = {} if missing == "both" else {k: v for k, v in given.items() if k != missing}
    taken = {name: library.take(value) for name, value in given.items()}
    y, mean, rstd = numnorm.batch_norm_forward(library.take(x), **taken)
    assert_close(y.host, reference.batch_norm(x, **given)[0], "float32")
    taken.pop("beta", None)
    found = numnorm.batch_norm_backward(library.take(dy), library.take(x), mean, rstd, **taken)
    expected = reference.batch_norm_backward(dy, x, given.get("gamma"))
    for got, wanted in zip(found, expected, strict=True):
        assert_close(got.host, wanted, "float32", 64)


def test_parameters_of_another_float_type(library):
    x, gamma, beta = draw((9, 5)), draw(5, "float64", 1), draw(5, "float16", 2)
    taken = [library.take(array) for array in (x, gamma, beta)]
    y, mean, rstd = numnorm.batch_norm_forward(*taken)
    assert_close(y.host, reference.batch_norm(x, gamma, beta)[0], "float32")
    mean = library.take(mean.host.astype(np.float32))
    dx, dgamma, dbeta = numnorm.batch_norm_backward(taken[0], taken[0], mean, rstd, taken[1])
    expected = reference.batch_norm_backward(x, x, gamma)
    assert dx.host.dtype == np.float32
    assert dgamma.host.dtype == dbeta.host.dtype == np.float64
    np.testing.assert_allclose(dgamma.host, np.float64(expected[1]), rtol=1e-5)


@pytest.mark.parametrize("given", ["gamma", "no gamma"])
@pytest.mark.parametrize("dtype, dy_dtype, scale", [
    ("float16", "float32", 1e5), ("float16", "float32", 1e-2), ("float32", "float64", 1e-99),
    ("float32", "float16", 1),
])  # fmt: skip
def test_a_gradient_of_another_dtype(library, dtype, dy_dtype, scale, given):
    if library.called == "jax" and dy_dtype == "float64":
        pytest.skip("its statistics are float32")
    x, gamma = draw((9, 5), dtype), draw(5, dy_dtype, 2)
    dy = draw((9, 5), dy_dtype, 1) * dtype_of(dy_dtype).type(scale)
    gammas = [gamma] if given == "gamma" else []
    of_x, *taken = (library.take(array) for array in (x, *gammas))
    _, mean, rstd = numnorm.batch_norm_forward(of_x, *taken)
    dx, *found = numnorm.batch_norm_backward(library.take(dy), of_x, mean, rstd, *taken)
    dx_expected, *expected = reference.batch_norm_backward(dy, x, *gammas)
    if scale == 1 or scale == 1e-2:  # else out of the range of dx
        assert_close(dx.host, dx_expected, dtype, 128)
    elif not gammas:
        return
    for got, wanted in zip(found, expected, strict=True):
        assert_close(got.host, wanted, dy_dtype if gammas else dtype, 64)


@pytest.mark.parametrize("place", PLACES)
def test_any_order_of_threads(library, place, order):
    shape, axis = PLACES[place]
    x, dy = draw(shape), draw(shape, seed=1)
    of_x = library.take(x)
    y, mean, rstd = numnorm.batch_norm_forward(of_x, channel_axis=axis)
    assert_close(y.host, reference.batch_norm(x, channel_axis=axis)[0], "float32")
    dx = numnorm.batch_norm_backward(library.take(dy), of_x, mean, rstd, channel_axis=axis).dx
    expected = reference.batch_norm_backward(dy, x, channel_axis=axis)[0]
    assert_close(dx.host, expected, "float32", 128)


@pytest.mark.parametrize("eps", [1e-33, 1e-62, 1e-300])
def test_constants_with_a_tiny_eps_are_normalized_to_beta(imported, eps):
    library, beta = imported("torch"), draw(4)
    dy = np.float32([[1], [-1], [2], [-2]]) * np.ones(4, np.float32)
    for constant in (0.0, 1.0, 3e38):
        x = library.take(np.full((4, 4), constant, np.float32))
        y, mean, rstd = numnorm.batch_norm_forward(x, None, library.take(beta), eps=eps)
        np.testing.assert_array_equal(y.host, np.broadcast_to(beta, (4, 4)))
        dx = numnorm.batch_norm_backward(library.take(dy), x, mean, rstd)[0]
        # dy has the mean 0; only the last of these leaves the range of float32.
        if eps > 1e-70:
            expected = dy / np.sqrt(eps)
            np.testing.assert_allclose(dx.host, expected, rtol=4 * np.finfo(np.float32).eps)


def test_inference_beyond_the_range_is_infinite_or_the_largest_number(imported):
    library, x = imported("torch"), np.float32([[0.1], [0.2], [0.05], [0.1]])
    stored = {"running_mean": np.array([0.1]), "running_var": np.array([1e-100])}
    stored = {name: library.take(array) for name, array in stored.items()}
    with np.errstate(over="ignore"):  # the simulated device
        y = numnorm.batch_norm(library.take(x), training=False, eps=0, **stored).host
    assert np.all(np.abs(y) >= np.finfo(np.float32).max)
    np.testing.assert_array_equal(np.sign(y), np.sign(np.float64(x) - 0.1))


# Running statistics


@pytest.mark.parametrize("running_dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(
    "options", [{}, {"convention": "keras"}, {"momentum": "cumulative", "batches": 3}]
)
def test_running_statistics_are_updated_as_on_the_host(library, running_dtype, options):
    skip_unless_writable(library)
    x = draw((9, 5))
    mean, variance = draw(5, running_dtype, 1), np.abs(draw(5, running_dtype, 2))
    host = mean.copy(), variance.copy()
    numnorm.batch_norm(x, running_mean=host[0], running_var=host[1], **options)
    numnorm.batch_norm(
        library.take(x),
        running_mean=library.take(mean),
        running_var=library.take(variance),
        **options,
    )
    # Sums of float32 on a device, of float64 on the host: a rounding of float16 may differ.
    precision = max(1e-6, float(np.finfo(running_dtype).eps))
    np.testing.assert_allclose(mean, host[0], rtol=precision)
    np.testing.assert_allclose(variance, host[1], rtol=precision)


def test_running_arrays_may_be_strided(library):
    skip_unless_writable(library)
    x, memory = draw((9, 5)), draw((5, 2))
    whole = library.take(memory)
    if library.called == "torch":
        mean, variance = (type(whole)(memory[:, k]) for k in (0, 1))
    else:
        mean, variance = (library.take(memory[:, k]) for k in (0, 1))
    host = memory.copy()
    numnorm.batch_norm(x, running_mean=host[:, 0], running_var=host[:, 1])
    numnorm.batch_norm(library.take(x), running_mean=mean, running_var=variance)
    np.testing.assert_allclose(memory, host, rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("place", ["plain", "channels first", "channels last"])
def test_inference(library, place, dtype):
    skip_unless_supported(library, dtype)
    shape, axis = PLACES[place]
    x, dy, gamma = draw(shape, dtype), draw(shape, dtype, 1), draw(shape[axis], dtype, 2)
    running = draw(shape[axis], seed=3), np.abs(draw(shape[axis], seed=4))
    before = [array.copy() for array in running]
    of_x, of_gamma = library.take(x), library.take(gamma)
    y, mean, rstd = numnorm.batch_norm_forward(
        of_x,
        of_gamma,
        running_mean=library.take(running[0]),
        running_var=library.take(running[1]),
        training=False,
        channel_axis=axis,
    )
    expected = reference.batch_norm_inference(x, *running, gamma, channel_axis=axis)
    assert_close(y.host, expected[0], dtype)
    assert_statistic(mean, expected[1], dtype)
    assert_statistic(rstd, expected[2], dtype)
    assert not np.shares_memory(mean.host, running[0])
    for array, old in zip(running, before, strict=True):
        assert array.tobytes() == old.tobytes()
    found = numnorm.batch_norm_backward(
        library.take(dy), of_x, mean, rstd, of_gamma, channel_axis=axis, training=False
    )
    expected = reference.batch_norm_inference_backward(dy, x, *running, gamma, channel_axis=axis)
    for got, wanted in zip(found, expected, strict=True):
        assert_close(got.host, wanted, dtype, 64)


# Where results are written


@pytest.mark.parametrize("place", PLACES)
def test_out_and_in_place(library, place):
    skip_unless_writable(library)
    shape, axis = PLACES[place]
    x, dy = draw(shape), draw(shape, seed=1)
    of_x, of_dy = library.take(x), library.take(dy)
    y, mean, rstd = numnorm.batch_norm_forward(of_x, channel_axis=axis)
    expected = y.host.copy()
    assert numnorm.batch_norm(of_x, channel_axis=axis, out=y) is y
    assert y.host.tobytes() == expected.tobytes()
    dx = numnorm.batch_norm_backward(of_dy, of_x, mean, rstd, channel_axis=axis).dx.host
    found = numnorm.batch_norm_backward(of_dy, of_x, mean, rstd, channel_axis=axis, out=of_dy)
    assert found.dx is of_dy
    assert of_dy.host.tobytes() == dx.tobytes()
    assert numnorm.batch_norm(of_x, channel_axis=axis, out=of_x) is of_x
    assert of_x.host.tobytes() == expected.tobytes()


@pytest.mark.parametrize("shape", [(5, 3), (5, 8), (3, 2, 16), (3, 2, 5)])
@pytest.mark.parametrize("of_x, of_dy, of_out", [(1, 0, 0), (0, 1, 2), (2, 3, 1)])
def test_arrays_that_begin_anywhere(library, shape, of_x, of_dy, of_out):
    skip_unless_writable(library)
    size = int(np.prod(shape))
    memories = [draw(size + 4, seed=seed) for seed in range(3)]
    for memory in memories:
        library.take(memory)
    x, dy, out = (
        memory[start : start + size].reshape(shape)
        for memory, start in zip(memories, (of_x, of_dy, of_out), strict=True)
    )
    of_x, of_dy, of_out = (library.take(array) for array in (x, dy, out))
    _, mean, rstd = numnorm.batch_norm_forward(of_x, out=of_out)
    assert_close(out, reference.batch_norm(x)[0], "float32")
    numnorm.batch_norm_backward(of_dy, of_x, mean, rstd, out=of_out)
    assert_close(out, reference.batch_norm_backward(dy, x)[0], "float32", 64)
    numnorm.batch_norm_backward(of_dy, of_x, mean, rstd, training=False, out=of_out)
    expected = reference.batch_norm_inference_backward(dy, x, mean.host, 1 / rstd.host**2, eps=0)
    assert_close(out, expected[0], "float32", 64)


def test_input_that_is_not_contiguous(library):
    if library.called == "jax":
        pytest.skip("JAX has no views")
    host = library.take(draw((6, 10))).host
    y = numnorm.batch_norm(library.take(host[::2, ::2]))
    assert_close(y.host, reference.batch_norm(host[::2, ::2])[0], "float32")


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (2, 4, 0)])
def test_nothing(library, shape):
    x, channels = library.take(np.empty(shape, np.float32)), shape[1]
    running = [library.take(np.ones(channels)) for _ in range(2)]
    given = {"running_mean": running[0], "running_var": running[1]}
    given = {} if library.called == "jax" else given
    y, mean, rstd = numnorm.batch_norm_forward(x, convention="keras", **given)
    assert y.host.shape == shape
    np.testing.assert_array_equal(mean.host, np.zeros(channels))
    np.testing.assert_allclose(rstd.host, np.full(channels, 1e-5**-0.5))
    assert np.all(running[0].host == 1)
    dx, dgamma, dbeta = numnorm.batch_norm_backward(x, x, mean, rstd)
    assert dx.host.shape == shape
    assert np.all(dgamma.host == 0) and np.all(dbeta.host == 0)
    assert dgamma.host.shape == dbeta.host.shape == (channels,)


def test_stream_of_the_library(library, launched):
    x = library.take(draw((9, 5)))
    _, mean, rstd = numnorm.batch_norm_forward(x)
    numnorm.batch_norm_backward(x, x, mean, rstd)
    assert set(launched) == {STREAMS[library.called]}


def test_numba_works_on_the_stream_of_x(library, launched):
    if library.called != "numba":
        pytest.skip("its arrays carry no stream")

    class Stream:
        handle = 5

    x = library.take(draw((9, 5)), stream=Stream())
    running = [library.take(np.ones(5)) for _ in range(2)]
    for training in (True, False):
        numnorm.batch_norm_forward(
            x, running_mean=running[0], running_var=running[1], training=training
        )
    assert set(launched) == {5}


def test_no_more_kernels_than_needed(library, launched):
    x = library.take(draw((9, 5)))
    _, mean, rstd = numnorm.batch_norm_forward(x)
    assert len(launched) == 5  # moments, merged, 1 / deviation, terms, y
    numnorm.batch_norm_backward(x, x, mean, rstd)
    assert len(launched) == 9  # terms, sums, gradients with terms, dx


def test_jax_without_float64(library):
    if library.called != "jax":
        pytest.skip("the others have float64")
    library.config.jax_enable_x64 = False
    # A mean far beside the deviation would be lost in float32.
    x = (1000 + draw((9, 5))).astype(np.float32)
    y, mean, rstd = numnorm.batch_norm_forward(library.take(x))
    expected = reference.batch_norm(x)
    assert mean.host.dtype == rstd.host.dtype == np.float32
    assert_close(y.host, expected[0], "float32")
    np.testing.assert_allclose(mean.host, np.float64(expected[1]), rtol=1e-6)
    dx = numnorm.batch_norm_backward(library.take(x), library.take(x), mean, rstd).dx
    assert dx.host.dtype == np.float32


# Errors


def refused(kind, match, function, *arguments, **options):
    with pytest.raises(kind, match=match):
        function(*arguments, **options)


@pytest.mark.parametrize("training", [True, False])
def test_running_statistics_elsewhere(library, training):
    x, mean = library.take(draw((9, 5))), np.zeros(5)

    def refuse(kind, match, mean, variance):
        options = {"running_mean": mean, "running_var": variance, "training": training}
        refused(kind, match, numnorm.batch_norm, x, **options)

    refuse(TypeError, r"^running_mean must be a .* on device 0, as x is, got numpy", mean, mean)
    wrong, there = library.take(np.zeros(4)), library.take(np.zeros(5), 1)
    if training and library.called == "jax":
        here = library.take(mean)
        refuse(TypeError, "^running_mean .* to be updated: a jax.Array cannot", here, here)
        return
    refuse(ValueError, r"^running_mean must have shape \(5,\), the channels of x", wrong, wrong)
    refuse(ValueError, "^running_mean must be on device 0, as x is", there, there)
    here = library.take(mean)
    refuse(ValueError, "^running_var must be on device 0", here, there)
    if training:
        refuse(ValueError, "^running_var must not share memory", here, here)
        both = np.zeros(8)
        parts = library.take(both[:5]), library.take(both[3:])
        refuse(ValueError, "^running_var must not share memory", *parts)
        every = np.zeros(12)
        parts = library.take(every[0:10:2]), library.take(every[2:12:2])
        refuse(ValueError, "^running_var must not share memory", *parts)
    assert np.all(mean == 0)


def test_running_statistics_between_each_other(imported):
    both = np.zeros(10)
    both[1::2], take = 1, imported("cupy").take
    x = draw((9, 5))
    numnorm.batch_norm(take(x), running_mean=take(both[::2]), running_var=take(both[1::2]))
    mean, variance = np.zeros(5), np.ones(5)
    numnorm.batch_norm(x, running_mean=mean, running_var=variance)
    np.testing.assert_allclose(both[::2], mean, rtol=1e-6)
    np.testing.assert_allclose(both[1::2], variance, rtol=1e-6)


@pytest.mark.parametrize("options, message", [
    ({"clip": 1.0}, "clip must be None on a device: clip the result"),
    ({"with_mean": False}, "with_mean must be True on a device, got False"),
    ({"clip": 1.0, "nan_policy": "omit"}, "clip must be None on a device: clip the result"),
])  # fmt: skip
def test_what_a_device_lacks_is_refused_before_anything_is_written(imported, options, message):
    take, x = imported("cupy").take, draw((9, 5))
    mean, variance, out = np.zeros(5), np.ones(5), np.zeros_like(x)
    with pytest.raises(NotImplementedError, match=f"^{message}$"):
        numnorm.batch_norm(
            take(x), running_mean=take(mean), running_var=take(variance), out=take(out), **options
        )
    assert np.all(mean == 0) and np.all(variance == 1) and np.all(out == 0)


def test_refused_parameters_leave_running_statistics(library):
    skip_unless_writable(library)
    mean, variance = np.zeros(5), np.ones(5)
    refused(
        ValueError,
        r"^gamma must have shape \(5,\), the channels of x",
        numnorm.batch_norm,
        library.take(draw((9, 5))),
        library.take(draw(4)),
        running_mean=library.take(mean),
        running_var=library.take(variance),
    )
    assert np.all(mean == 0) and np.all(variance == 1)


def test_refused_gradients(library):
    x = library.take(draw((9, 5)))
    one, two = library.take(np.ones(5)), library.take(np.ones(4))
    backward = numnorm.batch_norm_backward
    refused(ValueError, "^dy must have shape", backward, two, x, one, one)
    refused(TypeError, "^dy must be a .* got numpy", backward, draw((9, 5)), x, one, one)
    refused(ValueError, r"^mean must have shape \(5,\)", backward, x, x, two, one)
    refused(TypeError, "^rstd must be a .* got numpy", backward, x, x, one, np.ones(5))
    refused(ValueError, "^gamma must be on device 0", backward, x, x, one, one,
            library.take(draw(5), 1))  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_a_part_takes_the_sums_of_all_data(library, place):
    shape, axis = PLACES[place]
    x, dy = draw(shape), draw(shape, seed=1)
    _, mean, rstd = numnorm.batch_norm_forward(x, channel_axis=axis)
    dx, dgamma, dbeta = numnorm.batch_norm_backward(
        dy.astype(float), x.astype(float), mean, rstd, channel_axis=axis
    )
    part, grads = np.copy(x[:1]), np.copy(dy[:1])
    if axis == 0:
        mean, rstd, dgamma, dbeta = (array[:1] for array in (mean, rstd, dgamma, dbeta))
    backend, of_x = backend_for(library.take(part), "x")
    # The kernels round the mean to float32.
    products = dgamma + (mean - mean.astype(np.float32)) * rstd * dbeta
    sums = ChannelSums(x.size // shape[axis], *map(library.take, (products, dbeta)))
    given = (library.take(array) for array in (grads, mean, rstd))
    gradient, saved_mean, saved_rstd = given
    found = backend.column_backward(
        gradient, of_x, saved_mean, saved_rstd, None,
        column_layout(part.shape, axis), Detached(), None, sums,
    )[0]  # fmt: skip
    assert_close(found.host, dx[:1], "float32", 128)


@pytest.mark.parametrize(
    "shape, channel_axis", [((2, 3, 4), 1), ((3, 4, 5), 2), ((4, 2, 2, 3), -1)]
)
def test_running_statistics_of_instance_norm(shape, channel_axis, library):
    if library.called == "jax":
        pytest.skip("JAX has no arrays to write")
    x = np.random.default_rng(8).normal(1e3, 2, shape)
    statistics = np.random.default_rng(9).random((2, shape[channel_axis]))
    there = [library.take(one.copy()) for one in statistics]
    given, options = library.take(x.copy()), {"channel_axis": channel_axis, "momentum": 0.3}
    numnorm.instance_norm(given, running_mean=there[0], running_var=there[1], out=given, **options)
    axes = tuple(axis for axis in range(1, x.ndim) if axis != channel_axis % x.ndim)
    averages = x.mean(axis=axes).mean(axis=0), x.var(axis=axes, ddof=1).mean(axis=0)
    for found, before, new in zip(there, statistics, averages, strict=True):
        np.testing.assert_allclose(found.host, 0.7 * before + 0.3 * new, rtol=1e-12)
