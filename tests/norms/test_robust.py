"""Robust norms, compared with their definition by sorted rows, with NumPy, SciPy and others."""

from typing import get_args

import numpy as np
import pytest
import reference
from gradients import TOLERANCE, numerical_gradients
from layouts import LAYOUTS
from quantile_methods import METHODS

import numnorm
from numnorm.norms import order_statistics

DTYPES = ["float16", "bfloat16", "float32", "float64"]
SCALES = ["mad", "iqr", "range", (0.1, 0.75), (0.0, 0.5), None]
CENTERS = ["median", "mean", 1.5]


# The definition


def quantile(values, q, method, weights=None):
    """A quantile of sorted numbers; its place among them is NumPy's."""
    values = np.asarray(values, np.longdouble)
    if weights is not None:
        order = np.argsort(values)
        ranks = np.arange(values.size, dtype=float)
        rank = np.quantile(ranks, q, weights=weights[order], method="inverted_cdf")
        return values[order][int(rank)]
    values = np.sort(values)
    place = float(np.quantile(np.arange(values.size, dtype=float), q, method=method))
    place = round(place) if abs(place - round(place)) < 1e-9 else place
    lower, upper = values[int(np.floor(place))], values[int(np.ceil(place))]
    share = np.longdouble(place - np.floor(place))
    return lower if lower == upper else lower * (1 - share) + upper * share


def normalized_row(row, keep, weights, center, scale, factor, method, eps):
    """Return y, the center and the scale of one row, by their definition."""
    row = row.astype(np.longdouble)
    own = row[keep]
    each = None if weights is None else weights[keep][weights[keep] > 0]
    own = own if weights is None else own[weights[keep] > 0]
    nothing = np.full(row.shape, np.nan), np.nan, np.nan
    if not own.size or np.isnan(own).any():
        return nothing
    if center == "median":
        c = quantile(own, 0.5, method, each)
    elif center == "mean":
        c = own.mean() if each is None else (own * each).sum() / each.sum()
    else:
        c = np.longdouble(center)
    s = np.longdouble(1)
    if scale == "mad":
        s = quantile(abs(own - c), 0.5, method, each) if np.isfinite(c) else np.nan
    elif scale is not None:
        low, high = {"iqr": (0.25, 0.75), "range": (0.0, 1.0)}.get(scale, scale)
        s = quantile(own, high, method, each) - quantile(own, low, method, each)
    divisor = factor * s + np.longdouble(eps)
    if divisor == 0:
        return np.where(np.isnan(row), row, 0), c, s
    return (row - c) / divisor, c, s


def normalized(
    x, axis=-1, where=None, weights=None, nan_policy="propagate", fill=None,
    center="median", scale="mad", factor=1.0, method=None, eps=0.0,
):  # fmt: skip
    """Return y, the centers and the scales, by their definition."""
    axes = tuple(a % x.ndim for a in ((axis,) if np.isscalar(axis) else axis))
    keep = np.broadcast_to(True if where is None else where, x.shape)
    counts = keep & ~np.isnan(x.astype(float)) if nan_policy == "omit" else keep
    if weights is not None:
        own = tuple(x.shape[a] for a in sorted(axes))
        if np.shape(weights) == own:
            shape = [n if a in axes else 1 for a, n in enumerate(x.shape)]
            weights = np.reshape(weights, shape)
        weights = np.broadcast_to(weights, x.shape).astype(float)
    others = [a for a in range(x.ndim) if a not in axes]
    order = others + sorted(axes)
    size = (int(np.prod([x.shape[a] for a in others])), -1)

    def rows(array):
        return None if array is None else array.transpose(order).reshape(size)

    words = {"center": center, "scale": scale, "factor": factor, "eps": eps}
    method = method or "linear"
    found = [
        normalized_row(row, kept, None if weights is None else each, method=method, **words)
        for row, kept, each in zip(
            rows(x), rows(counts), rows(x if weights is None else weights), strict=True
        )
    ]
    y = np.array([row for row, _, _ in found], np.longdouble)
    y = y.reshape([x.shape[a] for a in order]).transpose(np.argsort(order))
    y = np.where(counts, y, np.nan if fill is None else fill)
    y = np.where(keep, y, 0.0 if fill is None else fill)
    statistic = [x.shape[a] for a in others]
    c, s = (np.array([row[i] for row in found], float).reshape(statistic) for i in (1, 2))
    return y, c, s


