"""Full accuracy at any offset, scale and width, against the norms in extended precision.

Errors are measured against the largest value of the expected array, because that is what the
roundings on the way to a small one are relative to.
"""

import os
from collections.abc import Callable
from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest
import reference

import numnorm

ROWS, WIDTH = 8, 1024

# A normalized value collects six roundings: the distance to the centre, the rest of the mean and
# its subtraction, the sum of squares, rstd, and the product. The gradient needs that value and a
# product, two means and two differences more; so does a term of the sums over rows.
HALF_UNIT = {np.float32: 2.0**-24, np.float64: 2.0**-53}

# Interpreted, a sum is one chain of additions instead of sixteen or more side by side, each as
# much longer, and NumPy's scalars warn of the overflows that the kernels are made to notice.
COMPILED = os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"
CHAINS = 1 if COMPILED else 16
pytestmark = [] if COMPILED else [pytest.mark.filterwarnings("ignore::RuntimeWarning")]

FORWARD = {dtype: 6 * CHAINS * half for dtype, half in HALF_UNIT.items()}
BACKWARD = {dtype: 12 * CHAINS * half for dtype, half in HALF_UNIT.items()}


class Norm(NamedTuple):
    """A norm of rows: how its array is made of them, its functions, and their options."""

    arrange: Callable
    forward: Callable
    backward: Callable
    reference: Callable
    reference_backward: Callable
    options: dict
    parameters: tuple

    def run(self, x, eps, *parameters):
        return self.forward(x, *parameters, eps=eps, **self.options)

    def run_backward(self, dy, x, eps, *gamma, forward=None):
        """The gradients as a tuple; AdaNorm has one array and needs eps again."""
        _, *saved = forward or self.run(x, eps, *gamma)
        options = dict(self.options)
        if self.backward is numnorm.ada_norm_backward:
            options["eps"] = eps
        gradients = self.backward(dy, x, *saved, *gamma, **options)
        return gradients if isinstance(gradients, tuple) else (gradients,)

    def expect(self, x, eps, *parameters):
        return self.reference(x, *parameters, eps=eps, **self.options)[0]

    def expect_backward(self, dy, x, eps, *gamma):
        gradients = self.reference_backward(dy, x, *gamma, eps=eps, **self.options)
        return gradients if isinstance(gradients, tuple) else (gradients,)


def named(name, arrange, parameters=(), **options):
    """The functions of the norm `name` in numnorm and in the reference."""
    return Norm(
        arrange,
        getattr(numnorm, f"{name}_forward"),
        getattr(numnorm, f"{name}_backward"),
        getattr(reference, name),
        getattr(reference, f"{name}_backward"),
        options,
        parameters,
    )


def as_is(rows):
    return rows


def as_planes(rows):
    return rows.reshape(len(rows), 2, -1)


