"""The times of norms of irregular steps, beside pandas, on one thread.

``python -m peers.times`` prints the tables, ``--accuracy`` the errors at offsets.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

# Before Numba is imported.
os.environ["NUMBA_NUM_THREADS"] = "1"

import numpy as np
import pandas as pd

import numnorm

Array = np.ndarray[Any, Any]

SHAPES = [(600, 1), (600, 80), (10_000, 1), (10_000, 22), (100_000, 1), (100_000, 22)]
SHAPES += [(1_000_000, 1), (1_000_000, 4)]
# Steps lie a minute apart, on average: of windows of about 10, 300 and 3000 steps.
WINDOWS = ("10min", "5h", "50h")
HALFLIFE = "5h"
LEAST = 1e-4
REPEATS = 5
OFFSETS = (0.0, 1e3, 1e7, 1e12)


def data(shape: tuple[int, int], dtype: str = "float64") -> tuple[Array, pd.DatetimeIndex]:
    """Return values and their times."""
    rng = np.random.default_rng(0)
    seconds = np.cumsum(rng.integers(1, 120, shape[0]))
    times = np.datetime64("2026-01-01", "s") + seconds
    return rng.standard_normal(shape).astype(dtype), pd.DatetimeIndex(times)


def by_windows(frame: pd.DataFrame, window: str) -> Any:
    """Return what pandas makes of windows."""
    rolling = frame.rolling(window)
    return (frame - rolling.mean()) / rolling.std(ddof=0)


def by_decay(frame: pd.DataFrame, halflife: str) -> Any:
    """Return what pandas makes of weights that fade."""
    options: Any = {"halflife": halflife, "times": frame.index}
    deviations = frame - frame.ewm(**options).mean()
    deviation = np.sqrt((deviations * deviations).ewm(**options).mean())
    return deviations / np.maximum(deviation, LEAST)


def calls(x: Array, times: pd.DatetimeIndex) -> Iterator[tuple[str, Any, Any]]:
    """Yield a label, the call of numnorm and that of pandas, each time first."""
    frame = pd.DataFrame(x, index=times)
    for window in WINDOWS:
        duration = pd.Timedelta(window)
        yield (
            f"moving_norm, {window}",
            lambda duration=duration: numnorm.moving_norm(x, duration, times=times, axis=0),
            lambda window=window: by_windows(frame, window),
        )
    half = pd.Timedelta(HALFLIFE)
    yield (
        f"exponential_norm, {HALFLIFE}",
        lambda: numnorm.exponential_norm(x, halflife=half, times=times, axis=0, eps=LEAST),
        lambda: by_decay(frame, HALFLIFE),
    )


def shortest(call: Callable[[], Any], other: Callable[[], Any]) -> tuple[float, float]:
    """Return the shortest times of two calls in turn, in seconds."""
    best = [np.inf, np.inf]
    for each in (call, other):
        each()
    for _ in range(REPEATS):
        for place, each in enumerate((call, other)):
            begin = time.perf_counter()
            each()
            best[place] = min(best[place], time.perf_counter() - begin)
    return best[0], best[1]


def speed() -> None:
    """Print nanoseconds for each element, and how many times as long pandas takes."""
    print(
        f"| norm | dtype | steps × channels | numnorm, ns | pandas {pd.__version__}, ns | ratio |"
    )
    print("|---|---|---|---|---|---|")
    for dtype in ("float64", "float32"):
        for shape in SHAPES:
            x, times = data(shape, dtype)
            for label, own, other in calls(x, times):
                seconds, theirs = shortest(own, other)
                each = 1e9 / x.size
                numbers = f"{seconds * each:.1f} | {theirs * each:.1f} | {theirs / seconds:.1f}"
                print(f"| {label} | {dtype} | {shape[0]}×{shape[1]} | {numbers} |", flush=True)


def accuracy() -> None:
    """Print the largest errors of windows of about 50 steps, and of a half-life of 100."""
    print(f"| offset | moving_norm | rolling | exponential_norm | ewm of pandas {pd.__version__} |")
    print("|---|---|---|---|---|")
    for offset in OFFSETS:
        x, times = data((10_000, 1))
        x = x + offset
        found: list[str] = []
        window, half, seconds = pd.Timedelta("50min"), pd.Timedelta("100min"), times.as_unit("s")
        exact = (
            windows_exactly(x[:, 0], seconds.asi8, 3000),
            fading_exactly(x[:, 0], seconds.asi8, 6000),
        )
        frame = pd.DataFrame(x, index=times)
        results = (
            numnorm.moving_norm(x, window, times=times, axis=0),
            by_windows(frame, "50min").to_numpy(),
            numnorm.exponential_norm(x, halflife=half, times=times, axis=0, eps=LEAST),
            by_decay(frame, "100min").to_numpy(),
        )
        for place, result in enumerate(results):
            wanted = exact[place // 2]
            kept = np.isfinite(wanted)
            found.append(f"{abs(result[kept, 0] - wanted[kept]).max():.0e}")
        print(f"| {offset:g} | {' | '.join(found)} |", flush=True)


def windows_exactly(x: Array, seconds: Array, window: int) -> Array:
    """Return the norm by windows in extended precision; NaN for windows of fewer than 5 steps."""
    y = np.full(len(x), np.nan, np.longdouble)
    starts = np.searchsorted(seconds, seconds - window, "right")
    for t, start in enumerate(starts):
        values = x[start : t + 1].astype(np.longdouble) - x[t]
        if len(values) >= 5:
            y[t] = -values.mean() / values.std()
    return y


def fading_exactly(x: Array, seconds: Array, halflife: int) -> Array:
    """Return the norm by weights that fade in extended precision."""
    y, weight, mean, variance = np.empty(len(x), np.longdouble), *[np.longdouble(0)] * 3
    values = x.astype(np.longdouble) - x[0]
    for t, value in enumerate(values):
        passed = seconds[t] - seconds[t - 1] if t else 0
        weight = 1 + weight * np.exp2(np.longdouble(-passed) / halflife)
        mean = mean + (value - mean) / weight
        variance = variance + ((value - mean) ** 2 - variance) / weight
        y[t] = (value - mean) / max(np.longdouble(LEAST), np.sqrt(variance))
    return y


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--accuracy", action="store_true", help="the errors at offsets")
    if parser.parse_args().accuracy:
        accuracy()
    else:
        speed()
