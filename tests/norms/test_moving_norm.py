"""Moving norms against the definitions of Kaldi and torchaudio in extended precision."""

import itertools
import pickle

import gradients
import kernels
import ml_dtypes
import moving_reference as reference
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moving_checks import checked_windows

import numnorm

CASES = settings(max_examples=2000, deadline=None, print_blob=True)
SOME = settings(max_examples=100, deadline=None, print_blob=True)
RNG = np.random.default_rng(40)

HALVES = [pytest.param(dtype, marks=kernels.full) for dtype in (np.float16, ml_dtypes.bfloat16)]
DTYPES = [np.float64, pytest.param(np.float32, marks=kernels.full), *HALVES]


@pytest.mark.parametrize("dtype", DTYPES)
@SOME
@given(data=st.data())
def test_any_call_agrees_with_the_definition(dtype, data):
    checked_windows(numnorm, data, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@CASES
@given(data=st.data())
def test_2000_calls_agree_with_the_definition(dtype, data):
    checked_windows(numnorm, data, dtype)


@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("norm_vars", [False, True])
@pytest.mark.parametrize("steps, window, least", [(50, 7, 3), (50, 12, 12), (9, 20, 5), (1, 4, 2)])
def test_torchaudio_by_its_definition(steps, window, least, norm_vars, center):
    x = RNG.normal(size=(steps, 5))
    expected = reference.torchaudio_sliding_window_cmn(x, window, least, center, norm_vars)
    options = {"axis": 0, "center": center, "min_window": least, "with_std": norm_vars}
    # Its trailing windows hold one step more.
    y = numnorm.moving_norm(x, window + (not center), **options)
    # Windows that grow from 1 or 2 steps have a variance near 0, of which it loses digits.
    np.testing.assert_allclose(y, expected.astype(float), rtol=0, atol=1e-12)


def test_windows_of_kaldi_by_hand():
    x = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    means = numnorm.moving_norm_forward(x, 3).mean
    np.testing.assert_allclose(means, [1, 1.5, 7 / 3, 14 / 3, 28 / 3])
    means = numnorm.moving_norm_forward(x, 3, min_window=2).mean
    np.testing.assert_allclose(means, [1.5, 1.5, 7 / 3, 14 / 3, 28 / 3])
    means = numnorm.moving_norm_forward(x, 4, center=True).mean
    np.testing.assert_allclose(means, [15 / 4, 15 / 4, 15 / 4, 30 / 4, 30 / 4])


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e5, 1e7])
@pytest.mark.parametrize("shape", [(400,), (400, 9)])
def test_offset_costs_no_digits(shape, offset):
    x = RNG.normal(size=shape) + offset
    exact = reference.exact(x) - reference.exact(offset)
    for window, center in itertools.product([3, 50], [False, True]):
        y = numnorm.moving_norm(x, window, axis=0, center=center)
        expected = reference.moving_norm(exact, window, center)[0]
        # Of x - mean nothing is lost, at any offset: the bound is that of `TOLERANCES`.
        assert abs(y - expected).max() <= 1e-11


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e5, 1e7])
@pytest.mark.parametrize("center", [False, True])
def test_gradient_at_an_offset(center, offset):
    x, dy = RNG.normal(size=(300, 9)) + offset, RNG.normal(size=(300, 9))
    # Windows of two steps may have any small deviation, in which roundings of the mean are large.
    options = {"center": center, "min_window": 30}
    mean, rstd = numnorm.moving_norm_forward(x, 30, axis=0, **options)[1:]
    dx = numnorm.moving_norm_backward(dy, x, mean, rstd, 30, axis=0, **options)
    exact = reference.exact(x) - reference.exact(offset)
    expected = reference.moving_norm_backward(dy, exact, 30, **options)
    # The saved mean is rounded: by 1e-9 at an offset of 1e7.
    bound = 1e-12 + 4 * np.spacing(offset)
    assert abs(dx - expected).max() <= bound * abs(dy * rstd).max()


