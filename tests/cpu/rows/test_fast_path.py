"""What compiled code finds out about arrays by itself never changes a result or an error.

A second call of a kind is a direct one where all arrays are usual: contiguous, aligned, writable,
of the right dtype and shape. Whatever is not must come to the same as what is.
"""

import importlib

import kernels
import numba
import numpy as np
import pytest

import numnorm

ROWS, WIDTH = 5, 24
RNG = np.random.default_rng(20)


def usual(dtype):
    """dy, x, gamma and beta, each with memory of its own."""
    shapes = (ROWS, WIDTH), (ROWS, WIDTH), (WIDTH,), (WIDTH,)
    return [RNG.standard_normal(shape).astype(dtype) for shape in shapes]


def read_only(array):
    copy = array.copy()
    copy.flags.writeable = False
    return copy


def strided(array):
    return np.repeat(array, 2, axis=-1)[..., ::2]


def unaligned(array):
    memory = np.empty(array.nbytes + 1, np.uint8)
    moved = memory[1:].view(array.dtype).reshape(array.shape)
    moved[...] = array
    return moved


def other_bytes(array):
    return array.astype(array.dtype.newbyteorder())


class Subclass(np.ndarray):
    """An array of the caller's own kind."""


FORMS = {
    "read-only": read_only,
    "strided": strided,
    "reversed": lambda array: array[..., ::-1].copy()[..., ::-1],
    "Fortran": np.asfortranarray,
    "unaligned": unaligned,
    "other byte order": other_bytes,
    "subclass": lambda array: array.copy().view(Subclass),
    "list": np.ndarray.tolist,
    "wider": lambda array: array.astype(np.float64),
}
# Where x is of another dtype, so is the result.
OF_X = [name for name in FORMS if name not in ("list", "wider")]


def results_of(norm, dy, x, gamma, beta):
    """All results of a norm of rows, forward and backward."""
    if norm == "layer":
        forward = numnorm.layer_norm_forward(x, gamma, beta)
        return numnorm.layer_norm(x, gamma, beta), *forward, *backward(dy, x, forward, gamma)
    if norm == "rms":
        y, rstd = numnorm.rms_norm_forward(x, gamma)
        return numnorm.rms_norm(x, gamma), y, rstd, *numnorm.rms_norm_backward(dy, x, rstd, gamma)
    if norm == "ada":
        forward = numnorm.ada_norm_forward(x)
        return numnorm.ada_norm(x), *forward, numnorm.ada_norm_backward(dy, x, *forward[1:])
    forward = numnorm.group_norm_forward(x, gamma, beta, groups=4)
    gradients = numnorm.group_norm_backward(dy, x, *forward[1:], gamma, groups=4)
    return numnorm.group_norm(x, gamma, beta, groups=4), *forward, *gradients


def backward(dy, x, forward, gamma):
    return numnorm.layer_norm_backward(dy, x, forward.mean, forward.rstd, gamma)


def assert_same_bytes(actual, expected):
    for one, other in zip(actual, expected, strict=True):
        assert one.shape == other.shape
        assert np.array_equal(one, other)


NORMS = {name: f"{name}_norm" for name in ("layer", "rms", "ada", "group")}


@pytest.mark.parametrize("norm, dtype", kernels.pairs(NORMS, [np.float32, np.float64], "both"))
def test_results_are_those_of_any_other_way(norm, dtype):
    arrays = usual(dtype)
    # Nothing is known of read-only arrays, so that they never go the direct way.
    expected = results_of(norm, *map(read_only, arrays))
    for _ in range(3):
        assert_same_bytes(results_of(norm, *arrays), expected)


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="without compilation there is no such way")
@pytest.mark.parametrize("norm", kernels.names(NORMS, np.float32, "both"))
def test_usual_arrays_go_the_direct_way(norm, monkeypatch):
    arrays = usual(np.float32)
    results_of(norm, *arrays)
    # Every other way begins with it.
    monkeypatch.delattr(
        importlib.import_module("numnorm.backends.cpu.rows.rows"), "as_kernel_array"
    )
    results_of(norm, *arrays)
    with pytest.raises(NameError):
        results_of(norm, *map(read_only, arrays))


@pytest.mark.parametrize("form", ["read-only", "strided", "Fortran", "list", "overlapping"])
def test_masks_that_lie_otherwise(form):
    x, gamma = RNG.standard_normal((ROWS, WIDTH)), RNG.standard_normal(WIDTH)
    where = RNG.random((ROWS, WIDTH)) < 0.7
    holed = np.where(where, x, np.nan)
    expected = numnorm.layer_norm_forward(x, gamma, gamma, where=read_only(where), fill=3.0)
    for _ in range(2):
        found = numnorm.layer_norm_forward(x, gamma, gamma, where=where, fill=3.0)
        assert_same_bytes(found, expected)
        found = numnorm.layer_norm_forward(holed, gamma, gamma, nan_policy="omit", fill=3.0)
        assert_same_bytes(found, expected)
    out = None
    if form == "overlapping":  # the mask lies in what is written
        out = np.empty_like(x)
        given = out.view(bool).reshape(-1)[-where.size :].reshape(where.shape)
        given[...] = where
    else:
        given = FORMS[form](where)
    found = numnorm.layer_norm_forward(x, gamma, gamma, where=given, fill=3.0, out=out)
    assert_same_bytes(found, expected)


