"""Accuracy checks of the norms at many means and scales, for every backend.

Errors are relative to the largest value of the expected array, because the roundings that lead to
a small value are, too.
"""

from collections.abc import Callable
from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest
import reference

import numnorm

ROWS, WIDTH = 8, 1024

HALF_UNIT = {np.float32: 2.0**-24, np.float64: 2.0**-53}


class Roundings(NamedTuple):
    """The largest errors of a forward and a backward pass, in half units in the last place."""

    forward: int
    backward: int


# A normalized value has six roundings: the distance to the pivot, the low part of the mean and its
# subtraction, the sum of squares, rstd, and the product. The gradient has this value, a product,
# two means and two differences; so has a term of the sums over rows.
ROUNDINGS = Roundings(6, 12)

# The means and scales of normally distributed numbers.
FLOAT32_MEANS = [0, 1e3, 1e6, 1e7]
FLOAT64_MEANS = [0, 1e3, 1e12]
DETACHED_MEANS = [0, 1e7]
FLOAT32_SCALES = [1e-30, 1e30]
FLOAT64_SCALES = [1e-200, 1e200]
SCALES_OF_FLOAT64_CHANNELS = [1e-200, 1e-160, 1e-150, 1e150, 1e160, 1e200]
SCALES_SIDE_BY_SIDE = [1, 1e30, 1e-30, 1e3, 1e-3, 1e30, 1, 1e-30]
WEIGHT_NORM_SCALES = [1e-30, 1, 1e30]

EXTREMES = [
    pytest.param(np.float32, 3e38, id="float32-largest"),
    pytest.param(np.float32, 1.4e-45, id="float32-subnormal"),
    pytest.param(np.float64, 1.7e308, id="float64-largest"),
    pytest.param(np.float64, 5e-324, id="float64-subnormal"),
]

# A half-precision dtype, a mean and a scale.
HALF_CASES = [
    pytest.param(np.float16, 0, 1, id="float16"),
    pytest.param(np.float16, 1e3, 4, id="float16-mean"),
    pytest.param(np.float16, 0, 1e4, id="float16-squares-overflow"),
    pytest.param(ml_dtypes.bfloat16, 0, 1, id="bfloat16"),
    pytest.param(ml_dtypes.bfloat16, 0, 1e30, id="bfloat16-1e30"),
    pytest.param(ml_dtypes.bfloat16, 0, 1e-30, id="bfloat16-1e-30"),
]

CONSTANTS = {
    np.float16: [0.0, 0.1, -0.087, 1 / 3, 6e4, -6.5e4, 1e-4, 6e-8],
    ml_dtypes.bfloat16: [0.0, 0.1, -0.087, 1 / 3, 1e30, 3e38, -3e38, 1e-30, 1e-40],
    np.float32: [0.0, 0.1, -0.087, 1 / 3, 1e7 + 1, 1e30, 3.4e38, -3e38, 1e-30, 1e-40, 1e-45],
    np.float64: [0.0, 0.1, -0.087, 1 / 3, 1e30, 3e38, 1e-40, 1e200, 1.7e308, -1.7e308, 5e-324],
}

needs_wide_longdouble = pytest.mark.skipif(
    not reference.LONGDOUBLE_IS_WIDER, reason="the definition needs a wide longdouble"
)


# The norms


class Norm(NamedTuple):
    """A norm of rows: how to arrange them as its array, its functions, and their options.

    `roundings` bounds the errors of a compiled kernel; `chains` is the factor by which the chains
    of additions are longer than there.
    """

    name: str
    arrange: Callable
    forward: Callable
    backward: Callable
    options: dict
    parameters: tuple
    rows: int
    width: int
    chains: int
    roundings: Roundings

    @property
    def is_ada(self):
        return self.name == "ada_norm"

    def forward_error(self, dtype):
        return self.roundings.forward * self.chains * HALF_UNIT[dtype]

    def backward_error(self, dtype):
        return self.roundings.backward * self.chains * HALF_UNIT[dtype]

    def draw(self, dtype, mean=0.0, scale=1.0, seed=0):
        return self.arrange(draw(dtype, mean, scale, self.rows, self.width, seed))

    def run(self, x, eps, *parameters):
        return self.forward(x, *parameters, eps=eps, **self.options)

    def run_backward(self, dy, x, eps, *gamma, forward=None):
        """Return the gradients as a tuple; AdaNorm returns one array and needs eps again."""
        _, *saved = forward or self.run(x, eps, *gamma)
        options = dict(self.options)
        if self.is_ada:
            options["eps"] = eps
        gradients = self.backward(dy, x, *saved, *gamma, **options)
        return gradients if isinstance(gradients, tuple) else (gradients,)

    def expect(self, x, eps, *parameters):
        return getattr(reference, self.name)(x, *parameters, eps=eps, **self.options)[0]

    def expect_backward(self, dy, x, eps, *gamma):
        backward = getattr(reference, f"{self.name}_backward")
        gradients = backward(dy, x, *gamma, eps=eps, **self.options)
        return gradients if isinstance(gradients, tuple) else (gradients,)


