"""Rows of which elements are left out: the tiles, pairs and single rows of the kernels."""

import os

import numpy as np
import pytest
from weighted_reference import normalized, rows_of

import numnorm

UNCOMPILED = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")
# Narrow rows in tiles or registers, of one vector and with a rest; pairs; rows of several sums.
WIDTHS = [3, 8, 16, 21, 64, 300, *([] if UNCOMPILED else [700, 2048, 5001])]
TOLERANCE = {"float32": 2e-6, "float64": 2e-14}


def drawn(shape, dtype, offset, seed=0):
    """Numbers and a mask, with rows that are full, constant, or keep one element or none."""
    rng = np.random.default_rng(seed)
    x = (rng.normal(size=shape) + offset).astype(dtype)
    keep = rng.random(shape) > 0.1
    x[5] = x[5, 0]
    keep[1], keep[2], keep[3, :-1], keep[3, -1] = False, True, False, True
    x[6, -1] = 1000.0 + offset  # far from the first elements
    return x, keep


def quiet(function, *arguments, **options):
    """Call a function whose kernels, if they are not compiled, warn of what they leave out."""
    with np.errstate(all="ignore"):
        return function(*arguments, **options)


def definition(x, keep, eps=1e-5, **options):
    rows = rows_of("layer_norm", x.shape)
    with np.errstate(all="ignore"):
        return normalized(x, keep, np.ones(x.shape), rows, eps=np.longdouble(eps), **options)


