"""The estimators of rows, against their definitions in extended precision."""

import numpy as np
import pytest

from numnorm.sklearn import (
    LayerNormalizer,
    LocalStandardNormalVariate,
    MovingNormalizer,
    MultiplicativeScatterCorrection,
    RMSNormalizer,
    RobustNormalVariate,
    StandardNormalVariate,
)

# The roundings of a few operations on values up to 10, in units of the dtype.
ROUNDINGS = 40


def spectra(dtype, offset=0.0, shape=(40, 60)):
    """Curves that vary slowly, as those of spectrometers, at an offset."""
    rng = np.random.default_rng(1)
    walks = np.cumsum(rng.standard_normal(shape), axis=1)
    return (offset + 3 * (walks + rng.standard_normal((shape[0], 1)))).astype(dtype)


def deviations_of(x):
    """The deviations from the means; extended precision, too, rounds a mean at an offset."""
    x = x.astype(np.longdouble)
    x = x - x[..., :1]  # exact
    return x - x.mean(axis=-1, keepdims=True)


def snv(x, with_mean=True, with_std=True, ddof=0, eps=0.0):
    deviations = deviations_of(x)
    std = np.sqrt((deviations**2).sum(axis=1, keepdims=True) / (x.shape[1] - ddof) + eps)
    return (deviations if with_mean else x.astype(np.longdouble)) / (std if with_std else 1)


def close(actual, expected, dtype):
    assert actual.dtype == dtype
    unit = float(np.finfo(dtype).eps) * max(1.0, float(abs(expected).max()))
    np.testing.assert_allclose(actual, expected.astype(np.float64), rtol=0, atol=ROUNDINGS * unit)


@pytest.mark.parametrize("offset", [0.0, 1e7])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "options",
    [
        *({}, {"ddof": 1}, {"eps": 0.5}, {"eps": 0.5, "ddof": 2}, {"with_mean": False}),
        *({"with_std": False}, {"with_mean": False, "ddof": 1}),
        {"with_mean": False, "with_std": False},
    ],
    ids=str,
)
def test_standard_normal_variate(options, dtype, offset):
    x = spectra(dtype, offset)
    close(StandardNormalVariate(**options).fit_transform(x), snv(x, **options), dtype)


@pytest.mark.parametrize("scale", [1e-200, 1e-20, 1e20, 1e150])
@pytest.mark.parametrize("with_mean", [True, False])
def test_any_scale_comes_out_with_deviation_1(scale, with_mean):
    x = scale * spectra("float64")
    result = StandardNormalVariate(with_mean=with_mean).fit_transform(x)
    np.testing.assert_allclose(result.std(axis=1), 1, rtol=1e-12)


def test_constant_rows():
    x = np.array([[0.1, 0.1, 0.1], [1.0, 2.0, 3.0]])
    for options in ({}, {"with_mean": False}, {"nan_policy": "omit"}):
        result = StandardNormalVariate(constant="zero", **options).fit_transform(x)
        assert (result[0] == 0).all() and (result[1] != 0).any()
        result = StandardNormalVariate(constant="nan", **options).fit_transform(x)
        assert np.isnan(result[0]).all() and np.isfinite(result[1]).all()
        with pytest.raises(ValueError, match=r"^X must not have constant rows, got one in row 0$"):
            StandardNormalVariate(constant="raise", **options).fit_transform(x)
    # Nothing is divided.
    StandardNormalVariate(constant="raise", with_std=False).fit_transform(x)


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("with_mean", [True, False])
def test_missing_values(with_mean, ddof):
    x = spectra("float64", 1e7)
    x[3, [5, 9, 40]] = np.nan
    x[7] = np.nan
    options = {"with_mean": with_mean, "ddof": ddof}
    result = StandardNormalVariate(**options).fit_transform(x)
    assert np.isnan(result[[3, 7]]).all() and np.isfinite(np.delete(result, [3, 7], axis=0)).all()
    omitted = StandardNormalVariate(nan_policy="omit", **options).fit_transform(x)
    np.testing.assert_array_equal(np.isnan(omitted), np.isnan(x))
    # Sums of other lanes.
    complete = np.delete(omitted, [3, 7], 0), np.delete(result, [3, 7], 0)
    np.testing.assert_allclose(*complete, rtol=0, atol=1e-14)
    present = ~np.isnan(x[3])
    close(omitted[3:4, present], snv(x[3:4, present], **options), "float64")
    with pytest.raises(ValueError, match="must not contain NaN"):
        StandardNormalVariate(nan_policy="raise", **options).fit_transform(x)