def check(x, **options):
    """Compare a call with the definition."""
    found = numnorm.robust_norm_forward(x, **options)
    y, c, s = normalized(x, **options)
    assert found.y.dtype == x.dtype and found.y.shape == x.shape
    # A quotient of differences, each of whose roundings is one of float64, and the last one.
    eps = {2: 2.0**-7, 4: 2.0**-23, 8: 2.0**-52}[x.dtype.itemsize]
    with np.errstate(all="ignore"):
        expected = y.astype(x.dtype).astype(float)
    finite = np.isfinite(expected)
    size = np.max(np.abs(expected), initial=1.0, where=finite)
    np.testing.assert_allclose(found.y.astype(float), expected, rtol=8 * eps, atol=8e-16 * size)
    exact = 8 * (2.0**-23 if x.dtype == "float16" else 2.0**-52)
    for mine, other in ((found.center, c), (found.scale, s)):
        np.testing.assert_allclose(mine, other, rtol=exact, atol=exact)


def drawn(rng, shape, dtype, kind):
    """Return random rows: without ties, with many, constant ones, or with infinities."""
    x = rng.normal(3.0, 2.0, shape)
    if kind == "ties":
        x = np.round(x)
    if kind == "constant":
        x = np.where(rng.random(shape) < 0.1, x, 2.0)
    if kind == "infinities":
        x = np.where(rng.random(shape) < 0.2, rng.choice([-np.inf, np.inf], shape), x)
    return x.astype(as_dtype(dtype))


def as_dtype(name):
    return pytest.importorskip("ml_dtypes").bfloat16 if name == "bfloat16" else name


KINDS = ["plain", "ties", "constant", "infinities"]


def check_random_case(rng):
    """Compare a random call with the definition."""
    ndim = int(rng.integers(1, 4))
    shape = tuple(int(n) for n in rng.choice([1, 2, 3, 5, 8, 17, 40], ndim))
    if rng.random() < 0.1:
        shape = (*shape[:-1], 300)  # so many that a sample is taken
    dtype = rng.choice(["float16", "float32", "float64"])
    x = drawn(rng, shape, dtype, rng.choice(KINDS))
    axes = tuple(int(a) for a in rng.permutation(ndim)[: rng.integers(1, ndim + 1)])
    pair = tuple(np.sort(rng.choice(101, 2, replace=False) / 100).tolist())
    options = {
        "axis": axes if rng.random() < 0.5 else axes[0],
        "center": CENTERS[rng.integers(3)],
        "scale": [*SCALES, pair][rng.integers(len(SCALES) + 1)],
    }
    if options["scale"] is not None:
        options |= {"factor": float(rng.choice([1.0, 1.5])), "eps": float(rng.choice([0.0, 0.5]))}
    kind = rng.integers(4)
    if kind == 1:
        options["where"] = rng.random(shape) < rng.choice([0.0, 0.1, 0.7])
    if kind == 2:
        x[rng.random(shape) < rng.choice([0.1, 0.7, 1.0])] = np.nan
        options["nan_policy"] = "omit"
    if dtype == "float64" and rng.random() < 0.5:  # the only kernel with weights
        options["weights"] = rng.integers(0, 3, shape) * 0.5
    elif rng.random() < 0.7:
        options["method"] = str(rng.choice(list(METHODS)))
    check(x, **options)


@pytest.mark.parametrize("count", [40, pytest.param(2000, marks=pytest.mark.slow)])
def test_random_cases(count):
    rng = np.random.default_rng(count)
    with np.errstate(all="ignore"):
        for _ in range(count):
            check_random_case(rng)


# Other libraries


WIDTHS = [1, 2, 3, 7, 8, 31, 32, 33, 64, 255, 256, 257, 1000, 2048, 5001]


