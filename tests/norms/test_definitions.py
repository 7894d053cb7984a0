"""Forward and backward of every norm against its definition, for every kind of array.

The bounds are those of a computation that rounds a few times: see `Bounds`. How the accuracy
holds out at large offsets and scales is the business of test_accuracy.py.
"""

import functools
import math

import kernels
import numpy as np
import pytest
import reference
from layouts import LAYOUTS, backwards, read_only, strided, swapped, unaligned
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
    check_backward,
    check_forward,
    draw,
    draw_all,
    draw_parameters,
    unchanged,
)

import numnorm

NORMS = {
    "layer": Norm("layer_norm", (7, 33)),
    "layer-vector": Norm("layer_norm", (33,)),
    "layer-first-axis": Norm("layer_norm", (7, 5), {"axis": 0}),
    "layer-middle-axis": Norm("layer_norm", (2, 7, 5), {"axis": 1}),
    "layer-two-axes": Norm("layer_norm", (3, 4, 5), {"axis": (1, 2)}),
    "layer-axes-apart": Norm("layer_norm", (3, 4, 5), {"axis": (0, 2), "eps": 0.5}),
    "layer-negative-axes": Norm("layer_norm", (3, 4, 5, 2), {"axis": (-1, -3)}),
    "layer-unordered-axes": Norm("layer_norm", (3, 4, 5), {"axis": (2, -2)}),
    "layer-all-axes": Norm("layer_norm", (3, 4, 5), {"axis": (0, 1, 2), "eps": 0}),
    "layer-width-one": Norm("layer_norm", (5, 1)),
    "layer-mean-detached": Norm("layer_norm", (7, 33), {}, {"detach": "mean"}),
    "layer-scale-detached": Norm("layer_norm", (7, 33), {}, {"detach": "scale"}),
    "layer-both-detached": Norm("layer_norm", (3, 4, 5), {"axis": (0, 2)}, {"detach": "both"}),
    "rms": Norm("rms_norm", (7, 33)),
    "rms-vector": Norm("rms_norm", (33,)),
    "rms-axes-apart": Norm("rms_norm", (3, 4, 5), {"axis": (-1, 0), "eps": 0.5}),
    "rms-width-one": Norm("rms_norm", (5, 1), {"eps": 0}),
    "ada": Norm("ada_norm", (7, 33)),
    "ada-authors": Norm("ada_norm", (7, 33), {"eps_in": "std", "ddof": 1, "scale": 0.8}),
    "ada-all-options": Norm(
        "ada_norm",
        (3, 4, 5),
        {"axis": (0, 2), "eps_in": "std", "eps": 0.5, "ddof": 3, "scale": 2.0, "k": -0.3},
        {"detach_factor": False},
    ),
    "ada-flowing-factor": Norm("ada_norm", (7, 33), {"k": 0.4}, {"detach_factor": False}),
    "ada-width-one": Norm("ada_norm", (5, 1)),
    "batch": Norm("batch_norm", (17, 5)),
    "batch-images": Norm("batch_norm", (4, 5, 3, 2)),
    "batch-last-axis": Norm("batch_norm", (4, 3, 2, 5), {"channel_axis": -1, "eps": 0.5}),
    "batch-first-axis": Norm("batch_norm", (5, 17), {"channel_axis": 0}),
    "batch-third-axis": Norm("batch_norm", (3, 2, 5, 4), {"channel_axis": -2, "eps": 0}),
    "batch-of-one": Norm("batch_norm", (1, 5)),
    # Rows of more than 4096 bytes, taken in groups but for the last ones.
    "batch-in-groups": Norm("batch_norm", (35, 1029)),
    "group": Norm("group_norm", (3, 6, 5), {"groups": 3}),
    "group-flat": Norm("group_norm", (3, 6), {"groups": 2}),
    "group-last-axis": Norm("group_norm", (3, 5, 2, 6), {"groups": 2, "channel_axis": -1}),
    "group-third-axis": Norm("group_norm", (3, 5, 6, 2), {"groups": 3, "channel_axis": 2}),
    "group-one": Norm("group_norm", (3, 4, 5), {"groups": 1, "eps": 0}),
    "group-each-channel": Norm("group_norm", (3, 4, 5), {"groups": 4, "eps": 0.5}),
    "group-width-one": Norm("group_norm", (3, 4), {"groups": 4}),
    "instance": Norm("instance_norm", (3, 4, 5)),
    "instance-last-axis": Norm("instance_norm", (3, 5, 2, 4), {"channel_axis": -1, "eps": 0.5}),
    "weight": Norm("weight_norm", (4, 9)),
    "weight-vector": Norm("weight_norm", (9,)),
    "weight-first-axis": Norm("weight_norm", (4, 9), {"axis": 0}),
    "weight-kernels": Norm("weight_norm", (4, 3, 2, 2), {"axis": (1, 2, 3)}),
    "weight-axes-apart": Norm("weight_norm", (4, 3, 5), {"axis": (-1, 0)}),
    "weight-all-axes": Norm("weight_norm", (4, 3), {"axis": (0, 1)}),
    "weight-width-one": Norm("weight_norm", (5, 1)),
}
# One of each way in which an array is turned into rows or columns.
FEW = ["layer", "layer-axes-apart", "rms", "ada", "batch", "batch-images", "group"]
FEW += ["group-last-axis", "instance", "weight", "weight-first-axis"]
WITH_GAMMA = [name for name in FEW if name != "ada"]

