"""Batch norm inside compiled functions: the bytes of the public functions."""

import re
from concurrent.futures import ThreadPoolExecutor

import kernels
import numba
import numpy as np
import pytest
from every_call import in_new_process
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import LAYOUTS
from nopython import check, compiled, function_of, same
from numba.core.errors import TypingError

import numnorm

pytestmark = compiled
rng = np.random.default_rng(38)
NAMES = ["x", "gamma", "beta", "axis", "mean", "var", "training", "momentum", "eps"]


def forward(options=""):
    """A function of NAMES that calls the forward pass."""
    text = (
        "numnorm.batch_norm_forward(x, gamma, beta, channel_axis=axis, running_mean=mean, "
        f"running_var=var, training=training, momentum=momentum, eps=eps{options})"
    )
    return function_of(NAMES, text)


def backward():
    options = "channel_axis=axis, training=training"
    text = f"numnorm.batch_norm_backward(dy, x, mean, rstd, gamma, {options})"
    return function_of(["dy", "x", "mean", "rstd", "gamma", "axis", "training"], text)


def outcome(function, *arguments):
    """What a function returns and does to copies of its arrays; or that it raises ValueError."""
    copies = [a.copy() if isinstance(a, np.ndarray) and a.ndim == 1 else a for a in arguments]
    try:
        return function(*copies), *copies
    except ValueError:
        return ValueError


def same_outcome(function, plain, *arguments):
    actual, expected = outcome(function, *arguments), outcome(plain, *arguments)
    assert (actual is ValueError) == (expected is ValueError)
    if expected is not ValueError:
        same(actual[0], expected[0])
        for one, other in zip(actual[1:], expected[1:], strict=True):
            if isinstance(one, np.ndarray):
                same(one, other)


def shapes(ndim):
    """Shapes, also such that take several blocks, tiles and vectors."""
    few = st.integers(0, 5)
    many = st.sampled_from([1, 16, 33, 130, 600, 2100])
    return st.tuples(*[few] * ndim, st.integers(0, ndim - 1), st.one_of(few, many)).map(
        lambda drawn: tuple(
            drawn[ndim + 1] if i == drawn[ndim] else size for i, size in enumerate(drawn[:ndim])
        )
    )


def values(random, shape, dtype):
    """Random numbers; some channels are far from 0, or so large or small that x is scaled."""
    x = random.standard_normal(shape) * random.choice([1.0, 1.0, 3e-22, 1e25])
    return (x + random.choice([0.0, 0.0, 1e4])).astype(dtype)


def cases():
    for dtype in np.float32, np.float64:
        for which in "none", "both":
            for ndim in 2, 3, 4, 5:
                default = dtype == np.float32 and (ndim, which) in ((2, "none"), (4, "both"))
                yield pytest.param(
                    dtype, which, ndim, marks=() if default else kernels.full,
                    id=f"{np.dtype(dtype).name}-{which}-{ndim}",
                )  # fmt: skip


@pytest.mark.parametrize("dtype, which, ndim", list(cases()))
def test_random_arrays_and_options(dtype, which, ndim):
    element, real = numba.from_dtype(np.dtype(dtype)), numba.float64
    parameter = numba.none if which == "none" else element[:]
    x_kind, flag = numba.types.Array(element, ndim, "A"), numba.boolean
    # They are compiled once: Numba converts contiguous arrays to the type of strided ones.
    numbers = numba.int64, real[:], element[:], flag, real, real
    call = numba.njit((x_kind, parameter, parameter, *numbers))(forward())
    kinds = x_kind, x_kind, real[:], real[:], parameter, numba.int64, flag
    gradients = numba.njit(kinds)(backward())
    layout = st.sampled_from([np.ascontiguousarray, np.asfortranarray, *LAYOUTS[:2]])

    @settings(max_examples=500, deadline=None, database=None)
    @given(
        shapes(ndim), layout, layout, st.integers(-ndim, ndim - 1), st.booleans(), st.integers(0, 9)
    )
    def check_one(shape, of_x, of_dy, axis, training, seed):
        random = np.random.default_rng(seed)
        x, channels = of_x(values(random, shape, dtype)), shape[axis]
        parameters = [None, None]
        if which == "both":
            parameters = list(random.standard_normal((2, channels)).astype(dtype))
        mean, var = random.standard_normal(channels), random.random(2 * channels)[::2].astype(dtype)
        eps, momentum = random.choice([0.0, 1e-5]), random.choice([0.0, 0.3, 1.0])
        given = x, *parameters, axis, mean, var, training, momentum, eps
        same_outcome(call, call.py_func, *given)
        n = outcome(call.py_func, *given)
        if n is not ValueError:
            dy = of_dy(random.standard_normal(shape).astype(dtype))
            same_outcome(
                gradients, gradients.py_func, dy, x, *n[0][1:], parameters[0], axis, training
            )

    check_one()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout(layout):
    x, gamma = rng.standard_normal((2, 6, 4, 5)).astype(np.float32)
    call = function_of(["x", "gamma"], "numnorm.batch_norm(x, gamma, gamma, eps=1e-3)")
    check(call, layout(x), layout(gamma)[0, :, 0])