def as_samples(rows):
    """Half of the rows in each of two samples."""
    return rows.reshape(2, len(rows) // 2, -1)


def as_groups(rows):
    """Each row as two channels of one group of one of two samples."""
    return rows.reshape(2, len(rows), -1)


def as_columns(rows):
    return np.ascontiguousarray(rows.T)


def as_images(rows):
    """Each row as one channel, spread over two samples."""
    return np.ascontiguousarray(rows.reshape(len(rows), 2, -1).swapaxes(0, 1))


NORMS = {
    "layer": named("layer_norm", as_is, (WIDTH,)),
    "layer-axes": named("layer_norm", as_planes, (2, WIDTH // 2), axis=(1, 2)),
    "rms": named("rms_norm", as_is, (WIDTH,)),
    "ada": named("ada_norm", as_is),
    "ada-authors": named("ada_norm", as_is, eps_in="std", ddof=1, scale=0.8),
    "group": named("group_norm", as_groups, (ROWS,), groups=ROWS // 2),
    "instance": named("instance_norm", as_samples, (ROWS // 2,)),
    "batch": named("batch_norm", as_columns, (ROWS,)),
    "batch-images": named("batch_norm", as_images, (ROWS,)),
}
CENTRED = [name for name in NORMS if name != "rms"]
WITH_BETA = [name for name in CENTRED if not name.startswith("ada")]
WITH_GAMMA = [*WITH_BETA, "rms"]
OF_ROWS = [name for name in NORMS if not name.startswith("batch")]


def draw(dtype, mean=0.0, scale=1.0, rows=ROWS, width=WIDTH, seed=0):
    noise = np.random.default_rng(seed).normal(size=(rows, width))
    return (mean + scale * noise).astype(dtype)


def assert_error(actual, expected, relative, walk=0.0):
    """The largest error is at most `relative` of the largest expected value, or of the walk."""
    assert actual.shape == expected.shape
    assert np.all(np.isfinite(np.asarray(actual, np.float64)))
    error = np.abs(reference.exact(actual) - expected).max()
    scale = np.abs(expected).max() + walk
    assert error <= relative * scale, f"error {error:.3g} at a scale of {scale:.3g}"


def random_walk(terms, sums):
    """How far sums of so many such terms come by chance.

    A sum may cancel, but the roundings of its terms add up as a walk of that many random steps.
    """
    return np.sqrt(terms.size // sums.size * np.mean(np.square(reference.exact(terms))))


def assert_gradients(actual, expected, dy, xhat, relative):
    """dx by its own size; dgamma and dbeta as the sums of dy * xhat and of dy that they are."""
    assert len(actual) == len(expected)
    assert_error(actual[0], expected[0], relative)
    for mine, theirs, terms in zip(actual[1:], expected[1:], (dy * xhat, dy), strict=False):
        assert_error(mine, theirs, relative, random_walk(terms, theirs))


def assert_forward(norm, x, eps, relative=None):
    relative = relative or FORWARD[x.dtype.type]
    # The map of AdaNorm, z = C (1 - k y) y, is up to three times as steep as it is high where it
    # is highest: |1 - 2 k y| / |1 - k y| is 2.5 for a y of 32, the largest here.
    steeper = 3 if norm.backward is numnorm.ada_norm_backward else 1
    assert_error(norm.run(x, eps)[0], norm.expect(x, eps), steeper * relative)


def assert_backward(norm, dy, x, eps, relative=None):
    relative = relative or BACKWARD[x.dtype.type]
    actual, expected = norm.run_backward(dy, x, eps), norm.expect_backward(dy, x, eps)
    assert_gradients(actual, expected, dy, norm.expect(x, eps), relative)


# Offsets


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("mean", [0, 1e3, 1e6, 1e7])
def test_float32_at_any_mean(name, mean):
    norm = NORMS[name]
    x, dy = norm.arrange(draw(np.float32, mean)), norm.arrange(draw(np.float32, seed=1))
    y, expected = norm.run(x, 1e-5)[0], norm.expect(x, 1e-5)
    # Four roundings of 2^-24 of a number below 4.2; the map of AdaNorm has a slope of up to 1.9.
    bound = 1.9e-6 if name.startswith("ada") else 1e-6
    assert np.abs(y - expected).max() < bound * CHAINS
    assert_backward(norm, dy, x, 1e-5)


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("mean", [0, 1e3, 1e12])
def test_float64_at_any_mean(name, mean):
    norm = NORMS[name]
    x, dy = norm.arrange(draw(np.float64, mean)), norm.arrange(draw(np.float64, seed=1))
    # The saved mean is a float64, so it is off by up to half a unit of the mean, which every
    # normalized value of the backward pass inherits, and of batch norm, whose statistics are
    # what is saved, the forward pass as well.
    rounded_mean = 4 * mean * HALF_UNIT[np.float64]
    of_forward = 0 if name in OF_ROWS else rounded_mean
    assert_forward(norm, x, 1e-5, FORWARD[np.float64] + of_forward)
    assert_backward(norm, dy, x, 1e-5, BACKWARD[np.float64] + rounded_mean)


@pytest.mark.parametrize("detach", ["mean", "scale", "both"])
@pytest.mark.parametrize("mean", [0, 1e7])
def test_detached_gradients_at_any_mean(detach, mean):
    x, dy = draw(np.float32, mean), draw(np.float32, seed=1)
    _, *saved = numnorm.layer_norm_forward(x)
    actual = numnorm.layer_norm_backward(dy, x, *saved, detach=detach)
    expected = reference.layer_norm_backward(dy, x, detach=detach)
    assert_gradients(actual, expected, dy, reference.layer_norm(x)[0], BACKWARD[np.float32])


@pytest.mark.parametrize("name", WITH_GAMMA)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_parameters_keep_the_accuracy(name, dtype):
    norm = NORMS[name]
    x, dy = norm.arrange(draw(dtype, 1)), norm.arrange(draw(dtype, seed=1))
    parameters = draw(dtype, 1, 1, 2, int(np.prod(norm.parameters)), seed=2)
    gamma, beta = parameters.reshape(2, *norm.parameters)
    both = (gamma, beta) if name in WITH_BETA else (gamma,)
    # One rounding more for the gain and one for the bias.
    tolerance = FORWARD[dtype] + 2 * HALF_UNIT[dtype]
    assert_error(norm.run(x, 1e-5, *both)[0], norm.expect(x, 1e-5, *both), tolerance)
    actual, expected = (f(dy, x, 1e-5, gamma) for f in (norm.run_backward, norm.expect_backward))
    # The saved mean of one is off by up to half a unit, as above.
    tolerance = BACKWARD[dtype] + 4 * HALF_UNIT[np.float64]
    assert_gradients(actual, expected, dy, norm.expect(x, 1e-5), tolerance)


def poor_first_elements(dtype):
    """Rows whose beginning says nothing about the rest."""
    x = draw(dtype, 1e7)
    x[:, :16] = 0
    return x


def late_outlier(dtype):
    x = draw(dtype, 1e3)
    x[:, -1] = 1e9
    return x


def ramp(dtype):
    return (1e6 + np.arange(ROWS * WIDTH).reshape(ROWS, WIDTH)).astype(dtype)


def one_last_digit(dtype):
    """Constant rows but for one element that is the next number."""
    x = np.repeat(np.array([[0.1], [-0.087], [1e7], [1.0]] * 2, dtype), WIDTH, axis=1)
    x[:, 100] = np.nextafter(x[:, 100], dtype(np.inf))
    return x


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("rows", [poor_first_elements, late_outlier, ramp, one_last_digit])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_awkward_rows(name, rows, dtype):
    norm = NORMS[name]
    if rows is one_last_digit and dtype == np.float64 and name not in OF_ROWS:
        pytest.skip("the mean of a channel is a float64, which cannot hold these")
    # Most elements of a row are equal, so their squares round the same way each time they are
    # added: that does not average out, and the sums may cost as much as all the rest.
    assert_forward(norm, norm.arrange(rows(dtype)), 0, 2 * FORWARD[dtype])


# Scales


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("scale", [1e-30, 1e30])
@pytest.mark.parametrize("eps", [0, 1e-5])
def test_float32_at_any_scale(name, scale, eps):
    norm = NORMS[name]
    x, dy = norm.arrange(draw(np.float32, 0, scale)), norm.arrange(draw(np.float32, seed=1))
    assert_forward(norm, x, eps)
    assert_backward(norm, dy, x, eps)


@pytest.mark.skipif(not reference.LONGDOUBLE_IS_WIDER, reason="1e400 needs a wide longdouble")
@pytest.mark.parametrize("name", OF_ROWS)
@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_float64_at_any_scale(name, scale):
    norm = NORMS[name]
    x, dy = norm.arrange(draw(np.float64, 0, scale)), norm.arrange(draw(np.float64, seed=1))
    assert_forward(norm, x, 0)
    assert_backward(norm, dy, x, 0)


@pytest.mark.skipif(not reference.LONGDOUBLE_IS_WIDER, reason="1e400 needs a wide longdouble")
@pytest.mark.parametrize("name", ["batch", "batch-images"])
@pytest.mark.parametrize("scale", [1e-200, 1e-160, 1e-150, 1e150, 1e160, 1e200])
def test_a_float64_channel_is_right_or_nan(name, scale):
    """Moments are kept in float64; where the variance does not fit, that must show."""
    norm = NORMS[name]
    x = norm.arrange(draw(np.float64, 0, scale))
    y = norm.run(x, 0)[0]
    if not np.all(np.isnan(y)):
        assert_forward(norm, x, 0)


EXTREMES = [
    pytest.param(np.float32, 3e38, id="float32-largest"),
    pytest.param(np.float32, 1.4e-45, id="float32-subnormal"),
    pytest.param(np.float64, 1.7e308, id="float64-largest"),
    pytest.param(np.float64, 5e-324, id="float64-subnormal"),
]


@pytest.mark.skipif(not reference.LONGDOUBLE_IS_WIDER, reason="1e616 needs a wide longdouble")
@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("dtype, unit", EXTREMES)
def test_the_ends_of_the_range(name, dtype, unit):
    if dtype == np.float64 and name not in OF_ROWS:
        pytest.skip("the variance of a channel must be a float64")
    norm = NORMS[name]
    signs = np.random.default_rng(4).integers(-1, 2, size=(ROWS, WIDTH))
    # All squares are equal, so their sums round as in test_awkward_rows.
    x = norm.arrange(signs * dtype(unit)).astype(dtype)
    assert_forward(norm, x, 0, 2 * FORWARD[dtype])


@pytest.mark.parametrize("name", NORMS)
def test_rows_of_different_scales_side_by_side(name):
    norm = NORMS[name]
    # Every scale by itself is checked above; here each row has to be right beside the others,
    # and in units of its own normalized values, which are alike.
    scales = np.array([1, 1e30, 1e-30, 1e3, 1e-3, 1e30, 1, 1e-30])[:, None]
    x = norm.arrange((scales * draw(np.float64)).astype(np.float32))
    assert_forward(norm, x, 0)


def assert_half_rounding(actual, expected, also=0.0):
    """One rounding of a half, after a float32 computation with errors of `also` and 1e-6."""
    half_unit = float(ml_dtypes.finfo(actual.dtype).eps) / 2
    error = np.abs(reference.exact(actual) - expected)
    largest = np.abs(expected).max()
    assert np.all(error <= half_unit * np.abs(expected) + (1e-6 * CHAINS + also) * largest)


HALF_CASES = [
    pytest.param(np.float16, 0, 1, id="float16"),
    pytest.param(np.float16, 1e3, 4, id="float16-mean"),
    pytest.param(np.float16, 0, 1e4, id="float16-squares-overflow"),
    pytest.param(ml_dtypes.bfloat16, 0, 1, id="bfloat16"),
    pytest.param(ml_dtypes.bfloat16, 0, 1e30, id="bfloat16-1e30"),
    pytest.param(ml_dtypes.bfloat16, 0, 1e-30, id="bfloat16-1e-30"),
]


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("dtype, mean, scale", HALF_CASES)
def test_halves_are_rounded_once(name, dtype, mean, scale):
    norm = NORMS[name]
    x = norm.arrange(draw(dtype, mean, scale))
    forward = norm.run(x, 0)
    assert forward[0].dtype == dtype
    assert_half_rounding(forward[0], norm.expect(x, 0))
    # dx is about dy / scale and the sums are 32 dy, both of which float16 can hold here.
    dy = norm.arrange(draw(dtype, 0, 100 if scale == 1e4 else 1, seed=1))
    # The statistics are saved in float32: the mean is off by up to 2^-24 of itself.
    saved = 4 * mean / scale * 2.0**-24
    expected = norm.expect_backward(dy, x, 0)
    for mine, theirs in zip(norm.run_backward(dy, x, 0, forward=forward), expected, strict=True):
        assert_half_rounding(mine, theirs, saved)


# Constant rows

CONSTANTS = {
    np.float16: [0.0, 0.1, -0.087, 1 / 3, 6e4, -6.5e4, 1e-4, 6e-8],
    ml_dtypes.bfloat16: [0.0, 0.1, -0.087, 1 / 3, 1e30, 3e38, -3e38, 1e-30, 1e-40],
    np.float32: [0.0, 0.1, -0.087, 1 / 3, 1e7 + 1, 1e30, 3.4e38, -3e38, 1e-30, 1e-40, 1e-45],
    np.float64: [0.0, 0.1, -0.087, 1 / 3, 1e30, 3e38, 1e-40, 1e200, 1.7e308, -1.7e308, 5e-324],
}
WIDTHS = [1, 2, 3, 5, 8, 15, 16, 17, 33, 100, 255, 1000]


def constant_rows(dtype, width):
    """An even number of constant rows, as the arrangements ask for."""
    constants = CONSTANTS[dtype] + CONSTANTS[dtype][: len(CONSTANTS[dtype]) % 2]
    return np.repeat(np.array(constants).astype(dtype)[:, None], width, axis=1)


def gain_and_bias(dtype, width):
    """A gain and a bias; none for the halves, which saves compiling kernels that differ in them."""
    if dtype in HALF_UNIT:
        return tuple(draw(dtype, rows=2, width=width, seed=3))
    return None, None


@pytest.mark.parametrize("dtype", CONSTANTS)
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
    np.testing.assert_array_equal(numnorm.ada_norm(x, eps=eps), np.zeros_like(x))


@pytest.mark.parametrize("dtype", CONSTANTS)
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


@pytest.mark.parametrize("dtype", CONSTANTS)
@pytest.mark.parametrize("name", CENTRED)
def test_a_constant_row_without_eps_has_no_gradient(dtype, name):
    norm = NORMS[name]
    rows = constant_rows(dtype, 100)[: ROWS - ROWS % 2]
    x = norm.arrange(rows)
    dy = norm.arrange(draw(dtype, rows=len(rows), width=100, seed=1))
    gradients = norm.run_backward(dy, x, 0)
    np.testing.assert_array_equal(gradients[0], np.zeros_like(x))
    if len(gradients) == 3:
        np.testing.assert_array_equal(gradients[1], np.zeros_like(gradients[1]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", NORMS)
def test_the_gradient_of_a_constant_row_with_eps(dtype, name):
    norm = NORMS[name]
    x = norm.arrange(np.full((ROWS, WIDTH), 0.1, dtype))
    dy = norm.arrange(draw(dtype, seed=1))
    assert_backward(norm, dy, x, 1e-5)


def test_the_zero_row_of_rms_norm_and_the_zero_vector_of_weight_norm():
    zero, dy = np.zeros((3, 20), np.float32), draw(np.float32, rows=3, width=20)
    y, rstd = numnorm.rms_norm_forward(zero, eps=0)
    w, norm = numnorm.weight_norm_forward(zero)
    for array in (y, rstd, w, norm):
        np.testing.assert_array_equal(array, 0)
    gradients = numnorm.rms_norm_backward(dy, zero, rstd)
    for array in (*gradients, *numnorm.weight_norm_backward(dy, zero, norm)):
        np.testing.assert_array_equal(array, 0)


# Weight norm


@pytest.mark.parametrize("dtype, scale", [(np.float32, s) for s in (1e-30, 1, 1e30)])
@pytest.mark.parametrize("axis", [-1, 0, (0, 1)])
def test_weight_norm_at_any_scale(dtype, scale, axis):
    v, dw = draw(dtype, 0, scale, width=100), draw(dtype, width=100, seed=1)
    rest = [v.shape[n] for n in range(2) if n not in reference.normalized_axes(2, axis)]
    g = draw(dtype, 1, 1, 1, int(np.prod(rest)), seed=2).reshape(rest)
    w, norm = numnorm.weight_norm_forward(v, g, axis=axis)
    expected = reference.weight_norm(v, g, axis)
    assert_error(w, expected[0], FORWARD[dtype])
    # The norm is saved in float64, from float32 numbers that were squared and added.
    assert_error(norm, expected[1], FORWARD[dtype])
    dv, dg = numnorm.weight_norm_backward(dw, v, norm, g, axis=axis)
    expected_dv, expected_dg = reference.weight_norm_backward(dw, v, g, axis)
    assert_error(dv, expected_dv, BACKWARD[dtype])
    terms = dw * reference.weight_norm(v, None, axis)[0]
    assert_error(dg, expected_dg, BACKWARD[dtype], random_walk(terms, expected_dg))


@pytest.mark.skipif(not reference.LONGDOUBLE_IS_WIDER, reason="1e400 needs a wide longdouble")
@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_weight_norm_of_float64_at_any_scale(scale):
    v, dw = draw(np.float64, 0, scale, width=100), draw(np.float64, width=100, seed=1)
    w, norm = numnorm.weight_norm_forward(v)
    assert_error(w, reference.weight_norm(v)[0], FORWARD[np.float64])
    dv, dg = numnorm.weight_norm_backward(dw, v, norm)
    expected_dv, expected_dg = reference.weight_norm_backward(dw, v)
    assert_error(dv, expected_dv, BACKWARD[np.float64])
    terms = dw * reference.weight_norm(v)[0]
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


@pytest.mark.parametrize("name", NORMS)
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


@pytest.mark.parametrize("name", NORMS)
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
    clean, dw = draw(np.float32, width=67), draw(np.float32, width=67, seed=1)
    bad = clean.copy()
    bad[3, 21] = poison
    rest = np.arange(ROWS) != 3
    results = []
    for v in (bad, clean):
        w, norm = numnorm.weight_norm_forward(v)
        results.append((w, *numnorm.weight_norm_backward(dw, v, norm)))
    for mine, theirs in zip(*results, strict=True):
        assert same_bits(mine[rest], theirs[rest])
    if not np.isfinite(poison):
        assert np.any(np.isnan(results[0][0][3]))
