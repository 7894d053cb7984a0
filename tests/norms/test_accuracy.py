"""Full accuracy at any offset, scale and width, against the norms in extended precision."""

import os

import kernels
import numpy as np
import pytest
import reference
from accuracy_cases import (
    AWKWARD_ROWS,
    CENTRED,
    CONSTANTS,
    DETACHED_MEANS,
    EXTREMES,
    FLOAT32_MEANS,
    FLOAT32_SCALES,
    FLOAT64_MEANS,
    FLOAT64_SCALES,
    HALF_CASES,
    HALF_UNIT,
    NAMES,
    OF_ROWS,
    ROUNDINGS,
    ROWS,
    SCALES_OF_FLOAT64_CHANNELS,
    WEIGHT_NORM_SCALES,
    WIDTH,
    WITH_GAMMA,
    as_columns,
    assert_backward,
    assert_error,
    assert_forward,
    check_at_scale,
    check_awkward_rows,
    check_detached_at_mean,
    check_end_of_the_range,
    check_float32_at_mean,
    check_float64_at_mean,
    check_gradient_of_constant_rows,
    check_no_gradient_of_constant_rows,
    check_parameters,
    check_right_or_nan,
    check_rounded_once,
    check_scales_side_by_side,
    constant_rows,
    draw,
    needs_wide_longdouble,
    norms_of,
    random_walk,
)

import numnorm

# Interpreted, a sum is one chain of additions instead of sixteen or more side by side, each as
# much longer, and NumPy's scalars warn of the overflows that the kernels are made to notice.
COMPILED = os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"
CHAINS = 1 if COMPILED else 16
pytestmark = [] if COMPILED else [pytest.mark.filterwarnings("ignore::RuntimeWarning")]

NORMS = norms_of(ROWS, WIDTH, CHAINS)
FLOATS = [np.float32, np.float64]
FORWARD = {dtype: ROUNDINGS.forward * CHAINS * half for dtype, half in HALF_UNIT.items()}
BACKWARD = {dtype: ROUNDINGS.backward * CHAINS * half for dtype, half in HALF_UNIT.items()}


def each(names, *cases, parameters="none"):
    """Each norm with each case: a dtype, or more that begins with one."""
    functions = {name: NORMS[name].name for name in names}
    return kernels.pairs(functions, cases, parameters)


def of_float32(names):
    return kernels.names({name: NORMS[name].name for name in names}, np.float32)


def of_float64(names):
    return kernels.names({name: NORMS[name].name for name in names}, np.float64)


# Offsets


@pytest.mark.parametrize("name", of_float32(NAMES))
@pytest.mark.parametrize("mean", FLOAT32_MEANS)
def test_float32_at_any_mean(name, mean):
    check_float32_at_mean(NORMS[name], mean)


@pytest.mark.parametrize("name", of_float64(NAMES))
@pytest.mark.parametrize("mean", FLOAT64_MEANS)
def test_float64_at_any_mean(name, mean):
    check_float64_at_mean(NORMS[name], mean, backward_restores=True)


# The widths of the loops for rows in registers, in tiles, and of many blocks of a sum.
@pytest.mark.parametrize("name", of_float64(["layer", "ada", "group", "batch", "batch-images"]))
@pytest.mark.parametrize("width", [6, 8, 16, 32, 40, 300, 5000])
def test_float64_gradients_far_from_0_at_any_width(name, width):
    norm = norms_of(ROWS, width, CHAINS)[name]
    x = norm.draw(np.float64, -1e12)
    assert_backward(norm, norm.draw(np.float64, seed=1), x, 1e-5)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("shape, channel_axis", [((2, 2), 0), ((50, 6), 1), ((8, 6, 20), 1)])
def test_float64_gradients_of_a_channel_beside_one_far_from_0(shape, channel_axis, masked):
    """The mean of a channel near 0 is not summed again, whatever the other channels are."""
    x, dy = np.random.default_rng(0).normal(0.5, 1, (2, *shape))
    options = {"channel_axis": channel_axis} | ({"where": dy < 1} if masked else {})
    first, others = (np.moveaxis(x, channel_axis, 0)[part] for part in (0, slice(1, None)))
    found = []
    for offset in (0.0, 1e9, np.nan):
        first[...] = first - first.mean() + offset
        _, mean, rstd = numnorm.batch_norm_forward(x, **options)
        dx, dgamma, _ = numnorm.batch_norm_backward(dy, x, mean, rstd, **options)
        found.append((np.moveaxis(dx, channel_axis, 0)[1:].tobytes(), dgamma[1:].tobytes()))
    assert found[0] == found[1] == found[2] and np.all(np.isfinite(others))


