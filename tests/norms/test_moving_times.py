"""Windows by duration, against definitions window by window and against pandas."""

import datetime
import itertools
import pickle

import kernels
import ml_dtypes
import numpy as np
import pytest
from moving_checks import TOLERANCES, near
from reference import exact, inverse

import numnorm

RNG = np.random.default_rng(52)
CLOSED = "right", "left", "both", "neither"


def windows_of(times, window, closed, center):
    """Return a mask of the steps, the columns, of the window of each step, the row."""
    # Twice all numbers, which are whole: half a window is exact.
    distance = 2 * (times[None, :] - times[:, None])
    low, high = (-window, window) if center else (-2 * window, 0)
    left, right = closed in ("left", "both"), closed in ("right", "both")
    inside = (distance >= low) if left else (distance > low)
    inside &= (distance <= high) if right else (distance < high)
    if not center:
        inside &= np.tri(len(times), dtype=bool)
    return inside


def statistics_of(x, inside, mean, scale, eps):
    """Return the deviations of all steps, the columns, from the mean of each window, and both."""
    counts = inside.sum(1).astype(np.longdouble)
    with np.errstate(invalid="ignore", divide="ignore"):
        pivots = x[inside.argmax(1)] * mean
        distances = np.where(inside, x[None, :] - pivots[:, None], 0)
        offsets = mean * distances.sum(1) / counts
        deviations = (x[None, :] - pivots[:, None]) - offsets[:, None]
        variances = np.where(inside, np.square(deviations), 0).sum(1) / counts
        rstds = inverse(np.sqrt(variances + eps)) if scale else np.ones(len(x)) + 0 * variances
    empty = counts == 0
    return deviations, np.where(empty, np.nan, pivots + offsets), np.where(empty, np.nan, rstds)


def defined(x, keep, inside, mean, scale, eps):
    """Return y, mean and rstd of one channel."""
    x = exact(np.where(keep, x, 0))
    deviations, means, rstds = statistics_of(x, inside & keep, mean, scale, np.longdouble(eps))
    return np.where(keep, np.diagonal(deviations) * rstds, 0), means, rstds


def gradient(dy, x, keep, inside, mean, scale, eps):
    """Return dx of one channel: the gradients of the norms of all windows."""
    x, dy = exact(np.where(keep, x, 0)), exact(np.where(keep, dy, 0))
    inside = inside & keep
    deviations, _, rstds = statistics_of(x, inside, mean, scale, np.longdouble(eps))
    counts = inside.sum(1)
    some = (counts > 0) & keep
    dx = np.zeros(len(x), np.longdouble)
    for t in np.flatnonzero(some):
        passed = dy[t] * rstds[t]
        dx[t] += passed
        projected = passed * deviations[t, t] * rstds[t] ** 2 * deviations[t] * scale
        dx -= np.where(inside[t], (passed * mean + projected) / counts[t], 0)
    return np.where(keep, dx, 0)