@pytest.mark.parametrize("width", WIDTHS)
def test_medians_are_those_of_numpy_and_scipy(width):
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(width)
    for kind in KINDS[:3]:
        x = drawn(rng, (3, width), "float64", kind)
        found = numnorm.robust_norm_forward(x, factor="normal")
        np.testing.assert_allclose(found.center, np.median(x, axis=1), rtol=4e-16)
        # The median is subtracted with all its digits, so that NumPy's rounding differs.
        mad = stats.median_abs_deviation(x, axis=1)
        np.testing.assert_allclose(found.scale, mad, rtol=0, atol=1e-15)
        scaled = stats.median_abs_deviation(x, axis=1, scale="normal")
        expected = np.divide(x - np.median(x, axis=1)[:, None], scaled[:, None],
                             out=np.zeros_like(x), where=scaled[:, None] != 0)  # fmt: skip
        np.testing.assert_allclose(found.y, expected, rtol=1e-12, atol=1e-12)


def test_the_type_of_a_method_has_all_of_them():
    assert get_args(order_statistics.Method) == tuple(order_statistics.METHODS)


@pytest.mark.parametrize("method", METHODS)
def test_methods_are_those_of_numpy(method):
    rng = np.random.default_rng(0)
    for width in (1, 2, 5, 10, 11, 41):
        x = rng.normal(size=(2, width))
        for low, high in ((0.0, 1.0), (0.1, 0.7), (0.25, 0.75), (1 / 3, 0.9), (0.3, 0.35)):
            found = numnorm.robust_norm_forward(x, scale=(low, high), method=method)
            one, other = np.quantile(x, (low, high), axis=1, method=method)
            # Three roundings of numbers below 4.
            np.testing.assert_allclose(found.scale, other - one, rtol=0, atol=2e-15)
            middle = np.quantile(x, 0.5, axis=1, method=method)
            np.testing.assert_allclose(found.center, middle, rtol=0, atol=1e-15)


def test_quantiles_by_weights_are_those_of_numpy():
    rng = np.random.default_rng(0)
    x, weights = rng.integers(0, 9, (20, 30)) * 1.0, rng.integers(0, 4, (20, 30)) * 0.25
    found = numnorm.robust_norm_forward(x, scale=(0.2, 0.75), weights=weights)
    for row in range(len(x)):
        given = {"weights": weights[row], "method": "inverted_cdf"}
        low, middle, high = np.quantile(x[row], (0.2, 0.5, 0.75), **given)
        assert (found.center[row], found.scale[row]) == (middle, high - low)


@pytest.mark.parametrize("unit_variance", [False, True])
def test_columns_are_those_of_scikit_learn(unit_variance):
    preprocessing = pytest.importorskip("sklearn.preprocessing")
    x = np.random.default_rng(0).normal(5.0, 2.0, (201, 7))
    x[::9, 2] = np.nan
    expected = preprocessing.robust_scale(x, unit_variance=unit_variance)
    factor = "normal" if unit_variance else 1.0
    y = numnorm.robust_norm(x, axis=0, scale="iqr", factor=factor, nan_policy="omit")
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-13)


# Numbers


@pytest.mark.parametrize("dtype", DTYPES)
def test_each_dtype_is_rounded_once(dtype):
    rng = np.random.default_rng(0)
    for axis in (0, 1):
        check(drawn(rng, (20, 33), dtype, "ties"), axis=axis)
        check(drawn(rng, (20, 33), dtype, "plain"), axis=axis, scale=(0.1, 0.9))


@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool"])
def test_integers_are_computed_in_float64(dtype):
    x = np.random.default_rng(0).integers(0, 9, (4, 11)).astype(dtype)
    y = numnorm.robust_norm(x)
    assert y.dtype == np.float64
    np.testing.assert_array_equal(y, numnorm.robust_norm(x.astype(float)))


@pytest.mark.parametrize("center", ["median", "mean"])
@pytest.mark.parametrize("scale", ["mad", "iqr", "range"])
def test_no_offset_costs_digits(center, scale):
    x = np.round(np.random.default_rng(0).normal(size=(5, 300)) * 2**20) / 2**20
    moved = x + 2.0**30  # exact
    expected = normalized(x, center=center, scale=scale)[0].astype(float)
    y = numnorm.robust_norm(moved, center=center, scale=scale)
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-14)


