"""Norms by order statistics of moving windows, against their definition, NumPy and other libraries.

Positions of quantiles come from `numpy.quantile`; the definition sorts each window.
"""

import contextlib
import pickle

import gradients
import kernels
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lazy_norms import computed, divided
from moving_reference import kaldi_window
from quantile_methods import METHODS

import numnorm
from numnorm.backends.cpu import tuning
from numnorm.backends.formulas import order
from numnorm.norms import order_statistics

SOME = settings(max_examples=30, deadline=None, print_blob=True)
CASES = settings(max_examples=2000, deadline=None, print_blob=True)
RNG = np.random.default_rng(51)
HALVES = [pytest.param(dtype, marks=kernels.full) for dtype in (np.float16, ml_dtypes.bfloat16)]
DTYPES = [np.float64, pytest.param(np.float32, marks=kernels.full), *HALVES]
# A few roundings of a median, a scale and a quotient, in units of a result.
TOLERANCES = {"float64": 1e-13, "float32": 1e-6, "float16": 2e-3, "bfloat16": 2e-2}
FACTORS = {"mad": 1.482602218505602, "iqr": 0.7413011092528010}


@contextlib.contextmanager
def tuned(narrow_most):
    """Windows up to a length are kept sorted; blocks are so short that few steps have several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "ORDER_NARROW_MOST", narrow_most)
        patch.setattr(tuning, "ORDER_BLOCK_LEAST", 1)
        patch.setattr(tuning, "ORDER_STRETCH_BLOCKS", 3)
        yield


# The definition


def place_of(count, q, method):
    """The number of an order statistic, and the share of the next one."""
    place = float(np.quantile(np.arange(count), q, method=method))
    return int(place), place - int(place)


def between(ordered, index, share):
    """The value at a place; equal ones give themselves, infinite ones too."""
    lower = ordered[index]
    if not share or lower == ordered[index + 1]:
        return lower
    upper = ordered[index + 1]
    if share == 1:
        return upper
    with np.errstate(invalid="ignore"):
        return lower * (1 - share) + upper * share


def quantile(values, q, method):
    return between(np.sort(values), *place_of(len(values), q, method))


def statistics(values, scale="mad", method="linear"):
    """The median and the scale of the values of a window."""
    if not len(values) or np.isnan(values).any():
        return np.nan, np.nan
    median = quantile(values, 0.5, method)
    if not np.isfinite(median):
        return median, np.nan
    if scale is None:
        return median, 1.0
    if scale == "mad":
        return median, quantile(abs(values - median), 0.5, method)
    low, high = {"iqr": (0.25, 0.75), "range": (0, 1)}.get(scale, scale)
    quantiles = quantile(values, low, method), quantile(values, high, method)
    return median, 0.0 if quantiles[0] == quantiles[1] else quantiles[1] - quantiles[0]


def windows_of(keep, window, center, min_window):
    """Each step and channel, with its window's steps that count; time is the first axis."""
    for t, *channel in np.ndindex(keep.shape):
        first, stop = kaldi_window(t, len(keep), window, center, min_window)
        own = keep[(slice(first, stop), *channel)]
        yield (t, *channel), (first + np.flatnonzero(own), *channel)


def definition(x, keep, window, *, center=False, min_window=1, factor=1.0, eps=0.0, **options):
    """y, median and scale, with time first."""
    y, medians, scales = (np.full(x.shape, np.nan, x.dtype) for _ in range(3))
    if factor == "normal":
        factor = FACTORS[options["scale"]]
    for at, held in windows_of(keep, window, center, min_window):
        medians[at], scales[at] = statistics(x[held], **options)
        divisor = scales[at] * factor + (0 if options.get("scale", "mad") is None else eps)
        with np.errstate(all="ignore"):
            y[at] = (x[at] - medians[at]) / divisor if divisor else 0
    return y, medians, scales


def shares(values, order, q, method):
    """The gradient of a quantile of values: what attains it, in equal shares."""
    index, share = place_of(len(values), q, method)
    found = np.zeros(len(values))
    for each, part in ((index, 1 - share), (index + 1, share)):
        if part:
            same = values == order[each]
            found += part * same / same.sum()
    return found


