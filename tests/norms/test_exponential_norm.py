"""Exponential norms against the definitions of pandas and braindecode in extended precision."""

import itertools
import pickle

import gradients
import kernels
import ml_dtypes
import moving_reference as reference
import numpy as np
import pytest
from accuracy_cases import needs_wide_longdouble
from hypothesis import given, settings
from hypothesis import strategies as st
from moving_checks import checked_exponential, exponential_gradient

import numnorm

CASES = settings(max_examples=2000, deadline=None, print_blob=True)
SOME = settings(max_examples=100, deadline=None, print_blob=True)
RNG = np.random.default_rng(41)

HALVES = [pytest.param(dtype, marks=kernels.full) for dtype in (np.float16, ml_dtypes.bfloat16)]
DTYPES = [np.float64, pytest.param(np.float32, marks=kernels.full), *HALVES]


@pytest.mark.parametrize("dtype", DTYPES)
@SOME
@given(data=st.data())
def test_any_call_agrees_with_the_definition(dtype, data):
    checked_exponential(numnorm, data, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@CASES
@given(data=st.data())
def test_2000_calls_agree_with_the_definition(dtype, data):
    checked_exponential(numnorm, data, dtype)


@needs_wide_longdouble
@pytest.mark.parametrize("adjust", [False, True])
@pytest.mark.parametrize("alpha", [0.01, 0.5, 1.0])
def test_definitions_by_weights_and_by_recursion_agree(alpha, adjust):
    x = RNG.normal(size=(60, 3))
    one, other = (
        reference.exponential_norm(x, alpha, adjust, means_of=means)[0]
        for means in (reference.ewm_means, reference.ewm_means_by_recursion)
    )
    assert abs(one - other).max() <= 1e-15


@pytest.mark.parametrize("initial", [None, 10])
@pytest.mark.parametrize("adjust", [False, True])
def test_braindecode_by_pandas(adjust, initial):
    pandas = pytest.importorskip("pandas")
    x, alpha, eps = RNG.normal(size=(200, 3)), 0.03, 1e-4
    frame = pandas.DataFrame(x)
    deviations = frame - frame.ewm(alpha=alpha, adjust=adjust).mean()
    squares = (deviations * deviations).ewm(alpha=alpha, adjust=adjust).mean()
    expected = (deviations / np.maximum(eps, np.sqrt(squares))).to_numpy(copy=True)
    if initial:
        block = x[:initial]
        expected[:initial] = (block - block.mean(0)) / np.maximum(eps, block.std(0))
    y = numnorm.exponential_norm(x, alpha, axis=0, adjust=adjust, initial=initial or 0, eps=eps)
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("alpha", [1e-3, 0.1])
@pytest.mark.parametrize("offset", [0.0, 1e3, 1e5, 1e7])
@pytest.mark.parametrize("shape", [(500,), (500, 9)])
def test_offset_costs_no_digits(shape, offset, alpha):
    x = RNG.normal(size=shape) + offset
    exact = reference.exact(x) - reference.exact(offset)
    for adjust in (False, True):
        y = numnorm.exponential_norm(x, alpha, axis=0, adjust=adjust)
        expected = reference.exponential_norm(
            exact, alpha, adjust, means_of=reference.ewm_means_by_recursion
        )[0]
        # The roundings of float64 in 500 steps.
        assert abs(y - expected).max() <= 1e-12


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e5, 1e7])
def test_gradient_at_an_offset(offset):
    x, dy = RNG.normal(size=(200, 9)) + offset, RNG.normal(size=(200, 9))
    options = {"alpha": 0.02, "adjust": True, "initial": 10, "eps": 1e-4}
    mean, rstd = numnorm.exponential_norm_forward(x, axis=0, **options)[1:]
    dx = numnorm.exponential_norm_backward(dy, x, mean, rstd, axis=0, **options)
    exact = reference.exact(x) - reference.exact(offset)
    expected = exponential_gradient(dy, exact, **options)
    # The saved mean is rounded: by 1e-9 at an offset of 1e7.
    bound = 1e-12 + 4 * np.spacing(offset)
    assert abs(dx - expected).max() <= bound * abs(dy * rstd).max()


