"""Calls with arrays of Dask: which calls are lazy, what is refused, the size of graphs, tokens."""

import numpy as np
import pytest

import numnorm

da = pytest.importorskip("dask.array")

X = np.arange(24.0).reshape(4, 6) ** 2


def lazy(array, chunks=2):
    return da.from_array(array, chunks=chunks)


def whole(array=X):
    return lazy(array, (2, -1))


def test_any_lazy_array_makes_the_call_lazy():
    gamma = np.arange(6.0)
    for x, gain in ((whole(), gamma), (X, lazy(gamma)), (X.tolist(), lazy(gamma))):
        y = numnorm.layer_norm(x, gain)
        assert isinstance(y, da.Array)
        np.testing.assert_array_equal(y, numnorm.layer_norm(X, gamma))


WRONG = {
    "out": (ValueError, "out must be None for lazy arrays, got a ndarray", {"out": X}),
    "axis": (ValueError, "axis must be between -2 and 1", {"axis": 2}),
    "gamma": (
        ValueError,
        r"gamma must have shape \(6,\), the normalized axes of x",
        {"gamma": X[:3, :5]},
    ),
    "eps": (ValueError, "eps must be at least 0", {"eps": -1.0}),
    "beta": (TypeError, "beta must hold real numbers, got dtype complex128", {"beta": 1j * X[0]}),
    "object": (TypeError, "x must have dtype .* got object", {"x": whole(X.astype(object))}),
    "scalar": (ValueError, "x must have at least 1 axis, got a scalar", {"x": whole()[0, 0]}),
    "unknown": (
        ValueError,
        "x must have chunks of known lengths",
        {"x": whole()[whole()[:, 0] > 0]},
    ),
    "masked": (
        TypeError,
        "x must not be a masked array",
        {"x": whole().map_blocks(np.ma.masked_array, meta=np.ma.empty((0, 0)))},
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_errors_of_the_call(name):
    kind, message, changed = WRONG[name]
    with pytest.raises(kind, match=f"^{message}") as caught:
        numnorm.layer_norm(**{"x": whole(), **changed})
    assert "\n" not in str(caught.value)


def test_plain_layer_norm_has_one_task_for_each_block():
    x = da.ones((4096, 8), chunks=(1, -1))
    tasks = len(dict(numnorm.layer_norm(x, np.ones(8)).__dask_graph__()))
    assert tasks - len(dict(x.__dask_graph__())) <= 4096 + 2
