"""The running mean and variance of batch norm under every convention."""

import numpy as np
import pytest
import reference

import numnorm

CHANNELS = 3

# Running arrays are float64 here and the batch is too: a mean of some dozen numbers below ten and
# one weighted sum, so a few roundings of 2^-53 relative to the terms.
RTOL = ATOL = 64 * np.finfo(np.float64).eps


def draw(shape=(6, CHANNELS), dtype=np.float64, seed=0):
    return np.random.default_rng(seed).normal(3.0, 2.0, size=shape).astype(dtype)


def draw_running(dtype=np.float64):
    return np.array([0.5, -1.0, 2.0], dtype), np.array([1.0, 4.0, 0.25], dtype)


def update(x, **options):
    """The running statistics after `x`, from a fresh pair."""
    mean, variance = draw_running()
    numnorm.batch_norm(x, running_mean=mean, running_var=variance, **options)
    return mean, variance


def assert_running(actual, expected):
    for mine, theirs in zip(actual, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=RTOL, atol=ATOL)


CONVENTIONS = [
    pytest.param({}, "torch", 0.1, 1, id="default-is-torch"),
    pytest.param({"convention": "torch"}, "torch", 0.1, 1, id="torch"),
    pytest.param({"momentum": 0.3}, "torch", 0.3, 1, id="torch-momentum"),
    pytest.param({"unbiased": False}, "torch", 0.1, 0, id="torch-biased"),
    pytest.param({"unbiased": True}, "torch", 0.1, 1, id="torch-unbiased"),
    pytest.param({"convention": "keras"}, "keras", 0.99, 0, id="keras"),
    pytest.param({"convention": "keras", "momentum": 0.9}, "keras", 0.9, 0, id="onnx"),
    pytest.param({"convention": "keras", "unbiased": True}, "keras", 0.99, 1, id="keras-unbiased"),
    pytest.param({"convention": "keras", "unbiased": False}, "keras", 0.99, 0, id="keras-biased"),
    pytest.param({"momentum": 1.0}, "torch", 1.0, 1, id="only-the-new-batch"),
    pytest.param({"momentum": 0.0}, "torch", 0.0, 1, id="only-the-old"),
]


@pytest.mark.parametrize("options, convention, momentum, ddof", CONVENTIONS)
def test_update(options, convention, momentum, ddof):
    x = draw()
    kept = reference.kept_share(convention, momentum)
    expected = reference.running_statistics(x, *draw_running(), kept, ddof)
    assert_running(update(x, **options), expected)


def test_update_written_out_for_pytorch():
    x = np.array([[1.0], [2.0], [6.0]])
    mean, variance = np.array([10.0]), np.array([20.0])
    numnorm.batch_norm(x, running_mean=mean, running_var=variance, momentum=0.5)
    # Mean 3, squared distances 4 + 1 + 9 = 14, over two: 7. These are exact in float64, so what
    # is left is one rounding of each.
    assert mean[0] == pytest.approx((10 + 3) / 2, rel=RTOL)
    assert variance[0] == pytest.approx((20 + 7) / 2, rel=RTOL)


def test_update_written_out_for_keras():
    x = np.array([[1.0], [2.0], [6.0]])
    mean, variance = np.array([10.0]), np.array([20.0])
    options = {"momentum": 0.75, "convention": "keras"}
    numnorm.batch_norm(x, running_mean=mean, running_var=variance, **options)
    # As above, but three quarters are kept and the variance is 14 / 3.
    assert mean[0] == pytest.approx(0.75 * 10 + 0.25 * 3, rel=RTOL)
    assert variance[0] == pytest.approx(0.75 * 20 + 0.25 * 14 / 3, rel=RTOL)


