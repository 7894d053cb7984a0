"""Statistics of labels in the batch normalizer, also as metadata that scikit-learn routes."""

import numpy as np
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GroupKFold, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import numnorm
from numnorm.sklearn import BatchNormalizer, StandardNormalVariate

RNG = np.random.default_rng(8)
LABELS = RNG.choice(["a", "b", "c"], 60)
X = RNG.normal(RNG.normal(0, 9, (3, 4))[np.unique(LABELS, return_inverse=True)[1]], 2.0)
WEIGHTS = RNG.random(60)
HOLED = np.where(RNG.random(X.shape) < 0.9, X, np.nan)


def by_label(x, labels, **options):
    """Each label's samples, normalized by an estimator of their own."""
    result, weights = np.empty_like(x), options.pop("sample_weight", None)
    for label in np.unique(labels):
        own = labels == label
        weight = None if weights is None else weights[own]
        fitted = BatchNormalizer(**options).fit(x[own], sample_weight=weight)
        result[own] = fitted.transform(x[own])
    return result


def routed(**options):
    """A normalizer that asks for labels."""
    normalizer = BatchNormalizer(**options)
    return normalizer.set_fit_request(labels=True).set_transform_request(labels=True)


@pytest.mark.parametrize("options", [{}, {"with_mean": False}, {"with_std": False}, {"eps": 0.1}])
@pytest.mark.parametrize("x", [X, HOLED, X.astype(np.float32)], ids=["", "nan", "float32"])
def test_each_label_has_statistics_of_its_own(x, options):
    normalizer = BatchNormalizer(**options).fit(x, sample_weight=WEIGHTS, labels=LABELS)
    result = normalizer.transform(x, labels=LABELS)
    assert result.dtype == x.dtype
    np.testing.assert_array_equal(result, by_label(x, LABELS, sample_weight=WEIGHTS, **options))
    back = normalizer.inverse_transform(result, labels=LABELS)
    # Two roundings of the normalized values, scaled, and one of x.
    allowed = 20 * np.finfo(x.dtype).eps * np.nanmax(abs(x))
    np.testing.assert_allclose(back, x, rtol=0, atol=allowed)
    # The statistics of all samples are those without labels.
    plain = BatchNormalizer(**options).fit(x, sample_weight=WEIGHTS)
    for name in ("mean_", "var_", "scale_", "n_samples_seen_"):
        np.testing.assert_array_equal(getattr(normalizer, name), getattr(plain, name), name)


def test_the_result_is_that_of_batch_norm():
    expected = numnorm.batch_norm(X, labels=LABELS, eps=0.0)
    found = BatchNormalizer().fit_transform(X, labels=LABELS)
    # The roundings of the scale and of the mean's lost digits.
    np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["", "weights"])
def test_chunks_equal_one_fit(weights):
    whole = BatchNormalizer().fit(HOLED, sample_weight=weights, labels=LABELS)
    chunks = BatchNormalizer()
    for rows in (slice(2), slice(2, 5), slice(5, 60)):  # not each has all labels
        weight = None if weights is None else weights[rows]
        chunks.partial_fit(HOLED[rows], sample_weight=weight, labels=LABELS[rows])
    np.testing.assert_array_equal(chunks.labels_, ["a", "b", "c"])
    for name in ("mean_", "label_mean_", "label_var_", "label_scale_"):
        found, right = getattr(chunks, name), getattr(whole, name)
        np.testing.assert_allclose(found, right, rtol=1e-12, err_msg=name)
    assert chunks.fit(X).labels_ is chunks.label_mean_ is None


def test_a_label_that_fit_lacked():
    known, other = LABELS != "c", LABELS == "c"
    strict = BatchNormalizer().fit(X[known], labels=LABELS[known])
    for method in (strict.transform, strict.inverse_transform):
        with pytest.raises(ValueError, match=r"^labels must have labels that fit had, got 'c'$"):
            method(X, labels=LABELS)
    lenient = BatchNormalizer(handle_unknown="all").fit(X[known], labels=LABELS[known])
    result = lenient.transform(X, labels=LABELS)
    np.testing.assert_array_equal(result[known], strict.transform(X[known], LABELS[known]))
    of_all = BatchNormalizer().fit(X[known])
    np.testing.assert_array_equal(result[other], of_all.transform(X[other]))
    back = lenient.inverse_transform(result, labels=LABELS)
    np.testing.assert_allclose(back, X, rtol=1e-13, atol=1e-13)  # some roundings


@pytest.mark.parametrize("unknown", ["error", "all"])
def test_labels_of_fit_or_of_transform_alone(unknown):
    labelled = BatchNormalizer(handle_unknown=unknown).fit(X, labels=LABELS)
    with pytest.raises(ValueError, match=r"^labels must be given, as fit had them$"):
        labelled.transform(X)
    plain = BatchNormalizer(handle_unknown=unknown).fit(X)
    with pytest.raises(ValueError, match=r"^labels must be None, as fit had none$"):
        plain.transform(X, labels=LABELS)


