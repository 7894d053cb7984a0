"""Norms with missing values and weights: random cases, and checks against the definition."""

import ml_dtypes  # noqa: F401  # for the name "bfloat16"
import numpy as np
from gradients import TOLERANCE, numerical_gradients
from hypothesis import strategies as st
from reference import inverse
from weighted_reference import normalized, output, rows_of

import numnorm

NORMS = ["layer_norm", "rms_norm", "ada_norm", "group_norm", "instance_norm", "batch_norm"]
NORMS += ["weight_norm", "standard_normal_variate"]
AXIS = ("layer_norm", "rms_norm", "ada_norm", "weight_norm", "standard_normal_variate")
SHAPES = [(7,), (3, 5), (1, 4), (4, 1), (2, 3, 4), (2, 6, 5), (2, 4, 2, 3), (3, 140)]
MASKS = ["none", "some", "rows", "nothing", "one"]
WEIGHTS = [None, "integers", "zeros", "row"]
DTYPES = ("float16", "bfloat16", "float32", "float64")
EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}


class Case:
    """A norm with its options, and arrays for it."""

    def __init__(self, name, shape, dtype, offset, seed, options):
        self.name, self.shape, self.dtype, self.options = name, shape, np.dtype(dtype), options
        self.rng = np.random.default_rng(seed)
        self.x = self.drawn(shape, offset)
        shaping = {k: v for k, v in options.items() if k in ("axis", "channel_axis", "groups")}
        self.rows = rows_of(name, shape, **shaping)
        moved = [shape[a] for a in self.rows.moved]
        self.parameter_shape = tuple(moved[a] for a in self.rows.parameters)
        self.count = {"rms_norm": 1, "weight_norm": 1}.get(name, 2)
        self.count = 0 if name in ("ada_norm", "standard_normal_variate") else self.count
        self.parameters = [self.drawn(self.parameter_shape, 1 - i) for i in range(self.count)]

    def drawn(self, shape, offset=0.0):
        return (self.rng.normal(size=shape) + offset).astype(self.dtype)

    def mask(self, kind):
        keep = np.ones(self.shape, bool)
        if kind in ("some", "rows"):
            keep = self.rng.random(self.shape if kind == "some" else self.shape[-1:]) < 0.7
        if kind in ("nothing", "one"):
            keep = np.zeros(self.shape, bool)
        if kind == "one":
            keep.flat[self.rng.integers(keep.size)] = True
        return keep

    def weights(self, kind):
        if kind is None:
            return None
        shape = self.shape[-1:] if kind == "row" else self.shape
        drawn = self.rng.integers(0 if kind == "zeros" else 1, 4, shape)
        return drawn if kind == "integers" else drawn * self.rng.random(shape)

    def map(self, xhat):
        """The factor of AdaNorm; all others have gain and bias."""
        if self.name != "ada_norm":
            return xhat
        return self.options["scale"] * (1 - self.options["k"] * xhat) * xhat

    def definition(self):
        """The options of the definition."""
        name, options = self.name, self.options
        return {
            "eps": np.longdouble(options.get("eps", 0.0)),
            "ddof": options.get("ddof", 0),
            "eps_in_std": options.get("eps_in") == "std",
            "centred": name not in ("rms_norm", "weight_norm"),
            "length": name == "weight_norm",
        }

    def backward_options(self):
        left_out = () if self.name == "ada_norm" else ("eps",)
        options = {k: v for k, v in self.options.items() if k not in left_out}
        return options | ({"detach_factor": False} if self.name == "ada_norm" else {})


@st.composite
def cases(draw, name, dtypes=("float64",), least_eps=0.0):
    channels = name not in AXIS
    least = {"batch_norm": 2, "group_norm": 2, "instance_norm": 3}.get(name, 1)
    shape = draw(st.sampled_from([s for s in SHAPES if len(s) >= least]))
    options = {}
    if channels:
        options["channel_axis"] = draw(
            st.integers(0 if name == "batch_norm" else 1, len(shape) - 1)
        )
    else:
        options["axis"] = draw(st.sampled_from([-1, 0, tuple(range(len(shape)))]))
    if name == "group_norm":
        channels = shape[options["channel_axis"]]
        divisors = [n for n in range(1, channels + 1) if channels % n == 0]
        options["groups"] = draw(st.sampled_from(divisors))
    if name not in ("weight_norm", "standard_normal_variate"):
        options["eps"] = draw(st.sampled_from([e for e in (0.0, 1e-5, 0.5) if e >= least_eps]))
    if name == "ada_norm":
        options |= {"scale": 0.7, "k": 0.3, "eps_in": draw(st.sampled_from(["variance", "std"]))}
    if name in ("ada_norm", "standard_normal_variate"):
        sizes = [shape[a] for a in rows_of(name, shape, axis=options["axis"]).axes]
        options["ddof"] = draw(st.integers(0, min(1, int(np.prod(sizes)) - 1)))
    dtype = draw(st.sampled_from(dtypes))
    offset = draw(st.sampled_from([0.0, 3.0] if EPS[dtype] > 1e-4 else [0.0, 1e3, 1e7]))
    return Case(name, shape, dtype, offset, draw(st.integers(0, 2**32 - 1)), options)


