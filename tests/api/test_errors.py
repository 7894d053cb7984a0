"""Bad arguments: a ValueError or TypeError of one line that names the argument.

Each case is a call that works, with one or a few arguments changed.
"""

import inspect
import re

import kernels
import ml_dtypes
import numpy as np
import pytest

import numnorm
from numnorm import Moments

X = np.arange(12.0).reshape(3, 4)
IMAGES = np.arange(48.0).reshape(2, 6, 4)
ROW, COLUMN, CHANNELS = np.ones(4), np.ones(3), np.ones(6)
FLOATS = "float16, bfloat16, float32, float64, an integer or bool"
RAGGED = [1.0, [2.0]]

STATISTICS = {"mean": COLUMN, "rstd": COLUMN}
OF_GROUPS = {"mean": np.ones((2, 3)), "rstd": np.ones((2, 3)), "groups": 3}
OF_CHANNELS = {"mean": np.ones((2, 6)), "rstd": np.ones((2, 6))}

# Arguments with which a call works.
GOOD = {
    "layer_norm": {"x": X},
    "layer_norm_forward": {"x": X},
    "layer_norm_backward": {"dy": X, "x": X, **STATISTICS},
    "rms_norm": {"x": X},
    "rms_norm_forward": {"x": X},
    "rms_norm_backward": {"dy": X, "x": X, "rstd": COLUMN},
    "ada_norm": {"x": X},
    "ada_norm_forward": {"x": X},
    "ada_norm_backward": {"dy": X, "x": X, **STATISTICS},
    "standard_normal_variate": {"x": X},
    "standard_normal_variate_forward": {"x": X},
    "standard_normal_variate_backward": {"dy": X, "x": X, **STATISTICS},
    "batch_norm": {"x": X},
    "batch_norm_forward": {"x": X},
    "batch_norm_backward": {"dy": X, "x": X, "mean": ROW, "rstd": ROW},
    "batch_moments": {"x": X},
    "group_norm": {"x": IMAGES, "groups": 3},
    "group_norm_forward": {"x": IMAGES, "groups": 3},
    "group_norm_backward": {"dy": IMAGES, "x": IMAGES, **OF_GROUPS},
    "instance_norm": {"x": IMAGES},
    "instance_norm_forward": {"x": IMAGES},
    "instance_norm_backward": {"dy": IMAGES, "x": IMAGES, **OF_CHANNELS},
    "weight_norm": {"x": X},
    "weight_norm_forward": {"x": X},
    "weight_norm_backward": {"dy": X, "x": X, "norm": COLUMN},
}


NORM_OF = {name: re.sub("_forward|_backward", "", name) for name in GOOD}
NORM_OF["batch_moments"] = "batch_norm"


def takes(name):
    """The functions that take an argument of this name."""
    return [f for f in GOOD if name in inspect.signature(getattr(numnorm, f)).parameters]


@pytest.mark.parametrize("function", kernels.names(NORM_OF, np.float64))
def test_the_arguments_that_the_cases_change_are_good(function):
    result = getattr(numnorm, function)(**GOOD[function])
    first = result[0] if isinstance(result, tuple) else result
    assert np.all(np.isfinite(first))


# Objects that would become a NumPy array behind the caller's back.


class OnDevice:
    __cuda_array_interface__ = {}

    def __array__(self, dtype=None, copy=None):
        return X


class Lazy:
    def __dask_graph__(self):
        return {}

    def __array__(self, dtype=None, copy=None):
        return X


class Broken:
    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("not\nnow")


def masked(array):
    return np.ma.array(array, mask=False)


def no_dtype(name, dtype):
    return f"{name} must have dtype {FLOATS}, got {dtype}"


def wrong_shape(name, expected, meaning, got):
    return f"{name} must have shape {expected}, {meaning}, got {got}"


def no_like(name, kind):
    return f"{name} must be an array or turn into one, got an object of type {kind}"


def iterable(name, kind):
    return f"{no_like(name, kind)}: pass its numbers as an array or a list"


def real(name, dtype):
    return f"{name} must hold real numbers, got dtype {dtype}"


def case(function, error, message, **changed):
    """One bad call: what is raised, and the message or a pattern of it."""
    what = ", ".join(f"{name}={brief(value)}" for name, value in changed.items())
    return pytest.param(function, error, message, changed, id=f"{function}-{what}")


def brief(value):
    if isinstance(value, np.ndarray | np.generic):
        return f"{type(value).__name__}{value.shape}{value.dtype.str}"
    return repr(value)[:30] if not isinstance(value, tuple) else f"{type(value).__name__}"