def as_is(rows):
    return rows


def as_planes(rows):
    return rows.reshape(len(rows), 2, -1)


def as_samples(rows):
    """Half of the rows in each of two samples, as channels."""
    return rows.reshape(2, len(rows) // 2, -1)


def as_groups(rows):
    """Each row as two channels of one group of one of two samples."""
    return rows.reshape(2, len(rows), -1)


def as_columns(rows):
    return np.ascontiguousarray(rows.T)


def as_images(rows):
    """Each row as one channel, half of it in each of two samples."""
    return np.ascontiguousarray(rows.reshape(len(rows), 2, -1).swapaxes(0, 1))


def norms_of(rows, width, chains=1, roundings=ROUNDINGS):
    """Every norm, for an even number of rows of an even width."""

    def named(name, arrange, parameters=(), **options):
        functions = (getattr(numnorm, f"{name}_{way}") for way in ("forward", "backward"))
        sizes = parameters, rows, width
        return Norm(name, arrange, *functions, options, *sizes, chains, roundings)

    return {
        "layer": named("layer_norm", as_is, (width,)),
        "layer-axes": named("layer_norm", as_planes, (2, width // 2), axis=(1, 2)),
        "rms": named("rms_norm", as_is, (width,)),
        "ada": named("ada_norm", as_is),
        "ada-authors": named("ada_norm", as_is, eps_in="std", ddof=1, scale=0.8),
        "group": named("group_norm", as_groups, (rows,), groups=rows // 2),
        "instance": named("instance_norm", as_samples, (rows // 2,)),
        "batch": named("batch_norm", as_columns, (rows,)),
        "batch-images": named("batch_norm", as_images, (rows,)),
    }


NAMES = list(norms_of(ROWS, WIDTH))
CENTRED = [name for name in NAMES if name != "rms"]
WITH_BETA = [name for name in CENTRED if not name.startswith("ada")]
WITH_GAMMA = [*WITH_BETA, "rms"]
OF_ROWS = [name for name in NAMES if not name.startswith("batch")]


# The data


def draw(dtype, mean=0.0, scale=1.0, rows=ROWS, width=WIDTH, seed=0):
    noise = np.random.default_rng(seed).normal(size=(rows, width))
    return (mean + scale * noise).astype(dtype)


def poor_first_elements(dtype, rows, width):
    """Rows whose first elements are a bad pivot."""
    x = draw(dtype, 1e7, rows=rows, width=width)
    x[:, :16] = 0
    return x


def late_outlier(dtype, rows, width):
    x = draw(dtype, 1e3, rows=rows, width=width)
    x[:, -1] = 1e9
    return x


def ramp(dtype, rows, width):
    return (1e6 + np.arange(rows * width).reshape(rows, width)).astype(dtype)


def one_last_digit(dtype, rows, width):
    """Constant rows except one element, which is the next larger number."""
    constants = np.resize(np.array([0.1, -0.087, 1e7, 1.0], dtype), rows)
    x = np.repeat(constants[:, None], width, axis=1)
    x[:, 100] = np.nextafter(x[:, 100], dtype(np.inf))
    return x


AWKWARD_ROWS = [poor_first_elements, late_outlier, ramp, one_last_digit]


def constant_rows(dtype, width):
    """An even number of constant rows, as the arrangements need."""
    constants = CONSTANTS[dtype] + CONSTANTS[dtype][: len(CONSTANTS[dtype]) % 2]
    return np.repeat(np.array(constants).astype(dtype)[:, None], width, axis=1)


# The bounds


def assert_error(actual, expected, relative, walk=0.0):
    """Check that the largest error is at most `relative` times (largest expected value + walk)."""
    assert actual.shape == expected.shape
    assert np.all(np.isfinite(np.asarray(actual, np.float64)))
    error = np.abs(reference.exact(actual) - expected).max()
    scale = np.abs(expected).max() + walk
    assert error <= relative * scale, f"error {error:.3g} at a scale of {scale:.3g}"


def random_walk(terms, sums):
    """Return the expected size of sums of such terms with random signs.

    A sum may cancel, but the roundings of its terms add up like a random walk.
    """
    return np.sqrt(terms.size // sums.size * np.mean(np.square(reference.exact(terms))))


def assert_gradients(actual, expected, dy, xhat, relative):
    """Check dx relative to its size; dgamma and dbeta as sums of dy * xhat and of dy."""
    assert len(actual) == len(expected)
    assert_error(actual[0], expected[0], relative)
    for mine, theirs, terms in zip(actual[1:], expected[1:], (dy * xhat, dy), strict=False):
        assert_error(mine, theirs, relative, random_walk(terms, theirs))


def assert_forward(norm, x, eps, times=1, also=0.0):
    """Check a forward pass against `times` its error bound plus `also`."""
    # AdaNorm's z = C (1 - k y) y multiplies relative errors by |1 - 2 k y| / |1 - k y|: 2.5 for
    # the largest y here, 32.
    steeper = 3 if norm.is_ada else 1
    relative = times * norm.forward_error(x.dtype.type) + also
    assert_error(norm.run(x, eps)[0], norm.expect(x, eps), steeper * relative)


def assert_backward(norm, dy, x, eps, also=0.0):
    relative = norm.backward_error(x.dtype.type) + also
    actual, expected = norm.run_backward(dy, x, eps), norm.expect_backward(dy, x, eps)
    assert_gradients(actual, expected, dy, norm.expect(x, eps), relative)


def assert_half_rounding(norm, actual, expected, also=0.0):
    """Check for one rounding to half precision, after float32 errors of `also` and 1e-6."""
    half_unit = float(ml_dtypes.finfo(actual.dtype).eps) / 2
    error = np.abs(reference.exact(actual) - expected)
    largest = np.abs(expected).max()
    assert np.all(error <= half_unit * np.abs(expected) + (1e-6 * norm.chains + also) * largest)


# The checks


def check_float32_at_mean(norm, mean):
    x, dy = norm.draw(np.float32, mean), norm.draw(np.float32, seed=1)
    y, expected = norm.run(x, 1e-5)[0], norm.expect(x, 1e-5)
    # Four roundings of 2^-24 of a number below 4.2; AdaNorm multiplies errors by up to 1.9.
    bound = 1.9e-6 if norm.is_ada else 1e-6
    assert np.abs(y - expected).max() < bound * norm.chains
    assert_backward(norm, dy, x, 1e-5)


def check_float64_at_mean(norm, mean, backward_restores=False):
    x, dy = norm.draw(np.float64, mean), norm.draw(np.float64, seed=1)
    # The saved mean is rounded to float64, which shifts the normalized values of the backward
    # pass, unless it restores what was lost; for batch norm, which uses the saved statistics, those
    # of the forward pass as well.
    rounded_mean = 4 * mean * HALF_UNIT[np.float64]
    assert_forward(norm, x, 1e-5, also=rounded_mean if norm.name == "batch_norm" else 0)
    assert_backward(norm, dy, x, 1e-5, also=0 if backward_restores else rounded_mean)


def check_detached_at_mean(norm, detach, mean):
    x, dy = norm.draw(np.float32, mean), norm.draw(np.float32, seed=1)
    _, *saved = norm.run(x, 1e-5)
    actual = norm.backward(dy, x, *saved, detach=detach)
    expected = reference.layer_norm_backward(dy, x, detach=detach)
    relative = norm.backward_error(np.float32)
    assert_gradients(actual, expected, dy, norm.expect(x, 1e-5), relative)


def check_parameters(norm, dtype):
    x, dy = norm.draw(dtype, 1), norm.draw(dtype, seed=1)
    parameters = draw(dtype, 1, 1, 2, int(np.prod(norm.parameters)), seed=2)
    gamma, beta = parameters.reshape(2, *norm.parameters)
    both = (gamma,) if norm.name == "rms_norm" else (gamma, beta)
    # One more rounding for the gain and one for the bias.
    tolerance = norm.forward_error(dtype) + 2 * HALF_UNIT[dtype]
    assert_error(norm.run(x, 1e-5, *both)[0], norm.expect(x, 1e-5, *both), tolerance)
    actual, expected = (f(dy, x, 1e-5, gamma) for f in (norm.run_backward, norm.expect_backward))
    # The saved mean, about 1, is off by up to half a unit, as above.
    tolerance = norm.backward_error(dtype) + 4 * HALF_UNIT[np.float64]
    assert_gradients(actual, expected, dy, norm.expect(x, 1e-5), tolerance)


def check_awkward_rows(norm, rows, dtype):
    if rows is one_last_digit and dtype == np.float64 and norm.name == "batch_norm":
        pytest.skip("the mean of a channel is a float64, which cannot hold these")
    # Most elements of a row are equal, so that the additions of their squares round in the same
    # direction: these errors do not average out.
    assert_forward(norm, norm.arrange(rows(dtype, norm.rows, norm.width)), 0, times=2)


def check_at_scale(norm, dtype, scale, eps):
    x, dy = norm.draw(dtype, 0, scale), norm.draw(dtype, seed=1)
    assert_forward(norm, x, eps)
    assert_backward(norm, dy, x, eps)


def check_right_or_nan(norm, scale):
    """Moments are float64; a variance out of its range must give NaN."""
    x = norm.draw(np.float64, 0, scale)
    y = norm.run(x, 0)[0]
    if not np.all(np.isnan(y)):
        assert_forward(norm, x, 0)


def check_end_of_the_range(norm, dtype, unit):
    if dtype == np.float64 and norm.name == "batch_norm":
        pytest.skip("the variance of a channel must be a float64")
    signs = np.random.default_rng(4).integers(-1, 2, size=(norm.rows, norm.width))
    # All squares are equal, so their sums round as in `check_awkward_rows`.
    x = norm.arrange(signs * dtype(unit)).astype(dtype)
    assert_forward(norm, x, 0, times=2)


def check_scales_side_by_side(norm):
    # The scales are checked one by one above; here rows of different scales are in one array.
    # Their normalized values are of equal size.
    scales = np.resize(SCALES_SIDE_BY_SIDE, norm.rows)[:, None]
    rows = scales * draw(np.float64, rows=norm.rows, width=norm.width)
    assert_forward(norm, norm.arrange(rows.astype(np.float32)), 0)


def check_rounded_once(norm, dtype, mean, scale):
    x = norm.draw(dtype, mean, scale)
    forward = norm.run(x, 0)
    assert forward[0].dtype == dtype
    assert_half_rounding(norm, forward[0], norm.expect(x, 0))
    # dx is about dy / scale and the sums are 32 dy, both of which float16 can hold here.
    dy = norm.draw(dtype, 0, 100 if scale == 1e4 else 1, seed=1)
    # The statistics are saved in float32: the relative error of the mean is up to 2^-24.
    saved = 4 * mean / scale * 2.0**-24
    expected = norm.expect_backward(dy, x, 0)
    for mine, theirs in zip(norm.run_backward(dy, x, 0, forward=forward), expected, strict=True):
        assert_half_rounding(norm, mine, theirs, saved)


def check_gradient_of_constant_rows(norm, dtype):
    x = norm.arrange(np.full((norm.rows, norm.width), 0.1, dtype))
    assert_backward(norm, norm.draw(dtype, seed=1), x, 1e-5)


def check_no_gradient_of_constant_rows(norm, dtype):
    rows = constant_rows(dtype, norm.width)[: norm.rows]
    x, dy = norm.arrange(rows), norm.draw(dtype, seed=1)
    gradients = norm.run_backward(dy, x, 0)
    np.testing.assert_array_equal(gradients[0], np.zeros_like(x))
    if len(gradients) == 3:
        np.testing.assert_array_equal(gradients[1], np.zeros_like(gradients[1]))
