"""Estimators of rows with weights of features, against definitions and `numnorm`'s functions."""

import pickle
import re

import numpy as np
import pandas
import polars
import pytest
from sklearn.base import clone

import numnorm
from numnorm import sklearn as estimators
from numnorm.derived import parameters_of
from numnorm.norms.declared import BY_NAME
from numnorm.sklearn import (
    LayerNormalizer,
    MultiplicativeScatterCorrection,
    RMSNormalizer,
    StandardNormalVariate,
)

# The norm that an estimator computes. `BatchNormalizer` has weights of samples, and
# `RobustNormalVariate` is no norm.
NORMS = {
    "LayerNormalizer": "layer_norm",
    "LocalStandardNormalVariate": "moving_norm",
    "MovingNormalizer": "moving_norm",
    "MultiplicativeScatterCorrection": "emsc",
    "RMSNormalizer": "rms_norm",
    "StandardNormalVariate": "standard_normal_variate",
}
X = 5 + np.random.default_rng(3).standard_normal((30, 12)).cumsum(axis=1)
WEIGHTS = np.array([0.0, 2.5, 1, 0.25, 3, 0, 1, 1, 0.5, 2, 0, 4])
REFERENCE = np.sin(np.linspace(0, 6, 12))
WEIGHTED = [
    LayerNormalizer(weights=WEIGHTS),
    RMSNormalizer(weights=WEIGHTS),
    StandardNormalVariate(weights=WEIGHTS, ddof=1),
    StandardNormalVariate(weights=WEIGHTS, with_mean=False),
    MultiplicativeScatterCorrection(REFERENCE, weights=WEIGHTS),
]
NAMES = [type(estimator).__name__ for estimator in WEIGHTED]


def missing_here_and_there(x):
    x = x.copy()
    x[::3][np.random.default_rng(4).random(x[::3].shape) < 0.2] = np.nan
    return x


def snv(x, weights, with_mean=True, with_std=True, ddof=0, eps=0.0):
    """The definition in extended precision, of each row without its missing values."""
    result = np.full(x.shape, np.nan)
    for row, own in zip(x, result, strict=True):
        there = ~np.isnan(row)
        values, w = row[there].astype(np.longdouble), weights[there].astype(np.longdouble)
        deviations = values - values[0]
        deviations -= (w @ deviations) / w.sum()
        std = np.sqrt(w @ deviations**2 / (w.sum() - ddof) + eps)
        own[there] = (deviations if with_mean else values) / (std if with_std else 1)
    return result


def test_estimators_take_weights_if_their_norms_do():
    for name in estimators.__all__:
        norm = BY_NAME.get(NORMS.get(name))
        takes = norm is not None and "weights" in parameters_of(norm.function)
        assert ("weights" in getattr(estimators, name)().get_params()) == takes
    assert {type(estimator).__name__ for estimator in WEIGHTED} == {
        name for name in NORMS if "weights" in getattr(estimators, name)().get_params()
    }


@pytest.mark.parametrize("offset", [0.0, 1e7])
@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        *({}, {"ddof": 1}, {"eps": 0.5}, {"eps": 0.5, "ddof": 2}, {"with_mean": False}),
        *({"with_std": False}, {"with_mean": False, "ddof": 1, "eps": 0.5}),
    ],
    ids=str,
)
def test_standard_normal_variate(options, missing, offset):
    x = X + offset
    x = missing_here_and_there(x) if missing else x
    policy = "omit" if missing else "propagate"
    estimator = StandardNormalVariate(weights=list(WEIGHTS), nan_policy=policy, **options)
    expected = snv(x, WEIGHTS, **options)
    # The roundings of a few operations, of which each is half a unit of the largest number.
    unit = np.finfo(float).eps * np.nanmax(abs(expected))
    np.testing.assert_allclose(estimator.fit_transform(x), expected, rtol=0, atol=40 * unit)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_norms_of_networks_and_their_functions(dtype):
    x = X.astype(dtype)
    for estimator, function, options in (
        (LayerNormalizer, numnorm.layer_norm, {"eps": 1e-3}),
        (RMSNormalizer, numnorm.rms_norm, {"eps": 0.25}),
        (StandardNormalVariate, numnorm.standard_normal_variate, {"ddof": 1}),
    ):
        found = estimator(weights=WEIGHTS, **options).fit_transform(x)
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, function(x, weights=WEIGHTS, **options))
    if dtype == "float64":
        squares = np.average(x.astype(np.longdouble) ** 2, axis=1, weights=WEIGHTS)
        expected = x / np.sqrt(squares + 0.25)[:, np.newaxis]
        found = RMSNormalizer(eps=0.25, weights=WEIGHTS).fit_transform(x)
        np.testing.assert_allclose(found, expected.astype(float), rtol=1e-15)  # some roundings
        found = LayerNormalizer(weights=WEIGHTS).fit_transform(x)
        np.testing.assert_allclose(found, snv(x, WEIGHTS, eps=1e-5), rtol=0, atol=1e-14)


