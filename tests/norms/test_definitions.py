"""Forward and backward of every norm against its definition, at any size.

The bounds are those of a computation that rounds a few times: see `Bounds`. How the accuracy
holds out at large offsets and scales is the business of test_accuracy.py.
"""

import functools
import itertools
import math

import kernels
import numpy as np
import pytest
import reference
from norm_cases import NORMS
from norm_checks import (
    BFLOAT16,
    DTYPES,
    FORWARD_ROUNDINGS,
    PARAMETERS,
    SAVED,
    UNCOMPILED,
    WORKING,
    Bounds,
    Norm,
    as_tuple,
    assert_close,
    check,
    draw,
    draw_all,
    unchanged,
)

import numnorm


def name_of(dtype):
    return np.dtype(dtype).name


def combinations():
    """Every norm with and without its parameters; with one of two in float32 alone."""
    for name, norm in NORMS.items():
        for dtype in DTYPES:
            for which in PARAMETERS[norm.parameters][: None if dtype == np.float32 else 2]:
                id_ = f"{name}-{name_of(dtype)}-{which}"
                marks = kernels.marks(norm.compiled_as, dtype, which)
                yield pytest.param(name, dtype, which, marks=marks, id=id_)


@pytest.mark.parametrize("name, dtype, which", list(combinations()))
def test_every_norm(name, dtype, which):
    check(NORMS[name], *draw_all(NORMS[name], dtype, which))


# The interpreter computes with NumPy's scalars, which warn of every overflow.
no_warnings = pytest.mark.skipif(UNCOMPILED, reason="NumPy's scalars warn of an overflow")


@no_warnings
@kernels.full
@pytest.mark.parametrize("dtype, value", [(np.float64, 1e-310), (BFLOAT16, 1e-40)])
def test_the_length_of_a_vector_whose_reciprocal_is_out_of_range(dtype, value):
    x = np.full((1, 4), value, dtype)
    y, norm = numnorm.weight_norm_forward(x)
    np.testing.assert_array_equal(y, np.full((1, 4), 0.5, dtype))
    # These numbers are subnormal: their smallest difference is what a rounding is at most.
    smallest = np.finfo(norm.dtype).smallest_subnormal
    assert abs(float(norm[0]) - 2 * float(x[0, 0])) <= 4 * float(smallest)


@no_warnings
@pytest.mark.parametrize("name", kernels.names(["layer_norm", "rms_norm", "ada_norm"], np.float64))
def test_a_reciprocal_that_is_out_of_range_is_infinite_without_a_warning(name):
    x = np.array([[1e-310, 0, 0, 1e-310]])
    y, *_, rstd = getattr(numnorm, f"{name}_forward")(x, eps=0)
    # The square of x vanishes, but what it is normalized to does not.
    assert abs(float(y[0, 0])) > 0.5
    assert rstd[0] == np.inf


@no_warnings
@kernels.full
@pytest.mark.parametrize("size", [1e37, 1e-39])
def test_the_gradient_of_a_length_beyond_float32(size):
    """bfloat16 has the range of float32, and a length may have more."""
    x = np.full((1, 2000), size, BFLOAT16)
    _, norm = numnorm.weight_norm_forward(x)
    assert float(norm[0]) == pytest.approx(float(x[0, 0]) * math.sqrt(2000), rel=1e-6)
    dg = numnorm.weight_norm_backward(np.ones_like(x), x, norm, np.ones(1)).dg
    assert dg[0] == pytest.approx(math.sqrt(2000), rel=1e-5)


@no_warnings
@pytest.mark.parametrize("name", kernels.names(["rms_norm", "weight_norm"], np.float32))
def test_the_gradient_of_a_subnormal_row(name):
    """Neither its reciprocal nor its squares are float32 numbers."""
    x = np.array([[1.0, 2.0, 3.0, 4.0]], np.float32) * np.float32(1e-42)
    options = {"eps": 0} if name == "rms_norm" else {}
    _, saved = getattr(numnorm, f"{name}_forward")(x, **options)
    dy = np.array([[1.0, -1.0, 0.5, 2.0]], np.float32)
    dgamma = getattr(numnorm, f"{name}_backward")(dy, x, saved)[1]
    expected = getattr(reference, f"{name}_backward")(dy, x, None, **options)[1]
    np.testing.assert_allclose(dgamma, expected.astype(np.float64), rtol=1e-6)


# Nothing to compute

