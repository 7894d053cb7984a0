"""What lies at the ends of a type's range: epsilons, constants, statistics, parameters."""

import os
import warnings

import numpy as np
import pytest

import numnorm

COMPILED = os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"
# Kernels that run as Python warn of an overflow that is meant; compiled, nothing may.
pytestmark = [] if COMPILED else [pytest.mark.filterwarnings("ignore::RuntimeWarning")]

TINY = [1e-33, 1e-40, 1e-62, 1e-300, 5e-324]
FLOATS = [np.float16, np.float32, np.float64]
LARGE = {np.float16: 6e4, np.float32: 3e38, np.float64: 1e300}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("width", [5, 40, 3000])
@pytest.mark.parametrize("eps", TINY)
def test_constants_with_a_tiny_eps_are_normalized_to_beta(dtype, width, eps):
    for constant in (0.0, 1.0, -1e-3, LARGE[dtype]):
        x = np.full((3, width), constant, dtype)
        beta = np.arange(width).astype(dtype)
        rows = numnorm.layer_norm(x, np.ones(width, dtype), beta, eps=eps)
        np.testing.assert_array_equal(rows, np.broadcast_to(beta, x.shape))
        np.testing.assert_array_equal(numnorm.ada_norm(x, eps=eps), 0)
        np.testing.assert_array_equal(numnorm.instance_norm(x[:, None], eps=eps), 0)
        channels = numnorm.batch_norm(x, np.ones(width, dtype), beta, eps=eps)
        np.testing.assert_array_equal(channels, rows)
        along = numnorm.batch_norm(x[None], np.ones(3, dtype), beta[:3], eps=eps)
        np.testing.assert_array_equal(along, np.broadcast_to(beta[:3, None], along.shape))


@pytest.mark.parametrize("dtype", FLOATS)
def test_zeros_with_a_tiny_eps_have_an_rms_norm_of_zero(dtype):
    for eps in TINY:
        np.testing.assert_array_equal(numnorm.rms_norm(np.zeros((3, 40), dtype), eps=eps), 0)


@pytest.mark.parametrize("norm", [numnorm.layer_norm, numnorm.batch_norm])
def test_the_gradient_of_a_constant_with_a_tiny_eps(norm):
    # All values are the same and dy has the mean 0: dx = dy / sqrt(eps), one rounding of float32
    # for each of three products.
    forward = getattr(numnorm, f"{norm.__name__}_forward")
    backward = getattr(numnorm, f"{norm.__name__}_backward")
    for constant, eps in ((3e38, 1e-33), (1.0, 1e-40), (3e38, 1e-62)):
        x, dy = np.full((4, 4), constant, np.float32), np.float32([[1, -1, 2, -2]] * 4)
        dy = dy if norm is numnorm.layer_norm else dy.T.copy()
        y, *saved = forward(x, eps=eps)
        np.testing.assert_array_equal(y, 0)
        dx, dgamma, _ = backward(dy, x, *saved)
        np.testing.assert_allclose(dx, dy / np.sqrt(eps), rtol=4 * np.finfo(np.float32).eps)
        np.testing.assert_array_equal(dgamma, 0)


@pytest.mark.parametrize("shape", [(4, 1), (4, 1, 1)])
def test_inference_beyond_the_range_is_infinite_or_the_largest_number(shape):
    # (x - 0.1) / 1e-50, with 0.1 in float64: x is 0.1 rounded to float32, and farther away.
    x = np.float32([0.1, 0.2, 0.05, 0.1]).reshape(shape)
    stored = {"running_mean": np.array([0.1]), "running_var": np.array([1e-100])}
    y = numnorm.batch_norm(x, training=False, eps=0, **stored)
    assert np.all(np.abs(y) >= np.finfo(np.float32).max)
    np.testing.assert_array_equal(np.sign(y), np.sign(np.float64(x) - 0.1))


def test_an_infinite_parameter_is_not_made_finite():
    x = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    assert np.all(np.isinf(numnorm.batch_norm(x, np.full(3, np.inf))))
    assert np.all(np.isposinf(numnorm.batch_norm(x, None, np.full(3, np.inf))))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(6, 3), (6, 3, 4)])
