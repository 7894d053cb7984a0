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


# Gradients of what a mask, NaN or weights leave


COUNTING = {
    "where": ("where",),
    "omit": ("nan_policy",),
    "weights": ("weights",),
    "both": ("where", "weights"),
}
SAVED = {"layer": ("mean", "rstd"), "rms": ("rstd",), "ada": ("mean", "rstd")}


def counted(dtype, counting, rows=ROWS):
    """dy, x and gamma, and the keywords of what counts: usual arrays."""
    rng = np.random.default_rng(21)
    dy, x = (rng.standard_normal((rows, WIDTH)).astype(dtype) for _ in range(2))
    keep = rng.random(x.shape) < 0.7
    values = {"where": keep, "nan_policy": "omit", "weights": rng.random(x.shape) + 0.1}
    if counting == "omit":
        x[~keep] = np.nan
    gamma = rng.standard_normal(WIDTH).astype(dtype)
    return dy, x, gamma, {name: values[name] for name in COUNTING[counting]}


def statistics_of(norm, x, keywords):
    """The saved statistics that the backward pass takes, by name."""
    saved = getattr(numnorm, f"{norm}_norm_forward")(x, **keywords)
    return {name: getattr(saved, name) for name in SAVED[norm]}


def gradients_of(norm, dy, x, saved, gamma, **keywords):
    """The gradients of a norm, as a tuple."""
    given = () if gamma is None or norm == "ada" else (gamma,)
    found = getattr(numnorm, f"{norm}_norm_backward")(dy, x, *saved.values(), *given, **keywords)
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.parametrize("counting", COUNTING)
@pytest.mark.parametrize(
    "norm, dtype, with_gamma",
    [
        ("layer", np.float64, True),
        pytest.param("layer", np.float64, False, marks=kernels.full),
        pytest.param("layer", np.float32, True, marks=kernels.full),
        pytest.param("rms", np.float32, True, marks=kernels.full),
        pytest.param("ada", np.float32, False, marks=kernels.full),
        pytest.param("ada", np.float64, False, marks=kernels.full),
    ],
)
def test_gradients_of_what_counts_are_those_of_any_other_way(norm, dtype, with_gamma, counting):
    dy, x, gamma, keywords = counted(dtype, counting)
    gamma = gamma if with_gamma else None
    saved = statistics_of(norm, x, keywords)
    for options in ({}, {"detach": "scale"} if norm == "layer" else {}):
        expected = gradients_of(norm, read_only(dy), x, saved, gamma, **keywords, **options)
        for _ in range(3):
            found = gradients_of(norm, dy, x, saved, gamma, **keywords, **options)
            assert_same_bytes(found, expected)
            assert [a.dtype for a in found] == [a.dtype for a in expected]
    for out in (dy.copy(), x.copy(), np.empty_like(x)):
        arrays = (out if np.array_equal(out, a, equal_nan=True) else a for a in (dy, x))
        found = gradients_of(norm, *arrays, saved, gamma, **keywords, out=out)
        assert found[0] is out
        assert_same_bytes(found, gradients_of(norm, dy, x, saved, gamma, **keywords))


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="without compilation there is no such way")
@pytest.mark.parametrize("counting", COUNTING)
def test_usual_arrays_with_keywords_go_the_direct_way(counting, monkeypatch):
    dy, x, gamma, keywords = counted(np.float64, counting)
    saved = statistics_of("layer", x, keywords)
    expected = gradients_of("layer", dy, x, saved, gamma, **keywords)
    weighted = importlib.import_module("numnorm.backends.cpu.weighted.rows")
    monkeypatch.delattr(weighted, "as_kernel_array")
    assert_same_bytes(gradients_of("layer", dy, x, saved, gamma, **keywords), expected)
    with pytest.raises(NameError):
        gradients_of("layer", read_only(dy), x, saved, gamma, **keywords)


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="that many rows take too long")
@pytest.mark.parametrize("counting", ["where", "weights"])
def test_sums_of_several_parts(counting):
    dy, x, gamma, keywords = counted(np.float64, counting, rows=15_000)  # five parts
    saved = statistics_of("layer", x, keywords)
    expected = gradients_of("layer", read_only(dy), x, saved, gamma, **keywords)
    for _ in range(2):
        assert_same_bytes(gradients_of("layer", dy, x, saved, gamma, **keywords), expected)


@pytest.mark.parametrize("form", [*OF_X, "overlapping"])
@pytest.mark.parametrize("which", ["dy", "x", "gamma", "mean", "rstd", "where", "weights"])
def test_gradients_of_what_counts_of_arrays_that_lie_otherwise(which, form):
    dy, x, gamma, keywords = counted(np.float64, "both")
    given = {"dy": dy, "x": x, "gamma": gamma, **statistics_of("layer", x, keywords), **keywords}
    expected = numnorm.layer_norm_backward(**given)
    assert_same_bytes(numnorm.layer_norm_backward(**given), expected)
    out = None
    if form == "overlapping":  # the array lies in what is written
        memory = np.empty(2 * x.size)
        out = memory[1 : x.size + 1].reshape(x.shape)
        array = given[which]
        inside = memory[: array.size] if array.dtype == memory.dtype else memory.view(bool)[8:]
        given[which] = inside[: array.size].reshape(array.shape)
        given[which][...] = array
    elif which == "where" and form == "other byte order":
        pytest.skip("a byte has no order")
    else:
        given[which] = FORMS[form](given[which])
    assert_same_bytes(numnorm.layer_norm_backward(**given, out=out), expected)


@pytest.mark.parametrize("dtype", [pytest.param(np.float32, marks=kernels.full), np.float64])
def test_a_gain_of_another_dtype_has_gradients_of_that_dtype(dtype):
    other = np.float64 if dtype == np.float32 else np.float32
    dy, x, gamma, keywords = counted(dtype, "weights")
    saved = statistics_of("layer", x, keywords)
    gradients_of("layer", dy, x, saved, gamma, **keywords)
    gamma = gamma.astype(other)
    expected = gradients_of("layer", read_only(dy), x, saved, gamma, **keywords)
    found = gradients_of("layer", dy, x, saved, gamma, **keywords)
    assert [a.dtype for a in found] == [dtype, other, other]
    assert_same_bytes(found, expected)


WRONG_COUNTED = {name: WRONG[name] for name in ("gamma", "dy", "mean", "rstd", "out")} | {
    "where": (lambda a: a[:-1].copy(), r"where must broadcast against x of shape \(5, 24\)"),
    "weights": (lambda a: -a, r"weights must be finite and at least 0"),
}


@pytest.mark.parametrize("which", WRONG_COUNTED)
def test_wrong_arguments_are_found_after_right_ones_with_keywords(which):
    dy, x, gamma, keywords = counted(np.float64, "both")
    given = {"dy": dy, "x": x, "gamma": gamma, **statistics_of("layer", x, keywords), **keywords}
    given["out"] = np.full_like(x, 7)
    numnorm.layer_norm_backward(**given)
    kept = given["out"].copy()
    change, message = WRONG_COUNTED[which]
    given[which] = change(given[which])
    with pytest.raises(ValueError, match=message):
        numnorm.layer_norm_backward(**given)
    if which != "out":
        assert_same_bytes([given["out"]], [kept])
