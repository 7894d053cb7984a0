"""pandas: `rolling`, `ewm`, `groupby` and `quantile` of data frames, and NaN left out."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from ...cases import ALPHA, HALFLIFE, LEAST, Case, Q
from .. import Call

PACKAGES = ("pandas", "numpy")


def start(threads: int) -> None:
    """Do nothing: pandas has one thread."""


def call_of(case: Case, arrays: Any) -> Call | None:
    """Return a call on a data frame, whose rows are the steps or samples."""
    if case.family == "moving":
        frame = pd.DataFrame(arrays.x if case.axis == 0 else arrays.x.T)
        faded = partial(_fading, frame, alpha=ALPHA)
        function = partial(_windows, frame, case.window) if case.window else faded
    elif case.family == "times":
        function = _by_times(pd.DataFrame(arrays.x, pd.DatetimeIndex(arrays.times)), case)
    elif case.norm in ("quantiles", "quantiles_chunks"):
        function = partial(pd.DataFrame(arrays.x, copy=False).quantile, Q)
    elif case.family == "labels":
        groups = pd.DataFrame(arrays.x).groupby(arrays.labels)
        statistics = case.norm == "labels_statistics"
        function = partial(_of_groups if statistics else _by_group, groups)
        return Call(function, lambda y: [y if statistics else y.to_numpy()])
    elif case.family == "order":
        function = partial(_order, pd.DataFrame(arrays.x.T), case)
    elif case.norm == "columns_nan":
        function = partial(_columns, pd.DataFrame(arrays.x))
    else:
        return None
    return Call(function, lambda y: [y.to_numpy() if case.axis == 0 else y.to_numpy().T])


def _by_times(frame: Any, case: Case) -> Any:
    if case.window:
        return partial(_windows, frame, pd.Timedelta(minutes=case.window))
    half = pd.Timedelta(minutes=HALFLIFE)
    return partial(_fading, frame, halflife=half, times=frame.index)


def _windows(frame: Any, window: Any) -> Any:
    rolling = frame.rolling(window, min_periods=1)
    return (frame - rolling.mean()) / rolling.std(ddof=0)


def _order(frame: Any, case: Case) -> Any:
    rolling = frame.rolling(case.window, min_periods=1)
    deviations = frame - rolling.median()
    if case.norm == "moving_median":
        return deviations
    return deviations / (rolling.quantile(0.75) - rolling.quantile(0.25))


def _fading(frame: Any, **weights: Any) -> Any:
    """Return braindecode's formula as it was written before `lfilter`."""
    deviations = frame - frame.ewm(**weights).mean()
    squares = (deviations * deviations).ewm(**weights).mean()
    return deviations / np.maximum(LEAST, np.sqrt(squares))


def _columns(frame: Any) -> Any:
    return (frame - frame.mean()) / frame.std(ddof=0)


def _of_groups(groups: Any) -> Any:
    return np.stack([groups.mean(), groups.std(ddof=0)])


def _by_group(groups: Any) -> Any:
    return (groups.obj - groups.transform("mean")) / groups.transform("std", ddof=0)
