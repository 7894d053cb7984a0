"""Norms of the sum with a residual: to the last bit those of the sum, and its gradients."""

import ml_dtypes
import numpy as np
import pytest
from gradients import TOLERANCE, numerical_gradients

import numnorm

DTYPES = [
    np.float16,
    np.float32,
    *(pytest.param(dtype, marks=pytest.mark.full) for dtype in (ml_dtypes.bfloat16, np.float64)),
]
# Small; in tiles; pairs of rows; wide; wider than a block; large enough for non-temporal stores.
SHAPES = [(3, 5), (2000, 33), (300, 1024), (40, 2600), (9, 9001), (2100, 1501)]


def draw(shape, dtype, count, seed=0):
    return np.random.default_rng(seed).normal(3, 2, (count, *shape)).astype(dtype)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_layer_norm(dtype, shape):
    x, residual = draw(shape, dtype, 2)
    gamma, beta = draw(shape[-1:], dtype, 2, seed=1)
    y, total, *saved = numnorm.add_layer_norm_forward(x, residual, gamma, beta)
    np.testing.assert_array_equal(total, x + residual)
    wanted = numnorm.layer_norm_forward(x + residual, gamma, beta)
    for got, each in zip((y, *saved), wanted, strict=True):
        assert got.dtype == each.dtype
        np.testing.assert_array_equal(got, each)
    for got, each in zip(numnorm.add_layer_norm(x, residual, gamma, beta), (y, total), strict=True):
        np.testing.assert_array_equal(got, each)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm(dtype, shape):
    x, residual = draw(shape, dtype, 2)
    (gamma,) = draw(shape[-1:], dtype, 1, seed=1)
    y, total, rstd = numnorm.add_rms_norm_forward(x, residual, gamma)
    wanted = numnorm.rms_norm_forward(total, gamma)
    np.testing.assert_array_equal(total, x + residual)
    np.testing.assert_array_equal(y, wanted.y)
    np.testing.assert_array_equal(rstd, wanted.rstd)
    np.testing.assert_array_equal(numnorm.add_rms_norm(x, residual, gamma).y, y)


