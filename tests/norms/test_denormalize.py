"""`denormalize` against its definition, in extended precision, and after the norms it inverts."""

import itertools
import pickle

import ml_dtypes
import numpy as np
import pytest
from gradients import TOLERANCE, numerical_gradients
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import LONGDOUBLE_IS_WIDER

import numnorm

EXAMPLES = [
    pytest.param(100, id="few"),
    pytest.param(2000, id="many", marks=pytest.mark.slow),
]
DTYPES = (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)
# Half a unit in the last place, relative to the result.
HALF_UNIT = {np.float16: 2.0**-11, ml_dtypes.bfloat16: 2.0**-8, np.float32: 2.0**-24}
# In float64 beta is subtracted, 1 / gamma, 1 / rstd and two products are rounded, and the sum is:
# six roundings, of which each is relative to |x| + |mean| at most.
ROUNDINGS_OF_FLOAT64 = 6 * 2.0**-53

NAMES = "mean", "rstd", "gamma", "beta"


def inverse(y, mean, rstd, gamma, beta):
    """The definition, for arrays that broadcast."""
    y, mean, rstd, gamma, beta = (
        np.asarray(a).astype(np.longdouble) for a in (y, mean, rstd, gamma, beta)
    )
    flat = (rstd == 0) | np.isinf(rstd)
    deviation = np.where(flat, 0, 1 / np.where(flat, 1, rstd))
    return (y - beta) / gamma * deviation + mean


def along(*axes):
    """A function of the number of axes of y, which says which of them an array has."""
    return lambda n: [a in {axis % n for axis in axes} for a in range(n)]


def others(*axes):
    """The same for an array without these axes."""
    return lambda n: [not own for own in along(*axes)(n)]


# The kinds of norms: keywords, which axes of y the statistics have, and which the gain.
KINDS = {
    "rows": ({"axis": -1}, others(-1), along(-1)),
    "first": ({"axis": 0}, others(0), along(0)),
    "ends": ({"axis": (0, -1)}, others(0, -1), along(0, -1)),
    "channels": ({"channel_axis": 1}, along(1), along(1)),
    "two channels": ({"channel_axis": (0, -1)}, along(0, -1), along(0, -1)),
    "instances": ({"channel_axis": 1}, along(0, 1), along(1)),
    "instances last": ({"channel_axis": -1}, along(0, -1), along(-1)),
    "groups": ({"channel_axis": 1}, lambda n: [True, 2] + [False] * (n - 2), along(1)),
    "elements": ({"axis": -1}, others(), along(-1)),
    "broadcasting": ({"axis": -1}, None, None),
}


