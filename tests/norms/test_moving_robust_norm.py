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

import numnorm
from numnorm.backends.cpu import tuning
from numnorm.norms.order_statistics import METHODS

SOME = settings(max_examples=60, deadline=None, print_blob=True)
CASES = settings(max_examples=2000, deadline=None, print_blob=True)
RNG = np.random.default_rng(51)
HALVES = [pytest.param(dtype, marks=kernels.full) for dtype in (np.float16, ml_dtypes.bfloat16)]
DTYPES = [np.float64, pytest.param(np.float32, marks=kernels.full), *HALVES]
# A few roundings of a median, a spread and a quotient, in units of a result.
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
    """The median and the spread of the values of a window."""
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
    """y, median and spread, with time first."""
    y, medians, spreads = (np.full(x.shape, np.nan, x.dtype) for _ in range(3))
    if factor == "normal":
        factor = FACTORS[options["scale"]]
    for at, held in windows_of(keep, window, center, min_window):
        medians[at], spread = statistics(x[held], **options)
        spreads[at] = spread * factor
        divisor = spreads[at] + (0 if options.get("scale", "mad") is None else eps)
        with np.errstate(all="ignore"):
            y[at] = (x[at] - medians[at]) / divisor if divisor else 0
    return y, medians, spreads


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
    y, medians, spreads = definition(x, keep, window, **given, **options)
    factor = FACTORS[scale] if factor == "normal" else factor
    dx = np.zeros(x.shape)
    for at, held in windows_of(keep, window, center, min_window):
        divisor = spreads[at] + (0 if scale is None else eps)
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
            of_spread = signed - signed.sum() * of_median
        else:
            low, high = {"iqr": (0.25, 0.75), "range": (0, 1)}.get(scale, scale)
            order = np.sort(values)
            of_spread = shares(values, order, high, method) - shares(values, order, low, method)
        dx[held] -= own * y[at] * factor * of_spread
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


def check(seed, dtype):
    for narrow_most in (0, 10_000):
        with tuned(narrow_most):
            check_kernel(seed, dtype)


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
    np.testing.assert_array_equal(y, found.y)
    if not options["center"]:
        cuts = np.sort(np.random.default_rng(seed).integers(0, x.shape[axis] + 1, 3))
        words = {n: v for n, v in options.items() if n not in ("center", "min_window")}
        y = numnorm.moving_robust_norm(holed, window, **omitted, **words)
        state, parts = None, []
        for chunk in np.split(holed, cuts, axis):
            part, state = numnorm.moving_robust_norm_step(chunk, window, state, **omitted, **words)
            state = pickle.loads(pickle.dumps(state))
            parts.append(part)
        np.testing.assert_array_equal(np.concatenate(parts, axis), y)


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