def broadcast_weights(case, weights):
    """Return weights as they broadcast against x; 1-D ones may be for a row or for samples."""
    if weights is None:
        return np.ones(case.shape)
    if np.ndim(weights) == 1 and len(case.shape) > 1:
        if case.name == "batch_norm":
            others = [a for a in range(len(case.shape)) if a != case.options["channel_axis"]]
            own = others[:1]
        else:
            own = case.rows.axes if case.name in AXIS else ()
        if tuple(case.shape[a] for a in own) == weights.shape:
            return weights.reshape([n if a in own else 1 for a, n in enumerate(case.shape)])
    return weights


def call(case, suffix, *arguments, **options):
    with np.errstate(all="ignore"):  # kernels that are not compiled warn of what they leave out
        return getattr(numnorm, case.name + suffix)(*arguments, **options)


def missing_by(case, keep, by_nan):
    """Return x and the keywords that leave out what is not kept: by NaN, or by a mask."""
    if not by_nan:
        x = np.where(keep, case.x, case.dtype.type(np.inf))  # which must not matter
        return x, {"where": keep}
    return np.where(keep, case.x, case.dtype.type(np.nan)), {"nan_policy": "omit"}


def check(got, expected, tolerance):
    assert got.shape == expected.shape
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    with np.errstate(over="ignore", invalid="ignore"):
        beyond = np.isinf(expected.astype(got.dtype)) & np.isinf(got)  # the range of float16
        difference = np.where(beyond, 0, got.astype(np.longdouble) - expected)
    error = np.abs(np.nan_to_num(difference)).max(initial=0)
    assert error <= tolerance, (error, tolerance)


def tolerance_of(case, xhat, mean, rstd):
    """A few roundings of the largest result, and in batch norm one of the mean, to float64."""
    factor = max([1.0, *(float(np.abs(p).max(initial=0)) for p in case.parameters)])
    largest = max(float(np.nanmax(np.abs(xhat), initial=0)), 1.0)
    tolerance = 64 * EPS[case.dtype.name] * factor * largest**2
    if case.name == "batch_norm":
        spread = np.nan_to_num(np.abs(mean) * rstd, posinf=0.0)
        tolerance += 8 * EPS["float64"] * factor * float(spread.max(initial=0))
    return tolerance


def check_forward(case, mask, kind, by_nan, call=call):
    keep, weights = case.mask(mask), case.weights(kind)
    x, keywords = missing_by(case, keep, by_nan)
    options = case.options | keywords | ({} if weights is None else {"weights": weights})
    full = broadcast_weights(case, weights)
    parameters = [*case.parameters, None, None][:2]
    xhat, mean, rstd = normalized(case.x, keep, full, case.rows, **case.definition())
    expected = output(case.x, keep, full, case.rows, *parameters, case.map, **case.definition())
    of_x = np.broadcast_to(keep, case.shape)
    y = call(case, "", x, *case.parameters, **options, fill=7.5)
    check(y, np.where(of_x, expected, 7.5), tolerance_of(case, xhat, mean, rstd))
    y, *saved = call(case, "_forward", x, *case.parameters, **options)
    np.testing.assert_array_equal(np.float64(y[~of_x]), np.nan if by_nan else 0)
    # Deviations and their squares are rounded to the compute type.
    rtol = 1e-11 if case.dtype == np.float64 else 1e-6
    if case.name == "weight_norm":
        np.testing.assert_allclose(saved[0], np.float64(inverse(rstd)), rtol=rtol)
        return
    np.testing.assert_allclose(saved[-1], np.float64(rstd), rtol=rtol)
    if len(saved) == 2:
        mean = np.where(np.isnan(rstd), np.nan, mean)  # a row without a result has no statistics
        deviation = np.nan_to_num(np.float64(inverse(rstd)), posinf=0.0)
        error = np.abs(saved[0] - np.float64(mean)) / (np.abs(np.float64(mean)) + deviation + 1e-12)
        np.testing.assert_array_equal(np.isnan(saved[0]), np.isnan(np.float64(mean)))
        assert np.nan_to_num(error).max(initial=0.0) <= rtol


def check_backward(case, keep, weights, by_nan, call=call):
    x, keywords = missing_by(case, keep, by_nan)
    keywords |= {} if weights is None else {"weights": weights}
    dy = case.drawn(case.shape)
    y, *saved = call(case, "_forward", x, *case.parameters, **case.options, **keywords)
    if not np.isfinite(y[np.broadcast_to(keep, y.shape)]).all():
        return  # a weight is not greater than ddof
    options = case.backward_options() | keywords
    got = call(case, "_backward", dy, x, *saved, *case.parameters[:1], **options)
    full = broadcast_weights(case, weights)

    def function(x, *parameters):
        parameters = [*parameters, None, None][:2]
        return output(x, keep, full, case.rows, *parameters, case.map, **case.definition())

    expected = numerical_gradients(function, [case.x, *case.parameters], dy)
    for mine, theirs in zip(got if isinstance(got, tuple) else (got,), expected, strict=True):
        # What nothing is left of has statistics of NaN in the definition, and passes nothing on.
        theirs = np.nan_to_num(theirs)
        # Third derivatives grow with the cube of 1 / deviation.
        assert np.abs(mine - theirs).max() <= 1e4 * TOLERANCE * max(np.abs(theirs).max(), 1)
