"""Arrays of any memory layout, and of other types of numbers, against the definitions."""

import math

import kernels
import numpy as np
import pytest
from layouts import LAYOUTS, backwards, read_only, strided, swapped, unaligned
from norm_cases import NORMS, WITH_GAMMA, few_norms, norms_with_gamma
from norm_checks import (
    BFLOAT16,
    DTYPES,
    as_tuple,
    check,
    check_backward,
    check_forward,
    draw,
    draw_all,
    draw_parameters,
    unchanged,
)

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


# A network in mixed precision has x in half precision, and parameters and dy in float32.
WIDER = {np.float16: np.float32, BFLOAT16: np.float32, np.float32: np.float64}


@few_norms([*WIDER], ["none", "both"], always=False)
def test_a_gradient_of_a_wider_dtype_keeps_its_digits_and_its_range(name, dtype, which):
    norm = NORMS[name]
    x, _, *_ = draw_all(norm, dtype)
    parameters = draw_parameters(norm, WIDER[dtype], which)
    saved = check_forward(norm, x, *parameters)
    scales = [1e5, 1, 1e-9] if WIDER[dtype] is np.float32 else [1e300, 1, 1e-300]
    for dy in (draw(norm.shape, WIDER[dtype], 1, scale=scale) for scale in scales):
        with unchanged(dy, x, *saved):
            check_backward(norm, dy, x, saved, *parameters[:1])
            check_backward(norm, dy, x, saved, *parameters[:1], out=np.empty_like(x))


@few_norms([BFLOAT16, np.float64], always=False)
def test_a_gradient_of_a_narrower_dtype(name, dtype, which):
    norm = NORMS[name]
    x, *_ = draw_all(norm, dtype)
    check_backward(norm, draw(norm.shape, np.float16, 1), x, check_forward(norm, x))


@few_norms([np.float16], always=False)
def test_a_gradient_of_a_wider_dtype_does_not_take_the_result(name, dtype, which):
    norm = NORMS[name]
    x, dy = draw(norm.shape, dtype, 0), draw(norm.shape, np.float32, 1)
    saved = norm.forward(x)[1:]
    with unchanged(dy), pytest.raises(TypeError, match=r"^out must have dtype float16"):
        norm.backward(dy, x, saved, out=dy)
    expected = as_tuple(norm.backward(dy, x, saved))[0]
    assert as_tuple(norm.backward(dy, x, saved, out=x))[0] is x
    np.testing.assert_array_equal(x, expected)


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
