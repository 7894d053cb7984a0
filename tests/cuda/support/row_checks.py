"""Rows of many scales, and a check of normalized rows against the definition."""

import numpy as np
import reference


def assert_close(y, expected, factor=8):
    """Check to a few roundings of the largest value in the compute type, and one of the storage."""
    dtype = y.dtype
    epsilon = np.finfo(np.float64 if dtype == np.float64 else np.float32).eps
    storage = float(reference.exact(np.spacing(np.ones(1, dtype)))[0])
    largest = np.abs(expected).max(axis=1, keepdims=True)
    bound = factor * epsilon * largest + storage / 2 * np.abs(expected)
    assert np.all(np.abs(reference.exact(y) - expected) <= bound)


def awkward_rows(width):
    """Return rows of many scales, one far from 0, one with an outlier, and a constant one."""
    scales = np.array([1, 1e30, 1e-30, 1e3, 1e-3, 1e38, 1, 1e-38, 1])[:, None]
    x = (scales * np.random.default_rng(0).normal(3, 2, (9, width)) / 10).astype(np.float32)
    x[6] += np.float32(1e7)
    x[3, -1] = 1e9
    x[8] = np.float32(0.1)
    return x
