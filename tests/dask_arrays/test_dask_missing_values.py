"""`where`, `weights` and `nan_policy` for arrays of Dask: the results of the array in memory."""

import functools

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from lazy_norms import computed, divided

import numnorm

da = pytest.importorskip("dask.array")

LIBRARIES = ["dask.array", "dask_array"]
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
FEW = settings(max_examples=20, deadline=None, phases=PHASES)
OF_ROWS = ["layer_norm", "rms_norm", "ada_norm", "standard_normal_variate"]
MOVING = {"moving_norm": {"window": 4}, "exponential_norm": {"alpha": 0.2, "initial": 3}}


def same(results, expected):
    results = results if isinstance(results, tuple) else (results,)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for result, other in zip(results, expected, strict=True):
        assert result.dtype == other.dtype
        np.testing.assert_array_equal(result, other)


def drawn(data, library, name):
    """An array with its keywords, both in memory and lazy."""
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    shape, axis = data.draw(st.sampled_from([((30, 5), 0), ((6, 20), 1), ((3, 12, 4), 1)]))
    x = rng.standard_normal(shape).astype(data.draw(st.sampled_from([np.float32, np.float64])))
    keywords, lazy = {"axis": axis, **MOVING.get(name, {})}, {}
    if data.draw(st.booleans()):
        x[rng.random(shape) < 0.2] = np.nan
        keywords["nan_policy"] = data.draw(st.sampled_from(["omit", "propagate"]))
        keywords["fill"] = data.draw(st.sampled_from([None, 7.0]))
    small = data.draw(st.sampled_from([shape, (1,) * len(shape), shape[1:], shape[-1:], ()]))
    if data.draw(st.booleans()) or keywords.get("nan_policy") != "omit":
        lazy["where"] = rng.random(small) < 0.8
    if name in OF_ROWS and data.draw(st.booleans()):
        own = data.draw(st.sampled_from([(shape[axis],), small]))
        lazy["weights"] = rng.integers(0, 3, own) * rng.random(own)
    if data.draw(st.booleans()) and name in ("layer_norm", "rms_norm"):
        lazy["gamma"] = rng.random(shape[axis])
    in_chunks = {n: library.from_array(a, chunks=divided(a.shape, rng)) for n, a in lazy.items()}
    some = {n: in_chunks[n] if data.draw(st.booleans()) else lazy[n] for n in lazy}
    return x, library.from_array(x, chunks=divided(shape, rng)), keywords, lazy, some


def near(results, expected, dtype):
    """The same but for rounding in merged moments: squares are taken in the dtype of x."""
    results = results if isinstance(results, tuple) else (results,)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for result, other in zip(results, expected, strict=True):
        assert result.dtype == other.dtype
        bound = 16 * np.finfo(dtype).eps
        largest = np.nanmax(np.abs(other), initial=1)
        np.testing.assert_allclose(result, other, rtol=bound, atol=bound * largest)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", [*OF_ROWS, *MOVING])
@FEW
@given(data=st.data())
def test_any_chunks_give_the_bytes_of_the_whole(library, name, data):
    """Or, where a row lies in several chunks, the same up to rounding."""
    library = pytest.importorskip(library)
    x, lazy_x, keywords, arrays, lazy = drawn(data, library, name)
    divided_rows = name in OF_ROWS and sum(n > 0 for n in lazy_x.chunks[keywords["axis"]]) > 1
    agree = functools.partial(near, dtype=x.dtype) if divided_rows else same
    for kind in ("", "_forward"):
        function = getattr(numnorm, name + kind, None)
        if function is not None:
            result = function(lazy_x, **keywords, **lazy)
            agree(computed(result), function(x, **keywords, **arrays))
    if name in MOVING:
        forward, function = (getattr(numnorm, f"{name}_{p}ward") for p in ("for", "back"))
        saved, dy = forward(x, **keywords, **arrays)[1:], np.ones(x.shape)
        keywords.pop("fill", None)
        found = function(dy, lazy_x, *saved, **keywords, **lazy)
        same(computed(found), function(dy, x, *saved, **keywords, **arrays))


X = np.arange(24.0).reshape(6, 4)
LAZY = da.from_array(X, chunks=2)


def test_a_nan_is_an_error_of_its_block():
    x = da.from_array(np.where(X == 5, np.nan, X), chunks=2)
    for result in (
        numnorm.layer_norm(x, nan_policy="raise"),
        numnorm.moving_norm(x, 2, nan_policy="raise"),
    ):
        with pytest.raises(ValueError, match=r"^x must not contain NaN, as nan_policy is 'raise'$"):
            result.compute(scheduler="synchronous")


def test_chunks_stay_as_they_were():
    result = numnorm.layer_norm_forward(LAZY, where=X > 3)
    assert result.y.chunks == LAZY.chunks and result.mean.chunks == LAZY.chunks[:1]


@pytest.mark.parametrize("shape", [(0, 4), (6, 0), (0, 0)])
def test_arrays_without_elements(shape):
    for mask in (np.ones(shape, bool), np.ones(shape[1:], bool), True):
        for x in (np.ones(shape), da.ones(shape, chunks=2)):
            assert numnorm.layer_norm(x, where=mask).shape == shape
            assert numnorm.moving_norm(x, 2, where=mask).shape == shape


