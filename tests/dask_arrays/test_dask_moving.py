"""Moving norms of arrays of Dask in any chunks: the bytes of a call for the whole array."""

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from lazy_norms import computed, divided

import numnorm

da = pytest.importorskip("dask.array")

LIBRARIES = ["dask.array", "dask_array"]
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
FEW, MANY = (settings(max_examples=n, deadline=None, phases=PHASES) for n in (40, 500))
DTYPES = [np.float16, np.float32, np.float64, np.int16]


def same(results, expected):
    assert type(results) is type(expected)
    results = results if isinstance(results, tuple) else (results,)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for result, other in zip(results, expected, strict=True):
        assert result.dtype == other.dtype
        np.testing.assert_array_equal(result, other)


@st.composite
def calls(draw):
    """A name, its other arguments, and a seed."""
    if draw(st.booleans()):
        adjust, initial = draw(st.booleans()), draw(st.sampled_from([0, 0, 1, 4, 100]))
        options = {"alpha": draw(st.sampled_from([0.01, 0.3, 1.0])), "adjust": adjust}
        return "exponential_norm", {**options, "initial": initial}
    window = draw(st.sampled_from([1, 2, 3, 4, 5, 8, 11, 50]))
    options = {"window": window, "center": draw(st.booleans())}
    options["min_window"] = draw(st.integers(1, window))
    return "moving_norm", options


def check(data, library):
    library = pytest.importorskip(library)
    name, options = data.draw(calls())
    steps, seed = data.draw(st.integers(0, 40)), data.draw(st.integers(0, 999))
    shape, axis = data.draw(st.sampled_from([((steps,), -1), ((steps, 3), 0), ((2, steps, 9), 1)]))
    rng = np.random.default_rng(seed)
    dtype = data.draw(st.sampled_from(DTYPES))
    x = (10 * rng.standard_normal(shape) + 3).astype(dtype)
    options["axis"] = axis

    def lazy(array):
        return library.from_array(array, chunks=divided(array.shape, rng))

    chunked = dict(options)
    if data.draw(st.booleans()):
        options["where"] = rng.random(shape) < data.draw(st.sampled_from([0.0, 0.1, 0.8]))
        chunked["where"] = lazy(options["where"])
    function = getattr(numnorm, name)
    result = function(lazy(x), **chunked)
    same(computed(result), function(x, **options))
    forward = getattr(numnorm, f"{name}_forward")
    expected = forward(x, **options)
    same(computed(forward(lazy(x), **chunked)), expected)
    backward, dy = getattr(numnorm, f"{name}_backward"), rng.standard_normal(shape)
    given = dy, x, *expected[1:]
    same(computed(backward(*map(lazy, given), **chunked)), backward(*given, **options))


@pytest.mark.parametrize("library", LIBRARIES)
@FEW
@given(data=st.data())
def test_any_chunks_give_the_bytes_of_the_whole(library, data):
    check(data, library)


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES)
@MANY
@given(data=st.data())
def test_many_chunks_give_the_bytes_of_the_whole(library, data):
    check(data, library)


X = np.arange(24.0).reshape(6, 4) ** 2


def test_chunks_stay_as_they_were():
    lazy = da.from_array(X, chunks=((1, 2, 1, 2), (3, 1)))
    for result in (
        numnorm.moving_norm(lazy, 2, axis=0),
        *numnorm.moving_norm_forward(lazy, 2, axis=0),
        numnorm.exponential_norm(lazy, 0.1, axis=0, initial=3),
        *numnorm.exponential_norm_forward(lazy, 0.1, axis=0),
    ):
        assert isinstance(result, da.Array) and result.chunks == lazy.chunks


def test_each_step_is_taken_once(monkeypatch):
    from numnorm._dask import moving

    taken, step = [], moving._step
    monkeypatch.setattr(
        moving, "_step", lambda x, *rest, **kw: taken.append(1) or step(x, *rest, **kw)
    )
    lazy = da.from_array(np.random.default_rng(0).standard_normal((40, 2)), chunks=(4, 1))
    numnorm.exponential_norm(lazy, 0.1, axis=0).compute(scheduler="synchronous")
    assert len(taken) == 20


def test_graphs_are_not_larger_than_the_data_needs():
    lazy = da.zeros((1000, 4), chunks=(10, 4))
    for result in (
        numnorm.moving_norm(lazy, 5, axis=0),
        numnorm.exponential_norm(lazy, 0.1, axis=0),
    ):
        assert len(result.__dask_graph__()) < 12 * 100


def test_wrong_arguments_are_errors_of_the_call():
    lazy = da.from_array(X, chunks=2)
    with pytest.raises(ValueError, match=r"^window must be at least 1, got 0$"):
        numnorm.moving_norm(lazy, 0)
    with pytest.raises(ValueError, match=r"^alpha must be"):
        numnorm.exponential_norm(lazy, 2.0)
    with pytest.raises(ValueError, match=r"^axis must be"):
        numnorm.moving_norm(lazy, 2, axis=2)
    with pytest.raises(ValueError, match=r"^out must be None for lazy arrays, got a ndarray$"):
        numnorm.moving_norm(lazy, 2, out=X.copy())
    with pytest.raises(ValueError, match=r"^dy must have shape"):
        numnorm.moving_norm_backward(X[:2], lazy, X, X, 2)
    with pytest.raises(TypeError, match="complex"):
        numnorm.moving_norm(lazy.astype(complex), 2)
