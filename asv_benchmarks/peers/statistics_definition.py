"""Statistics by their definitions in extended precision: moving, of incomplete data, of labels.

Only some steps, rows or columns are compared: extended precision takes long, in every process.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .arrays import Array
from .cases import ALPHA, BY_LABEL, LEAST, MISSING, ORDER, Case

FAMILIES = ("moving", "order", "missing", "labels")
"""The families of cases that are defined here."""

# The windows that are compared, from the first full one to the last step.
WINDOWS = 8
# The last steps that are compared where statistics fade, and the steps of which nothing is left
# there: exp(-ALPHA * FADED) is 1e-26.
LAST = 1000
FADED = 60_000
# The rows or columns that are compared where values are missing, and the columns with labels.
LINES = 64


def result(case: Case, arrays: Any) -> Array:
    """Return what `checked` leaves of a result."""
    if case.norm in MISSING:
        return _incomplete(case, _lines(case, arrays.x), _lines(case, arrays.keep))
    if case.norm in BY_LABEL:
        return _by_label(case, arrays.x[:, :LINES], arrays.labels)
    x = arrays.x if case.axis == 0 else arrays.x.T
    if case.norm in ORDER:
        return medians(x, case, _steps(case, len(x)))
    if case.window:
        return windows(x, case.window, _steps(case, len(x)))
    return fading(x[-FADED - LAST :])[-LAST:]


def checked(case: Case, arrays: Any, y: Array) -> Array:
    """Return the part of a result, time first, that the definition has."""
    if case.norm in MISSING:
        return _lines(case, np.where(arrays.keep, y, 0))
    if case.norm in BY_LABEL:
        return y[..., :LINES]
    y = y.reshape(case.shape)
    y = y if case.axis == 0 else y.T
    return y[_steps(case, len(y)) if case.window else slice(-LAST, None)]


def allowed_error(case: Case) -> float:
    """Return the allowed error of a moving norm, relative to the largest value, in any dtype.

    Sums that run over millions of float32 steps drift, and are no reason not to time them. A window
    with a step more, or with another divisor of the variance, is off by more than this.
    """
    return 0.2 / case.window if case.window else 1e-4


def _steps(case: Case, steps: int) -> Array:
    return np.linspace(case.window - 1, steps - 1, WINDOWS).astype(np.int64)


def windows(x: Array, window: int, steps: Array) -> Array:
    """Return the steps of which each has a full window."""
    rows = []
    for t in steps:
        values = x[t + 1 - window : t + 1].astype(np.longdouble)
        # So that an offset takes no digits of the mean.
        values = values - values[0]
        rows.append((values[-1] - values.mean(axis=0)) / values.std(axis=0))
    return np.array(rows)


def medians(x: Array, case: Case, steps: Array) -> Array:
    """Return the steps of which each has a full window, by order statistics."""
    rows = []
    for t in steps:
        values = x[t + 1 - case.window : t + 1].astype(np.float64)
        low, median, high = np.quantile(values, (0.25, 0.5, 0.75), axis=0)
        rows.append((values[-1] - median) / (1.0 if case.norm == "moving_median" else high - low))
    return np.array(rows)


def fading(x: Array) -> Array:
    """Return all steps of braindecode's formula, with the weights of pandas' `ewm`."""
    alpha, rows = np.longdouble(ALPHA), []
    weight = mean = variance = np.longdouble(0)
    for values in x.astype(np.longdouble) - x[0]:
        weight = 1 + (1 - alpha) * weight
        mean = mean + (values - mean) / weight
        variance = variance + ((values - mean) ** 2 - variance) / weight
        rows.append((values - mean) / np.maximum(LEAST, np.sqrt(variance)))
    return np.array(rows)


def _lines(case: Case, x: Array) -> Array:
    return x[:LINES] if case.axis else x[:, :LINES]


def _incomplete(case: Case, x: Array, keep: Array) -> Array:
    options: Any = {"axis": case.axis, "keepdims": True, "where": keep}
    values = x.astype(np.longdouble)
    y = (values - values.mean(**options)) / values.std(**options)
    return np.where(keep, y, 0)


def _by_label(case: Case, x: Array, labels: Array) -> Array:
    kinds = np.unique(labels)
    parts = [x[labels == kind].astype(np.longdouble) for kind in kinds]
    mean = np.stack([part.mean(axis=0) for part in parts])
    deviation = np.stack([part.std(axis=0) for part in parts])
    if case.norm == "labels_statistics":
        return np.stack([mean, deviation])
    rows = np.searchsorted(kinds, labels)
    return (x - mean[rows]) / deviation[rows]
