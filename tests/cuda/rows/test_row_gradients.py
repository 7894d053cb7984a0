"""The gradients of the norms by row on device arrays of every library."""

import numpy as np
import pytest
import reference
from row_arrays import DTYPES, NORMS, check, draw, supports

import numnorm
from numnorm.backends.cuda.compiler.element_type import ELEMENT_TYPES
from numnorm.backends.cuda.rows.backward import gradient_plan
from numnorm.backends.cuda.threads import row_shape as launch
from numnorm.backends.cuda.threads.row_shape import (
    RowShape,
    backward_parts,
    backward_shape,
    strip_shape,
    strips_of,
)


def gradients(library, norm, dtype, shape=None, detach=None, in_place=False, dy_dtype=None):
    """All gradients on the device, and as they are defined; gamma has the dtype of dy."""
    given, _, count, options = NORMS[norm]
    shape = shape or given
    dy_dtype = dy_dtype or dtype
    x, dy = draw(shape, dtype), draw(shape, dy_dtype, 9)
    axes = {"layer_norm": slice(-1, None), "rms_norm": slice(-1, None), "weight_norm": slice(1)}
    of_parameters = shape[axes.get(norm, slice(1, 2))]  # else those of channels
    gamma = [draw(of_parameters, dy_dtype, 1)] if count else []
    forward, backward = (getattr(numnorm, f"{norm}_{way}") for way in ("forward", "backward"))
    arrays = [library.take(array) for array in (x, *gamma)]
    saved = forward(*arrays, **options)[1:]
    if norm == "rms_norm":
        exact_options, options = options, {}  # rstd tells all that there is to know of eps
    else:
        exact_options = options
    detached = {} if detach is None else {"detach": detach}
    grad = library.take(dy.copy())
    place = {"out": grad} if in_place else {}
    found = backward(grad, arrays[0], *saved, *arrays[1:], **options, **detached, **place)
    exactly = getattr(reference, f"{norm}_backward")
    names = {"g" if norm == "weight_norm" else "gamma": gamma[0]} if gamma else {}
    expected = exactly(dy, x, **names, **exact_options, **detached)
    # AdaNorm has no parameters, so that its only gradient is that of x.
    if norm == "ada_norm":
        found, expected = (found,), (expected,)
    return found, expected


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


# Rows that no registers hold


@pytest.fixture
def few_registers(monkeypatch):
    """Rows of any width are read in a loop, by blocks of few threads."""
    for name, value in (("_TEAMS", ()), ("_LOOP", 64), ("_STRIP", 32)):
        monkeypatch.setattr(launch, f"_BACKWARD{name}", value)
    gradient_plan.cache_clear()
    yield
    gradient_plan.cache_clear()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("norm", NORMS)
def test_gradients_in_a_loop(library, norm, dtype, few_registers):
    if not supports(library, dtype):
        pytest.skip("a dtype that Numba does not have")
    check(*gradients(library, norm, dtype), dtype)


SPACES = {"layer_norm": (3, 280), "group_norm": (2, 6, 140), "instance_norm": (2, 3, 260)}


@pytest.mark.parametrize("norm", SPACES)
def test_shapes_in_a_loop(imported, norm, few_registers, order):
    library = imported("torch")
    check(*gradients(library, norm, "float32", SPACES[norm], in_place=True), "float32")


def test_channels_without_space_in_a_loop(imported, few_registers, order):
    library = imported("torch")
    check(*gradients(library, "group_norm", "float32", (4, 39)), "float32")


def test_more_rows_than_are_summed_up_in_one_go_in_a_loop(
    library, monkeypatch, few_registers, order
):
    monkeypatch.setattr(launch, "_THREADS", 32)
    check(*gradients(library, "layer_norm", "float32", (80, 5)), "float32")


@pytest.mark.parametrize("norm, dtype, shape", [
    ("layer_norm", "float32", (2, 8193)),
    ("layer_norm", "bfloat16", (1, 8200)),
    ("layer_norm", "float64", (1, 4098)),
    ("rms_norm", "float16", (1, 8193)),
    ("ada_norm", "float32", (1, 20011)),
    ("group_norm", "float32", (1, 6, 2740)),
    ("group_norm", "float16", (1, 6, 53, 53)),
    ("instance_norm", "float64", (2, 3, 1367)),
])  # fmt: skip
def test_rows_that_no_registers_hold(imported, norm, dtype, shape):
    check(*gradients(imported("torch"), norm, dtype, shape), dtype)


def test_group_norm_of_many_narrow_channels_in_one_row(imported):
    library, shape = imported("torch"), (1, 2741, 3)
    x, dy = draw(shape), draw(shape, seed=9)
    _, mean, rstd = numnorm.group_norm_forward(library.take(x), groups=1)
    found = numnorm.group_norm_backward(library.take(dy), library.take(x), mean, rstd, groups=1)
    check(found, reference.group_norm_backward(dy, x, groups=1), "float32")


