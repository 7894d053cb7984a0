"""Sparse matrices of SciPy: moments and batch norm, against the definition of the dense matrix."""

import importlib
import pickle

import numpy as np
import pytest
from norm_checks import UNCOMPILED
from peak_memory import peak_of
from reference import LONGDOUBLE_IS_WIDER, exact
from scipy import sparse

import numnorm

pytestmark = pytest.mark.skipif(not LONGDOUBLE_IS_WIDER, reason="the definition has no more digits")
FORMATS = [sparse.csr_array, sparse.csc_array, sparse.csr_matrix, sparse.csc_matrix]
DTYPES = ["float64", "float32", "int64", "int32", "uint8", "bool"]
EPSILON = 2.0**-52


def filled(rng, shape, density):
    """A dense array with zeros, in any dtype: normal numbers, at an offset, equal, or whole."""
    kind = rng.choice(["normal", "offset", "constant", "integers", "wide"])
    if kind == "constant":
        values = np.full(shape, rng.normal())
    elif kind == "integers":
        values = rng.integers(-3, 4, shape).astype(float)
    else:
        values = rng.normal(size=shape) + (1e7 if kind == "offset" else 0)
        values *= 10.0 ** rng.integers(-60, 60, shape[1]) if kind == "wide" else 1
    dtype = rng.choice(DTYPES) if kind == "integers" else rng.choice(["float32", "float64"])
    with np.errstate(all="ignore"):
        values = (abs(values) if dtype in ("uint8", "bool") else values).astype(dtype)
    if dtype == "float32":
        values[abs(values) > 1e30] = 0
    return np.where(rng.random(shape) < density, values, values.dtype.type(0))


def compressed(rng, dense, make):
    """A sparse matrix of a dense one: some zeros are explicit, indices in any order and type."""
    kept = (dense != 0) | (rng.random(dense.shape) < 0.1)
    rows, columns = np.nonzero(kept)
    x = make(sparse.coo_array((dense[rows, columns], (rows, columns)), dense.shape))
    if rng.random() < 0.5:  # unsorted
        for i in range(len(x.indptr) - 1):
            own = slice(x.indptr[i], x.indptr[i + 1])
            order = rng.permutation(x.indptr[i + 1] - x.indptr[i])
            x.indices[own], x.data[own] = x.indices[own][order], x.data[own][order]
        x.has_sorted_indices = x.has_canonical_format = False
    if rng.random() < 0.5:
        x.indices, x.indptr = x.indices.astype(np.int64), x.indptr.astype(np.int64)
    return x


def statistics(dense, weights):
    """The count, the mean and the squared deviations of each column, in extended precision."""
    values, weights = exact(dense), np.broadcast_to(exact(weights), dense.shape)
    counts = (weights > 0) & ~np.isnan(values)
    weights = np.where(counts, weights, 0)
    values = np.where(counts, values, 0)
    total = weights.sum(0)
    mean = (weights * values).sum(0) / np.where(total > 0, total, 1)
    return total, mean, (weights * np.square(values - mean)).sum(0)


def check_moments(found, dense, weights):
    total, mean, m2 = statistics(dense, weights)
    # Rounding of sums of weights; whole ones are exact.
    np.testing.assert_allclose(np.float64(total), found.count, rtol=4 * EPSILON)
    spread = np.sqrt(m2 / np.where(total > 0, total, 1))
    error = abs(found.mean + exact(found.mean_lo) - mean)
    # A mean in two parts is off by some roundings of the deviations and of what both parts are.
    assert np.all(error <= 8 * EPSILON * spread + EPSILON**2 * 2**10 * abs(mean)), error
    # Sums of at most 100 squares around a pivot at most 4 deviations from the mean.
    assert np.all(abs(found.m2 - m2) <= 60 * EPSILON * m2), (found.m2, m2)