EMPTY = {
    "layer": Norm("layer_norm", (0, 5)),
    "layer-inside": Norm("layer_norm", (4, 0, 5)),
    "layer-axes-apart": Norm("layer_norm", (3, 0, 5), {"axis": (0, 2)}),
    "rms": Norm("rms_norm", (0, 5)),
    "ada": Norm("ada_norm", (0, 5)),
    "batch": Norm("batch_norm", (0, 3)),
    "batch-images": Norm("batch_norm", (0, 3, 4)),
    "batch-no-pixels": Norm("batch_norm", (2, 3, 0)),
    "batch-no-channels": Norm("batch_norm", (4, 0, 3)),
    "group": Norm("group_norm", (0, 6, 4), {"groups": 2}),
    "group-flat": Norm("group_norm", (0, 6), {"groups": 2}),
    "group-no-pixels": Norm("group_norm", (2, 6, 0), {"groups": 2}),
    "group-no-channels": Norm("group_norm", (2, 0, 4), {"groups": 1}),
    "instance": Norm("instance_norm", (0, 3, 4)),
    "instance-no-pixels": Norm("instance_norm", (2, 3, 0)),
    "instance-no-channels": Norm("instance_norm", (2, 0, 4)),
    "weight": Norm("weight_norm", (0, 5)),
    "weight-inside": Norm("weight_norm", (4, 0, 5)),
    "layer-width-zero": Norm("layer_norm", (4, 0)),
    "layer-no-columns": Norm("layer_norm", (4, 3, 0), {"axis": (1, 2)}),
    "rms-width-zero": Norm("rms_norm", (4, 0)),
    "ada-width-zero": Norm("ada_norm", (4, 0)),
    "weight-width-zero": Norm("weight_norm", (4, 0)),
    "layer-empty-vector": Norm("layer_norm", (0,)),
    "weight-empty-vector": Norm("weight_norm", (0,)),
}


def statistics_shape(norm):
    """The shape of mean and rstd as the documentation has it."""
    if norm.name == "batch_norm":
        return norm.parameter_shape
    if norm.by_axis:
        kept = reference.other_axes(len(norm.shape), norm.shared_axes)
        return tuple(norm.shape[axis] for axis in kept)
    return norm.shape[0], norm.options.get("groups", norm.shape[1])


def empty_cases():
    """Of rows nothing is compiled, and of channels what scales them."""
    for name, dtype, which in itertools.product(EMPTY, (BFLOAT16, np.float64), ("none", "both")):
        is_batch = EMPTY[name].name == "batch_norm"
        marks = kernels.marks("batch_norm", dtype, which) if is_batch else ()
        yield pytest.param(name, dtype, which, marks=marks, id=f"{name}-{name_of(dtype)}-{which}")


@pytest.mark.parametrize("name, dtype, which", list(empty_cases()))
def test_nothing_in_nothing_out(name, dtype, which):
    norm = EMPTY[name]
    x, dy, *parameters = draw_all(norm, dtype, which)
    y, *saved = norm.forward(x, *parameters)
    dx, *of_parameters = as_tuple(norm.backward(dy, x, saved, *parameters[:1]))
    for array in (y, dx):
        assert array.shape == norm.shape and array.dtype == dtype
    for array in saved:
        assert type(array) is np.ndarray and array.shape == statistics_shape(norm)
    for array in of_parameters:
        # A sum of nothing.
        assert array.dtype == dtype
        np.testing.assert_array_equal(array, np.zeros(norm.parameter_shape))


@pytest.mark.parametrize("name", [name for name in EMPTY if name.endswith("width-zero")])
def test_the_statistics_of_an_empty_row(name):
    # The mean of nothing is not a number, the length of nothing is zero, as NumPy has it.
    expected = 0 if name.startswith("weight") else np.nan
    for array in EMPTY[name].forward(np.empty((4, 0)))[1:]:
        np.testing.assert_array_equal(array, np.full(4, expected))


# Sizes

# A hundred thousand elements take a second when every step is interpreted.
compiled = pytest.mark.skipif(UNCOMPILED, reason="slow when uncompiled")

LARGE = {
    "layer": Norm("layer_norm", (129, 515)),
    "layer-wide": Norm("layer_norm", (3, 20011)),
    "layer-narrow": Norm("layer_norm", (20011, 3)),
    "layer-axes-apart": Norm("layer_norm", (33, 41, 31), {"axis": (0, 2)}),
    "rms": Norm("rms_norm", (129, 515)),
    "ada": Norm("ada_norm", (129, 515)),
    "batch": Norm("batch_norm", (1031, 65)),
    "batch-wide": Norm("batch_norm", (65, 1031)),
    "batch-images": Norm("batch_norm", (13, 17, 15, 23)),
    "batch-last-axis": Norm("batch_norm", (13, 15, 23, 17), {"channel_axis": -1}),
    "group": Norm("group_norm", (13, 18, 15, 23), {"groups": 6}),
    "group-flat": Norm("group_norm", (331, 150), {"groups": 5}),
    "group-last-axis": Norm("group_norm", (13, 15, 23, 18), {"groups": 6, "channel_axis": -1}),
    "instance": Norm("instance_norm", (13, 17, 15, 23)),
    "weight": Norm("weight_norm", (129, 515)),
    "weight-first-axis": Norm("weight_norm", (515, 129), {"axis": 0}),
}


