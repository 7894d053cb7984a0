"""What lies at the ends of a type's range: epsilons, constants, statistics, parameters."""

import warnings

import numpy as np
import pytest
from accuracy_cases import needs_wide_longdouble

import numnorm

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


@pytest.mark.parametrize(
    "variance", [1e-300, 1e-290, 1e290, pytest.param(1e306, marks=needs_wide_longdouble)]
)
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


@pytest.mark.parametrize("weight", [None, 1e-300, 1.0, 1e300])
@pytest.mark.parametrize("scale", [1e-320, 1e-200, 1e-155, 1e-145, 1e145, 1e155, 1e300])
def test_a_weighted_float64_channel_is_right_or_nan(scale, weight):
    x = np.random.default_rng(0).normal(size=(50, 3))
    x[:, 2] = 1.0
    given = {"where": True} if weight is None else {"weights": np.full(50, weight)}
    with np.errstate(all="raise"):
        with np.errstate(under="ignore"):
            scaled = x * scale
        y = numnorm.batch_norm(scaled, eps=0, **given)
        moments = numnorm.batch_moments(scaled, **given)
    np.testing.assert_array_equal(y[:, 2], 0 if np.isfinite(moments.m2[2]) else np.nan)
    expected = numnorm.standard_normal_variate(x.astype(np.float64), axis=0)
    for channel in range(2):
        # Large weights are scaled to 2**64, and 2**64 * 1e290 overflows.
        if 1e-150 < scale < 1e150 and (weight, scale) != (1e300, 1e145):
            np.testing.assert_allclose(y[:, channel], expected[:, channel], rtol=1e-12, atol=1e-13)
        else:
            assert np.isnan(y[:, channel]).all()


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
    np.testing.assert_array_equal(ends.var(), np.inf)


def called(norm):
    """Return a norm's functions, their keywords, and whether the backward pass takes epsilon."""
    options = {"group_norm": {"groups": 2}, "weight_norm": {}}.get(norm, {})
    return getattr(numnorm, f"{norm}_forward"), getattr(numnorm, f"{norm}_backward"), options


WEIGHTED = ["layer_norm", "rms_norm", "ada_norm", "batch_norm", "group_norm", "instance_norm"]


def of_weights(norm, x, dy, weights):
    """Return y, the statistics and all gradients."""
    forward, backward, options = called(norm)
    y, *statistics = forward(x, weights=weights, **options)
    gradients = backward(dy, x, *statistics, weights=weights, **options)
    return [y, *statistics, *(gradients if isinstance(gradients, tuple) else [gradients])]