def check_random(number):
    rng = np.random.default_rng(number)
    shape = tuple(rng.integers(1, (40, 7)))
    dense = filled(rng, shape, rng.choice([0.0, 0.1, 0.5, 0.9, 1.0]))
    make = FORMATS[number % 4]
    x = compressed(rng, dense, make)
    weights, options = 1.0, {}
    if rng.random() < 0.3:
        weights = rng.integers(0, 3, (shape[0], 1)) * 1.0
        options["weights"] = weights if rng.random() < 0.5 else weights[:, 0]
    if x.dtype.kind == "f" and rng.random() < 0.3:
        x.data[rng.random(x.data.size) < 0.2] = np.nan
        dense, options["nan_policy"] = x.toarray(), "omit"
    labels = rng.choice(["b", "a", "c"], shape[0])
    check_moments(numnorm.batch_moments(x, **options), dense, weights)
    of_labels = numnorm.batch_moments(x, labels=labels, **options)
    for label in np.unique(labels):
        own = labels == label
        of_label = weights if np.ndim(weights) == 0 else weights[own]
        check_moments(of_labels[label], dense[own], of_label)
    cut = int(rng.integers(0, shape[0] + 1))
    if "weights" not in options and x.format == "csr":
        first = numnorm.batch_moments(x[:cut], **options)
        check_moments(numnorm.batch_moments(x[cut:], after=first, **options), dense, weights)
    eps, clip = float(rng.choice([0, 1e-5, 0.5])), rng.choice([None, 1.5])
    gamma = rng.normal(size=shape[1]) if rng.random() < 0.5 else None
    keywords = {"gamma": gamma, "with_mean": False, "eps": eps, "clip": clip, **options}
    for of in ({}, {"labels": labels}, {"labels": labels, "statistics": of_labels}):
        y, _, rstd = numnorm.batch_norm_forward(x, **of, **keywords)
        expected = numnorm.batch_norm_forward(dense, **of, **keywords)
        assert type(y) is make
        assert y.dtype == expected.y.dtype
        # The scale is rounded in float64 here and in float32 there.
        tolerance = 2e-6 if y.dtype == np.float32 else 1e-13
        stored = make((np.ones(x.data.size), x.indices, x.indptr), shape=shape).toarray() > 0
        found, wanted = y.toarray(), np.where(stored, expected.y, 0)
        np.testing.assert_allclose(found, wanted, tolerance, tolerance * 1e-3)
        np.testing.assert_allclose(rstd, expected.rstd, 1e-12 if dense.dtype == "float64" else 1e-5)
        if x.dtype == y.dtype:
            in_place = x.copy()
            assert numnorm.batch_norm(in_place, **of, **keywords, out=in_place) is in_place
            np.testing.assert_array_equal(in_place.toarray(), found)


@pytest.mark.parametrize("number", range(30))
def test_random_matrices(number):
    check_random(number)


@pytest.mark.full
@pytest.mark.parametrize("number", range(20))
def test_many_random_matrices(number):
    for more in range(10 if UNCOMPILED else 100):
        check_random(1000 + 100 * number + more)


@pytest.mark.parametrize("make", FORMATS[:2])
@pytest.mark.parametrize("offset", [1e3, 1e7, 1e10])
def test_deviations_at_any_offset(make, offset):
    rng = np.random.default_rng(0)
    dense = rng.normal(size=(3000, 3)) + offset
    dense[:10, 1] = 0
    check = statistics(dense, 1.0)
    found = numnorm.batch_moments(make(dense))
    # Around a pivot at most 4 deviations away; 3000 roundings of a random walk.
    np.testing.assert_allclose(found.m2, np.float64(check[2]), rtol=1e-14)
    halves = numnorm.batch_moments(make(dense[:1000])).merge(
        numnorm.batch_moments(make(dense[1000:]))
    )
    np.testing.assert_allclose(halves.m2, found.m2, rtol=1e-14)