few_norms = functools.partial(kernels.each, {name: NORMS[name].name for name in FEW})
norms_with_gamma = functools.partial(kernels.each, {name: NORMS[name].name for name in WITH_GAMMA})


def name_of(dtype):
    return np.dtype(dtype).name


def combinations():
    """Every norm with and without its parameters; with one of two in float32 alone."""
    for name, norm in NORMS.items():
        for dtype in DTYPES:
            for which in PARAMETERS[norm.parameters][: None if dtype == np.float32 else 2]:
                id_ = f"{name}-{name_of(dtype)}-{which}"
                marks = kernels.marks(norm.name, dtype, which)
                yield pytest.param(name, dtype, which, marks=marks, id=id_)


@pytest.mark.parametrize("name, dtype, which", list(combinations()))
def test_every_norm(name, dtype, which):
    check(NORMS[name], *draw_all(NORMS[name], dtype, which))


# How an array lies in memory


@few_norms([np.float16, np.float32])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout(name, dtype, which, layout):
    x, dy, *parameters = draw_all(NORMS[name], dtype, which)
    check(NORMS[name], layout(x), layout(dy), *parameters)


@norms_with_gamma([np.float32], ["both"])
@pytest.mark.parametrize("layout", [strided, backwards, np.asfortranarray, read_only, unaligned])
def test_parameters_and_statistics_of_any_layout(name, dtype, which, layout):
    norm = NORMS[name]
    x, dy, *parameters = draw_all(norm, dtype, which)
    parameters = [layout(array) for array in parameters]
    saved = [layout(array) for array in check_forward(norm, x, *parameters)]
    with unchanged(*saved, *parameters):
        check_backward(norm, dy, x, saved, parameters[0])


@few_norms([np.float16, np.float32, np.float64], ["both"], always=False)
def test_swapped_bytes(name, dtype, which):
    arrays = draw_all(NORMS[name], dtype, which)
    check(NORMS[name], *(None if array is None else swapped(array) for array in arrays))


@few_norms([np.float32], ["both"], always=False)
def test_files_as_memory(name, dtype, which, tmp_path):
    norm = NORMS[name]
    arrays = draw_all(norm, dtype, which)
    for number, array in enumerate(arrays):
        array.tofile(tmp_path / str(number))
    mapped = [
        np.memmap(tmp_path / str(number), array.dtype, "r", shape=array.shape)
        for number, array in enumerate(arrays)
    ]
    check(norm, *mapped)
    result = np.memmap(tmp_path / "out", np.float32, "w+", shape=norm.shape)
    check_forward(norm, *mapped[:1], *mapped[2:], out=result)


