"""The batch normalizer, against its definition in extended precision and StandardScaler."""

import itertools

import numpy as np
import pytest
import sklearn
from packaging.version import Version
from sklearn.preprocessing import StandardScaler

from numnorm.sklearn import BatchNormalizer

OFFSETS = [0.0, 1e7, -3e11]


def samples(dtype="float64", offset=0.0, shape=(3000, 7)):
    rng = np.random.default_rng(3)
    scale = 10.0 ** np.arange(shape[1]) / 100
    return (offset * rng.uniform(0.5, 1, shape[1]) + scale * rng.standard_normal(shape)).astype(
        dtype
    )


def weighted(x, weights=None):
    """Return the count, the mean less the first row, and the variance, without missing values."""
    x = x.astype(np.longdouble)
    first = x[np.argmax(~np.isnan(x), axis=0), np.arange(x.shape[1])]
    weights = np.ones(len(x)) if weights is None else weights
    weights = weights.astype(np.longdouble)[:, np.newaxis] * ~np.isnan(x)
    x = np.where(np.isnan(x), 0, x - first)
    count = weights.sum(axis=0)
    mean = (weights * x).sum(axis=0) / count
    return count, first, mean, (weights * (x - mean) ** 2).sum(axis=0) / count


def check_statistics(normalizer, x, weights=None):
    count, first, mean, var = weighted(x, weights)
    np.testing.assert_allclose(normalizer.n_samples_seen_, np.float64(count), rtol=1e-14)
    # Two roundings of the values.
    rounding = 2 * np.spacing(np.nanmax(abs(x.astype(np.float64)), axis=0))
    assert (abs(normalizer.mean_ - np.float64(first + mean)) <= rounding).all()
    # Squares and sums of float64: some roundings, at any offset.
    np.testing.assert_allclose(normalizer.var_, np.float64(var), rtol=1e-13)
    np.testing.assert_allclose(normalizer.scale_, np.sqrt(normalizer.var_), rtol=1e-15)


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_definition(dtype, offset):
    x = samples(dtype, offset)
    varies = np.ptp(x, axis=0) > 0
    x = x[:, varies]
    normalizer = BatchNormalizer().fit(x)
    check_statistics(normalizer, x)
    result = normalizer.transform(x)
    assert result.dtype == dtype and normalizer.mean_.dtype == np.float64
    _, first, mean, var = weighted(x)
    expected = ((x.astype(np.longdouble) - first) - mean) / np.sqrt(var)
    # float64: the mean is a sum of two numbers, and so are the coefficients of each feature.
    unit = np.finfo(dtype).eps * abs(expected).max()
    np.testing.assert_allclose(result, np.float64(expected), rtol=0, atol=float(8 * unit))
    back = normalizer.inverse_transform(result)
    assert back.dtype == dtype
    # The rounding of the normalized values, scaled, and that of x.
    allowed = 8 * unit * float(np.sqrt(var).max()) + 2 * np.spacing(abs(x).max())
    np.testing.assert_allclose(np.float64(back), np.float64(x), rtol=0, atol=float(allowed))


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("missing", [False, True])
def test_random_chunks_equal_one_fit(missing, weights, offset):
    x, rng = samples(offset=offset), np.random.default_rng(4)
    if missing:
        x[rng.random(x.shape) < 0.1] = np.nan
        x[:500, 3] = np.nan
    weight = rng.integers(0, 4, len(x)) * rng.random(len(x)) if weights else None
    whole = BatchNormalizer().fit(x, sample_weight=weight)
    check_statistics(whole, x, weight)
    for _ in range(3):
        ends = [0, *sorted(rng.integers(0, len(x), 9)), len(x)]
        parts = [slice(a, b) for a, b in itertools.pairwise(ends) if b > a]
        normalizer = BatchNormalizer()
        for part in parts:
            normalizer.partial_fit(x[part], sample_weight=None if weight is None else weight[part])
        check_statistics(normalizer, x, weight)
        # A mean's rounding beside the smallest deviation, 0.01.
        allowed = 1e-12 + np.spacing(abs(offset)) / 0.01
        np.testing.assert_allclose(
            normalizer.transform(x), whole.transform(x), rtol=0, atol=allowed
        )


