"""Exponential norms of irregular steps, against definitions by weights and against pandas."""

import datetime
import pickle

import kernels
import moving_reference as reference
import numpy as np
import pytest
from moving_checks import TOLERANCES, near

import numnorm

RNG = np.random.default_rng(51)


def weights_of(times, halflife, adjust, keep):
    """Return the weight of each earlier step, the column, at each step, the row, in longdouble."""
    times = np.asarray(times).astype(np.longdouble)
    weights = np.zeros((len(times), len(times)), np.longdouble)
    for t in range(len(times)):
        kept = np.flatnonzero(keep[: t + 1])
        if not len(kept):
            continue
        # Relative to the last step that counts, so that a gap leaves no weights of 0.
        weights[t, kept] = np.exp2((times[kept] - times[kept[-1]]) / np.longdouble(halflife))
        if not adjust:
            since = np.diff(times[kept], prepend=-np.inf) / np.longdouble(halflife)
            weights[t, kept] *= 1 - np.exp2(-since)
        weights[t] /= weights[t].sum()
    return weights


def defined(x, keep, times, halflife, adjust, eps):
    """Return y, mean and rstd of one channel, and its weights."""
    x = reference.exact(np.where(keep, x, 0))
    weights = weights_of(times, halflife, adjust, keep)
    known = np.maximum.accumulate(keep)
    pivot = x[keep.argmax()] if keep.any() else 0
    means = weights @ np.where(keep, x - pivot, 0)
    deviations = np.where(keep, (x - pivot) - means, 0)
    variances = weights @ np.square(deviations)
    rstds = np.where(known, reference.inverse(np.maximum(eps, np.sqrt(variances))), np.nan)
    y = np.where(keep, deviations * rstds, 0)
    return y, np.where(known, pivot + means, np.nan), rstds, weights


def gradient(dy, x, keep, weights, rstds, eps, deviations):
    """Return dx of one channel by the chain rule."""
    dy = np.where(keep, dy, 0)
    rstds = np.nan_to_num(rstds)
    own = dy * rstds
    moving = np.where(rstds * eps < 1 - 1e-9, dy * deviations * rstds**3, 0)
    through = np.where(keep, own - deviations * (weights.T @ moving), 0)
    return np.where(keep, through - weights.T @ through, 0)


def random_times(rng, steps):
    kind = rng.integers(4)
    if kind == 0:
        return np.sort(rng.integers(0, max(steps, 1), steps))  # with ties
    if kind == 1:
        return np.cumsum(rng.exponential(3.0, steps))
    if kind == 2:
        return np.cumsum(rng.integers(0, 9, steps)) + np.datetime64("2026-01-01", "s")
    return np.cumsum(rng.choice([1e-9, 1e-3, 1.0, 1e4], steps))


def as_numbers(times):
    return times.astype(np.int64) if times.dtype.kind == "M" else times


@pytest.mark.parametrize(
    "dtype", [np.float64, pytest.param(np.float32, marks=kernels.full), np.float16]
)
def test_random_calls_agree_with_the_definition(dtype):
    check_calls(dtype, range(20))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_2000_calls_agree_with_the_definition(dtype):
    check_calls(dtype, range(20, 2020))


def check_calls(dtype, seeds):
    tolerance = TOLERANCES[np.dtype(dtype).name]
    for seed in seeds:
        rng = np.random.default_rng([seed, 7])
        steps, after = int(rng.integers(0, 25)), [(), (1,), (3,), (9,)][rng.integers(4)]
        shape = (2, steps, *after)
        times = random_times(rng, steps)
        x = rng.normal(rng.choice([0, 3]), 1, shape).astype(dtype)
        dy = rng.normal(size=shape).astype(dtype)
        keep = rng.random(shape) < rng.choice([0.3, 0.8, 1.0, 2.0])
        halflife, adjust = float(rng.choice([0.5, 4.0, 100.0])), bool(rng.integers(2))
        eps = 1.0 if dtype == np.float16 else float(rng.choice([1e-4, 1.0]))
        given = {"halflife": halflife, "times": times, "axis": 1, "adjust": adjust, "eps": eps}
        if times.dtype.kind == "M":
            given["halflife"] = np.timedelta64(int(1000 * halflife), "ms")
        if not keep.all() or rng.random() < 0.2:
            given["where"] = keep
        found = numnorm.exponential_norm_forward(x, **given)
        dx = numnorm.exponential_norm_backward(dy, x, *found[1:], **given)
        y = numnorm.exponential_norm(x, **given)
        np.testing.assert_array_equal(y, found.y)
        if not steps:
            continue
        flat = [np.moveaxis(a, 1, -1).reshape(-1, steps) for a in (x, dy, keep, *found, dx)]
        for own_x, own_dy, kept, *results in zip(*flat, strict=True):
            wanted = defined(own_x, kept, as_numbers(times), halflife, adjust, eps)
            if not reference.clear_of_least_deviation(wanted[2], eps):
                continue
            for got, expected in zip(results[:3], wanted[:3], strict=True):
                near(got, expected, 0, tolerance, 1)
            deviations = np.where(kept, reference.exact(own_x) - np.nan_to_num(wanted[1]), 0)
            expected = gradient(
                reference.exact(own_dy), own_x, kept, wanted[3], wanted[2], eps, deviations
            )
            largest = np.nan_to_num(abs(own_dy * wanted[2])).max(initial=1)
            near(results[3], expected, 0, 8 * tolerance, largest)