# Other types of numbers


@few_norms([np.int8, np.uint8, np.int32, np.uint64, np.bool_], ["none", "both"], always=False)
def test_integers_are_computed_in_float64(name, dtype, which):
    norm = NORMS[name]
    rng = np.random.default_rng(0)
    x, dy = (rng.integers(0, 2 if dtype is np.bool_ else 100, norm.shape) for _ in range(2))
    check(norm, x.astype(dtype), dy.astype(dtype), *draw_parameters(norm, np.float64, which))


@few_norms([np.float64], ["none", "both"], always=False)
def test_nested_lists(name, dtype, which):
    norm = NORMS[name]
    x, dy, *parameters = draw_all(norm, dtype, which)
    as_lists = [None if array is None else array.tolist() for array in (x, *parameters)]
    y, *saved = norm.forward(*as_lists)
    expected, *expected_saved = norm.forward(x, *parameters)
    np.testing.assert_array_equal(y, expected)
    saved = [np.asarray(array).tolist() for array in saved]
    actual = norm.backward(dy.tolist(), as_lists[0], saved, *as_lists[1:2])
    expected = norm.backward(dy, x, expected_saved, *parameters[:1])
    for mine, theirs in zip(as_tuple(actual), as_tuple(expected), strict=True):
        np.testing.assert_array_equal(mine, theirs)


class Like:
    """Something that turns into an array, such as a data frame."""

    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        return self.array


@few_norms([np.float32], ["both"], always=False)
def test_what_turns_into_an_array(name, dtype, which):
    norm = NORMS[name]
    arrays = draw_all(norm, dtype, which)
    x, dy, *parameters = (Like(array) for array in arrays)
    y, *saved = norm.forward(x, *parameters)
    expected = norm.forward(arrays[0], *arrays[2:])
    assert type(y) is np.ndarray
    np.testing.assert_array_equal(y, expected[0])
    actual = norm.backward(dy, x, [Like(array) for array in saved], *parameters[:1])
    expected = norm.backward(arrays[1], arrays[0], expected[1:], *arrays[2:3])
    for mine, theirs in zip(as_tuple(actual), as_tuple(expected), strict=True):
        np.testing.assert_array_equal(mine, theirs)


MIXED = [
    pytest.param(np.float16, np.float32, id="float16-float32"),
    pytest.param(np.float16, np.float64, id="float16-float64"),
    pytest.param(BFLOAT16, np.float32, id="bfloat16-float32"),
    pytest.param(BFLOAT16, np.float16, id="bfloat16-float16"),
    pytest.param(np.float32, np.float64, id="float32-float64"),
    pytest.param(np.float32, BFLOAT16, id="float32-bfloat16"),
    pytest.param(np.float64, np.float16, id="float64-float16"),
    pytest.param(np.float64, np.float32, id="float64-float32"),
]


@kernels.full
@pytest.mark.parametrize("name", WITH_GAMMA)
@pytest.mark.parametrize("dtype, parameter_dtype", MIXED)
def test_parameters_of_another_float_dtype(name, dtype, parameter_dtype):
    norm = NORMS[name]
    x, dy, *_ = draw_all(norm, dtype)
    check(norm, x, dy, *draw_parameters(norm, parameter_dtype, "both"))


@norms_with_gamma([np.float16, np.float64], ["both"], always=False)
def test_integer_parameters(name, dtype, which):
    norm = NORMS[name]
    x, dy, *parameters = draw_all(norm, dtype, which)
    check(norm, x, dy, *(np.round(3 * array).astype(np.int32) for array in parameters))


@few_norms(DTYPES, always=False)
def test_a_gradient_of_another_dtype_is_first_rounded_to_that_of_x(name, dtype, which):
    norm = NORMS[name]
    x, _, *parameters = draw_all(norm, dtype)
    dy = draw(norm.shape, np.float64, 1)
    saved = check_forward(norm, x, *parameters)
    actual = as_tuple(norm.backward(dy, x, saved))
    for mine, theirs in zip(
        actual, as_tuple(norm.backward(dy.astype(dtype), x, saved)), strict=True
    ):
        np.testing.assert_array_equal(mine, theirs)
    check_backward(norm, dy.astype(dtype), x, saved)