def test_chunks_with_and_without_weights_and_missing_values():
    x = samples(offset=1e7, shape=(400, 3))
    x[150:200, 1] = np.nan
    weights = np.ones(400)
    weights[200:300] = 2.5
    normalizer = BatchNormalizer()
    normalizer.partial_fit(x[:100])
    assert normalizer.n_samples_seen_ == 100
    normalizer.partial_fit(x[100:200]).partial_fit(x[200:300], sample_weight=weights[200:300])
    normalizer.partial_fit(x[300:])
    check_statistics(normalizer, x, weights)


def test_weights_are_repetitions():
    x, weights = samples(shape=(50, 3)), np.arange(50) % 3
    repeated = BatchNormalizer().fit(np.repeat(x, weights, axis=0))
    normalizer = BatchNormalizer().fit(x, sample_weight=weights)
    np.testing.assert_allclose(normalizer.var_, repeated.var_, rtol=1e-14)
    assert normalizer.n_samples_seen_ == repeated.n_samples_seen_ == weights.sum()
    with pytest.raises(ValueError, match=r"^sample_weight must not be negative$"):
        normalizer.fit(x, sample_weight=-weights)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("options", [{}, {"with_mean": False}, {"with_std": False}], ids=str)
def test_equals_the_standard_scaler_near_0(options, missing, dtype):
    x = samples(dtype)[:, :4]
    x[:, 3] = 0.1
    if missing:
        x[5:50, 1] = np.nan
    ours, theirs = BatchNormalizer(**options).fit(x), StandardScaler(**options).fit(x)
    unit = 20 * float(np.finfo(dtype).eps)
    result = ours.transform(x)
    # At a constant feature the scaler leaves its own rounding of the mean.
    np.testing.assert_allclose(result, theirs.transform(x), rtol=unit, atol=2 * unit)
    np.testing.assert_array_equal(ours.n_samples_seen_, theirs.n_samples_seen_)
    np.testing.assert_allclose(ours.mean_, theirs.mean_, rtol=1e-12, atol=1e-15)
    if theirs.scale_ is None:
        assert ours.scale_ is None
    else:
        np.testing.assert_allclose(ours.var_, theirs.var_, rtol=1e-12, atol=1e-30)
        np.testing.assert_allclose(ours.scale_, theirs.scale_, rtol=1e-12)


@pytest.mark.skipif(Version(sklearn.__version__) < Version("1.7"), reason="it was right there")
def test_where_the_standard_scaler_is_wrong():
    """Its mean is rounded to float32, and small variances at an offset count as none."""
    rng = np.random.default_rng(5)
    x = (10 * rng.standard_normal((1000, 8)) + 1e7 + np.linspace(0, 1, 8)).astype(np.float32)
    x64 = samples("float64", 1e9, (100_000, 1))
    for values in (x, x64):
        _, first, mean, var = weighted(values)
        expected = ((values.astype(np.longdouble) - first) - mean) / np.sqrt(var)
        ours = abs(BatchNormalizer().fit_transform(values) - expected).max()
        theirs = abs(StandardScaler().fit_transform(values) - expected).max()
        assert ours < 1e-6 < 1e-2 < theirs


def test_constant_and_missing_features():
    x = np.array([[0.1, np.nan, 1.0], [0.1, np.nan, 3.0]] * 500)
    normalizer = BatchNormalizer().fit(x)
    np.testing.assert_array_equal(normalizer.scale_, [1, np.nan, 1])
    np.testing.assert_array_equal(normalizer.n_samples_seen_, [1000, 0, 1000])
    result = normalizer.transform(x)
    assert (result[:, 0] == 0).all() and np.isnan(result[:, 1]).all()
    np.testing.assert_array_equal(normalizer.inverse_transform(result), x)
    small = BatchNormalizer(eps=0.25).fit(x[:, [0]])
    assert small.scale_ == 0.5


def test_fit_forgets_and_errors_name_what_is_wrong():
    x = samples(shape=(20, 3))
    normalizer = BatchNormalizer().fit(samples(shape=(9, 5)))
    assert normalizer.fit(x).n_samples_seen_ == 20
    with pytest.raises(ValueError, match="X has 2 features, but BatchNormalizer is expecting 3"):
        normalizer.partial_fit(x[:, :2])
    with pytest.raises(ValueError, match=r"^X must have 3 features, got 2$"):
        normalizer.inverse_transform(x[:, :2])


def test_in_place():
    x = samples(shape=(20, 3))
    normalizer = BatchNormalizer(copy=False).fit(x)
    kept = x.copy()
    assert normalizer.transform(x) is x
    assert normalizer.inverse_transform(x) is x
    np.testing.assert_allclose(x, kept, rtol=1e-13)
