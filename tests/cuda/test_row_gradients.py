"""The gradients of the norms by row on device arrays of every library."""

import numpy as np
import pytest
import reference
from test_rows import DTYPES, NORMS, draw, dtype_of, supports

import numnorm
from numnorm.backends.cuda import launch


def gradients(library, norm, dtype, shape=None, detach=None, in_place=False):
    """All gradients on the device, and as they are defined."""
    given, of_parameters, count, options = NORMS[norm]
    shape = shape or given
    x, dy = draw(shape, dtype), draw(shape, dtype, 9)
    if norm == "layer_norm":
        of_parameters = shape[-1:]
    gamma = [draw(of_parameters, dtype, 1)] if count else []
    forward, backward = (getattr(numnorm, f"{norm}_{way}") for way in ("forward", "backward"))
    arrays = [library.take(array) for array in (x, *gamma)]
    saved = forward(*arrays, **options)[1:]
    if norm == "rms_norm":
        exact_options, options = options, {}  # rstd tells all that there is to know of eps
    else:
        exact_options = options
    detached = {} if detach is None else {"detach": detach}
    slope = library.take(dy.copy())
    place = {"out": slope} if in_place else {}
    found = backward(slope, arrays[0], *saved, *arrays[1:], **options, **detached, **place)
    exactly = getattr(reference, f"{norm}_backward")
    names = {"g" if norm == "weight_norm" else "gamma": gamma[0]} if gamma else {}
    expected = exactly(dy, x, **names, **exact_options, **detached)
    # AdaNorm has no parameters, so that its only gradient is that of x.
    if norm == "ada_norm":
        found, expected = (found,), (expected,)
    return found, expected


def check(found, expected, dtype):
    """A few roundings of the working type, relative to the largest, and one of what is stored.

    Those of gamma and beta are sums over rows, of terms that are no larger than some times that.
    """
    epsilon = float(np.finfo(np.float64 if dtype == "float64" else np.float32).eps)
    rounding = float(reference.exact(np.spacing(np.ones(1, dtype_of(dtype))))[0])
    for got, wanted in zip(found, expected, strict=True):
        assert got.host.dtype == dtype_of(dtype)
        assert got.host.shape == wanted.shape
        bound = 24 * epsilon * np.abs(wanted).max() + rounding / 2 * np.abs(wanted)
        # The saved statistics of halves are float32, rounded once more.
        assert np.all(np.abs(reference.exact(got.host) - wanted) <= bound)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("norm", NORMS)
def test_gradients(library, norm, dtype):
    if not supports(library, dtype):
        pytest.skip("a dtype that Numba does not have")
    check(*gradients(library, norm, dtype), dtype)


@pytest.mark.parametrize("shape", [(70, 8), (3, 1), (1, 333), (5, 2, 640), (300, 4)])
def test_shapes(library, shape, order):
    check(*gradients(library, "layer_norm", "float32", shape), "float32")


@pytest.mark.parametrize("detach", ["mean", "scale", "both"])
def test_detached_statistics(library, detach):
    check(*gradients(library, "layer_norm", "float32", detach=detach), "float32")


def test_more_rows_than_are_summed_up_in_one_go(library, monkeypatch, order):
    monkeypatch.setattr(launch, "_THREADS", 128)
    found, expected = gradients(library, "layer_norm", "float32", (1200, 36))
    # Some more rows than before in each sum.
    check(found, expected, "float32")


def test_in_place(library):
    if library.called == "jax":
        pytest.skip("JAX has no arrays to write")
    check(*gradients(library, "layer_norm", "float32", in_place=True), "float32")


@pytest.mark.parametrize("shape", [(0, 4), (3, 0)])
def test_nothing(library, shape):
    x = library.take(np.empty(shape, np.float32))
    _, mean, rstd = numnorm.layer_norm_forward(x)
    dx, dgamma, dbeta = numnorm.layer_norm_backward(x, x, mean, rstd)
    assert dx.host.shape == shape
    np.testing.assert_array_equal(dgamma.host, np.zeros(shape[1:]))
    np.testing.assert_array_equal(dbeta.host, np.zeros(shape[1:]))


def test_rows_that_no_registers_hold(library):
    x = library.take(np.zeros((1, 20000), np.float32))
    _, mean, rstd = numnorm.layer_norm_forward(x)
    with pytest.raises(NotImplementedError, match=r"^rows of 20000 elements of float32"):
        numnorm.layer_norm_backward(x, x, mean, rstd)


def test_statistics_of_other_dtypes(library):
    x, half = library.take(draw((2, 8))), library.take(draw(2, "float16"))
    _, mean, rstd = numnorm.layer_norm_forward(x)
    with pytest.raises(TypeError, match=r"^rstd must have dtype float32 or float64, got float16"):
        numnorm.layer_norm_backward(x, x, mean, half)
    single = library.take(draw(2, "float32"))
    if library.called != "jax":  # whose statistics are float32 anyway
        with pytest.raises(TypeError, match=r"^mean and rstd must have one dtype"):
            numnorm.layer_norm_backward(x, x, mean, single)
    with pytest.raises(TypeError, match=r"^dy must have dtype float32, that of the input"):
        numnorm.layer_norm_backward(library.take(draw((2, 8), "float64")), x, mean, rstd)