def large(names, dtypes, parameters=("none",)):
    return kernels.each({name: LARGE[name].name for name in names}, dtypes, parameters)


@compiled
@large(LARGE, [np.float32])
@pytest.mark.usefixtures("parallel_at_small_sizes")
def test_sizes_for_threads(name, dtype, which):
    norm = LARGE[name]
    assert math.prod(norm.shape) > 1 << 15
    check(norm, *draw_all(norm, dtype, which))


@compiled
@large(["layer", "batch-images", "group", "weight"], [np.float32], ["both"])
@pytest.mark.usefixtures("parallel_at_small_sizes")
def test_large_with_parameters(name, dtype, which):
    check(LARGE[name], *draw_all(LARGE[name], dtype, which))


@compiled
@large(["layer", "batch"], [BFLOAT16, np.float64])
@pytest.mark.usefixtures("parallel_at_small_sizes")
def test_large_in_other_precisions(name, dtype, which):
    check(LARGE[name], *draw_all(LARGE[name], dtype, which))


WIDTHS = [1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 63, 65, 127, 129, 1023]


ANY_WIDTH = {name: f"{name}_norm" for name in ("layer", "rms", "ada", "weight", "batch")}


@kernels.each(ANY_WIDTH, [np.float16, np.float32])
@pytest.mark.parametrize("width", WIDTHS)
def test_widths_around_those_of_vectors(name, dtype, which, width):
    norm = Norm(f"{name}_norm", (width, 3) if name == "batch" else (3, width))
    check(norm, *draw_all(norm, dtype, which))


# Batch norm with the statistics of other batches

BATCH = ["batch", "batch-images", "batch-last-axis", "batch-first-axis"]
each_batch = functools.partial(kernels.each, dict.fromkeys(BATCH, "batch_norm"), DTYPES)


def draw_inference(name, dtype, which):
    """x, dy, the parameters, and statistics by the names of the arguments of `batch_norm`."""
    norm = NORMS[name]
    x, dy, *parameters = draw_all(norm, dtype, which)
    running = draw(norm.parameter_shape, np.float64, 4), draw(norm.parameter_shape, np.float64, 5)
    statistics = {"running_mean": running[0], "running_var": 0.5 + running[1] ** 2}
    return x, dy, parameters, statistics | norm.options


@each_batch(["none", "both"])
def test_batch_inference(name, dtype, which):
    norm = NORMS[name]
    x, _, parameters, options = draw_inference(name, dtype, which)
    with unchanged(x, *parameters, options["running_mean"], options["running_var"]):
        forward = numnorm.batch_norm_forward(x, *parameters, training=False, **options)
    expected = reference.batch_norm_inference(x, gamma=parameters[0], beta=parameters[1], **options)
    sizes = [np.abs(norm.over_x(*parameter)) for parameter in zip(parameters, (1, 0), strict=True)]
    xhat = np.abs(reference.batch_norm_inference(x, **options)[0])
    roundings = FORWARD_ROUNDINGS * WORKING[dtype]
    assert_close(forward.y, expected[0], roundings * (xhat * sizes[0] + sizes[1]).max(), dtype)
    for mine, theirs in zip(forward[1:], expected[1:], strict=True):
        # The mean is copied; rstd is a root and a quotient.
        assert_close(mine, theirs, 4 * SAVED[dtype] * np.abs(theirs), mine.dtype)


@each_batch(["none", "gamma"])
def test_batch_inference_backward(name, dtype, which):
    norm = NORMS[name]
    x, dy, (gamma, _), options = draw_inference(name, dtype, which)
    saved = numnorm.batch_norm_forward(x, training=False, **options)[1:]
    with unchanged(dy, x, *saved, gamma):
        actual = norm.backward(dy, x, saved, gamma, training=False)
    expected = reference.batch_norm_inference_backward(dy, x, gamma=gamma, **options)
    # dx is a product of three; the sums are as in training.
    assert_close(
        actual.dx, expected[0], FORWARD_ROUNDINGS * WORKING[dtype] * np.abs(expected[0]), dtype
    )
    bounds = Bounds(norm, x, gamma, dy=dy)
    bounds.xhat = reference.batch_norm_inference(x, **options)[0]
    for mine, theirs, bound in zip(actual[1:], expected[1:], bounds.parameters, strict=True):
        assert_close(mine, theirs, bound, dtype)


def test_axis_is_asked_for_its_index_in_every_call():
    class Movable:
        value = 0

        def __index__(self):
            return self.value

    x, axis = np.random.default_rng(0).normal(size=(4, 4)), Movable()
    np.testing.assert_array_equal(numnorm.layer_norm(x, axis=axis), numnorm.layer_norm(x, axis=0))
    axis.value = 1
    np.testing.assert_array_equal(numnorm.layer_norm(x, axis=axis), numnorm.layer_norm(x, axis=1))