def gradient(dy, x, keep, window, *, center=False, min_window=1, factor=1.0, eps=0.0, **options):
    """dx, with time first: each window's, added where it lies."""
    scale, method = options.get("scale", "mad"), options.get("method", "linear")
    given = {"center": center, "min_window": min_window, "factor": factor, "eps": eps}
    y, medians, scales = definition(x, keep, window, **given, **options)
    factor = FACTORS[scale] if factor == "normal" else factor
    dx = np.zeros(x.shape)
    for at, held in windows_of(keep, window, center, min_window):
        divisor = scales[at] * factor + (0 if scale is None else eps)
        if not keep[at] or not divisor:
            continue
        values, own = x[held], dy[at] / divisor
        of_median = shares(values, np.sort(values), 0.5, method)
        dx[at] += own
        dx[held] -= own * of_median
        if scale is None:
            continue
        if scale == "mad":
            deviations = abs(values - medians[at])
            signed = shares(deviations, np.sort(deviations), 0.5, method)
            signed = signed * np.sign(values - medians[at])
            of_scale = signed - signed.sum() * of_median
        else:
            low, high = {"iqr": (0.25, 0.75), "range": (0, 1)}.get(scale, scale)
            order = np.sort(values)
            of_scale = shares(values, order, high, method) - shares(values, order, low, method)
        dx[held] -= own * y[at] * factor * of_scale
    return dx


def case_of(seed, dtype):
    """An array, a mask, an axis and options, of all kinds."""
    rng = np.random.default_rng(seed)
    steps, shape = rng.integers(0, 24), [(), (3,), (2, 2)][rng.integers(3)]
    axis = int(rng.integers(len(shape) + 1))
    shape = (*shape[:axis], int(steps), *shape[axis:])
    kind = rng.integers(4)
    x = rng.integers(-3, 4, shape) if kind < 2 else 5 * rng.normal(size=shape)
    x = np.array(x * (0 if kind == 1 and rng.random() < 0.3 else 1), dtype)
    if kind == 3:
        x[rng.random(shape) < 0.2] = -np.inf
        x[rng.random(shape) < 0.2] = np.inf
    keep = rng.random(shape) < rng.choice([0.0, 0.3, 0.8, 1.0, 1.0])
    window = int(rng.choice([1, 2, 3, 4, 7, 10, 40]))
    scale = [None, "mad", "mad", "iqr", "range", (0.1, 0.6)][rng.integers(6)]
    options = {
        "center": bool(rng.integers(2)),
        "min_window": int(rng.integers(1, window + 1)),
        "scale": scale,
        "method": [*METHODS][rng.integers(len(METHODS))] if rng.random() < 0.5 else "linear",
        "eps": float(rng.choice([0.0, 0.5])),
    }
    if scale in FACTORS:
        options["factor"] = [1.0, 2.5, "normal"][rng.integers(3)]
    return x, keep, axis, window, options


def close(found, expected, tolerance):
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    found, expected = (np.nan_to_num(a.astype(np.float64)) for a in (found, expected))
    # A median is as exact as the values; a quotient of differences of theirs as these are.
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def same(found, expected):
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found.astype(np.float64), expected.astype(np.float64))


def check(seed, dtype):
    found = []
    for narrow_most in (0, 10_000):
        with tuned(narrow_most):
            found.append(check_kernel(seed, dtype))
    for narrow, wide in zip(*found, strict=True):
        same(narrow, wide)


