"""Moments with lazy fields: streamed, merged, variances."""

import numpy as np
import pytest
import reference

import numnorm

da = pytest.importorskip("dask.array")

X = 100 + np.random.default_rng(0).normal(size=(90, 6))


@pytest.fixture(params=["dask.array", "dask_array"])
def library(request):
    return pytest.importorskip(request.param)


def computed(moments):
    fields = {name: array.compute() for name, array in zip(moments._fields[1:], moments[1:])}
    return moments._replace(**fields)


def assert_moments(moments, x=X):
    count, mean, m2 = reference.moments(x, 1)
    assert (type(moments.count), moments.count) == (int, count)
    # A few roundings of float64, with the mean in two parts.
    np.testing.assert_allclose(moments.mean, mean.astype(float), rtol=1e-15)
    np.testing.assert_allclose(moments.m2, m2.astype(float), rtol=1e-14)


@pytest.mark.parametrize("chunks", [(7, 6), (90, 2), (13, 4), 1])
def test_any_chunks(library, chunks):
    moments = numnorm.batch_moments(library.from_array(X, chunks=chunks))
    assert isinstance(moments.count, int) and isinstance(moments.m2, library.Array)
    assert_moments(computed(moments))


def test_moments_after_others(library):
    first = numnorm.batch_moments(X[:32])
    lazy = library.from_array(X[32:], chunks=(32, 4))
    for before in (first, first._replace(mean_lo=None), numnorm.batch_moments(lazy[:0])):
        start = 0 if before.count == 0 else 32
        after = numnorm.batch_moments(lazy, after=before)
        assert_moments(computed(after), X[32 - start :])
    later = numnorm.batch_moments(X[64:], after=numnorm.batch_moments(lazy[:32], after=first))
    assert_moments(computed(later))


def test_moments_of_a_stream_have_the_bytes_of_numpy(library):
    x = np.tile(X, (30, 1)) ** 2
    step = numnorm.chunk_multiple(x.shape)
    lazy = library.from_array(x[step:], chunks=(step, 4))
    first = numnorm.batch_moments(x[:step])
    parts = computed(numnorm.batch_moments(lazy, after=first))
    for mine, theirs in zip(parts[1:], numnorm.batch_moments(x)[1:], strict=True):
        assert mine.tobytes() == theirs.tobytes()


def test_merged_moments(library):
    def lazy(rows, chunks):
        return numnorm.batch_moments(library.from_array(X[rows], chunks=chunks))

    left, right = lazy(slice(40), (9, 4)), lazy(slice(40, None), (50, 1))
    assert_moments(computed(left.merge(right)))
    assert_moments(computed(left.merge(numnorm.batch_moments(X[40:]))))
    assert_moments(computed(numnorm.batch_moments(X[:40]).merge(right)))
    nothing = numnorm.batch_moments(X[:0])
    assert left.merge(nothing) is left
    assert nothing.merge(left) is left
    with pytest.raises(ValueError, match=r"^other.mean must have shape \(6,\)"):
        left.merge(numnorm.batch_moments(X[:, :3]))


@pytest.mark.parametrize("method", ["var", "std"])
def test_variances_are_those_of_numpy(library, method):
    moments = numnorm.batch_moments(library.from_array(X, chunks=(30, 4)))
    lazy = getattr(moments, method)(ddof=1)
    assert isinstance(lazy, library.Array)
    expected = getattr(computed(moments), method)(ddof=1)
    assert lazy.compute().tobytes() == expected.tobytes()
    with pytest.raises(ValueError, match=r"^ddof must be less than the count"):
        getattr(moments, method)(ddof=90)


def test_wrong_moments_are_errors_of_the_call():
    lazy, first = da.from_array(X, chunks=30), numnorm.batch_moments(X)
    for kind, message, after in [
        (ValueError, r"after.mean must have shape \(6,\), the channels of x, got \(3,\)",
         first._replace(mean=np.zeros(3))),
        (TypeError, "after.m2 must hold real numbers", first._replace(m2=1j * first.m2)),
        (ValueError, "after.count must be at least 0", first._replace(count=-1)),
        (TypeError, "after must be Moments", (1, first.mean, first.m2)),
    ]:  # fmt: skip
        with pytest.raises(kind, match=f"^{message}"):
            numnorm.batch_moments(lazy, after=after)
