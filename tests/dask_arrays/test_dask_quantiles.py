"""Quantiles of lazy arrays: in any chunks those of NumPy, merged, streamed, and computed."""

import pickle

import numpy as np
import pytest

import numnorm

da = pytest.importorskip("dask.array")

X = 1e3 + np.random.default_rng(0).normal(size=(90, 6))
Q = [0.0, 0.1, 0.5, 0.75, 1.0]


@pytest.fixture(params=["dask.array", "dask_array"])
def library(request):
    return pytest.importorskip(request.param)


def assert_same(lazy, expected, library):
    found = lazy.quantile(Q)
    assert isinstance(found, library.Array)
    assert found.compute().tobytes() == expected.quantile(Q).tobytes()
    np.testing.assert_array_equal(lazy.count.compute(), expected.count)
    assert lazy.count.dtype == np.int64
    in_memory = lazy.compute()
    assert type(in_memory) is numnorm.Quantiles
    assert in_memory.quantile(Q).tobytes() == expected.quantile(Q).tobytes()
    assert lazy.median().compute().tobytes() == expected.median().tobytes()
    assert lazy.iqr("hazen").compute().tobytes() == expected.iqr("hazen").tobytes()


@pytest.mark.parametrize("chunks", [(7, 6), (90, 2), (13, 4), (2, 1)])
def test_any_chunks(library, chunks):
    lazy = numnorm.quantiles(library.from_array(X, chunks=chunks))
    assert_same(lazy, numnorm.quantiles(X), library)
    assert lazy.rank_error.compute() == 0
    assert "lazy" in repr(lazy)


@pytest.mark.parametrize("axes", [1, (1,), (0, 2), (2, 1)])
def test_any_channel_axes(library, axes):
    x = X.reshape(9, 10, 6).astype("float32")
    lazy = numnorm.quantiles(library.from_array(x, chunks=(4, 3, 4)), channel_axis=axes)
    assert_same(lazy, numnorm.quantiles(x, channel_axis=axes), library)


@pytest.mark.parametrize("policy", ["propagate", "omit"])
def test_missing_values(library, policy):
    rng = np.random.default_rng(1)
    x = np.where(rng.random(X.shape) < 0.02, np.nan, X)
    where = rng.random(X.shape) < [0.9, 0.9, 0.0, 0.1, 0.5, 1.0]
    expected = numnorm.quantiles(x, where=where, nan_policy=policy)
    for mask in (where, library.from_array(where, chunks=50)):
        lazy = library.from_array(x, chunks=(20, 4))
        assert_same(numnorm.quantiles(lazy, where=mask, nan_policy=policy), expected, library)
    only_mask = numnorm.quantiles(x, where=library.from_array(where), nan_policy=policy)
    assert_same(only_mask, expected, library)


def test_after_and_merged(library):
    expected = numnorm.quantiles(X)

    def lazy(rows, chunks):
        return numnorm.quantiles(library.from_array(X[rows], chunks=chunks))

    rest = library.from_array(X[32:], chunks=(32, 4))
    assert_same(numnorm.quantiles(rest, after=numnorm.quantiles(X[:32])), expected, library)
    after = lazy(slice(40), (9, 4))
    assert_same(numnorm.quantiles(X[40:], after=after), expected, library)
    others = lazy(slice(40, None), (50, 1)), numnorm.quantiles(X[40:])
    for other in others:
        assert_same(after.merge(other), expected, library)
        assert_same(other.merge(after), expected, library)
    with pytest.raises(ValueError, match=r"^other.count must have shape \(6,\)"):
        after.merge(numnorm.quantiles(X[:, :3]))


def test_sketches(library):
    pytest.importorskip("datasketches")
    x = np.random.default_rng(2).normal(size=(40000, 3))
    lazy = numnorm.quantiles(library.from_array(x, chunks=(9000, 2)), error=0.02, keep=1000)
    assert 0 < lazy.rank_error.compute() <= 0.02
    found = lazy.compute()
    assert 0 < found.rank_error <= 0.02
    ordered = np.sort(x, axis=0)
    for channel in range(3):
        ranks = np.searchsorted(ordered[:, channel], found.quantile(Q)[:, channel]) / len(x)
        np.testing.assert_allclose(ranks, Q, atol=0.04)  # 1 of 100 sketches is beyond 0.02


def test_lazy_quantiles_are_not_saved(library):
    lazy = numnorm.quantiles(library.from_array(X, chunks=20))
    with pytest.raises(TypeError, match=r"use .compute\(\)"):
        lazy.to_arrays()
    copied = pickle.loads(pickle.dumps(lazy))
    assert copied.median().compute().tobytes() == numnorm.quantiles(X).median().tobytes()


def test_arguments_are_checked_at_the_call(library):
    lazy = library.from_array(X, chunks=20)
    with pytest.raises(ValueError, match=r"^keep must be at least 1"):
        numnorm.quantiles(lazy, keep=0)
    with pytest.raises(TypeError, match=r"^after must be Quantiles"):
        numnorm.quantiles(lazy, after=numnorm.batch_moments(X))
    with pytest.raises(ValueError, match=r"^q must be between"):
        numnorm.quantiles(lazy).quantile(2)
    with pytest.raises(TypeError, match=r"^where must"):
        numnorm.quantiles(lazy, where=X)