@pytest.mark.parametrize("element", ELEMENT_TYPES.values(), ids=ELEMENT_TYPES)
def test_wider_rows_are_read_in_a_loop(element):
    widest = 4096 if element.name == "float64" else 8192
    assert backward_shape(widest, element, aligned=True).vectors > 0
    for width, whole in ((widest + 1, False), (widest + 8, True)):
        assert backward_shape(width, element, aligned=True) == RowShape(512, 1, 0, whole)


def test_parts_of_wide_rows():
    """As many blocks as fit the largest devices, however wide the rows and however many."""
    strip = strip_shape(RowShape(512, 1, 0, True))
    for rows, width in ((1, 8196), (10000, 8196), (100, 1 << 20), (64, 1 << 24)):
        strips = strips_of(width, ELEMENT_TYPES["float32"], strip)
        assert (strips - 1) * strip.threads * 4 < width <= strips * strip.threads * 4
        parts = backward_parts(rows, strip, 1, strips)
        assert 1 <= parts <= -(-rows // 8)
        assert parts == 1 or parts * strips * strip.threads <= 1 << 17


def test_statistics_of_other_dtypes(library):
    x, half = library.take(draw((2, 8))), library.take(draw(2, "float16"))
    mean = numnorm.layer_norm_forward(x).mean
    with pytest.raises(TypeError, match=r"^rstd must have dtype float32 or float64, got float16"):
        numnorm.layer_norm_backward(x, x, mean, half)
    single = library.take(draw(2, "float32"))
    if library.called != "jax":  # whose statistics are float32 anyway
        with pytest.raises(TypeError, match=r"^mean and rstd must have one dtype"):
            numnorm.layer_norm_backward(x, x, mean, single)


# Of x, and of dy and gamma. A kernel computes in the wider of them.
MIXED = [
    ("float16", "float32"),
    ("bfloat16", "float16"),
    ("float32", "float64"),
    ("float32", "float16"),
]


@pytest.mark.parametrize("dtype, dy_dtype", MIXED)
@pytest.mark.parametrize("norm", NORMS)
def test_a_gradient_of_another_dtype(library, norm, dtype, dy_dtype):
    if not (supports(library, dtype) and supports(library, dy_dtype)):
        pytest.skip("a dtype that Numba does not have")
    if library.called == "jax" and dy_dtype == "float64":
        pytest.skip("its statistics are float32")
    (dx, *found), (dx_expected, *expected) = gradients(library, norm, dtype, dy_dtype=dy_dtype)
    check([dx], [dx_expected], dtype)
    assert all(array.host.dtype == dy_dtype for array in found)
    # The forward pass computed the statistics in float32.
    close = {"rtol": 3e-6, "atol": 3e-6 * max((np.abs(e).max() for e in expected), default=0)}
    if dy_dtype == "float16":
        close["rtol"] = 2**-11
    for array, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.float64(array.host), np.float64(wanted), **close)


def test_a_gradient_beyond_half_precision(library):
    """In float16 it would be infinite, and its means NaN."""
    x, dy = draw((4, 64), "float16"), 1e5 * draw((4, 64), "float32", 9)
    gamma = draw(64, "float32", 1)
    of_x, of_gamma = library.take(x), library.take(gamma)
    _, mean, rstd = numnorm.layer_norm_forward(of_x, of_gamma)
    found = numnorm.layer_norm_backward(library.take(dy), of_x, mean, rstd, of_gamma)
    check(found[1:], reference.layer_norm_backward(dy, x, gamma)[1:], "float32")
    without = numnorm.layer_norm_backward(library.take(1e-3 * dy), of_x, mean, rstd)
    check(without, reference.layer_norm_backward(1e-3 * dy, x), "float16")


def test_a_gradient_of_another_dtype_in_place(library):
    if library.called == "jax":
        pytest.skip("JAX has no arrays to write")
    x, dy = draw((4, 9, 2), "float16"), draw((4, 9, 2), "float32", 9)
    of_x, of_dy = library.take(x), library.take(dy)
    _, mean, rstd = numnorm.layer_norm_forward(of_x, axis=1)
    arguments = of_dy, of_x, mean, rstd
    expected = reference.layer_norm_backward(dy, x, axis=1)[0]
    with pytest.raises(TypeError, match="out must have dtype float16"):
        numnorm.layer_norm_backward(*arguments, axis=1, out=of_dy)
    dx = numnorm.layer_norm_backward(*arguments, axis=1, out=of_x).dx
    assert dx is of_x
    check([dx], [expected], "float16")