@pytest.mark.parametrize("adjust", [False, True])
@pytest.mark.parametrize("missing", [False, True])
def test_pandas(adjust, missing):
    pandas = pytest.importorskip("pandas", minversion="3.0" if not adjust else None)
    times = np.datetime64("2026-01-01", "s") + np.cumsum(RNG.integers(0 if adjust else 1, 50, 300))
    x = RNG.normal(size=(300, 3))
    x[RNG.random(x.shape) < 0.3 * missing] = np.nan
    options = {"halflife": pandas.Timedelta("40s"), "times": pandas.DatetimeIndex(times)}

    def means(table):
        ewm = pandas.DataFrame(table).ewm(adjust=adjust, **options)
        return ewm.mean().to_numpy()

    expected = means(x)
    deviations = x - expected
    deviation = np.sqrt(means(np.square(deviations)))
    policy = "omit" if missing else "propagate"
    found = numnorm.exponential_norm_forward(x, axis=0, adjust=adjust, nan_policy=policy, **options)
    np.testing.assert_allclose(found.mean, expected, rtol=0, atol=1e-13)
    kept = ~np.isnan(x)
    wanted = (deviations / np.maximum(deviation, 1e-4))[kept]
    np.testing.assert_allclose(found.y[kept], wanted, rtol=0, atol=1e-11)


def test_equal_steps_are_those_of_alpha():
    x = RNG.normal(size=(50, 4))
    for adjust in (False, True):
        timed = numnorm.exponential_norm(
            x, halflife=15, times=np.arange(50) * 5, axis=0, adjust=adjust
        )
        plain = numnorm.exponential_norm(x, halflife=3, axis=0, adjust=adjust)
        np.testing.assert_allclose(timed, plain, rtol=0, atol=1e-12)


@pytest.mark.parametrize("offset", [1e7, 1e12])
def test_offset_costs_no_digits(offset):
    times = np.cumsum(RNG.exponential(1.0, 400))
    x = RNG.normal(size=400) + offset
    found = numnorm.exponential_norm(x, halflife=30.0, times=times)
    exact = defined(x, np.ones(400, bool), times, 30.0, True, np.longdouble(1e-4))
    assert abs(found - exact[0]).max() <= 1e-12


