"""bottleneck: `move_mean`, `move_std`, `move_median`, `nanmean`, `nanstd` and `nanmedian`."""

from __future__ import annotations

from functools import partial
from typing import Any

import bottleneck as bn
import numpy as np

from ...arrays import Array
from ...cases import Case
from ...robust_definition import NORMAL
from .. import Call

PACKAGES = ("bottleneck", "numpy")


def start(threads: int) -> None:
    """Do nothing: bottleneck has one thread."""


def call_of(case: Case, arrays: Any) -> Call | None:
    """Return the mean, the deviation, and what normalizes with them."""
    if case.family == "order":
        function = partial(_medians, case, arrays.x)
        return Call(function, lambda y: [y]) if case.norm == "moving_median" else None
    if case.family == "moving" and case.window:
        return Call(partial(_windows, case, arrays.x), lambda y: [y])
    if case.norm in ("rows_nan", "columns_nan"):
        return Call(partial(_missing, case, arrays.x), lambda y: [y])
    if case.family == "robust" and not case.norm.startswith("iqr"):
        return Call(partial(_robust, case, arrays.x), lambda y: [y])
    return None


def _medians(case: Case, x: Array) -> Array:
    return x - bn.move_median(x, window=case.window, min_count=1, axis=case.axis)


def _robust(case: Case, x: Array) -> Array:
    deviations = x - np.expand_dims(bn.nanmedian(x, axis=case.axis), case.axis)
    if case.norm.startswith("median"):
        return deviations
    mad = bn.nanmedian(abs(deviations), axis=case.axis)
    return deviations / np.expand_dims(x.dtype.type(NORMAL) * mad, case.axis)


def _windows(case: Case, x: Array) -> Array:
    options = {"window": case.window, "min_count": 1, "axis": case.axis}
    return (x - bn.move_mean(x, **options)) / bn.move_std(x, **options)


def _missing(case: Case, x: Array) -> Array:
    mean, deviation = (f(x, axis=case.axis) for f in (bn.nanmean, bn.nanstd))
    return (x - np.expand_dims(mean, case.axis)) / np.expand_dims(deviation, case.axis)