def check_kernel(seed, dtype):
    x, keep, axis, window, options = case_of(seed, dtype)
    first = [np.moveaxis(a, axis, 0) for a in (x.astype(np.float64), keep)]
    expected = [np.moveaxis(a, 0, axis) for a in definition(*first, window, **options)]
    tolerance = TOLERANCES[x.dtype.name]
    masked = {} if keep.all() else {"where": keep}
    found = numnorm.moving_robust_norm_forward(x, window, axis=axis, **masked, **options)
    for got, wanted in zip(found[1:], expected[1:], strict=True):
        close(got, wanted, max(1e-13, TOLERANCES[x.dtype.name] if got.itemsize < 8 else 0))
    assert found.y.dtype == x.dtype
    known = np.isfinite(expected[0]) & keep
    size = np.where(known, abs(expected[0]), 0).max(initial=1)
    close(np.where(known, found.y, 0), np.where(known, expected[0], 0), tolerance * size)
    np.testing.assert_array_equal(found.y[~keep], 0)
    # The same values from missing NaN, which fill and chunks do not change.
    holed = np.where(keep, x, np.array(np.nan, dtype))
    omitted = {"axis": axis, "nan_policy": "omit", "fill": 0.0}
    y = numnorm.moving_robust_norm(holed, window, **omitted, **options)
    same(y, found.y)
    if not options["center"]:
        cuts = np.sort(np.random.default_rng(seed).integers(0, x.shape[axis] + 1, 3))
        words = {n: v for n, v in options.items() if n not in ("center", "min_window")}
        y = numnorm.moving_robust_norm(holed, window, **omitted, **words)
        state, parts = None, []
        for chunk in np.split(holed, cuts, axis):
            part, state = numnorm.moving_robust_norm_step(chunk, window, state, **omitted, **words)
            state = pickle.loads(pickle.dumps(state))
            parts.append(part)
        same(np.concatenate(parts, axis), y)
    return found


