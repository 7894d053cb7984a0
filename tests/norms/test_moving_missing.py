"""Moving norms in which steps are missing, against their definitions and pandas."""

import itertools
import pickle

import gradients
import kernels
import missing_reference as reference
import ml_dtypes
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moving_checks import check_missing, missing_calls
from peak_memory import peak_of

import numnorm
from numnorm.backends.cpu import tuning

CASES = settings(max_examples=2000, deadline=None, print_blob=True)
SOME = settings(max_examples=100, deadline=None, print_blob=True)
RNG = np.random.default_rng(42)

HALVES = [pytest.param(dtype, marks=kernels.full) for dtype in (np.float16, ml_dtypes.bfloat16)]
DTYPES = [np.float64, pytest.param(np.float32, marks=kernels.full), *HALVES]
NAMES = ["moving_norm", "exponential_norm"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
@SOME
@given(data=st.data())
def test_any_call_agrees_with_the_definition(name, dtype, data):
    check_missing(numnorm, name, *data.draw(missing_calls(name, dtype)))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
@CASES
@given(data=st.data())
def test_2000_calls_agree_with_the_definition(name, dtype, data):
    check_missing(numnorm, name, *data.draw(missing_calls(name, dtype)))


def holed(shape):
    """Values of which a third are NaN, and a stretch of all channels."""
    x = RNG.normal(size=shape) + 1e3
    x[RNG.random(shape) < 0.3] = np.nan
    x[10:25] = np.nan
    return x


@pytest.mark.parametrize("shape", [(60,), (60, 3), (60, 9)])
@pytest.mark.parametrize("window", [1, 5, 40])
def test_windows_of_pandas(shape, window):
    x = holed(shape)
    rolling = pd.DataFrame(x).rolling(window, min_periods=1)
    found = numnorm.moving_norm_forward(x, window, axis=0, nan_policy="omit")
    np.testing.assert_allclose(found.mean, rolling.mean().to_numpy().reshape(shape), rtol=1e-12)
    deviation = rolling.std(ddof=0).to_numpy().reshape(shape)
    known = deviation > 1e-3  # the running sums of pandas lose digits at an offset
    np.testing.assert_allclose(1 / found.rstd[known], deviation[known], rtol=1e-5)
    np.testing.assert_array_equal(np.isnan(found.rstd), np.isnan(deviation))


@pytest.mark.parametrize("shape", [(60,), (60, 9)])
@pytest.mark.parametrize("alpha", [0.01, 0.3, 1.0])
@pytest.mark.parametrize("adjust", [False, True])
def test_exponential_means_of_pandas(shape, alpha, adjust):
    x = holed(shape)
    expected = pd.DataFrame(x).ewm(alpha=alpha, adjust=adjust).mean().to_numpy().reshape(shape)
    options = {"axis": 0, "adjust": adjust, "nan_policy": "omit"}
    found = numnorm.exponential_norm_forward(x, alpha, **options)
    np.testing.assert_allclose(found.mean, expected, rtol=1e-12)


@pytest.mark.parametrize("offset", [0.0, 1e7])
@pytest.mark.parametrize("name, number", [("moving_norm", 20), ("exponential_norm", 0.1)])
def test_offset_costs_no_digits(name, number, offset):
    rng = np.random.default_rng(7)
    x, dy = rng.normal(size=(200, 9)) + offset, rng.normal(size=(200, 9))
    keep = rng.random(x.shape) < 0.5
    keep[40:80] = False
    # Windows of two values may have any small deviation, in which roundings of the mean are large.
    dy[:20] = dy[40:100] = 0
    exact = reference.exact(x) - reference.exact(offset)
    expected = getattr(reference, name)(exact, keep, number)
    options = {"axis": 0, "where": keep}
    found = getattr(numnorm, f"{name}_forward")(x, number, **options)
    assert abs(found.y - expected[0])[keep].max() <= 1e-11
    # The saved mean is rounded: by 1e-9 at an offset of 1e7.
    dx = getattr(numnorm, f"{name}_backward")(dy, x, *found[1:], number, **options)
    wanted = getattr(reference, f"{name}_backward")(dy, exact, keep, number)
    bound = 1e-11 + 40 * np.spacing(offset)
    assert abs(dx - wanted).max() <= bound * np.nanmax(abs(dy * found.rstd))


@pytest.mark.parametrize("window", [3, 10])
@pytest.mark.parametrize("shape", [(200,), (200, 9)])
@pytest.mark.parametrize("first, last", [(101, 105), (95, 100), (91, 99), (81, 83)])
def test_gradient_beside_an_outlier_and_a_gap(first, last, shape, window):
    x, dy = RNG.normal(size=shape), RNG.normal(size=shape)
    keep = RNG.random(shape) < 0.8
    keep[first : last + 1] = False  # anchors and ends of blocks are among them
    for outlier in (first - 1, last + 1):
        x[outlier] = 1e20
        keep[outlier] = True
    options = {"axis": 0, "where": keep}
    found = numnorm.moving_norm_forward(x, window, **options)
    dx = numnorm.moving_norm_backward(dy, x, *found[1:], window, **options)
    expected = reference.moving_norm_backward(dy, x, keep, window)
    assert abs(dx - expected).max() <= 1e-12 * np.nanmax(abs(dy * found.rstd))


@pytest.mark.parametrize("name, number", [("moving_norm", 4), ("exponential_norm", 0.3)])
def test_numerical_gradient(name, number):
    x, dy = RNG.normal(size=(14, 3)), RNG.normal(size=(14, 3))
    keep = RNG.random(x.shape) < 0.6
    keep[2:8, 0] = False

    def output(x):
        return np.where(keep, getattr(reference, name)(x, keep, number, eps=0.1)[0], 0)

    (expected,) = gradients.numerical_gradients(output, [x], dy)
    options = {"axis": 0, "where": keep}
    found = getattr(numnorm, f"{name}_forward")(x, number, eps=0.1, **options)
    if name == "exponential_norm":
        options["eps"] = 0.1
    dx = getattr(numnorm, f"{name}_backward")(dy, x, *found[1:], number, **options)
    assert abs(dx - expected).max() <= gradients.TOLERANCE * abs(expected).max()


@pytest.mark.parametrize("name, number", [("moving_norm", 6), ("exponential_norm", 0.1)])
@pytest.mark.parametrize("shape, axis", [((90,), 0), ((90, 9), 0), ((2, 90), -1), ((2, 90, 3), 1)])
def test_chunks_give_the_bytes_of_one_call(name, number, shape, axis):
    x, keep = RNG.normal(size=shape), RNG.random(shape) < 0.7
    x[RNG.random(shape) < 0.2] = np.nan
    options = {"axis": axis, "nan_policy": "omit"}
    expected = getattr(numnorm, name)(x, number, where=keep, **options)
    for seed in range(3):
        bounds = np.sort(np.random.default_rng(seed).integers(0, 90, 12))
        state, parts = None, []
        pieces = (np.split(a, bounds, axis=axis) for a in (x, keep))
        for chunk, mask in zip(*pieces, strict=True):
            given = {"where": mask, **options}
            y, state = getattr(numnorm, f"{name}_step")(chunk, number, state, **given)
            state = pickle.loads(pickle.dumps(state))
            parts.append(y)
        np.testing.assert_array_equal(np.concatenate(parts, axis), expected)


@pytest.mark.parametrize("columns", [1, 9])
@pytest.mark.parametrize("name, number", [("moving_norm", 4), ("exponential_norm", 0.1)])
def test_a_mask_from_the_first_chunk_on_gives_the_bytes_of_one_call(name, number, columns):
    """Chunks that all count need no mask then."""
    step = getattr(numnorm, f"{name}_step")
    for _ in range(10):
        x, keep = RNG.normal(size=(30, columns)), np.ones((30, columns), bool)
        low, high = np.sort(RNG.integers(1, 30, 2))
        keep[low:high] = RNG.random((high - low, columns)) < 0.8
        first, state = step(x[:low], number, axis=0, where=True)
        second, state = step(x[low:high], number, state, axis=0, where=keep[low:high])
        third, _ = step(x[high:], number, state, axis=0)
        expected = getattr(numnorm, name)(x, number, axis=0, where=keep)
        np.testing.assert_array_equal(np.concatenate((first, second, third)), expected)


@pytest.mark.parametrize("name, number", [("moving_norm", 6), ("exponential_norm", 0.1)])
@pytest.mark.parametrize("adjust", [False, True])
def test_chunks_of_which_some_have_no_mask(name, number, adjust):
    x, keep = RNG.normal(size=(60, 9)), np.ones((60, 9), bool)
    keep[20:40] = RNG.random((20, 9)) < 0.5
    options = {"axis": 0} if name == "moving_norm" else {"axis": 0, "adjust": adjust}
    expected = getattr(numnorm, name)(x, number, where=keep, **options)
    step = getattr(numnorm, f"{name}_step")
    first, state = step(x[:20], number, **options)
    second, state = step(x[20:40], number, state, where=keep[20:40], **options)
    third, state = step(x[40:], number, state, **options)
    got = np.concatenate((first, second, third))
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [1, 2, 7, 8, 60, 300, 700])
def test_layouts_change_no_byte(window, dtype):
    x = (RNG.normal(size=(400, 10)) + 3).astype(dtype)
    keep = RNG.random(x.shape) < 0.7
    keep[50:90] = False
    for options in ({}, {"center": True}, {"min_window": min(window, 5)}):
        # Ten channels are lanes of vectors, one alone and three are not.
        found = numnorm.moving_norm_forward(x, window, axis=0, where=keep, **options)
        last = numnorm.moving_norm_forward(x.T.copy(), window, where=keep.T, **options)
        three = numnorm.moving_norm_forward(x[:, :3], window, axis=0, where=keep[:, :3], **options)
        for one, two, some in zip(found, last, three, strict=True):
            np.testing.assert_array_equal(one, two.T)
            np.testing.assert_array_equal(one[:, :3], some)