@pytest.mark.parametrize("convention, ddof", [("torch", 1), ("keras", 0)])
def test_cumulative_average_weighs_all_batches_alike(convention, ddof):
    mean, variance = np.full(CHANNELS, np.pi), np.full(CHANNELS, np.pi)
    batches = [draw(seed=seed) for seed in range(5)]
    for number, batch in enumerate(batches):
        numnorm.batch_norm(
            batch,
            running_mean=mean,
            running_var=variance,
            momentum="cumulative",
            batches=number,
            convention=convention,
        )
    expected = (
        np.mean([batch.mean(axis=0) for batch in batches], axis=0),
        np.mean([batch.var(axis=0, ddof=ddof) for batch in batches], axis=0),
    )
    assert_running((mean, variance), expected)


def test_cumulative_average_starts_by_forgetting():
    x = draw()
    assert_running(
        update(x, momentum="cumulative", batches=0), (x.mean(axis=0), x.var(axis=0, ddof=1))
    )


@pytest.mark.parametrize("options", [{}, {"convention": "keras"}, {"unbiased": False}])
def test_the_output_uses_the_biased_variance_of_the_batch_whatever_is_stored(options):
    x, (mean, variance) = draw(), draw_running()
    stored = numnorm.batch_norm(x, running_mean=mean, running_var=variance, **options)
    np.testing.assert_array_equal(stored, numnorm.batch_norm(x))
    # Float64 roundings of numbers below four.
    np.testing.assert_allclose(stored, reference.batch_norm(x)[0], rtol=0, atol=1e-14)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("running_dtype", [np.float32, np.float64])
