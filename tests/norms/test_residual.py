"""Norms of the sum with a residual: to the last bit those of the sum, and its gradients."""

import ml_dtypes
import numpy as np
import pytest
from gradients import TOLERANCE, numerical_gradients
from norm_checks import UNCOMPILED

import numnorm
from numnorm import array_likes

DTYPES = [
    np.float16,
    np.float32,
    *(pytest.param(dtype, marks=pytest.mark.full) for dtype in (ml_dtypes.bfloat16, np.float64)),
]
# Small; in tiles; pairs of rows; wide; wider than a block; large enough for non-temporal stores.
SHAPES = [(3, 5), (2000, 33), (300, 1024), (40, 2600), (9, 9001), (2100, 1501)]
LARGE = 2100, 1501
if UNCOMPILED:  # those that halves need, which are added in blocks at any size but the least
    LARGE = 90, 301
    SHAPES = [(3, 5), (500, 33), (17, 1024), (2, 9001)]


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


@pytest.mark.parametrize("shape", [(4, 6), (600, 100), LARGE])
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


@pytest.mark.parametrize("shape", [(3, 5), (300, 180), LARGE])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("name", ["gamma", "beta"])
@pytest.mark.parametrize("target", ["out", "total_out"])
def test_outputs_over_a_parameter(shape, dtype, name, target):
    """Gamma and beta are read before their memory is written."""
    x, residual, memory = draw(shape, dtype, 3)
    given = {name: memory[1]}
    expected = numnorm.layer_norm(x + residual, **{name: memory[1].copy()})
    y, total = numnorm.add_layer_norm(x, residual, **given, **{target: memory})
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(total, x + residual)


@pytest.mark.parametrize("rows", [3, 500])
def test_the_sum_over_a_gain_that_broadcasts(rows):
    x, residual, memory = draw((rows, 80), np.float32, 3)
    expected = numnorm.rms_norm(x + residual, memory[:, 1:2].copy())
    y, total = numnorm.add_rms_norm(x, residual, memory[:, 1:2], total_out=memory)
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(total, x + residual)


WRONG = {
    "gamma": [np.ones(7), np.ones((2, 2, 2)), np.ones(180, complex), np.full(180, "a")],
    "beta": [np.ones(7), "a", np.ones((1, 7))],
    "out": [np.ones(7), np.broadcast_to(np.float32(1), (4, 180)), "a"],
    "total_out": [np.ones((4, 180), int), [1]],
}


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("gain", [None, np.ones((4, 1))])
@pytest.mark.parametrize(("name", "value"), [(n, v) for n, each in WRONG.items() for v in each])
def test_nothing_is_written_before_an_error(dtype, gain, name, value):
    given = {} if gain is None or name == "gamma" else {"gamma": gain}
    for target in {"out", "total_out"} - {name}:
        x, residual = draw((4, 180), dtype, 2)
        for written in (x, residual):
            before = written.copy()
            with pytest.raises((TypeError, ValueError), match=f"^{name} must"):
                numnorm.add_layer_norm(x, residual, **given, **{target: written, name: value})
            np.testing.assert_array_equal(written, before)


def test_outputs_in_one_buffer():
    """They are refused only if an element is in both."""
    x, residual = draw((3, 5), np.float64, 2)
    memory = np.zeros((3, 10))
    for out, total_out in (
        (memory[:, :5], memory[:, 5:]),
        (memory[:, 1::2], memory[:, ::2]),
    ):
        y, total = numnorm.add_layer_norm(x, residual, out=out, total_out=total_out)
        assert y is out
        assert total is total_out
        np.testing.assert_array_equal(total, x + residual)
        np.testing.assert_array_equal(y, numnorm.layer_norm(x + residual))
    with pytest.raises(
        ValueError, match=r"^out and total_out must not share .* got arrays that do"
    ):
        numnorm.add_layer_norm(x, residual, out=memory[:, :5], total_out=memory[:, 4:9])


def test_outputs_that_take_long_to_tell_apart(monkeypatch):
    x, memory = np.ones((3, 4)), np.zeros((40, 50))
    out, total_out = memory[7:10, 7:35:7], memory[3:21:6, 5:21:4]
    total = numnorm.add_layer_norm(x, x, out=out, total_out=total_out).total
    np.testing.assert_array_equal(total, 2 * x)
    monkeypatch.setattr(array_likes, "_MOST_WORK", 1)
    with pytest.raises(ValueError, match=r"^out and total_out must .* got arrays that may$"):
        numnorm.add_layer_norm(x, x, out=out, total_out=total_out)