@pytest.mark.parametrize("options", [{}, {"center": True}, {"min_window": 7}])
@pytest.mark.parametrize("shape", [(200,), (200, 9)])
@pytest.mark.parametrize("window", [3, 10])
def test_gradient_beside_an_outlier(window, shape, options):
    x, dy = RNG.normal(size=shape), RNG.normal(size=shape)
    x[3], x[100], x[107] = -1e15, 1e20, 1e8
    options = options | {"min_window": min(options.get("min_window", 1), window)}
    mean, rstd = numnorm.moving_norm_forward(x, window, axis=0, **options)[1:]
    dx = numnorm.moving_norm_backward(dy, x, mean, rstd, window, axis=0, **options)
    expected = reference.moving_norm_backward(dy, x, window, **options)
    assert abs(dx - expected).max() <= 1e-12 * abs(dy * rstd).max()


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
@pytest.mark.parametrize("shape", [(100,), (100, 8)])
def test_what_is_no_number_leaves_no_trace(shape, value):
    x, dy = RNG.normal(size=shape), RNG.normal(size=shape)
    window, t = 7, 33
    other = x.copy()
    other[t] = value
    mean, rstd = numnorm.moving_norm_forward(x, window, axis=0)[1:]
    for center, held in ((False, slice(t, t + 7)), (True, slice(t - 3, t + 4))):
        y = numnorm.moving_norm(x, window, axis=0, center=center)
        changed = numnorm.moving_norm(other, window, axis=0, center=center)
        without = np.delete(np.arange(100), held)
        np.testing.assert_array_equal(y[without], changed[without])
        assert np.isnan(changed[held]).all() == (value != 1e30)
        if np.isfinite(value):
            expected = reference.moving_norm(other, window, center)[0]
            np.testing.assert_allclose(changed, expected.astype(float), atol=1e-11, rtol=0)
    mean, rstd = numnorm.moving_norm_forward(x, window, axis=0)[1:]
    dx = numnorm.moving_norm_backward(dy, x, mean, rstd, window, axis=0)
    given = numnorm.moving_norm_forward(other, window, axis=0)[1:]
    changed = numnorm.moving_norm_backward(dy, other, *given, window, axis=0)
    apart = np.delete(np.arange(100), slice(t - 6, t + 7))  # no window in common
    np.testing.assert_array_equal(dx[apart], changed[apart])


def test_constant_windows_give_zeros():
    x = np.full((60, 9), 0.1)
    x[20:, 3] = 1e7 + 0.1
    for window, eps in itertools.product([1, 6], [0.0, 1e-10]):
        y, mean, rstd = numnorm.moving_norm_forward(x, window, axis=0, eps=eps)
        if window == 1:
            np.testing.assert_array_equal(y, 0)
        np.testing.assert_array_equal(np.delete(y, slice(20, 25), axis=0), 0)
        np.testing.assert_array_equal(mean[:20], 0.1)
        assert np.isfinite(rstd).all()
        dx = numnorm.moving_norm_backward(np.ones_like(x), x, mean, rstd, window, axis=0)
        assert np.isfinite(dx).all()


@pytest.mark.parametrize("options", [{}, {"center": True}, {"min_window": 3}])
def test_numerical_gradient(options):
    x, dy = RNG.normal(size=(14, 2)), RNG.normal(size=(14, 2))
    for flags in ({}, {"subtract_mean": False}, {"with_std": False}):
        words = {"mean": flags.get("subtract_mean", True), "scale": flags.get("with_std", True)}

        def output(x, words=words):
            return reference.moving_norm(x, 5, **options, **words, eps=0.1)[0]

        (expected,) = gradients.numerical_gradients(output, [x], dy)
        given = {"axis": 0, **options, **flags}
        mean, rstd = numnorm.moving_norm_forward(x, 5, eps=0.1, **given)[1:]
        dx = numnorm.moving_norm_backward(dy, x, mean, rstd, 5, **given)
        assert abs(dx - expected).max() <= gradients.TOLERANCE * abs(expected).max()


