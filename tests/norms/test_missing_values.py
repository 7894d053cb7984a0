"""What missing values, weights and labels mean: other libraries, edges, errors."""

import os

import numpy as np
import pytest
from filled_memory import NAN, filled_memory

import numnorm
from numnorm.backends.cpu import tuning

UNCOMPILED = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")

# A few roundings of numbers of about one.
CLOSE = {"rtol": 1e-12, "atol": 1e-13}


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def with_gaps(rng, shape, offset=0.0):
    """Numbers of which three in ten are NaN, but never all of a row or column."""
    x = rng.normal(size=shape) + offset
    x[rng.random(shape) < 0.3] = np.nan
    x[:2] = rng.normal(size=(2, *shape[1:])) + offset
    x[..., :2] = rng.normal(size=(*shape[:-1], 2)) + offset
    return x


# Other libraries


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("ddof", [0, 1])
def test_equals_zscore_of_scipy(rng, axis, ddof):
    stats = pytest.importorskip("scipy.stats")
    x = with_gaps(rng, (5, 7, 4))
    y = numnorm.standard_normal_variate(x, axis=axis, ddof=ddof, nan_policy="omit")
    expected = stats.zscore(x, axis=axis, ddof=ddof, nan_policy="omit")
    np.testing.assert_allclose(y, expected, **CLOSE)


def test_raises_as_scipy_does(rng):
    stats = pytest.importorskip("scipy.stats")
    x = with_gaps(rng, (5, 7))
    with pytest.raises(ValueError, match="contains nan"):
        stats.zscore(x, nan_policy="raise")
    for function in (numnorm.layer_norm, numnorm.batch_norm, numnorm.batch_moments):
        with pytest.raises(ValueError, match=r"^x must not contain NaN, as nan_policy is 'raise'$"):
            function(x, nan_policy="raise")
    y = numnorm.layer_norm(x, nan_policy="raise", where=~np.isnan(x))
    np.testing.assert_array_equal(y, numnorm.layer_norm(x, where=~np.isnan(x)))


def test_equals_masked_arrays(rng):
    x = with_gaps(rng, (5, 7))
    masked = np.ma.masked_invalid(x)
    y = numnorm.layer_norm(x, where=~masked.mask, eps=0, fill=-5.0)
    expected = (masked - masked.mean(1, keepdims=True)) / masked.std(1, keepdims=True)
    np.testing.assert_allclose(y, expected.filled(-5.0), **CLOSE)


@pytest.mark.parametrize("weighted", [False, True])
def test_equals_the_standard_scaler(rng, weighted):
    preprocessing = pytest.importorskip("sklearn.preprocessing")
    x = with_gaps(rng, (50, 4), offset=3.0)
    weights = rng.random(50) + 0.1 if weighted else None
    scaler = preprocessing.StandardScaler().fit(x, sample_weight=weights)
    y = numnorm.batch_norm(x, eps=0, weights=weights, nan_policy="omit")
    np.testing.assert_allclose(y, scaler.transform(x), rtol=1e-10, atol=1e-12)
    moments = numnorm.batch_moments(x, weights=weights, nan_policy="omit")
    np.testing.assert_allclose(moments.var(), scaler.var_, rtol=1e-12)
    np.testing.assert_allclose(moments.count, scaler.n_samples_seen_, rtol=1e-12)


@pytest.mark.parametrize("ddof", [0, 1])
def test_weights_are_frequencies(rng, ddof):
    x, weights = rng.normal(size=(3, 6)), np.array([1, 0, 3, 2, 1, 5])
    repeated = np.repeat(x, weights, axis=1)
    moments = numnorm.batch_moments(x.T, weights=weights)
    np.testing.assert_allclose(moments.mean, repeated.mean(1), **CLOSE)
    expected = np.diag(np.cov(x, fweights=weights, ddof=ddof))
    np.testing.assert_allclose(moments.var(ddof), expected, **CLOSE)
    y = numnorm.standard_normal_variate(x, weights=weights, ddof=ddof)
    expected = numnorm.standard_normal_variate(repeated, ddof=ddof)
    np.testing.assert_allclose(np.repeat(y, weights, axis=1), expected, **CLOSE)