@pytest.mark.usefixtures("parallel_at_small_sizes")
@pytest.mark.parametrize("name, number", [("moving_norm", 50), ("exponential_norm", 0.01)])
@pytest.mark.parametrize("shape", [(4000, 20), (20, 4000)])
def test_threads_change_no_byte(name, number, shape):
    x, dy = RNG.normal(size=(2, *shape))
    options = {"axis": 0 if shape[0] > shape[1] else 1, "where": RNG.random(shape) < 0.8}
    results = []
    for count in (1, 2):
        with numnorm.num_threads(count):
            found = getattr(numnorm, f"{name}_forward")(x, number, **options)
            dx = getattr(numnorm, f"{name}_backward")(dy, x, *found[1:], number, **options)
        results.append((*found, dx))
    for one, two in zip(*results, strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("name, number", [("moving_norm", 6), ("exponential_norm", 0.1)])
@pytest.mark.parametrize(
    "shape, axis", [((90,), 0), ((90, 30), 0), ((7, 90), -1), ((3, 90, 30), 1)]
)
def test_gradients_in_blocks_of_sequences(name, number, shape, axis, monkeypatch):
    x, dy = RNG.normal(size=(2, *shape))
    options = {"axis": axis, "where": RNG.random(shape) < 0.8, "nan_policy": "omit"}
    x[RNG.random(shape) < 0.1] = np.nan
    saved = getattr(numnorm, f"{name}_forward")(x, number, **options)[1:]
    found = []
    for size in (1, 1000, 1 << 18):
        monkeypatch.setattr(tuning, "MOVING_BLOCK_ELEMENTS", size)
        monkeypatch.setattr(tuning, "MOVING_BLOCKS_MOST", 1000)
        in_place, reversed_steps = dy.copy(), np.empty_like(dy)[::-1]
        for upstream, out in ((dy, None), (in_place, in_place), (dy, reversed_steps)):
            backward = getattr(numnorm, f"{name}_backward")
            found.append(backward(upstream, x, *saved, number, out=out, **options))
    for dx in found[1:]:
        np.testing.assert_array_equal(dx, found[0])


@pytest.mark.parametrize("name, number", [("moving_norm", 6), ("exponential_norm", 0.1)])
@pytest.mark.parametrize("shape, axis", [((20000, 64), 0), ((64, 20000), 1)])
def test_memory_of_gradients(name, number, shape, axis, monkeypatch):
    """Beside dx there are the arrays of float64 for an eighth of the sequences, 8 of 64."""
    monkeypatch.setattr(tuning, "MOVING_BLOCK_ELEMENTS", 1 << 14)
    x, dy = RNG.normal(size=(2, *shape)).astype(np.float32)
    options = {"axis": axis, "where": np.arange(shape[1]) != 3}
    saved = getattr(numnorm, f"{name}_forward")(x, number, **options)[1:]
    backward = getattr(numnorm, f"{name}_backward")
    backward(dy, x, *saved, number, **options)  # compiled before it is measured
    peak, _ = peak_of(lambda: backward(dy, x, *saved, number, **options))
    assert peak < 5 * x.nbytes


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
@pytest.mark.parametrize("shape", [(100,), (100, 8)])
def test_what_is_no_number_leaves_no_trace(shape, value):
    x, keep = RNG.normal(size=shape), RNG.random(shape) < 0.6
    keep[33] = True
    other = x.copy()
    other[33] = value
    without = np.delete(np.arange(100), slice(33, 40))
    y, changed = (numnorm.moving_norm(a, 7, axis=0, where=keep) for a in (x, other))
    np.testing.assert_array_equal(y[without], changed[without])


@pytest.mark.parametrize("name, number", [("moving_norm", 5), ("exponential_norm", 0.2)])
def test_what_is_left_out_may_be_anything(name, number):
    x, keep, dy = RNG.normal(size=(40, 9)), RNG.random((40, 9)) < 0.6, RNG.normal(size=(40, 9))
    options = {"axis": 0, "where": keep}
    found = getattr(numnorm, f"{name}_forward")(x, number, **options)
    dx = getattr(numnorm, f"{name}_backward")(dy, x, *found[1:], number, **options)
    for value in (np.nan, np.inf, 1e300):
        other = np.where(keep, x, value)
        again = getattr(numnorm, f"{name}_forward")(other, number, **options)
        for one, two in zip(found, again, strict=True):
            np.testing.assert_array_equal(one, two)
        given = np.where(keep, dy, value)
        changed = getattr(numnorm, f"{name}_backward")(given, other, *again[1:], number, **options)
        np.testing.assert_array_equal(dx, changed)


@pytest.mark.parametrize("window, center", list(itertools.product([1, 6, 100], [False, True])))
def test_one_value_gives_zero_and_none_gives_nan(window, center):
    x, keep = np.full((30, 9), 1e7 + 0.1), np.zeros((30, 9), bool)
    keep[12] = True
    options = {"axis": 0, "center": center, "where": keep}
    y, mean, rstd = numnorm.moving_norm_forward(x, window, **options)
    np.testing.assert_array_equal(y, 0)
    near_one = ~np.isnan(mean)
    np.testing.assert_array_equal(mean[near_one], 1e7 + 0.1)
    np.testing.assert_array_equal(rstd[near_one], 0)
    assert near_one[12].all() and np.isnan(rstd[~near_one]).all()
    assert near_one[:, 0].sum() == (30 if window == 100 and center else min(window, 18))


@pytest.mark.parametrize("name, number", [("moving_norm", 4), ("exponential_norm", 0.1)])
def test_policies_and_errors(name, number):
    norm, step = getattr(numnorm, name), getattr(numnorm, f"{name}_step")
    x = np.arange(8.0)
    np.testing.assert_array_equal(norm(x, number, nan_policy="raise"), norm(x, number))
    x[3] = np.nan
    with pytest.raises(ValueError, match="x must not contain NaN"):
        norm(x, number, nan_policy="raise")
    with pytest.raises(ValueError, match="where must broadcast against x"):
        norm(x, number, where=np.ones(7, bool))
    with pytest.raises(TypeError, match="weights"):
        norm(x, number, weights=np.ones(8))
    keep = np.arange(8) != 3
    expected = norm(x, number, where=keep)
    np.testing.assert_array_equal(norm(x, number, where=keep, out=x), expected)
    state = step(x, number, where=keep)[1]
    if name == "moving_norm":
        with pytest.raises(ValueError, match=r"state\.kept must be a mask"):
            step(x, number, state._replace(kept=np.ones(5)), where=keep)


def test_an_alpha_that_leaves_nothing_of_1():
    x = np.array([1.0, 2.0, 4.0])
    options = {"adjust": False, "eps": 0.0}
    expected = numnorm.exponential_norm(x, 1e-17, **options)
    found = numnorm.exponential_norm(x, 1e-17, where=True, **options)
    np.testing.assert_allclose(found, expected, rtol=1e-14)
