"""Objects that only iterate, as AnnData does, are refused at once: their elements need not end."""

import array
import collections

import numpy as np
import pandas as pd
import pytest

import numnorm
from numnorm import rnn


class Endless:
    """An object whose parts are objects like it: NumPy would ask for 1000**64 of them."""

    def __len__(self):
        return 1000

    def __getitem__(self, index):
        raise AssertionError("no element may be asked for")


class Annotated(Endless):
    """The same, with its array under the name that it has in AnnData."""

    @property
    def X(self):
        return np.eye(2)


class Elsewhere(Endless):
    """An array that has no buffer on this device (asked for since Python 3.12)."""

    def __buffer__(self, flags):
        raise RuntimeError("not on this device")

    def __array__(self, dtype=None, copy=None):
        return X.astype(dtype or X.dtype)


X = np.arange(6.0).reshape(3, 2)
LAYER = rnn.gru_init(2, 3, rng=np.random.default_rng(0), norm=None)
CALLS = {
    "x": numnorm.layer_norm,
    "gamma": lambda bad: numnorm.layer_norm(X, bad),
    "beta": lambda bad: numnorm.batch_norm(X, None, bad),
    "where": lambda bad: numnorm.layer_norm(X, where=bad),
    "weights": lambda bad: numnorm.batch_norm(X, weights=bad),
    "labels": lambda bad: numnorm.batch_norm(X, labels=bad),
    "out": lambda bad: numnorm.layer_norm(X, out=bad),
    "running_mean": lambda bad: numnorm.batch_norm(X, running_mean=bad, running_var=np.ones(2)),
    "running_var": lambda bad: numnorm.batch_norm(X, running_mean=np.ones(2), running_var=bad),
    "dy": lambda bad: numnorm.layer_norm_backward(bad, X, np.ones(3), np.ones(3)),
    "mean": lambda bad: numnorm.layer_norm_backward(X, X, bad, np.ones(3)),
    "rstd": lambda bad: numnorm.moving_norm_backward(X, X, X, bad, 2, where=True),
    "weight_h": lambda bad: rnn.gru(X[:, None], LAYER._replace(weight_h=bad), norm=None),
    "h": lambda bad: rnn.gru(X[:, None], LAYER, bad, norm=None),
    "kernel": lambda bad: rnn.lstm_from_keras(bad, np.ones((1, 4))),
}
OF_X = {
    "batch_norm": numnorm.batch_norm,
    "two channel axes": lambda bad: numnorm.batch_norm(bad, channel_axis=(1, 2)),
    "batch_moments": numnorm.batch_moments,
    "group_norm": lambda bad: numnorm.group_norm(bad, groups=2),
    "instance_norm": numnorm.instance_norm,
    "moving_norm": lambda bad: numnorm.moving_norm(bad, 2),
    "exponential_norm": lambda bad: numnorm.exponential_norm(bad, 0.1),
    "standard_normal_variate": numnorm.standard_normal_variate,
    "weight_norm": numnorm.weight_norm,
    "labels": lambda bad: numnorm.batch_norm(bad, labels=["a", "b"]),
    "where": lambda bad: numnorm.layer_norm(bad, where=True),
    "list": lambda bad: numnorm.layer_norm([bad, bad]),
    "gru": lambda bad: rnn.gru(bad, LAYER, norm=None),
}


@pytest.mark.parametrize("name", CALLS)
def test_any_argument(name):
    with pytest.raises(TypeError, match=rf"^{name} must be .*Endless"):
        CALLS[name](Endless())


@pytest.mark.parametrize("call", OF_X.values(), ids=OF_X)
def test_x_of_any_function(call):
    with pytest.raises(TypeError, match=r"^x must be .*Endless: pass its numbers as an array or"):
        call(Endless())
    with pytest.raises(TypeError, match=r"^x must be .*Annotated: use .X$"):
        call(Annotated())


@pytest.mark.parametrize("bad", [{1.0: 2.0}, {1.0, 2.0}, iter([1.0]), collections.deque([1.0])])
def test_other_containers(bad):
    with pytest.raises(TypeError, match=rf"type \S*{type(bad).__name__}: pass its numbers as"):
        numnorm.layer_norm(bad)


WELCOME = {
    "nested": [(0.0, 1.0), (2.0, 3.0), (4.0, 5.0)],
    "lists of arrays": list(X),
    "tuple of ranges": (range(2), range(2, 4), range(4, 6)),
    "list of memoryviews": [memoryview(row) for row in X],
    "list of arrays of Python": [array.array("d", row) for row in X],
    "memoryview": memoryview(X),
    "data frame": pd.DataFrame(X),
    "list of series": [pd.Series(row) for row in X],
}


@pytest.mark.parametrize("x", WELCOME.values(), ids=WELCOME)
def test_what_holds_numbers_is_welcome(x):
    np.testing.assert_array_equal(numnorm.layer_norm(x), numnorm.layer_norm(X))


def test_one_axis():
    expected = numnorm.layer_norm(np.arange(3.0))
    for x in (
        range(3),
        array.array("d", [0, 1, 2]),
        pd.Series([0.0, 1.0, 2.0]),
        bytearray(b"\0\1\2"),
    ):
        np.testing.assert_array_equal(numnorm.layer_norm(x), expected)


def test_an_array_without_its_buffer():
    assert numnorm.layer_norm(Elsewhere()).tolist() == numnorm.layer_norm(X).tolist()
