"""Checks of a norm with its options against the definition, within bounds on the errors.

`Bounds` derives them from the number of roundings.
"""

import contextlib
import inspect
import math
import os
from typing import NamedTuple

import ml_dtypes
import numpy as np
import reference

import numnorm

BFLOAT16 = ml_dtypes.bfloat16
FLOATS = [np.float32, np.float64]
HALVES = [np.float16, BFLOAT16]
DTYPES = [*HALVES, *FLOATS]
# The relative error of one rounding: half a unit in the last place. If longdouble is float64, the
# expected values have as many roundings as the actual ones.
WORKING = dict.fromkeys([*HALVES, np.float32], 2.0**-24)
WORKING[np.float64] = 2.0**-53 if reference.LONGDOUBLE_IS_WIDER else 2.0**-52
# Mean and rstd are saved in float64, for float16 in float32.
SAVED = {np.float16: 2.0**-24} | dict.fromkeys([BFLOAT16, *FLOATS], 2.0**-53)
# A normalized value is rounded by centring, by the product with rstd, and by gain and bias; rstd
# has the roundings of a sum, a quotient and a square root. The gradient has four more products.
# The gradient of gamma or beta is a sum over rows with some dozens of roundings; as their signs are
# random, their square root counts, and the roundings of the terms.
FORWARD_ROUNDINGS, BACKWARD_ROUNDINGS, SUM_ROUNDINGS = 8, 12, 16
COUNTS = {"ada_norm": 0, "standard_normal_variate": 0, "rms_norm": 1, "weight_norm": 1}
BY_AXIS = "layer_norm", "rms_norm", "ada_norm", "standard_normal_variate", "weight_norm"
UNCOMPILED = os.environ.get("NUMBA_DISABLE_JIT", "0") != "0"


def result_dtype(array):
    """The dtype of the result for an array: its own in native order, float64 for integers."""
    dtype = np.asarray(array).dtype
    return np.dtype(np.float64) if dtype.kind in "biu" else dtype.newbyteorder("=")