class Hooked(np.ndarray):
    def __array_ufunc__(self, *arguments, **options):
        raise AssertionError("NumPy's functions are not for this class")


def test_outputs_of_a_subclass():
    x, residual = draw((3, 5), np.float64, 2)
    out, total_out = np.empty((2, 3, 5)).view(Hooked)
    y, total, mean, rstd = numnorm.add_layer_norm_forward(x, residual, out=out, total_out=total_out)
    assert y is out
    assert total is total_out
    np.testing.assert_array_equal(np.asarray(total), x + residual)
    dx = numnorm.add_layer_norm_backward(x, total, mean, rstd, dtotal=residual, out=out).dx
    assert dx is out
    expected = numnorm.layer_norm_backward(x, total, mean, rstd).dx + residual
    np.testing.assert_array_equal(np.asarray(dx), expected)


@pytest.mark.parametrize("shape", [(6, 4, 5), (60, 40, 50)])
@pytest.mark.parametrize("axis", [0, 1, (0, 2), -1])
@pytest.mark.parametrize("order", "CF")
def test_the_sum_lies_in_memory_as_y(shape, axis, order):
    x, residual = (np.array(each, order=order) for each in draw(shape, np.float64, 2))
    y, total = numnorm.add_layer_norm(x, residual, axis=axis)
    assert total.strides == y.strides == numnorm.layer_norm(total, axis=axis).strides


@pytest.mark.parametrize("rows", [3, 2000])
def test_a_gradient_beyond_the_range_of_the_sum(rows):
    total = np.ones((rows, 40), np.float32)
    dtotal = np.full(total.shape, 1e300)
    with np.errstate(all="raise"):
        dx = numnorm.add_rms_norm_backward(total, total, np.ones(rows), dtotal=dtotal).dx
    np.testing.assert_array_equal(dx, np.full_like(total, np.inf))


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
    with pytest.raises(ValueError, match=r"total_out must have shape \(2, 4\), the shape of x"):
        numnorm.add_rms_norm(x, x, total_out=np.empty(4, np.float32))
    with pytest.raises(ValueError, match="out and total_out must not share memory"):
        numnorm.add_rms_norm(x, x, out=x, total_out=x)
    _, total, mean, rstd = numnorm.add_layer_norm_forward(x, x)
    for name in ("dy", "dtotal", "out"):
        given = {"dy": x, "total": total, "mean": mean, "rstd": rstd} | {name: x[0]}
        text = rf"^{name} must have shape \(2, 4\), the shape of total, got \(4,\)$"
        with pytest.raises(ValueError, match=text):
            numnorm.add_layer_norm_backward(**given)
    with pytest.raises(ValueError, match=r"^gamma must have .*, the normalized axes of total, got"):
        numnorm.add_layer_norm_backward(x, total, mean, rstd, np.ones(3))
    with pytest.raises(ValueError, match=r"^total must have at least 1 axis"):
        numnorm.add_rms_norm_backward(1.0, 1.0, 1.0)
    with pytest.raises(TypeError, match="total must have dtype"):
        numnorm.add_layer_norm_backward(x, np.full((2, 4), "a"), mean, rstd)
    with pytest.raises(ValueError, match=r"gamma must have shape \(4,\)"):
        numnorm.add_layer_norm(x, x, np.ones(3))


@pytest.mark.parametrize(
    ("function", "keyword", "advice"),
    [
        ("add_layer_norm", "where", "call layer_norm(x + residual, where=...)"),
        ("add_layer_norm", "mask", "call layer_norm(x + residual, where=...)"),
        ("add_layer_norm_forward", "weights", "call layer_norm_forward(x + residual, weights=...)"),
        ("add_rms_norm", "nan_policy", "call rms_norm(x + residual, nan_policy=...)"),
        ("add_rms_norm_backward", "fill", "call rms_norm_backward(..., fill=...).dx + dtotal"),
        ("add_rms_norm", "dim", "use axis"),
    ],
)
def test_keywords_of_norms(function, keyword, advice):
    x = np.ones((2, 4))
    with pytest.raises(TypeError) as error:
        getattr(numnorm, function)(x, x, x, **{keyword: 1})
    text = f"{function}() got an unexpected keyword argument {keyword!r}: {advice}"
    assert str(error.value) == text
