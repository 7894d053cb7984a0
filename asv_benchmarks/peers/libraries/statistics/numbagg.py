"""numbagg: `move_mean`, `move_std` and `move_exp_nanmean`, `nanmean` and `nanstd`."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numbagg
import numpy as np

from ...arrays import Array
from ...cases import ALPHA, LEAST, Case
from .. import Call

PACKAGES = ("numbagg", "numba", "llvmlite", "numpy")


def start(threads: int) -> None:
    """Do nothing: Numba takes the number of threads from the environment."""


def call_of(case: Case, arrays: Any) -> Call | None:
    """Return the mean, the deviation, and what normalizes with them."""
    if case.family == "moving":
        return Call(partial(_windows if case.window else _fading, case, arrays.x), lambda y: [y])
    if case.norm in ("rows_nan", "columns_nan"):
        return Call(partial(_missing, case, arrays.x), lambda y: [y])
    return None


def _windows(case: Case, x: Array) -> Array:
    options = {"window": case.window, "min_count": 1, "axis": case.axis}
    # Its divisor is one less than the number of steps.
    biased = math.sqrt(1 - 1 / case.window)
    return (x - numbagg.move_mean(x, **options)) / (biased * numbagg.move_std(x, **options))


def _fading(case: Case, x: Array) -> Array:
    options = {"alpha": ALPHA, "axis": case.axis}
    deviations = x - numbagg.move_exp_nanmean(x, **options)
    squares = numbagg.move_exp_nanmean(deviations * deviations, **options)
    return deviations / np.maximum(LEAST, np.sqrt(squares))


def _missing(case: Case, x: Array) -> Array:
    mean = np.expand_dims(numbagg.nanmean(x, axis=case.axis), case.axis)
    deviation = np.expand_dims(numbagg.nanstd(x, axis=case.axis, ddof=0), case.axis)
    return (x - mean) / deviation