# The input, of whatever function

NO_MASK = "{} must not be a masked array: fill it first, or give norms its data and where=~mask"
NO_LIKE = "{} must be an array or turn into one, got "
DIFFER = "{} must be rectangular, got a list whose rows differ in length"
LAZY = "{} must be in memory, got an object of type .*Lazy, which is lazy: use .compute.*"
COMPLEX = X.astype(np.complex64)
INPUTS = [
    (TypeError, None, NO_LIKE + "None"),
    (TypeError, "abc", NO_LIKE + "an object of type str"),
    (TypeError, {"a": 1}, iterable("{}", "dict")),
    (TypeError, {1.0, 2.0}, iterable("{}", "set")),
    (TypeError, 1j, no_dtype("{}", "complex128")),
    (TypeError, RAGGED, DIFFER),
    (TypeError, masked(X), NO_MASK),
    (TypeError, [X[0], masked(X[0])], NO_MASK),
    (TypeError, ([[1.0, 2.0]], [[3.0, np.ma.masked]]), NO_MASK),
    (TypeError, OnDevice(), re.compile(r"{} must be one of numpy\.ndarray.*, got .*OnDevice")),
    (TypeError, [X, OnDevice()], re.compile("{} must lie on the host.* got a .*OnDevice.*")),
    (TypeError, Lazy(), re.compile(LAZY)),
    (TypeError, [X, [1.0, Lazy()]], re.compile(LAZY)),
    (TypeError, Broken(), re.compile("{} must be an array or turn into one, .*Broken: not now")),
    (TypeError, COMPLEX, no_dtype("{}", "complex64")),
    (TypeError, X.astype(object), no_dtype("{}", "object")),
    (TypeError, X.astype("U3"), no_dtype("{}", "<U3")),
    (TypeError, X.astype("datetime64[s]"), no_dtype("{}", "datetime64[s]")),
    (TypeError, X.astype(ml_dtypes.float8_e5m2), no_dtype("{}", "float8_e5m2")),
    (TypeError, [["a", "b"]], no_dtype("{}", "<U1")),
    (TypeError, [[10**30, 1]], no_dtype("{}", "object")),
]
if np.dtype(np.longdouble).itemsize > 8:
    wide = X.astype(np.longdouble)
    INPUTS.append((TypeError, wide, no_dtype("{}", wide.dtype)))


def named(message, name):
    """A message of `INPUTS` with the name of the input in it."""
    if isinstance(message, str):
        return message.replace("{}", name)
    return re.compile(message.pattern.replace("{}", name))


def input_cases():
    """Each bad input for one norm, and a few for every function."""
    for number, (error, value, message) in enumerate(INPUTS):
        few = value is None or isinstance(value, str) or value is COMPLEX
        for function in GOOD if few else ["layer_norm", "batch_norm", "weight_norm_backward"]:
            changed = {"x": value}
            yield pytest.param(
                function, error, named(message, "x"), changed, id=f"{function}-input-{number}"
            )


def scalar_cases():
    for function in GOOD:
        message = "x must have at least 1 axis, got a scalar"
        if function.startswith(("group", "instance")):
            message = "x must have at least 2 axes, got 0"
        for value in (3.0, np.array(1.0)):
            yield case(function, ValueError, message, x=value)


# Options that many functions share


def axis_cases():
    kinds = "axis must be an int or a tuple of ints, got {}"
    between = "axis must be between -2 and 1 for an array of 2 axes, got {}"
    bad = [
        (ValueError, 2, between.format(2)),
        (ValueError, -3, between.format(-3)),
        (ValueError, (0, 5), between.format(5)),
        (ValueError, 10**30, between.format(10**30)),
        (ValueError, tuple(range(100)), between.format(2)),
        (ValueError, (), "axis must name at least 1 axis, got ()"),
        (ValueError, (0, 0), "axis must not name an axis twice, got (0, 0)"),
        (ValueError, (0, -2), "axis must not name an axis twice, got (0, -2)"),
        (TypeError, 1.5, kinds.format("1.5")),
        (TypeError, 0.0, kinds.format("0.0")),
        (TypeError, (0.0,), kinds.format("(0.0,)")),
        (TypeError, None, kinds.format("None")),
        (TypeError, "0", kinds.format("'0'")),
        (TypeError, (0, "a"), kinds.format("(0, 'a')")),
        (ValueError, [0, 5], between.format(5)),
        (TypeError, [0, 1.5], kinds.format("an object of type list")),
        (TypeError, {0}, kinds.format("an object of type set")),
        (TypeError, np.array([0, 1]), kinds.format("an object of type ndarray")),
    ]
    for number, (error, axis, message) in enumerate(bad):
        for function in takes("axis") if number in (0, 8) else ["layer_norm", "weight_norm"]:
            yield case(function, error, message, axis=axis)