def test_flat_rows_become_0_unless_eps_is_added():
    x = np.array([[3.0, 3.0, 3.0, 3.0, 9.0], [0.1, 0.1, 0.1, 0.1, 0.1]])
    assert not numnorm.robust_norm(x).any()
    y = numnorm.robust_norm(x, eps=2.0)
    np.testing.assert_array_equal(y, [[0.0, 0.0, 0.0, 0.0, 3.0], [0.0] * 5])
    missing = np.array([[1.0, np.nan, 1.0]])
    np.testing.assert_array_equal(numnorm.robust_norm(missing, nan_policy="omit"), missing - 1.0)


@pytest.mark.parametrize("kind", ["organ", "saw", "sorted", "steps", "halves", "few"])
@pytest.mark.parametrize("width", [300, 3000])
def test_orders_that_selection_finds_hard(kind, width):
    i = np.arange(width, dtype=float)
    x = {
        "organ": np.minimum(i, width - i),
        "saw": i % 16,
        "sorted": i,
        "steps": np.where(i % 12 == 6, 0.0, i),  # where samples are taken
        "halves": np.where(i < width // 2, 1.0, 2.0),
        "few": np.where(i == 7, 5.0, 1.0),
    }[kind]
    for q in (0.0, 0.01, 0.5, 0.995, 1.0):
        found = numnorm.robust_norm_forward(np.stack([x, -x]), scale=None, center="median")
        np.testing.assert_array_equal(found.center, [np.median(x), -np.median(x)])
        low, high = sorted({q, 0.3})
        scale = numnorm.robust_norm_forward(x, scale=(low, high)).scale
        expected = np.quantile(x, high) - np.quantile(x, low)
        np.testing.assert_allclose(scale, expected, rtol=1e-12)


def test_infinities_move_no_median():
    x = np.array([[-np.inf, 1.0, 2.0, 3.0, np.inf], [np.inf, np.inf, np.inf, 0.0, 1.0]])
    y = numnorm.robust_norm(x)
    np.testing.assert_array_equal(y[0], [-np.inf, -1.0, 0.0, 1.0, np.inf])
    assert np.isnan(y[1]).all()  # their distance from an infinite median is none


def test_nan_stays_in_its_row():
    x = np.random.default_rng(0).normal(size=(6, 40))
    expected = numnorm.robust_norm(x)
    x[2, 3] = np.nan
    y, center, scale = numnorm.robust_norm_forward(x)
    assert np.isnan(y[2]).all() and np.isnan(center[2]) and np.isnan(scale[2])
    np.testing.assert_array_equal(np.delete(y, 2, 0), np.delete(expected, 2, 0))


# Layouts, and where results go


AXES = [0, 1, 2, 3, (0, 1), (2, 3), (0, 2), (1, 3), (0, 3), (0, 2, 3), (0, 1, 2, 3)]


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("counting", ["", "where", "weights", "nan_policy"])
def test_axes(axis, counting):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 4, 5, 18))
    options = {
        "": {},
        "where": {"where": rng.random(x.shape) > 0.3},
        "weights": {"weights": rng.random((3, 1, 5, 18))},
        "nan_policy": {"nan_policy": "omit", "fill": 7.0},
    }[counting]
    if counting == "nan_policy":
        x[rng.random(x.shape) > 0.7] = np.nan
    check(x, axis=axis, **options)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("axis", [0, -1])
def test_layouts(layout, axis):
    x = layout(np.random.default_rng(0).normal(size=(9, 21)))
    expected = numnorm.robust_norm(np.array(x), axis=axis)
    np.testing.assert_array_equal(numnorm.robust_norm(x, axis=axis), expected)


@pytest.mark.parametrize("axis", [0, 1, 2, (0, 2)])
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_results_in_out(axis, dtype):
    x = np.random.default_rng(0).normal(size=(6, 20, 7)).astype(dtype)
    keep = x > -1.0
    for options in ({}, {"where": keep, "fill": 3.0}):
        expected = numnorm.robust_norm(x, axis=axis, **options)
        same = x.copy()
        assert numnorm.robust_norm(same, axis=axis, out=same, **options) is same
        apart = np.empty((6, 20, 14), dtype)[:, :, ::2]
        assert numnorm.robust_norm(x, axis=axis, out=apart, **options) is apart
        for found in (same, apart):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 3)])
