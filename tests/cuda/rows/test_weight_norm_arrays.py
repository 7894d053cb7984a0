"""Weight norm on device arrays of every library: its gradients, lengths, layouts, errors."""

import numpy as np
import pytest
import reference
from fake_libraries import STREAMS
from row_arrays import DTYPES, assert_close, check, draw, supports
from simulated_target import Kernel

import numnorm

# A shape with the axes of a vector: last, kept first as in a convolution, across, and all.
PLACES = {
    "last": ((4, 9), -1),
    "whole": ((3, 16), -1),
    "a convolution's": ((5, 2, 3, 3), (1, 2, 3)),
    "across": ((8, 5), 0),
    "two apart": ((3, 4, 5), (0, 2)),
    "all": ((6, 3), (0, 1)),
}


def kept_shape(shape, axis):
    axes = {a % len(shape) for a in np.atleast_1d(axis)}
    return tuple(length for a, length in enumerate(shape) if a not in axes)


def used(library, dtype, place):
    """The arrays of a call: x, dy and g on the host, and the same on the device."""
    shape, axis = PLACES[place]
    host = draw(shape, dtype), draw(shape, dtype, 1), draw(kept_shape(shape, axis), dtype, 2)
    return host, [library.take(array) for array in host], axis


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("place", PLACES)
def test_both_ways(library, dtype, place):
    if not supports(library, dtype):
        pytest.skip("a dtype that Numba does not have")
    (x, dy, g), (of_x, of_dy, of_g), axis = used(library, dtype, place)
    y, norm = numnorm.weight_norm_forward(of_x, of_g, axis=axis)
    expected = reference.weight_norm(x, g, axis)
    assert type(norm) is type(of_x)
    assert_close(y.host, expected[0], dtype)
    np.testing.assert_allclose(norm.host, np.float64(expected[1]), rtol=1e-6)
    found = numnorm.weight_norm_backward(of_dy, of_x, norm, of_g, axis=axis)
    assert type(found.dx) is type(found.dg) is type(of_x)
    check(found, reference.weight_norm_backward(dy, x, g, axis), dtype)


@pytest.mark.parametrize("place", PLACES)
def test_any_order_of_threads(library, place, order):
    (x, dy, g), (of_x, of_dy, of_g), axis = used(library, "float32", place)
    norm = numnorm.weight_norm_forward(of_x, of_g, axis=axis).norm
    found = numnorm.weight_norm_backward(of_dy, of_x, norm, of_g, axis=axis)
    check(found, reference.weight_norm_backward(dy, x, g, axis), "float32")


def test_more_vectors_than_a_block_has_threads(library):
    x, dy = draw((300, 3)), draw((300, 3), seed=1)
    norm = numnorm.weight_norm_forward(library.take(x)).norm
    found = numnorm.weight_norm_backward(library.take(dy), library.take(x), norm)
    check(found, reference.weight_norm_backward(dy, x), "float32")


@pytest.mark.parametrize("place", ["last", "across"])
@pytest.mark.parametrize("into", ["new", "dy", "x"])
def test_out(library, place, into):
    if library.called == "jax":
        pytest.skip("JAX has no arrays to write")
    _, (of_x, of_dy, of_g), axis = used(library, "float32", place)
    norm = numnorm.weight_norm_forward(of_x, of_g, axis=axis).norm
    expected = numnorm.weight_norm_backward(of_dy, of_x, norm, of_g, axis=axis)
    out = {"new": library.take(np.zeros_like(of_x.host)), "dy": of_dy, "x": of_x}[into]
    found = numnorm.weight_norm_backward(of_dy, of_x, norm, of_g, axis=axis, out=out)
    assert found.dx is out
    assert out.host.tobytes() == np.ascontiguousarray(expected.dx.host).tobytes()
    assert found.dg.host.tobytes() == expected.dg.host.tobytes()