@pytest.mark.parametrize("shape", [(ROWS, WIDTH), (WIDTH,)])
@pytest.mark.parametrize("form", ["read-only", "strided", "Fortran", "list", "overlapping"])
def test_weights_that_lie_otherwise(form, shape):
    x, gamma = RNG.standard_normal((ROWS, WIDTH)), RNG.standard_normal(WIDTH)
    weights = RNG.random(shape) + 0.1
    expected = numnorm.layer_norm_forward(x, gamma, gamma, weights=read_only(weights))
    for _ in range(3):
        found = numnorm.layer_norm_forward(x, gamma, gamma, weights=weights)
        assert_same_bytes(found, expected)
    out = None
    if form == "overlapping":  # the weights lie in what is written
        out = np.empty_like(x)
        given = out.reshape(-1)[-weights.size :].reshape(shape)
        given[...] = weights
    else:
        given = FORMS[form](weights)
    found = numnorm.layer_norm_forward(x, gamma, gamma, weights=given, out=out)
    assert_same_bytes(found, expected)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("which", ["dy", "x", "gamma", "beta"])
@pytest.mark.parametrize("norm", ["layer", "rms", "group"])
def test_arrays_that_lie_otherwise(norm, which, form):
    if which == "x" and form not in OF_X:
        pytest.skip("the result is of another dtype")
    given = dict(zip(["dy", "x", "gamma", "beta"], usual(np.float32), strict=True))
    expected = results_of(norm, **given)
    given[which] = FORMS[form](given[which])
    for actual, wanted in zip(results_of(norm, **given), expected, strict=True):
        # The gradients of a parameter have its dtype: the wider one is rounded less. A wider dy
        # (a list is float64) is computed with in its own dtype.
        exact = actual.dtype == wanted.dtype and not (which == "dy" and form in ("list", "wider"))
        assert (
            np.array_equal(actual.astype(wanted.dtype), wanted)
            if exact
            else np.allclose(actual, wanted, rtol=1e-6, atol=1e-6)
        )


@pytest.mark.parametrize("form", ["read-only", "strided", "unaligned", "other byte order", "list"])
@pytest.mark.parametrize("which", ["mean", "rstd"])
def test_statistics_that_lie_otherwise(which, form):
    dy, x, gamma, beta = usual(np.float32)
    saved = numnorm.layer_norm_forward(x, gamma, beta)
    expected = backward(dy, x, saved, gamma)
    saved = saved._replace(**{which: FORMS[form](getattr(saved, which))})
    assert_same_bytes(backward(dy, x, saved, gamma), expected)


EITHER = kernels.dtypes("layer_norm", np.float32, np.float64, parameters="both")


@pytest.mark.parametrize("dtype", EITHER)
def test_batches_of_any_shape(dtype):
    dy, x, gamma, beta = usual(dtype)
    expected = results_of("layer", dy, x, gamma, beta)
    for shape in ((1, ROWS, WIDTH), (ROWS, 1, WIDTH), (1, 1, ROWS, 1, WIDTH)):
        for _ in range(2):
            y, _, mean, rstd, dx, *_ = results_of(
                "layer", dy.reshape(shape), x.reshape(shape), gamma, beta
            )
            assert y.shape == dx.shape == shape
            assert mean.shape == rstd.shape == shape[:-1]
            found = y.reshape(x.shape), mean.reshape(-1), dx.reshape(x.shape)
            assert_same_bytes(found, [expected[k] for k in (0, 2, 4)])


@pytest.mark.parametrize("size", [ROWS, 1500])  # one call, and threads where there are some
@pytest.mark.parametrize("dtype", EITHER)
@pytest.mark.usefixtures("parallel_at_small_sizes")
def test_out_where_it_can_be_written_at_once(size, dtype):
    x = RNG.standard_normal((size, WIDTH)).astype(dtype)
    gamma = RNG.standard_normal(WIDTH).astype(dtype)
    expected = numnorm.layer_norm(x, gamma, gamma)
    for _ in range(2):
        out = np.full_like(x, np.nan)
        assert numnorm.layer_norm(x, gamma, gamma, out=out) is out
        assert np.array_equal(out, expected)
    assert numnorm.layer_norm(x, gamma, gamma, out=x) is x
    assert np.array_equal(x, expected)


def memory_of(*offsets, dtype=np.float64):
    """Equal matrices that begin at these elements of one piece of memory."""
    memory = np.zeros(4 * ROWS * WIDTH, dtype)
    size = ROWS * WIDTH
    return [memory[offset : offset + size].reshape(ROWS, WIDTH) for offset in offsets]