class Norm(NamedTuple):
    """A norm with its options, and a shape that they fit.

    `backward_only` are the options that the forward pass does not have.
    """

    name: str
    shape: tuple
    options: dict = {}
    backward_only: dict = {}

    @property
    def parameters(self):
        """The number of learned parameters."""
        return COUNTS.get(self.name, 2)

    @property
    def compiled_as(self):
        """The norm whose kernels it has: for groups of flat arrays, layer norm."""
        flat = self.name == "group_norm" and len(self.shape) == 2
        return "layer_norm" if flat else self.name

    @property
    def centred(self):
        return self.name not in ("rms_norm", "weight_norm")

    @property
    def result_types(self):
        """The result types of the forward and of the backward function."""
        return {
            "ada_norm": (numnorm.Normalized, np.ndarray),
            "standard_normal_variate": (numnorm.Normalized, np.ndarray),
            "rms_norm": (numnorm.RMSNormalized, numnorm.RMSGradients),
            "weight_norm": (numnorm.WeightNormalized, numnorm.WeightGradients),
        }.get(self.name, (numnorm.Normalized, numnorm.Gradients))

    @property
    def by_axis(self):
        """Whether its argument is the normalized axes, not the axis of the channels."""
        return self.name in BY_AXIS

    @property
    def shared_axes(self):
        """The axes along which no parameter of a channel changes."""
        ndim = len(self.shape)
        if self.by_axis:
            return reference.normalized_axes(ndim, self.options.get("axis", -1))
        return reference.shared_and_channel(self.options.get("channel_axis", 1), ndim)[0]

    @property
    def parameter_axes(self):
        """The axes of gamma and beta."""
        if self.by_axis and self.name != "weight_norm":
            return self.shared_axes
        return reference.other_axes(len(self.shape), self.shared_axes)

    @property
    def parameter_shape(self):
        return tuple(self.shape[axis] for axis in self.parameter_axes)

    def rows(self, array):
        """View an array of the shape of x as rows, each of elements that share statistics."""
        if self.name in ("group_norm", "instance_norm"):
            channel_axis = self.options.get("channel_axis", 1)
            groups = self.options.get("groups", array.shape[channel_axis])
            split = reference.split_groups(array, groups, channel_axis)[1]
            return split.reshape(-1, split.shape[-1])
        shared = self.shared_axes
        moved = np.moveaxis(array, shared, range(-len(shared), 0))
        return moved.reshape(-1, math.prod(self.shape[axis] for axis in shared))

    def over_x(self, parameter, missing):
        """Broadcast a parameter to the shape of x."""
        along = reference.along(parameter, len(self.shape), self.parameter_axes, missing)
        return np.broadcast_to(along, self.shape)

    def plain(self, x, *parameters):
        return getattr(numnorm, self.name)(x, *parameters, **self.options)

    def forward(self, x, *parameters, **out):
        return getattr(numnorm, f"{self.name}_forward")(x, *parameters, **self.options, **out)

    def backward(self, dy, x, saved, *gamma, **out):
        function = getattr(numnorm, f"{self.name}_backward")
        known = inspect.signature(function).parameters
        options = {name: value for name, value in self.options.items() if name in known}
        return function(dy, x, *saved, *gamma, **options, **self.backward_only, **out)

    def expected(self, x, *parameters):
        return getattr(reference, self.name)(x, *parameters, **self.options)

    def expected_backward(self, dy, x, *gamma):
        options = self.options | self.backward_only
        return getattr(reference, f"{self.name}_backward")(dy, x, *gamma, **options)

    def normalized(self, x):
        """The normalized values of x, and rstd of each row."""
        options = self.options | ({"scale": 1, "k": 0} if self.name == "ada_norm" else {})
        xhat, *_, rstd = getattr(reference, self.name)(x, **options)
        rstd = reference.inverse(rstd) if self.name == "weight_norm" else rstd
        return xhat, rstd.reshape(-1, 1)


def as_tuple(gradients):
    """Return gradients as a tuple: without parameters there is a single array."""
    return gradients if isinstance(gradients, tuple) else (gradients,)


def largest(rows):
    return np.abs(rows).max(axis=1, keepdims=True)


