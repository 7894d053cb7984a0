"""Norms of rows inside compiled functions: the bytes of the public functions."""

import kernels
import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import LAYOUTS
from nopython import call_of, check, compiled, function_of, same
from norm_cases import NORMS
from numba.core.errors import TypingError

import numnorm

pytestmark = compiled
BY_AXIS = ["layer_norm", "rms_norm", "ada_norm", "weight_norm"]
BY_CHANNEL = ["group_norm", "instance_norm"]
COUNTS = {"ada_norm": 0, "rms_norm": 1, "weight_norm": 1}
FEW = ["layer-axes-apart", "ada-all-options", "group-last-axis", "group-flat", "weight-axes-apart"]
rng = np.random.default_rng(37)


def passes(name, parameters, options, backward_only):
    """A function that calls the forward and the backward pass of a norm."""
    saved = {"rms_norm": "n.rstd", "weight_norm": "n.norm"}.get(name, "n.mean, n.rstd")
    known = set(options) - ({"eps"} if name != "ada_norm" else set())
    backward = {key: options[key] for key in options if key in known} | backward_only
    forward = call_of(f"{name}_forward", ["x", *parameters], options)
    gradients = call_of(f"{name}_backward", ["dy", "x", saved, *parameters[:1]], backward)
    plain = call_of(name, ["x", *parameters], options)
    names = [name for name in parameters if name != "None"]
    return function_of(["dy", "x", *names], f"n = {forward}", f"{plain}, n, {gradients}")


def arrays(norm, dtype):
    x, dy = rng.standard_normal((2, *norm.shape)).astype(dtype)
    return dy, x, *rng.standard_normal((norm.parameters, *norm.parameter_shape)).astype(dtype)


def cases():
    for name, norm in NORMS.items():
        if norm.name != "batch_norm":
            yield pytest.param(norm, id=name, marks=() if name in FEW else kernels.full)


@pytest.mark.parametrize("norm", list(cases()))
def test_all_passes_with_literal_options(norm):
    parameters = ["gamma", "beta"][: norm.parameters]
    dtype = np.float64 if norm.name == "ada_norm" else np.float32
    check(passes(norm.name, parameters, norm.options, norm.backward_only), *arrays(norm, dtype))


@kernels.full
@pytest.mark.parametrize("g", [np.float32(3), np.float64(3), 3])
def test_the_gain_of_a_single_vector_may_be_a_number(g):
    call = passes("weight_norm", ["gamma"], {}, {})
    check(call, *rng.standard_normal((2, 7)).astype(np.float32), g)


def random_norms():
    for name in [*BY_AXIS, *BY_CHANNEL]:
        for dtype in np.float32, np.float64:
            for which in "none", "both":
                default = kernels.is_default(name, dtype, which) and dtype == np.float32
                yield pytest.param(
                    name, dtype, which, marks=() if default else kernels.full,
                    id=f"{name}-{np.dtype(dtype).name}-{which}",
                )  # fmt: skip


def compiled_at_run_time(name, dtype, which):
    """A caller of a norm that takes arrays of 3 axes in any layout, and axis and groups as numbers.

    It is compiled once: Numba converts contiguous arrays to the type of strided ones.
    """
    element = numba.from_dtype(np.dtype(dtype))
    count = 0 if which == "none" else COUNTS.get(name, 2)
    parameters = ["gamma", "beta"][:count]
    own = element[:, :] if name == "weight_norm" else element[:]
    axis = "axis" if name in BY_AXIS else "channel_axis"
    options, numbers = f"{axis}=axis", [numba.int64]
    if name == "group_norm":
        options, numbers = f"{options}, groups=groups", [numba.int64, numba.int64]
    saved = {"rms_norm": "n.rstd", "weight_norm": "n.norm"}.get(name, "n.mean, n.rstd")
    forward = f"numnorm.{name}_forward({', '.join(['x', *parameters])}, {options})"
    arguments = ", ".join(["dy", "x", saved, *parameters[:1]])
    backward = f"numnorm.{name}_backward({arguments}, {options})"
    names = ["dy", "x", *parameters, "axis", "groups"][: 3 + count + len(numbers) - 1]
    function = function_of(names, f"n = {forward}", f"n, {backward}")
    kinds = [element[:, :, :]] * 2 + [own] * count + numbers
    return numba.njit(tuple(kinds))(function), count