@pytest.mark.parametrize("shift", [1, WIDTH, ROWS * WIDTH - 1, -1, -WIDTH])
@pytest.mark.parametrize("dtype", EITHER)
def test_out_that_overlaps_x(shift, dtype):
    x, out = memory_of(ROWS * WIDTH, ROWS * WIDTH + shift, dtype=dtype)
    gamma = np.ones(WIDTH, dtype)
    for _ in range(2):
        x[...] = values = RNG.standard_normal(x.shape).astype(dtype)
        assert numnorm.layer_norm(x, gamma, gamma, out=out) is out
        assert np.array_equal(out, numnorm.layer_norm(values, gamma, gamma))


@kernels.full
@pytest.mark.parametrize("which", ["gamma", "beta", "mean", "rstd"])
def test_out_that_overlaps_what_there_is_one_of(which):
    dy, x, gamma, beta = usual(np.float64)
    saved = numnorm.layer_norm_forward(x, gamma, beta)
    for _ in range(2):
        given = {"gamma": gamma, "beta": beta, "mean": saved.mean, "rstd": saved.rstd}
        (out,) = memory_of(0)
        inside = out.reshape(-1)[7 : 7 + given[which].size]
        inside[:] = given[which]
        given[which] = inside
        numnorm.layer_norm(x, given["gamma"], given["beta"], out=out)
        if which in ("gamma", "beta"):
            assert np.array_equal(out, saved.y)
        (out,) = memory_of(0)
        inside = out.reshape(-1)[7 : 7 + inside.size]
        if which != "beta":
            inside[:] = {"gamma": gamma, "mean": saved.mean, "rstd": saved.rstd}[which]
            given[which] = inside
            dx = numnorm.layer_norm_backward(
                dy, x, given["mean"], given["rstd"], given["gamma"], out=out
            ).dx
            assert np.array_equal(dx, backward(dy, x, saved, gamma).dx)


WRONG = {
    "gamma": (lambda a: a[:-1].copy(), r"gamma must have shape \(24,\)"),
    "beta": (lambda a: a[:-1].copy(), r"beta must have shape \(24,\)"),
    "dy": (lambda a: a[:-1].copy(), r"dy must have shape \(5, 24\)"),
    "mean": (lambda a: a[:, None].copy(), r"mean must have shape \(5,\)"),
    "rstd": (lambda a: a[:-1].copy(), r"rstd must have shape \(5,\)"),
    "out": (lambda a: a[:, :-1].copy(), r"out must have shape \(5, 24\)"),
}


@pytest.mark.parametrize("which", WRONG)
def test_wrong_shapes_are_found_after_right_ones(which):
    dy, x, gamma, beta = usual(np.float32)
    saved = numnorm.layer_norm_forward(x, gamma, beta)
    backward(dy, x, saved, gamma)
    given = {"dy": dy, "gamma": gamma, "beta": beta, "mean": saved.mean, "rstd": saved.rstd}
    given["out"] = x.copy()
    change, message = WRONG[which]
    given[which] = change(given[which])
    with pytest.raises(ValueError, match=message):
        numnorm.layer_norm(x, given["gamma"], given["beta"], out=given["out"])
        numnorm.layer_norm_backward(
            given["dy"], x, given["mean"], given["rstd"], given["gamma"], out=given["out"]
        )


def test_nothing_is_written_where_an_argument_is_wrong():
    _, x, gamma, beta = usual(np.float32)
    numnorm.layer_norm(x, gamma, beta)
    out = np.full_like(x, 7)
    with pytest.raises(ValueError, match="beta"):
        numnorm.layer_norm(x, gamma, beta[:-1].copy(), out=out)
    assert (out == 7).all()


@kernels.full
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numbers_in_place_of_arrays_of_shape_nothing(dtype):
    v = np.array([3.0, 4.0], dtype)
    for g in (2.0, np.float64(2), np.array(2.0, dtype), 2):
        for _ in range(2):
            assert np.allclose(numnorm.weight_norm(v, g), [1.2, 1.6], rtol=1e-6)
    _, norm = numnorm.weight_norm_forward(v)
    y, mean, rstd = numnorm.layer_norm_forward(v)
    expected = numnorm.layer_norm_backward(y, v, mean, rstd).dx
    of_ada = numnorm.ada_norm_backward(y, v, mean, rstd)
    for _ in range(2):
        dv, dg = numnorm.weight_norm_backward(v, v, norm, 2.0)
        assert np.allclose(dv, 0, atol=1e-6)
        assert np.allclose(dg, 5)
        assert_same_bytes([numnorm.layer_norm_backward(y, v, float(mean), rstd).dx], [expected])
        assert_same_bytes([numnorm.layer_norm_backward(y, v, mean, float(rstd)).dx], [expected])
        assert_same_bytes([numnorm.ada_norm_backward(y, v, float(mean), rstd)], [of_ada])