@pytest.mark.parametrize(
    "shape",
    [
        (40000, 64),
        (9, 3, 70000),
        *(pytest.param(shape, marks=kernels.full) for shape in ((700, 1001), (300, 200, 9))),
    ],
)
def test_large_arrays_have_the_bytes_of_aligned_loops_and_threads(shape):
    x, dy = rng.standard_normal((2, *shape), np.float32)
    for training in True, False:

        def call(x, dy, mean, var):
            n = numnorm.batch_norm_forward(x, running_mean=mean, running_var=var, training=training)
            return n, numnorm.batch_norm_backward(dy, x, n.mean, n.rstd, training=training)

        check(call, x, dy, np.zeros(shape[1]), np.ones(shape[1]))


@pytest.mark.parametrize("shape", [(50, 7), pytest.param((50, 7, 33), marks=kernels.full)])
def test_means_of_float64_far_from_zero(shape):
    x, dy = rng.standard_normal((2, *shape))
    x += 1e7 * rng.random((1, 7, *[1] * (len(shape) - 2)))

    def call(x, dy):
        n = numnorm.batch_norm_forward(x)
        return n, numnorm.batch_norm_backward(dy, x, n.mean, n.rstd)

    check(call, x, dy)


@pytest.mark.parametrize(
    "options",
    [
        "momentum='cumulative', batches=3",
        "unbiased=flag, channel_axis=-1",
        *(
            pytest.param(options, marks=kernels.full)
            for options in (
                "convention='keras'",
                "convention='keras', momentum=0.9, unbiased=True",
                "unbiased=False, momentum=1",
            )
        ),
    ],
)
def test_running_statistics(options):
    text = f"numnorm.batch_norm(x, running_mean=mean, running_var=var, {options})"
    call = function_of(["x", "mean", "var", "flag"], text)
    x = rng.standard_normal((5, 4, 4)).astype(np.float32)
    for step in 1, 2:
        given, expected = (
            (np.zeros(4 * step)[::step], np.ones(8 // step, np.float32)[:: 2 // step])
            for _ in range(2)
        )
        same(numba.njit(call)(x, *given, True), call(x, *expected, True))
        same(given, expected)


def test_out_may_be_the_input_or_overlap_it():
    x = rng.standard_normal((7, 4, 3)).astype(np.float32)
    call = numba.njit(function_of(["x", "out"], "numnorm.batch_norm(x, out=out)"))
    for start in 0, 1:
        memory = x.copy()
        target = memory[start:][:6]
        assert call(memory[:-1], target).ctypes.data == target.ctypes.data
        same(target.copy(), numnorm.batch_norm(x[:-1]))
    strided = np.zeros((7, 4, 6), np.float32)[:, :, ::2]
    same(call(x, strided).copy(), numnorm.batch_norm(x))


@pytest.mark.parametrize(
    "of_x, of_dy, of_gamma",
    [
        (np.float32, np.float64, np.float32),
        pytest.param(np.float32, np.float64, None, marks=kernels.full),
        pytest.param(np.float32, np.float32, np.float64, marks=kernels.full),
        pytest.param(np.float64, np.float32, np.float32, marks=kernels.full),
        pytest.param(np.int64, np.float64, None, marks=kernels.full),
    ],
)
def test_mixed_dtypes(of_x, of_dy, of_gamma):
    x, dy = rng.standard_normal((2, 9, 4, 3)) * 10
    gamma = None if of_gamma is None else rng.standard_normal(4).astype(of_gamma)

    def call(dy, x, gamma):
        n = numnorm.batch_norm_forward(x, gamma)
        return n, numnorm.batch_norm_backward(dy, x, n.mean, n.rstd, gamma)

    check(call, dy.astype(of_dy), x.astype(of_x), gamma)


@pytest.mark.parametrize("shape", [(0, 3), (4, 0), (0, 3, 2), (2, 3, 0)])
def test_empty_arrays(shape):
    def call(x, mean, var):
        n = numnorm.batch_norm_forward(x, running_mean=mean, running_var=var)
        return n, mean, numnorm.batch_norm_backward(x, x, n.mean, n.rstd)

    check(call, np.zeros(shape, np.float32), np.ones(shape[1]), np.ones(shape[1]))


def test_parallel_callers():
    x = rng.standard_normal((64, 30, 5, 4)).astype(np.float32)

    def call(x):
        y = np.empty_like(x)
        for i in numba.prange(x.shape[0]):
            y[i] = numnorm.batch_norm(x[i])
        return y

    same(numba.njit(parallel=True)(call)(x), np.array([numnorm.batch_norm(a) for a in x]))


def test_threads():
    call = numba.njit(nogil=True)(function_of(["x"], "numnorm.batch_norm(x)"))
    arrays = [rng.standard_normal((200, 5, 4)).astype(np.float32) for _ in range(8)]
    expected = [call(x) for x in arrays]
    with ThreadPoolExecutor(8) as threads:
        for _ in range(10):
            for one, other in zip(threads.map(call, arrays), expected, strict=True):
                same(one, other)


CACHED = """
import numba
import numpy as np

import numnorm._numba  # an installed numnorm has an entry point for this

@numba.njit(cache=True)
def inner(x):
    return numnorm.batch_norm(x)

@numba.njit(cache=True)
def call(x):
    return inner(x)

x = np.arange(60, dtype=np.float32).reshape(5, 4, 3)
assert call(x).tobytes() == numnorm.batch_norm(x).tobytes()
print(sum(call.stats.cache_hits.values()))
"""


def test_a_cached_caller_finds_kernels_that_other_kernels_call(tmp_path):
    script = tmp_path / "call.py"
    script.write_text(CACHED)
    assert [in_new_process(str(script)).strip() for _ in range(2)] == ["0", "1"]


# A call and what its error says.
TYPING_ERRORS = {
    "batch_norm([1.0])": "x must be an array of float32, float64, integers or bool, got list",
    "batch_norm(x, x)": "gamma must be an array with 1 axis, one number for each channel of x, "
    "got one with 2 axes",
    "batch_norm(x, channel_axis=(0, 1))": "channel_axis must be one int in compiled code, got",
    "batch_norm(x, channel_axis=0.5)": "channel_axis must be an int, got float64",
    "batch_norm(x, eps='a')": "eps must be a number, got",
    "batch_norm(x, convention='flax')": "convention must be the literal 'torch' or 'keras', got",
    "batch_norm(x, unbiased=3)": "unbiased must be True or False, got",
    "batch_norm(x, training=False)": "running_mean must be given when training is not the literal "
    "True, got None",
    "batch_norm(x, running_var=x[0])": "running_mean must be given with running_var, got None",
    "batch_norm(x, running_mean=x[0])": "running_var must be given with running_mean, got None",
    "batch_norm(x, momentum='all')": "momentum must be a number, 'cumulative' or None, got",
    "batch_norm(x, momentum='cumulative')": "batches must be an int, got None",
    "batch_norm(x, batches=3)": "batches must be None unless momentum='cumulative', got",
    "batch_norm(x, out=x[0])": "out must be a writable array of float64 with 2 axes, got array",
    "batch_norm_backward(x, x, None, x[0])": "mean must be an array",
    "batch_norm_backward(x[0], x, x[0], x[0])": "dy must be an array with 2 axes, the shape of x, "
    "got one with 1 axis",
}


@pytest.mark.parametrize("text", TYPING_ERRORS)
def test_typing_errors_name_the_argument_in_one_line(text):
    call = numba.njit(function_of(["x"], f"numnorm.{text}"))
    with pytest.raises(TypingError) as error:
        call(np.ones((2, 4)))
    assert any(TYPING_ERRORS[text] in line for line in str(error.value).splitlines())


RUNNING = "running_mean=x[0].copy(), running_var"
ERRORS = {
    "batch_norm(x, x[0, 1:])": "gamma must have one number for each channel of x",
    "batch_norm(x, channel_axis=n + 2)": "channel_axis must be an axis of x",
    "batch_norm(x, eps=-1.0)": "eps must be finite and at least 0",
    "batch_norm(x, momentum=2.0)": "momentum must be between 0 and 1",
    "batch_norm(x, momentum='cumulative', batches=n - 1)": "batches must be at least 0",
    "batch_norm(x, out=x[1:])": "out must have the shape of x",
    f"batch_norm(x, {RUNNING}=x[0, 1:])": "running_var must have one number for each channel of x",
    f"batch_norm(x[:1], {RUNNING}=x[0])": "x must have at least 2 values in each channel for an "
    "unbiased running_var",
    f"batch_norm(x, {RUNNING}=-x[0], training=False)": "running_var must not be negative",
    "batch_norm(x, running_mean=x[0], running_var=x[0])": "running_var must not share memory with "
    "running_mean",
    "batch_norm_backward(x[1:], x, x[0], x[0])": "dy must have the shape of x",
    "batch_norm_backward(x, x, x[0, 1:], x[0])": "mean must have one number for each channel of x",
}


@pytest.mark.parametrize("text", ERRORS)
def test_errors_at_run_time(text):
    call = numba.njit(function_of(["x", "n"], f"numnorm.{text}"))
    with pytest.raises(ValueError, match=f"^{re.escape(ERRORS[text])}$"):
        call(np.ones((2, 4)), 0)
