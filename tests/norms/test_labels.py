"""Labels of samples: what `labels=` of batch norm and of moments takes, and merging by label."""

import copy
import pickle
import re

import numpy as np
import pandas
import pytest
from peak_memory import peak_of

import numnorm

X = np.array([[1.0], [5.0], [3.0], [9.0]])
NAMES = ["anna", "ben", "anna", "ben"]
LABELS = {
    "strings": NAMES,
    "array": np.array(NAMES),
    "objects": np.array(NAMES, object),
    "strings of any length": np.array(NAMES, np.dtypes.StringDType()),
    "series": pandas.Series(NAMES),
    "index": pandas.Index(NAMES),
    "categories": pandas.Series(NAMES, dtype="category"),
    "integers": [3, 7, 3, 7],
    "bools": [False, True, False, True],
    "days": np.array(["2026-01-02", "2026-01-03"] * 2, "datetime64[D]"),
}
WRONG = {
    "none": (["a", None, "a", "a"], ValueError, "a label for each sample, got None"),
    "NA": (pandas.Series(["a", None, "a", "a"], dtype="string"), ValueError, "sample, got <NA>"),
    "nan": ([1.0, np.nan, 2.0, 2.0], ValueError, "a label for each sample, got nan"),
    "mixed list": ([1, "1", 1, "1"], TypeError, "must have labels of one type, got int and str"),
    "mixed": (
        np.array(["a", 1, "a", 1], object),
        TypeError,
        "labels must have labels of one type, got int and str",
    ),
}


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
def test_labels_of_any_type(labels):
    moments = numnorm.batch_moments(X, labels=labels)
    np.testing.assert_array_equal(moments.moments.mean, [[2.0], [7.0]])
    found = numnorm.batch_norm(X, labels=labels, eps=0)
    np.testing.assert_array_equal(found, [[-1.0], [-1.0], [1.0], [1.0]])


@pytest.mark.parametrize(("labels", "error", "text"), WRONG.values(), ids=WRONG)
def test_labels_that_are_missing_or_mixed(labels, error, text):
    for function in (numnorm.batch_moments, numnorm.batch_norm):
        with pytest.raises(error, match=re.escape(text)):
            function(X, labels=labels)


@pytest.mark.parametrize("labels", [[1, 2, 1, 2], [True, False] * 2, [0.5, 1.5] * 2, NAMES])
def test_objects_are_labels_as_what_they_are(labels):
    stored = numnorm.batch_moments(X, labels=labels)
    objects = numnorm.batch_moments(X, labels=np.array(labels, object))
    assert objects.labels.dtype == stored.labels.dtype
    assert objects.merge(stored).moments.count.tolist() == [[4.0], [4.0]]
    tuples = np.empty(4, object)
    tuples[:] = [(label, "x") for label in labels]
    assert (labels[0], "x") in list(numnorm.batch_moments(X, labels=tuples).labels)


def test_merging_moments_of_labels():
    """In parts with other labels, in any order, it is what all data give."""
    whole = numnorm.batch_moments(X, labels=NAMES)
    first = numnorm.batch_moments(X[:2], labels=NAMES[:2])
    second = numnorm.batch_moments(X[2:], labels=np.array(NAMES[2:], object))
    for merged in (first.merge(second), second.merge(first)):
        np.testing.assert_array_equal(merged.labels, whole.labels)
        for found, expected in zip(merged.moments, whole.moments, strict=True):
            np.testing.assert_array_equal(found, expected)
    other = numnorm.batch_moments(X[:1], labels=["carl"])
    assert list(first.merge(other).labels) == ["anna", "ben", "carl"]


