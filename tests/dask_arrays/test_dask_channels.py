"""Group and instance norm of arrays of Dask."""

import numpy as np
import pytest
from lazy_norms import computed

import numnorm

da = pytest.importorskip("dask.array")

X = np.random.default_rng(0).normal(size=(5, 6, 4, 3)).astype(np.float32)
GAMMA, BETA = np.linspace(0.5, 2.0, 6, dtype=np.float32), np.linspace(-1, 1, 6, dtype=np.float32)
# Two roundings of float32 beside values of up to 4.
LIMITS = {"rtol": 5e-7, "atol": 1e-6}


@pytest.mark.parametrize("channels", [(2, 4), (1, 5), (1, 1, 1, 3), (5, 1), (6,)])
def test_chunks_of_channels_end_at_any_place(channels):
    x = da.from_array(X, chunks=(2, channels, -1, -1))
    expected = numnorm.group_norm_forward(X, GAMMA, BETA, groups=3)
    result = numnorm.group_norm_forward(x, GAMMA, BETA, groups=3)
    for mine, theirs in zip(computed(result), expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    gradients = numnorm.group_norm_backward(X[::-1], X, *expected[1:], GAMMA, groups=3)
    lazy = numnorm.group_norm_backward(X[::-1], x, *result[1:], GAMMA, groups=3)
    for mine, theirs in zip(computed(lazy), gradients, strict=True):
        np.testing.assert_allclose(mine, theirs, **LIMITS)


@pytest.mark.parametrize("library", ["dask.array", "dask_array"])
@pytest.mark.parametrize("chunks", [(2, 4, -1, -1), (2, 4, 3, 1), -1])
@pytest.mark.parametrize("options", [{}, {"convention": "keras"}, {"momentum": "cumulative"}])
def test_running_statistics(options, chunks, library):
    library = pytest.importorskip(library)
    x = library.from_array(X, chunks=chunks)
    running = np.zeros(6, np.float32), np.ones(6)
    lazy = (
        library.from_array(running[0].copy(), chunks=-1),
        library.from_array(np.ones(6), chunks=4),
    )
    for batch in range(2):
        if "momentum" in options:
            options = options | {"batches": batch}
        names = {"running_mean": running[0], "running_var": running[1]}
        expected = numnorm.instance_norm(X, GAMMA, **names, **options)
        names = {"running_mean": lazy[0], "running_var": lazy[1]}
        y = numnorm.instance_norm(x, GAMMA, **names, **options)
        np.testing.assert_allclose(y, expected, **LIMITS)
    for mine, theirs in zip(lazy, running, strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_allclose(mine, theirs, **LIMITS)  # NumPy's call squares in float64


@pytest.mark.parametrize("chunks", [(2, 4, -1, -1), (2, 4, 3, 1)])
def test_inference(chunks):
    x = da.from_array(X, chunks=chunks)
    running = {"running_mean": np.linspace(-1, 1, 6), "running_var": np.linspace(1, 2, 6)}
    expected = numnorm.instance_norm_forward(X, GAMMA, BETA, **running, training=False)
    result = numnorm.instance_norm_forward(x, GAMMA, BETA, **running, training=False)
    for mine, theirs in zip(computed(result), expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    y = numnorm.instance_norm(x, GAMMA, BETA, **running, training=False)
    np.testing.assert_array_equal(y, expected.y)
    gradients = numnorm.instance_norm_backward(X, X, *expected[1:], GAMMA, training=False)
    lazy = numnorm.instance_norm_backward(X, x, *result[1:], GAMMA, training=False)
    for mine, theirs in zip(computed(lazy), gradients, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-6, atol=1e-6)


WRONG = {
    "lazy": {"running_mean": np.zeros(6), "running_var": np.ones(6)},
    "given with": {"running_mean": da.zeros(6)},
    r"have shape \(6,\)": {"running_mean": da.zeros(5), "running_var": da.ones(6)},
    "hold real numbers": {"running_mean": da.zeros(6, dtype=complex), "running_var": da.ones(6)},
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_running_statistics(message):
    with pytest.raises((TypeError, ValueError), match=f"^running_.* must (be )?{message}"):
        numnorm.instance_norm(da.from_array(X), **WRONG[message])
