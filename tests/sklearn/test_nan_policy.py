"""`nan_policy` of every estimator, against the rows and features without their missing values."""

import warnings

import numpy as np
import pytest
from scipy import stats
from sklearn.base import clone
from sklearn.preprocessing import StandardScaler

from numnorm import sklearn as estimators

RNG = np.random.default_rng(41)
REFERENCE = np.sin(np.linspace(0, 6, 40))
OF_ROWS = [
    estimators.StandardNormalVariate(ddof=1),
    estimators.StandardNormalVariate(eps=0.5, ddof=1),
    estimators.StandardNormalVariate(with_mean=False),
    estimators.StandardNormalVariate(with_std=False),
    estimators.RobustNormalVariate(),
    estimators.RobustNormalVariate(method="mad"),
    estimators.LayerNormalizer(),
    estimators.RMSNormalizer(eps=0.25),
]
OF_WINDOWS = [
    estimators.LocalStandardNormalVariate(5, ddof=1),
    estimators.MovingNormalizer(5),
    estimators.MovingNormalizer(6, center=True, min_window=3),
]
ELSEWHERE = [estimators.MultiplicativeScatterCorrection(REFERENCE), estimators.BatchNormalizer()]


def spectra(missing=0.1):
    x = 5 + RNG.standard_normal((30, 40)).cumsum(axis=1)
    x[::3][RNG.random((10, 40)) < missing] = np.nan
    return x


def with_policy(estimator, policy):
    return clone(estimator).set_params(nan_policy=policy)


def what_to_pass(x):
    """Return the message for an X with NaN, as a pattern: it names the parameter and the first."""
    row, feature = np.argwhere(np.isnan(x))[0]
    return (
        rf"^X must not contain NaN, as nan_policy is 'raise', got one in row {row}, feature "
        rf"{feature}: nan_policy='omit' leaves NaN out$"
    )


def test_every_estimator_is_here():
    every = {type(estimator).__name__ for estimator in OF_ROWS + OF_WINDOWS + ELSEWHERE}
    assert every == set(estimators.__all__)