@pytest.mark.parametrize("function", ["layer_norm", "batch_norm"])
def test_float64_gradients_keep_a_mean_that_the_caller_chose(function):
    x, dy = draw(np.float64, 1e6, rows=40, width=40), draw(np.float64, rows=40, width=40, seed=1)
    mean, rstd = np.full(40, 1e6 + 1), np.ones(40)
    dgamma = getattr(numnorm, f"{function}_backward")(dy, x, mean, rstd).dgamma
    # x - mean has at most 30 bits behind the point, and is exact.
    assert_error(dgamma, (reference.exact(dy) * (x - mean[0])).sum(0), BACKWARD[np.float64])


@pytest.mark.parametrize("detach", ["mean", "scale", "both"])
@pytest.mark.parametrize("mean", DETACHED_MEANS)
def test_detached_gradients_at_any_mean(detach, mean):
    check_detached_at_mean(NORMS["layer"], detach, mean)


@pytest.mark.parametrize("name, dtype", each(WITH_GAMMA, *FLOATS, parameters="both"))
def test_parameters_keep_the_accuracy(name, dtype):
    check_parameters(NORMS[name], dtype)


@pytest.mark.parametrize("name, dtype", each(NAMES, *FLOATS))
@pytest.mark.parametrize("rows", AWKWARD_ROWS)
def test_awkward_rows(name, rows, dtype):
    check_awkward_rows(NORMS[name], rows, dtype)


# Scales


@pytest.mark.parametrize("name", of_float32(NAMES))
@pytest.mark.parametrize("scale", FLOAT32_SCALES)
@pytest.mark.parametrize("eps", [0, 1e-5])
def test_float32_at_any_scale(name, scale, eps):
    check_at_scale(NORMS[name], np.float32, scale, eps)


@needs_wide_longdouble
@pytest.mark.parametrize("name", of_float64(OF_ROWS))
@pytest.mark.parametrize("scale", FLOAT64_SCALES)
def test_float64_at_any_scale(name, scale):
    check_at_scale(NORMS[name], np.float64, scale, 0)


@needs_wide_longdouble
@pytest.mark.parametrize("name", ["batch", "batch-images"])
@pytest.mark.parametrize("scale", SCALES_OF_FLOAT64_CHANNELS)
def test_a_float64_channel_is_right_or_nan(name, scale):
    check_right_or_nan(NORMS[name], scale)


@needs_wide_longdouble
@pytest.mark.parametrize("name, dtype, unit", each(NAMES, *EXTREMES))
def test_the_ends_of_the_range(name, dtype, unit):
    check_end_of_the_range(NORMS[name], dtype, unit)


@pytest.mark.parametrize("name", of_float32(NAMES))
def test_rows_of_different_scales_side_by_side(name):
    check_scales_side_by_side(NORMS[name])


@pytest.mark.parametrize("name, dtype, mean, scale", each(NAMES, *HALF_CASES))
def test_halves_are_rounded_once(name, dtype, mean, scale):
    check_rounded_once(NORMS[name], dtype, mean, scale)


# Constant rows

WIDTHS = [1, 2, 3, 5, 8, 15, 16, 17, 33, 100, 255, 1000]


def gain_and_bias(dtype, width):
    """A gain and a bias; none for the halves, which saves compiling kernels that differ in them."""
    if dtype in HALF_UNIT:
        return tuple(draw(dtype, rows=2, width=width, seed=3))
    return None, None


def constants_of(norm):
    """The dtypes of constants as parameters of a test of a norm with `gain_and_bias`."""
    return [
        *kernels.dtypes(norm, *HALF_UNIT, parameters="both"),
        *kernels.dtypes(norm, *(dtype for dtype in CONSTANTS if dtype not in HALF_UNIT)),
    ]


@pytest.mark.parametrize("dtype", constants_of("layer_norm"))
@pytest.mark.parametrize("eps", [0, 1e-5])
@pytest.mark.parametrize("width", WIDTHS)
def test_a_constant_row_is_exactly_beta(dtype, eps, width):
    x, (gamma, beta) = constant_rows(dtype, width), gain_and_bias(dtype, width)
    forward = numnorm.layer_norm_forward(x, gamma, beta, eps=eps)
    expected = np.zeros_like(x) if beta is None else np.broadcast_to(beta, x.shape)
    np.testing.assert_array_equal(forward.y, expected)
    np.testing.assert_array_equal(forward.mean, x[:, 0].astype(forward.mean.dtype))
    if eps == 0:
        np.testing.assert_array_equal(forward.rstd, 0)


