"""Gradients of wide rows whose deviations, or their reciprocals, leave the working type.

The loops of such rows multiply by a scale; those of other rows, which may be their neighbours, do
not.
"""

import kernels
import ml_dtypes
import numpy as np
import pytest
import reference
from every_call import COMPILED

import numnorm

# Without compilation NumPy warns where squares overflow, before the row is scaled.
pytestmark = [] if COMPILED else [pytest.mark.filterwarnings("ignore::RuntimeWarning")]

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
# From usual rows to those whose reciprocal deviation is no number of the type.
SCALES = {
    np.dtype(np.float32): [1, 1e37, 1, 1e-37, 3, 1e-39, 1e30],
    np.dtype(np.float64): [1, 1e306, 1, 1e-307, 3, 1e-306, 1e300],
    BFLOAT16: [1, 1e37, 1, 1e-37, 3, 1e-30, 1e30],
}
# More than a tile of narrow rows takes, no whole number of vectors, and more than a sum at a time.
WIDTHS = [136, 333, 2100]
ROWS = 45


def drawn(dtype, width):
    rng = np.random.default_rng(width)
    scales = np.resize(SCALES[dtype], ROWS)[:, None]
    x = (rng.normal(3, 2, (ROWS, width)) * scales).astype(dtype)
    return rng.normal(0, 1, (ROWS, width)).astype(dtype), x, rng.normal(1, 0.1, width)


def tolerance(dtype, width):
    # A sum of `width` terms, its factors' roundings and the last one of the result.
    compute_type = np.float64 if dtype == np.float64 else np.float32
    return 8 * np.finfo(compute_type).eps * np.sqrt(width) + float(ml_dtypes.finfo(dtype).eps)


def far_from(found, expected):
    """How far two arrays are apart, in the largest value of each row."""
    found, expected = np.atleast_2d(found), np.atleast_2d(expected)
    largest = np.abs(expected).max(axis=-1, keepdims=True)
    return np.max(np.abs(found.astype(np.longdouble) - expected) / largest)


@pytest.mark.parametrize("width", WIDTHS)
@kernels.each({name: name for name in ("layer_norm", "rms_norm")}, SCALES, ["both"], always=False)
def test_gradients(name, dtype, which, width):
    dy, x, gamma = drawn(dtype, width)
    gamma = gamma.astype(np.float64 if dtype == np.float64 else np.float32)
    _, *saved = getattr(numnorm, name + "_forward")(x, gamma, eps=0)
    found = getattr(numnorm, name + "_backward")(dy, x, *saved, gamma)
    expected = getattr(reference, name + "_backward")(dy, x, gamma, eps=0)
    # A dx beyond the dtype is infinity, and of one below its normal numbers digits are missing.
    info = ml_dtypes.finfo(dtype)
    within = np.abs(expected[0]).max(axis=1) < float(info.max)
    within &= np.abs(expected[0]).max(axis=1) * float(info.eps) > float(info.smallest_subnormal)
    assert within.sum() >= ROWS * 4 // 7
    assert far_from(found[0][within], expected[0][within]) <= tolerance(dtype, width)
    for actual, right in zip(found[1:], expected[1:], strict=True):
        assert far_from(actual, right) <= 2 * tolerance(dtype, width)


@kernels.each_dtype("layer_norm", np.float32, np.float64, parameters="both")
def test_a_row_does_not_notice_the_scale_of_others(dtype):
    dtype = np.dtype(dtype)
    dy, x, gamma = drawn(dtype, 333)
    gamma = gamma.astype(dtype)
    _, mean, rstd = numnorm.layer_norm_forward(x, gamma, eps=0)
    dx = numnorm.layer_norm_backward(dy, x, mean, rstd, gamma).dx
    for i in range(8):
        one = slice(i, i + 1)
        alone = numnorm.layer_norm_backward(dy[one], x[one], mean[one], rstd[one], gamma).dx
        assert alone.tobytes() == dx[one].tobytes()


def test_groups_of_any_scale():
    rng = np.random.default_rng(0)
    scales = np.array([1, 1e37, 1e-37])[:, None]
    usual = rng.normal(3, 2, (3, 6, 2, 70))
    x = (usual.reshape(3, -1) * scales).reshape(3, 12, 70).astype(np.float32)
    dy = rng.normal(0, 1, x.shape).astype(np.float32)
    gamma = rng.normal(1, 0.1, 12).astype(np.float32)
    _, mean, rstd = numnorm.group_norm_forward(x, gamma, groups=4, eps=0)
    dx, dgamma, dbeta = numnorm.group_norm_backward(dy, x, mean, rstd, gamma, groups=4)
    expected = reference.group_norm_backward(dy, x, gamma, groups=4, eps=0)
    rows = (12, 210)  # a row for each sample and group
    # 1e37 * 1e-38: dx of the second sample is near the end of float32's normal numbers.
    bound = tolerance(np.dtype(np.float32), 210)
    right = expected[0].reshape(rows)
    normal = np.abs(right).max(axis=1) > 1e-32
    assert normal.sum() == 8
    assert far_from(dx.reshape(rows)[normal], right[normal]) <= bound
    assert far_from(dgamma, expected[1]) <= 2 * bound
    assert far_from(dbeta, expected[2]) <= 2 * bound