def test_an_empty_chunk_of_a_labelled_stream():
    """It has no labels, of whatever type those of the other chunks are."""
    empty = {"where": np.empty((0, 1), bool), "weights": np.empty(0), "nan_policy": "omit"}
    for names, more in ((NAMES, {}), (list("abab"), empty), ([5, 6, 5, 6], {})):
        whole = numnorm.batch_moments(X, labels=names)
        nothing = numnorm.batch_moments(X[:0], labels=[], **more)
        assert len(nothing.labels) == 0 and nothing.moments.mean.shape == (0, 1)
        assert names[0] not in nothing
        assert numnorm.batch_moments(X[:0], labels=names[:0], after=whole, **more) is whole
        after = numnorm.batch_moments(X, labels=names, after=nothing)
        np.testing.assert_array_equal(after.labels, whole.labels)
        np.testing.assert_array_equal(after.moments, whole.moments)
        for merged in (nothing.merge(whole), whole.merge(nothing)):
            assert merged is whole
    assert len(numnorm.batch_moments(X[:0], labels=[], after=nothing).labels) == 0


def test_wrong_empty_chunks():
    moments, wide = numnorm.batch_moments(X, labels=NAMES), np.empty((0, 2))
    with pytest.raises(ValueError, match=r"^other.mean must have shape \(1,\), the channels"):
        numnorm.batch_moments(wide, labels=[], after=moments)
    with pytest.raises(ValueError, match=r"^labels must have shape \(0,\), one label for each"):
        numnorm.batch_moments(wide, labels=[1])
    with pytest.raises(TypeError, match=r"^after must be GroupMoments with labels"):
        numnorm.batch_moments(X[:0], labels=[], after=moments["anna"])
    with pytest.raises(ValueError, match=r"^labels must have labels that statistics has"):
        empty = numnorm.batch_moments(X[:0], labels=[])
        numnorm.batch_norm(X, labels=NAMES, statistics=empty)


def test_integers_that_floats_would_make_equal_are_not_merged():
    small = numnorm.batch_moments(X, labels=[5, 6, 5, 6])
    large = numnorm.batch_moments(X, labels=[2**63 + 7, 2**63 + 9] * 2)
    with pytest.raises(TypeError, match="one type on both sides, got int64 and uint64"):
        small.merge(large)
    with pytest.raises(TypeError, match="other must be GroupMoments, got Moments"):
        small.merge(numnorm.batch_moments(X))


def test_labels_of_two_types_are_not_merged():
    numbers = numnorm.batch_moments(X, labels=[1, 2, 1, 2])
    with pytest.raises(TypeError, match=r"labels must be of one type on both sides, got int64 and"):
        numnorm.batch_moments(X, labels=NAMES, after=numbers)


@pytest.mark.parametrize("shape", [(1, 3), (1, 3, 4)])
def test_one_sample_is_not_overwritten(shape):
    x = np.random.default_rng(0).normal(size=shape)
    x.flags.writeable = False
    stored = numnorm.batch_moments(np.concatenate([x, 2 * x]), labels=["a", "a"])
    alone = numnorm.batch_norm(x, labels=["a"])
    np.testing.assert_array_equal(alone, numnorm.batch_norm(x))
    y, mean, rstd = numnorm.batch_norm_forward(x, labels=["a"], statistics=stored)
    assert not np.shares_memory(y, x)
    given = {"labels": ["a"], "training": False}
    dx = numnorm.batch_norm_backward(x, x, mean, rstd, **given).dx
    expected = numnorm.batch_norm_backward(x, x, mean[0], rstd[0], training=False).dx
    np.testing.assert_array_equal(dx, expected)


# Looked up by label

SPEAKERS = numnorm.batch_moments(X, labels=NAMES)
NUMBERED = numnorm.batch_moments(X, labels=[1, 0, 1, 0])


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
def test_moments_of_a_label(labels):
    moments = numnorm.batch_moments(X, labels=labels)
    for label, rows in zip(moments.labels, (X[::2], X[1::2]), strict=True):
        assert label in moments
        for found, expected in zip(moments[label], numnorm.batch_moments(rows), strict=True):
            np.testing.assert_array_equal(found, np.broadcast_to(expected, 1))


