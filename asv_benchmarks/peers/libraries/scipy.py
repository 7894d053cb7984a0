"""SciPy's `zscore` and `median_abs_deviation`, and moving means by its `uniform_filter1d`."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from scipy.ndimage import median_filter, uniform_filter1d
from scipy.stats import median_abs_deviation, zscore

from ..arrays import Array
from ..cases import Case
from . import Call

PACKAGES = ("scipy", "numpy")

# The time of a step of `median_filter` grows with its window: see the log of order statistics.
MOST_WINDOW = 101


def start(threads: int) -> None:
    """Do nothing: both have one thread."""


def call_of(case: Case, arrays: Any) -> Call | None:
    """Return `zscore` of the rows, or of those that are not NaN, or windows of steps."""
    if case.family == "order" and case.window > MOST_WINDOW:
        return None
    if case.family == "order":
        function = partial(_medians, case, arrays.x)
        return Call(function, lambda y: [y]) if case.norm == "moving_median" else None
    if case.family == "moving" and case.window:
        return Call(partial(_windows, case, arrays.x), lambda y: [y])
    if case.norm.startswith("mad"):
        return Call(partial(_robust, case, arrays.x), lambda y: [y])
    if case.norm in ("rows_nan", "columns_nan"):
        call = partial(zscore, arrays.x, axis=case.axis, nan_policy="omit")
    elif case.norm == "standardize":
        call = partial(zscore, arrays.x, axis=1)
    else:
        return None
    return Call(call, lambda y: [y])


def _medians(case: Case, x: Array) -> Array:
    size, origin = (1, case.window), (0, (case.window - 1) // 2)
    return x - median_filter(x, size=size, origin=origin, mode="nearest")


def _robust(case: Case, x: Array) -> Array:
    mad = median_abs_deviation(x, axis=case.axis, scale="normal", nan_policy="omit")
    center = np.nanmedian(x, axis=case.axis, keepdims=True)
    return (x - center) / np.expand_dims(mad, case.axis)


def _windows(case: Case, x: Array) -> Array:
    # The origin makes a centred window one that ends with its own step.
    mean = partial(
        uniform_filter1d,
        size=case.window,
        axis=case.axis,
        origin=(case.window - 1) // 2,
        mode="nearest",
    )
    means = mean(x)
    return (x - means) / np.sqrt(mean(x * x) - means * means)
