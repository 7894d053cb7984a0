"""The device functions for kernels of users: the definitions, in every order of threads."""

import sys

import ml_dtypes
import numpy as np
import pytest
import reference
import simulated_target
from row_checks import assert_close, awkward_rows
from simulated_target import cuda

import numnorm.cuda

# Threads of a team and of a block, slots and width: parts of a warp, warps, blocks; none is full.
# For the wider ones float32(1 / width) * width is not 1: a constant's mean is not that constant.
TEAMS = {
    "one thread": (1, 32, 4, 3),
    "several rows a warp": (8, 64, 4, 29),
    "a row a warp": (32, 64, 3, 83),
    "two warps a row": (64, 64, 3, 159),
    "four warps a row": (128, 128, 2, 249),
}
WIDE = "two warps a row"
ROWS = 9
GUARD = 1234.5  # what lies behind a row


def draw(dtype, width, seed=0, mean=3.0):
    return np.random.default_rng(seed).normal(mean, 2, (ROWS, width)).astype(dtype)


def launch(kernel, name, *arrays):
    """Run a kernel with a team for each row, and some teams more."""
    threads, block, _, _ = TEAMS[name]
    teams = block // threads
    simulated_target.run(kernel, arrays, -(-ROWS // teams) if teams > 1 else ROWS, block)


def make_team(name):
    """Device functions: which row a team has, and its elements, read and written."""
    threads, block, slots, _ = TEAMS[name]

    def row_of(x):
        row = cuda.blockIdx.x * (block // threads) + cuda.threadIdx.x // threads
        return (row, x.shape[1]) if row < ROWS else (0, 0)

    def read(x, row, width):
        values = cuda.local.array(slots, x.dtype.type)
        for k in range(slots):
            column = cuda.threadIdx.x % threads + k * threads
            values[k] = x[row, column] if column < width else GUARD
        return values

    def write(values, y, row, width):
        for k in range(slots):
            column = cuda.threadIdx.x % threads + k * threads
            if column < width:
                y[row, column] = values[k]
            else:
                assert values[k] == y.dtype.type(GUARD)

    return row_of, read, write


def forward(norm, name, x, *options):
    """y and the statistics of each row."""
    row_of, read, write = make_team(name)
    y, saved = np.full_like(x, np.nan), np.full((2, ROWS), np.nan)

    def kernel():
        row, width = row_of(x)
        values = read(x, row, width)
        found = norm.forward(values, width, *options)
        write(values, y, row, width)
        if width:
            saved[:, row] = found

    launch(kernel, name)
    return y, *saved


def backward(norm, name, dy, x, statistics, *options):
    """Dx and dy * xhat of each element."""
    row_of, read, write = make_team(name)
    dx, of_gamma = np.full_like(x, np.nan), np.full_like(x, np.nan)

    def kernel():
        row, width = row_of(x)
        grads, values = read(dy, row, width), read(x, row, width)
        saved = [of[row] for of in statistics]
        norm.xhat(values, width, *saved)
        products = grads * values
        products[values == GUARD] = GUARD
        write(products, of_gamma, row, width)
        norm.backward(grads, values, width, *options, saved[-1])
        write(values, dx, row, width)
        write(grads, dx, row, width)

    launch(kernel, name)
    return dx, of_gamma


def made(make, name, dtype=np.float32, **options):
    threads, _, slots, _ = TEAMS[name]
    return make(threads, slots, dtype, **options)


def epsilon_of(dtype):
    return np.finfo(dtype).eps


@pytest.mark.parametrize("name", TEAMS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("mean", [3.0, 1e6])
def test_layer_norm(name, dtype, mean, order):
    width = TEAMS[name][3]
    x, gamma, beta = draw(dtype, width, mean=mean), draw(dtype, width, 1)[0], draw(dtype, width)[1]
    norm = made(numnorm.cuda.layer_norm_row, name, dtype)
    y, middle, rstd = forward(norm, name, x, gamma, beta, 1e-5)
    # Without its mean: a large one would leave too few digits to longdouble, beside float64.
    expected, of_mean, of_rstd = reference.layer_norm(reference.exact(x) - mean, gamma, beta)
    assert_close(y, expected)
    # As good as float32 is at the size of the deviations, and float64 at that of the mean.
    bound = 8 * epsilon_of(dtype) * (1 / of_rstd + 3) + np.spacing(mean)
    assert np.all(np.abs(middle - mean - of_mean) <= bound)
    np.testing.assert_allclose(rstd, np.float64(of_rstd), rtol=8 * epsilon_of(dtype))


@pytest.mark.parametrize("name", TEAMS)
@pytest.mark.parametrize("mean", [0.0, 1e6])
def test_gradient_of_layer_norm(name, mean, order):
    width = TEAMS[name][3]
    x, dy = draw(np.float32, width, mean=mean), draw(np.float32, width, 1, mean=0)
    gamma = draw(np.float32, width, 2)[0]
    norm = made(numnorm.cuda.layer_norm_row, name)
    statistics = [np.float64(of) for of in reference.layer_norm(x)[1:]]
    dx, of_gamma = backward(norm, name, dy, x, statistics, gamma)
    expected = reference.layer_norm_backward(dy, x, gamma)
    assert_close(dx, expected[0], 16)
    assert_close(of_gamma.sum(0)[None], expected[1][None], 16)


@pytest.mark.parametrize("detach", ["mean", "scale", "both"])
def test_detached_statistics(detach, order):
    x, dy = draw(np.float32, 29), draw(np.float32, 29, 1)
    dy[4, 9] = np.nan
    name = "several rows a warp"
    statistics = [np.float64(of) for of in reference.layer_norm(x)[1:]]
    norm = made(numnorm.cuda.layer_norm_row, name, detach=detach)
    dx, _ = backward(norm, name, dy, x, statistics, None)
    others = np.delete(np.arange(ROWS), 4)
    expected = reference.layer_norm_backward(dy[others], x[others], detach=detach)[0]
    assert_close(dx[others], expected, 16)
    assert np.isnan(dx[4]).sum() == (1 if detach == "both" else 29)


@pytest.mark.parametrize("name", TEAMS)
@pytest.mark.parametrize("scale", [1, 1e-30, 1e30])
def test_rms_norm(name, scale, order):
    width = TEAMS[name][3]
    x, dy = draw(np.float32, width) * np.float32(scale), draw(np.float32, width, 1)
    gamma = draw(np.float32, width, 2)[0]
    norm = made(numnorm.cuda.rms_norm_row, name)
    y, rstd, same = forward(norm, name, x, gamma, 0)
    expected, of_rstd = reference.rms_norm(x, gamma, eps=0)
    assert_close(y, expected)
    assert np.array_equal(rstd, same)  # there is no mean beside it
    np.testing.assert_allclose(rstd, np.float64(of_rstd), rtol=1e-6)
    dx, of_gamma = backward(norm, name, dy, x, [rstd], gamma)
    expected, of_parameter = reference.rms_norm_backward(dy, x, gamma, eps=0)
    assert_close(dx, expected, 16)
    assert_close(of_gamma.sum(0)[None], of_parameter[None], 16)


@pytest.mark.parametrize("name", ["several rows a warp", WIDE])
@pytest.mark.parametrize(
    "options",
    [{}, {"eps_in": "std", "ddof": 1}, {"ddof": 1, "detach_factor": False}],
    ids=["as defined", "as published", "factor differentiated"],
)
def test_ada_norm(name, options, order):
    width = TEAMS[name][3]
    x, dy = draw(np.float32, width), draw(np.float32, width, 1)
    norm = made(numnorm.cuda.ada_norm_row, name, **options)
    numbers = 1.5, 0.1, 0.25
    of_forward = {"scale": 1.5, "k": 0.1, "eps": 0.25, **options}
    flow = of_forward.pop("detach_factor", True)
    y, *statistics = forward(norm, name, x, *numbers)
    assert_close(y, reference.ada_norm(x, **of_forward)[0])
    dx, _ = backward(norm, name, dy, x, statistics, *numbers)
    expected = reference.ada_norm_backward(dy, x, **of_forward, detach_factor=flow)
    assert_close(dx, expected, 32)


@pytest.mark.parametrize("eps", [0.0, 1e-5])
@pytest.mark.parametrize("name", [name for name in TEAMS if name != "one thread"])
def test_rows_of_any_scale_and_mean_beside_each_other(name, eps, order):
    width = TEAMS[name][3]
    x, gamma, beta = awkward_rows(width), draw(np.float32, width, 1)[0], draw(np.float32, width)[1]
    norm = made(numnorm.cuda.layer_norm_row, name)
    y = forward(norm, name, x, gamma, beta, eps)[0]
    assert_close(y, reference.layer_norm(x, gamma, beta, eps=eps)[0])
    np.testing.assert_array_equal(y[8], beta)
    # A row's neighbours change no bit of it.
    transposed = forward(norm, name, x[::-1].copy(), gamma, beta, eps)[0]
    assert transposed[::-1].tobytes() == y.tobytes()


@pytest.mark.parametrize("eps", [0.0, 1e-5])
@pytest.mark.parametrize("name", TEAMS)
def test_constant_rows_whose_mean_is_not_exact(name, eps, order):
    """Between rows that are not: the first guess of their mean is good enough."""
    width = TEAMS[name][3]
    x, beta = draw(np.float32, width), draw(np.float32, width, 1)[0]
    x[::2] = 1 / np.arange(3, 13, 2, dtype=np.float32)[:, None]
    norm = made(numnorm.cuda.layer_norm_row, name)
    y, mean, _ = forward(norm, name, x, None, beta, eps)
    np.testing.assert_array_equal(y[::2], np.broadcast_to(beta, y[::2].shape))
    np.testing.assert_array_equal(mean[::2], x[::2, 0])
    assert_close(y, reference.layer_norm(x, None, beta, eps=eps)[0])


@pytest.mark.parametrize("name", [name for name in TEAMS if name != "one thread"])
def test_rows_that_are_constant_but_for_the_last_bit_of_an_element(name, order):
    width = TEAMS[name][3]
    x = np.repeat(np.linspace(1e7, 9e7, ROWS, dtype=np.float32)[:, None], width, 1)
    np.fill_diagonal(x, np.nextafter(x.diagonal(), np.float32(np.inf)))
    norm = made(numnorm.cuda.layer_norm_row, name)
    y = forward(norm, name, x, None, None, 0.0)[0]
    assert_close(y, reference.layer_norm(x, eps=0.0)[0], 4)


def test_constant_rows_one_after_the_other(order):
    """Their sums are taken again, and again out of range, at places of their own."""
    width, norm = TEAMS[WIDE][3], made(numnorm.cuda.layer_norm_row, WIDE)
    x, beta = draw(np.float32, width), draw(np.float32, width, 1)[0]
    x[:] = 1 / np.arange(3, 21, 2, dtype=np.float32)[:, None]
    _, read, write = make_team(WIDE)
    y = np.full_like(x, np.nan)

    def kernel():
        for row in range(ROWS):
            values = read(x, row, width)
            norm.forward(values, width, None, beta, 0.0)
            write(values, y, row, width)

    simulated_target.run(kernel, (), 1, TEAMS[WIDE][1])
    np.testing.assert_array_equal(y, np.broadcast_to(beta, y.shape))


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["several rows a warp", "a row a warp", WIDE])
def test_nan_and_infinity_stay_in_their_rows(name, value, order):
    width = TEAMS[name][3]
    x, dy = draw(np.float32, width), draw(np.float32, width, 1)
    norm = made(numnorm.cuda.layer_norm_row, name)
    # In float32 the root of 300 squared is not 300: others do not take the way of this row.
    good = forward(norm, name, x, None, None, 300.0)
    x[5, 7] = value
    y, mean, rstd = forward(norm, name, x, None, None, 300.0)
    assert np.isnan(y[5]).all()
    others = np.delete(np.arange(ROWS), 5)
    assert y[others].tobytes() == good[0][others].tobytes()
    dx, _ = backward(norm, name, dy, x, (mean, rstd), None)
    assert np.isnan(dx[5]).all()
    assert_close(dx[others], reference.layer_norm_backward(dy[others], x[others], eps=300.0)[0], 16)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_parameters_of_another_type(dtype, order):
    name = "a row a warp"
    x, norm = draw(np.float32, 83), made(numnorm.cuda.layer_norm_row, name)
    gamma, beta = draw(dtype, 83, 1)[0], draw(dtype, 83, 2)[0]
    y = forward(norm, name, x, gamma, beta, 1e-5)[0]
    same = forward(norm, name, x, gamma.astype(np.float32), beta.astype(np.float32), 1e-5)[0]
    assert y.tobytes() == same.tobytes()


@pytest.mark.parametrize("of", ["layer_norm", "rms_norm", "ada_norm"])
def test_calls_follow_one_another_without_a_barrier(of, order):
    """A block has one row after the other, forward and backward, of two norms in turn."""
    width = TEAMS[WIDE][3]
    x, dy = awkward_rows(width) / np.float32(7), draw(np.float32, width, 1)
    x = np.where(np.abs(x) < 1e10, x, x / np.float32(1e30))
    norm = made(getattr(numnorm.cuda, f"{of}_row"), WIDE)
    other = made(numnorm.cuda.layer_norm_row, WIDE, detach="mean")
    numbers = {"layer_norm": (None, None), "rms_norm": (None,), "ada_norm": (1.0, 0.1)}[of]
    of_slopes = (*numbers, 1e-5) if of == "ada_norm" else (None,)
    _, read, write = make_team(WIDE)
    y, dx = np.full_like(x, np.nan), np.full_like(x, np.nan)

    def kernel():
        for row in range(ROWS):
            values, xhats = read(x, row, width), read(x, row, width)
            grads, others = read(dy, row, width), read(dy, row, width)
            found = norm.forward(values, width, *numbers, 1e-5)
            write(values, y, row, width)
            statistics = found if isinstance(found, tuple) else (found,)
            norm.xhat(xhats, width, *statistics)
            norm.backward(grads, xhats, width, *of_slopes, statistics[-1])
            write(grads, dx, row, width)
            other.forward(others, width, None, None, 1e-5)

    simulated_target.run(kernel, (), 1, TEAMS[WIDE][1])
    assert_close(y, getattr(reference, of)(x)[0])
    expected = getattr(reference, f"{of}_backward")(dy, x)
    assert_close(dx, expected if of == "ada_norm" else expected[0], 32)


@pytest.mark.parametrize("repeated", ["forward", "backward"])
@pytest.mark.parametrize("of", ["layer_norm", "rms_norm"])
def test_one_function_again_and_again(of, repeated, order):
    width = TEAMS[WIDE][3]
    x, dy = draw(np.float32, width), draw(np.float32, width, 1)
    x[3] *= np.float32(1e30)
    x[4] = 0.1
    norm = made(getattr(numnorm.cuda, f"{of}_row"), WIDE)
    parameters = (None, None) if of == "layer_norm" else (None,)
    of_row = [np.float64(one) for one in getattr(reference, of)(x)[1:]]
    _, read, write = make_team(WIDE)
    found = np.full_like(x, np.nan)

    def kernel():
        for row in range(ROWS):
            values = read(x, row, width)
            if repeated == "forward":
                norm.forward(values, width, *parameters, 1e-5)
            else:
                xhats, values = values, read(dy, row, width)
                norm.xhat(xhats, width, *(one[row] for one in of_row))
                norm.backward(values, xhats, width, None, of_row[-1][row])
            write(values, found, row, width)

    simulated_target.run(kernel, (), 1, TEAMS[WIDE][1])
    if repeated == "forward":
        assert_close(found, getattr(reference, of)(x)[0])
    else:
        assert_close(found, getattr(reference, f"{of}_backward")(dy, x)[0], 16)


def test_the_same_arguments_give_the_same_functions():
    one, two = (numnorm.cuda.layer_norm_row(32, 4, dtype) for dtype in ("float32", np.float32))
    assert one == two
    assert one != numnorm.cuda.layer_norm_row(32, 4, np.float64)


@pytest.mark.parametrize(
    "error, message, arguments, options",
    [
        (ValueError, "threads must be a power of two up to 1024, got 48", (48, 4), {}),
        (ValueError, "threads must be a power of two up to 1024, got 2048", (2048, 4), {}),
        (ValueError, "threads must be at least 1, got 0", (0, 4), {}),
        (TypeError, "threads must be an int, got 32.0", (32.0, 4), {}),
        (ValueError, "slots must be at least 1, got 0", (32, 0), {}),
        (TypeError, "slots must be an int, got None", (32, None), {}),
        (TypeError, "dtype must be float32 or float64, got float16", (32, 4, "float16"), {}),
        (TypeError, "dtype must be float32 or float64, got None", (32, 4, None), {}),
        (
            ValueError,
            "detach must be None, 'mean', 'scale' or 'both', got 3",
            (32, 4),
            {"detach": 3},
        ),
    ],
)
def test_errors(error, message, arguments, options):
    with pytest.raises(error) as caught:
        numnorm.cuda.layer_norm_row(*arguments, **options)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "error, name, value", [(ValueError, "eps_in", "x"), (ValueError, "ddof", -1),
                           (TypeError, "detach_factor", 1)]
)  # fmt: skip
def test_errors_of_ada_norm(error, name, value):
    with pytest.raises(error, match=f"^{name} must be "):
        numnorm.cuda.ada_norm_row(32, 4, **{name: value})


def test_without_the_compiler(monkeypatch):
    monkeypatch.setitem(sys.modules, "numnorm.backends.cuda.device_functions", None)
    for make in (getattr(numnorm.cuda, f"{of}_norm_row") for of in ("layer", "rms", "ada")):
        with pytest.raises(ImportError, match=r"^device functions need numba-cuda or .*: pip inst"):
            make(32, 4)