def number_cases():
    """Of eps, scale, k and momentum."""
    for function in takes("eps"):
        yield case(function, ValueError, "eps must be at least 0, got -1", eps=-1)
        yield case(function, TypeError, "eps must be a number, got 'a'", eps="a")
        yield case(function, TypeError, "eps must be a number, got None", eps=None)
        yield case(function, TypeError, "eps must be a number, got True", eps=True)
    for name, function in [
        ("eps", "layer_norm"),
        ("eps", "batch_norm"),
        ("scale", "ada_norm"),
        ("k", "ada_norm"),
        ("momentum", "batch_norm"),
    ]:
        for value, got in [
            (1j, "an object of type complex"),
            ([1e-5], "an object of type list"),
            (np.ones(1), "an object of type ndarray"),
            (np.ones(2), "an object of type ndarray"),
            ({}, "an object of type dict"),
            (b"1", "an object of type bytes"),
        ]:
            message = f"{name} must be a number, got {got}"
            yield case(function, TypeError, message, **{name: value})
        for value in (np.nan, np.inf, -np.inf):
            message = f"{name} must be finite, got {value}"
            yield case(function, ValueError, message, **{name: value})
        # Python's own OverflowError is neither of the two types.
        yield case(function, ValueError, re.compile(f"{name} must be .*"), **{name: 10**400})
    yield case("layer_norm", TypeError, "eps must be a number, got '1e-5'", eps="1e-5")
    yield case("rms_norm", ValueError, "eps must be at least 0, got -1e-30", eps=-1e-30)


def out_cases():
    for function in takes("out"):
        good = GOOD[function]["x"]
        shape = wrong_shape("out", good.shape, "the shape of x", (3,))
        yield case(function, ValueError, shape, out=np.empty(3))
        message = "out must be a numpy.ndarray, got an object of type list"
        yield case(function, TypeError, message, out=good.tolist())
    read_only = np.empty(X.shape)
    read_only.flags.writeable = False
    for function in ("layer_norm", "batch_norm_backward", "weight_norm"):
        message = "out must have dtype float64, that of the result, got {}"
        for dtype in ("float32", ">f8", "int64"):
            got = np.empty(X.shape, dtype)
            yield case(function, TypeError, message.format(dtype), out=got)
        unwritable = "out must be writable, got a read-only array"
        yield case(function, ValueError, unwritable, out=read_only)
        shared = "out must have memory for each element, got an expanded array"
        one_row = np.lib.stride_tricks.as_strided(X.copy(), strides=(0, X.itemsize))
        yield case(function, ValueError, shared, out=one_row)
        masked_out = re.compile("out must not be a masked array.*")
        yield case(function, TypeError, masked_out, out=masked(np.empty(X.shape)))


def channel_cases():
    for function in takes("channel_axis"):
        ndim = GOOD[function]["x"].ndim
        between = f"channel_axis must be between {-ndim} and {ndim - 1} for an array of {ndim} axes"
        yield case(function, ValueError, f"{between}, got 7", channel_axis=7)
        message = "channel_axis must be an int, got 1.0"
        yield case(function, TypeError, message, channel_axis=1.0)
    for value, got in [
        (None, "None"),
        ((1, None), "None"),
        ("c", "'c'"),
        ([1.0], "1.0"),
        ({1}, "an object of type set"),
    ]:
        message = f"channel_axis must be an int, got {got}"
        yield case("batch_norm", TypeError, message, channel_axis=value)
    one_axis = "channel_axis must be between -1 and 0 for an array of 1 axis, got 1"
    yield case("batch_norm", ValueError, one_axis, x=ROW)
    for function in ("group_norm", "instance_norm"):
        samples = "channel_axis must not be 0, the axis of the samples"
        yield case(function, ValueError, samples, channel_axis=0)
        yield case(function, ValueError, samples, channel_axis=-3)
        yield case(function, ValueError, "x must have at least 2 axes, got 1", x=ROW)


# Arrays beside the input