@pytest.mark.parametrize("make", FORMATS[:2])
def test_a_constant_column_is_constant_at_any_value(make):
    dense = np.full((7, 3), 0.1)
    dense[:, 1] = 1e300
    dense[:, 2] = 0
    found = numnorm.batch_moments(make(dense))
    np.testing.assert_array_equal(found.m2, 0)
    np.testing.assert_array_equal(found.mean, dense[0])
    y = numnorm.batch_norm(make(dense), with_mean=False, eps=0)
    np.testing.assert_array_equal(y.toarray(), 0)


@pytest.mark.parametrize("make", FORMATS[:2])
def test_values_that_are_not_finite_stay_in_their_column(make):
    dense = np.zeros((4, 4))
    dense[0] = [np.inf, np.nan, 1, -np.inf]
    x = make(dense)
    found = numnorm.batch_moments(x)
    np.testing.assert_array_equal(found.mean, [np.inf, np.nan, 0.25, -np.inf])
    assert np.isnan(found.m2[[0, 1, 3]]).all()
    assert found.m2[2] == 0.75
    y = numnorm.batch_norm(x, with_mean=False).toarray()
    np.testing.assert_array_equal(np.isnan(y[0]), [True, True, False, True])
    np.testing.assert_array_equal(y[1:], 0)
    omitted = numnorm.batch_moments(x, nan_policy="omit")
    np.testing.assert_array_equal(omitted.count, [4, 3, 4, 4])
    assert omitted.mean[1] == 0
    with pytest.raises(ValueError, match="x must not contain NaN"):
        numnorm.batch_moments(x, nan_policy="raise")


@pytest.mark.parametrize("make", FORMATS[:2])
def test_extreme_values(make):
    tiny, huge = [1e-200, -1e-200, 0], [1e160, -1e160, 0]
    x = make(np.array([tiny, huge, [1e-140, 0, 0]]).T)
    with np.errstate(all="raise"):
        found = numnorm.batch_norm(x, with_mean=False, eps=0).toarray()
    # A variance below 1e-301 or beyond the range makes its column NaN, as in dense batch norm.
    expected = numnorm.batch_norm(x.toarray(), with_mean=False, eps=0)
    for column in (0, 2):
        stored = x.toarray()[:, column] != 0
        np.testing.assert_allclose(found[stored, column], expected[stored, column], rtol=1e-12)
    assert np.isnan(found[:2, 1]).all()


@pytest.mark.parametrize("make", FORMATS[:2])
def test_entries_of_one_place_are_added(make):
    ends = [0, 3, 4] if make is sparse.csr_array else [0, 2, 3, 4]
    places = [0, 0, 2, 1] if make is sparse.csr_array else [0, 0, 1, 1]
    x = make((np.array([1.0, 2.0, 4.0, 5.0]), places, ends), shape=(2, 3))
    assert x.nnz == 4
    dense = x.toarray()
    check_moments(numnorm.batch_moments(x), dense, 1.0)
    expected = numnorm.batch_norm(dense, with_mean=False, clip=1.2)
    found = numnorm.batch_norm(x, with_mean=False, clip=1.2)
    np.testing.assert_allclose(found.toarray(), expected, rtol=1e-14)
    with pytest.raises(ValueError, match=r"no two entries of one place .*sum_duplicates"):
        numnorm.batch_norm(x, with_mean=False, clip=1.2, out=x)
    expected = numnorm.batch_norm(dense, with_mean=False)
    numnorm.batch_norm(x, with_mean=False, out=x)
    np.testing.assert_allclose(x.toarray(), expected, rtol=1e-14)