@few_norms([*DTYPES, np.int64], always=False)
def test_the_dtype_of_the_statistics(name, dtype, which):
    """Wider than the input, so that the backward pass loses nothing."""
    norm = NORMS[name]
    expected = np.float32 if dtype is np.float16 else np.float64
    x = np.arange(math.prod(norm.shape)).reshape(norm.shape).astype(dtype)
    results = [norm.forward(x)]
    if norm.name == "batch_norm":
        running = {"running_mean": np.ones(5), "running_var": np.ones(5)}
        results.append(norm.forward(x, training=False, **running))
    for result in results:
        assert [array.dtype for array in result[1:]] == [expected] * len(result[1:])


# The interpreter computes with NumPy's scalars, which warn of every overflow.
no_warnings = pytest.mark.skipif(UNCOMPILED, reason="NumPy's scalars warn of an overflow")


@no_warnings
@kernels.full
@pytest.mark.parametrize("dtype, value", [(np.float64, 1e-310), (BFLOAT16, 1e-40)])
def test_the_length_of_a_vector_whose_reciprocal_is_out_of_range(dtype, value):
    v = np.full((1, 4), value, dtype)
    w, norm = numnorm.weight_norm_forward(v)
    np.testing.assert_array_equal(w, np.full((1, 4), 0.5, dtype))
    # These numbers are subnormal: their smallest difference is what a rounding is at most.
    smallest = np.finfo(norm.dtype).smallest_subnormal
    assert abs(float(norm[0]) - 2 * float(v[0, 0])) <= 4 * float(smallest)


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
    v = np.full((1, 2000), size, BFLOAT16)
    _, norm = numnorm.weight_norm_forward(v)
    assert float(norm[0]) == pytest.approx(float(v[0, 0]) * math.sqrt(2000), rel=1e-6)
    dg = numnorm.weight_norm_backward(np.ones_like(v), v, norm, np.ones(1)).dg
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


@pytest.mark.parametrize("name", EMPTY)
@pytest.mark.parametrize("which", ["none", "both"])
@pytest.mark.parametrize("dtype", [BFLOAT16, np.float64], ids=name_of)
def test_nothing_in_nothing_out(name, which, dtype):
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


# Where the result goes


def fresh(array):
    return np.full(array.shape, 77, array.dtype)


def transposed(array):
    return np.full(array.shape[::-1], 77, array.dtype).T


def with_gaps(array):
    return strided(np.full(array.shape, 77, array.dtype))


def with_margins(array):
    """The array in a longer one, which is the first result."""
    line = np.full(array.size + 6, 77, array.dtype)
    inside = line[3:-3].reshape(array.shape)
    inside[...] = array
    return line, inside


OUTPUTS = [fresh, transposed, with_gaps, unaligned]
OVERLAPS = {
    "itself": lambda line, inside: inside,
    "itself-backwards": lambda line, inside: inside[::-1],
    "before": lambda line, inside: line[:-6].reshape(inside.shape),
    "after": lambda line, inside: line[6:].reshape(inside.shape),
}


@few_norms([BFLOAT16, np.float32])
@pytest.mark.parametrize("output", OUTPUTS)
def test_the_result_goes_to_out(name, dtype, which, output):
    norm = NORMS[name]
    x, dy, *parameters = draw_all(norm, dtype, which)
    with unchanged(x, dy):
        saved = check_forward(norm, x, *parameters, out=output(x))
        check_backward(norm, dy, x, saved, *parameters[:1], out=output(x))


def test_the_gaps_of_out_are_left_alone():
    x = draw((7, 33), np.float32, 0)
    out = with_gaps(x)
    numnorm.layer_norm(x, out=out)
    gaps = np.ones(out.base.shape, bool)
    gaps[::2, ::2] = False
    np.testing.assert_array_equal(out.base[gaps], 77)