def parameter_cases():
    """gamma, beta and g: shape, dtype and kind."""
    meanings = {"batch": "the channels of x", "group": "the channels of x"}
    meanings |= {"instance": "the channels of x", "weight": "the axes of x that are not normalized"}
    shapes = {"weight": (3,), "group": (6,), "instance": (6,)}
    for name in ("gamma", "beta", "g"):
        for function in takes(name):
            norm = function.split("_")[0]
            shape = shapes.get(norm, (4,))
            meaning = meanings.get(norm, "the normalized axes of x")
            for value in (np.ones(5), np.ones((2, *shape)), np.ones((1, 1, 1, *shape)), 2.0, 2):
                message = wrong_shape(name, shape, meaning, np.shape(value))
                yield case(function, ValueError, message, **{name: value})
            wrong = np.ones(shape, complex)
            yield case(function, TypeError, real(name, "complex128"), **{name: wrong})
            yield case(function, TypeError, DIFFER.format(name), **{name: RAGGED})
    for value, message in [
        (ROW.astype(object), real("gamma", "object")),
        (["a", "b", "c", "d"], real("gamma", "<U1")),
        (
            masked(ROW),
            NO_MASK.format("gamma"),
        ),
        ({}, iterable("gamma", "dict")),
    ]:
        yield case("layer_norm", TypeError, message, gamma=value)
        yield case("batch_norm", TypeError, message, gamma=value)
    # These do hold real numbers.
    small = ROW.astype(ml_dtypes.float8_e4m3fn)
    yield case("layer_norm", TypeError, no_dtype("gamma", small.dtype), gamma=small)
    if np.dtype(np.longdouble).itemsize > 8:
        wide = ROW.astype(np.longdouble)
        yield case("layer_norm", TypeError, no_dtype("gamma", wide.dtype), gamma=wide)


def gradient_cases():
    """dy."""
    for function in takes("dy"):
        good = GOOD[function]["dy"]
        shape = wrong_shape("dy", good.shape, "the shape of x", good.T.shape)
        yield case(function, ValueError, shape, dy=good.T)
        yield case(function, TypeError, NO_LIKE.format("dy") + "None", dy=None)
        yield case(function, TypeError, no_dtype("dy", "complex128"), dy=good * 1j)
    no_mask = NO_MASK.format("dy")
    yield case("layer_norm_backward", TypeError, no_mask, dy=masked(X))
    yield case("layer_norm_backward", TypeError, DIFFER.format("dy"), dy=RAGGED)
    yield case("layer_norm_backward", TypeError, iterable("dy", "dict"), dy={})


def statistic_cases():
    """mean, rstd and norm."""
    for name in ("mean", "rstd", "norm"):
        for function in takes(name):
            good = GOOD[function][name]
            meaning = "the channels of x" if function.startswith("batch") else "one for each row"
            for value in (good[:1], good[None], 1.0):
                message = wrong_shape(name, good.shape, meaning, np.shape(value))
                yield case(function, ValueError, message, **{name: value})
            yield case(function, TypeError, no_like(name, "str"), **{name: "a"})
            missing = f"{name} must be an array of shape {good.shape}, got None"
            yield case(function, TypeError, missing, **{name: None})
            yield case(function, TypeError, real(name, "complex128"), **{name: good * 1j})
            yield case(function, TypeError, real(name, "object"), **{name: good.astype(object)})
            no_mask = NO_MASK.format(name)
            yield case(function, TypeError, no_mask, **{name: masked(good)})
            yield case(function, TypeError, DIFFER.format(name), **{name: RAGGED})


# Options of one norm

DETACH = "detach must be None, 'mean', 'scale' or 'both', got {}"
EPS_IN = "eps_in must be 'variance' or 'std', got {}"
OPTIONS = [
    case("layer_norm_backward", ValueError, DETACH.format("'foo'"), detach="foo"),
    case("layer_norm_backward", ValueError, DETACH.format("True"), detach=True),
    case(
        "layer_norm_backward", ValueError, DETACH.format("an object of type list"), detach=["mean"]
    ),
    case("layer_norm_backward", ValueError, DETACH.format("an object of type ndarray"), detach=ROW),
    case("layer_norm_backward", ValueError, re.compile("detach must .*"), detach="m" * 1000),
    case("ada_norm", ValueError, "scale must be greater than 0, got 0", scale=0),
    case("ada_norm", ValueError, "scale must be greater than 0, got -1", scale=-1.0),
    case("ada_norm_backward", ValueError, "scale must be greater than 0, got 0", scale=0.0),
    case("ada_norm", TypeError, "scale must be a number, got '1'", scale="1"),
    case("ada_norm", TypeError, "k must be a number, got None", k=None),
    case("ada_norm_backward", TypeError, "k must be a number, got 'a'", k="a"),
    case("ada_norm", ValueError, "ddof must be less than the 4 normalized elements, got 4", ddof=4),
    case(
        "ada_norm_backward",
        ValueError,
        "ddof must be less than the 4 normalized elements, got 9",
        ddof=9,
    ),
    case("ada_norm", ValueError, "ddof must be at least 0, got -1", ddof=-1),
    case("ada_norm", TypeError, "ddof must be an int, got 1.0", ddof=1.0),
    case("ada_norm_forward", TypeError, "ddof must be an int, got None", ddof=None),
    case("ada_norm", ValueError, EPS_IN.format("'sd'"), eps_in="sd"),
    case("ada_norm", ValueError, EPS_IN.format("None"), eps_in=None),
    case("ada_norm_backward", ValueError, EPS_IN.format("1"), eps_in=1),
    case(
        "ada_norm_backward",
        TypeError,
        "detach_factor must be True or False, got 0",
        detach_factor=0,
    ),
    case(
        "ada_norm_backward",
        TypeError,
        "detach_factor must be True or False, got 'no'",
        detach_factor="no",
    ),
]