@pytest.mark.parametrize("missing", [False, True])
def test_regression_on_the_reference(missing):
    x = missing_here_and_there(X) if missing else X
    estimator = MultiplicativeScatterCorrection(
        REFERENCE, weights=WEIGHTS, nan_policy="omit" if missing else "raise"
    )
    corrected = estimator.fit_transform(x)
    for row, found in zip(x, corrected, strict=True):
        there = ~np.isnan(row)
        root = np.sqrt(WEIGHTS[there])
        slope, offset = np.polyfit(REFERENCE[there], row[there], 1, w=root)
        expected = np.full(12, np.nan)
        expected[there] = (row[there] - offset) / slope
        # What a slope loses: its digits, where it is small beside the residuals.
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9 / abs(slope))
    # The same without a baseline but the offset.
    policy = {"nan_policy": "omit"} if missing else {}
    emsc = numnorm.emsc(x, REFERENCE, degree=0, weights=WEIGHTS, **policy)
    np.testing.assert_allclose(corrected, emsc, rtol=1e-9, atol=1e-9 * np.nanmax(abs(emsc)))


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("estimator", WEIGHTED, ids=NAMES)
def test_integers_are_repetitions(estimator, missing):
    counts = np.array([0, 2, 1, 3, 1, 0, 1, 1, 2, 1, 0, 1])
    x = missing_here_and_there(X) if missing else X
    estimator = clone(estimator).set_params(nan_policy="omit", weights=counts)
    plain, repeated = clone(estimator).set_params(weights=None), np.repeat(np.arange(12), counts)
    if hasattr(plain, "reference"):
        plain.set_params(reference=REFERENCE[repeated])
    expected = plain.fit_transform(x[:, repeated])
    found = estimator.fit_transform(x)[:, repeated]
    # Another order of summation; a slope may lose some digits.
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-11 * np.nanmax(abs(expected)))


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1e300])
@pytest.mark.parametrize("estimator", WEIGHTED, ids=NAMES)
def test_the_scale_of_weights_does_not_matter(estimator, scale):
    if hasattr(estimator, "ddof"):
        estimator = clone(estimator).set_params(ddof=0)
    expected = clone(estimator).fit_transform(X)
    with np.errstate(all="raise"):
        found = clone(estimator).set_params(weights=scale * WEIGHTS).fit_transform(X)
    # Weights times a power of ten are rounded.
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("with_mean", [True, False])
def test_constant_rows_are_those_whose_counting_values_are_equal(with_mean):
    x = X.copy()
    x[4, WEIGHTS > 0] = 0.1
    weighted = StandardNormalVariate(weights=WEIGHTS, with_mean=with_mean)
    for eps in (0.0, 0.5):
        result = clone(weighted).set_params(eps=eps).fit_transform(x)
        assert (result[4] == 0).all() and np.isfinite(result).all()
    result = clone(weighted).set_params(constant="nan").fit_transform(x)
    np.testing.assert_array_equal(np.isnan(result).any(axis=1), np.arange(30) == 4)
    with pytest.raises(ValueError, match=r"^X must not have constant rows, got one in row 4$"):
        clone(weighted).set_params(constant="raise").fit_transform(x)
    corrected = MultiplicativeScatterCorrection(REFERENCE, weights=WEIGHTS).fit_transform(x)
    mean = np.average(REFERENCE, weights=WEIGHTS)
    np.testing.assert_allclose(corrected[4], np.full(12, mean), rtol=1e-15)
    flat = np.where(WEIGHTS > 0, 1.5, REFERENCE)
    with pytest.raises(ValueError, match=r"got 1\.5 at each feature of a weight above 0$"):
        MultiplicativeScatterCorrection(flat, weights=WEIGHTS).fit(x)