# What is left out, and what merely does not count


def test_a_weight_of_0_is_no_mask(rng):
    x, weights = rng.normal(size=(4, 6)), np.array([1.0, 1.0, 1.0, 0.0, 0.0, 0.0])
    y = numnorm.standard_normal_variate(x, weights=weights)
    quiet = x[:, :3]
    expected = (x - quiet.mean(1, keepdims=True)) / quiet.std(1, keepdims=True)
    np.testing.assert_allclose(y, expected, **CLOSE)
    left_out = numnorm.standard_normal_variate(x, where=weights > 0)
    np.testing.assert_allclose(left_out, np.where(weights > 0, expected, 0), **CLOSE)


def test_fills():
    x, keep = np.array([[1.0, np.nan, 3.0, 9.0]]), np.array([True, True, True, False])
    options = {"where": keep, "nan_policy": "omit", "eps": 0}
    np.testing.assert_array_equal(numnorm.layer_norm(x, **options), [[-1, np.nan, 1, 0]])
    np.testing.assert_array_equal(numnorm.layer_norm(x, **options, fill=7), [[-1, 7, 1, 7]])


def test_nothing_is_left():
    x, keep = np.array([[1.0, 2.0], [1.0, 3.0]]), np.array([[False], [True]])
    y, mean, rstd = numnorm.layer_norm_forward(x, where=keep, eps=0)
    np.testing.assert_array_equal(y, [[0, 0], [-1, 1]])
    np.testing.assert_array_equal(mean, [np.nan, 2])
    np.testing.assert_array_equal(rstd, [np.nan, 1])
    gradients = numnorm.layer_norm_backward(np.ones((2, 2)), x, mean, rstd, where=keep)
    assert np.all(np.isfinite(np.concatenate([a.ravel() for a in gradients])))
    assert not gradients.dx[0].any()
    moments = numnorm.batch_moments(x.T, where=keep.T)
    np.testing.assert_array_equal(moments.count, [0, 2])
    np.testing.assert_array_equal(moments.mean, [0, 2])
    np.testing.assert_array_equal(moments.var(), [np.nan, 1])
    w, norm = numnorm.weight_norm_forward(x, where=keep)
    np.testing.assert_allclose(norm, [0, np.sqrt(10)], rtol=1e-15)
    np.testing.assert_array_equal(w[0], [0, 0])


@pytest.mark.parametrize("weights", [[0.2, 0.3, 0.5], [0.5, 0.0, 0.0]])
def test_a_running_variance_without_a_divisor_stays(rng, weights):
    """The running mean moves by the weighted mean; the variance has no unbiased estimate."""
    x, mean, var = rng.normal(size=(3, 4)), np.zeros(4), np.full(4, 3.0)
    numnorm.batch_norm(x, running_mean=mean, running_var=var, weights=weights, momentum=0.5)
    np.testing.assert_allclose(mean, 0.5 * np.average(x, axis=0, weights=weights), rtol=1e-14)
    np.testing.assert_array_equal(var, 3.0)
    numnorm.batch_norm(
        x, running_mean=mean, running_var=var, weights=weights, momentum=0.5, unbiased=False
    )
    biased = np.average((x - np.average(x, axis=0, weights=weights)) ** 2, axis=0, weights=weights)
    np.testing.assert_allclose(var, 1.5 + 0.5 * biased, rtol=1e-14)


@pytest.mark.parametrize("n", [9, 10, 49])
def test_weights_of_the_sum_1_leave_the_running_variance(rng, n):
    """Their sum may be rounded up: a variance divided by W - 1 would be 1e16."""
    mean, var = np.zeros(2), np.full(2, 3.0)
    x = rng.normal(size=(n, 2))
    numnorm.batch_norm(x, running_mean=mean, running_var=var, weights=np.full(n, 1 / n))
    np.testing.assert_allclose(mean, 0.1 * x.mean(axis=0), rtol=1e-13)
    np.testing.assert_array_equal(var, 3.0)