def pieces(rng, steps):
    """Random lengths of chunks, 0 among them."""
    lengths = []
    while sum(lengths) < steps:
        lengths.append(int(min(rng.integers(0, 15), steps - sum(lengths))))
    return lengths


@pytest.mark.parametrize("dtype", [np.float64, *HALVES])
@pytest.mark.parametrize("shape, axis", [((90,), 0), ((90, 9), 0), ((2, 90), -1), ((2, 90, 3), 1)])
def test_chunks_give_the_bytes_of_one_call(shape, axis, dtype):
    x = (RNG.normal(size=shape) + 5).astype(dtype)
    for window in (1, 2, 6, 30, 200):
        expected = numnorm.moving_norm(x, window, axis=axis)
        state, parts = None, []
        bounds = np.cumsum(pieces(RNG, 90))
        for chunk in np.split(x, bounds[:-1], axis=axis):
            y, state = numnorm.moving_norm_step(chunk, window, state, axis=axis)
            state = pickle.loads(pickle.dumps(state))
            parts.append(y)
        np.testing.assert_array_equal(np.concatenate(parts, axis), expected)
        assert state.steps == 90


@pytest.mark.parametrize("shape", [(50,), (50, 9)])
def test_a_long_stream_does_not_drift(shape):
    x = RNG.normal(size=shape) + 1e7
    state, results = numnorm.moving_norm_step(x, 20, axis=0)[1], []
    for _ in range(100):
        y, state = numnorm.moving_norm_step(x, 20, state, axis=0)
        results.append(y)
        # As if many more steps had come before.
        state = state._replace(steps=state.steps + 7_777_777)
    # Anchors lie elsewhere each time, so that sums are rounded in another way.
    assert max(abs(y - results[0]).max() for y in results) <= 1e-12


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [1, 2, 7, 8, 60, 300, 700])
def test_layouts_change_no_byte(window, dtype):
    x = (RNG.normal(size=(400, 10)) + 3).astype(dtype)
    for options in ({}, {"center": True}, {"min_window": min(window, 5)}):
        # Ten channels are lanes of vectors, one alone and three are not.
        y, mean, rstd = numnorm.moving_norm_forward(x, window, axis=0, **options)
        last = numnorm.moving_norm_forward(np.ascontiguousarray(x.T), window, **options)
        three = numnorm.moving_norm_forward(x[:, :3], window, axis=0, **options)
        for one, two, some in zip((y, mean, rstd), last, three, strict=True):
            np.testing.assert_array_equal(one, two.T)
            np.testing.assert_array_equal(one[:, :3], some)


@pytest.mark.usefixtures("parallel_at_small_sizes")
@pytest.mark.parametrize("shape", [(4000, 20), (3, 30000)])
def test_threads_change_no_byte(shape):
    axis = 0 if shape[0] > shape[1] else 1
    x, dy = RNG.normal(size=(2, *shape))
    results = []
    for count in (1, 2):
        with numnorm.num_threads(count):
            y, mean, rstd = numnorm.moving_norm_forward(x, 50, axis=axis)
            dx = numnorm.moving_norm_backward(dy, x, mean, rstd, 50, axis=axis)
        results.append((y, mean, rstd, dx))
    for one, two in zip(*results, strict=True):
        np.testing.assert_array_equal(one, two)


def test_out_may_be_the_input():
    x, dy = RNG.normal(size=(2, 50, 9))
    y, mean, rstd = numnorm.moving_norm_forward(x, 6, axis=0)
    dx = numnorm.moving_norm_backward(dy, x, mean, rstd, 6, axis=0)
    for out in (x.copy(), np.empty((9, 50)).T, np.empty_like(x)):
        given = out if out.flags.c_contiguous and (out == x).all() else x
        assert numnorm.moving_norm(given, 6, axis=0, out=out) is out
        np.testing.assert_array_equal(out, y)
    out = dy.copy()
    assert numnorm.moving_norm_backward(out, x, mean, rstd, 6, axis=0, out=out) is out
    np.testing.assert_array_equal(out, dx)
    y, state = numnorm.moving_norm_step(x[:20], 6, axis=0)
    out = x[20:].copy()
    assert numnorm.moving_norm_step(out, 6, state, axis=0, out=out)[0] is out
    np.testing.assert_array_equal(out, numnorm.moving_norm(x, 6, axis=0)[20:])