@st.composite
def shapes(draw):
    shape = [draw(st.integers(0, 6)) for _ in range(3)]
    # Short rows, those in tiles, and wider ones.
    wide = draw(st.sampled_from([0, 1, 2, 5, 16, 33, 130, 257, 300]))
    shape[draw(st.integers(0, 2))] = wide
    return tuple(shape)


LAYOUT = st.sampled_from([np.ascontiguousarray, np.asfortranarray, *LAYOUTS[:2]])


@pytest.mark.parametrize("name, dtype, which", list(random_norms()))
def test_random_arrays_and_axes(name, dtype, which):
    call, count = compiled_at_run_time(name, dtype, which)

    @settings(max_examples=500, deadline=None, database=None)
    @given(shapes(), LAYOUT, LAYOUT, st.integers(-3, 2), st.integers(0, 3), st.data())
    def check_one(shape, of_x, of_dy, axis, seed, data):
        numbers = [axis]
        if name in BY_CHANNEL:
            numbers = [axis if axis % 3 else 1]
        channels = shape[numbers[0]]
        if name == "group_norm":
            divisors = [n for n in range(1, channels + 1) if channels % n == 0] or [2]
            numbers.append(data.draw(st.sampled_from(divisors)))
        random = np.random.default_rng(seed)
        x, dy = random.standard_normal((2, *shape)) * 3 + random.choice([0, 1e3])
        of_parameters = [channels]
        if name == "weight_norm":
            of_parameters = [n for i, n in enumerate(shape) if i != axis % 3]
        parameters = random.standard_normal((count, *of_parameters)).astype(dtype)
        given = of_dy(dy.astype(dtype)), of_x(x.astype(dtype)), *parameters, *numbers
        same(call(*given), call.py_func(*given))

    check_one()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout(layout):
    x, gamma = rng.standard_normal((2, 5, 33)).astype(np.float32)

    def call(x, gamma):
        return numnorm.layer_norm(x, gamma, gamma, eps=1e-3)

    check(call, layout(x), layout(gamma)[0])


def mixed_dtypes():
    narrow, wide = np.float32, np.float64
    yield pytest.param(narrow, wide, narrow, id="dy")
    yield pytest.param(narrow, narrow, wide, id="gamma")
    yield pytest.param(wide, narrow, narrow, id="x")
    yield pytest.param(narrow, wide, None, id="dy-without-gamma")
    yield pytest.param(np.int64, wide, wide, id="integers")


@pytest.mark.parametrize("of_x, of_dy, of_gamma", list(mixed_dtypes()))
def test_mixed_dtypes(of_x, of_dy, of_gamma):
    x, dy = rng.standard_normal((2, 6, 33)) * 10
    gamma = None if of_gamma is None else rng.standard_normal(33).astype(of_gamma)
    x, dy = x.astype(of_x), dy.astype(of_dy)
    check(passes("layer_norm", ["gamma", "None"], {}, {}), dy, x, gamma)


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("axis", [0, 1])
def test_out(order, axis):
    x = rng.standard_normal((6, 33)).astype(np.float32)
    call = numba.njit(function_of(["x", "out"], f"numnorm.layer_norm(x, axis={axis}, out=out)"))
    out = np.empty(x.shape, x.dtype, order)
    assert call(x, out).ctypes.data == out.ctypes.data
    same(out.copy(), numnorm.layer_norm(x, axis=axis))


def test_out_may_be_the_input_or_overlap_it():
    x = rng.standard_normal((7, 33)).astype(np.float32)
    call = numba.njit(function_of(["x", "out"], "numnorm.layer_norm(x, out=out)"))
    expected = numnorm.layer_norm(x[:-1])
    for start in 0, 1:
        memory = x.copy()
        same(call(memory[:-1], memory[start:][:6]).copy(), expected)
    dy, n = rng.standard_normal((7, 33)).astype(np.float32), numnorm.layer_norm_forward(x)
    expected = numnorm.layer_norm_backward(dy, x, n.mean, n.rstd)
    text = "numnorm.layer_norm_backward(dy, x, mean, rstd, out=dy)"
    same(numba.njit(function_of(["dy", "x", "mean", "rstd"], text))(dy, x, *n[1:]), expected)