@pytest.mark.parametrize("name", ["layer", "rms", "ada", "weight", "group", "instance"])
def test_gradients_of_nothing(name):
    for shape in ((3, 0), (0, 3)) if name in ("layer", "rms", "ada", "weight") else ((2, 0, 3),):
        z = np.zeros(shape)
        options = {"groups": 1} if name == "group" else {}
        _, *saved = getattr(numnorm, f"{name}_norm_forward")(z, where=True, **options)
        backward = getattr(numnorm, f"{name}_norm_backward")
        for missing in ({"where": True}, {"weights": 1.0}, {"nan_policy": "omit"}):
            found = backward(z, z, *saved, **options, **missing)
            assert (found if name == "ada" else found[0]).shape == shape


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("weights", [{}, {"weights": 1.0}], ids=["mask", "weights"])
def test_a_gain_that_nothing_takes_may_be_nan(rng, norm, weights):
    for width in (4, 8, 16, 32, 40, 400):  # of them some have loops of their own
        x, dy = rng.normal(size=(2, 9, width))
        gamma, keep = rng.normal(size=width), np.arange(width) != 2
        missing = {"where": keep} | weights
        found = []
        for value in (1.0, np.nan):
            gamma[2] = value
            y, *saved = getattr(numnorm, f"{norm}_forward")(x, gamma, **missing)
            backward = getattr(numnorm, f"{norm}_backward")
            found.append((y, *backward(dy, x, *saved, gamma, **missing)))
        for mine, theirs in zip(*found, strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_weights_may_be_anything_where_nothing_counts():
    x = np.array([[1.0, 2.0, 9.0, 4.0]])
    keep = [True, True, False, True]
    expected = numnorm.layer_norm(x, weights=[1.0, 2.0, 0.0, 1.0], where=keep)
    for weight in (np.nan, np.inf, -1.0):
        found = numnorm.layer_norm(x, weights=[1.0, 2.0, weight, 1.0], where=keep)
        np.testing.assert_array_equal(found, expected)
    with pytest.raises(ValueError, match="finite and at least 0 where they count, got -1"):
        numnorm.layer_norm(x, weights=[1.0, -1.0, 1.0, 1.0], where=keep)


def test_running_statistics_count_what_is_left(rng):
    x, keep = rng.normal(size=(6, 4)), rng.random((6, 4)) < 0.6
    keep[:, 2], keep[:, 3] = False, np.arange(6) == 1  # nothing is left, and a single value
    keep[:3, :2] = True
    mean, variance = rng.normal(size=4), rng.random(4)
    running = {"running_mean": mean.copy(), "running_var": variance.copy()}
    numnorm.batch_norm(x, where=keep, momentum=0.25, **running)
    np.testing.assert_array_equal(running["running_mean"][2], mean[2])
    expected = 0.75 * mean[3] + 0.25 * x[1, 3]
    np.testing.assert_allclose(running["running_mean"][3], expected, **CLOSE)
    np.testing.assert_array_equal(running["running_var"][2:], variance[2:])
    for c in (0, 1):
        values = x[keep[:, c], c]
        expected = 0.75 * mean[c] + 0.25 * values.mean()
        np.testing.assert_allclose(running["running_mean"][c], expected, **CLOSE)
        expected = 0.75 * variance[c] + 0.25 * values.var(ddof=1)
        np.testing.assert_allclose(running["running_var"][c], expected, **CLOSE)


def test_inference_leaves_out_as_training_does():
    x, statistics = (
        [[1.0, 5.0], [np.nan, 7.0]],
        {"running_mean": [1.0, 5.0], "running_var": [4.0, 1.0]},
    )
    y = numnorm.batch_norm(x, training=False, nan_policy="omit", eps=0, **statistics)
    np.testing.assert_array_equal(y, [[0, 0], [np.nan, 2]])


# Layouts and outputs


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_outputs(rng, dtype):
    x = rng.normal(size=(4, 6, 5)).astype(dtype)
    keep = rng.random(x.shape) < 0.7
    for function, options in (
        (numnorm.layer_norm, {"axis": (0, 2)}),
        (numnorm.rms_norm, {"axis": 1}),
        (numnorm.group_norm, {"groups": 3}),
        (numnorm.batch_norm, {"channel_axis": 2}),
        (numnorm.batch_norm, {"channel_axis": (0, 2)}),
    ):
        with filled_memory(NAN):
            y = function(x, where=keep, **options)
        turned = x.transpose(2, 0, 1).copy().transpose(1, 2, 0)
        np.testing.assert_array_equal(function(turned, where=keep, **options), y)
        given = x.copy()
        assert function(given, where=keep, out=given, **options) is given
        np.testing.assert_array_equal(given, y)


def test_a_gain_that_broadcasts(rng):
    x, dy, gain = rng.normal(size=(3, 8)), rng.normal(size=(3, 8)), rng.normal(size=(3, 1))
    x[0, 1] = x[2, 2:] = np.nan
    for norm, options in (("layer_norm", {}), ("batch_norm", {"channel_axis": 1})):
        y, *saved = getattr(numnorm, f"{norm}_forward")(x, nan_policy="omit", **options)
        scaled = getattr(numnorm, norm)(x, gain, nan_policy="omit", **options)
        np.testing.assert_allclose(scaled, y * gain, **CLOSE)
        backward = getattr(numnorm, f"{norm}_backward")
        dx, dgamma, dbeta = backward(dy, x, *saved, gain, nan_policy="omit", **options)
        expected = backward(dy * gain, x, *saved, nan_policy="omit", **options).dx
        np.testing.assert_allclose(dx, expected, **CLOSE)
        np.testing.assert_allclose(dgamma, np.nansum(dy * y, 1, keepdims=True), **CLOSE)
        np.testing.assert_allclose(dbeta, np.sum(dy * ~np.isnan(x), 1, keepdims=True), **CLOSE)


def test_weights_of_a_row_stand_along_its_axes(rng):
    x, weights = rng.normal(size=(4, 4)), rng.random(4)
    y = numnorm.layer_norm(x, axis=0, weights=weights)
    np.testing.assert_array_equal(y, numnorm.layer_norm(x, axis=0, weights=weights[:, None]))
    by_sample = numnorm.batch_moments(x, weights=weights)
    np.testing.assert_array_equal(
        by_sample.mean, numnorm.batch_moments(x, weights=weights[:, None]).mean
    )


# Moments


@pytest.mark.parametrize("offset", [0.0, 1e7])
def test_moments_of_chunks(rng, offset):
    x = with_gaps(rng, (40, 3), offset)
    x[:20, 1] = np.nan  # a channel of which the first chunks have nothing
    weights, total, merged = rng.random(40), None, None
    for rows in (slice(0, 10), slice(10, 11), slice(11, 40)):
        options = {"weights": weights[rows], "nan_policy": "omit"}
        total = numnorm.batch_moments(x[rows], after=total, **options)
        part = numnorm.batch_moments(x[rows], **options)
        merged = part if merged is None else merged.merge(part)
    whole = numnorm.batch_moments(x, weights=weights, nan_policy="omit")
    for moments in (total, merged):
        np.testing.assert_allclose(moments.count, whole.count, rtol=1e-14)
        np.testing.assert_allclose(moments.mean, whole.mean, rtol=1e-14)
        # The variance has no error of the offset: 1e7 squared times 1e-16 would be 1e-2.
        np.testing.assert_allclose(moments.var(), whole.var(), rtol=1e-12)


def test_moments_with_and_without_counts_of_channels(rng):
    x = rng.normal(size=(30, 3))
    gaps = with_gaps(rng, (20, 3))
    both = np.concatenate([x, gaps])
    expected = numnorm.batch_moments(both, nan_policy="omit")
    plain, counted = numnorm.batch_moments(x), numnorm.batch_moments(gaps, nan_policy="omit")
    for total in (
        plain.merge(counted),
        counted.merge(plain),
        numnorm.batch_moments(gaps, after=plain, nan_policy="omit"),
        numnorm.batch_moments(x, after=counted),
    ):
        np.testing.assert_array_equal(total.count, expected.count)
        np.testing.assert_allclose(total.mean, expected.mean, **CLOSE)
        np.testing.assert_allclose(total.var(1), expected.var(1), **CLOSE)


def test_moments_of_two_channel_axes(rng):
    x = with_gaps(rng, (9, 3, 4))
    total = None
    for rows in (x[:5], x[5:]):
        total = numnorm.batch_moments(rows, channel_axis=(1, 2), nan_policy="omit", after=total)
    np.testing.assert_array_equal(total.count, np.sum(~np.isnan(x), 0))
    np.testing.assert_allclose(total.std(), np.nanstd(x, 0), **CLOSE)


# Groups


@pytest.mark.parametrize("channel_axis", [1, 0, (1, 2)])
def test_groups_are_normalized_apart(rng, channel_axis):
    x, dy = rng.normal(size=(6, 6, 2)), rng.normal(size=(6, 6, 2))
    labels = np.array(["b", "a", "c", "a", "b", "b"])
    options = {"channel_axis": channel_axis}
    y, mean, rstd = numnorm.batch_norm_forward(x, labels=labels, **options)
    np.testing.assert_array_equal(numnorm.batch_norm(x, labels=labels, **options), y)
    gradients = numnorm.batch_norm_backward(dy, x, mean, rstd, labels=labels, **options)
    samples, sums = 1 if channel_axis == 0 else 0, []
    for g, label in enumerate("abc"):
        own = np.flatnonzero(labels == label)
        part, part_dy = x.take(own, samples), dy.take(own, samples)
        expected = numnorm.batch_norm_forward(part, **options)
        np.testing.assert_array_equal(y.take(own, samples), expected.y)
        np.testing.assert_array_equal(mean[g], expected.mean)
        sums.append(numnorm.batch_norm_backward(part_dy, part, *expected[1:], **options))
        np.testing.assert_array_equal(gradients.dx.take(own, samples), sums[-1].dx)
    np.testing.assert_allclose(gradients.dgamma, sum(s.dgamma for s in sums), **CLOSE)
    np.testing.assert_allclose(gradients.dbeta, sum(s.dbeta for s in sums), **CLOSE)


def test_moments_of_groups_stream(rng):
    x, labels = with_gaps(rng, (30, 3)), rng.integers(0, 4, 30)
    labels[:15] = labels[:15] % 3
    total = None
    for rows in (slice(0, 15), slice(15, 30)):
        total = numnorm.batch_moments(x[rows], labels=labels[rows], nan_policy="omit", after=total)
    np.testing.assert_array_equal(total.labels, np.unique(labels))
    for label, variance in zip(total.labels, total.moments.var(), strict=True):
        np.testing.assert_allclose(variance, np.nanvar(x[labels == label], 0), **CLOSE)


# Errors


X = np.ones((3, 4))
ERRORS = [
    ({"where": np.ones(4)}, TypeError, "where must have dtype bool, .* got float64: use mask != 0"),
    ({"where": [0, 1, 2, 1]}, ValueError, "where must hold only 0 and 1 .* got 2: use mask != 0"),
    ({"where": [0, -1, 1, 1]}, ValueError, "where must hold only 0 and 1 .* got -1"),
    ({"where": np.ones(3, bool)}, ValueError, r"where must broadcast against x of shape \(3, 4\)"),
    ({"weights": np.ones(5)}, ValueError, r"weights must broadcast against x of shape \(3, 4\)"),
    ({"weights": -np.ones(4)}, ValueError, "weights must be finite and at least 0"),
    ({"weights": np.full(4, np.nan)}, ValueError, "weights must be finite and at least 0"),
    ({"weights": ["a"] * 4}, TypeError, "weights must hold real numbers"),
    ({"nan_policy": "drop"}, ValueError, "nan_policy must be 'propagate', 'omit' or 'raise'"),
    ({"fill": "0"}, TypeError, "fill must be a number or None, got '0'"),
    ({"mask": True}, TypeError, r"layer_norm\(\) got .* keyword argument 'mask': use where"),
    ({"sample_weight": 1}, TypeError, r"got .* keyword argument 'sample_weight': use weights"),
    ({"where": True, "axs": 1}, TypeError, r"layer_norm\(\) got .* keyword argument 'axs'"),
]


@pytest.mark.parametrize("options, error, message", ERRORS)
def test_errors(options, error, message):
    with pytest.raises(error, match=message):
        numnorm.layer_norm(X, **options)


def test_errors_of_groups():
    for options, error, message in (
        ({"labels": [0, 1]}, ValueError, r"labels must have shape \(3,\), one label for each"),
        ({"labels": [0] * 3, "running_mean": np.ones(4), "running_var": np.ones(4)},
         ValueError, "running_mean must be None with labels"),
    ):  # fmt: skip
        with pytest.raises(error, match=message):
            numnorm.batch_norm(X, **options)
    with pytest.raises(TypeError, match="after must be GroupMoments with labels"):
        numnorm.batch_moments(X, labels=[0] * 3, after=numnorm.batch_moments(X))
    with pytest.raises(NotImplementedError, match=r"with running statistics$"):
        numnorm.instance_norm(
            X[..., None], where=True, running_mean=np.ones(4), running_var=np.ones(4)
        )


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.int8, np.uint64])
def test_a_mask_of_0_and_1(dtype):
    """As attention masks are."""
    x, keep = np.random.default_rng(1).normal(size=(2, 3, 5))[0], np.array([1, 0, 1, 1, 0], dtype)
    for call in (
        numnorm.layer_norm,
        numnorm.batch_norm,
        numnorm.standard_normal_variate,
        lambda x, **options: numnorm.moving_norm(x, 2, **options),
        lambda x, **options: numnorm.batch_moments(x, **options).mean,
        lambda x, **options: numnorm.batch_norm(x, labels=[0, 1, 0], **options),
    ):
        expected = call(x, where=keep == 1)
        for mask in (keep, keep.tolist(), np.broadcast_to(keep, x.shape)):
            np.testing.assert_array_equal(call(x, where=mask), expected)


