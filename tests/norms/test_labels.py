"""Labels of samples: what `groups=` of batch norm and of moments takes, and merging by label."""

import re

import numpy as np
import pandas
import pytest

import numnorm

X = np.array([[1.0], [5.0], [3.0], [9.0]])
NAMES = ["anna", "ben", "anna", "ben"]
LABELS = {
    "strings": NAMES,
    "array": np.array(NAMES),
    "objects": np.array(NAMES, object),
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
    "mixed": (
        np.array(["a", 1, "a", 1], object),
        TypeError,
        "groups must have labels of one type, got int and str",
    ),
}


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
def test_labels_of_any_type(labels):
    moments = numnorm.batch_moments(X, groups=labels)
    np.testing.assert_array_equal(moments.moments.mean, [[2.0], [7.0]])
    found = numnorm.batch_norm(X, groups=labels, eps=0)
    np.testing.assert_array_equal(found, [[-1.0], [-1.0], [1.0], [1.0]])


@pytest.mark.parametrize(("labels", "error", "text"), WRONG.values(), ids=WRONG)
def test_labels_that_are_missing_or_mixed(labels, error, text):
    for function in (numnorm.batch_moments, numnorm.batch_norm):
        with pytest.raises(error, match=re.escape(text)):
            function(X, groups=labels)


def test_merging_moments_of_labels():
    """In parts with other labels, in any order, it is what all data give."""
    whole = numnorm.batch_moments(X, groups=NAMES)
    first = numnorm.batch_moments(X[:2], groups=NAMES[:2])
    second = numnorm.batch_moments(X[2:], groups=np.array(NAMES[2:], object))
    for merged in (first.merge(second), second.merge(first)):
        np.testing.assert_array_equal(merged.labels, whole.labels)
        for found, expected in zip(merged.moments, whole.moments, strict=True):
            np.testing.assert_array_equal(found, expected)
    other = numnorm.batch_moments(X[:1], groups=["carl"])
    assert list(first.merge(other).labels) == ["anna", "ben", "carl"]


def test_integers_that_floats_would_make_equal_are_not_merged():
    small = numnorm.batch_moments(X, groups=[5, 6, 5, 6])
    large = numnorm.batch_moments(X, groups=[2**63 + 7, 2**63 + 9] * 2)
    with pytest.raises(TypeError, match="one type on both sides, got int64 and uint64"):
        small.merge(large)
    with pytest.raises(TypeError, match="other must be GroupMoments, got Moments"):
        small.merge(numnorm.batch_moments(X))


def test_labels_of_two_types_are_not_merged():
    numbers = numnorm.batch_moments(X, groups=[1, 2, 1, 2])
    with pytest.raises(TypeError, match=r"labels must be of one type on both sides, got int64 and"):
        numnorm.batch_moments(X, groups=NAMES, after=numbers)