def test_outlier_fades():
    x = RNG.normal(size=(400, 9))
    x[50] = 1e30
    y = numnorm.exponential_norm(x, 0.5, axis=0)
    expected = reference.exponential_norm(x, 0.5)[0]
    np.testing.assert_allclose(y, expected.astype(float), atol=1e-9, rtol=0)
    x[100, 3] = np.nan
    changed = numnorm.exponential_norm(x, 0.5, axis=0)
    assert np.isnan(changed[100:, 3]).all()
    np.testing.assert_array_equal(np.delete(changed, 3, 1), np.delete(y, 3, 1))
    np.testing.assert_array_equal(changed[:100, 3], y[:100, 3])


@pytest.mark.parametrize("initial", [0, 4])
@pytest.mark.parametrize("adjust", [False, True])
def test_numerical_gradient(adjust, initial):
    x, dy = RNG.normal(size=(14, 2)), RNG.normal(size=(14, 2))
    dy[:1] = 0  # the derivative of the first step jumps: its deviation is 0
    options = {"alpha": 0.2, "adjust": adjust, "initial": initial, "eps": 1e-3}

    def output(x):
        return reference.exponential_norm(x, **options)[0]

    (expected,) = gradients.numerical_gradients(output, [x], dy)
    mean, rstd = numnorm.exponential_norm_forward(x, axis=0, **options)[1:]
    dx = numnorm.exponential_norm_backward(dy, x, mean, rstd, axis=0, **options)
    assert abs(dx - expected).max() <= gradients.TOLERANCE * abs(expected).max()


@pytest.mark.parametrize("dtype", [np.float64, *HALVES])
@pytest.mark.parametrize("shape, axis", [((90,), 0), ((90, 9), 0), ((2, 90), -1), ((2, 90, 3), 1)])
def test_chunks_give_the_bytes_of_one_call(shape, axis, dtype):
    x = (RNG.normal(size=shape) + 5).astype(dtype)
    for alpha, adjust in itertools.product([1e-3, 0.3, 1.0], [True, False]):
        expected = numnorm.exponential_norm(x, alpha, axis=axis, adjust=adjust)
        state, parts = None, []
        bounds = np.sort(RNG.integers(0, 90, 12))
        for chunk in np.split(x, bounds, axis=axis):
            y, state = numnorm.exponential_norm_step(chunk, alpha, state, axis=axis, adjust=adjust)
            state = pickle.loads(pickle.dumps(state))
            parts.append(y)
        np.testing.assert_array_equal(np.concatenate(parts, axis), expected)


@pytest.mark.parametrize("shape", [(50,), (50, 9)])
def test_a_long_stream_does_not_drift(shape):
    x = RNG.normal(size=shape) + 1e7
    state, results = None, []
    for _ in range(100):
        y, state = numnorm.exponential_norm_step(x, 0.3, state, axis=0)
        results.append(y)
    # After 100 steps the weight of the beginning is 0.7**100, which is 3e-16.
    assert max(abs(y - results[2]).max() for y in results[2:]) <= 1e-12


@pytest.mark.usefixtures("parallel_at_small_sizes")
def test_threads_change_no_byte():
    x, dy = RNG.normal(size=(2, 2000, 50))
    results = []
    for count in (1, 2):
        with numnorm.num_threads(count):
            y, mean, rstd = numnorm.exponential_norm_forward(x, 0.01, axis=0)
            dx = numnorm.exponential_norm_backward(dy, x, mean, rstd, 0.01, axis=0)
        results.append((y, mean, rstd, dx))
    for one, two in zip(*results, strict=True):
        np.testing.assert_array_equal(one, two)


def test_out_may_be_the_input():
    x, dy = RNG.normal(size=(2, 50, 9))
    y, mean, rstd = numnorm.exponential_norm_forward(x, 0.1, axis=0)
    out = x.copy()
    assert numnorm.exponential_norm(out, 0.1, axis=0, out=out) is out
    np.testing.assert_array_equal(out, y)
    dx = numnorm.exponential_norm_backward(dy, x, mean, rstd, 0.1, axis=0)
    out = dy.copy()
    assert numnorm.exponential_norm_backward(out, x, mean, rstd, 0.1, axis=0, out=out) is out
    np.testing.assert_array_equal(out, dx)


