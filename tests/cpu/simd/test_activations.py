"""Sigmoid and tanh in lanes, over a dense grid: the error in units in the last place."""

import functools

import numba
import numpy as np
import pytest

from numnorm.backends.cpu.simd.activations import make_sigmoid, make_tanh
from numnorm.backends.cpu.simd.vector import make_load, store

MAKERS = {"sigmoid": make_sigmoid, "tanh": make_tanh}
# Largest found: 1.98 and 2.39 for float32, 1.63 and 2.43 for float64.
ULPS = 3


@functools.cache
def over_arrays(name, kind):
    """The function applied to an array whose size is a multiple of the lanes'."""
    count = 64 // np.dtype(kind).itemsize
    function, load = MAKERS[name](kind), make_load(count)

    @numba.njit(fastmath={"contract", "nsz"})
    def run(x, y):
        for j in range(0, x.size, count):
            store(y, j, function(load(x, j)))

    return run


def applied(name, x):
    y = np.empty_like(x)
    with np.errstate(over="ignore"):  # without compilation NumPy says that 2 x is infinite
        over_arrays(name, x.dtype.type)(x, y)
    return y


def exact(name, x):
    x = x.astype(np.longdouble)
    return 1 / (1 + np.exp(-x)) if name == "sigmoid" else np.tanh(x)


def grid(kind):
    """All float32 values of 12 leading bits, and as many evenly spaced ones."""
    patterns = (np.arange(1 << 12, dtype=np.uint32) << 20).view(np.float32)
    usual = np.linspace(-30, 30, 1 << 14)
    values = np.concatenate([patterns[np.isfinite(patterns)], usual]).astype(kind)
    return values[: values.size // 16 * 16]


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("name", MAKERS)
def test_error_in_ulps(name, kind):
    x = grid(kind)
    # Below, the sigmoid is less than the smallest normal number.
    x = np.where(x < -87, kind(0), x)
    expected = exact(name, x)
    ulps = np.abs(applied(name, x) - expected) / np.spacing(np.abs(expected).astype(kind))
    assert ulps.max() < ULPS


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_values_that_are_exact(kind):
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e30, -1e30, 1e-30] * 2, kind)
    y = applied("tanh", x)
    np.testing.assert_array_equal(y[:8], np.array([0, -0.0, 1, -1, np.nan, 1, -1, 1e-30], kind))
    assert np.signbit(y[1])
    y = applied("sigmoid", x)
    np.testing.assert_array_equal(y[[0, 1, 2, 4, 5]], np.array([0.5, 0.5, 1, np.nan, 1], kind))
    assert (y[[3, 6]] < 2e-38).all()


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("name", MAKERS)
def test_never_decreases(name, kind):
    x = np.sort(grid(kind))
    steps = np.diff(applied(name, x))
    # Neighbours may be off by their own errors.
    assert steps.min() >= -ULPS * np.finfo(kind).eps