@pytest.mark.parametrize("mask", [da.from_array(X > 3, chunks=3), X > 3])
def test_what_is_lazy_makes_the_call_lazy(mask):
    for x in (X, LAZY):
        result = numnorm.layer_norm(x, where=mask)
        assert isinstance(result, da.Array) == (x is LAZY or isinstance(mask, da.Array))
        np.testing.assert_array_equal(result, numnorm.layer_norm(X, where=X > 3))


def test_a_mask_of_0_and_1():
    """What a lazy mask holds is known when it is computed."""
    mask = (X > 3).astype(np.int64)
    for norm in (numnorm.layer_norm, lambda x, **kw: numnorm.moving_norm(x, 2, **kw)):
        expected = norm(X, where=X > 3)
        for taken in (mask, da.from_array(mask, chunks=3)):
            np.testing.assert_array_equal(norm(LAZY, where=taken), expected)
        other = norm(LAZY, where=da.from_array(2 * mask, chunks=3))
        with pytest.raises(ValueError, match="where must hold only 0 and 1"):
            other.compute()


def test_errors():
    text = r"^where must broadcast against x of shape \(6, 4\), got \(3,\)$"
    for call in (numnorm.layer_norm, lambda x, **kw: numnorm.moving_norm(x, 2, **kw)):
        with pytest.raises(ValueError, match=text):
            call(LAZY, where=np.ones(3, bool))
        with pytest.raises(
            TypeError, match=r"^where must have dtype bool, or hold .* got float64: use mask"
        ):
            call(LAZY, where=np.ones(4))
        with pytest.raises(ValueError, match=r"^nan_policy must be"):
            call(LAZY, nan_policy="drop")
    running = {"running_mean": da.zeros(4, chunks=2), "running_var": da.ones(4, chunks=2)}
    text = "^where is not supported with running statistics$"  # nor by NumPy's function
    with pytest.raises(NotImplementedError, match=text):
        numnorm.instance_norm(LAZY[..., None], where=X[..., None] > 3, **running)


CHANNELS = {
    "weight_norm": {"axis": (1, 2)},
    "group_norm": {"groups": 2},
    "group_norm of the last axis": {"groups": 3, "channel_axis": -1},
    "instance_norm": {},
    "batch_norm": {},
    "batch_norm of two axes": {"channel_axis": (1, 2)},
}


def without_empty(chunks):
    return [[length for length in lengths if length] for lengths in chunks]


@pytest.mark.parametrize("name", CHANNELS)
@FEW
@given(data=st.data())
def test_norms_of_channels_and_vectors(name, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    norm, options = name.partition(" ")[0], dict(CHANNELS[name])
    x = rng.standard_normal((6, 4, 3))
    arrays = {}
    if data.draw(st.booleans()):
        x[rng.random(x.shape) < 0.2] = np.nan
        options["nan_policy"] = "omit"
    small = data.draw(st.sampled_from([x.shape, (4, 1), (3,), (6, 1, 1)]))
    if data.draw(st.booleans()) or "nan_policy" not in options:
        arrays["where"] = rng.random(small) < 0.8
        options["fill"] = data.draw(st.sampled_from([None, 7.0]))
    if data.draw(st.booleans()):
        arrays["weights"] = rng.integers(0, 3, small) * rng.random(small)
    if data.draw(st.booleans()):
        channels = np.atleast_1d(options.get("channel_axis", 1))
        shape = tuple(x.shape[axis] for axis in channels)
        names = ("gamma", "beta")
        if norm == "weight_norm":
            shape, names = x.shape[:1], ("g",)
        arrays |= {key: rng.random(shape) for key in names}
    lazy = {n: da.from_array(a, chunks=divided(a.shape, rng)) for n, a in arrays.items()}
    lazy = {n: lazy[n] if data.draw(st.booleans()) else arrays[n] for n in lazy}
    lazy_x = da.from_array(x, chunks=divided(x.shape, rng))
    for kind in ("", "_forward"):
        function = getattr(numnorm, norm + kind)
        found = function(lazy_x, **options, **lazy)
        expected = function(x, **options, **arrays)
        assert without_empty((found.y if kind else found).chunks) == without_empty(lazy_x.chunks)
        results = zip(found, expected, strict=True) if kind else [(found, expected)]
        for mine, other in results:
            np.testing.assert_allclose(computed(mine), other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["batch_norm", "instance_norm"])
def test_stored_statistics(name):
    x, mask = np.arange(24.0).reshape(2, 3, 4), np.arange(4) > 0
    running = {"running_mean": np.ones(3), "running_var": np.arange(1.0, 4.0)}
    lazy = {key: da.from_array(array, chunks=2) for key, array in running.items()}
    norm = getattr(numnorm, name)
    found = norm(da.from_array(x, chunks=(1, 2, 3)), where=mask, training=False, **lazy)
    expected = norm(x, where=mask, training=False, **running)
    np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-13)