@pytest.mark.parametrize("label", ["bea", "anna2", "", b"ben", 3.0, None, ("ben",), ["ben", "ben"]])
def test_an_unknown_label(label):
    assert label not in SPEAKERS
    with pytest.raises(KeyError, match=re.escape(repr(label))):
        SPEAKERS[label]


@pytest.mark.parametrize("label", [2, -1, 1.0, "1", True, 2**63 + 1, 2**64])
def test_an_unknown_integer(label):
    assert label not in NUMBERED
    with pytest.raises(KeyError, match=re.escape(repr(label))):
        NUMBERED[label]


def test_integers_are_labels_where_labels_are_integers():
    np.testing.assert_array_equal(NUMBERED[0].mean, [7.0])
    np.testing.assert_array_equal(NUMBERED[np.uint8(1)].mean, [2.0])
    assert SPEAKERS[0] is SPEAKERS.labels and SPEAKERS[-1] is SPEAKERS.moments
    assert NUMBERED[:1] == (NUMBERED.labels,)
    labels, moments = NUMBERED
    assert labels is NUMBERED.labels and moments is NUMBERED.moments


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_of_moments_of_labels(way):
    np.testing.assert_array_equal(way(NUMBERED)[0].mean, [7.0])
    assert list(way(SPEAKERS)._replace(labels=["x", "y"])["y"].mean) == [7.0]


@pytest.mark.parametrize("moments", [SPEAKERS, NUMBERED], ids=["strings", "integers"])
def test_moments_of_labels_in_a_file(moments, tmp_path):
    x = X + 1e9 + np.pi  # the mean loses digits, which mean_lo has
    moments = numnorm.batch_moments(x, labels=np.take(moments.labels, [0, 1, 0, 1]))
    np.savez(tmp_path / "moments.npz", **moments._asdict())
    with np.load(tmp_path / "moments.npz") as file:
        read = numnorm.GroupMoments(file["labels"], numnorm.Moments(*file["moments"]))
    np.testing.assert_array_equal(read.labels, moments.labels)
    for found, expected in zip(read.moments, moments.moments, strict=True):
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(read.merge(moments).moments.count, 2 * moments.moments.count)


# Normalized by stored statistics


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
def test_stored_statistics(labels):
    stored = numnorm.batch_moments(X, labels=labels)
    new = np.array([[7.0], [2.0], [9.0]])
    labels = stored.labels[[1, 0, 1]]
    y, mean, rstd = numnorm.batch_norm_forward(new, labels=labels, statistics=stored, eps=3.0)
    # Variances of 1 and 4.
    expected = (new - [[7.0], [2.0], [7.0]]) / np.sqrt([[7.0], [4.0], [7.0]])
    np.testing.assert_allclose(y, expected, rtol=1e-15)
    np.testing.assert_array_equal(mean, [[2.0], [7.0]])
    np.testing.assert_allclose(rstd, [[4.0**-0.5], [7.0**-0.5]], rtol=1e-15)
    plain = numnorm.batch_norm(new, labels=labels, statistics=stored, eps=3.0)
    np.testing.assert_array_equal(plain, y)
    given = {"labels": labels, "training": False}
    dx = numnorm.batch_norm_backward(np.ones_like(new), new, mean, rstd, **given).dx
    np.testing.assert_allclose(dx, np.sqrt([[7.0], [4.0], [7.0]]) ** -1, rtol=1e-15)


def test_stored_statistics_of_several_channel_axes_and_masks():
    rng = np.random.default_rng(0)
    x, names = rng.normal(size=(6, 5, 2, 3)), ["a", "b", "c"] * 2
    stored = numnorm.batch_moments(x, labels=names, channel_axis=(2, 3))
    new, kept = x[:2] + 1.0, rng.random((2, 5, 2, 3)) < 0.8
    call = {"labels": ["c", "a"], "channel_axis": (2, 3), "eps": 0, "out": np.empty_like(new)}
    found = numnorm.batch_norm(new, statistics=stored, where=kept, fill=9.0, **call)
    assert found is call["out"]
    for y, one, mask, label in zip(found, new, kept, "ca", strict=True):
        own = x["abc".index(label) :: 3]
        expected = (one - own.mean((0, 1))) / own.std((0, 1))
        # Some roundings of numbers of about 5.
        np.testing.assert_allclose(y, np.where(mask, expected, 9.0), rtol=1e-13, atol=1e-13)