def test_keywords_that_change_nothing_change_no_byte():
    options = {"where": None, "weights": None, "nan_policy": "propagate", "fill": None}
    x = np.random.default_rng(1).normal(size=(3, 5))
    np.testing.assert_array_equal(numnorm.layer_norm(x, **options), numnorm.layer_norm(x))


# Large results, and threads


@pytest.fixture
def large(monkeypatch):
    """The shape of an array whose results go past the caches; its rows end inside cache lines."""
    if not UNCOMPILED:
        return 3100, 1031
    monkeypatch.setattr(tuning, "NONTEMPORAL_LEAST_BYTES", 4000)
    monkeypatch.setattr(tuning, "NONTEMPORAL_GRADIENT_LEAST_BYTES", 4000)
    return 12, 131


def both_passes(norm, x, dy, keep):
    options = {"where": keep}
    y, *saved = getattr(numnorm, f"{norm}_forward")(x, **options)
    return y, getattr(numnorm, f"{norm}_backward")(dy, x, *saved, **options)


def test_large_results_are_those_of_parts(rng, large):
    x, dy = rng.normal(size=(2, *large)).astype(np.float32)
    keep = rng.random(large) < 0.9
    y, gradients = both_passes("layer_norm", x, dy, keep)
    for rows in np.array_split(np.arange(large[0]), 6):
        part, of_part = both_passes("layer_norm", x[rows], dy[rows], keep[rows])
        np.testing.assert_array_equal(y[rows], part)
        np.testing.assert_array_equal(gradients.dx[rows], of_part.dx)
    y, gradients = both_passes("batch_norm", x, dy, keep)
    for channels in np.array_split(np.arange(large[1]), 6):
        own = x[:, channels], dy[:, channels], keep[:, channels]
        part, of_part = both_passes("batch_norm", *own)
        # Fewer channels are summed in other parts: some roundings of float64.
        np.testing.assert_allclose(y[:, channels], part, rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(gradients.dx[:, channels], of_part.dx, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("norm", ["layer_norm", "batch_norm"])
@pytest.mark.parametrize("shape", [(300, 500), (20, 30, 250)])
def test_threads_change_no_byte(rng, norm, shape, parallel_at_small_sizes):
    if UNCOMPILED:
        shape = tuple(n // 10 for n in shape)
    x, dy = rng.normal(size=(2, *shape))
    keep = rng.random(shape) < 0.9
    y, gradients = both_passes(norm, x, dy, keep)
    with numnorm.num_threads(1):
        serial, of_serial = both_passes(norm, x, dy, keep)
    np.testing.assert_array_equal(y, serial)
    for mine, theirs in zip(gradients, of_serial, strict=True):
        np.testing.assert_array_equal(mine, theirs)


# Arrays of other kinds


def test_arrays_of_other_libraries(rng):
    strict = pytest.importorskip("array_api_strict")
    x, keep, weights = with_gaps(rng, (6, 4, 3)), rng.random((6, 4, 3)) < 0.8, rng.random(6)
    labels = np.array([0, 1, 0, 1, 1, 0])
    own, mask = strict.asarray(x), strict.asarray(keep)
    for name, options in (
        ("layer_norm_forward", {"where": mask, "nan_policy": "omit"}),
        ("batch_norm_forward", {"weights": strict.asarray(weights), "nan_policy": "omit"}),
        ("batch_norm_forward", {"channel_axis": (1, 2), "where": mask}),
        ("batch_norm_forward", {"labels": labels, "nan_policy": "omit"}),
        ("batch_moments", {"weights": strict.asarray(weights), "nan_policy": "omit"}),
        ("batch_moments", {"channel_axis": (1, 2), "nan_policy": "omit"}),
    ):
        function = getattr(numnorm, name)
        plain = {k: np.asarray(v) if isinstance(v, type(own)) else v for k, v in options.items()}
        for got, expected in zip(function(own, **options), function(x, **plain), strict=True):
            assert type(got) is type(own)
            np.testing.assert_array_equal(np.from_dlpack(got), expected)
    dy = rng.normal(size=x.shape)
    for name in ("layer_norm", "batch_norm"):
        found = []
        for array in (x, own):
            as_own = strict.asarray if array is own else np.asarray
            _, mean, rstd = getattr(numnorm, f"{name}_forward")(
                array, where=keep, nan_policy="omit"
            )
            backward = getattr(numnorm, f"{name}_backward")
            given = as_own(dy), array, mean, rstd
            found.append(backward(*given, where=as_own(keep), nan_policy="omit").dx)
        np.testing.assert_array_equal(np.from_dlpack(found[1]), found[0])
    moments = numnorm.batch_moments(own, nan_policy="omit")
    total = moments.merge(moments)
    assert {type(a) for a in (*total, total.var(), total.std(1))} == {type(own)}


def test_moments_of_lazy_arrays():
    lazy, x = pytest.importorskip("dask.array"), np.arange(16.0).reshape(4, 4)
    mask = x % 3 > 0
    expected = numnorm.batch_moments(x, where=mask)
    chunked, lazy_mask = (lazy.from_array(array, chunks=3) for array in (x, mask))
    for array, keep in ((chunked, mask), (x, lazy_mask), (chunked, lazy_mask)):
        for found, other in zip(numnorm.batch_moments(array, where=keep), expected, strict=True):
            np.testing.assert_allclose(found, other, rtol=1e-15, atol=1e-15)


@pytest.mark.parametrize("width", [5, 24, 100, 300])
@pytest.mark.parametrize("name", ["layer_norm", "rms_norm", "ada_norm"])
def test_a_row_has_the_bytes_that_it_has_among_others(name, width):
    rng = np.random.default_rng(7)
    x = rng.normal(size=(30, width))
    x[rng.random(x.shape) < 0.1] = np.nan
    norm = getattr(numnorm, name)
    y = norm(x, nan_policy="omit")
    for rows in (slice(1), slice(4, 11), slice(29, 30)):
        np.testing.assert_array_equal(norm(x[rows], nan_policy="omit"), y[rows])
    if name == "rms_norm":
        expected = x / np.sqrt(np.nanmean(x**2, axis=1, keepdims=True) + 1e-5)
        np.testing.assert_allclose(y, expected, rtol=1e-14)