@pytest.mark.parametrize("with_mean", [True, False])
def test_a_nan_without_weight_changes_no_other_value(with_mean):
    x = X.copy()
    x[3, 5] = np.nan
    weighted = StandardNormalVariate(weights=WEIGHTS, with_mean=with_mean)
    expected = weighted.fit_transform(X)
    expected[3, 5] = np.nan
    np.testing.assert_array_equal(weighted.fit_transform(x), expected)


WRONG = {
    "shape": (WEIGHTS[:7], "weights must have shape (12,), one for each feature of X, got (7,)"),
    "rows": (X, "weights must have shape (12,), one for each feature of X, got (30, 12)"),
    "negative": (WEIGHTS - 1, "weights must be at least 0, and greater for a feature, got -1"),
    "zero": (0 * WEIGHTS, "weights must be at least 0, and greater for a feature, got only 0"),
    "nan": (np.full(12, np.nan), "Input weights contains NaN"),
    "number": (2.0, "The 'weights' parameter of"),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("estimator", WEIGHTED, ids=NAMES)
def test_wrong_weights_are_named_by_fit(estimator, wrong):
    weights, message = WRONG[wrong]
    fitted = clone(estimator).fit(X)
    given = clone(fitted).set_params(weights=weights)
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        given.fit(X)
    fitted.set_params(weights=np.ones(7))
    with pytest.raises(ValueError, match=r"^weights must have shape \(12,\)"):
        fitted.transform(X)
    with pytest.raises(ValueError, match=r"^weights must have shape \(5,\)"):
        clone(estimator).fit(X[:, :5])
    with pytest.raises(ValueError, match=r"^weights must have shape \(5,\)"):
        fitted.set_params(weights=WEIGHTS).fit(X[:, :5])
    assert fitted.n_features_in_ == 12


def test_ddof_is_less_than_the_sum_of_the_weights():
    estimator = StandardNormalVariate(weights=WEIGHTS / WEIGHTS.sum(), ddof=1)
    with pytest.raises(ValueError, match=r"^ddof must be less than the sum of the weights, 1, got"):
        estimator.fit_transform(X)


@pytest.mark.parametrize("estimator", WEIGHTED, ids=NAMES)
def test_copies_pickles_frames_and_layouts(estimator):
    expected = clone(estimator).fit_transform(X)
    assert clone(estimator).get_params()["weights"] is not estimator.weights
    repr(estimator)
    again = pickle.loads(pickle.dumps(clone(estimator).fit(X)))
    for x in (X, np.asfortranarray(X), X[:7]):
        np.testing.assert_array_equal(again.transform(x), expected[: len(x)])
    names = [f"{n} nm" for n in range(12)]
    for library in (pandas, polars):
        frame = library.DataFrame(dict(zip(names, X.T, strict=True)))
        framed = clone(estimator).set_params(weights=library.Series(WEIGHTS))
        result = framed.set_output(transform=library.__name__).fit_transform(frame)
        assert isinstance(result, library.DataFrame) and list(result.columns) == names
        np.testing.assert_array_equal(result.to_numpy(), expected)
    own = X.copy()
    written = clone(estimator).set_params(copy=False).fit(X).transform(own)
    assert written is own
    np.testing.assert_array_equal(own, expected)