def test_wrong_stored_statistics():
    wrong = {
        "labels must have labels that statistics has, got 'bea'": {"labels": ["bea"] * 4},
        "labels must be of one type on both sides, got <U4 and int64": {"labels": [0, 1, 0, 1]},
        "labels must be given with statistics, got None": {"labels": None},
        "statistics must be GroupMoments, got an object of type Moments": {
            "statistics": SPEAKERS.moments
        },
        "running_mean must be None with labels": {"running_mean": [0.0]},
        "statistics must have shape (2, 1), one mean for each label and channel, got (2, 2)": {
            "statistics": numnorm.batch_moments(np.hstack([X, X]), labels=NAMES)
        },
    }
    for message, changed in wrong.items():
        with pytest.raises((TypeError, ValueError), match=f"^{re.escape(message)}"):
            numnorm.batch_norm(X, **{"labels": NAMES, "statistics": SPEAKERS} | changed)


# Results in `out`


LARGE = np.random.default_rng(3).normal(size=(8000, 40)).astype(np.float32)
MANY = np.random.default_rng(4).integers(0, 8, len(LARGE))


def test_memory_is_that_of_a_label():
    """Beside the result there are the samples of one of 8 labels, and what their norm needs."""
    x, dy = LARGE.copy(), LARGE[::-1].copy()
    y, mean, rstd = numnorm.batch_norm_forward(x, labels=MANY)
    dx = numnorm.batch_norm_backward(dy, x, mean, rstd, labels=MANY).dx
    numnorm.batch_moments(x, labels=MANY)  # compiled before it is measured
    size = x.nbytes
    peak, found = peak_of(lambda: numnorm.batch_norm(x.copy(), labels=MANY))
    assert peak < 2.5 * size  # the copy and the result
    np.testing.assert_array_equal(found, y)
    peak, found = peak_of(
        lambda: numnorm.batch_norm_backward(dy, x, mean, rstd, labels=MANY, out=dy)
    )
    assert peak < 0.6 * size  # of dy and of x
    assert found.dx is dy
    np.testing.assert_array_equal(dy, dx)
    peak, _ = peak_of(lambda: numnorm.batch_moments(x, labels=MANY))
    assert peak < 0.4 * size
    peak, found = peak_of(lambda: numnorm.batch_norm(x, labels=MANY, out=x))
    assert peak < 0.4 * size
    assert found is x
    np.testing.assert_array_equal(x, y)


def test_out_may_share_memory_with_any_argument():
    memory = np.random.default_rng(5).normal(size=(9, 4))
    labels, expected = [0, 1] * 4, {}
    for shift in (0, 1):
        expected[shift] = numnorm.batch_norm(memory[shift : 8 + shift].copy(), labels=labels)
    for x, out in ((0, 1), (1, 0)):
        own = memory.copy()
        numnorm.batch_norm(own[x : 8 + x], labels=labels, out=own[out : 8 + out])
        np.testing.assert_array_equal(own[out : 8 + out], expected[x])
    own, gamma = memory[:8].copy(), memory[0].copy()
    numnorm.batch_norm(memory[:8], own[0], labels=labels, out=own)
    np.testing.assert_array_equal(own, numnorm.batch_norm(memory[:8], gamma, labels=labels))
    columns = np.asfortranarray(memory[:8])
    numnorm.batch_norm(columns, labels=labels, out=columns)
    np.testing.assert_array_equal(columns, expected[0])