@pytest.mark.parametrize("make", FORMATS[:2])
def test_running_statistics_and_inference(make):
    dense = np.random.default_rng(0).poisson(0.5, (20, 3)).astype(float)
    for options in ({}, {"convention": "keras"}, {"nan_policy": "omit"}, {"unbiased": False}):
        ours, theirs = [np.zeros(3), np.ones(3)], [np.zeros(3), np.ones(3)]
        for running, x in ((ours, make(dense)), (theirs, dense)):
            named = dict(zip(("running_mean", "running_var"), running, strict=True))
            numnorm.batch_norm(x, **named, with_mean=False, **options)
        np.testing.assert_allclose(ours, theirs, rtol=1e-14)
    named = {"running_mean": ours[0], "running_var": ours[1], "training": False, "with_mean": False}
    y = numnorm.batch_norm(make(dense), **named)
    np.testing.assert_allclose(y.toarray(), numnorm.batch_norm(dense, **named), rtol=1e-14)
    with pytest.raises(ValueError, match="running_var must not be negative"):
        numnorm.batch_norm(make(dense), **named | {"running_var": -ours[1]})


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0), (1, 1)])
def test_without_elements(shape):
    x = sparse.csr_array(shape)
    moments = numnorm.batch_moments(x)
    assert moments.count == numnorm.batch_moments(x.toarray()).count
    assert moments.mean.shape == (shape[1],)
    y, mean, rstd = numnorm.batch_norm_forward(x, with_mean=False)
    expected = numnorm.batch_norm_forward(x.toarray(), with_mean=False)
    assert y.shape == shape
    np.testing.assert_array_equal((mean, rstd), expected[1:])
    after = numnorm.batch_moments(np.ones((2, shape[1])))
    assert numnorm.batch_moments(x, after=after).count == moments.count + after.count
    if not shape[0]:
        assert len(numnorm.batch_moments(x, labels=[]).labels) == 0


def test_moments_merge_with_those_of_arrays_and_pickle():
    dense = np.random.default_rng(0).poisson(1.0, (30, 4))
    x, labels = sparse.csr_array(dense), np.arange(30) % 3
    merged = numnorm.batch_moments(x[:10]).merge(numnorm.batch_moments(dense[10:]))
    check_moments(merged, dense, 1.0)
    total = numnorm.batch_moments(x[:10], labels=labels[:10])
    total = numnorm.batch_moments(
        x[10:], labels=labels[10:], after=pickle.loads(pickle.dumps(total))
    )
    for label in range(3):
        check_moments(total[label], dense[labels == label], 1.0)


def wrong_calls():
    x = sparse.csr_array(np.eye(3, 2))
    yield {"with_mean": True}, ValueError, r"is dense: 3 x 2 float64, 48 bytes; got True"
    yield {"x": x.tocoo()}, TypeError, r"x must be CSR or CSC .*, got COO: use \.tocsr\(\)"
    yield {"x": x.astype(complex)}, TypeError, "x must have dtype"
    yield {"channel_axis": 0}, NotImplementedError, "channel_axis must be 1 .* got 0: transpose"
    yield {"where": True}, NotImplementedError, "where must be None with a sparse x"
    yield {"beta": [1.0, 1.0]}, ValueError, "beta must be None with a sparse x"
    yield {"fill": 0.0}, ValueError, "fill must be None with a sparse x"
    yield {"gamma": [1.0]}, ValueError, r"gamma must have shape \(2,\)"
    yield {"weights": [1.0]}, ValueError, r"weights must have shape \(3,\) or \(3, 1\)"
    yield {"weights": [1.0, -1.0, 1.0]}, ValueError, "weights must be finite and at least 0"
    yield {"clip": 0}, ValueError, "clip must be above 0, got 0"
    yield {"clip": -1}, ValueError, "clip must be above 0, got -1"
    yield {"out": np.zeros((3, 2))}, ValueError, "out must be x itself or None with a sparse x"
    yield {"labels": ["a"]}, ValueError, r"labels must have shape \(3,\)"
    yield {"statistics": 1}, ValueError, "labels must be given with statistics"
    whole = x.astype(int)
    yield {"x": whole, "out": whole}, TypeError, "out must have dtype float64, got int64"