def test_a_negative_running_variance_is_refused(dtype, shape):
    x, out = np.ones(shape, np.float32), np.full(shape, 7, np.float32)
    stored = {"running_mean": np.zeros(3, dtype), "running_var": dtype([1, -0.5, np.nan])}
    with pytest.raises(ValueError, match=r"^running_var must not be negative, got -0\.5$"):
        numnorm.batch_norm(x, training=False, out=out, **stored)
    np.testing.assert_array_equal(out, 7)
    stored["running_var"] = dtype([1, -0.0, np.nan])
    y = numnorm.batch_norm(x, training=False, eps=0, **stored)
    np.testing.assert_array_equal(y[:, 0], 1)
    np.testing.assert_array_equal(y[:, 1], 0)
    assert np.all(np.isnan(y[:, 2]))


@pytest.mark.skipif(not COMPILED, reason="kernels that run as Python warn, too")
def test_numbers_beyond_the_range_make_no_warning():
    x, large = np.random.default_rng(0).normal(size=(6, 4)), np.full(4, 1e300)
    for dtype in (np.float16, np.float32):
        rows, statistics = x.astype(dtype), {"running_mean": large, "running_var": large}
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "overflow encountered in cast")
            assert np.all(np.isinf(numnorm.layer_norm(rows, large)))
            assert np.all(np.isinf(numnorm.batch_norm(rows, None, large)))
            assert np.all(np.isinf(numnorm.rms_norm(rows, large)))
            found = numnorm.batch_norm_forward(rows, training=False, **statistics)
            assert np.all(np.isinf(found.mean) == (dtype == np.float16))
            running = np.zeros((4, 2), np.float16)
            numnorm.batch_norm(rows * 4000, running_mean=running[:, 0], running_var=running[:, 1])
            assert np.all(np.isinf(running[:, 1]))


@pytest.mark.parametrize("variance", [1e-300, 1e-290, 1e290, 1e306])
@pytest.mark.parametrize("shape", [(1000, 1), (5000, 1), (1250, 1, 4), (5, 1, 1000)])
def test_a_variance_at_the_ends_of_float64(shape, variance):
    x = np.random.default_rng(0).normal(size=shape)
    x = (x - x.mean()) / x.std() * np.sqrt(variance)
    exact = x.astype(np.longdouble)
    deviation = exact.std()
    running = np.zeros(1), np.zeros(1)
    stored = {"running_mean": running[0], "running_var": running[1], "momentum": 1.0}
    y, mean, rstd = numnorm.batch_norm_forward(x, eps=0, **stored)
    # Deviations below five: a few roundings of each, and of the two statistics.
    np.testing.assert_allclose(y, exact / deviation, rtol=0, atol=2e-14)
    np.testing.assert_allclose(rstd * deviation, 1, rtol=2e-15)
    np.testing.assert_allclose(running[1] / exact.var(ddof=1), 1, rtol=4e-15)
    dy = np.random.default_rng(1).normal(size=shape)
    dx = numnorm.batch_norm_backward(dy, x, mean, rstd)[0]
    xhat = (exact - exact.mean()) / deviation
    expected = (dy - dy.mean() - xhat * (dy * xhat).mean()) / deviation
    np.testing.assert_allclose(dx * deviation, expected * deviation, rtol=0, atol=4e-14)


@pytest.mark.parametrize("shape", [(6, 1), (5000, 1), (1250, 1, 4), (2, 1, 4)])
def test_a_mean_between_opposite_ends_of_float64(shape):
    size = int(np.prod(shape))
    x = np.repeat([1e308, -1e308], size // 2).reshape(shape)
    running = np.zeros(1), np.zeros(1)
    stored = {"running_mean": running[0], "running_var": running[1], "momentum": 1.0}
    found = numnorm.batch_norm_forward(x, **stored).mean
    # The mean is 0; its roundings are those of numbers of 1e308.
    for mean in (found, running[0], numnorm.batch_moments(x).mean):
        assert np.all(np.abs(mean) <= 8 * 2.0**-53 * 1e308)
    ends = numnorm.batch_moments(x[: len(x) // 2]).merge(numnorm.batch_moments(x[len(x) // 2 :]))
    assert np.all(np.abs(ends.mean) <= 8 * 2.0**-53 * 1e308)
    np.testing.assert_array_equal(ends.variance(), np.inf)