def of_pattern(rng, shape, pattern, broadcasting):
    """The shape of an array and the same with as many axes as y."""
    if broadcasting:
        full = tuple(n if rng.random() < 0.5 else 1 for n in shape)
        return full, full
    groups = [n // k if k == 2 else n for n, k in zip(shape, map(int, pattern), strict=True)]
    own = tuple(n for n, k in zip(groups, pattern, strict=True) if k)
    return own, tuple(n if k else 1 for n, k in zip(groups, pattern, strict=True))


def random_case(rng, dtype=None):
    """y, the other arrays by name, the same laid along y, and keywords."""
    kind = rng.choice(list(KINDS))
    ndim = int(rng.integers(2 if kind != "two channels" and kind != "ends" else 3, 5))
    most = [1, 3, 6, 40 if ndim == 2 else 6][int(rng.integers(4))]
    shape = tuple(int(n) for n in rng.integers(1, most + 1, ndim))
    if kind == "groups":
        shape = (shape[0], 2 * shape[1], *shape[2:])
    if rng.random() < 0.03:
        shape = (*shape[:-1], 0)
    keywords, statistics, parameters = KINDS[kind]
    dtype = dtype or DTYPES[int(rng.integers(len(DTYPES)))]
    y = rng.normal(0, 2, shape).astype(dtype)
    arrays, laid = {}, {}
    for name in NAMES:
        pattern = (statistics if name in ("mean", "rstd") else parameters) if statistics else None
        own, full = of_pattern(rng, shape, pattern(ndim) if pattern else None, pattern is None)
        if name != "rstd" and rng.random() < 0.25:
            arrays[name], laid[name] = None, np.ones(()) if name == "gamma" else np.zeros(())
            continue
        if name == "rstd":
            value = rng.uniform(0.25, 4, own)
            value[rng.random(own) < 0.1] = rng.choice([0.0, np.inf])
        elif name == "gamma":
            value = rng.uniform(0.25, 4, own) * rng.choice([-1, 1], own)
        else:
            value = rng.normal(0, 10.0 ** rng.integers(0, 8) if name == "mean" else 1.0, own)
        value = value.astype(rng.choice([np.float32, np.float64]))
        arrays[name] = value
        value = value.reshape(full)
        if kind == "groups" and name in ("mean", "rstd"):
            value = value.repeat(2, axis=1)
        laid[name] = value
    return y, arrays, laid, keywords


@pytest.mark.skipif(not LONGDOUBLE_IS_WIDER, reason="the definition has too few digits")
@pytest.mark.parametrize("examples", EXAMPLES)
def test_random_arrays(examples):
    @settings(deadline=None, max_examples=examples, print_blob=True)
    @given(st.integers(0, 2**32 - 1))
    def check(seed):
        rng = np.random.default_rng(seed)
        y, arrays, laid, keywords = random_case(rng)
        expected = inverse(y, *(laid[name] for name in NAMES))
        out = None
        if rng.random() < 0.3:
            out = np.empty_like(y) if rng.random() < 0.5 else y
        layout = rng.integers(3)
        if layout == 1:
            y = np.asfortranarray(y)
        elif layout == 2:
            y = y[..., ::-1].copy()[..., ::-1]
        got = numnorm.denormalize(y, **arrays, **keywords, out=out)
        assert got.dtype == y.dtype and got.shape == y.shape
        assert out is None or got is out
        with np.errstate(over="ignore"):
            nearest = expected.astype(y.dtype)
        finite = np.isfinite(nearest.astype(np.float64))
        np.testing.assert_array_equal(np.isfinite(got.astype(np.float64)), finite)
        size = abs(expected) + abs(laid["mean"])
        size = size + abs(
            np.asarray(laid["beta"], np.longdouble)
            / laid["gamma"]
            / np.where(laid["rstd"] == 0, np.inf, laid["rstd"])
        )
        unit = HALF_UNIT.get(y.dtype.type, 0.0)
        # Subnormal float16 have fewer digits.
        bound = (
            unit * abs(expected)
            + ROUNDINGS_OF_FLOAT64 * size
            + (2.0**-25 if y.dtype == np.float16 else 0)
        )
        error = abs(got.astype(np.longdouble) - expected)
        assert (error <= bound)[finite].all()

    check()


@pytest.mark.skipif(not LONGDOUBLE_IS_WIDER, reason="the differences have too few digits")
@pytest.mark.parametrize(
    "examples", [pytest.param(20, id="few"), pytest.param(500, id="many", marks=pytest.mark.slow)]
)
def test_backward_is_the_gradient(examples):
    @settings(deadline=None, max_examples=examples, print_blob=True)
    @given(st.integers(0, 2**32 - 1))
    def check(seed):
        rng = np.random.default_rng(seed)
        kind = rng.choice(list(KINDS))
        shape = (2, 4, 3)
        keywords, statistics, parameters = KINDS[kind]
        y, dx = rng.normal(size=(2, *shape))
        arrays, lay = {}, {}
        for name in NAMES:
            pattern = statistics if name in ("mean", "rstd") else parameters
            own, full = of_pattern(rng, shape, pattern(3) if pattern else None, pattern is None)
            arrays[name] = rng.uniform(0.5, 2.0, own)
            repeats = 2 if kind == "groups" and name in ("mean", "rstd") else 1
            lay[name] = full, repeats

        def laid(name, value):
            full, repeats = lay[name]
            return value.reshape(full).repeat(repeats, axis=1)

        def function(y, *values):
            return inverse(y, *map(laid, NAMES, values))

        found = numnorm.denormalize_backward(dx, y, **arrays, **keywords)
        wanted = numerical_gradients(function, [y, *arrays.values()], dx)
        for got, expected in zip(found, wanted, strict=True):
            assert got.shape == expected.shape and got.dtype == np.float64
            assert abs(got - expected).max() <= TOLERANCE * max(1, abs(expected).max())

    check()


# After the norms


RNG = np.random.default_rng(7)
GAINS = {n: RNG.uniform(0.5, 2.0, n) for n in (4, 6, 10)}
BIASES = {n: RNG.normal(size=n) for n in (4, 6, 10)}


def all_norms(x, affine):
    """The name, y, statistics, gain, bias and keywords of each norm of x, (4, 6, 10)."""

    def parameters(n):
        return {"gamma": GAINS[n], "beta": BIASES[n]} if affine else {}

    for name, axis in itertools.product(("layer_norm", "standard_normal_variate"), (-1, 1, (1, 2))):
        own = parameters(x.shape[axis]) if name == "layer_norm" and type(axis) is int else {}
        y, mean, rstd = getattr(numnorm, f"{name}_forward")(x, **own, axis=axis)
        yield f"{name} {axis}", y, mean, rstd, own, {"axis": axis}
    y, rstd = numnorm.rms_norm_forward(x, **({"gamma": GAINS[10]} if affine else {}))
    yield "rms_norm", y, None, rstd, {"gamma": GAINS[10]} if affine else {}, {}
    for name, keywords in [
        ("group_norm", {"groups": 3}),
        ("instance_norm", {}),
        ("batch_norm", {}),
    ]:
        y, mean, rstd = getattr(numnorm, f"{name}_forward")(x, **parameters(6), **keywords)
        yield name, y, mean, rstd, parameters(6), {"channel_axis": 1}
    y, mean, rstd = numnorm.batch_norm_forward(x, channel_axis=(0, 2))
    yield "batch_norm (0, 2)", y, mean, rstd, {}, {"channel_axis": (0, 2)}
    for name in ("batch_norm", "instance_norm"):
        running = {"running_mean": x.mean((0, 2)) + 1, "running_var": np.full(6, 3.0)}
        y, mean, rstd = getattr(numnorm, f"{name}_forward")(
            x, **parameters(6), **running, training=False
        )
        yield f"{name} in inference", y, mean, rstd, parameters(6), {"channel_axis": 1}
    y, mean, rstd = numnorm.moving_norm_forward(x, 4, axis=1)
    yield "moving_norm", y, mean, rstd, {}, {"axis": 1}
    y, mean, rstd = numnorm.exponential_norm_forward(x, 0.3)
    yield "exponential_norm", y, mean, rstd, {}, {}
    y, norm = numnorm.weight_norm_forward(x, GAINS[6], axis=(0, 2))
    yield "weight_norm", y, None, GAINS[6] / norm, {}, {"axis": (0, 2)}


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("dtype", [pytest.param(np.float32, marks=pytest.mark.full), np.float64])
def test_round_trip_of_every_norm(dtype, affine):
    x = RNG.normal(3.0, 2.0, (4, 6, 10)).astype(dtype)
    for name, y, mean, rstd, own, keywords in all_norms(x, affine):
        back = numnorm.denormalize(y, mean, rstd, **own, **keywords)
        assert back.dtype == dtype
        # The rounding errors of y, a dozen of its largest value, times deviations of a few units.
        assert abs(back - x).max() <= 100 * np.finfo(dtype).eps, name


@pytest.mark.parametrize("dtype, units", [(np.float32, 0), (np.float64, 1)])
@pytest.mark.parametrize("offset", [1e3, 1e7, 1e12])
def test_round_trip_at_an_offset(dtype, units, offset):
    # In float32 the mean is float64: nothing is lost. In float64 the saved mean is rounded.
    x = (offset + RNG.normal(size=(50, 400))).astype(dtype)
    for axis in (-1, 0):
        y, mean, rstd = numnorm.layer_norm_forward(x, axis=axis)
        back = numnorm.denormalize(y, mean, rstd, axis=axis)
        assert abs(back - x).max() <= units * np.spacing(dtype(offset))


def test_a_flat_row_gives_its_mean_whatever_y_is():
    y = np.array([[0.0, 3.0, -1e300], [1.0, 2.0, 3.0]])
    for nothing in (0.0, np.inf):
        for value in (7.0, 0.1):
            back = numnorm.denormalize(y, [value, 1.0], [nothing, 1.0])
            np.testing.assert_array_equal(back, [[value] * 3, [2.0, 3.0, 4.0]])
    x = np.full((2, 5), 0.1)
    np.testing.assert_array_equal(
        numnorm.denormalize(*numnorm.standard_normal_variate_forward(x)), x
    )
    gradients = numnorm.denormalize_backward(np.ones((2, 3)), y, [7.0, 1.0], [0.0, 1.0])
    np.testing.assert_array_equal(gradients.dy, [[0.0] * 3, [1.0] * 3])
    np.testing.assert_array_equal(gradients.drstd, [0.0, -6.0])


# Forecasts and parts of features


def test_a_forecast_of_another_length():
    window, forecast = RNG.normal(5, 3, (8, 3, 20)), RNG.normal(size=(8, 3, 7))
    _, mean, rstd = numnorm.instance_norm_forward(window)
    got = numnorm.denormalize(forecast, mean, rstd, channel_axis=1)
    # Roundings of float64 of sums of numbers up to 20, which may cancel.
    np.testing.assert_allclose(got, forecast / rstd[..., None] + mean[..., None], atol=1e-14)
    # Channels last, by names of the same statistics.
    swapped = numnorm.denormalize(np.swapaxes(forecast, 1, 2), mean, rstd, axis=1)
    np.testing.assert_array_equal(np.swapaxes(swapped, 1, 2), got)


def test_a_part_of_the_features():
    x, gamma, beta = RNG.normal(size=(8, 6, 20)), RNG.uniform(1, 2, 6), RNG.normal(size=6)
    some = [4, 1]
    y, mean, rstd = numnorm.batch_norm_forward(x, gamma, beta)
    back = numnorm.denormalize(
        y[:, some], mean[some], rstd[some], gamma[some], beta[some], channel_axis=1
    )
    np.testing.assert_allclose(back, x[:, some], atol=1e-14)
    y, mean, rstd = numnorm.instance_norm_forward(x, gamma, beta)
    back = numnorm.denormalize(
        y[:, some], mean[:, some], rstd[:, some], gamma[some], beta[some], channel_axis=1
    )
    np.testing.assert_allclose(back, x[:, some], atol=1e-14)


def test_labels_by_index():
    x, labels = RNG.normal(3, 2, (9, 4)), np.array([2, 0, 1, 1, 0, 2, 2, 0, 1])
    y, mean, rstd = numnorm.batch_norm_forward(x, labels=labels)
    back = numnorm.denormalize(y, mean[labels], rstd[labels], channel_axis=1)
    np.testing.assert_allclose(back, x, atol=1e-14)


# Arrays


def test_numbers_and_lists():
    np.testing.assert_array_equal(numnorm.denormalize([1, 2], 3, 0.5), [5.0, 7.0])
    assert numnorm.denormalize(np.ones((2, 3), bool), 0.0, 1.0).dtype == np.float64


@pytest.mark.parametrize("dtype", DTYPES)
def test_out_may_be_any_of_the_arrays(dtype):
    y = RNG.normal(size=(40, 50)).astype(dtype)
    mean, rstd = RNG.normal(size=(40, 50)), RNG.uniform(1, 2, (40, 50))
    expected = numnorm.denormalize(y, mean, rstd)
    own = y.copy()
    assert numnorm.denormalize(own, mean, rstd, out=own) is own
    np.testing.assert_array_equal(own, expected)
    shifted = np.empty(y.size + 1, dtype)
    source, target = shifted[1:].reshape(y.shape), shifted[:-1].reshape(y.shape)
    source[...] = y
    numnorm.denormalize(source, mean, rstd, out=target)
    np.testing.assert_array_equal(target, expected)
    fortran = np.empty(y.shape, dtype, order="F")
    assert numnorm.denormalize(y, mean, rstd, out=fortran) is fortran
    np.testing.assert_array_equal(fortran, expected)
    if dtype is np.float64:
        numnorm.denormalize(y, mean, rstd, out=mean)
        np.testing.assert_array_equal(mean, expected)


def test_read_only_arrays():
    y, mean, rstd = RNG.normal(size=(3, 4)), np.ones((3, 4)), np.full((3, 1), 0.5)
    for each in (y, mean, rstd):
        each.flags.writeable = False
    np.testing.assert_array_equal(numnorm.denormalize(y, mean, rstd), 2 * y + 1)
    assert numnorm.denormalize(y, mean, rstd).flags.writeable


def test_rounded_once():
    # 1 + 2**-25 is nearer to 1 in float32; a mean that is rounded first would give 1 + 2**-23.
    y = np.array([[-(2.0**-24)]], np.float32)
    got = numnorm.denormalize(y, [1 + 2.0**-24 + 2.0**-25], [1.0])
    assert got.dtype == np.float32 and got.item() == 1.0
    assert np.isinf(numnorm.denormalize(np.float16([[8.0]]), [0.0], [1e-5])).all()


def test_parts_and_narrow_rows_give_the_same_bytes():
    for shape in ((3, 20_000), (20_000, 3), (500, 7, 6), (7, 500, 6)):
        y = RNG.normal(size=shape).astype(np.float32)
        mean, rstd = RNG.normal(size=shape), RNG.uniform(1, 2, shape)
        for some in itertools.product([False, True], repeat=len(shape)):
            chosen = tuple(slice(None) if keep else slice(1) for keep in some)
            m, r = mean[chosen], rstd[chosen]
            expected = inverse(y, m, r, 1.0, 0.0)
            got = numnorm.denormalize(y, m, r)
            bound = 2.0**-24 * abs(expected) + ROUNDINGS_OF_FLOAT64 * (abs(expected) + abs(m))
            assert (abs(got - expected) <= bound).all()
            rows = [
                numnorm.denormalize(
                    y[i : i + 1], *(a if a.shape[0] == 1 else a[i : i + 1] for a in (m, r))
                )
                for i in range(2)
            ]
            np.testing.assert_array_equal(np.concatenate(rows), got[:2])


def test_five_axes_that_alternate():
    y = RNG.normal(size=(3, 2, 4, 2, 5))
    mean, rstd = RNG.normal(size=(2, 2)), RNG.uniform(1, 2, (2, 2))
    gamma = RNG.uniform(1, 2, (3, 4, 5))
    got = numnorm.denormalize(y, mean, rstd, gamma, axis=(0, 2, 4))
    m, r = (a[None, :, None, :, None] for a in (mean, rstd))
    np.testing.assert_allclose(got, y / gamma[:, None, :, None] / r + m, rtol=1e-13, atol=1e-13)


def test_what_is_no_number_stays():
    y = np.array([[np.nan, np.inf, 1.0]])
    np.testing.assert_array_equal(numnorm.denormalize(y, [1.0], [2.0]), [[np.nan, np.inf, 1.5]])


def test_gradients_have_the_dtypes_of_their_arrays():
    y, mean = np.ones((2, 3), np.float16), np.ones(2, np.float32)
    found = numnorm.denormalize_backward(
        y, y, mean, mean.astype(np.float64), np.ones(3, np.float32)
    )
    assert [g.dtype for g in found[:4]] == [np.float16, np.float32, np.float64, np.float32]
    assert found.dbeta is None
    assert pickle.loads(pickle.dumps(found)).dmean.tolist() == [3.0, 3.0]


# Errors


TWO, THREE, MATRIX, CHANNELS = np.ones(2), np.ones(3), np.ones((2, 3)), {"channel_axis": 1}


@pytest.mark.parametrize(
    "error, message, arguments, keywords",
    [
        (ValueError, r"mean must have shape \(2, 3\), or as many axes as y", (THREE, MATRIX), {}),
        (ValueError, r"rstd must have shape \(3,\), \(2, 3\), \(2, G\)", (None, TWO), CHANNELS),
        (ValueError, r"rstd must have shape \(3, 4\)", (None, THREE), {"channel_axis": (1, 2)}),
        (ValueError, r"gamma must have shape \(4,\), the normalized", (None, MATRIX, THREE), {}),
        (ValueError, r"beta must have shape \(3,\)", (None, THREE, None, TWO), CHANNELS),
        (TypeError, "rstd must be an array", (MATRIX, None), {}),
        (TypeError, "mean must hold real numbers", (MATRIX.astype(complex), MATRIX), {}),
        (ValueError, "axis must be between", (None, 1.0), {"axis": 3}),
        (TypeError, "channel_axis must be an int", (None, 1.0), {"channel_axis": 1.5}),
        (ValueError, "out must have shape", (None, 1.0), {"out": np.ones(3)}),
        (TypeError, "out must have dtype", (None, 1.0), {"out": np.ones((2, 3, 4), "f4")}),
    ],
)
def test_errors(error, message, arguments, keywords):
    y = np.ones((2, 3, 4))
    with pytest.raises(error, match=f"^{message}"):
        numnorm.denormalize(y, *arguments, **keywords)
    if "out" not in keywords:
        with pytest.raises(error, match=f"^{message}"):
            numnorm.denormalize_backward(y, y, *arguments, **keywords)


def test_errors_of_y():
    with pytest.raises(ValueError, match=r"^y must have at least 1 axis"):
        numnorm.denormalize(1.0, 0.0, 1.0)
    with pytest.raises(TypeError, match=r"^y must have dtype"):
        numnorm.denormalize(np.ones(3, complex), 0.0, 1.0)
    with pytest.raises(ValueError, match=r"^dx must have shape"):
        numnorm.denormalize_backward(np.ones(3), np.ones(4), 0.0, 1.0)


class OnDevice:
    __cuda_array_interface__ = {}


def test_a_device_is_refused():
    with pytest.raises(NotImplementedError, match="copy y to the host first"):
        numnorm.denormalize(OnDevice(), 0.0, 1.0)


@pytest.mark.parametrize("name", ["torch", "array_api_strict"])
def test_results_are_of_the_library_of_y(name):
    library = pytest.importorskip(name)
    y, mean, rstd = (library.asarray(a) for a in (RNG.normal(size=(3, 4)), np.ones(3), np.ones(3)))
    x = numnorm.denormalize(y, mean, rstd)
    assert type(x) is type(y)
    np.testing.assert_array_equal(np.asarray(x), np.asarray(y) + 1.0)
    found = numnorm.denormalize_backward(y, y, mean, rstd)
    assert {type(each) for each in found[:3]} == {type(y)}
    out = library.asarray(np.zeros((3, 4)))
    assert numnorm.denormalize(y, mean, rstd, out=out) is out
    np.testing.assert_array_equal(np.asarray(out), np.asarray(x))