@pytest.mark.parametrize("estimator", OF_ROWS, ids=str)
def test_rows_without_their_missing_values(estimator):
    x = spectra()
    x[3] = np.nan
    result = with_policy(estimator, "omit").fit_transform(x)
    np.testing.assert_array_equal(np.isnan(result), np.isnan(x))
    part = with_policy(estimator, "omit").fit_transform(x[4:11])
    np.testing.assert_array_equal(part, result[4:11])
    for row, expected in zip(x, result, strict=True):
        present = ~np.isnan(row)
        if present.any():
            alone = clone(estimator).fit_transform(row[np.newaxis, present])
            # Other orders of summation.
            np.testing.assert_allclose(alone[0], expected[present], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("estimator", OF_WINDOWS, ids=str)
@pytest.mark.parametrize("where", ["nowhere", "here and there"])
def test_windows_without_their_missing_values(estimator, where):
    x = spectra()
    if where == "nowhere":
        x = np.where(np.isnan(x), 1.5, x)
    result = with_policy(estimator, "omit").fit_transform(x)
    assert np.isnan(result[np.isnan(x)]).all()
    complete = ~np.isnan(x).any(axis=1)
    np.testing.assert_allclose(
        result[complete], clone(estimator).fit_transform(x[complete]), rtol=1e-12, atol=1e-13
    )
    if isinstance(estimator, estimators.LocalStandardNormalVariate):
        windows = np.lib.stride_tricks.sliding_window_view(x, 5, axis=1)
        expected = (x[:, 2:-2] - np.nanmean(windows, axis=2)) / np.nanstd(windows, axis=2, ddof=1)
        np.testing.assert_allclose(result[:, 2:-2], expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("estimator", OF_ROWS + OF_WINDOWS + ELSEWHERE[:1], ids=str)
def test_a_nan_propagates_or_is_an_error(estimator):
    x = spectra()
    lacking = np.isnan(x).any(axis=1)
    result = with_policy(estimator, "propagate").fit_transform(x)
    assert np.isnan(result[np.isnan(x)]).all() and not np.isnan(result[~lacking]).any()
    if estimator not in OF_WINDOWS and getattr(estimator, "with_std", True):
        assert np.isnan(result[lacking]).all()
    strict = with_policy(estimator, "raise")
    for call in (strict.fit, strict.fit(x[~lacking]).transform):
        with pytest.raises(ValueError, match=what_to_pass(x)):
            call(x)
    np.testing.assert_array_equal(strict.transform(x[~lacking]), result[~lacking])


def test_standard_normal_variate_is_that_of_scipy():
    x = spectra(0.5)
    x[6, 1:] = np.nan  # one value
    for ddof in (0, 1):
        snv = estimators.StandardNormalVariate(ddof=ddof, constant="nan", nan_policy="omit")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of one value, in SciPy 1.13
            expected = stats.zscore(x, axis=1, ddof=ddof, nan_policy="omit")
        np.testing.assert_allclose(snv.fit_transform(x), expected, rtol=1e-12, atol=1e-12)


def test_regression_on_the_reference_at_the_values_that_are_there():
    x, y = spectra(), 2.5 * REFERENCE + 7
    y[[3, 20]] = np.nan
    correction = estimators.MultiplicativeScatterCorrection(REFERENCE, nan_policy="omit").fit(x)
    # A row on the line becomes the reference.
    expected = np.where(np.isnan(y), np.nan, REFERENCE)
    corrected = correction.transform(y[np.newaxis])[0]
    np.testing.assert_allclose(corrected, expected, rtol=1e-13, atol=1e-15)
    for row, corrected in zip(x, correction.transform(x), strict=True):
        present = ~np.isnan(row)
        slope, offset = np.polyfit(REFERENCE[present], row[present], 1)
        expected = np.full(40, np.nan)
        expected[present] = (row[present] - offset) / slope
        # What a slope loses: its digits, where it is small beside the residuals.
        np.testing.assert_allclose(corrected, expected, rtol=1e-9, atol=1e-9 / abs(slope))


def test_the_reference_is_learned_from_the_values_that_are_there():
    x = spectra()
    correction = estimators.MultiplicativeScatterCorrection(nan_policy="omit").fit(x)
    np.testing.assert_allclose(correction.reference_, np.nanmean(x, axis=0), rtol=1e-14)
    carried = estimators.MultiplicativeScatterCorrection(nan_policy="propagate").fit(x)
    np.testing.assert_array_equal(np.isnan(carried.reference_), np.isnan(x).any(axis=0))
    assert np.isnan(carried.transform(x)).all()
    x[:, 5] = np.nan
    with pytest.raises(ValueError, match=r"^feature 5 of X has no values$"):
        correction.fit(x)


def test_flat_and_empty_rows_of_a_regression():
    x = np.array([[5.0, 5, np.nan, 5], [np.nan, 2, np.nan, np.nan], [np.nan] * 4])
    correction = estimators.MultiplicativeScatterCorrection([1.0, 2, 3, 6], nan_policy="omit")
    # A flat row becomes the mean of the reference where it has values.
    expected = [[3, 3, np.nan, 3], [np.nan, 2, np.nan, np.nan], [np.nan] * 4]
    np.testing.assert_array_equal(correction.fit(x).transform(x), expected)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_features_as_the_standard_scaler(dtype, weighted):
    x = spectra(0.3).astype(dtype)
    weights = RNG.integers(0, 4, 30) * RNG.random(30) if weighted else None
    if weighted:
        weights[11] = 0.5  # scikit-learn refuses samples that have no weight at all
    ours, theirs = estimators.BatchNormalizer(), StandardScaler()
    for part in (slice(0, 11), slice(11, 12), slice(12, 30)):
        own = {} if weights is None else {"sample_weight": weights[part]}
        ours.partial_fit(x[part], **own)
        theirs.partial_fit(x[part], **own)
    unit = float(np.finfo(dtype).eps)
    for name in ("mean_", "var_", "scale_", "n_samples_seen_"):
        # The scaler sums in the dtype of x.
        expected = getattr(theirs, name)
        np.testing.assert_allclose(getattr(ours, name), expected, rtol=50 * unit, atol=50 * unit)
    result = ours.transform(x)
    np.testing.assert_array_equal(np.isnan(result), np.isnan(x))
    np.testing.assert_allclose(result, theirs.transform(x), rtol=200 * unit, atol=200 * unit)
    back = ours.inverse_transform(result)
    np.testing.assert_allclose(back, x, rtol=20 * unit, atol=20 * unit)


def test_features_propagate_or_raise():
    x = spectra()
    lacking = np.isnan(x).any(axis=0)
    for weights in (None, np.ones(30)):
        normalizer = estimators.BatchNormalizer(nan_policy="propagate")
        normalizer.partial_fit(x[:12], sample_weight=weights if weights is None else weights[:12])
        normalizer.partial_fit(x[12:], sample_weight=weights if weights is None else weights[12:])
        np.testing.assert_array_equal(np.isnan(normalizer.mean_), lacking)
        result = normalizer.transform(x)
        assert np.isnan(result[:, lacking]).all() and np.isfinite(result[:, ~lacking]).all()
    strict = estimators.BatchNormalizer(nan_policy="raise").fit(np.where(np.isnan(x), 0.0, x))
    for call in (strict.fit, strict.partial_fit, strict.transform, strict.inverse_transform):
        with pytest.raises(ValueError, match=what_to_pass(x)):
            call(x)


def test_a_correction_says_what_to_pass():
    x = spectra()
    complete = x[~np.isnan(x).any(axis=1)]
    correction = estimators.MultiplicativeScatterCorrection()
    for call in (correction.fit, correction.fit(complete).transform):
        with pytest.raises(ValueError, match=what_to_pass(x)):
            call(x)


@pytest.mark.parametrize("estimator", OF_ROWS + OF_WINDOWS + ELSEWHERE, ids=str)
def test_a_fit_that_fails_leaves_the_estimator_as_it_was(estimator):
    strict = with_policy(estimator, "raise").fit(np.sin(np.arange(80.0)).reshape(2, 40))
    before = strict.n_features_in_
    with pytest.raises(ValueError, match="must not contain NaN"):
        strict.fit([[1.0, np.nan, 2.0], [4.0, 5.0, 7.0]])
    assert strict.n_features_in_ == before