def test_without_lengths(library):
    (x, dy, _), (of_x, of_dy, _), _ = used(library, "float16", "last")
    norm = numnorm.weight_norm_forward(of_x).norm
    found = numnorm.weight_norm_backward(of_dy, of_x, norm)
    check(found, reference.weight_norm_backward(dy, x), "float16")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_norm_may_be_of_any_float_dtype(library, dtype):
    (x, dy, g), (of_x, of_dy, of_g), _ = used(library, "float64", "last")
    norm = numnorm.weight_norm_forward(of_x, of_g).norm.host.astype(dtype)
    found = numnorm.weight_norm_backward(of_dy, of_x, library.take(norm), of_g)
    expected = reference.weight_norm_backward(dy, x, g)
    rtol = 8 * np.finfo(dtype).eps  # dx and dg go with the norm as it was rounded
    for got, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(got.host, np.float64(wanted), rtol, rtol * np.abs(wanted).max())


def test_gradient_of_lengths_of_another_dtype(library):
    (_, _, g), (of_x, of_dy, _), _ = used(library, "float32", "last")
    norm = numnorm.weight_norm_forward(of_x).norm
    found = numnorm.weight_norm_backward(of_dy, of_x, norm, library.take(g.astype(np.float64)))
    assert found.dg.host.dtype == np.float64
    assert found.dx.host.dtype == np.float32


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_a_vector_of_zeros_and_one_whose_squares_leave_the_range(library, size):
    x, dy = np.zeros((2, 5), np.float32), draw((2, 5), seed=1)
    x[1] = size * draw(5)
    y, norm = numnorm.weight_norm_forward(library.take(x))
    assert np.all(y.host[0] == 0) and norm.host[0] == 0
    dx, dg = numnorm.weight_norm_backward(library.take(dy), library.take(x), norm)
    expected = reference.weight_norm_backward(dy, x)
    assert np.all(dx.host[0] == 0) and dg.host[0] == 0
    # Within the roundings that `check` allows, of numbers that are far from 1.
    np.testing.assert_allclose(dg.host, np.float64(expected[1]), rtol=1e-5)
    atol = 1e-5 * float(np.abs(expected[0]).max())
    np.testing.assert_allclose(dx.host, np.float64(expected[0]), rtol=1e-5, atol=atol)


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0, 0)])
def test_nothing(library, shape):
    x = library.take(np.empty(shape, np.float32))
    y, norm = numnorm.weight_norm_forward(x)
    assert y.host.shape == shape
    np.testing.assert_array_equal(norm.host, np.zeros(shape[:1]))
    dx, dg = numnorm.weight_norm_backward(x, x, norm)
    assert dx.host.shape == shape
    np.testing.assert_array_equal(dg.host, np.zeros(shape[:1]))


def test_jax_without_float64(imported):
    jax = imported("jax")
    jax.config.jax_enable_x64 = False
    x, dy = draw((4, 9)), draw((4, 9), seed=1)
    norm = numnorm.weight_norm_forward(jax.take(x)).norm
    assert norm.dtype == np.float32
    found = numnorm.weight_norm_backward(jax.take(dy), jax.take(x), norm)
    check(found, reference.weight_norm_backward(dy, x), "float32")


def test_kernels_are_queued_on_one_stream_and_nothing_is_copied(library, monkeypatch):
    streams, launch = [], Kernel.launch

    def recorded(self, blocks, stream, *arguments):
        streams.append(stream)
        launch(self, blocks, stream, *arguments)

    monkeypatch.setattr(Kernel, "launch", recorded)
    _, (of_x, of_dy, of_g), _ = used(library, "float32", "last")
    norm = numnorm.weight_norm_forward(of_x, of_g).norm
    numnorm.weight_norm_backward(of_dy, of_x, norm, of_g)
    assert streams == [STREAMS[library.called]] * 4  # y; 1 / norm, dx, dg
    assert library.asked == []


def test_refused(library):
    _, (of_x, of_dy, _), _ = used(library, "float32", "last")

    def refused(error, message, norm):
        with pytest.raises(error, match=message):
            numnorm.weight_norm_backward(of_dy, of_x, norm)

    refused(TypeError, r"^norm must be a .* on device 0, as x is, got numpy.ndarray$", np.ones(4))
    refused(TypeError, r"^norm must be a .* on device 0, as x is, got .*NoneType$", None)
    refused(ValueError, r"^norm must have shape \(4,\), one for each row", library.take(np.ones(3)))
    refused(ValueError, "^norm must be on device 0, as x is", library.take(np.ones(4), 1))
    with pytest.raises(TypeError, match=r"^norm must lie on the host"):
        numnorm.weight_norm_backward(of_dy.host, of_x.host, library.take(np.ones(4)))