class Bounds:
    """The largest allowed errors of the results; those of y and dx for each row.

    The error of a rounding is relative to the largest terms of the formula in its row.
    """

    def __init__(self, norm, x, gamma=None, beta=None, dy=0.0):
        dtype = result_dtype(x).type
        self.norm, self.x, self.dy = norm, reference.exact(x), np.abs(reference.exact(dy))
        self.unit, self.saved_unit = WORKING[dtype], SAVED[dtype]
        self.xhat, self.rstd = norm.normalized(x)
        self.peak = largest(norm.rows(self.xhat))
        self.gamma = norm.over_x(gamma, 1)
        self.largest_gamma = largest(norm.rows(self.gamma))
        self.largest_beta = largest(norm.rows(norm.over_x(beta, 0)))
        # The rounding of the saved mean shifts each normalized value.
        rows = norm.rows(self.x)
        self.mean = rows.mean(axis=1, keepdims=True) if norm.centred else np.zeros((1, 1))
        self.drift = self.saved_unit * np.abs(self.mean * self.rstd)
        self.merging = self.rounded_means() * np.abs(self.rstd)
        # A sum of n equal terms rounds n times in the same direction; a square root halves that.
        self.summing = self.in_sequence() / 2

    def in_sequence(self):
        """The length of the longest chain of additions.

        Compiled code sums a row in at least eight lanes and in blocks of 2048 terms; batch norm
        sums blocks of 32 rows.
        """
        count = self.norm.rows(self.xhat).shape[1]
        if UNCOMPILED:
            return count
        return max(min(count, 2048) / 8, min(count, 32) if self.norm.name == "batch_norm" else 0)

    def rounded_means(self):
        """The accumulated error of the means while they are merged.

        Batch norm merges float64 means entry by entry. The other norms keep means as mean_hi and
        mean_lo.
        """
        if self.norm.name != "batch_norm":
            return 0 * self.mean
        axis = self.norm.options.get("channel_axis", 1) % len(self.norm.shape)
        # The square root of the number of roundings, because their signs are random.
        merges = math.sqrt(math.prod(self.norm.shape[:axis]))
        return 2 * merges * 2.0**-53 * np.abs(self.mean)

    @property
    def grad(self):
        """The factor by which the formula of the norm, without gain, multiplies errors."""
        if self.norm.name != "ada_norm":
            return 1
        scale, k = self.norm.options.get("scale", 1.0), self.norm.options.get("k", 0.1)
        return abs(scale) * (1 + 2 * abs(k) * self.peak)

    @property
    def y(self):
        terms = self.peak * self.grad * self.largest_gamma + self.largest_beta
        merging = self.merging * (1 + self.peak) * self.largest_gamma
        return (FORWARD_ROUNDINGS + self.summing) * self.unit * terms + merging

    @property
    def centre(self):
        """The bound for the mean."""
        distance = largest(self.norm.rows(self.x) - self.mean)
        saved = self.saved_unit * np.abs(self.mean) + self.rounded_means()
        return (FORWARD_ROUNDINGS + self.summing) * self.unit * distance + saved

    @property
    def scale(self):
        """The relative bound for rstd, or for the norm of weight norm."""
        return (FORWARD_ROUNDINGS + self.summing) * self.unit + self.merging

    @property
    def flow(self):
        """The factor of the gradient through the deviation if eps is added to the deviation."""
        if self.norm.options.get("eps_in") != "std":
            return 1
        ratio = self.norm.options.get("eps", 1e-5) * self.rstd
        return reference.inverse(np.where(ratio < 1, 1 - ratio, 0))

    @property
    def dx(self):
        """The bound for dx = rstd (g - mean(g) - xhat mean(g xhat)).

        The first two terms are at most the largest g, and so is mean(g xhat), because the mean
        square of xhat is at most 1.
        """
        count = self.norm.rows(self.xhat).shape[1]
        g = self.grad * largest(self.norm.rows(self.dy * self.gamma))
        # Weight norm has a sum of squares of 1, and ddof makes the divisor smaller.
        factor = np.sqrt(count) if self.norm.name == "weight_norm" else 1
        factor = factor * count / (count - self.norm.options.get("ddof", 0)) * self.flow
        roundings = BACKWARD_ROUNDINGS + self.summing
        errors = roundings * self.unit + self.drift + self.merging
        return self.rstd * g * errors * (2 + self.peak * factor)

    @property
    def parameters(self):
        """The bounds for the gradients of gamma and of beta."""
        over = reference.other_axes(len(self.norm.shape), self.norm.parameter_axes)
        total, roundings = self.dy.sum(over), (SUM_ROUNDINGS + self.summing) * self.unit
        shifts = np.max(self.drift) + np.max(self.merging * (1 + self.peak))
        errors = roundings * np.max(self.peak) + shifts
        return total * errors, total * roundings


def assert_close(actual, expected, bound, dtype, rows=np.asarray):
    """Check dtype, shape and errors of an array, after one rounding to the dtype."""
    assert isinstance(actual, np.ndarray)  # not a number, also for a single row
    assert actual.dtype == dtype and actual.dtype.isnative
    assert actual.shape == expected.shape
    limits = ml_dtypes.finfo(dtype)
    size = np.abs(rows(expected))
    allowed = bound + float(limits.eps) / 2 * size + float(limits.smallest_subnormal) / 2
    error = np.abs(rows(reference.exact(actual) - expected))
    # Gradients in half precision may overflow. NaN is wrong.
    wrong = ~(error <= allowed) & (size + bound < float(limits.max))
    worst = (error[wrong] / np.broadcast_to(allowed, error.shape)[wrong]).tolist()
    assert not worst, f"{len(worst)} errors of up to {max(worst):.3g} times the bound"