def group_option_cases():
    for function in (f for f in takes("groups") if NORM_OF[f] == "group_norm"):
        for value, message in [
            (0, "groups must be at least 1, got 0"),
            (-2, "groups must be at least 1, got -2"),
            (5, "groups must divide the 6 channels of x, got 5"),
            (12, "groups must divide the 6 channels of x, got 12"),
        ]:
            yield case(function, ValueError, message, groups=value)
        for value, got in [
            (2.0, "2.0"),
            (None, "None"),
            ("2", "'2'"),
            ([2], "an object of type list"),
        ]:
            yield case(function, TypeError, f"groups must be an int, got {got}", groups=value)


# Batch norm


def running(mean=ROW, variance=ROW, **options):
    """Running statistics to be updated, copied where they are what they should be."""
    fresh = [array.copy() if array is ROW else array for array in (mean, variance)]
    return dict(zip(("running_mean", "running_var"), fresh, strict=True), **options)


def stored(mean=ROW, variance=ROW, **options):
    return running(mean, variance, training=False, **options)


NOT_UPDATED = np.broadcast_to(0.0, 4)
NO_RUNNING_MASK = (
    "running_{} must not be a masked array: fill it first, or give norms its data and where=~mask"
)
CUMULATIVE = "batches must be None unless momentum='cumulative', got {}"
CHANNELS_OF_X = ("the channels of x", (2,))
BATCH = [
    (ValueError, "running_var must be given with running_mean, got None", running(ROW, None)),
    (ValueError, "running_mean must be given with running_var, got None", running(None)),
    (TypeError, "running_mean must be an array to be updated, got list", running([1.0] * 4)),
    (TypeError, "running_var must be an array to be updated, got float", running(ROW, 1.0)),
    (
        ValueError,
        "running_var must not share memory with running_mean, got such an array",
        dict(running(), **dict.fromkeys(("running_mean", "running_var"), np.ones(4))),
    ),
    (ValueError, wrong_shape("running_mean", (4,), *CHANNELS_OF_X), running(ROW[:2])),
    (ValueError, wrong_shape("running_var", (4,), *CHANNELS_OF_X), running(ROW, ROW[:2])),
    (
        TypeError,
        "running_mean must have a float dtype to be updated, got int64",
        running(np.ones(4, np.int64)),
    ),
    (TypeError, real("running_mean", "complex128"), running(ROW * 1j)),
    (TypeError, real("running_var", "object"), running(ROW, ROW.astype(object))),
    (TypeError, NO_RUNNING_MASK.format("mean"), running(masked(ROW))),
    (TypeError, NO_RUNNING_MASK.format("var"), running(ROW, masked(ROW))),
    (
        ValueError,
        "running_mean must be writable to be updated, got a read-only array",
        running(NOT_UPDATED),
    ),
    (
        ValueError,
        "running_mean must have memory for each element, got an expanded array",
        running(np.lib.stride_tricks.as_strided(np.zeros(1), (4,), (0,))),
    ),
    (
        ValueError,
        "running_mean must be given when training is False, got None",
        {"training": False},
    ),
    (ValueError, "running_var must be given when training is False, got None", stored(ROW, None)),
    (ValueError, wrong_shape("running_mean", (4,), *CHANNELS_OF_X), stored(ROW[:2])),
    (TypeError, real("running_var", "complex128"), stored(ROW, ROW * 1j)),
    (TypeError, NO_RUNNING_MASK.format("mean"), stored(masked(ROW))),
    (TypeError, NO_RUNNING_MASK.format("var"), stored(ROW, masked(ROW))),
    (TypeError, DIFFER.format("running_mean"), stored(RAGGED)),
    (TypeError, "training must be True or False, got 1", {"training": 1}),
    (TypeError, "training must be True or False, got None", {"training": None}),
    (TypeError, "unbiased must be True or False, got 'yes'", {"unbiased": "yes"}),
    (TypeError, "unbiased must be True or False, got 1", running(unbiased=1)),
    (TypeError, "unbiased must be True or False, got 'yes'", stored(unbiased="yes")),
    (ValueError, "momentum must be between 0 and 1, got 1.5", {"momentum": 1.5}),
    (ValueError, "momentum must be between 0 and 1, got -0.1", running(momentum=-0.1)),
    (ValueError, "momentum must be between 0 and 1, got 3", stored(momentum=3)),
    (
        ValueError,
        "momentum must be a number, 'cumulative' or None, got 'mean'",
        {"momentum": "mean"},
    ),
    (
        ValueError,
        "batches must be given with momentum='cumulative', got None",
        {"momentum": "cumulative"},
    ),
    (ValueError, "batches must be at least 0, got -1", {"momentum": "cumulative", "batches": -1}),
    (TypeError, "batches must be an int, got 1.5", {"momentum": "cumulative", "batches": 1.5}),
    (ValueError, CUMULATIVE.format("3"), {"batches": 3}),
    (ValueError, CUMULATIVE.format("an object of type ndarray"), {"batches": ROW}),
    (ValueError, CUMULATIVE.format("3"), {"batches": 3, "momentum": 0.5}),
    (ValueError, "convention must be 'torch' or 'keras', got 'tf'", {"convention": "tf"}),
    (ValueError, "convention must be 'torch' or 'keras', got None", {"convention": None}),
    (
        ValueError,
        "x must have at least 2 values in each channel for an unbiased running_var, got 1",
        running(x=X[:1]),
    ),
]