def test_rows_with_too_few_values():
    x = np.array([[1.0, np.nan, np.nan], [1.0, 2.0, np.nan]])
    result = StandardNormalVariate(nan_policy="omit", ddof=2).fit_transform(x)
    # As scipy.stats.zscore, which divides by a variance that is none.
    assert np.isnan(result).all()
    for with_mean in (True, False):
        snv = StandardNormalVariate(nan_policy="omit", ddof=1, with_mean=with_mean)
        np.testing.assert_array_equal(np.isnan(snv.fit_transform(x)), [[True] * 3, np.isnan(x[1])])
        one = StandardNormalVariate(nan_policy="omit", with_mean=with_mean).fit_transform(x)
        np.testing.assert_array_equal(one[0], [0, np.nan, np.nan])
    with pytest.raises(ValueError, match=r"^ddof must be less than the 3 features of X, got 3$"):
        StandardNormalVariate(ddof=3, with_mean=False).fit_transform(x)


def percentile_variate(x, percentile=25):
    x = x.astype(np.longdouble)
    # The percentile lies between two values of the sorted row.
    place = percentile / 100 * (x.shape[1] - 1)
    low = int(place)
    ordered = np.sort(x, axis=1)
    above = ordered[:, min(low + 1, x.shape[1] - 1)]
    at = (ordered[:, low] + (place - low) * (above - ordered[:, low]))[:, np.newaxis]
    std = np.array([row[row <= p].std() for row, p in zip(x, at, strict=True)])
    return (x - at) / std[:, np.newaxis]


@pytest.mark.parametrize("offset", [0.0, 1e7])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("percentile", [10, 25, 50, 100])
def test_percentile(percentile, dtype, offset):
    x = spectra(dtype, offset)
    result = RobustNormalVariate(percentile=percentile).fit_transform(x)
    # NumPy rounds a percentile to a float64, which changes a value by up to half a unit of x.
    rounding = 4 * float(np.spacing(abs(x).max().astype(np.float64))) / 0.5
    expected = percentile_variate(x, percentile).astype(np.float64)
    unit = float(np.finfo(dtype).eps) * abs(expected).max()
    np.testing.assert_allclose(result, expected, rtol=0, atol=ROUNDINGS * unit + rounding)
    assert result.dtype == dtype


@pytest.mark.parametrize("offset", [0.0, 1e7])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_median(dtype, offset):
    x = spectra(dtype, offset, (40, 61))
    exact = x.astype(np.longdouble)
    deviations = exact - np.sort(exact, axis=1)[:, 30:31]
    expected = deviations / (1.4826 * np.sort(abs(deviations), axis=1)[:, 30:31])
    close(RobustNormalVariate(method="mad").fit_transform(x), expected, dtype)


def test_rows_without_spread():
    x = np.array(
        [[1.0, 1.0, 1.0, 1.0, 9.0], [1.0, 2.0, 3.0, 4.0, 9.0], [1.0, np.nan, 2.0, 3.0, 4.0]]
    )
    for method in ("percentile", "mad"):
        result = RobustNormalVariate(method=method, percentile=50).fit_transform(x)
        assert (result[0] == 0).all() and (result[1] != 0).any() and np.isnan(result[2]).all()
        nan = RobustNormalVariate(method=method, percentile=50, constant="nan").fit_transform(x)
        assert np.isnan(nan[0]).all()
        with pytest.raises(
            ValueError, match=r"^X must not have rows without spread, got one in row 0$"
        ):
            RobustNormalVariate(method=method, percentile=50, constant="raise").fit_transform(x)


@pytest.mark.parametrize("offset", [0.0, 1e7])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("mode", ["reflect", "symmetric", "edge"])
@pytest.mark.parametrize("ddof", [0, 1])
def test_windows(ddof, mode, dtype, offset):
    x = spectra(dtype, offset, (9, 30))
    padded = np.pad(x, ((0, 0), (3, 3)), mode=mode)
    deviations = deviations_of(np.lib.stride_tricks.sliding_window_view(padded, 7, axis=1))
    std = np.sqrt((deviations**2).sum(axis=2) / (7 - ddof))
    expected = deviations[:, :, 3] / std
    local = LocalStandardNormalVariate(7, ddof=ddof, pad_mode=mode)
    close(local.fit_transform(x), expected, dtype)