def test_nothing(shape):
    y, center, scale = numnorm.robust_norm_forward(np.ones(shape))
    assert y.shape == shape and center.shape == scale.shape == shape[:-1]
    assert np.isnan(center).all()
    dx = numnorm.robust_norm_backward(np.ones(shape), np.ones(shape), center, scale)
    assert dx.shape == shape


def test_rows_of_which_nothing_counts():
    x = np.ones((3, 4))
    keep = np.array([[True], [False], [True]])
    y, center, scale = numnorm.robust_norm_forward(x, where=keep, fill=5.0)
    assert np.all(y[1] == 5.0) and np.isnan(center[1]) and np.isnan(scale[1])
    assert np.isnan(numnorm.robust_norm(x, weights=np.zeros(4))).all()


# Gradients


@pytest.mark.skipif(not reference.LONGDOUBLE_IS_WIDER, reason="differences have too few digits")
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("center", CENTERS)
@pytest.mark.parametrize("width", [5, 6])
def test_gradient_is_that_of_differences(center, scale, width):
    rng = np.random.default_rng(width)
    x, dy = rng.normal(size=(2, 3, width))
    options = {"center": center, "scale": scale}
    options |= {} if scale is None else {"factor": 1.5, "eps": 0.1}
    for counting in ({}, {"where": rng.random(x.shape) > 0.2}, {"weights": rng.random(width)}):
        _, centers, scales = numnorm.robust_norm_forward(x, **options, **counting)
        dx = numnorm.robust_norm_backward(dy, x, centers, scales, **options, **counting)

        def definition(x):
            return normalized(x, **options, **counting)[0]

        (expected,) = numerical_gradients(definition, [x], dy)
        np.testing.assert_allclose(dx, expected.astype(float), rtol=0, atol=100 * TOLERANCE)


def test_ties_share_a_gradient():
    x = np.array([[1.0, 2.0, 2.0, 2.0, 5.0]])
    saved = numnorm.robust_norm_forward(x, scale=None)[1:]
    dx = numnorm.robust_norm_backward(np.ones((1, 5)), x, *saved, scale=None)
    np.testing.assert_allclose(dx, [[1.0, -2 / 3, -2 / 3, -2 / 3, 1.0]], rtol=1e-15)


def test_ties_share_a_gradient_as_in_autograd():
    # Autograd has no median, but extremes.
    autograd = pytest.importorskip("autograd")
    x = np.array([[1.0, 1.0, 2.0, 7.0, 7.0, 7.0]])
    dy = np.random.default_rng(0).normal(size=x.shape)

    def loss(x):
        numpy = autograd.numpy
        return numpy.sum(dy * (x - numpy.mean(x)) / (numpy.max(x) - numpy.min(x)))

    options = {"center": "mean", "scale": "range"}
    saved = numnorm.robust_norm_forward(x, **options)[1:]
    dx = numnorm.robust_norm_backward(dy, x, *saved, **options)
    np.testing.assert_allclose(dx, autograd.grad(loss)(x), rtol=0, atol=1e-15)


@pytest.mark.parametrize("axis", AXES)
def test_gradients_of_axes(axis):
    rng = np.random.default_rng(0)
    x, dy = rng.normal(size=(2, 3, 4, 5, 6))
    axes = (axis,) if isinstance(axis, int) else axis
    last = [a for a in range(4) if a not in axes] + list(axes)
    moved, dy_moved = x.transpose(last), dy.transpose(last)
    own = tuple(range(4 - len(axes), 4))
    saved = numnorm.robust_norm_forward(x, axis=axis)[1:]
    dx = numnorm.robust_norm_backward(dy, x, *saved, axis=axis)
    expected = numnorm.robust_norm_backward(dy_moved, moved, *saved, axis=own)
    np.testing.assert_array_equal(dx.transpose(last), expected)