def batch_cases():
    for number, (error, message, changed) in enumerate(BATCH):
        for function in ("batch_norm", "batch_norm_forward"):
            # They share their checks; every third one says so.
            if function == "batch_norm" or number % 3 == 0:
                yield pytest.param(function, error, message, changed, id=f"{function}-{number}")
    message = "training must be True or False, got 2"
    yield case("batch_norm_backward", TypeError, message, training=2)


# Moments

AFTER = [
    (TypeError, "after must be Moments, got an object of type tuple", (1, ROW, ROW)),
    (TypeError, "after must be Moments, got an object of type dict", {}),
    (ValueError, wrong_shape("after.mean", (4,), *CHANNELS_OF_X), Moments(1, ROW[:2], ROW)),
    (ValueError, wrong_shape("after.m2", (4,), *CHANNELS_OF_X), Moments(1, ROW, ROW[:2])),
    (ValueError, wrong_shape("after.mean_lo", (4,), *CHANNELS_OF_X), Moments(1, ROW, ROW, ROW[:2])),
    (TypeError, real("after.mean_lo", "complex128"), Moments(1, ROW, ROW, ROW * 1j)),
    (ValueError, "after.count must be at least 0, got -1", Moments(-1, ROW, ROW)),
    (TypeError, "after.count must be an int, got 1.5", Moments(1.5, ROW, ROW)),
    (TypeError, "after.count must be an int, got 'a'", Moments("a", ROW, ROW)),
    (TypeError, real("after.mean", "complex128"), Moments(1, ROW * 1j, ROW)),
    (TypeError, real("after.m2", "object"), Moments(1, ROW, ROW.astype(object))),
]


def after_cases():
    for number, (error, message, after) in enumerate(AFTER):
        changed = {"after": after}
        yield pytest.param("batch_moments", error, message, changed, id=f"after-{number}")


ALL = [
    *input_cases(),
    *scalar_cases(),
    *axis_cases(),
    *number_cases(),
    *out_cases(),
    *channel_cases(),
    *parameter_cases(),
    *gradient_cases(),
    *statistic_cases(),
    *OPTIONS,
    *group_option_cases(),
    *batch_cases(),
    *after_cases(),
]


def assert_message(caught, error, message):
    text = str(caught.value)
    assert caught.type is error
    if isinstance(message, str):
        assert text == message
    else:
        assert message.fullmatch(text), text
    # No dump of an array, no text of a compiler.
    assert "\n" not in text and len(text) < 200
    assert "array(" not in text and "[[" not in text
    assert not re.search("numba|nopython|ufunc|inhomogeneous", text, re.IGNORECASE)


