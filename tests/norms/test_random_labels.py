"""Random calls of batch norm and of moments with labels, against the definition of each label."""

import ml_dtypes  # noqa: F401  # for the name "bfloat16"
import numpy as np
import pytest
from reference import LONGDOUBLE_IS_WIDER, exact
from weighted_reference import normalized, rows_of

import numnorm

pytestmark = pytest.mark.skipif(not LONGDOUBLE_IS_WIDER, reason="the definition has no more digits")
EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
NAMES = [np.array(["c", "a", "b"]), np.array([7, -2, 2**40]), np.array([True, False])]
KINDS = ["", "where", "nan_policy", "weights", "where and weights"]


class Call:
    """Arrays and options of a random call."""

    def __init__(self, number, dtype):
        rng = np.random.default_rng([number, *dtype.encode()])
        self.dtype = np.dtype(dtype)
        samples, *others = (int(n) for n in rng.integers(1, 9, rng.integers(2, 5)))
        self.shape = samples * 4, *others
        self.axis = int(rng.integers(1, len(self.shape)))
        self.others = tuple(a for a in range(len(self.shape)) if a != self.axis)
        self.eps = float(rng.choice([1e-5, 0.5]))
        offset = rng.choice([0.0, 1e3]) if self.dtype.itemsize > 2 else 0.0
        self.x = (rng.normal(size=self.shape) + offset).astype(dtype)
        self.dy = rng.normal(size=self.shape).astype(dtype)
        names = NAMES[rng.integers(len(NAMES))]
        self.labels = names[rng.integers(0, rng.integers(1, len(names) + 1), self.shape[0])]
        self.parameters = []
        if rng.random() < 0.5:
            self.parameters = list(rng.normal(size=(2, self.shape[self.axis])).astype(dtype))
        kind = rng.choice(KINDS)
        self.keep, self.weights = np.ones(self.shape, bool), np.ones(self.shape)
        self.keywords = {}
        if kind in ("where", "nan_policy", "where and weights"):
            self.keep = rng.random(self.shape) < rng.choice([0.1, 0.8])
        if kind in ("weights", "where and weights"):
            self.weights = self.keywords["weights"] = rng.integers(0, 3, self.shape) * 0.75
        if kind == "nan_policy":
            self.keywords["nan_policy"] = "omit"
        elif kind.startswith("where"):
            self.keywords["where"] = self.keep
        self.left_out = np.nan if kind == "nan_policy" else 0.0

    def apart(self, channels):
        """Return an array of channels so that it broadcasts."""
        return np.expand_dims(exact(channels), self.others)


def near(found, expected, tolerance):
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    error = np.abs(np.nan_to_num(exact(found) - expected)).max(initial=0)
    assert error <= tolerance, (error, tolerance)


def check_call(number, dtype):
    call = Call(number, dtype)
    x = np.where(call.keep, call.x, call.dtype.type(np.nan))
    options = {"channel_axis": call.axis, "labels": call.labels, **call.keywords}
    y, mean, rstd = numnorm.batch_norm_forward(x, *call.parameters, eps=call.eps, **options)
    saved = mean, rstd, *call.parameters[:1]
    dx, dgamma, dbeta = numnorm.batch_norm_backward(call.dy, x, *saved, **options)
    of_labels, moments = numnorm.batch_moments(x, **options)
    labels = np.unique(call.labels)
    np.testing.assert_array_equal(of_labels, labels)
    gamma, beta = map(call.apart, call.parameters or np.array([[1.0], [0.0]]))
    factor = float(np.abs(gamma).max(initial=1))
    sums, bounds = [], []
    for row, label in enumerate(labels):
        own = call.labels == label
        keep, w = call.keep[own], np.where(call.keep, call.weights, 0)[own]
        rows = rows_of("batch_norm", keep.shape, channel_axis=call.axis)
        eps = np.longdouble(call.eps)
        xhat, own_mean, own_rstd = normalized(call.x[own], keep, w, rows, eps=eps)
        # Some roundings of the largest result, and of the saved mean in deviations.
        largest = float(np.abs(np.nan_to_num(xhat)).max(initial=1))
        spread = float(np.nan_to_num(np.abs(own_mean) * own_rstd).max(initial=0))
        rounding = (EPS[dtype] + spread * EPS["float64"]) * largest**2

        near(y[own][keep], (xhat * gamma + beta)[keep], 64 * factor * rounding)
        np.testing.assert_array_equal(np.float64(y[own][~keep]), call.left_out)
        # Deviations and their squares are rounded to the compute type.
        rtol = 1e-12 if dtype == "float64" else 1e-6
        deviation = float(np.nan_to_num(1 / own_rstd).max(initial=0))
        np.testing.assert_allclose(mean[row], np.float64(own_mean), rtol, rtol * deviation)
        np.testing.assert_allclose(rstd[row], np.float64(own_rstd), 10 * rtol)
        total = w.sum(call.others)
        count = np.broadcast_to(moments.count[row], total.shape)
        np.testing.assert_allclose(count, total)
        found = moments.mean[row][total > 0]
        np.testing.assert_allclose(found, np.float64(own_mean[total > 0]), rtol, rtol * deviation)

        dy = np.where(keep, exact(call.dy[own]), 0)
        g, divisor = dy * gamma, np.where(call.apart(total) > 0, call.apart(total), np.nan)
        along = g.sum(call.others, keepdims=True)
        along = along + xhat * (g * xhat).sum(call.others, keepdims=True)
        expected = np.where(keep, call.apart(own_rstd) * (g - w * along / divisor), 0)
        # Sums over the samples.
        size = largest * len(keep) * float(np.nan_to_num(own_rstd).max(initial=1))
        near(dx[own], expected, 64 * factor * np.abs(dy).max(initial=1) * rounding * size)
        sums.append(((dy * xhat).sum(call.others), dy.sum(call.others)))
        bounds.append(64 * np.abs(dy).max(initial=1) * rounding * size)
    for result, terms in zip((dgamma, dbeta), zip(*sums, strict=True), strict=True):
        near(result, sum(terms), sum(bounds))


@pytest.mark.parametrize("dtype", EPS)
def test_any_call_agrees_with_the_definition(dtype):
    for number in range(25):
        check_call(number, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", EPS)
def test_2500_calls_agree_with_the_definition(dtype):
    for number in range(1000, 3500):
        check_call(number, dtype)