WRONG_OUT = {
    "dtype": (np.empty((4, 1), np.float32), TypeError, "out must have dtype float64"),
    "shape": (np.empty((5, 1)), ValueError, r"out must have shape \(4, 1\), the shape of x"),
    "axes": (np.empty((1, 4, 1)), ValueError, r"out must have shape \(4, 1\), the shape of x"),
    "list": ([[0.0]] * 4, TypeError, "out must be a numpy.ndarray, got an object of type list"),
}


@pytest.mark.parametrize("out, error, message", WRONG_OUT.values(), ids=WRONG_OUT)
def test_out_is_checked_as_without_labels(out, error, message):
    for options in ({}, {"labels": NAMES}):
        with pytest.raises(error, match=message):
            numnorm.batch_norm(X, out=out, **options)


@pytest.mark.parametrize(
    "options", [{"nan_policy": "raise"}, {"weights": np.array([1.0, 1.0, 1.0, -1.0])}]
)
def test_an_error_in_the_last_label_leaves_out_as_it_is(options):
    x = np.array([[1.0], [5.0], [3.0], [np.nan]])
    out = np.full_like(x, 7.0)
    with pytest.raises(ValueError, match="must"):
        numnorm.batch_norm(x, labels=["a", "a", "b", "b"], out=out, **options)
    assert (out == 7.0).all()


def test_weights_of_the_last_axis_are_none_of_samples():
    """Also where a label has as many samples as that axis has elements."""
    x, weights = np.arange(24.0).reshape(2, 4, 3) ** 2, np.array([1.0, 2.0, 4.0])
    labels = ["a", "b", "b", "b"]
    wide = np.broadcast_to(weights, x.shape)
    for function in (numnorm.batch_norm, lambda *a, **k: numnorm.batch_moments(*a, **k).moments):
        found, expected = (
            function(x, labels=labels, weights=w, channel_axis=0) for w in (weights, wide)
        )
        np.testing.assert_array_equal(found, expected)


def test_moments_without_what_their_mean_lost():
    moments = numnorm.batch_moments(X, labels=NAMES)
    short = moments._replace(moments=moments.moments._replace(mean_lo=None))
    found = numnorm.batch_norm(X, labels=NAMES, statistics=short)
    np.testing.assert_array_equal(found, numnorm.batch_norm(X, labels=NAMES, statistics=moments))
    np.testing.assert_array_equal(short.merge(short).moments.mean, moments.moments.mean)


@pytest.mark.parametrize("channel_axis, shape", [(1, (6, 1, 3)), (1, (6, 4, 1)), (0, (1, 6, 3))])
def test_gain_of_each_sample(channel_axis, shape):
    """A gain varies along the samples as in a call for the samples of each label."""
    rng = np.random.default_rng(5)
    x = rng.normal(3.0, 2.0, (6, 4, 3) if channel_axis else (4, 6, 3))
    dy, (gamma, beta) = rng.normal(size=x.shape), rng.normal(size=(2, *shape))
    labels, samples = np.array(["b", "a", "b", "a", "a", "b"]), 1 - channel_axis
    options = {"channel_axis": channel_axis, "labels": labels}
    found = numnorm.batch_norm_forward(x, gamma, beta, **options)
    gradients = numnorm.batch_norm_backward(dy, x, found.mean, found.rstd, gamma, **options)
    for label in ("a", "b"):
        (own,) = np.nonzero(labels == label)
        part, scale, shift, grad = (a.take(own, samples) for a in (x, gamma, beta, dy))
        y, *saved = numnorm.batch_norm_forward(part, scale, shift, channel_axis=channel_axis)
        np.testing.assert_array_equal(found.y.take(own, samples), y)
        expected = numnorm.batch_norm_backward(grad, part, *saved, scale, channel_axis=channel_axis)
        for gradient, other in zip(gradients, expected, strict=True):
            np.testing.assert_array_equal(gradient.take(own, samples), other)