def test_constant_channel_gives_zeros():
    x = np.full((30, 2), 0.1)
    for eps in (0.0, 1e-4):
        y, mean, rstd = numnorm.exponential_norm_forward(x, 0.1, axis=0, eps=eps, initial=5)
        np.testing.assert_array_equal(y, 0)
        dx = numnorm.exponential_norm_backward(x, x, mean, rstd, 0.1, axis=0, eps=eps, initial=5)
        assert np.isfinite(dx).all()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"alpha": 0}, "alpha must be above 0 and at most 1, got 0"),
        ({"alpha": 1.5}, "alpha must be above 0 and at most 1, got 1.5"),
        ({"alpha": 0.1, "initial": -1}, "initial must be at least 0, got -1"),
        ({"alpha": 0.1, "adjust": 1}, "adjust must be True or False, got 1"),
        ({"alpha": 0.1, "init_block_size": 5}, "'init_block_size': use initial"),
        ({"alpha": 0.1, "span": 5}, "exactly one of alpha, span, com, halflife must be given"),
        ({}, "exactly one of alpha, span, com, halflife must be given, got none of them"),
        ({"span": 0.5}, "span must be at least 1, got 0.5"),
        ({"com": -1}, "com must be at least 0, got -1"),
        ({"halflife": 0}, "halflife must be above 0, got 0"),
        ({"halflife": "7D"}, "halflife must be a number, got '7D'"),
    ],
)
def test_errors(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        numnorm.exponential_norm(np.ones(5), **options)


def test_errors_of_steps():
    with pytest.raises(TypeError, match="'initial': it would need steps that are still to come"):
        numnorm.exponential_norm_step(np.ones(5), 0.1, initial=3)
    state = numnorm.exponential_norm_step(np.ones((5, 2)), 0.1, axis=0)[1]
    with pytest.raises(ValueError, match=r"state.mean must have shape \(3,\)"):
        numnorm.exponential_norm_step(np.ones((5, 3)), 0.1, state, axis=0)
    for options in ({}, {"where": True}):
        with pytest.raises(ValueError, match=r"state.weight must have shape \(2,\)"):
            numnorm.exponential_norm_step(
                np.ones((5, 2)), 0.1, state._replace(weight=np.ones(7)), axis=0, **options
            )
    with pytest.raises(TypeError, match="state must be an ExponentialState, got tuple"):
        numnorm.exponential_norm_step(np.ones((5, 2)), 0.1, tuple(state), axis=0)


@pytest.mark.parametrize("name, value", [("span", 5), ("com", 2.5), ("halflife", 3.0)])
def test_the_rate_in_the_words_of_pandas(name, value):
    pandas = pytest.importorskip("pandas")
    x = RNG.normal(size=(40, 3))
    by_name = numnorm.exponential_norm_forward(x, axis=0, **{name: value})
    expected = pandas.DataFrame(x).ewm(**{name: value}).mean().to_numpy()
    np.testing.assert_allclose(by_name.mean, expected, rtol=0, atol=1e-14)
    dx = numnorm.exponential_norm_backward(x, x, *by_name[1:], axis=0, **{name: value})
    alpha = {"span": 1 / 3, "com": 1 / 3.5, "halflife": 1 - 0.5 ** (1 / 3)}[name]
    by_alpha = numnorm.exponential_norm_backward(x, x, *by_name[1:], alpha, axis=0)
    np.testing.assert_allclose(dx, by_alpha, rtol=0, atol=1e-13)
    y, state = numnorm.exponential_norm_step(x[:17], axis=0, **{name: value})
    rest, _ = numnorm.exponential_norm_step(x[17:], state=state, axis=0, **{name: value})
    np.testing.assert_array_equal(np.concatenate((y, rest)), by_name.y)


@pytest.mark.parametrize("initial", [0, 4])
def test_a_channel_alone_has_the_bytes_that_it_has_among_others(initial):
    """Along few channels and across many, products and sums are contracted alike."""
    x, dy = RNG.normal(3.0, 10.0, (2, 38, 9)), RNG.normal(size=(2, 38, 9))
    options = {"axis": 1, "initial": initial}
    y, mean, rstd = numnorm.exponential_norm_forward(x, 0.01, **options)
    dx = numnorm.exponential_norm_backward(dy, x, mean, rstd, 0.01, **options)
    for channels in (slice(3), slice(2, 9), slice(8, 9)):
        given = (array[..., channels] for array in (dy, x, mean, rstd))
        part = numnorm.exponential_norm_backward(*given, 0.01, **options)
        np.testing.assert_array_equal(part, dx[..., channels])
        part = numnorm.exponential_norm(x[..., channels], 0.01, **options)
        np.testing.assert_array_equal(part, y[..., channels])
