"""pandas: `rolling`, `ewm` and `groupby` of data frames, and statistics that leave NaN out."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from ...cases import ALPHA, LEAST, Case
from .. import Call

PACKAGES = ("pandas", "numpy")


def start(threads: int) -> None:
    """Do nothing: pandas has one thread."""


def call_of(case: Case, arrays: Any) -> Call | None:
    """Return a call on a data frame, whose rows are the steps or samples."""
    if case.family == "moving":
        frame = pd.DataFrame(arrays.x if case.axis == 0 else arrays.x.T)
        function = partial(_windows, frame, case.window) if case.window else partial(_fading, frame)
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


def _windows(frame: Any, window: int) -> Any:
    rolling = frame.rolling(window, min_periods=1)
    return (frame - rolling.mean()) / rolling.std(ddof=0)


def _order(frame: Any, case: Case) -> Any:
    rolling = frame.rolling(case.window, min_periods=1)
    deviations = frame - rolling.median()
    if case.norm == "moving_median":
        return deviations
    return deviations / (rolling.quantile(0.75) - rolling.quantile(0.25))


def _fading(frame: Any) -> Any:
    """Return braindecode's formula as it was written before `lfilter`."""
    deviations = frame - frame.ewm(alpha=ALPHA).mean()
    squares = (deviations * deviations).ewm(alpha=ALPHA).mean()
    return deviations / np.maximum(LEAST, np.sqrt(squares))


def _columns(frame: Any) -> Any:
    return (frame - frame.mean()) / frame.std(ddof=0)


def _of_groups(groups: Any) -> Any:
    return np.stack([groups.mean(), groups.std(ddof=0)])


def _by_group(groups: Any) -> Any:
    return (groups.obj - groups.transform("mean")) / groups.transform("std", ddof=0)