@pytest.mark.parametrize(("options", "error", "text"), list(wrong_calls()))
def test_what_is_refused(options, error, text):
    given = {"x": sparse.csr_array(np.eye(3, 2)), "with_mean": False, **options}
    with pytest.raises(error, match=text) as caught:
        numnorm.batch_norm(**given)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("call", [numnorm.batch_moments, "scaled"])
@pytest.mark.parametrize("make", [sparse.csr_array, sparse.csc_matrix])
@pytest.mark.parametrize(
    "name, value, text",
    [
        ("indices", [1, 0, 2], r"indices of its 2 (columns|rows), got 0 to 2"),
        ("indices", [1, 0, -1], r"indices of its 2 (columns|rows), got -1 to 1"),
        ("indices", [1, 0, 500_000_000], r"indices of its 2 (columns|rows), got 0 to 500000000"),
        ("indptr", [0, 2, 4], r"an indptr that rises from 0 to at most 3"),
        ("indptr", [0, 3, 2], r"an indptr that rises from 0 to at most 3"),
        ("indptr", [-1, 2, 3], r"an indptr that rises from 0 to at most 3"),
        ("indptr", [0, 3], r"an indptr of shape \(3,\), got \(2,\)"),
        ("data", [1.0, 2.0], r"an indptr that rises from 0 to at most 2"),
    ],
)
def test_values_without_a_place_are_refused(call, make, name, value, text):
    """Nothing is read or written beside the arrays."""
    x = make(np.array([[0.0, 1.0], [2.0, 3.0]]))
    setattr(x, name, np.array(value, getattr(x, name).dtype))
    with pytest.raises(ValueError, match=f"^x must have {text}$"):
        numnorm.batch_norm(x, with_mean=False) if call == "scaled" else call(x)


def test_the_backward_pass_and_other_norms_refuse():
    x = sparse.csr_array(np.eye(3, 2))
    saved = np.zeros(2), np.ones(2)
    with pytest.raises(NotImplementedError, match="x must not be sparse in batch_norm_backward"):
        numnorm.batch_norm_backward(np.eye(3, 2), x, *saved)
    with pytest.raises(TypeError, match=r"use \.toarray\(\)"):
        numnorm.layer_norm(x)
    for options in ({"with_mean": False}, {"clip": 1.0}):
        with pytest.raises(NotImplementedError, match=next(iter(options))):
            numnorm.batch_norm_backward(np.eye(3, 2), np.eye(3, 2), *saved, **options)


@pytest.mark.parametrize("make", FORMATS[:2])
def test_memory_beside_the_matrix(make):
    rng = np.random.default_rng(0)
    x = np.where(rng.random((2000, 50)) < 0.05, rng.random((2000, 50), np.float32), 0)
    x, labels = make(x), rng.integers(0, 3, 2000)
    stored = numnorm.batch_moments(x, labels=labels)
    given = {"with_mean": False, "labels": labels, "clip": 3.0, "out": x}
    numnorm.batch_norm(x, statistics=stored, **given)
    taken, _ = peak_of(lambda: numnorm.batch_norm(x, statistics=stored, **given))
    # Labels as numbers, and numbers of each label and column; the dense matrix has 400,000 bytes.
    assert taken < 100_000
    taken, _ = peak_of(lambda: numnorm.batch_moments(x, labels=labels))
    assert taken < 100_000


def test_stored_statistics_of_labels_are_applied_in_little_memory(monkeypatch):
    monkeypatch.setattr("numnorm.norms.labels._PIECE", 10_000)
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(2000, 50)).astype(np.float32), np.arange(2000) // 1000
    stored = numnorm.batch_moments(x, labels=labels)
    expected = numnorm.batch_norm(x, labels=labels, statistics=stored)
    taken, _ = peak_of(lambda: numnorm.batch_norm(x, labels=labels, statistics=stored, out=x))
    # The positions of the samples, and pieces of 10 kB; the samples of a label have 200 kB.
    assert taken < 150_000
    np.testing.assert_array_equal(x, expected)