@pytest.mark.parametrize("out", [None, "dy", "total", "dtotal"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients(dtype, shape, out):
    total, dy, dtotal = draw(shape, dtype, 3)
    (gamma,) = draw(shape[-1:], dtype, 1, seed=1)
    _, mean, rstd = numnorm.layer_norm_forward(total, gamma)
    dx, *others = numnorm.layer_norm_backward(dy, total, mean, rstd, gamma, detach="mean")
    given = {"dy": dy.copy(), "total": total.copy(), "dtotal": dtotal.copy()}
    dy, total, added = given.values()
    found = numnorm.add_layer_norm_backward(
        dy, total, mean, rstd, gamma, dtotal=added, detach="mean", out=given.get(out)
    )
    assert out is None or found.dx is given[out]
    for got, wanted in zip(found, (dx + dtotal, *others), strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_of_rms_norm(shape):
    total, dy, dtotal = draw(shape, np.float32, 3)
    rstd = numnorm.rms_norm_forward(total).rstd
    dx, dgamma = numnorm.add_rms_norm_backward(dy, total, rstd, dtotal=dtotal)
    wanted = numnorm.rms_norm_backward(dy, total, rstd)
    np.testing.assert_array_equal(dx, wanted.dx + dtotal)
    np.testing.assert_array_equal(dgamma, wanted.dgamma)
    alone = numnorm.add_rms_norm_backward(dy, total, rstd)
    np.testing.assert_array_equal(alone.dx, wanted.dx)


def test_numerical_gradients():
    """Both results go into the loss, and x and the residual have one gradient."""
    x, residual, dy, dtotal = draw((3, 6), np.float64, 4)
    gamma, beta = draw((6,), np.float64, 2, seed=1)

    def both(x, residual, gamma, beta):
        total = x + residual
        centred = total - total.mean(-1, keepdims=True)
        variance = (centred**2).mean(-1, keepdims=True)
        return np.stack([gamma * centred / np.sqrt(variance + 1e-5) + beta, total])

    _, total, mean, rstd = numnorm.add_layer_norm_forward(x, residual, gamma, beta)
    dx, *others = numnorm.add_layer_norm_backward(dy, total, mean, rstd, gamma, dtotal=dtotal)
    given = x, residual, gamma, beta
    expected = numerical_gradients(both, given, np.stack([dy, dtotal]))
    for got, wanted in zip((dx, dx, *others), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("shape", [(4, 6), (600, 100), (2100, 1501)])
@pytest.mark.parametrize("targets", ["apart", "x and residual", "residual and x"])
def test_outputs(shape, targets):
    x, residual, out, total_out = draw(shape, np.float32, 4)
    expected = x + residual
    if targets == "x and residual":
        out, total_out = x, residual
    elif targets == "residual and x":
        out, total_out = residual, x
    y, total = numnorm.add_layer_norm(x, residual, out=out, total_out=total_out)
    assert y is out
    assert total is total_out
    np.testing.assert_array_equal(total, expected)
    np.testing.assert_array_equal(y, numnorm.layer_norm(expected))


@pytest.mark.parametrize("shape", [(6, 4, 5), (60, 40, 50)])
@pytest.mark.parametrize("axis", [0, 1, (1, 2), (0, 2)])
def test_axes_and_orders(shape, axis):
    x, residual = draw(shape, np.float64, 2)
    x, residual = np.asfortranarray(x), residual[:, ::-1]
    out, total_out = np.empty(shape[::-1]).T, np.empty((2 * shape[0], *shape[1:]))[::2]
    y, total = numnorm.add_rms_norm(x, residual, axis=axis, out=out, total_out=total_out)
    np.testing.assert_array_equal(total, x + residual)
    np.testing.assert_array_equal(y, numnorm.rms_norm(x + residual, axis=axis))


@pytest.mark.parametrize("rows", [3, 400])
def test_outputs_that_overlap_an_input_elsewhere(rows):
    """They are written after all that they overlap was read."""
    memory = draw((rows + 1, 101), np.float64, 1)[0]
    x, residual = memory[:-1], draw((rows, 101), np.float64, 1, seed=1)[0]
    expected = x + residual
    y, total = numnorm.add_layer_norm(x, residual, total_out=memory[1:])
    np.testing.assert_array_equal(total, expected)
    np.testing.assert_array_equal(y, numnorm.layer_norm(expected))


def test_dtypes_that_differ():
    x, residual = draw((4, 8), np.float32, 1)[0], draw((4, 8), np.float64, 1, seed=1)[0]
    y, total = numnorm.add_layer_norm(x, residual)
    assert y.dtype == total.dtype == np.float64
    np.testing.assert_array_equal(total, x + residual)
    half, other = x.astype(np.float16), x.astype(ml_dtypes.bfloat16)
    total = numnorm.add_rms_norm(half, other).total
    assert total.dtype == np.float32
    np.testing.assert_array_equal(total, half.astype("f") + other.astype("f"))
    total = numnorm.add_rms_norm([[1, 2]], [[3, 4]]).total
    np.testing.assert_array_equal(total, [[4.0, 6.0]], strict=True)
    _, mean, rstd = numnorm.layer_norm_forward(x)
    found = numnorm.add_layer_norm_backward(residual, x, mean, rstd, dtotal=residual)
    wanted = numnorm.layer_norm_backward(residual, x, mean, rstd).dx + residual.astype("f")
    np.testing.assert_array_equal(found.dx, wanted, strict=True)


@pytest.mark.parametrize("rows", [4, 500])
def test_a_gain_that_broadcasts(rows):
    x, residual, dy, dtotal = draw((rows, 80), np.float32, 4)
    gamma = draw((rows, 1), np.float32, 1)[0]
    y, total, mean, rstd = numnorm.add_layer_norm_forward(x, residual, gamma)
    np.testing.assert_array_equal(y, numnorm.layer_norm(x + residual, gamma))
    found = numnorm.add_layer_norm_backward(dy, total, mean, rstd, gamma, dtotal=dtotal)
    wanted = numnorm.layer_norm_backward(dy, total, mean, rstd, gamma)
    np.testing.assert_array_equal(found.dx, wanted.dx + dtotal)
    np.testing.assert_array_equal(found.dgamma, wanted.dgamma)


@pytest.mark.parametrize("rows", [2, 700])
def test_numbers_that_are_not_finite(rows):
    x, residual = draw((rows, 64), np.float16, 2)
    x[0, 3], residual[-1, 5] = np.inf, np.nan
    x[1, :], residual[1, :] = 6e4, 6e4  # their sum is infinite
    y, total = numnorm.add_layer_norm(x, residual)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(total, x + residual)
    np.testing.assert_array_equal(y, numnorm.layer_norm(total))


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0,)])
def test_empty_arrays(shape):
    x = np.ones(shape, np.float32)
    y, total, mean, rstd = numnorm.add_layer_norm_forward(x, x)
    assert y.shape == total.shape == shape
    dx = numnorm.add_layer_norm_backward(x, total, mean, rstd, dtotal=x).dx
    assert dx.shape == shape


def test_errors():
    x = np.ones((2, 4), np.float32)
    with pytest.raises(ValueError, match=r"residual must have shape \(2, 4\), the shape of x"):
        numnorm.add_layer_norm(x, x[0])
    with pytest.raises(TypeError, match=r"residual must have dtype .* got <U1"):
        numnorm.add_layer_norm(x, np.full((2, 4), "a"))
    with pytest.raises(TypeError, match="total_out must have dtype float32, that of the result"):
        numnorm.add_layer_norm(x, x, total_out=np.empty((2, 4)))
    with pytest.raises(ValueError, match=r"total_out must have shape \(2, 4\), the shape of the"):
        numnorm.add_rms_norm(x, x, total_out=np.empty(4, np.float32))
    with pytest.raises(ValueError, match="out and total_out must not share memory"):
        numnorm.add_rms_norm(x, x, out=x, total_out=x)
    with pytest.raises(TypeError, match=r"add_layer_norm.*where"):
        numnorm.add_layer_norm(x, x, where=x > 0)
    _, total, mean, rstd = numnorm.add_layer_norm_forward(x, x)
    with pytest.raises(ValueError, match=r"dtotal must have shape \(2, 4\)"):
        numnorm.add_layer_norm_backward(x, total, mean, rstd, dtotal=x[0])
    with pytest.raises(TypeError, match="total must have dtype"):
        numnorm.add_layer_norm_backward(x, np.full((2, 4), "a"), mean, rstd)
    with pytest.raises(ValueError, match=r"gamma must have shape \(4,\)"):
        numnorm.add_layer_norm(x, x, np.ones(3))