@pytest.mark.parametrize("options", [{"ddof": 1}, {"ddof": 2, "axis": (0, 1)}, {"axis": 0}])
def test_standard_normal_variate(options):
    dy, x = rng.standard_normal((2, 6, 40)).astype(np.float32)
    check(passes("standard_normal_variate", [], options, {}), dy[:, 1::2], x[:, ::2])


# An argument and its value; what the error says.
TYPING_ERRORS = {
    "layer_norm(x[0, 0])": "x must be an array of float32, float64, integers or bool, got float64",
    "layer_norm([1.0])": "x must be an array of float32, float64, integers or bool, got list",
    "layer_norm(x * 1j)": "x must be an array of float32, float64, integers or bool, got array",
    "layer_norm(x, x)": "gamma must be an array with 1 axis, the normalized axes of x, "
    "got one with 2 axes",
    "layer_norm(x, axis=0.5)": "axis must be an int or a tuple of ints, got float64",
    "layer_norm(x, eps='a')": "eps must be a number, got",
    "layer_norm(x, out=x[0])": "out must be a writable array of float64 with 2 axes, got array",
    "group_norm(x)": "groups must be an int, got None",
    "ada_norm(x, eps_in='mean')": "eps_in must be the literal 'variance' or 'std', got 'mean'",
    "weight_norm(x, 1.0)": "g must be an array with 1 axis, the axes of x that are not normalized, "
    "got one with 0 axes",
    "weight_norm(x, x)": "g must be an array with 1 axis, the axes of x that are not normalized, "
    "got one with 2 axes",
    "layer_norm_backward(x, x, None, x[0])": "mean must be an array",
}


@pytest.mark.parametrize("text", TYPING_ERRORS)
def test_typing_errors_name_the_argument_in_one_line(text):
    call = numba.njit(function_of(["x"], f"numnorm.{text}"))
    with pytest.raises(TypingError) as error:
        call(np.ones((2, 4)))
    assert any(TYPING_ERRORS[text] in line for line in str(error.value).splitlines())


ERRORS = {
    "layer_norm(x, x[0, 1:])": "gamma must have the shape of the normalized axes of x",
    "layer_norm(x, None, x[0, 1:])": "beta must have the shape of the normalized axes of x",
    "layer_norm(x, eps=-1.0)": "eps must be finite and at least 0",
    "layer_norm(x, axis=n + 2)": "axis must name axes of x",
    "layer_norm(x, axis=2)": "axis must name axes of x",
    "layer_norm(x, axis=(1, 1))": "axis must not name an axis twice",
    "layer_norm(x, axis=(n, n - 2))": "axis must not name an axis twice",
    "layer_norm(x, out=x[1:])": "out must have the shape of x",
    "group_norm(x, groups=3)": "groups must divide the channels of x",
    "group_norm(x, groups=n)": "groups must be at least 1",
    "group_norm(x, groups=2, channel_axis=0)": "channel_axis must name an axis of x other than 0",
    "ada_norm(x, scale=-1.0)": "scale must be finite and greater than 0",
    "ada_norm(x, ddof=n + 4)": "ddof must be less than the number of normalized elements",
    "layer_norm_backward(x[1:], x, x[0, :2], x[0, :2])": "dy must have the shape of x",
    "layer_norm_backward(x, x, x[0], x[0, :2])": "mean must have one value for each row",
    "weight_norm_backward(x, x, x[0])": "norm must have one value for each row",
}


@pytest.mark.parametrize("text", ERRORS)
def test_errors_at_run_time(text):
    call = numba.njit(function_of(["x", "n"], f"numnorm.{text}"))
    with pytest.raises(ValueError, match=f"^{ERRORS[text]}$"):
        call(np.ones((2, 4)), 0)