@pytest.mark.parametrize("function, error, message, changed", ALL)
def test_one_line_that_names_the_argument(function, error, message, changed):
    arguments = GOOD[function] | changed
    with pytest.raises((ValueError, TypeError)) as caught:
        getattr(numnorm, function)(**arguments)
    assert_message(caught, error, message)


def test_there_are_many_cases():
    assert len(ALL) > 300
    assert {param.values[0] for param in ALL} == set(GOOD)


@pytest.mark.parametrize("good, bad", [(1, 1.0), ((0, 1), (0.0, 1)), (0, 0.0), (-1, -1.0)])
@pytest.mark.parametrize(
    "function", kernels.names(["layer_norm", "rms_norm", "ada_norm", "weight_norm"], np.float64)
)
def test_a_float_is_no_axis_even_after_the_int_that_it_equals(function, good, bad):
    arguments = GOOD[function]
    # What is remembered of this call must not serve the next one, though 1 == 1.0.
    getattr(numnorm, function)(**arguments, axis=good)
    with pytest.raises(TypeError) as caught:
        getattr(numnorm, function)(**arguments, axis=bad)
    assert_message(caught, TypeError, f"axis must be an int or a tuple of ints, got {bad}")


def test_a_long_dtype_is_not_printed_in_full():
    x = np.zeros((2, 2), [(f"field_{number}", np.float32) for number in range(40)])
    with pytest.raises(TypeError) as caught:
        numnorm.layer_norm(x)
    assert_message(caught, TypeError, re.compile("x must have dtype .*"))


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda: numnorm.layer_norm(X, ROW, ROW, -1), id="layer"),
        pytest.param(lambda: numnorm.rms_norm(X, ROW, ROW), id="rms"),
        pytest.param(lambda: numnorm.ada_norm(X, -1), id="ada"),
        pytest.param(lambda: numnorm.batch_norm(X, ROW, ROW, 1), id="batch"),
        pytest.param(lambda: numnorm.group_norm(IMAGES, CHANNELS, CHANNELS, 3), id="group"),
        pytest.param(lambda: numnorm.group_norm(IMAGES), id="groups-missing"),
        pytest.param(lambda: numnorm.instance_norm(IMAGES, CHANNELS, CHANNELS, 1), id="instance"),
        pytest.param(lambda: numnorm.weight_norm(X, COLUMN, 0), id="weight"),
        pytest.param(lambda: numnorm.batch_moments(X, 1), id="moments"),
    ],
)
def test_options_are_by_keyword_only(call):
    with pytest.raises(TypeError, match=r"\(\) (takes|missing)"):
        call()


# Names that other libraries have for an argument


KEYWORDS = [
    ("layer_norm", "weight", "use gamma"),
    ("layer_norm", "bias", "use beta"),
    ("layer_norm", "normalized_shape", "use axis"),
    ("layer_norm", "dim", "use axis"),
    ("layer_norm", "epsilon", "use eps"),
    ("layer_norm", "channel_axis", "use axis"),
    ("layer_norm", "input", "use x"),
    ("layer_norm", "mask", "use where"),
    ("batch_norm", "sample_weight", "use weights"),
    (
        "batch_norm",
        "aweights",
        "use weights, times the number of elements over their sum if ddof is 1",
    ),
    ("layer_norm_backward", "grad_output", "use dy"),
    ("rms_norm", "bias", "use gamma"),
    ("batch_norm", "axis", "use channel_axis"),
    ("batch_norm", "moving_variance", "use running_var"),
    ("batch_norm", "mean", "use running_mean"),
    ("batch_norm", "is_training", "use training"),
    ("batch_norm", "data_format", "use channel_axis"),
    ("batch_moments", "axis", "use channel_axis"),
    ("group_norm", "num_groups", "use groups"),
    ("weight_norm", "dim", "use axis"),
    ("weight_norm", "weight", "use x"),
]


@pytest.mark.parametrize("function, keyword, advice", KEYWORDS)
def test_keyword_of_another_library(function, keyword, advice):
    with pytest.raises(TypeError) as caught:
        getattr(numnorm, function)(**GOOD[function], **{keyword: 1})
    text = f"{function}() got an unexpected keyword argument '{keyword}': {advice}"
    assert_message(caught, TypeError, text)


@pytest.mark.parametrize("function", GOOD)
def test_unknown_keyword_is_refused(function):
    with pytest.raises(TypeError) as caught:
        getattr(numnorm, function)(**GOOD[function], axs=1)
    text = f"{function}() got an unexpected keyword argument 'axs'"
    assert_message(caught, TypeError, text)
    assert "others" not in inspect.signature(getattr(numnorm, function)).parameters


