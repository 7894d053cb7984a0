"""A row's bytes depend neither on where it begins in memory nor on which of the rows it is."""

import ml_dtypes
import numpy as np
import pytest

import numnorm

DTYPES = {
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float32": np.float32,
    "float64": np.float64,
}
# Elements behind a multiple of 16 bytes; of float64 some of them are at one.
OFFSETS = (0, 1, 2, 3)
# Whole and ragged in every dtype; of few threads and of a warp, of one piece and of several.
WIDTHS = (7, 45, 48, 141)
WIDE = (264, 269)  # a block of few threads reads these in a loop, in more than one turn


def draw(dtype, *shape, seed=0):
    return np.random.default_rng(seed).normal(3, 2, shape).astype(DTYPES[dtype])


def behind(array, offset):
    """The same values, at an address some elements behind a multiple of 16 bytes."""
    size = array.dtype.itemsize
    memory = np.empty(array.nbytes + 16 + offset * size, np.uint8)
    start = -memory.__array_interface__["data"][0] % 16 + offset * size
    moved = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    moved[...] = array
    return moved


def forward(library, offset, x, *parameters, norm="layer_norm", **options):
    """The bytes of y and of what is saved."""
    arrays = [library.take(behind(array, offset)) for array in (x, *parameters)]
    found = getattr(numnorm, f"{norm}_forward")(*arrays, **options)
    return [np.asarray(array.host) for array in found]


def backward(library, offset, dy, x, saved, *parameters, norm="layer_norm", **options):
    """The bytes of dx and of the gradients of parameters."""
    arrays = [library.take(behind(array, offset)) for array in (dy, x)]
    rest = [library.take(array) for array in saved]
    rest += [library.take(behind(array, offset)) for array in parameters]
    found = getattr(numnorm, f"{norm}_backward")(*arrays, *rest, **options)
    return [np.asarray(array.host) for array in (found if isinstance(found, tuple) else [found])]


def assert_same(found, expected):
    for one, of in zip(found, expected, strict=True):
        assert one.tobytes() == of.tobytes()


def check_places(library, dtype, width, count=3):
    """Every result and every gradient, from every place."""
    x, dy = draw(dtype, count, width), draw(dtype, count, width, seed=1)
    gamma, beta = draw(dtype, width, seed=2), draw(dtype, width, seed=3)
    expected = forward(library, 0, x, gamma, beta)
    saved = expected[1:]
    gradients = backward(library, 0, dy, x, saved, gamma)
    for offset in OFFSETS[1:]:
        assert_same(forward(library, offset, x, gamma, beta), expected)
        assert_same(backward(library, offset, dy, x, saved, gamma), gradients)


def check_positions(library, dtype, width):
    """One row, as every row of a batch."""
    x, dy = draw(dtype, 1, width), draw(dtype, 1, width, seed=1)
    gamma, beta = draw(dtype, width, seed=2), draw(dtype, width, seed=3)
    alone = forward(library, 0, x, gamma, beta)
    dx = backward(library, 0, dy, x, alone[1:], gamma)[0]
    found = forward(library, 0, np.repeat(x, 5, axis=0), gamma, beta)
    assert_same(found, [np.repeat(array, 5, axis=0) for array in alone])
    repeated = [np.repeat(array, 5, axis=0) for array in (dy, x)]
    found = backward(library, 0, *repeated, found[1:], gamma)[0]
    assert_same([found], [np.repeat(dx, 5, axis=0)])


def check_runs(library, dtype, inner):
    """Parameters of channels, and their gradients, from every place."""
    x, dy = draw(dtype, 2, 4, inner), draw(dtype, 2, 4, inner, seed=1)
    gamma, beta = draw(dtype, 4, seed=2), draw(dtype, 4, seed=3)
    options = {"norm": "group_norm", "groups": 2}
    expected = forward(library, 0, x, gamma, beta, **options)
    gradients = backward(library, 0, dy, x, expected[1:], gamma, **options)
    for offset in OFFSETS[1:]:
        assert_same(forward(library, offset, x, gamma, beta, **options), expected)
        found = backward(library, offset, dy, x, expected[1:], gamma, **options)
        assert_same(found, gradients)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_in_registers(imported, dtype, width):
    library = imported("torch")
    check_places(library, dtype, width)
    check_positions(library, dtype, width)


@pytest.mark.parametrize("width", [517, 520])
def test_rows_of_several_warps(imported, width):
    check_places(imported("torch"), "float32", width, count=1)


@pytest.mark.parametrize("width", WIDE)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_in_a_loop(imported, few_registers, dtype, width):
    library = imported("torch")
    check_places(library, dtype, width, count=2)
    check_positions(library, dtype, width)


@pytest.mark.parametrize("inner", [12, 13])
@pytest.mark.parametrize("dtype", DTYPES)
def test_runs_in_registers(imported, dtype, inner):
    check_runs(imported("torch"), dtype, inner)


@pytest.mark.parametrize("inner", [72, 75])
@pytest.mark.parametrize("dtype", DTYPES)
def test_runs_in_a_loop(imported, few_registers, dtype, inner):
    check_runs(imported("torch"), dtype, inner)


@pytest.mark.parametrize("norm", ["rms_norm", "ada_norm"])
@pytest.mark.parametrize("width", [48, 45])
def test_other_norms(imported, norm, width):
    library, x, dy = imported("torch"), draw("float32", 3, width), draw("float32", 3, width, seed=1)
    parameters = [draw("float32", width, seed=2)] if norm == "rms_norm" else []
    expected = forward(library, 0, x, *parameters, norm=norm)
    saved = expected[1:]
    gradients = backward(library, 0, dy, x, saved, *parameters, norm=norm)
    for offset in OFFSETS[1:]:
        assert_same(forward(library, offset, x, *parameters, norm=norm), expected)
        assert_same(backward(library, offset, dy, x, saved, *parameters, norm=norm), gradients)


@pytest.mark.parametrize("scale", [1e-25, 1e30])
@pytest.mark.parametrize("width", [48, 45])
def test_rows_that_are_read_again(imported, scale, width):
    """Beside rows that are not."""
    library, x = imported("torch"), draw("float32", 4, width)
    x[1::2] *= np.float32(scale)
    expected = forward(library, 0, x, eps=0.0)
    for offset in OFFSETS[1:]:
        assert_same(forward(library, offset, x, eps=0.0), expected)
    for k in range(4):
        assert_same(forward(library, 0, x[k], eps=0.0), [array[k] for array in expected])
