"""Norms of the sum with a residual, for arrays of each library on the simulated device."""

import numpy as np
import pytest
import reference
from row_arrays import DTYPES, assert_close, check, draw, supports

import numnorm

# Rows in a part of a warp, in a block, of an odd width, and with several rows for each team.
SHAPES = [(3, 40), (2, 700), (5, 13), (9, 8)]


def take(library, shape, dtype, count, seed=0):
    return [library.take(draw(shape, dtype, seed + number)) for number in range(count)]


def sum_of(x, residual):
    """The sum, rounded to the dtype as NumPy and ml_dtypes round it."""
    return x.host + residual.host


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_layer_norm(library, dtype, shape, order):
    if not supports(library, dtype):
        pytest.skip("a dtype that Numba does not have")
    x, residual = take(library, shape, dtype, 2)
    gamma, beta = take(library, shape[-1:], dtype, 2, seed=5)
    y, total, mean, rstd = numnorm.add_layer_norm_forward(x, residual, gamma, beta)
    expected = sum_of(x, residual)
    np.testing.assert_array_equal(total.host, expected)
    alone = numnorm.layer_norm_forward(library.take(expected), gamma, beta)
    for got, wanted in zip((y, mean, rstd), alone, strict=True):
        assert type(got) is type(x)
        np.testing.assert_array_equal(got.host, wanted.host)
    assert_close(y.host, reference.layer_norm(expected, gamma.host, beta.host)[0], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm(library, dtype, order):
    if not supports(library, dtype):
        pytest.skip("a dtype that Numba does not have")
    x, residual = take(library, (3, 72), dtype, 2)
    (gamma,) = take(library, (72,), dtype, 1, seed=5)
    y, total = numnorm.add_rms_norm(x, residual, gamma)
    np.testing.assert_array_equal(total.host, sum_of(x, residual))
    wanted = numnorm.rms_norm(library.take(sum_of(x, residual)), gamma)
    np.testing.assert_array_equal(y.host, wanted.host)


def test_rows_that_are_read_in_a_loop(library, few_registers):
    x, residual, dy, dtotal = take(library, (2, 264), "float32", 4)
    y, total, mean, rstd = numnorm.add_layer_norm_forward(x, residual)
    np.testing.assert_array_equal(total.host, sum_of(x, residual))
    np.testing.assert_array_equal(y.host, numnorm.layer_norm(total).host)
    dx, *_ = numnorm.add_layer_norm_backward(dy, total, mean, rstd, dtotal=dtotal)
    alone = numnorm.layer_norm_backward(dy, total, mean, rstd).dx.host
    np.testing.assert_array_equal(dx.host, alone + dtotal.host)


@pytest.mark.parametrize("targets", ["apart", "x and residual", "residual and x"])
def test_outputs(library, targets, order):
    if library.called == "jax":
        pytest.skip("JAX has no arrays to write")
    x, residual, out, total_out = take(library, (9, 40), "float32", 4)
    expected = sum_of(x, residual)
    if targets == "x and residual":
        out, total_out = x, residual
    elif targets == "residual and x":
        out, total_out = residual, x
    y, total = numnorm.add_layer_norm(x, residual, out=out, total_out=total_out)
    assert y is out
    assert total is total_out
    np.testing.assert_array_equal(total.host, expected)
    np.testing.assert_array_equal(y.host, numnorm.layer_norm(library.take(expected)).host)


@pytest.mark.parametrize("out", ["none", "dy", "total", "dtotal"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients(library, dtype, out, order):
    if not supports(library, dtype):
        pytest.skip("a dtype that Numba does not have")
    if library.called == "jax" and out != "none":
        pytest.skip("JAX has no arrays to write")
    total, dy, dtotal = take(library, (6, 40), dtype, 3)
    (gamma,) = take(library, (40,), dtype, 1, seed=9)
    _, mean, rstd = numnorm.layer_norm_forward(total, gamma)
    given = {"dy": dy, "total": total, "dtotal": dtotal}
    values = [reference.exact(array.host) for array in (dy, total, dtotal, gamma)]
    found = numnorm.add_layer_norm_backward(
        dy, total, mean, rstd, gamma, dtotal=dtotal, out=given.get(out)
    )
    assert out == "none" or found.dx is given[out]
    of_dy, of_total, of_sum, of_gamma = values
    dx, *gradients = reference.layer_norm_backward(of_dy, of_total, of_gamma)
    check(found, (dx + of_sum, *gradients), dtype)


def test_other_arguments(library):
    """A gain that broadcasts, an axis in the middle, dtypes that differ, and no gradient."""
    x, residual, dy, dtotal = take(library, (4, 6, 5), "float32", 4)
    (gamma,) = take(library, (4, 1, 1), "float32", 1)
    y, total, mean, rstd = numnorm.add_layer_norm_forward(x, residual, gamma)
    np.testing.assert_array_equal(y.host, numnorm.layer_norm(total, gamma).host)
    dx = numnorm.add_layer_norm_backward(dy, total, mean, rstd, gamma, dtotal=dtotal).dx
    alone = numnorm.layer_norm_backward(dy, total, mean, rstd, gamma).dx
    np.testing.assert_array_equal(dx.host, alone.host + dtotal.host)
    dx = numnorm.add_layer_norm_backward(dy, total, mean, rstd, gamma).dx
    np.testing.assert_array_equal(dx.host, alone.host)
    y, total = numnorm.add_rms_norm(x, residual, axis=1)
    np.testing.assert_array_equal(y.host, numnorm.rms_norm(total, axis=1).host)
    wide = library.take(dy.host.astype("float64"))
    dx = numnorm.add_rms_norm_backward(wide, total, rstd, dtotal=dtotal).dx
    alone = numnorm.rms_norm_backward(wide, total, rstd).dx
    np.testing.assert_array_equal(dx.host, alone.host + dtotal.host)


def test_empty_arrays(library):
    x, residual = take(library, (0, 4), "float32", 2)
    y, total, mean, _ = numnorm.add_layer_norm_forward(x, residual)
    assert y.host.shape == total.host.shape == (0, 4)
    assert mean.host.shape == (0,)


def test_errors(library):
    x, other = library.take(draw((2, 8))), library.take(draw((2, 8), "float64"))
    with pytest.raises(TypeError, match="residual must have dtype float32, as x has, got float64"):
        numnorm.add_layer_norm(x, other)
    with pytest.raises(ValueError, match=r"residual must have shape \(2, 8\), the shape of x"):
        numnorm.add_layer_norm(x, library.take(draw((8,))))
    with pytest.raises(TypeError, match=r"residual must be a .* on device 0, as x is, got"):
        numnorm.add_rms_norm(x, draw((2, 8)))
    if library.called != "jax":
        with pytest.raises(TypeError, match="total_out must have dtype float32, that of the"):
            numnorm.add_layer_norm(x, x, total_out=other)
        out = library.take(draw((2, 8)))
        with pytest.raises(ValueError, match="out and total_out must not share memory"):
            numnorm.add_layer_norm(x, x, out=out, total_out=out)


@pytest.mark.parametrize("gain", [None, "broadcasts"])
@pytest.mark.parametrize(
    ("name", "shape"), [("gamma", (3,)), ("gamma", (2, 2)), ("beta", (3,)), ("out", (8,))]
)
@pytest.mark.parametrize("axis", [0, 1])
def test_nothing_is_written_before_an_error(library, gain, name, shape, axis):
    if library.called == "jax":
        pytest.skip("JAX has no arrays to write")
    (value,) = take(library, shape, "float32", 1)
    for target in {"out", "total_out"} - {name}:
        x, residual = take(library, (2, 8), "float32", 2)
        given = {"axis": axis, target: x, name: value}
        if gain is not None and name != "gamma":
            given["gamma"] = library.take(draw((2, 1) if axis else (1, 8)))
        before = x.host.copy()
        with pytest.raises(ValueError, match=f"^{name} must have shape"):
            numnorm.add_layer_norm(x, residual, **given)
        np.testing.assert_array_equal(x.host, before)


@pytest.mark.parametrize("loop", [False, True])
@pytest.mark.parametrize("strided", ["no", "gamma", "total_out"])
@pytest.mark.parametrize("name", ["gamma", "beta"])
def test_the_sum_over_a_parameter(imported, request, loop, strided, name):
    """Gamma and beta are read before their memory is written."""
    if loop:
        request.getfixturevalue("few_registers")
    library = imported("cupy")
    x, residual = take(library, (8, 16), "float32", 2)
    memory = library.take(draw((8, 32)))
    target = memory[:, ::2] if strided == "total_out" else memory.reshape((16, 16))[:8]
    parameter = memory.reshape((256,))[1:97:6] if strided == "gamma" else memory[1, :16]
    before = library.take(parameter.host.copy())
    expected = numnorm.layer_norm(library.take(sum_of(x, residual)), **{name: before}).host
    y, total = numnorm.add_layer_norm(x, residual, total_out=target, **{name: parameter})
    np.testing.assert_array_equal(total.host, sum_of(x, residual))
    np.testing.assert_array_equal(y.host, expected)


def test_outputs_in_one_buffer(library):
    """They are refused only if an element is in both."""
    if library.called == "jax":
        pytest.skip("JAX has no arrays to write")
    x, residual = take(library, (3, 8), "float32", 2)
    memory = library.take(draw((3, 16)))
    for out, total_out in (
        (memory[:, :8], memory[:, 8:]),
        (memory[:, 1::2], memory[:, ::2]),
    ):
        y, total = numnorm.add_layer_norm(x, residual, out=out, total_out=total_out)
        np.testing.assert_array_equal(total.host, sum_of(x, residual))
        expected = numnorm.layer_norm(library.take(sum_of(x, residual))).host
        np.testing.assert_array_equal(y.host, expected)
    with pytest.raises(
        ValueError, match=r"^out and total_out must not share .* got arrays that do"
    ):
        numnorm.add_layer_norm(x, residual, out=memory[:, :8], total_out=memory[:, 7:15])


def test_names_of_gradients(library):
    """Messages name the argument total."""
    x, narrow = library.take(draw((2, 8))), library.take(draw((3,)))
    _, total, mean, rstd = numnorm.add_layer_norm_forward(x, x)
    for name in ("dy", "dtotal"):
        given = {"dy": x, "total": total, "mean": mean, "rstd": rstd} | {name: narrow}
        with pytest.raises(ValueError, match=rf"^{name} must have .*, the shape of total, got"):
            numnorm.add_layer_norm_backward(**given)
    with pytest.raises(ValueError, match=r"^gamma must have .*, the normalized axes of total, got"):
        numnorm.add_layer_norm_backward(x, total, mean, rstd, narrow)


def test_a_second_call(library):
    """It repeats the launches of the first, for other arrays."""
    for seed in range(3):
        x, residual, dy, dtotal = take(library, (3, 40), "float32", 4, seed)
        y, total, mean, rstd = numnorm.add_layer_norm_forward(x, residual)
        np.testing.assert_array_equal(total.host, sum_of(x, residual))
        wanted = reference.layer_norm(total.host)[0]
        assert_close(y.host, wanted, "float32")
        dx = numnorm.add_layer_norm_backward(dy, total, mean, rstd, dtotal=dtotal).dx
        alone = numnorm.layer_norm_backward(dy, total, mean, rstd).dx
        # One rounding of dx, which is up to a few deviations.
        np.testing.assert_allclose(dx.host, alone.host + dtotal.host, atol=1e-5)