@pytest.mark.skipif(UNCOMPILED, reason="nothing runs in parallel")
@pytest.mark.parametrize("make", FORMATS[:2])
def test_the_same_bytes_for_any_number_of_threads(make):
    rng = np.random.default_rng(0)
    x = make(np.maximum(rng.uniform(-1, 1, (30_000, 20)), 0))
    x.data[...] = rng.normal(size=x.data.size) + 5
    labels = rng.integers(0, 2, 30_000)
    results = []
    for threads in (1, 2):
        with numnorm.num_threads(threads):
            results.append(
                [
                    *numnorm.batch_moments(x),
                    *numnorm.batch_moments(x, labels=labels).moments,
                    numnorm.batch_norm(x, with_mean=False, labels=labels).data,
                ]
            )
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


# Dense arrays without centring, and with a most value


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    "options", [{}, {"weights": [1.0, 0, 2, 1, 1, 3]}, {"labels": list("abcabc")}]
)
def test_dense_without_centring(dtype, options):
    x = (np.random.default_rng(0).normal(size=(6, 2, 4)) + 3).astype(dtype)
    y, mean, rstd = numnorm.batch_norm_forward(x, with_mean=False, **options)
    centred = numnorm.batch_norm_forward(x, **options)
    np.testing.assert_array_equal(mean, centred.mean)
    np.testing.assert_array_equal(rstd, centred.rstd)
    rows = np.unique(options["labels"], return_inverse=True)[1] if "labels" in options else 0
    expected = x * (rstd[rows] if "labels" in options else rstd)[..., None]
    np.testing.assert_allclose(y, expected, rtol=4 * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_dense_clip(dtype):
    pytest.importorskip("ml_dtypes")
    x = np.random.default_rng(0).normal(size=(50, 2)).astype(dtype)
    x[0, 1] = np.nan
    plain = numnorm.batch_norm(x, nan_policy="omit")
    out = x.copy()
    for given in ({}, {"out": out}):
        y = numnorm.batch_norm(x, clip=1.0, nan_policy="omit", **given)
        wanted = np.clip(plain.astype(float), -1, 1)
        np.testing.assert_array_equal(y.astype(float), wanted)
    assert y is out


@pytest.mark.parametrize("options", [{"with_mean": False}, {"clip": 0.7}], ids=str)
def test_both_keywords_elsewhere(options):
    x = np.random.default_rng(0).normal(size=(12, 3)) + 2
    expected = numnorm.batch_norm(x, **options)
    dask_array = pytest.importorskip("dask.array")
    for labels in (None, np.arange(12) % 2):
        lazy = numnorm.batch_norm(dask_array.from_array(x, chunks=(5, 2)), labels=labels, **options)
        wanted = numnorm.batch_norm(x, labels=labels, **options)
        np.testing.assert_allclose(lazy.compute(), wanted, rtol=1e-13)
    xarray = pytest.importorskip("xarray")
    of_xarray = importlib.import_module("numnorm.xarray").batch_norm
    named = of_xarray(xarray.DataArray(x, dims=("t", "c")), channel_dim="c", **options)
    np.testing.assert_array_equal(named.values, expected)
    autograd = pytest.importorskip("autograd")
    of_autograd = importlib.import_module("numnorm.autograd").batch_norm
    np.testing.assert_array_equal(of_autograd(x, **options), expected)
    with pytest.raises(NotImplementedError, match=next(iter(options))):
        autograd.grad(lambda x: of_autograd(x, **options).sum())(x)


def test_names_of_scanpy():
    with pytest.raises(TypeError, match="with_mean"):
        numnorm.batch_norm(np.eye(3), zero_center=False)
    with pytest.raises(TypeError, match="clip"):
        numnorm.batch_norm(np.eye(3), max_value=10)