@pytest.mark.parametrize("dtype", DTYPES)
@SOME
@given(seed=st.integers(0, 2**32 - 1))
def test_any_call_agrees_with_the_definition(dtype, seed):
    check(seed, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@CASES
@given(seed=st.integers(0, 2**32 - 1))
def test_2000_calls_agree_with_the_definition(dtype, seed):
    check(seed, dtype)


# Order statistics of other libraries


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("scale", ["mad", (0.1, 0.75)])
def test_quantiles_of_numpy(method, scale):
    x = RNG.normal(size=(60, 2)).round(1)
    options = {"scale": scale, "method": method, "min_window": 4}
    _, median, found = numnorm.moving_robust_norm_forward(x, 9, axis=0, **options)
    for t in range(3, 60):
        values = x[max(0, t - 8) : t + 1]
        center = np.quantile(values, 0.5, axis=0, method=method)
        if scale == "mad":
            expected = np.quantile(abs(values - center), 0.5, axis=0, method=method)
        else:
            expected = np.subtract(*np.quantile(values, scale[::-1], axis=0, method=method))
        np.testing.assert_allclose(median[t], center, rtol=0, atol=1e-15)
        np.testing.assert_allclose(found[t], expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("narrow_most", [0, 64])
def test_the_products_of_a_place_are_rounded(method, narrow_most):
    """A compiler that contracted them into sums would find another share of the next element."""
    for count in range(2, 30):
        for q in (0.1, 0.3, 0.35, 0.7):
            lower, share = order_statistics.place_of(count, q, method)
            x = (np.arange(count) > lower) * 1.0  # the quantile is the share itself
            with tuned(narrow_most):
                found = numnorm.moving_robust_norm_forward(x, count, scale=(0.0, q), method=method)
            assert found.scale[-1] == order.between(0.0, 1.0, share)


SIGNALS = {
    "noise": lambda steps: RNG.normal(size=steps),
    "a walk": lambda steps: np.cumsum(RNG.normal(size=steps)),
    "rising": np.arange,
    "falling": lambda steps: -np.arange(steps),
    # The median jumps between two far values, and half of the window with it.
    "two levels": lambda steps: 100.0 * (np.arange(steps) % 2) + RNG.normal(size=steps),
    "few values": lambda steps: RNG.integers(0, 3, steps),
    "constant": np.ones,
    # Numbers that differ in their last bits alone, but for one.
    "an outlier": lambda steps: np.r_[1 + 1e-13 * RNG.normal(size=steps - 1), -1e300],
}


@pytest.mark.parametrize("signal", SIGNALS)
@pytest.mark.parametrize("window, steps", [(7, 200), (300, 500), (2100, 2200)])
def test_rolling_quantiles_of_pandas(signal, window, steps):
    pandas = pytest.importorskip("pandas")
    x = np.asarray(SIGNALS[signal](steps), float)
    rolling = pandas.Series(x).rolling(window, min_periods=1)
    options = {"scale": (0.05, 0.9)}
    _, median, scale = numnorm.moving_robust_norm_forward(x, window, **options)
    rounding = {"rtol": 0, "atol": 1e-15 * abs(x).max()}  # between two values
    np.testing.assert_allclose(median, rolling.median(), **rounding)
    distance = rolling.quantile(0.9) - rolling.quantile(0.05)
    np.testing.assert_allclose(scale, distance, **rounding)
    # The median absolute deviation of some windows.
    _, median, scale = numnorm.moving_robust_norm_forward(x, window)
    for t in {*range(0, steps, 97), steps - 1}:
        values = x[max(0, t - window + 1) : t + 1]
        np.testing.assert_allclose(scale[t], np.median(abs(values - median[t])), **rounding)


@pytest.mark.parametrize("window", [1, 4, 11, 60])
def test_medians_of_bottleneck(window):
    bottleneck = pytest.importorskip("bottleneck")
    x = RNG.normal(size=(3, 60))
    median = numnorm.moving_robust_norm_forward(x, window).median
    np.testing.assert_allclose(median, bottleneck.move_median(x, window, 1), rtol=0, atol=1e-15)
    x[RNG.random(x.shape) < 0.3] = np.nan
    median = numnorm.moving_robust_norm_forward(x, window, nan_policy="omit").median
    np.testing.assert_allclose(median, bottleneck.move_median(x, window, 1), rtol=0, atol=1e-15)


def test_normal_data_have_a_deviation_of_1():
    scipy_stats = pytest.importorskip("scipy.stats")
    x = RNG.normal(size=400)
    for scale, of_scipy in (("mad", "median_abs_deviation"), ("iqr", "iqr")):
        options = {"scale": scale, "factor": "normal"}
        y = numnorm.moving_robust_norm(x, 400, min_window=400, **options)
        expected = (x - np.median(x)) / getattr(scipy_stats, of_scipy)(x, scale="normal")
        np.testing.assert_allclose(y, expected, rtol=1e-12, atol=1e-14)


# Gradients


@SOME
@given(seed=st.integers(0, 2**32 - 1))
def test_gradient_of_any_call(seed):
    check_gradient(seed)


@pytest.mark.slow
@CASES
@given(seed=st.integers(0, 2**32 - 1))
def test_2000_gradients(seed):
    check_gradient(seed)


def check_gradient(seed):
    x, keep, axis, window, options = case_of(seed, np.float64)
    x = np.where(np.isfinite(x), x, 2.0)
    dy = np.random.default_rng(seed).normal(size=x.shape)
    first = (np.moveaxis(a, axis, 0) for a in (dy, x, keep))
    expected = np.moveaxis(gradient(*first, window, **options), 0, axis)
    given = {"axis": axis, "where": keep, **options}
    _, *saved = numnorm.moving_robust_norm_forward(x, window, **given)
    dx = numnorm.moving_robust_norm_backward(dy, x, *saved, window, **given)
    factor = options.get("factor", 1)
    divisors = saved[1] * (1 if factor == "normal" else factor) + options["eps"]
    terms = np.divide(abs(dy), divisors, np.zeros(dy.shape), where=divisors > 0)
    # Ties of deviations that are rounded differently share otherwise: each is a subgradient, and
    # here they are whole numbers, or do not tie.
    np.testing.assert_allclose(dx, expected, rtol=0, atol=1e-11 * terms.max(initial=1))
    np.testing.assert_array_equal(dx[~keep], 0)


@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("scale", [None, "mad", "iqr", "range", (0.2, 0.7)])
@pytest.mark.parametrize("window", [2, 5, 6])
def test_numerical_gradient(window, scale, center):
    x, dy = RNG.normal(size=(10, 2)), RNG.normal(size=(10, 2))
    keep = RNG.random(x.shape) < 0.8
    options = {"scale": scale, "center": center, "eps": 0.1}

    def output(x):
        return np.where(keep, definition(x, keep, window, **options)[0], 0)

    (expected,) = gradients.numerical_gradients(output, [x], dy)
    given = {"axis": 0, "where": keep, **options}
    found = numnorm.moving_robust_norm_forward(x, window, **given)
    dx = numnorm.moving_robust_norm_backward(dy, x, *found[1:], window, **given)
    assert abs(dx - expected).max() <= gradients.TOLERANCE * abs(expected).max()


def test_ties_share_the_gradient():
    x = [0.0, 2.0, 2.0, 2.0, 5.0]
    _, *saved = numnorm.moving_robust_norm_forward(x, 5, scale=None)
    dx = numnorm.moving_robust_norm_backward([0, 0, 0, 0, 1.0], x, *saved, 5, scale=None)
    np.testing.assert_allclose(dx, [0, -1 / 3, -1 / 3, -1 / 3, 1])


# What is no usual number


def test_flat_windows_give_0_and_pass_no_gradient():
    x = np.array([1.0, 1.0, 1.0, 7.0, 1.0])
    y, *saved = numnorm.moving_robust_norm_forward(x, 5)
    np.testing.assert_array_equal(y, 0)
    np.testing.assert_array_equal(saved[1], 0)
    np.testing.assert_array_equal(numnorm.moving_robust_norm_backward(x, x, *saved, 5), 0)
    np.testing.assert_array_equal(numnorm.moving_robust_norm(x, 5, eps=2.0)[3], 3)


@pytest.mark.parametrize("narrow_most", [0, 100])
def test_a_nan_leaves_no_trace(narrow_most):
    x = RNG.normal(size=(90, 3))
    clean = numnorm.moving_robust_norm_forward(x, 8, axis=0)
    x[40, 1] = np.nan
    with tuned(narrow_most):
        found = numnorm.moving_robust_norm_forward(x, 8, axis=0)
    spoilt = np.zeros(x.shape, bool)
    spoilt[40:48, 1] = True
    for got, wanted in zip(found, clean, strict=True):
        np.testing.assert_array_equal(np.isnan(got), spoilt)
        np.testing.assert_array_equal(got[~spoilt], wanted[~spoilt])


def test_infinities_are_the_ends():
    x = np.array([-np.inf, 0.0, 1.0, np.inf, np.inf, np.inf])
    y, median, scale = numnorm.moving_robust_norm_forward(x, 3)
    np.testing.assert_array_equal(median, [-np.inf, -np.inf, 0, 1, np.inf, np.inf])
    np.testing.assert_array_equal(scale, [np.nan, np.nan, 1, 1, np.nan, np.nan])
    np.testing.assert_array_equal(y, [np.nan, np.nan, 1, np.inf, np.nan, np.nan])
    y, _, scale = numnorm.moving_robust_norm_forward([1.0, 2.0, 4.0, np.inf], 4, scale="iqr")
    assert scale[-1] == np.inf and np.isnan(y[-1])


def test_values_without_a_distance_in_float64():
    x = np.array([-1.7e308, 1.7e308])
    y, median, scale = numnorm.moving_robust_norm_forward(x, 2)
    assert median[1] == 0 and scale[1] == 1.7e308 and y[1] == 1


def test_nothing():
    for shape in ((0,), (0, 3), (3, 0)):
        y, median, scale = numnorm.moving_robust_norm_forward(np.ones(shape), 4)
        assert y.shape == median.shape == scale.shape == shape
        dx = numnorm.moving_robust_norm_backward(y, y, median, scale, 4)
        assert dx.shape == shape
        assert numnorm.moving_robust_norm_step(np.ones(shape), 4)[0].shape == shape
    masked = numnorm.moving_robust_norm_forward([1.0, 2.0], 2, where=[False, False], fill=-1)
    np.testing.assert_array_equal(masked, [[-1, -1], [np.nan] * 2, [np.nan] * 2])


# Arrays


@pytest.mark.parametrize("shape, axis", [((40,), 0), ((40, 9), 0), ((2, 40, 3), 1), ((3, 40), -1)])
def test_layouts_and_out(shape, axis):
    x = RNG.normal(size=shape)
    expected = numnorm.moving_robust_norm(x, 6, axis=axis)
    moved = np.moveaxis(np.ascontiguousarray(np.moveaxis(x, axis, -1)), -1, axis)
    np.testing.assert_array_equal(numnorm.moving_robust_norm(moved, 6, axis=axis), expected)
    for out in (np.empty(shape), np.asfortranarray(np.empty(shape)), x.copy()):
        given = out if np.array_equal(out, x) else x
        assert numnorm.moving_robust_norm(given, 6, axis=axis, out=out) is out
        np.testing.assert_array_equal(out, expected)
    _, *saved = numnorm.moving_robust_norm_forward(x, 6, axis=axis)
    dx = numnorm.moving_robust_norm_backward(expected, x, *saved, 6, axis=axis)
    out = expected.copy()
    assert numnorm.moving_robust_norm_backward(out, x, *saved, 6, axis=axis, out=out) is out
    np.testing.assert_array_equal(out, dx)


@pytest.mark.parametrize("center", [False, True])
def test_chunks_of_dask(center):
    lazy = pytest.importorskip("dask.array")
    x = RNG.normal(size=(3, 50))
    x[RNG.random(x.shape) < 0.1] = np.nan
    options = {"center": center, "scale": "iqr", "factor": "normal", "nan_policy": "omit"}
    expected = numnorm.moving_robust_norm_forward(x, 7, **options)
    dx = numnorm.moving_robust_norm_backward(x, x, *expected[1:], 7, **options)
    for seed in range(4):
        own = lazy.from_array(x, chunks=divided(x.shape, np.random.default_rng(seed)))
        found = numnorm.moving_robust_norm_forward(own, 7, **options)
        for got, wanted in zip(computed(found), expected, strict=True):
            np.testing.assert_array_equal(got, wanted)
        y = numnorm.moving_robust_norm(own, 7, **options)
        np.testing.assert_array_equal(computed(y), expected.y)
        gradient = numnorm.moving_robust_norm_backward(own, own, *found[1:], 7, **options)
        # Gradients of windows are added in another order.
        np.testing.assert_allclose(computed(gradient), dx, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"window": 0}, "window must be at least 1, got 0"),
        ({"window": 3, "min_window": 4}, "min_window must be at most the window, 3, got 4"),
        ({"window": 3, "scale": "std"}, "scale must be "),
        ({"window": 3, "scale": (0.9, 0.1)}, "scale must be a lower and a higher quantile"),
        ({"window": 3, "factor": -1.0}, "factor must be above 0, got -1"),
        ({"window": 3, "scale": "range", "factor": "normal"}, "factor must be a number where "),
        ({"window": 3, "method": "best"}, "method must be "),
        ({"window": 3, "eps": -1.0}, "eps must be "),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        numnorm.moving_robust_norm([1.0, 2.0, 3.0, 4.0], **options)


def test_a_state_of_another_stream():
    _, state = numnorm.moving_robust_norm_step([1.0, 2.0, 3.0], 3)
    with pytest.raises(ValueError, match="state must be of a window of 4 steps"):
        numnorm.moving_robust_norm_step([1.0], 4, state)
    with pytest.raises(TypeError, match="state must be a MovingState, got tuple"):
        numnorm.moving_robust_norm_step([1.0], 3, (1, 2))
    _, state = numnorm.moving_norm_step([1.0, 2.0], 3.0, times=[0.0, 1.0])
    with pytest.raises(ValueError, match="state must be of steps without times"):
        numnorm.moving_robust_norm_step([1.0], 3, state)


@pytest.mark.usefixtures("parallel_at_small_sizes")
@pytest.mark.parametrize("window", [21, 300])
def test_the_same_bytes_for_any_number_of_threads(window):
    x = np.random.default_rng(8).normal(size=(700, 5))
    dy, results = np.cos(x), []
    for threads in (1, 2):
        with numnorm.num_threads(threads):
            forward = numnorm.moving_robust_norm_forward(x, window, axis=0)
            dx = numnorm.moving_robust_norm_backward(dy, x, *forward[1:], window, axis=0)
            results.append([array.tobytes() for array in (*forward, dx)])
    assert results[0] == results[1]