def test_wrong_labels():
    fitted = BatchNormalizer().fit(X, labels=LABELS)
    with pytest.raises(ValueError, match=r"^labels must have shape \(60,\), one label for each"):
        fitted.transform(X, labels=LABELS[:9])
    with pytest.raises(TypeError, match=r"^labels must be of one type on both sides"):
        fitted.transform(X, labels=np.arange(60))
    with pytest.raises(TypeError, match=r"^labels must be of one type on both sides"):
        fitted.partial_fit(X, labels=np.arange(60))
    with pytest.raises(ValueError, match=r"^labels must have a label for each sample, got nan$"):
        fitted.fit(X, labels=np.full(60, np.nan))
    with pytest.raises(ValueError, match=r"^labels must be given in all calls of partial_fit, or"):
        fitted.partial_fit(X)
    with pytest.raises(ValueError, match="'handle_unknown' parameter of BatchNormalizer must be"):
        BatchNormalizer(handle_unknown="ignore").fit(X)


def test_in_place():
    x = X.copy()
    normalizer = BatchNormalizer(copy=False).fit(x, labels=LABELS)
    expected = BatchNormalizer().fit_transform(X, labels=LABELS)
    assert normalizer.transform(x, labels=LABELS) is x
    np.testing.assert_array_equal(x, expected)


def test_data_frames():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=list("wxyz"), index=np.arange(60) + 7)
    normalizer = BatchNormalizer().set_output(transform="pandas")
    result = normalizer.fit_transform(frame, labels=pandas.Series(LABELS, dtype="category"))
    assert list(result.columns) == list("wxyz") and list(result.index) == list(frame.index)
    np.testing.assert_array_equal(result, by_label(X, LABELS))


# Metadata routing


@pytest.fixture
def routing():
    with config_context(enable_metadata_routing=True):
        yield


def test_a_pipeline_hands_labels_on(routing):
    pipeline = make_pipeline(StandardNormalVariate(), routed(), FunctionTransformer())
    rows = StandardNormalVariate().fit_transform(X)
    expected = by_label(rows, LABELS)
    np.testing.assert_array_equal(pipeline.fit_transform(X, labels=LABELS), expected)
    np.testing.assert_array_equal(pipeline.transform(X, labels=LABELS), expected)
    model = make_pipeline(routed(), LinearRegression())
    y = X @ [1.0, 2.0, 3.0, 4.0]
    found = model.fit(X, y, labels=LABELS).predict(X, labels=LABELS)
    normalized = by_label(X, LABELS)
    np.testing.assert_allclose(found, LinearRegression().fit(normalized, y).predict(normalized))


def test_the_inverse_of_a_pipeline(routing):
    normalizer = routed().set_inverse_transform_request(labels=True)
    pipeline = make_pipeline(FunctionTransformer(), normalizer)
    result = pipeline.fit_transform(X, labels=LABELS)
    back = pipeline.inverse_transform(result, labels=LABELS)
    np.testing.assert_allclose(back, X, rtol=1e-13, atol=1e-13)  # some roundings


def test_cross_validation_splits_labels(routing):
    y, folds = X @ [1.0, 2.0, 3.0, 4.0], GroupKFold(3)
    given = {"labels": LABELS, "groups": LABELS}
    model = make_pipeline(routed(handle_unknown="all"), LinearRegression())
    result = cross_validate(
        model, X, y, params=given, cv=folds, return_estimator=True, error_score="raise"
    )
    for k, (train, test) in enumerate(folds.split(X, y, LABELS)):
        fitted = result["estimator"][k]
        np.testing.assert_array_equal(fitted[0].labels_, np.unique(LABELS[train]))
        score = fitted.score(X[test], y[test], labels=LABELS[test])
        assert result["test_score"][k] == score
    strict = clone(model).set_params(batchnormalizer__handle_unknown="error")
    with pytest.raises(ValueError, match=r"^labels must have labels that fit had"):
        cross_validate(strict, X, y, params=given, cv=folds, error_score="raise")


def test_a_column_transformer_hands_labels_on(routing):
    columns = ColumnTransformer([("some", routed(), [0, 2])], remainder="passthrough")
    found = columns.fit_transform(X, labels=LABELS)
    np.testing.assert_array_equal(found[:, :2], by_label(X[:, [0, 2]], LABELS))
    np.testing.assert_array_equal(found[:, 2:], X[:, [1, 3]])


def test_labels_that_nobody_asked_for_are_an_error(routing):
    with pytest.raises(ValueError, match="labels"):
        make_pipeline(BatchNormalizer(), LinearRegression()).fit(X, X[:, 0], labels=LABELS)