@few_norms([BFLOAT16, np.float32])
@pytest.mark.parametrize("overlap", OVERLAPS)
def test_out_overlaps_x(name, dtype, which, overlap):
    norm = NORMS[name]
    x, _, *parameters = draw_all(norm, dtype, which)
    line, inside = with_margins(x)
    check_forward(norm, inside, *parameters, out=OVERLAPS[overlap](line, inside))


@few_norms([BFLOAT16, np.float32])
@pytest.mark.parametrize("overlap", OVERLAPS)
@pytest.mark.parametrize("overlapped", ["dy", "x"])
def test_the_gradient_overlaps_an_input(name, dtype, which, overlap, overlapped):
    norm = NORMS[name]
    x, dy, *parameters = draw_all(norm, dtype, which)
    saved = check_forward(norm, x, *parameters)
    line, inside = with_margins(x if overlapped == "x" else dy)
    out = OVERLAPS[overlap](line, inside)
    if overlapped == "x":
        check_backward(norm, dy, inside, saved, *parameters[:1], out=out)
    else:
        check_backward(norm, inside, x, saved, *parameters[:1], out=out)


def inside_of(out, start, array):
    """The values of `array` in the memory of `out`, from its element `start` on."""
    view = out.reshape(-1)[start : start + array.size].reshape(array.shape)
    view[...] = array
    return view


@norms_with_gamma([np.float32, np.float64], ["both"], always=False)
@pytest.mark.parametrize("start", [0, 1])
def test_out_overlaps_a_parameter(name, dtype, which, start):
    norm = NORMS[name]
    x, dy, *parameters = draw_all(norm, dtype, which)
    saved = check_forward(norm, x, *parameters)
    for number, parameter in enumerate(parameters):
        out = fresh(x)
        others = list(parameters)
        others[number] = inside_of(out, start, parameter)
        check_forward(norm, x, *others, out=out)
    out = fresh(x)
    check_backward(norm, dy, x, saved, inside_of(out, start, parameters[0]), out=out)


# The statistics are float64, and only an array of that dtype can lie in the same memory.
@few_norms([np.float64], always=False)
def test_the_gradient_overlaps_a_statistic(name, dtype, which):
    norm = NORMS[name]
    x, dy, *parameters = draw_all(norm, dtype)
    saved = check_forward(norm, x, *parameters)
    for number, statistic in enumerate(saved):
        out = fresh(x)
        others = list(saved)
        others[number] = inside_of(out, 1, statistic)
        check_backward(norm, dy, x, others, out=out)


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
def test_sizes_that_are_worth_threads(name, dtype, which):
    norm = LARGE[name]
    assert math.prod(norm.shape) > 1 << 15
    check(norm, *draw_all(norm, dtype, which))


@compiled
@large(["layer", "batch-images", "group", "weight"], [np.float32], ["both"])
def test_large_with_parameters(name, dtype, which):
    check(LARGE[name], *draw_all(LARGE[name], dtype, which))


@compiled
@large(["layer", "batch"], [BFLOAT16, np.float64])
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


def test_out_on_a_parameter_of_another_item_size():
    # The same memory, but not the same elements in the same places.
    rng = np.random.default_rng(0)
    gamma, x = rng.random(512, np.float32), rng.normal(size=(2, 512)).astype(np.float16)
    expected = numnorm.layer_norm(x, gamma)
    found = numnorm.layer_norm(x, gamma, out=gamma.view(np.float16).reshape(2, 512))
    np.testing.assert_array_equal(found, expected)


def test_axis_is_asked_for_its_index_in_every_call():
    class Movable:
        value = 0

        def __index__(self):
            return self.value

    x, axis = np.random.default_rng(0).normal(size=(4, 4)), Movable()
    np.testing.assert_array_equal(numnorm.layer_norm(x, axis=axis), numnorm.layer_norm(x, axis=0))
    axis.value = 1
    np.testing.assert_array_equal(numnorm.layer_norm(x, axis=axis), numnorm.layer_norm(x, axis=1))