def test_an_outlier_and_a_constant_window_stay_in_their_windows():
    x = spectra("float64")
    x[:, 20] = 1e16
    x[:, 40:52] = 0.1
    result = LocalStandardNormalVariate().fit_transform(x)
    without = x.copy()
    without[:, 20] = 0
    far = abs(np.arange(60) - 20) > 5
    np.testing.assert_array_equal(
        result[:, far], LocalStandardNormalVariate().fit_transform(without)[:, far]
    )
    assert (result[:, 45:47] == 0).all()
    with pytest.raises(ValueError, match=r"^window must be odd, got 4$"):
        LocalStandardNormalVariate(4).fit_transform(x)


def correction(x, reference):
    r, rows = deviations_of(reference), deviations_of(x)
    slope = (rows @ r / (r @ r))[:, np.newaxis]
    return rows / slope + reference.mean(dtype=np.longdouble)


@pytest.mark.parametrize("offset", [0.0, 1e7])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_multiplicative_scatter_correction(dtype, offset):
    rng = np.random.default_rng(2)
    reference = np.sin(np.linspace(0, 6, 60))
    rows = rng.uniform(5, 20, (40, 1)) * reference + rng.normal(0, 0.1, (40, 60))
    x = (rows + offset * rng.uniform(1, 2, (40, 1))).astype(dtype)
    given = MultiplicativeScatterCorrection(reference).fit(x)
    close(given.transform(x), correction(x, reference), dtype)
    learned = MultiplicativeScatterCorrection().fit(x)
    mean = x.astype(np.longdouble).mean(axis=0)
    # Two roundings of float64.
    rounding = 4e-16 * abs(x).max()
    np.testing.assert_allclose(learned.reference_, np.float64(mean), rtol=0, atol=rounding)
    if offset == 0:
        close(learned.transform(x), correction(x, mean), dtype)


def test_slope_0():
    reference = np.array([1.0, 2.0, 6.0])
    x = np.array([[5.0, 5.0, 5.0], [2.0, 4.0, 12.0]])
    corrected = MultiplicativeScatterCorrection(reference).fit(x).transform(x)
    np.testing.assert_allclose(corrected, [[3, 3, 3], reference], rtol=1e-15)
    nan = MultiplicativeScatterCorrection(reference, constant="nan").fit_transform(x)
    assert np.isnan(nan[0]).all() and np.isfinite(nan[1]).all()
    with pytest.raises(
        ValueError, match=r"^X must not have rows with the slope 0, got one in row 0$"
    ):
        MultiplicativeScatterCorrection(reference, constant="raise").fit_transform(x)
    with pytest.raises(ValueError, match=r"must not be constant, got 5.0 at each feature$"):
        MultiplicativeScatterCorrection().fit(x[:1])
    with pytest.raises(ValueError, match=r"^reference must have the shape \(3,\), got \(2,\)$"):
        MultiplicativeScatterCorrection([1.0, 2.0]).fit(x)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_norms_of_networks(dtype):
    x = spectra(dtype, 3.0)
    close(LayerNormalizer().fit_transform(x), snv(x, eps=1e-5), dtype)
    squares = (x.astype(np.longdouble) ** 2).mean(axis=1, keepdims=True)
    close(RMSNormalizer(eps=0.25).fit_transform(x), x / np.sqrt(squares + 0.25), dtype)


EVERY = [
    StandardNormalVariate(),
    StandardNormalVariate(with_mean=False),
    RobustNormalVariate(),
    LocalStandardNormalVariate(5),
    MovingNormalizer(5, center=True),
    MultiplicativeScatterCorrection(),
    LayerNormalizer(),
    RMSNormalizer(),
]


@pytest.mark.parametrize("estimator", EVERY, ids=str)
def test_chunks_layouts_and_places_do_not_matter(estimator):
    x = spectra("float64", shape=(2000, 40))  # more than one chunk
    expected = estimator.fit(x).transform(x)
    np.testing.assert_array_equal(estimator.transform(x[:7]), expected[:7])
    np.testing.assert_array_equal(estimator.transform(np.asfortranarray(x)), expected)
    np.testing.assert_array_equal(estimator.transform(x.astype(object)), expected)
    half = estimator.transform(x.astype(np.float16))
    assert half.dtype == np.float16
    x.flags.writeable = False
    estimator.set_params(copy=False)
    np.testing.assert_array_equal(estimator.transform(x), expected)
    own = x.copy()
    assert estimator.transform(own) is own
    np.testing.assert_array_equal(own, expected)
    estimator.set_params(copy=True)