@pytest.mark.parametrize("adjust", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_chunks_give_the_bytes_of_one_call(adjust, masked):
    times = np.datetime64("2026-01-01", "ms") + np.cumsum(RNG.integers(0, 50, 90))
    x, keep = RNG.normal(size=(90, 3)), RNG.random((90, 3)) < 0.6
    keep[[19, 39]] = True  # without `adjust`, what a gap at the end of a chunk has left is rounded
    options = {"halflife": datetime.timedelta(milliseconds=90), "axis": 0, "adjust": adjust}
    expected = numnorm.exponential_norm(x, times=times, where=keep if masked else None, **options)
    state, found = None, []
    for start, stop in ((0, 1), (1, 20), (20, 20), (20, 40), (40, 90)):
        part = slice(start, stop)
        y, state = numnorm.exponential_norm_step(
            x[part],
            state=state,
            times=times[part],
            where=keep[part] if masked else None,
            **options,
        )
        state = pickle.loads(pickle.dumps(state))
        found.append(y)
    np.testing.assert_array_equal(np.concatenate(found), expected)
    assert state.time == times[-1]
    with pytest.raises(ValueError, match="times must not be before the last time of the state"):
        numnorm.exponential_norm_step(x, state=state, times=times, **options)
    with pytest.raises(ValueError, match="times must be given for all chunks"):
        numnorm.exponential_norm_step(x, 0.1, state, axis=0)


def test_numerical_gradient():
    x, times = RNG.normal(size=12), np.cumsum(RNG.exponential(1.0, 12))
    options = {"halflife": 2.0, "times": times, "initial": 3}
    _, mean, rstd = numnorm.exponential_norm_forward(x, **options)
    dy = RNG.normal(size=12)
    dx = numnorm.exponential_norm_backward(dy, x, mean, rstd, **options)
    step = 1e-6
    for k in range(12):
        moved = step * (np.arange(12) == k)
        up, down = (numnorm.exponential_norm(x + s * moved, **options) for s in (1, -1))
        numeric = (dy * (up - down)).sum() / (2 * step)
        assert abs(numeric - dx[k]) <= 1e-6  # of central differences


@pytest.mark.parametrize(
    "options, message",
    [
        ({"alpha": 0.5}, "halflife alone must be given with times, not alpha, span or com"),
        ({"halflife": 1, "span": 3}, "halflife alone must be given with times"),
        ({"halflife": 0}, "halflife must be above 0, got 0"),
        ({"halflife": 1, "times": [0, 1]}, r"times must have shape \(3,\), the steps of x"),
        ({"halflife": 1, "times": [0, 2, 1]}, "times must not decrease, got a step back at step 2"),
        ({"halflife": 1, "times": [0, np.nan, 1]}, "times must be finite, got nan"),
        ({"halflife": 1, "times": ["a", "b", "c"]}, "times must be numbers, datetime64 or"),
        ({"halflife": np.timedelta64(1, "s")}, "halflife must be a number, as times are"),
        ({"halflife": 1, "times": np.arange(3).astype("M8[s]")}, "halflife must be a timedelta64"),
        (
            {"halflife": "7D", "times": np.arange(3).astype("M8[s]")},
            r"got '7D': np.timedelta64\(7, 'D'\) is 7 days",
        ),
        (
            {"halflife": np.timedelta64(1, "M"), "times": np.arange(3).astype("M8[s]")},
            "of a fixed length",
        ),
        (
            {"halflife": np.timedelta64(1, "s"), "times": np.array(["NaT"] * 3, "M8[s]")},
            "times must be finite, got NaT",
        ),
    ],
)
def test_errors(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        numnorm.exponential_norm(np.ones(3), **{"times": [0, 1, 2], **options})


def test_an_empty_first_chunk():
    nothing = np.zeros(0)
    _, state = numnorm.exponential_norm_step(nothing, halflife=5.0, times=nothing)
    x = np.array([1.0, 4.0, 2.0])
    y, _ = numnorm.exponential_norm_step(x, None, state, halflife=5.0, times=x.cumsum())
    np.testing.assert_array_equal(y, numnorm.exponential_norm(x, halflife=5.0, times=x.cumsum()))
    y, _ = numnorm.exponential_norm_step(x, 0.5, state)
    np.testing.assert_array_equal(y, numnorm.exponential_norm(x, 0.5))


@pytest.mark.parametrize("adjust", [False, True])
def test_chunks_that_end_with_missing_steps_have_the_bytes_of_one_call(adjust):
    rng = np.random.default_rng(4)
    options = {"halflife": 5.0, "adjust": adjust, "nan_policy": "omit"}
    for _ in range(50):
        x, times = rng.normal(size=40), np.sort(rng.integers(0, 60, 40) + rng.random(40).round(1))
        x[rng.random(40) < 0.5] = np.nan
        state, parts = None, []
        for at in np.split(np.arange(40), np.sort(rng.integers(0, 41, 4))):
            y, state = numnorm.exponential_norm_step(x[at], None, state, times=times[at], **options)
            parts.append(y)
        whole = numnorm.exponential_norm(x, times=times, **options)
        np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_wrong_half_lives_and_kinds_of_times():
    x = np.arange(3.0)
    with pytest.raises(TypeError, match=r"^halflife must be a number, got "):
        numnorm.exponential_norm(x, halflife=np.timedelta64(1, "D"))
    _, state = numnorm.exponential_norm_step(x, halflife=2.0, times=x)
    days = np.datetime64("2026-01-01") + np.arange(3)
    with pytest.raises(TypeError, match=r"^times must be float64 like the state's times, got date"):
        numnorm.exponential_norm_step(x, None, state, halflife=np.timedelta64(1, "D"), times=days)