def test_missing_groups_are_named_where_they_have_another_name():
    with pytest.raises(TypeError, match=r"missing 1 required .*'groups'"):
        numnorm.group_norm(IMAGES, num_groups=3)


# Moments have two methods of their own


@pytest.mark.parametrize(
    "other, error, message",
    [
        (None, TypeError, "other must be Moments, got an object of type NoneType"),
        ((1, ROW, ROW), TypeError, "other must be Moments, got an object of type tuple"),
        (
            Moments(1, ROW[:2], ROW[:2]),
            ValueError,
            wrong_shape("other.mean", (4,), "the channels", (2,)),
        ),
    ],
)
def test_moments_of_something_else_do_not_merge(other, error, message):
    with pytest.raises((TypeError, ValueError)) as caught:
        numnorm.batch_moments(X).merge(other)
    assert_message(caught, error, message)


@pytest.mark.parametrize(
    "moments, error, message",
    [
        (Moments(-1, ROW, ROW), ValueError, "moments.count must be at least 0, got -1"),
        (Moments(2.0, ROW, ROW), TypeError, "moments.count must be an int, got 2.0"),
        (
            Moments(1, ROW, ROW[:2]),
            ValueError,
            wrong_shape("moments.m2", (4,), "the channels", (2,)),
        ),
        (Moments(1, 1.0, 1.0), ValueError, wrong_shape("moments.mean", (1,), "the channels", ())),
        (
            Moments(1, ROW, ROW, ROW[:2]),
            ValueError,
            wrong_shape("moments.mean_lo", (4,), "the channels", (2,)),
        ),
    ],
)
def test_wrong_moments_do_not_merge(moments, error, message):
    with pytest.raises((TypeError, ValueError)) as caught:
        moments.merge(numnorm.batch_moments(X))
    assert_message(caught, error, message)


def test_a_wrong_count_has_no_variance():
    with pytest.raises(TypeError) as caught:
        Moments(2.5, ROW, ROW).var()
    assert_message(caught, TypeError, "count must be an int, got 2.5")


@pytest.mark.parametrize(
    "ddof, error, message",
    [
        (3, ValueError, "ddof must be less than the count, 3, got 3"),
        (-1, ValueError, "ddof must be at least 0, got -1"),
        (1.0, TypeError, "ddof must be an int, got 1.0"),
        (True, TypeError, "ddof must be an int, got True"),
        ("1", TypeError, "ddof must be an int, got '1'"),
    ],
)
def test_the_variance_needs_more_values_than_ddof(ddof, error, message):
    for function in (numnorm.batch_moments(X).var, numnorm.batch_moments(X).std):
        with pytest.raises((TypeError, ValueError)) as caught:
            function(ddof)
        assert_message(caught, error, message)


def test_nothing_has_no_variance():
    with pytest.raises(ValueError) as caught:
        numnorm.batch_moments(X[:0]).var()
    assert_message(caught, ValueError, "ddof must be less than the count, 0, got 0")


# What an error leaves behind


@pytest.mark.parametrize(
    "bad",
    [
        {"gamma": np.ones(3)},
        {"beta": np.ones(3)},
        {"gamma": ROW * 1j},
        {"eps": -1},
        {"out": np.empty(3)},
        {"momentum": 2},
        {"unbiased": "yes"},
        {"convention": "tf"},
        {"running_var": np.ones(3)},
        {"x": X * 1j},
        {"x": X[:1]},
    ],
    ids=lambda bad: next(iter(bad)),
)
def test_a_refused_batch_changes_no_running_statistics(bad):
    arguments = {"x": X} | running()
    mean, variance = arguments["running_mean"], arguments["running_var"]
    with pytest.raises((TypeError, ValueError)):
        numnorm.batch_norm(**(arguments | bad))
    np.testing.assert_array_equal(mean, ROW)
    np.testing.assert_array_equal(variance, ROW)


@pytest.mark.parametrize("function", takes("out"))
def test_a_refused_call_writes_no_output(function):
    x = GOOD[function]["x"]
    out = np.full(x.shape, 77.0)
    for bad in ({"x": x * 1j}, {"axis": 9}, {"channel_axis": 9}, {"rstd": 0}):
        if next(iter(bad)) in inspect.signature(getattr(numnorm, function)).parameters:
            with pytest.raises((TypeError, ValueError)):
                getattr(numnorm, function)(**(GOOD[function] | bad), out=out)
    np.testing.assert_array_equal(out, 77.0)
