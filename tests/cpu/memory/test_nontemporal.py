"""Large results, which are stored past the caches, are those of their parts, which are not."""

import itertools

import kernels
import ml_dtypes
import numpy as np
import pytest
from every_call import COMPILED
from layouts import placed

import numnorm

# What decides is a number of bytes: as Python, so many elements would take minutes.
pytestmark = pytest.mark.skipif(not COMPILED, reason="of compiled kernels")
BYTES = 13 << 20  # more than the 12 MB from which on results are streamed, and 6 MB of gradients
DTYPES = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)


def drawn(width, dtype, *more):
    rows = BYTES // np.dtype(dtype).itemsize // width // int(np.prod(more, initial=1))
    rng = np.random.default_rng(0)
    return (3 + rng.standard_normal((rows, width, *more), dtype=np.float32)).astype(dtype)


def same(one, other):
    np.testing.assert_array_equal(one.view(np.uint8), other.view(np.uint8))


@kernels.each_dtype("layer_norm", *DTYPES, parameters="none")
@pytest.mark.parametrize("width", [3000, 1024, 1000, 512, 96, 64, 16, 5])
@pytest.mark.parametrize("offset", [0, 16, 24])
def test_rows_are_those_of_few_rows(dtype, width, offset):
    x = drawn(width, dtype)
    y = numnorm.layer_norm(x, out=placed(x.shape, dtype, offset))
    for start in range(0, len(x), len(x) // 5):
        some = slice(start, start + len(x) // 5)
        same(y[some], numnorm.layer_norm(x[some]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", [600, 100, 64, 7, 1])
def test_rows_between_rows_of_another_scale_are_those_of_few_rows(dtype, width):
    # Of the tiles of narrow rows, those that hold such a row are stored in another way.
    x = drawn(width, dtype)
    x[5::40] *= dtype(1e30 if dtype is np.float32 else 1e300)
    x[-1] *= dtype(1e-30)
    y = numnorm.layer_norm(x, out=placed(x.shape, dtype, 16))
    for start in range(0, len(x), len(x) // 5):
        some = slice(start, start + len(x) // 5)
        same(y[some], numnorm.layer_norm(x[some]))


@kernels.each_dtype("layer_norm", *DTYPES, parameters="none")
@pytest.mark.parametrize("width", [512, 64, 16])
def test_rows_in_place_are_those_of_few_rows(dtype, width):
    x = placed(drawn(width, dtype).shape, dtype, 16)
    x[...] = drawn(width, dtype)
    expected = [numnorm.layer_norm(part) for part in np.array_split(x, 5)]
    numnorm.layer_norm(x, out=x)
    same(x, np.concatenate(expected))


@kernels.each_dtype("layer_norm", *DTYPES, parameters="both")
@pytest.mark.parametrize("width", [4096, 1024, 1000, 64, 16])
@pytest.mark.parametrize("offset", [0, 16])
def test_gradients_of_rows_are_those_of_few_rows(dtype, width, offset):
    x = drawn(width, dtype)
    dy, gamma = x[::-1].copy(), np.linspace(1, 2, width).astype(dtype)
    _, mean, rstd = numnorm.layer_norm_forward(x)
    out = placed(x.shape, dtype, offset)
    dx, _, _ = numnorm.layer_norm_backward(dy, x, mean, rstd, gamma, out=out)
    for start in range(0, len(x), len(x) // 5):
        some = slice(start, start + len(x) // 5)
        of_some = numnorm.layer_norm_backward(dy[some], x[some], mean[some], rstd[some], gamma)
        same(dx[some], of_some.dx)


@kernels.each_dtype("batch_norm", *DTYPES)
@pytest.mark.parametrize("shape", [(1024,), (96,), (8, 16, 16)])
@pytest.mark.parametrize("offset", [0, 16])
def test_channels_are_those_of_few_samples(dtype, shape, offset):
    x = drawn(*shape[:1], dtype, *shape[1:])
    mean, var = np.linspace(2, 4, shape[0]), np.linspace(1, 2, shape[0])
    stored = {"running_mean": mean, "running_var": var, "training": False}
    y = numnorm.batch_norm(x, out=placed(x.shape, dtype, offset), **stored)
    for start in range(0, len(x), len(x) // 5):
        some = slice(start, start + len(x) // 5)
        same(y[some], numnorm.batch_norm(x[some], **stored))


@kernels.each_dtype("batch_norm", *DTYPES)
@pytest.mark.parametrize("shape", [(1024,), (8, 16, 16)])
@pytest.mark.parametrize("training", [True, False])
def test_gradients_of_channels_do_not_depend_on_the_place(dtype, shape, training):
    values = drawn(*shape[:1], dtype, *shape[1:])
    _, mean, rstd = numnorm.batch_norm_forward(values)
    results = []
    # The processor refuses to stream to where no line, or half of one, begins.
    for of_inputs, of_result in itertools.product((0, 16, 32), repeat=2):
        x, dy, out = (
            placed(values.shape, dtype, offset) for offset in (of_inputs, of_inputs, of_result)
        )
        x[...], dy[...] = values, values[::-1]
        gradients = numnorm.batch_norm_backward(dy, x, mean, rstd, training=training, out=out)
        results.append(gradients)
    for gradients in results[1:]:
        for one, other in zip(results[0], gradients, strict=True):
            same(one, other)


def test_samples_in_groups_are_those_of_few_samples():
    x = drawn(64, np.float32, 14, 14)
    y = numnorm.group_norm(x, groups=16, out=placed(x.shape, np.float32, 0))
    same(y[-9:], numnorm.group_norm(x[-9:], groups=16))


def test_gradients_of_samples_in_groups_are_those_of_few_samples():
    x = drawn(64, np.float32, 14, 14)
    _, mean, rstd = numnorm.group_norm_forward(x, groups=16)
    dx = numnorm.group_norm_backward(x[::-1], x, mean, rstd, groups=16).dx
    few = slice(len(x) - 9, None)
    of_few = numnorm.group_norm_backward(x[::-1][few], x[few], mean[few], rstd[few], groups=16)
    same(dx[few], of_few.dx)


def test_a_result_may_take_the_place_of_its_input():
    x = placed((3328, 1024), np.float32, 0)
    x[...] = drawn(1024, np.float32)
    expected = numnorm.layer_norm(x)
    same(numnorm.layer_norm(x, out=x), expected)


@pytest.mark.parametrize("width", [1024, 64])
def test_gradients_may_take_the_place_of_an_input(width):
    x = drawn(width, np.float32)
    dy = x[::-1].copy()
    _, mean, rstd = numnorm.layer_norm_forward(x)
    expected = numnorm.layer_norm_backward(dy, x, mean, rstd)
    for place in ("dy", "x"):
        given = {"dy": placed(x.shape, x.dtype, 0), "x": placed(x.shape, x.dtype, 0)}
        given["dy"][...], given["x"][...] = dy, x
        found = numnorm.layer_norm_backward(*given.values(), mean, rstd, out=given[place])
        for one, other in zip(expected, found, strict=True):
            same(one, other)
