"""The same bytes wherever in memory the arrays lie: the loops begin at cache lines."""

import kernels
import numpy as np
import pytest
from every_call import COMPILED
from numba import njit

import numnorm
from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.memory.kernel_arrays import make_aligned_zeros

LINE = 64


def placed(values, offset):
    """The same values, so many bytes into a cache line."""
    memory = np.empty(values.nbytes + 2 * LINE, np.uint8)
    start = -memory.ctypes.data % LINE + offset
    array = memory[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    array[...] = values
    return array


def results(dy, x, gamma, forward, backward, **options):
    """All results of a norm, the gradients of its parameters included."""
    y, *statistics = forward(x, gamma, **options)
    return y, *backward(dy, x, *statistics, gamma, **options)


def calls(norm):
    return getattr(numnorm, norm + "_forward"), getattr(numnorm, norm + "_backward")


def same_bytes(one, other):
    return all(a.tobytes() == b.tobytes() for a, b in zip(one, other, strict=True))


# Rows of whole lines, of a part of one, and of more than is summed up at a time.
WIDTHS = [160, 288, 1000, 1024, 4128]
OFFSETS = [4, 16, 40, 60]


# Sums of up to 32 rows are made in the gradients of the parameters, those of more elsewhere.
@pytest.mark.parametrize("rows", [9, 41])
@pytest.mark.parametrize("width", WIDTHS if COMPILED else WIDTHS[:3])
@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
def test_rows_give_the_same_bytes_from_any_address(norm, width, rows):
    rng = np.random.default_rng(0)
    x, dy = rng.normal(3, 2, (2, rows, width)).astype(np.float32)
    gamma = rng.normal(1, 0.1, width).astype(np.float32)
    expected = results(placed(dy, 0), placed(x, 0), placed(gamma, 0), *calls(norm))
    for offset in OFFSETS:
        for of_dy, of_gamma in ((offset, offset), (offset, 0), (0, offset)):
            found = results(
                placed(dy, of_dy), placed(x, offset), placed(gamma, of_gamma), *calls(norm)
            )
            assert same_bytes(found, expected), (offset, of_dy, of_gamma)


@pytest.mark.skipif(not COMPILED, reason="where memory begins is looked at by compiled code")
def test_zeros_lie_in_lines_behind_a_head():
    zeros = make_aligned_zeros(np.float32, 2)

    @inlined
    def allocated(shape, peel):
        return zeros(shape, peel)

    @njit
    def some(shape, peel):
        return allocated(shape, peel)

    for peel in range(16):
        found = some((3, 50), peel)
        assert (found.ctypes.data + 4 * peel) % LINE == 0
        assert found.shape == (3, 50) and found.dtype == np.float32 and not found.any()
        found[...] = 1  # memory that is freed in this state comes back


@kernels.full
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_rows_of_other_sizes_of_elements(dtype):
    rng = np.random.default_rng(1)
    x, dy = rng.normal(3, 2, (2, 9, 544)).astype(dtype)
    gamma = rng.normal(1, 0.1, 544).astype(dtype)
    expected = results(placed(dy, 0), placed(x, 0), gamma, *calls("layer_norm"))
    itemsize = x.dtype.itemsize
    for offset in (itemsize, 16, LINE - itemsize):
        found = results(placed(dy, offset), placed(x, offset), gamma, *calls("layer_norm"))
        assert same_bytes(found, expected), offset


# Channels of a part of a line, and of whole lines: of these a row is asked for while it is read.
@pytest.mark.parametrize("inner, groups", [((16, 7), 2), ((16, 128), 1)])
@pytest.mark.parametrize("weighted", [True, False])
def test_groups_give_the_same_bytes_from_any_address(inner, groups, weighted):
    rng = np.random.default_rng(2)
    x, dy = rng.normal(3, 2, (2, 3, 6, *inner)).astype(np.float32)
    gamma = rng.normal(1, 0.1, 6).astype(np.float32) if weighted else None
    expected = results(placed(dy, 0), placed(x, 0), gamma, *calls("group_norm"), groups=groups)
    for offset in OFFSETS:
        found = results(
            placed(dy, offset), placed(x, offset), gamma, *calls("group_norm"), groups=groups
        )
        assert same_bytes(found, expected), offset


def into(array, offset):
    """An array like this one for a result, so many bytes into a cache line, full of NaN."""
    return placed(np.full_like(array, np.nan), offset)


# Loops that store begin at the lines of what they store, wherever the lines of the input are.
@kernels.each_dtype("layer_norm", "float16", "float32", "float64", parameters="both")
@pytest.mark.parametrize("width", WIDTHS if COMPILED else WIDTHS[:3])
def test_results_of_rows_are_the_same_bytes_at_any_address(dtype, width):
    rng = np.random.default_rng(4)
    x, dy = rng.normal(3, 2, (2, 9, width)).astype(dtype)
    gamma = rng.normal(1, 0.1, width).astype(dtype)
    y, mean, rstd = numnorm.layer_norm_forward(placed(x, 0), gamma)
    dx, *_ = numnorm.layer_norm_backward(placed(dy, 0), placed(x, 0), mean, rstd, gamma)
    for of_x, of_result in ((0, 16), (16, 0), (16, 16), (8, 40), (56, 24)):
        here = placed(x, of_x)
        out = into(x, of_result)
        assert numnorm.layer_norm(here, gamma, out=out) is out
        assert out.tobytes() == y.tobytes(), (of_x, of_result)
        # In its place: what is read and what is written are the same lines.
        assert numnorm.layer_norm(here, gamma, out=here).tobytes() == y.tobytes()
        out, here = into(x, of_result), placed(x, of_x)
        numnorm.layer_norm_backward(placed(dy, 0), here, mean, rstd, gamma, out=out)
        assert out.tobytes() == dx.tobytes(), (of_x, of_result)


# Rows of channels that go in groups and in tiles, narrower ones, and channels of many elements:
# of whole lines, of a part of one, and of more than is summed up at a time.
CHANNELS = [(17, 1072), (17, 1075), (20, 288), (3, 5, 288), (3, 5, 301), (2, 3, 2100)]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("shape", CHANNELS if COMPILED else CHANNELS[1:4])
def test_results_of_channels_are_the_same_bytes_at_any_address(dtype, shape):
    rng = np.random.default_rng(5)
    x, dy = rng.normal(3, 2, (2, *shape)).astype(dtype)
    gamma, beta = rng.normal(1, 0.1, (2, shape[1])).astype(dtype)
    y, mean, rstd = numnorm.batch_norm_forward(placed(x, 0), gamma, beta)
    given = placed(dy, 0), placed(x, 0), mean, rstd, gamma
    expected = {
        training: numnorm.batch_norm_backward(*given, training=training)
        for training in (True, False)
    }
    for of_x, of_result in ((0, 16), (16, 0), (16, 16), (8, 40), (56, 24)):
        here = placed(x, of_x)
        out = into(x, of_result)
        numnorm.batch_norm(here, gamma, beta, out=out)
        assert out.tobytes() == y.tobytes(), (of_x, of_result)
        for training, gradients in expected.items():
            given = placed(dy, of_x), here, mean, rstd, gamma
            found = numnorm.batch_norm_backward(*given, training=training, out=into(x, of_result))
            assert same_bytes(found, gradients), (of_x, of_result, training)


# Enough elements that rows of whole lines are taken from line to line: one row, few, and many.
LINED = [(1, 32768), (2, 16384), (33, 1024), (600, 64)]


# A gamma so large that channels are worked on times a power of two, and one that is not.
@pytest.mark.parametrize(
    "dtype, size",
    [("float16", 1), ("float32", 1), ("float32", 1e36), ("float64", 1), ("float64", 1e300)],
)
@pytest.mark.parametrize("shape", LINED if COMPILED else LINED[2:3])
def test_channels_of_whole_lines_are_the_same_bytes_at_any_address(dtype, shape, size):
    rng = np.random.default_rng(6)
    x, dy = rng.normal(3, 2, (2, *shape)).astype(dtype)
    gamma = (size * rng.normal(1, 0.1, shape[1])).astype(dtype)
    beta = rng.normal(1, 0.1, shape[1]).astype(dtype)
    mean, var = rng.normal(3, 0.1, shape[1]), rng.uniform(3, 5, shape[1])
    constant = {"running_mean": mean, "running_var": var, "training": False}
    y = numnorm.batch_norm(placed(x, 0), gamma, beta, out=into(x, 0), **constant)
    given = mean, 1 / np.sqrt(var), gamma
    dx, *_ = numnorm.batch_norm_backward(placed(dy, 0), placed(x, 0), *given, out=into(x, 0))
    assert np.isfinite(y).all() and np.isfinite(dx).all()
    for of_x, of_result in ((0, 16), (16, 0), (16, 16), (8, 40), (56, 24)):
        here, out = placed(x, of_x), into(x, of_result)
        numnorm.batch_norm(here, gamma, beta, out=out, **constant)
        assert out.tobytes() == y.tobytes(), (of_x, of_result)
        numnorm.batch_norm(here, gamma, beta, out=here, **constant)
        assert here.tobytes() == y.tobytes(), of_x
        here, grads, out = placed(x, of_x), placed(dy, of_x), into(x, of_result)
        numnorm.batch_norm_backward(grads, here, *given, out=out)
        assert out.tobytes() == dx.tobytes(), (of_x, of_result)
        numnorm.batch_norm_backward(grads, here, *given, out=grads)
        assert grads.tobytes() == dx.tobytes(), of_x


# Rows that go four at a time, but for the last, in tiles, and those that go one by one.
@pytest.mark.parametrize("width", [48, 100, 1000])
@pytest.mark.parametrize("weighted", [True, False])
def test_a_row_alone_gives_the_bytes_that_it_gives_among_others(width, weighted):
    # Alone, most rows lie otherwise in their lines than in the array.
    rng = np.random.default_rng(3)
    x, dy = rng.normal(3, 2, (2, 5, width)).astype(np.float32)
    gamma = rng.normal(1, 0.1, width).astype(np.float32) if weighted else None
    y, dx, *_ = results(dy, x, gamma, *calls("layer_norm"))
    for i in range(5):
        for offset in (0, 20):
            alone = [placed(values[i : i + 1], offset) for values in (dy, x)]
            found = results(*alone, gamma, *calls("layer_norm"))
            assert same_bytes(found[:2], (y[i : i + 1], dx[i : i + 1])), (i, offset)