def test_the_caller_arrays_are_updated_in_place(dtype, running_dtype):
    x = draw(dtype=dtype)
    mean, variance = draw_running(running_dtype)
    same_mean, same_variance = mean, variance
    forward = numnorm.batch_norm_forward(x, running_mean=mean, running_var=variance)
    assert same_mean is mean and same_variance is variance
    assert mean.dtype == variance.dtype == running_dtype
    kept = reference.kept_share("torch", 0.1)
    expected = reference.running_statistics(x, *draw_running(), kept, 1)
    # Roundings of the narrower of the two types, a few of them.
    tolerance = 16 * max(np.finfo(dtype).eps, np.finfo(running_dtype).eps)
    np.testing.assert_allclose(mean, expected[0], rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(variance, expected[1], rtol=tolerance, atol=tolerance)
    assert forward.y.dtype == dtype


def test_running_arrays_may_be_strided():
    both = np.stack(draw_running(), axis=1)
    x = draw()
    numnorm.batch_norm(x, running_mean=both[:, 0], running_var=both[:, 1])
    assert_running((both[:, 0], both[:, 1]), update(x))


@pytest.mark.parametrize("shape, channel_axis", [((4, CHANNELS, 5), 1), ((4, 5, CHANNELS), -1)])
def test_every_position_of_a_channel_counts(shape, channel_axis):
    x = draw(shape)
    kept = reference.kept_share("torch", 0.1)
    expected = reference.running_statistics(x, *draw_running(), kept, 1, channel_axis)
    assert_running(update(x, channel_axis=channel_axis), expected)


def test_inference_uses_the_stored_statistics_and_leaves_them():
    x, (mean, variance) = draw(), draw_running()
    mean.flags.writeable = variance.flags.writeable = False
    options = {"running_mean": mean, "running_var": variance, "training": False}
    forward = numnorm.batch_norm_forward(x, **options)
    expected = reference.batch_norm_inference(x, mean, variance)
    np.testing.assert_array_equal(forward.mean, draw_running()[0])
    # One root, one quotient, one product: a few roundings of numbers below thirty.
    np.testing.assert_allclose(forward.rstd, expected[2], rtol=4 * np.finfo(np.float64).eps)
    np.testing.assert_allclose(forward.y, expected[0], rtol=0, atol=3e-14)
    np.testing.assert_array_equal(mean, draw_running()[0])
    np.testing.assert_array_equal(variance, draw_running()[1])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_inference_backward_has_no_gradient_through_the_statistics(dtype):
    x, dy, gamma = draw(dtype=dtype), draw(dtype=dtype, seed=1), draw((CHANNELS,), seed=2)
    mean, variance = draw_running()
    options = {"running_mean": mean, "running_var": variance, "training": False}
    forward = numnorm.batch_norm_forward(x, gamma.astype(dtype), **options)
    actual = numnorm.batch_norm_backward(
        dy, x, forward.mean, forward.rstd, gamma.astype(dtype), training=False
    )
    expected = reference.batch_norm_inference_backward(dy, x, mean, variance, gamma.astype(dtype))
    # Six rows of terms below two hundred in a sum, each with two or three roundings.
    for mine, theirs in zip(actual, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e3 * np.finfo(dtype).eps)


@pytest.mark.parametrize("shape", [(0, CHANNELS), (0, CHANNELS, 4), (4, CHANNELS, 0)])
@pytest.mark.parametrize("options", [{}, {"convention": "keras"}, {"momentum": 1.0}])
def test_an_empty_batch_changes_nothing(shape, options):
    mean, variance = draw_running()
    x = np.empty(shape)
    y = numnorm.batch_norm(x, running_mean=mean, running_var=variance, **options)
    assert y.shape == shape
    np.testing.assert_array_equal(mean, draw_running()[0])
    np.testing.assert_array_equal(variance, draw_running()[1])


@pytest.mark.parametrize("shape", [(1, CHANNELS), (1, CHANNELS, 1)])
@pytest.mark.parametrize("options", [{}, {"convention": "keras", "unbiased": True}])
def test_one_element_has_no_unbiased_variance(shape, options):
    mean, variance = draw_running()
    with pytest.raises(ValueError, match=r"unbiased|Bessel|one element|at least two") as error:
        numnorm.batch_norm(draw(shape), running_mean=mean, running_var=variance, **options)
    assert "\n" not in str(error.value)
    np.testing.assert_array_equal(mean, draw_running()[0])
    np.testing.assert_array_equal(variance, draw_running()[1])


@pytest.mark.parametrize("options", [{"convention": "keras"}, {"unbiased": False}])
def test_one_element_has_a_biased_variance(options):
    x, (mean, variance) = draw((1, CHANNELS)), draw_running()
    numnorm.batch_norm(x, running_mean=mean, running_var=variance, **options)
    convention, momentum = options.get("convention", "torch"), 0.1
    kept = reference.kept_share(convention, 0.99 if convention == "keras" else momentum)
    assert_running((mean, variance), reference.running_statistics(x, *draw_running(), kept, 0))


def test_one_element_without_running_statistics_is_beta():
    gamma, beta = draw((2, CHANNELS))
    y = numnorm.batch_norm(draw((1, CHANNELS)), gamma, beta)
    np.testing.assert_array_equal(y, beta[None])


def test_a_batch_with_a_nan_spoils_the_statistics_of_its_channel_alone():
    x, clean = draw(), draw()
    x[2, 1] = np.nan
    spoiled, expected = update(x), update(clean)
    for mine, theirs in zip(spoiled, expected, strict=True):
        assert np.isnan(mine[1])
        np.testing.assert_array_equal(mine[[0, 2]], theirs[[0, 2]])


FORGETS = [{"momentum": 1.0}, {"convention": "keras", "momentum": 0.0}]
FORGETS += [{"momentum": "cumulative", "batches": 0}]
KEEPS = [{"momentum": 0.0}, {"convention": "keras", "momentum": 1.0}]


@pytest.mark.parametrize("spoiled", [np.nan, np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_statistics_without_weight_are_forgotten_whatever_they_are(dtype, spoiled):
    x = draw()
    for options in FORGETS:
        mean, variance = np.full((2, CHANNELS), spoiled, dtype)
        numnorm.batch_norm(x, running_mean=mean, running_var=variance, **options)
        np.testing.assert_allclose(mean, x.mean(axis=0), rtol=4 * np.finfo(dtype).eps)
        expected = x.var(axis=0, ddof=int("convention" not in options))
        np.testing.assert_allclose(variance, expected, rtol=16 * np.finfo(dtype).eps)


@pytest.mark.parametrize("spoiled", [np.nan, np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_batch_without_weight_changes_nothing_whatever_it_is(dtype, spoiled):
    x = draw()
    x[2, 1] = spoiled
    for options in KEEPS:
        mean, variance = draw_running(dtype)
        with np.errstate(all="ignore"):  # kernels that run as Python warn
            numnorm.batch_norm(x, running_mean=mean, running_var=variance, **options)
        np.testing.assert_array_equal(mean, draw_running(dtype)[0])
        np.testing.assert_array_equal(variance, draw_running(dtype)[1])


def test_statistics_at_a_large_mean():
    x = (1e7 + draw()).astype(np.float32)
    mean, variance = update(x, momentum=1.0)
    # Float32 data, float64 statistics: the distances to the mean are exact to one rounding of
    # float32, whatever the mean is.
    expected = reference.running_statistics(x, 0, 0, 0, 1)
    unit = np.finfo(np.float32).eps
    np.testing.assert_allclose(mean, expected[0], rtol=0, atol=8 * unit)
    np.testing.assert_allclose(variance, expected[1], rtol=32 * unit)


def pair(mean=None, variance=None):
    return {"running_mean": mean, "running_var": variance}


ERRORS = [
    pytest.param(pair(np.zeros(CHANNELS)), "running_var", id="mean-alone"),
    pytest.param(pair(None, np.ones(CHANNELS)), "running_mean", id="variance-alone"),
    pytest.param(pair() | {"training": False}, "running_mean", id="inference-needs-both"),
    pytest.param(pair(np.zeros(2), np.ones(2)), "running_mean", id="wrong-shape"),
    pytest.param(
        pair(np.zeros(CHANNELS), np.ones(2)), "running_var", id="wrong-shape-of-the-variance"
    ),
    pytest.param(
        pair(*draw_running()) | {"momentum": "cumulative"}, "batches", id="cumulative-of-how-many"
    ),
    pytest.param(
        pair(*draw_running()) | {"momentum": "cumulative", "batches": -1},
        "batches",
        id="negative-batches",
    ),
    pytest.param(pair(*draw_running()) | {"momentum": "mean"}, "momentum", id="momentum-word"),
    pytest.param(
        pair(*draw_running()) | {"convention": "tf"}, "convention", id="unknown-convention"
    ),
]


@pytest.mark.parametrize("options, named", ERRORS)
def test_errors_name_the_argument_in_one_line(options, named):
    with pytest.raises(ValueError, match=named) as error:
        numnorm.batch_norm(draw(), **options)
    assert "\n" not in str(error.value)


def test_read_only_running_statistics_cannot_be_updated():
    mean, variance = draw_running()
    mean.flags.writeable = False
    with pytest.raises((TypeError, ValueError), match="running_mean"):
        numnorm.batch_norm(draw(), running_mean=mean, running_var=variance)


def test_integer_running_statistics_cannot_be_updated():
    with pytest.raises(TypeError, match="running_mean"):
        numnorm.batch_norm(
            draw(), running_mean=np.zeros(CHANNELS, int), running_var=np.ones(CHANNELS)
        )


# From 4096 bytes on, rows are taken in groups of eight; beyond them, one by one.
@pytest.mark.parametrize("channels", [5, 1024, 2051])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_with_given_statistics_no_row_depends_on_another(dtype, channels):
    x, dy = draw((2, 39, channels), dtype)
    gamma, beta, mean = draw((3, channels), seed=1)
    rstd = np.random.default_rng(2).uniform(0.5, 2.0, channels)
    given = {"running_mean": mean, "running_var": rstd**-2, "training": False, "eps": 0.0}
    y = numnorm.batch_norm(x, gamma.astype(dtype), beta.astype(dtype), **given)
    dx = numnorm.batch_norm_backward(dy, x, mean, rstd, gamma, training=False).dx
    for i in (0, 7, 8, 23, 31, 32, 38):
        row = slice(i, i + 1)
        alone = numnorm.batch_norm(x[row], gamma.astype(dtype), beta.astype(dtype), **given)
        np.testing.assert_array_equal(alone, y[row])
        alone = numnorm.batch_norm_backward(dy[row], x[row], mean, rstd, gamma, training=False).dx
        np.testing.assert_array_equal(alone, dx[row])