def check_calls(dtype, seeds):
    tolerance = TOLERANCES[np.dtype(dtype).name]
    for seed in seeds:
        rng = np.random.default_rng([seed, 3])
        steps = int(rng.integers(0, 30))
        shape = (2, steps, *[(), (1,), (3,), (9,)][rng.integers(4)])
        numbers = np.cumsum(rng.integers(0, rng.choice([2, 4, 9]), steps))  # with ties
        window = int(rng.choice([1, 2, 5, 12, 50]))
        closed, center = CLOSED[rng.integers(4)], bool(rng.integers(2))
        mean, scale = [(True, True), (True, False), (False, True)][rng.integers(3)]
        half = np.dtype(dtype).itemsize == 2
        eps = float(rng.choice([1e-3, 1.0] if half else [0.0, 1e-3]))
        options = {"subtract_mean": mean, "with_std": scale}
        given = {"closed": closed, "center": center, "axis": 1, **options}
        kind = rng.integers(3)
        if kind == 0:
            given |= {"times": numbers, "window": window}
        elif kind == 1:
            given |= {"times": numbers / 4, "window": window / 4}  # exact
        else:
            moments = np.datetime64("2026-01-01", "s") + 60 * numbers
            given |= {"times": moments, "window": np.timedelta64(window, "m")}
        x = (rng.normal(size=shape) + rng.choice([0, 5])).astype(dtype)
        if rng.random() < 0.3:
            x = np.round(x)  # constant windows
        dy = rng.normal(size=shape).astype(dtype)
        keep = rng.random(shape) < rng.choice([0.0, 0.3, 0.8, 1.0, 2.0])
        if not keep.all() or rng.random() < 0.2:
            given["where"] = keep
        found = numnorm.moving_norm_forward(x, eps=eps, **given)
        y = numnorm.moving_norm(x, eps=eps, **given)
        np.testing.assert_array_equal(*(a.astype(np.float64) for a in (y, found.y)))
        dx = numnorm.moving_norm_backward(dy, x, *found[1:], **given)
        assert y.dtype == dx.dtype == x.dtype
        if not steps:
            continue
        inside = windows_of(numbers, window, closed, center)
        flat = [np.moveaxis(a, 1, -1).reshape(-1, steps) for a in (x, dy, keep, *found, dx)]
        for own_x, own_dy, kept, *results in zip(*flat, strict=True):
            wanted = defined(own_x, kept, inside, mean, scale, eps)
            for got, expected in zip(results[:3], wanted, strict=True):
                near(got, expected, 0, tolerance, 1)
            expected = gradient(own_dy, own_x, kept, inside, mean, scale, eps)
            largest = np.nan_to_num(abs(exact(own_dy) * wanted[2])).max(initial=1)
            # A root of a variance that rounding alone left is 0 there and here.
            near(results[3], expected, 0, 8 * tolerance, largest)


@pytest.mark.parametrize(
    "dtype",
    [np.float64, pytest.param(np.float32, marks=kernels.full), np.float16, ml_dtypes.bfloat16],
)
def test_random_calls_agree_with_the_definition(dtype):
    check_calls(dtype, range(15))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_2000_calls_agree_with_the_definition(dtype):
    check_calls(dtype, range(15, 2015))