def test_what_is_left_out_passes_no_gradient():
    x = np.array([[1.0, 2.0, np.nan, 4.0, 9.0, np.inf]])
    dy = np.where(np.isfinite(x), 1.0, np.nan)
    options = {"nan_policy": "omit", "where": np.isfinite(x)}
    saved = numnorm.robust_norm_forward(x, **options)[1:]
    dx = numnorm.robust_norm_backward(dy, x, *saved, **options)
    alone = x[:, np.isfinite(x[0])]
    kept = numnorm.robust_norm_backward(np.ones((1, 4)), alone, *saved)
    np.testing.assert_array_equal(dx, [[*kept[0, :2], 0.0, *kept[0, 2:], 0.0]])


def test_flat_rows_pass_no_gradient():
    x = np.array([[3.0, 3.0, 3.0, 9.0]])
    saved = numnorm.robust_norm_forward(x)[1:]
    assert not numnorm.robust_norm_backward(np.ones((1, 4)), x, *saved).any()


# Errors


@pytest.mark.parametrize(
    "options, message",
    [
        ({"center": "mode"}, "center must be 'median', 'mean' or a number, got 'mode'"),
        ({"center": np.inf}, "center must be finite, got inf"),
        ({"scale": "std"}, "scale must be 'mad', 'iqr', 'range', a pair of quantiles or None"),
        ({"scale": (0.1, 0.2, 0.3)}, "scale must have 2 quantiles, got 3"),
        ({"scale": (0.7, 0.2)}, "scale must be a lower and a higher quantile, got"),
        ({"scale": (0.7, 1.2)}, "scale must be between 0 and 1, got 1.2"),
        ({"factor": "gauss"}, "factor must be a number or 'normal', got 'gauss'"),
        ({"factor": 0}, "factor must be above 0, got 0"),
        ({"factor": "normal", "scale": "range"}, "factor must be a number where scale is 'range'"),
        ({"factor": "normal", "scale": (0, 0.5)}, "factor must be a number where scale is "),
        ({"factor": 2, "scale": None}, "factor must be 1 where scale is None, got 2"),
        ({"eps": 2, "scale": None}, "eps must be 0 where scale is None, got 2"),
        ({"eps": -1}, "eps must be at least 0, got -1"),
        ({"method": "cubic"}, "method must be 'linear', 'inverted_cdf', "),
        ({"method": "linear", "weights": [1.0, 1.0]}, "method must be 'inverted_cdf' with weights"),
        ({"nan_policy": "raise"}, "x must not contain NaN"),
    ],
)
def test_errors(options, message):
    with pytest.raises(ValueError) as caught:
        numnorm.robust_norm([[1.0, np.nan]], **options)
    assert str(caught.value).startswith(message)


def test_statistics_of_another_shape_are_refused():
    with pytest.raises(ValueError, match="scales must have shape"):
        numnorm.robust_norm_backward(np.ones((2, 3)), np.ones((2, 3)), np.ones(2), np.ones(3))


@pytest.mark.parametrize(
    "keyword, advice",
    [
        ("quantile_range", r"use scale=\(low, high\), from 0 to 1"),
        ("unit_variance", "use factor='normal'"),
        ("with_centering", "use center=0"),
        ("with_scaling", "use scale=None"),
        ("interpolation", "use method"),
    ],
)
def test_keyword_of_another_library(keyword, advice):
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{keyword}': {advice}$"):
        numnorm.robust_norm([1.0, 3.0], **{keyword: 1})


@pytest.mark.usefixtures("parallel_at_small_sizes")
@pytest.mark.parametrize("axis", [0, 1])
def test_the_same_bytes_for_any_number_of_threads(axis):
    x = np.random.default_rng(8).normal(size=(70, 90))
    dy, results = np.cos(x), []
    for threads in (1, 2):
        with numnorm.num_threads(threads):
            forward = numnorm.robust_norm_forward(x, axis=axis)
            dx = numnorm.robust_norm_backward(dy, x, *forward[1:], axis=axis)
            results.append([array.tobytes() for array in (*forward, dx)])
    assert results[0] == results[1]