@pytest.mark.parametrize("under", [np.nan, np.inf, 1e30, -1e30])
@pytest.mark.parametrize("offset", [0.0, 1e7])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("width", WIDTHS)
def test_what_is_left_out_does_not_matter(width, dtype, offset, under):
    x, keep = drawn((37, width), dtype, offset)
    xhat, mean, rstd = definition(x, keep)
    hidden = np.where(keep, x, x.dtype.type(under))
    options = [{"where": keep}] + [{"nan_policy": "omit"}] * bool(np.isnan(under))
    for leave_out in options:
        y, got_mean, got_rstd = quiet(numnorm.layer_norm_forward, hidden, **leave_out, fill=7.0)
        # The largest result is the root of the width.
        tolerance = TOLERANCE[dtype] * np.sqrt(width)
        assert np.abs(y - np.where(keep, xhat, 7.0)).max() <= tolerance
        np.testing.assert_allclose(got_rstd, np.float64(rstd), rtol=TOLERANCE[dtype])
        np.testing.assert_allclose(got_mean, np.float64(mean), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("scale", [1e-25, 1e25])
@pytest.mark.parametrize("width", [16, 300])
def test_squares_out_of_range(width, scale):
    x, keep = drawn((20, width), "float32", 0.0)
    x *= np.float32(scale)
    xhat, _, _ = definition(x, keep, eps=0.0)
    hidden = np.where(keep, x, np.float32(1e38))
    y = quiet(numnorm.layer_norm, hidden, where=keep, eps=0)
    assert np.abs(y - np.where(keep, xhat, 0)).max() <= 4e-6 * np.sqrt(width)
    y = quiet(numnorm.rms_norm, hidden, where=keep, eps=0)
    xhat, _, _ = definition(x, keep, eps=0.0, centred=False)
    assert np.abs(y - np.where(keep, xhat, 0)).max() <= 4e-6 * np.sqrt(width)


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm", "ada_norm", "weight_norm"])
@pytest.mark.parametrize("width", [5, 16, 300])
def test_a_mask_that_keeps_all_changes_rounding_only(norm, width):
    rng = np.random.default_rng(1)
    x, dy = rng.normal(size=(2, 21, width))
    forward, backward = getattr(numnorm, f"{norm}_forward"), getattr(numnorm, f"{norm}_backward")
    plain, masked = forward(x), forward(x, where=np.ones(x.shape, bool))
    for one, other in zip(plain, masked, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-13)
    expected, got = backward(dy, x, *plain[1:]), backward(dy, x, *masked[1:], where=True)
    pairs = zip(expected, got, strict=True) if isinstance(got, tuple) else [(expected, got)]
    for one, other in pairs:
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("shape", [(4, 6), (6,), (4, 1), ()])
@pytest.mark.parametrize("norm", ["layer_norm", "batch_norm", "rms_norm"])
def test_masks_broadcast(norm, shape):
    rng = np.random.default_rng(2)
    x, keep = rng.normal(size=(4, 6)), rng.random(shape) > 0.3
    function, full = getattr(numnorm, norm), np.broadcast_to(keep, x.shape)
    np.testing.assert_array_equal(function(x, where=keep), function(x, where=full.copy()))
    np.testing.assert_array_equal(function(x, where=keep), function(x, where=full))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_arrays_that_are_not_contiguous(dtype):
    x, keep = drawn((40, 90), dtype, 0.0)
    expected = numnorm.layer_norm(x[::2, ::3].copy(), where=keep[::2, ::3].copy())
    np.testing.assert_array_equal(numnorm.layer_norm(x[::2, ::3], where=keep[::2, ::3]), expected)
    by_column = np.asfortranarray(x[::2, ::3])
    np.testing.assert_array_equal(numnorm.layer_norm(by_column, where=keep[::2, ::3]), expected)
    frozen = keep[::2, ::3].copy()
    frozen.flags.writeable = False
    inside = x[::2, ::3].copy()
    assert numnorm.layer_norm(inside, where=frozen, out=inside) is inside
    np.testing.assert_array_equal(inside, expected)


@pytest.mark.parametrize("width", [7, 64, 300, *([] if UNCOMPILED else [2500])])
def test_alignment_changes_no_byte(width):
    x, keep = drawn((21, width), "float32", 3.0)
    expected = numnorm.layer_norm(x, where=keep)
    for shift in (1, 5, 12):
        memory, mask = np.empty(x.size + 16, np.float32), np.empty(x.size + 16, bool)
        moved = memory[shift : shift + x.size].reshape(x.shape)
        moved_keep = mask[shift : shift + x.size].reshape(x.shape)
        moved[...], moved_keep[...] = x, keep
        np.testing.assert_array_equal(numnorm.layer_norm(moved, where=moved_keep), expected)


def test_a_nan_that_is_kept_makes_its_row_nan():
    x, keep = drawn((20, 16), "float32", 0.0)
    x[9, 3], keep[9, 3] = np.nan, True
    y = numnorm.layer_norm(x, where=keep)
    assert np.isnan(y[9, keep[9]]).all()
    assert not y[9, ~keep[9]].any()
    assert np.isfinite(np.delete(y, 9, 0)).all()


# Gradients


def gradients(x, dy, keep, gamma, eps=1e-5):
    """The gradients by their formulas, and the size of what dx is the difference of."""
    xhat, _, rstd = definition(x, keep, eps)
    rstd, g = rstd.reshape(-1, 1), np.where(keep, np.longdouble(dy) * gamma, 0)
    xhat, number = np.where(keep, xhat, 0), np.maximum(keep.sum(1, keepdims=True), 1)
    sum_g, sum_g_xhat = g.sum(1, keepdims=True), (g * xhat).sum(1, keepdims=True)
    with np.errstate(invalid="ignore"):
        dx = np.where(keep, rstd * (g - sum_g / number - xhat * (sum_g_xhat / number)), 0)
    products = np.where(keep, dy, 0) * xhat
    size = np.nan_to_num(rstd) * np.abs(g).max(1, keepdims=True)
    return (dx, products.sum(0), np.where(keep, np.longdouble(dy), 0).sum(0)), size


@pytest.mark.parametrize("under", [np.nan, np.inf, 1e30])
@pytest.mark.parametrize("offset", [0.0, 1e7])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("width", WIDTHS)
def test_gradients_are_those_of_what_is_kept(width, dtype, offset, under):
    x, keep = drawn((37, width), dtype, offset)
    rng = np.random.default_rng(1)
    dy, gamma = rng.normal(size=x.shape).astype(dtype), rng.random(width).astype(dtype) + 1
    (dx, dgamma, dbeta), size = gradients(x, dy, keep, gamma)
    hidden = np.where(keep, x, x.dtype.type(under))
    options = [{"where": keep}] + [{"nan_policy": "omit"}] * bool(np.isnan(under))
    for leave_out in options:
        _, *saved = quiet(numnorm.layer_norm_forward, hidden, **leave_out)
        hidden_dy = np.where(keep, dy, dy.dtype.type(under))
        got = quiet(numnorm.layer_norm_backward, hidden_dy, hidden, *saved, gamma, **leave_out)
        # The roundings of an xhat, which is at most the root of the width, and of the sums.
        tolerance = TOLERANCE[dtype] * np.sqrt(width)
        assert (np.abs(got.dx - dx) <= tolerance * size).all()
        assert not got.dx[~keep].any()
        assert np.abs(got.dgamma - dgamma).max() <= 10 * tolerance
        assert np.abs(got.dbeta - dbeta).max() <= 10 * TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", ["layer_norm", "rms_norm", "ada_norm"])
@pytest.mark.parametrize("width", WIDTHS)
def test_a_gradient_has_the_bytes_that_it_has_among_others(width, name, dtype):
    x, keep = drawn((70, width), dtype, 3.0)
    dy = np.random.default_rng(1).normal(size=x.shape).astype(dtype)
    forward, backward = getattr(numnorm, f"{name}_forward"), getattr(numnorm, f"{name}_backward")

    def dx_of(rows, shift=0):
        arrays = [shifted(a[rows], shift) for a in (dy, x, keep)]
        _, *saved = quiet(forward, arrays[1], where=arrays[2])
        return np.asarray(first(quiet(backward, *arrays[:2], *saved, where=arrays[2])))

    dx = dx_of(slice(None))
    for rows in (slice(0, 1), slice(4, 11), slice(40, 70), slice(69, 70)):
        np.testing.assert_array_equal(dx_of(rows), dx[rows])
    for shift in (1, 5):
        np.testing.assert_array_equal(dx_of(slice(None), shift), dx)


def first(gradients):
    """Return dx: the first gradient, or the only one."""
    return gradients[0] if isinstance(gradients, tuple) else gradients


def shifted(array, shift):
    """Return a copy that begins `shift` elements later in its memory."""
    memory = np.empty(array.size + shift, array.dtype)
    copy = memory[shift:].reshape(array.shape)
    copy[...] = array
    return copy


@pytest.mark.parametrize("given", ["float16", "float32"])
def test_a_gradient_of_more_digits_than_the_input(given):
    wide = {"float16": "float32", "float32": "float64"}[given]
    x, keep = drawn((37, 24), given, 0.0)
    dy = np.random.default_rng(1).normal(size=x.shape).astype(wide)
    _, *saved = quiet(numnorm.layer_norm_forward, x, where=keep)
    got = quiet(numnorm.layer_norm_backward, dy, x, *saved, where=keep)
    in_wide = quiet(numnorm.layer_norm_backward, dy, x.astype(wide), *saved, where=keep)
    assert got.dx.dtype == x.dtype
    np.testing.assert_array_equal(got.dx, in_wide.dx.astype(given))
    out = np.empty_like(x)
    into = quiet(numnorm.layer_norm_backward, dy, x, *saved, where=keep, out=out)
    assert into.dx is out
    np.testing.assert_array_equal(out, got.dx)