@kernels.each_dtype("ada_norm", *CONSTANTS)
@pytest.mark.parametrize("eps", [0, 1e-5])
@pytest.mark.parametrize("width", WIDTHS)
def test_a_constant_row_of_ada_norm_is_zeros(dtype, eps, width):
    x = constant_rows(dtype, width)
    np.testing.assert_array_equal(numnorm.ada_norm(x, eps=eps), np.zeros_like(x))


@pytest.mark.parametrize("dtype", constants_of("instance_norm"))
@pytest.mark.parametrize("eps", [0, 1e-5])
@pytest.mark.parametrize("width", WIDTHS)
def test_a_constant_channel_is_exactly_beta(dtype, eps, width):
    x = constant_rows(dtype, width)
    gamma, beta = gain_and_bias(dtype, len(x))
    expected = np.zeros(len(x), dtype) if beta is None else beta
    y = numnorm.batch_norm(as_columns(x), gamma, beta, eps=eps)
    np.testing.assert_array_equal(y, np.broadcast_to(expected, y.shape))
    samples = np.stack([x, x[::-1]])
    for y in (
        numnorm.instance_norm(samples, gamma, beta, eps=eps),
        numnorm.group_norm(samples, gamma, beta, groups=len(x), eps=eps),
        numnorm.batch_norm(np.stack([x, x]), gamma, beta, eps=eps),
    ):
        np.testing.assert_array_equal(y, np.broadcast_to(expected[:, None], y.shape))


@pytest.mark.parametrize("dtype, largest", [(np.float32, 38), (np.float64, 308)])
def test_random_constants(dtype, largest):
    rng = np.random.default_rng(9)
    digits, exponents = rng.uniform(-3, 3, 200), rng.uniform(-largest, largest, 200)
    x = np.repeat((digits * 10**exponents).astype(dtype)[:, None], 37, axis=1)
    np.testing.assert_array_equal(numnorm.layer_norm(x, eps=0), 0)
    np.testing.assert_array_equal(numnorm.batch_norm(as_columns(x), eps=0), 0)


@pytest.mark.parametrize("name, dtype", each(CENTRED, *CONSTANTS))
def test_a_constant_row_without_eps_has_no_gradient(name, dtype):
    check_no_gradient_of_constant_rows(norms_of(ROWS, 100)[name], dtype)


@pytest.mark.parametrize("name, dtype", each(NAMES, *FLOATS))
def test_the_gradient_of_a_constant_row_with_eps(name, dtype):
    check_gradient_of_constant_rows(NORMS[name], dtype)


def test_the_zero_row_of_rms_norm_and_the_zero_vector_of_weight_norm():
    zero, dy = np.zeros((3, 20), np.float32), draw(np.float32, rows=3, width=20)
    gamma, g = np.ones(20, np.float32), np.ones(3, np.float32)
    y, rstd = numnorm.rms_norm_forward(zero, gamma, eps=0)
    w, norm = numnorm.weight_norm_forward(zero, g)
    for array in (y, rstd, w, norm):
        np.testing.assert_array_equal(array, 0)
    gradients = numnorm.rms_norm_backward(dy, zero, rstd, gamma)
    for array in (*gradients, *numnorm.weight_norm_backward(dy, zero, norm, g)):
        np.testing.assert_array_equal(array, 0)


# Weight norm


@pytest.mark.parametrize("dtype, scale", [(np.float32, s) for s in WEIGHT_NORM_SCALES])
@pytest.mark.parametrize("axis", [-1, 0, (0, 1)])
def test_weight_norm_at_any_scale(dtype, scale, axis):
    x, dy = draw(dtype, 0, scale, width=100), draw(dtype, width=100, seed=1)
    rest = [x.shape[n] for n in range(2) if n not in reference.normalized_axes(2, axis)]
    g = draw(dtype, 1, 1, 1, int(np.prod(rest)), seed=2).reshape(rest)
    y, norm = numnorm.weight_norm_forward(x, g, axis=axis)
    expected = reference.weight_norm(x, g, axis)
    assert_error(y, expected[0], FORWARD[dtype])
    # The norm is saved in float64, from float32 numbers that were squared and added.
    assert_error(norm, expected[1], FORWARD[dtype])
    dx, dg = numnorm.weight_norm_backward(dy, x, norm, g, axis=axis)
    expected_dx, expected_dg = reference.weight_norm_backward(dy, x, g, axis)
    assert_error(dx, expected_dx, BACKWARD[dtype])
    terms = dy * reference.weight_norm(x, None, axis)[0]
    assert_error(dg, expected_dg, BACKWARD[dtype], random_walk(terms, expected_dg))


