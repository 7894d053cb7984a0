"""Missing values and weights beside NumPy, SciPy, scikit-learn and PyTorch."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import numnorm

CLOSE = {"rtol": 1e-12, "atol": 1e-13}


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.mark.parametrize("axis", [0, 1, (0, 2)])
@pytest.mark.parametrize("ddof", [0, 1])
def test_numpy_where(rng, axis, ddof):
    x, keep = rng.normal(size=(5, 6, 4)), rng.random((5, 6, 4)) < 0.7
    y = numnorm.standard_normal_variate(x, axis=axis, ddof=ddof, where=keep)
    options = {"axis": axis, "keepdims": True, "where": keep}
    expected = (x - np.mean(x, **options)) / np.std(x, ddof=ddof, **options)
    assert_allclose(y, np.where(keep, expected, 0), **CLOSE)


def test_numpy_where_of_channels(rng):
    x, keep = rng.normal(size=(9, 4)), rng.random((9, 4)) < 0.7
    moments = numnorm.batch_moments(x, where=keep)
    assert_allclose(moments.mean, np.mean(x, 0, where=keep), **CLOSE)
    assert_allclose(moments.var(1), np.var(x, 0, ddof=1, where=keep), **CLOSE)


def test_where_of_nothing():
    x, keep = np.ones((2, 3)), np.array([[True], [False]])
    with np.errstate(all="ignore"), pytest.warns(RuntimeWarning):
        assert np.isnan(np.mean(x, 1, where=keep)[1])
    _, mean, rstd = numnorm.layer_norm_forward(x, where=keep)
    assert np.isnan(mean[1])
    assert np.isnan(rstd[1])


@pytest.mark.parametrize("ddof", [0, 1])
def test_one_value(ddof):
    # NumPy and SciPy: the deviation of one value is 0 with ddof 0, and NaN with ddof 1.
    stats = pytest.importorskip("scipy.stats")
    x = np.array([[1.0, np.nan, np.nan], [1.0, 2.0, 4.0]])
    with np.errstate(all="ignore"):
        expected = stats.zscore(x, axis=1, ddof=ddof, nan_policy="omit")
    y = numnorm.standard_normal_variate(x, nan_policy="omit", ddof=ddof)
    assert_allclose(y[1], expected[1], **CLOSE)
    # SciPy divides 0 by 0; here what is constant gives 0.
    assert np.isnan(expected[0, 0])
    assert_array_equal(y[0], [0.0 if ddof == 0 else np.nan, np.nan, np.nan])


@pytest.mark.parametrize("ddof", [0, 1, 2])
def test_numpy_cov(rng, ddof):
    x, counts = rng.normal(size=(3, 8)), rng.integers(1, 4, 8)
    moments = numnorm.batch_moments(x.T, weights=counts)
    expected = np.diag(np.cov(x, fweights=counts, ddof=ddof))
    assert_allclose(moments.var(ddof), expected, **CLOSE)
    # aweights are the same for ddof 0; with another, NumPy divides by W - ddof sum(w**2) / W.
    weights = rng.random(8)
    moments = numnorm.batch_moments(x.T, weights=weights)
    total, squares = weights.sum(), np.square(weights).sum()
    expected = np.diag(np.cov(x, aweights=weights, ddof=ddof))
    assert_allclose(moments.m2 / (total - ddof * squares / total), expected, **CLOSE)


def test_scikit_learn_scale_and_scaler(rng):
    preprocessing = pytest.importorskip("sklearn.preprocessing")
    x = rng.normal(size=(40, 3)) + 5.0
    x[rng.random(x.shape) < 0.2] = np.nan
    y = numnorm.batch_norm(x, eps=0, nan_policy="omit")
    assert_allclose(y, preprocessing.scale(x), rtol=1e-10, atol=1e-12)
    weights = rng.integers(0, 3, 40)
    scaler = preprocessing.StandardScaler().fit(x, sample_weight=weights)
    y = numnorm.batch_norm(x, eps=0, weights=weights, nan_policy="omit")
    # Samples of weight 0 are transformed, too.
    assert_allclose(y, scaler.transform(x), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_masked_batch_norm_of_padded_sequences(rng, dtype):
    # The idiom of PyTorch: normalize x[mask], (steps that count, channels), and put it back.
    x, lengths = rng.normal(size=(4, 3, 9)).astype(dtype), np.array([9, 4, 6, 1])
    keep = np.arange(9) < lengths[:, None]
    steps = x.transpose(0, 2, 1)[keep]
    running, expected = (np.zeros(3), np.ones(3)), (np.zeros(3), np.ones(3))
    y = numnorm.batch_norm(
        x, where=keep[:, None], running_mean=running[0], running_var=running[1], momentum=0.1
    )
    of_steps = numnorm.batch_norm(
        steps, running_mean=expected[0], running_var=expected[1], momentum=0.1
    )
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype == "float32" else CLOSE
    assert_allclose(y.transpose(0, 2, 1)[keep], of_steps, **close)
    assert not y.transpose(0, 2, 1)[~keep].any()
    assert_allclose(running, expected, rtol=1e-6)


@pytest.mark.parametrize(
    "labels",
    [
        list("babca"),
        [30, -1, 30, 7, -1],
        [2.5, 1.5, 2.5, 9.0, 1.5],
        [True, False] * 2 + [False],
    ],
)
def test_labels_of_any_type(rng, labels):
    x, labels = rng.normal(size=(5, 3)), np.array(labels)
    y = numnorm.batch_norm(x, labels=labels, eps=0)
    moments = numnorm.batch_moments(x, labels=labels)
    assert_array_equal(moments.labels, np.unique(labels))
    for i, label in enumerate(moments.labels):
        own = labels == label
        assert_allclose(y[own], numnorm.batch_norm(x[own], eps=0), **CLOSE)
        assert_allclose(moments.moments.mean[i], x[own].mean(0), **CLOSE)


def test_labels_of_chunks_need_not_be_the_same(rng):
    x, labels = rng.normal(size=(6, 2)), np.array(["z", "b", "z", "a", "b", "a"])
    total = numnorm.batch_moments(x[:3], labels=labels[:3])
    total = numnorm.batch_moments(x[3:], labels=labels[3:], after=total)
    assert_array_equal(total.labels, ["a", "b", "z"])
    whole = numnorm.batch_moments(x, labels=labels)
    for field in ("count", "mean", "m2"):
        assert_allclose(getattr(total.moments, field), getattr(whole.moments, field), **CLOSE)


def test_compiled_callers_take_masks():
    numba = pytest.importorskip("numba")
    import numnorm._numba  # registers the functions

    if numba.config.DISABLE_JIT:
        pytest.skip("nothing is compiled")
    caller = numba.njit(lambda x, keep: numnorm.layer_norm(x, eps=0, where=keep))
    y = caller(np.array([[1.0, 5.0, 3.0]]), np.array([True, False, True]))
    assert_array_equal(y, [[-1, 0, 1]])


def test_inference_of_instance_norm_takes_masks():
    x, keep = np.array([[[1.0, 5.0, 9.0]]]), np.array([True, True, False])
    statistics = {"running_mean": [1.0], "running_var": [4.0], "training": False, "eps": 0}
    assert_array_equal(numnorm.instance_norm(x, where=keep, **statistics), [[[0, 2, 0]]])
