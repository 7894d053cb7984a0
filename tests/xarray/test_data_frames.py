"""Data frames go into the functions of numnorm as into those of NumPy."""

import numpy as np
import pandas as pd
import pytest

import numnorm

X = np.random.default_rng(4).normal(size=(4, 3))
NAMES = ["a", "b", "c"]


def frame_of_polars():
    return pytest.importorskip("polars").DataFrame(X, schema=NAMES)


@pytest.mark.parametrize("make", [lambda: pd.DataFrame(X, columns=NAMES), frame_of_polars])
def test_a_frame_comes_back_as_an_array(make):
    frame = make()
    result = numnorm.layer_norm(frame)
    assert type(result) is np.ndarray
    # The frame's columns may lie apart, which leads to a copy in the order of rows.
    np.testing.assert_array_equal(result, numnorm.layer_norm(X))


def test_labels_are_put_back():
    frame = pd.DataFrame(X, index=list("wxyz"), columns=NAMES)
    result = pd.DataFrame(numnorm.standard_normal_variate(frame), frame.index, frame.columns)
    pd.testing.assert_index_equal(result.index, frame.index)
    pd.testing.assert_index_equal(result.columns, frame.columns)