def test_a_gradient_of_another_dtype_keeps_its_digits():
    x, dy = RNG.normal(size=(20, 2)).astype(np.float32), RNG.normal(size=(20, 2))
    mean, rstd = numnorm.moving_norm_forward(x, 5, axis=0)[1:]
    dx = numnorm.moving_norm_backward(dy, x, mean, rstd, 5, axis=0)
    expected = numnorm.moving_norm_backward(dy, x.astype(float), mean, rstd, 5, axis=0)
    np.testing.assert_array_equal(dx, expected.astype(np.float32))


def test_integers_and_other_layouts():
    x = RNG.integers(0, 9, (9, 40))
    expected = numnorm.moving_norm(x.astype(float), 5)
    np.testing.assert_array_equal(numnorm.moving_norm(x, 5), expected)
    np.testing.assert_array_equal(numnorm.moving_norm(x.tolist(), 5), expected)
    np.testing.assert_array_equal(numnorm.moving_norm(x.T, 5, axis=0).T, expected)
    backwards = numnorm.moving_norm(x[:, ::-1], 5)
    np.testing.assert_array_equal(backwards, numnorm.moving_norm(x[:, ::-1].copy(), 5))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"window": 0}, "window must be at least 1, got 0"),
        ({"window": 2.0}, "window must be an int, got 2.0"),
        ({"window": 3, "min_window": 4}, "min_window must be at most the window, 3, got 4"),
        ({"window": 3, "eps": -1}, "eps must be at least 0, got -1"),
        ({"window": 3, "axis": 1}, "axis must be between -1 and 0"),
        ({"window": 3, "center": None}, "center must be True or False, got None"),
        (
            {"window": 3, "subtract_mean": False, "with_std": False},
            "subtract_mean and with_std must not both be False",
        ),
        ({"window": 3, "norm_vars": True}, "'norm_vars': use with_std"),
        (
            {"window": 3, "min_periods": 1},
            "'min_periods': set the results of the first steps to NaN",
        ),
    ],
)
def test_errors(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        numnorm.moving_norm(np.ones(5), **options)


def test_errors_of_steps():
    with pytest.raises(TypeError, match="'center': it would need steps that are still to come"):
        numnorm.moving_norm_step(np.ones(5), 3, center=True)
    state = numnorm.moving_norm_step(np.ones((5, 2)), 3, axis=0)[1]
    with pytest.raises(ValueError, match="state must be of chunks like x"):
        numnorm.moving_norm_step(np.ones((5, 3)), 3, state, axis=0)
    with pytest.raises(ValueError, match="dtype float32"):
        numnorm.moving_norm_step(np.ones((5, 2), np.float32), 3, state, axis=0)
    with pytest.raises(ValueError, match="state must be of a window"):
        numnorm.moving_norm_step(np.ones((5, 2)), 9, state, axis=0)
    with pytest.raises(TypeError, match="state must be a MovingState, got tuple"):
        numnorm.moving_norm_step(np.ones((5, 2)), 3, tuple(state), axis=0)


def test_the_result_may_be_written_over_the_mask():
    buffer = np.zeros((6, 5))
    keep = buffer.view(bool)[:, ::8]
    keep[:] = np.random.default_rng(0).random((6, 5)) < 0.6
    x = np.random.default_rng(1).normal(size=(6, 5))
    for options in ({}, {"nan_policy": "omit"}):
        mask = keep.copy()
        expected = numnorm.moving_norm(x, 3, where=mask, **options)
        found = numnorm.moving_norm(x, 3, where=keep, out=buffer, **options)
        np.testing.assert_array_equal(found, expected)
        keep[:] = mask