@needs_wide_longdouble
@kernels.full
@pytest.mark.parametrize("scale", FLOAT64_SCALES)
def test_weight_norm_of_float64_at_any_scale(scale):
    x, dy = draw(np.float64, 0, scale, width=100), draw(np.float64, width=100, seed=1)
    y, norm = numnorm.weight_norm_forward(x)
    assert_error(y, reference.weight_norm(x)[0], FORWARD[np.float64])
    dx, dg = numnorm.weight_norm_backward(dy, x, norm)
    expected_dx, expected_dg = reference.weight_norm_backward(dy, x)
    assert_error(dx, expected_dx, BACKWARD[np.float64])
    terms = dy * reference.weight_norm(x)[0]
    assert_error(dg, expected_dg, BACKWARD[np.float64], random_walk(terms, expected_dg))


# Long rows


@pytest.mark.skipif(not COMPILED, reason="a million steps of interpreted Python take a minute")
@pytest.mark.parametrize("name", ["layer", "rms", "instance", "batch"])
def test_a_million_elements(name):
    norm = NORMS[name]
    x = norm.arrange(draw(np.float32, 1e3, 1, 2, 1_000_000))
    dy = norm.arrange(draw(np.float32, 0, 1, 2, 1_000_000, seed=1))
    # The statistics are sums of a million terms; summed in blocks their error stays below that
    # of one element, so the tolerance is that of a short row.
    assert_forward(norm, x, 1e-5)
    assert_backward(norm, dy, x, 1e-5)


# What is not a number stays where it is

POISONS = [np.nan, np.inf, -np.inf, 1e30]


def same_bits(left, right):
    return np.array_equal(left.view(np.uint32), right.view(np.uint32))


def poisoned(norm, poison):
    """Rows, the same rows with one bad element, and a mask of the row that has it."""
    clean = draw(np.float32, 2, width=67 * 2)
    bad, mask = clean.copy(), np.zeros(clean.shape, bool)
    bad[3, 21] = poison
    mask[3] = True
    return (norm.arrange(array) for array in (clean, bad, mask))


@pytest.mark.parametrize("name", of_float32(NAMES))
@pytest.mark.parametrize("poison", POISONS)
def test_a_bad_element_stays_in_its_row_forward(name, poison):
    norm = NORMS[name]
    clean, bad, mask = poisoned(norm, poison)
    y, expected = norm.run(bad, 1e-5)[0], norm.run(clean, 1e-5)[0]
    assert same_bits(y[~mask], expected[~mask])
    if np.isnan(poison):
        assert np.all(np.isnan(y[mask]))
    elif np.isinf(poison):
        assert np.any(np.isnan(y[mask]))
    else:
        assert np.all(np.isfinite(y))


@pytest.mark.parametrize("name", of_float32(NAMES))
@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("where", ["x", "dy"])
def test_a_bad_element_stays_in_its_row_backward(name, poison, where):
    norm = NORMS[name]
    clean, bad, mask = poisoned(norm, poison)
    other = norm.arrange(draw(np.float32, width=67 * 2, seed=1))
    if where == "x":
        gradients, expected = (norm.run_backward(other, x, 1e-5) for x in (bad, clean))
    else:
        gradients, expected = (norm.run_backward(dy, other, 1e-5) for dy in (bad, clean))
    assert same_bits(gradients[0][~mask], expected[0][~mask])
    if np.isfinite(poison):
        assert np.all(np.isfinite(gradients[0]))
    else:
        assert np.any(np.isnan(gradients[0][mask]))
    if name.startswith(("batch", "instance", "group")):
        others = ~mask.any(axis=tuple(n for n in range(mask.ndim) if n != 1))
        for mine, theirs in zip(gradients[1:], expected[1:], strict=True):
            assert same_bits(mine[others], theirs[others])


@pytest.mark.parametrize("poison", POISONS)
def test_a_bad_element_stays_in_its_weight_vector(poison):
    clean, dy = draw(np.float32, width=67), draw(np.float32, width=67, seed=1)
    bad = clean.copy()
    bad[3, 21] = poison
    rest = np.arange(ROWS) != 3
    results = []
    for x in (bad, clean):
        y, norm = numnorm.weight_norm_forward(x)
        results.append((y, *numnorm.weight_norm_backward(dy, x, norm)))
    for mine, theirs in zip(*results, strict=True):
        assert same_bits(mine[rest], theirs[rest])
    if not np.isfinite(poison):
        assert np.any(np.isnan(results[0][0][3]))
