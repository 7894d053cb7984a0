"""BatchNormalizer of sparse matrices, beside StandardScaler."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from numnorm.sklearn import BatchNormalizer

rng = np.random.default_rng(0)
DENSE = rng.poisson(0.7, (40, 5)) * rng.normal(size=(40, 5))
FORMATS = [sparse.csr_array, sparse.csc_array, sparse.csr_matrix]


@pytest.mark.parametrize("make", FORMATS)
@pytest.mark.parametrize("dtype", ["float64", "float32", "int64"])
def test_as_standard_scaler(make, dtype):
    X = make(DENSE.astype(dtype))
    ours, theirs = BatchNormalizer(with_mean=False).fit(X), StandardScaler(with_mean=False).fit(X)
    # StandardScaler rounds statistics of float32 to float32.
    tolerance = 1e-6 if dtype == "float32" else 1e-13
    np.testing.assert_allclose(ours.var_, theirs.var_, tolerance)
    np.testing.assert_allclose(ours.mean_, X.toarray().mean(0), tolerance)
    y, expected = ours.transform(X), theirs.transform(X)
    assert type(y) is make
    assert y.dtype == expected.dtype
    np.testing.assert_allclose(y.toarray(), expected.toarray(), tolerance)
    back = ours.inverse_transform(y)
    assert type(back) is make
    np.testing.assert_allclose(back.toarray(), X.toarray(), 1e-6 if dtype == "float32" else 1e-13)


def test_weights_chunks_and_nan():
    X, weights = sparse.csr_array(DENSE), rng.integers(1, 4, 40) * 1.0
    whole = BatchNormalizer(with_mean=False).fit(X, sample_weight=weights)
    expected = StandardScaler(with_mean=False).fit(X, sample_weight=weights)
    np.testing.assert_allclose(whole.var_, expected.var_, 1e-13)
    parts = BatchNormalizer(with_mean=False)
    for part in (slice(0, 13), slice(13, 40)):
        parts.partial_fit(X[part], sample_weight=weights[part])
    np.testing.assert_allclose(parts.var_, whole.var_, 1e-13)
    X.data[0] = np.nan
    expected = StandardScaler(with_mean=False).fit(X)
    np.testing.assert_allclose(BatchNormalizer(with_mean=False).fit(X).var_, expected.var_, 1e-13)
    with pytest.raises(ValueError, match="X must not contain NaN, as nan_policy is 'raise'"):
        BatchNormalizer(with_mean=False, nan_policy="raise").fit(X)


@pytest.mark.parametrize("make", FORMATS)
def test_labels(make):
    X, labels = make(DENSE), np.arange(40) % 3
    normalizer = BatchNormalizer(with_mean=False).fit(X, labels=labels)
    dense = clone(normalizer).fit(DENSE, labels=labels)
    np.testing.assert_allclose(normalizer.label_scale_, dense.label_scale_, 1e-13)
    y = normalizer.transform(X, labels=labels)
    np.testing.assert_allclose(y.toarray(), dense.transform(DENSE, labels=labels), 1e-12)
    back = normalizer.inverse_transform(y, labels=labels)
    np.testing.assert_allclose(back.toarray(), DENSE, 1e-12)


def test_in_place_and_as_dense():
    X = sparse.csr_array(DENSE)
    y = BatchNormalizer(with_mean=False).fit_transform(X)
    dense = BatchNormalizer(with_mean=False).fit_transform(DENSE)
    np.testing.assert_allclose(y.toarray(), dense, 1e-13)
    assert BatchNormalizer(with_mean=False, copy=False).fit_transform(X) is X
    np.testing.assert_array_equal(X.toarray(), y.toarray())
    with pytest.raises(TypeError, match="dense data is required"):
        BatchNormalizer().fit(X)


@parametrize_with_checks([BatchNormalizer(with_mean=False)])
def test_checks_of_scikit_learn(estimator, check):
    check(estimator)
