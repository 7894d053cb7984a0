"""Batch norm in inference, backward: dx and the sums over channels are taken in one pass."""

import kernels
import ml_dtypes
import numpy as np
import pytest
from layouts import placed

import numnorm

DTYPES = (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)
# Whole vectors and tiles of channels or not, several blocks or one; and runs of all lengths.
SHAPES = [(1, 3), (39, 37), (300, 515), (83, 1024), (3, 5, 7), (9, 4, 5, 5), (2, 3, 4099)]


def drawn(shape, dtype):
    rng = np.random.default_rng(0)
    x, dy = (rng.normal(3, 2, shape).astype(np.float32).astype(dtype) for _ in range(2))
    gamma, mean = rng.normal(1, 1, (2, shape[1]))
    return x, dy, gamma.astype(np.float32).astype(dtype), mean, rng.uniform(0.5, 2, shape[1])


def digests(gradients):
    return [np.ascontiguousarray(array).tobytes() for array in gradients]


@kernels.each_dtype("batch_norm", *DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_sums_are_those_of_training(shape, dtype):
    x, dy, gamma, mean, rstd = drawn(shape, dtype)
    trained = numnorm.batch_norm_backward(dy, x, mean, rstd, gamma)
    constant = numnorm.batch_norm_backward(dy, x, mean, rstd, gamma, training=False)
    assert digests(constant[1:]) == digests(trained[1:])


@kernels.each_dtype("batch_norm", *DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_dx_is_a_product(shape, dtype):
    x, dy, gamma, mean, rstd = drawn(shape, dtype)
    dx = numnorm.batch_norm_backward(dy, x, mean, rstd, gamma, training=False).dx
    channels = (-1,) + (1,) * (len(shape) - 2)
    expected = dy.astype(np.longdouble) * (gamma.astype(np.longdouble) * rstd).reshape(channels)
    # Two roundings in the working type, and one of the result.
    eps = max(float(ml_dtypes.finfo(dtype).eps), np.finfo(np.float64).eps * 4)
    np.testing.assert_allclose(np.float64(dx), np.float64(expected), rtol=2 * eps, atol=1e-7)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("shape", SHAPES)
def test_dx_may_take_the_place_of_what_it_is_made_of(shape, dtype):
    x, dy, gamma, mean, rstd = drawn(shape, dtype)
    expected = digests(numnorm.batch_norm_backward(dy, x, mean, rstd, gamma, training=False))
    for taken in range(2):
        arrays = [dy.copy(), x.copy()]
        out = arrays[taken]
        found = numnorm.batch_norm_backward(*arrays, mean, rstd, gamma, training=False, out=out)
        assert found.dx is out
        assert digests(found) == expected


@pytest.mark.parametrize("offset", [4, 16, 60])
@pytest.mark.parametrize("shape", SHAPES)
def test_no_byte_depends_on_a_place(shape, offset):
    x, dy, gamma, mean, rstd = drawn(shape, np.float32)
    expected = digests(numnorm.batch_norm_backward(dy, x, mean, rstd, gamma, training=False))
    moved = []
    for array in (dy, x, dy):
        moved.append(placed(shape, np.float32, offset))
        moved[-1][...] = array
    given = mean, rstd, gamma
    found = numnorm.batch_norm_backward(*moved[:2], *given, training=False, out=moved[2])
    assert digests(found) == expected


@pytest.mark.parametrize("shape", [(33, 530), (3, 6, 41)])
def test_channels_far_from_one(shape):
    """Some statistics leave the range of float32, and other channels do not notice."""
    x, dy, gamma, mean, rstd = drawn(shape, np.float32)
    usual = numnorm.batch_norm_backward(dy, x, mean, rstd, gamma, training=False)
    scales = np.ones(shape[1])
    scales[[1, 3]] = 1e30, 1e-36
    by_channel = scales.reshape((-1,) + (1,) * (len(shape) - 2))
    far = (x * by_channel).astype(np.float32), mean * scales, rstd / scales
    found = numnorm.batch_norm_backward(
        (dy * by_channel).astype(np.float32), *far, gamma, training=False
    )
    np.testing.assert_allclose(found.dx, usual.dx, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.dbeta / scales, usual.dbeta, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found.dgamma / scales, usual.dgamma, rtol=1e-4, atol=1e-3)
    plain = scales == 1
    assert digests([found.dx[:, plain]]) == digests([usual.dx[:, plain]])
    assert digests([found.dgamma[plain]]) == digests([usual.dgamma[plain]])