@contextlib.contextmanager
def unchanged(*inputs):
    """Check that the block does not change the inputs."""
    before = [np.array(array).tobytes() for array in inputs]
    yield
    assert before == [np.array(array).tobytes() for array in inputs]


def check_forward(norm, x, *parameters, **out):
    """Check both forward functions against the definition; return the saved statistics."""
    bounds, dtype = Bounds(norm, x, *parameters), result_dtype(x)
    expected, *expected_saved = norm.expected(x, *parameters)
    plain = norm.plain(x, *parameters)
    result = norm.forward(x, *parameters, **out)
    assert type(result) is norm.result_types[0]
    y, *saved = result
    assert y is out["out"] if out else type(y) is np.ndarray
    assert_close(y, expected, bounds.y, dtype, norm.rows)
    np.testing.assert_array_equal(plain, y)
    if norm.centred:
        bound = bounds.centre.reshape(expected_saved[0].shape)
        assert_close(saved[0], expected_saved[0], bound, saved[0].dtype)
    rows = np.abs(expected_saved[-1]).reshape(-1, 1)
    bound = (bounds.scale * rows).reshape(expected_saved[-1].shape)
    assert_close(saved[-1], expected_saved[-1], bound, saved[-1].dtype)
    return saved


def check_backward(norm, dy, x, saved, gamma=None, **out):
    """Check the gradients against the definition."""
    bounds, dtype = Bounds(norm, x, gamma, dy=dy), result_dtype(x)
    given = () if norm.parameters == 0 else (gamma,)
    expected = as_tuple(norm.expected_backward(dy, x, *given))
    result = norm.backward(dy, x, saved, *given, **out)
    assert type(result) is norm.result_types[1]
    dx, *of_parameters = as_tuple(result)
    assert dx is out["out"] if out else type(dx) is np.ndarray
    assert_close(dx, expected[0], bounds.dx, dtype, norm.rows)
    dtype = dtype if gamma is None else result_dtype(gamma)
    assert len(of_parameters) == norm.parameters
    of_bounds = bounds.parameters[: norm.parameters]
    for mine, theirs, bound in zip(of_parameters, expected[1:], of_bounds, strict=True):
        assert_close(mine, theirs, bound, dtype)


def check(norm, x, dy, *parameters):
    """Check a forward and a backward pass against the definition."""
    with unchanged(x, dy, *parameters):
        saved = check_forward(norm, x, *parameters)
    with unchanged(x, dy, *saved, *parameters):
        check_backward(norm, dy, x, saved, *parameters[:1])


def draw(shape, dtype, seed, mean=0.0, scale=1.0):
    return (mean + scale * np.random.default_rng(seed).normal(size=shape)).astype(dtype)


def draw_parameters(norm, dtype, which):
    """Return gamma and beta, or None for those that are not in `which`."""
    given = {"none": (), "both": ("gamma", "beta")}.get(which, (which,))
    arrays = [draw(norm.parameter_shape, dtype, seed, 1.0, 0.5) for seed in (2, 3)]
    named = zip(("gamma", "beta"), arrays, strict=True)
    return [array if name in given else None for name, array in named][: norm.parameters]


def draw_all(norm, dtype, which="none"):
    """Return x, dy and the parameters of a norm."""
    x, dy = draw(norm.shape, dtype, 0, 0.7, 1.5), draw(norm.shape, dtype, 1, 0.2)
    return x, dy, *draw_parameters(norm, dtype, which)


# The values of `which`, by the number of parameters of a norm.
PARAMETERS = {0: ["none"], 1: ["none", "gamma"], 2: ["none", "both", "gamma", "beta"]}