@pytest.mark.parametrize("closed", CLOSED)
@pytest.mark.parametrize("missing", [False, True])
def test_pandas(closed, missing):
    pandas = pytest.importorskip("pandas")
    days = np.datetime64("2026-01-01", "h") + np.cumsum(RNG.integers(0, 60, 300))
    x = RNG.normal(size=(300, 3))
    x[RNG.random(x.shape) < 0.3 * missing] = np.nan
    rolling = pandas.DataFrame(x, index=pandas.DatetimeIndex(days)).rolling("7D", closed=closed)
    found = numnorm.moving_norm_forward(
        x,
        pandas.Timedelta("7D"),
        times=pandas.DatetimeIndex(days),
        closed=closed,
        axis=0,
        nan_policy="omit" if missing else "propagate",
    )
    expected = rolling.mean().to_numpy()
    np.testing.assert_allclose(found.mean, expected, rtol=0, atol=1e-12)
    deviation = rolling.std(ddof=0).to_numpy()
    several = rolling.count().to_numpy() > 1  # the deviation of one value is 0, or a rounding error
    kept = several & ~np.isnan(x)
    wanted = (x - expected)[kept] / deviation[kept]
    np.testing.assert_allclose(found.y[kept], wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("closed", CLOSED)
def test_centred_windows_of_pandas(closed):
    pandas = pytest.importorskip("pandas")
    days = np.datetime64("2026-01-01", "D") + np.cumsum(RNG.integers(1, 5, 200))
    x = RNG.normal(size=200)
    series = pandas.Series(x, index=pandas.DatetimeIndex(days))
    rolling = series.rolling("8D", closed=closed, center=True)
    found = numnorm.moving_norm_forward(
        x, np.timedelta64(8, "D"), times=days, closed=closed, center=True
    )
    np.testing.assert_allclose(found.mean, rolling.mean().to_numpy(), rtol=0, atol=1e-12)


def test_one_step_each_unit_of_time_is_the_window_of_steps():
    x = RNG.normal(size=(60, 9))
    for center in (False, True):
        timed = numnorm.moving_norm(x, 7, times=np.arange(60), axis=0, center=center)
        plain = numnorm.moving_norm(x, 7, axis=0, center=center)
        inner = slice(5, -5) if center else slice(None)
        np.testing.assert_allclose(timed[inner], plain[inner], rtol=0, atol=1e-12)


@pytest.mark.parametrize("offset", [1e7, 1e12])
def test_offset_costs_no_digits(offset):
    times = np.cumsum(RNG.integers(0, 5, 500))
    x = RNG.normal(size=500) + offset
    found = numnorm.moving_norm(x, 40, times=times)
    inside = windows_of(times, 40, "right", False)
    expected = defined(x, np.ones(500, bool), inside, True, True, 0.0)
    # A window has up to 40 values: a pivot 4 deviations away costs a factor of 17.
    assert abs(found - expected[0]).max() <= 1e-13


def test_what_is_no_number_leaves_no_trace():
    times = np.cumsum(RNG.integers(0, 5, 200))
    x, dy = RNG.normal(size=200), RNG.normal(size=200)
    inside = windows_of(times, 30, "right", False)
    clean = numnorm.moving_norm_forward(x, 30, times=times)
    for bad in (np.nan, np.inf, 1e300):
        spoilt = x.copy()
        spoilt[90] = bad
        found = numnorm.moving_norm_forward(spoilt, 30, times=times)
        others = ~inside[:, 90]
        if bad != 1e300:
            assert np.isnan(found.y[~others]).all()
        if np.isnan(bad):
            dx = numnorm.moving_norm_backward(dy, spoilt, *found[1:], 30, times=times)
            # A step passes its gradient to the steps of its window.
            assert np.isnan(dx[(inside[~others]).any(0)]).all()
            assert np.isfinite(dx[~(inside[~others]).any(0)]).all()
        np.testing.assert_allclose(found.y[others], clean.y[others], rtol=0, atol=1e-13)


@pytest.mark.parametrize("closed", CLOSED)
@pytest.mark.parametrize("masked", [False, True])
def test_chunks_give_the_bytes_of_one_call(closed, masked):
    times = np.datetime64("2026-01-01", "ms") + np.cumsum(RNG.integers(0, 9, 120))
    x, keep = RNG.normal(size=(2, 120, 3)), RNG.random((2, 120, 3)) < 0.6
    options = {"axis": 1, "closed": closed}
    window = datetime.timedelta(milliseconds=35)
    where = keep if masked else None
    expected = numnorm.moving_norm(x, window, times=times, where=where, **options)
    state, found = None, []
    ends = 0, 1, 1, 2, 30, 90, 91, 120
    for start, stop in itertools.pairwise(ends):
        part = slice(start, stop)
        y, state = numnorm.moving_norm_step(
            x[:, part],
            window,
            state,
            times=times[part],
            where=keep[:, part] if masked else None,
            **options,
        )
        state = pickle.loads(pickle.dumps(state))
        found.append(y)
    np.testing.assert_array_equal(np.concatenate(found, 1), expected)
    # The state keeps the steps within the last duration.
    first = times[-1] - np.timedelta64(window)
    kept = times >= first if closed in ("left", "both") else times > first
    assert len(state.times) == state.values.shape[1] == kept.sum()
    assert state.steps == 120
    with pytest.raises(ValueError, match="times must not be before the last time of the state"):
        numnorm.moving_norm_step(x, window, state, times=times, **options)
    with pytest.raises(ValueError, match="times must be given for all chunks"):
        numnorm.moving_norm_step(x, 3, state, axis=1)
    with pytest.raises(ValueError, match="state must be of chunks like x"):
        numnorm.moving_norm_step(x[:1, :1], window, state, times=times[-1:], **options)


@pytest.mark.parametrize(
    "field, value, message",
    [
        ("steps", "3", "state.steps must be an int, got '3'"),
        ("kept", np.ones((7, 2), bool), "state.kept must be a mask of (3, 2) values, got shape (7"),
        ("kept", np.ones((3, 2)), "shape (3, 2) and dtype float64"),
        ("times", np.zeros(2), "state.times must be the times of its 3 values, got 2"),
        ("times", np.zeros(7), "state.times must be the times of its 3 values, got 7"),
        (
            "times",
            np.zeros((3, 1)),
            "state.times must have one time for each value, got shape (3, 1)",
        ),
        (
            "times",
            np.array(["a"] * 3),
            "state.times must have one time for each value, got shape (3,)",
        ),
        ("anchors", None, "state.anchors must be an array"),
        ("anchors", np.zeros(7, np.int64), "one for each of 2 channels, got shape (7,)"),
        ("anchors", np.zeros(2), "shape (2,) and dtype float64"),
        ("anchors", np.array([0, 3]), "state.anchors must be -1 or steps before 3, the end of its"),
        ("anchors", np.array([-2, 0]), "last window, got -2"),
    ],
)
def test_states_that_were_changed(field, value, message):
    """Kernels would read past the ends of what they are given."""
    options = {"axis": 0, "where": True}
    x = RNG.normal(size=(3, 2))
    state = numnorm.moving_norm_step(x, 2.5, times=[0.0, 1.0, 2.0], **options)[1]
    forged = state._replace(**{field: value})
    with pytest.raises((TypeError, ValueError)) as caught:
        numnorm.moving_norm_step(x, 2.5, forged, times=[3.0, 4.0, 5.0], **options)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_window_that_is_closed_otherwise_in_a_later_chunk():
    """The anchor of the last window lies in none that ends before its step."""
    x, times = np.arange(3.0), np.array([0.0, 5.0, 5.0])
    state = numnorm.moving_norm_step(x, 1.0, times=times, closed="both")[1]
    state = state._replace(window=None)  # as of a state that does not say what was closed
    with pytest.raises(ValueError, match=r"state\.anchors must be -1 or steps before 0, "):
        numnorm.moving_norm_step(x, 1.0, state, times=times + 5.0, closed="neither")


def test_numerical_gradient():
    times = np.cumsum(RNG.integers(0, 4, 14))
    x, dy = RNG.normal(size=14), RNG.normal(size=14)
    for closed in CLOSED:
        options = {"times": times, "closed": closed}
        y, mean, rstd = numnorm.moving_norm_forward(x, 6.0, eps=0.1, **options)
        counts = np.isfinite(y)
        dx = numnorm.moving_norm_backward(np.where(counts, dy, 0), x, mean, rstd, 6.0, **options)
        for k in range(14):
            moved = 1e-6 * (np.arange(14) == k)
            up, down = (
                numnorm.moving_norm(x + sign * moved, 6.0, eps=0.1, **options) for sign in (1, -1)
            )
            numeric = (dy * (up - down))[counts].sum() / 2e-6
            assert abs(numeric - dx[k]) <= 1e-6  # of central differences


def test_out_and_memory_layouts():
    times = np.cumsum(RNG.integers(0, 4, 40))
    x = RNG.normal(size=(40, 6))
    expected = numnorm.moving_norm(x, 9, times=times, axis=0)
    np.testing.assert_array_equal(
        numnorm.moving_norm(np.asfortranarray(x), 9, times=times, axis=0), expected
    )
    np.testing.assert_array_equal(numnorm.moving_norm(x.T, 9, times=times).T, expected)
    out = x.copy()
    assert numnorm.moving_norm(out, 9, times=times, axis=0, out=out) is out
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(
        numnorm.moving_norm(np.round(x).astype(int), 9, times=times, axis=0),
        numnorm.moving_norm(np.round(x), 9, times=times, axis=0),
    )


@pytest.mark.parametrize(
    "options, message",
    [
        ({"closed": "up"}, "closed must be 'right', 'left', 'both' or 'neither', got 'up'"),
        ({"window": 0}, "window must be above 0, got 0"),
        ({"window": "7D"}, "window must be a number, got '7D'"),
        ({"min_window": 2}, "min_window must be 1 with times, got 2"),
        ({"times": [0, 2, 1]}, "times must not decrease, got a step back at step 2"),
        ({"times": None, "closed": "left"}, "closed must be 'right' without times"),
        ({"times": None, "window": 2.5}, "window must be an int, got 2.5"),
        ({"times": np.arange(3).astype("M8[s]")}, "window must be a timedelta64 or timedelta"),
    ],
)
def test_errors(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        numnorm.moving_norm(np.ones(3), **{"window": 2, "times": [0, 1, 2], **options})


# Times that are large, or of which the unit is long


@pytest.mark.parametrize(
    "times",
    [
        np.iinfo(np.int64).min + np.arange(6),
        np.arange(6, dtype=np.uint64) + np.uint64(2**63 - 6),
        1e17 + 32 * np.arange(6),
        np.datetime64("2026-01-01", "ns") + np.arange(6),
    ],
    ids=["negative", "unsigned", "floats", "nanoseconds"],
)
@pytest.mark.parametrize("closed", ["right", "both"])
def test_large_times(times, closed):
    """A window holds its own step, and times apart by a window do as small times do."""
    x = np.arange(6.0)
    step = times[1] - times[0]
    for steps in (0.5, 1, 2, 2.5):
        if step.dtype.kind == "m" and steps % 1:
            continue
        window = steps * step if step.dtype.kind != "m" else int(steps) * step
        found = numnorm.moving_norm_forward(x, window, times=times, closed=closed)
        small = numnorm.moving_norm_forward(x, steps, times=np.arange(6.0), closed=closed)
        np.testing.assert_array_equal(found.mean, small.mean)


def test_a_window_of_a_fraction_of_whole_times():
    nanoseconds = np.datetime64("2026-01-01", "ns").astype(np.int64) + np.arange(5)
    for center in (False, True):
        found = numnorm.moving_norm_forward(np.arange(5.0), 2.5, times=nanoseconds, center=center)
        small = numnorm.moving_norm_forward(
            np.arange(5.0), 2.5, times=np.arange(5.0), center=center
        )
        np.testing.assert_array_equal(found.mean, small.mean)


def test_months_are_their_first_days():
    months = np.arange("2026-01", "2026-07", dtype="M8[M]")
    x, window = np.arange(6.0), np.timedelta64(45, "D")
    found = numnorm.moving_norm_forward(x, window, times=months)
    by_days = numnorm.moving_norm_forward(x, window, times=months.astype("M8[D]"))
    np.testing.assert_array_equal(found.mean, by_days.mean)


@pytest.mark.parametrize(
    ("times", "window", "error", "text"),
    [
        (np.array([0, 2**63], np.uint64), 1, ValueError, r"times must be below 2\*\*63, got 9223"),
        (np.array([-(2**62), 2**62]), 1, ValueError, r"times must span less than 2\*\*61 units"),
        (np.array([0, 1], "m8[M]"), np.timedelta64(1, "D"), TypeError, "times must have a unit"),
        (
            np.array([0, 1], "M8[as]"), np.timedelta64(1, "D"), ValueError,
            r"window must have a unit nearer to that of times, timedelta64\[as\]",
        ),
    ],
)  # fmt: skip
def test_times_that_are_too_large(times, window, error, text):
    with pytest.raises(error, match=f"^{text}"):
        numnorm.moving_norm([1.0, 2.0], window, times=times)


def test_a_stream_keeps_its_windows():
    x = np.arange(6.0)
    _, state = numnorm.moving_norm_step(x, 3.0, times=x)
    for given in ({"window": 50.0}, {"window": 3.0, "closed": "both"}):
        with pytest.raises(
            ValueError, match=r"^window and closed must stay \(3.0, 'right'\) in a stream, got \("
        ):
            numnorm.moving_norm_step(x, state=state, times=x + 6, **given)
    with pytest.raises(
        TypeError, match=r"^times must be float64 like the state's times, got datetime64\[D\]$"
    ):
        times = np.datetime64("2026-01-01") + np.arange(6)
        numnorm.moving_norm_step(x, np.timedelta64(3, "D"), state, times=times)
    days = np.datetime64("2026-01-01") + np.arange(12)
    _, state = numnorm.moving_norm_step(x, np.timedelta64(3, "D"), times=days[:6])
    y, _ = numnorm.moving_norm_step(x, np.timedelta64(72, "h"), state, times=days[6:])
    whole = numnorm.moving_norm(np.tile(x, 2), np.timedelta64(3, "D"), times=days)
    np.testing.assert_array_equal(y, whole[6:])


def test_a_window_that_changes_leaves_the_output_as_it_was():
    x, out = np.arange(3.0), np.full(3, 7.0)
    _, state = numnorm.moving_norm_step(x, 3.0, times=x)
    with pytest.raises(ValueError, match=r"^window and closed must stay"):
        numnorm.moving_norm_step(x, 2.0, state, times=x + 3, out=out)
    assert (out == 7.0).all()
