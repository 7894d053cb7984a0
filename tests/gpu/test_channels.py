"""Norms and moments of channels, and weight norm, on real device arrays."""

import numpy as np
import pytest
import reference
from device_arrays import check, draw, dtype_of

import numnorm

pytestmark = pytest.mark.gpu

DTYPES = ["float16", "bfloat16", "float32", "float64"]
# The shape of x and the axis of its channels: all kernels of channels, whole and odd.
SHAPES = {
    "across": ((3000, 256), 1),
    "across, odd": ((1001, 37), 1),
    "along": ((17, 24, 32, 32), 1),
    "along, odd": ((9, 5, 7, 7), 1),
    "channels last": ((6, 14, 14, 48), -1),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_batch_norm(library, shape, dtype):
    if dtype not in library.dtypes:
        pytest.skip("a dtype that this library does not have")
    (size, axis), kind = SHAPES[shape], dtype_of(dtype)
    x, dy = draw(size, kind), draw(size, kind, 9)
    gamma, beta = draw((size[axis],), kind, 1), draw((size[axis],), kind, 2)
    of_x, of_gamma, of_beta = (library.take(array) for array in (x, gamma, beta))
    y, *saved = numnorm.batch_norm_forward(of_x, of_gamma, of_beta, channel_axis=axis)
    assert type(y) is type(of_x)
    check(library.give(y), reference.batch_norm(x, gamma, beta, axis)[0], 16)
    found = numnorm.batch_norm_backward(library.take(dy), of_x, *saved, of_gamma, channel_axis=axis)
    expected = reference.batch_norm_backward(dy, x, gamma, axis)
    for mine, exact in zip(found, expected, strict=True):
        check(library.give(mine), exact, 64)


@pytest.mark.parametrize("shape", SHAPES)
def test_inference(library, shape):
    (size, axis), x = SHAPES[shape], draw(SHAPES[shape][0], np.float32)
    mean, variance = draw((size[axis],), np.float32, 3), 1 + draw((size[axis],), np.float32, 4) ** 2
    running = {"running_mean": library.take(mean), "running_var": library.take(variance)}
    y = numnorm.batch_norm(library.take(x), training=False, channel_axis=axis, **running)
    along = [1] * x.ndim
    along[axis] = -1
    exact = [reference.exact(array).reshape(along) for array in (mean, variance)]
    check(library.give(y), (reference.exact(x) - exact[0]) / np.sqrt(exact[1] + 1e-5), 8)


def test_running_statistics(library, request):
    if request.node.callspec.params["library"] == "jax":
        pytest.skip("JAX has no arrays to write")
    x, mean = draw((500, 40), np.float32), np.zeros(40, np.float32)
    variance = np.ones(40, np.float32)
    of_mean, of_variance = library.take(mean), library.take(variance)
    numnorm.batch_norm(library.take(x), running_mean=of_mean, running_var=of_variance)
    exact = reference.exact(x)
    check(library.give(of_mean), 0.1 * exact.mean(0), 8)
    check(library.give(of_variance), 0.9 + 0.1 * exact.var(0, ddof=1), 8)


@pytest.mark.parametrize("shape", SHAPES)
def test_moments_of_a_stream(library, shape):
    (size, axis), x = SHAPES[shape], draw(SHAPES[shape][0], np.float32)
    half = size[0] // 2
    first = numnorm.batch_moments(library.take(x[:half].copy()), channel_axis=axis)
    chunk = library.take(x[half:].copy())
    found = numnorm.batch_moments(chunk, channel_axis=axis, after=first)
    others = tuple(number for number in range(x.ndim) if number != axis % x.ndim)
    exact = reference.exact(x)
    assert found.count == x.size // size[axis]
    # JAX may have no float64.
    check(library.give(found.mean).astype(np.float32), exact.mean(others), 4)
    check(library.give(found.var()).astype(np.float32), exact.var(others), 16)


@pytest.mark.parametrize("shape", [(10_000, 1), (2_500, 1, 4)], ids=["across", "along"])
def test_no_offset_costs_the_variance_digits(library, shape):
    if "float64" not in library.dtypes:
        pytest.skip("a dtype that this library does not have")
    # The values are offset + 1 and offset - 1, exactly: the mean is the offset.
    offset, epsilon = 1e10, np.finfo(np.float64).eps
    x = np.repeat([offset + 1, offset - 1], 5000).reshape(shape)
    chunks = [library.take(chunk.copy()) for chunk in np.split(x, [1500])]
    parts = [numnorm.batch_moments(chunk) for chunk in chunks]
    whole = library.take(x)
    for found in (
        numnorm.batch_moments(whole),
        numnorm.batch_moments(chunks[1], after=parts[0]),
        parts[0].merge(parts[1]),
    ):
        np.testing.assert_allclose(library.give(found.var()), 1, rtol=4 * epsilon)
    y = library.give(numnorm.batch_norm(whole, eps=0))
    np.testing.assert_allclose(y, x - offset, rtol=8 * epsilon)


@pytest.mark.parametrize("dtype, wide", [("float16", "float32"), ("float32", "float64")])
@pytest.mark.parametrize("shape", ["across, odd", "along"])
def test_gradient_of_a_wider_dtype(library, shape, dtype, wide):
    if wide not in library.dtypes:
        pytest.skip("a dtype that this library does not have")
    size, axis = SHAPES[shape]
    x, dy, gamma = draw(size, dtype), draw(size, wide, 9), draw((size[axis],), wide, 1)
    of_x, of_gamma = library.take(x), library.take(gamma)
    saved = numnorm.batch_norm_forward(of_x, of_gamma, channel_axis=axis)[1:]
    found = numnorm.batch_norm_backward(library.take(dy), of_x, *saved, of_gamma, channel_axis=axis)
    dx, *sums = map(library.give, found)
    exact_dx, *exact_sums = reference.batch_norm_backward(dy, x, gamma, axis)
    assert dx.dtype == dtype and all(array.dtype == wide for array in sums)
    check(dx, exact_dx, 128)
    terms = np.abs(reference.exact(dy) * reference.batch_norm(x, channel_axis=axis)[0])
    over = tuple(number for number in range(x.ndim) if number != axis % x.ndim)
    for mine, exact in zip(sums, exact_sums, strict=True):
        # The forward pass computed the statistics in float32.
        check(mine.astype(np.float32), exact, 8, terms.sum(over))


@pytest.mark.parametrize("eps", [1e-33, 1e-300])
def test_constants_with_a_tiny_eps_are_normalized_to_beta(library, eps):
    beta = draw((4,), np.float32)
    for constant in (0.0, 1.0, 3e38):
        x = library.take(np.full((4, 4), constant, np.float32))
        y = library.give(numnorm.batch_norm(x, None, library.take(beta), eps=eps))
        np.testing.assert_array_equal(y, np.broadcast_to(beta, (4, 4)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(64, 300), (7, 20011)], ids=str)
def test_weight_norm(library, shape, dtype):
    if dtype not in library.dtypes:
        pytest.skip("a dtype that this library does not have")
    kind = dtype_of(dtype)
    x, dy, g = draw(shape, kind), draw(shape, kind, 9), draw(shape[:1], kind, 1)
    of_x, of_g = library.take(x), library.take(g)
    y, norm = numnorm.weight_norm_forward(of_x, of_g)
    check(library.give(y), reference.weight_norm(x, g)[0], 8)
    found = numnorm.weight_norm_backward(library.take(dy), of_x, norm, of_g)
    for mine, exact in zip(found, reference.weight_norm_backward(dy, x, g), strict=True):
        check(library.give(mine), exact, 64)