@pytest.mark.parametrize("exponent", [-1040, -1000, -500, 500, 1000, 1023])
@pytest.mark.parametrize("norm", WEIGHTED)
def test_the_scale_of_weights_does_not_matter(norm, exponent):
    rng = np.random.default_rng(0)
    x, dy = rng.normal(size=(2, 6, 4, 9))
    # 16 significant bits, which the smallest numbers of float64 have, too.
    weights = np.round(rng.random(x.shape) * 2**16) / 2**16
    weights[rng.random(x.shape) < 0.1] = 0.0
    expected = of_weights(norm, x, dy, weights)
    with np.errstate(all="raise"):
        found = of_weights(norm, x, dy, np.ldexp(weights, exponent))
    for array, before in zip(found, expected, strict=True):
        np.testing.assert_allclose(array, before, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("norm", ["layer_norm", "batch_norm", "instance_norm"])
def test_what_shares_statistics_has_weights_of_its_own_scale(norm):
    rng = np.random.default_rng(0)
    x, dy = rng.normal(size=(2, 3, 2, 8))
    weights, exponents = rng.random(x.shape), np.array([-1000, 900])
    axis = {"layer_norm": -1, "instance_norm": -1, "batch_norm": (0, 2)}[norm]
    shape = np.max(x, axis=axis, keepdims=True).shape
    scaled = np.ldexp(weights, np.resize(exponents, shape))
    pairs = zip(of_weights(norm, x, dy, scaled), of_weights(norm, x, dy, weights), strict=True)
    for array, expected in pairs:
        np.testing.assert_allclose(array, expected, rtol=1e-12, atol=1e-13)


def test_the_scale_of_weights_and_of_x_may_both_be_small():
    x = np.random.default_rng(0).normal(size=(3, 8))
    expected = numnorm.layer_norm(x, eps=0, weights=np.arange(8.0))
    small = numnorm.layer_norm(x * 1e-150, eps=0, weights=np.arange(8) * 1e-150)
    np.testing.assert_allclose(small, expected, rtol=1e-13)


def test_small_weights_stay_below_ddof_and_large_ones_lose_it():
    x = np.random.default_rng(0).normal(size=(2, 8))
    small = numnorm.standard_normal_variate(x, ddof=1, weights=np.full(8, 1e-300))
    assert np.isnan(small).all()
    large = numnorm.standard_normal_variate(x, ddof=1, weights=np.full(8, 1e300))
    np.testing.assert_allclose(large, numnorm.standard_normal_variate(x), rtol=1e-13)


def test_a_weight_may_be_anything_where_a_nan_is_omitted():
    x, weights = np.array([[1.0, np.nan, 3.0, 7.0]]), np.array([1.0, np.nan, 2.0, 1.0])
    y = numnorm.layer_norm(x, weights=weights, nan_policy="omit")
    np.testing.assert_array_equal(y[0, [0, 2, 3]], numnorm.layer_norm(
        x[:, [0, 2, 3]], weights=weights[[0, 2, 3]])[0])  # fmt: skip
    weights[1] = 1e300
    np.testing.assert_array_equal(numnorm.layer_norm(x, weights=weights, nan_policy="omit"), y)


@pytest.mark.parametrize("infinity", [np.inf, -np.inf])
@pytest.mark.parametrize("width", [4, 40])
@pytest.mark.parametrize("options", [{}, {"where": np.True_}, {"weights": 1.0}], ids=list)
def test_an_infinity_makes_its_row_and_its_statistics_nan(options, width, infinity):
    options = {name: np.full(width, value) for name, value in options.items()}
    x = np.random.default_rng(0).normal(size=(3, width))
    x[1, -1] = infinity
    for norm in ("layer_norm", "ada_norm", "rms_norm", "weight_norm"):
        forward, backward, _ = called(norm)
        y, *statistics = forward(x, **options)
        dx = backward(np.ones_like(x), x, *statistics, **options)
        for array in (y, *statistics, dx[0] if isinstance(dx, tuple) else dx):
            assert np.isnan(array[1]).all()
            assert np.isfinite(array[::2]).all()


def test_a_length_beyond_the_range():
    x = np.full((1, 4), 1.7e308)
    y, norm = numnorm.weight_norm_forward(x)
    np.testing.assert_array_equal(y, 0.5)
    assert norm == np.inf
    assert np.isnan(numnorm.weight_norm_backward(np.ones((1, 4)), x, norm).dx).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("norm", [*WEIGHTED, "weight_norm", "moving_norm", "exponential_norm"])
def test_no_floating_point_error_comes_out(norm, dtype):
    forward, backward, options = called(norm)
    window = {"moving_norm": (3,), "exponential_norm": (0.3,)}.get(norm, ())
    numbers, x = np.finfo(dtype), np.random.default_rng(0).normal(size=(6, 4, 9))
    inputs = [x, np.clip(x / 3, -1, 1) * numbers.max, np.round(5 * x) * numbers.smallest_subnormal]
    where = np.arange(9) % 3 > 0
    for values in inputs:
        values = values.astype(dtype)
        for others in ({}, {"where": where}, {"where": where, "fill": 1e300}, {"fill": -np.inf}):
            with np.errstate(all="raise"):
                y, *statistics = forward(values, *window, **others, **options)
                given = {name: value for name, value in others.items() if name != "fill"}
                backward(values, values, *statistics, *window, **given, **options)
            if "fill" in others and "where" in others:
                assert np.isposinf(y[..., ~where]).all()


def test_running_statistics_and_moments_raise_no_floating_point_error():
    x = (np.random.default_rng(0).normal(size=(6, 4)) * 1e-30).astype(np.float32)
    for options in ({}, {"where": x > 0}, {"weights": np.full(6, 0.3)}):
        running = np.zeros(4, np.float16), np.zeros(4, np.float16)
        with np.errstate(all="raise"):
            numnorm.batch_norm(x, running_mean=running[0], running_var=running[1], **options)
            moments = numnorm.batch_moments(x, **options)
            moments.merge(moments).std()


@needs_wide_longdouble
@pytest.mark.parametrize("values", [[1.7e308] * 8, [1e308, -1e308, 1e308, 1e308] * 2])
def test_running_means_of_instances_at_the_ends_of_float64(values):
    running = np.zeros(1), np.zeros(1)
    x = np.array(values).reshape(1, 1, -1)
    numnorm.instance_norm(x, running_mean=running[0], running_var=running[1], momentum=1.0)
    # A few roundings of a mean of eight numbers.
    expected = float(np.mean(x.astype(np.longdouble)))
    np.testing.assert_allclose(running[0], expected, rtol=1e-15)


@needs_wide_longdouble
@pytest.mark.parametrize("scale", [1e153, 5e153])
def test_running_variances_of_instances_at_the_ends_of_float64(scale):
    x = np.random.default_rng(0).normal(size=(2, 1, 1000)) * scale
    running = np.zeros(1), np.zeros(1)
    numnorm.instance_norm(
        x, running_mean=running[0], running_var=running[1], momentum=1.0, unbiased=False
    )
    expected = np.mean(np.var(x.astype(np.longdouble), axis=2))
    np.testing.assert_allclose(running[1], float(expected), rtol=1e-13)
