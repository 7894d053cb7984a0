"""Statistics by their definitions: moving, of incomplete data, of labels, of whole columns.

Sparse matrices are compared in float64, quantiles by sorting, and the others in extended precision.
It takes long, in every process, so that only some steps, rows or columns are compared.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .arrays import Array
from .cases import ALPHA, BY_LABEL, ERROR, HALFLIFE, LEAST, MISSING, MOST, ORDER, Case, Q

FAMILIES = ("moving", "order", "missing", "labels", "times", "quantiles", "sparse")
"""The families of cases that are defined here."""

# The windows that are compared, from the first full one to the last step.
WINDOWS = 8
# The last steps that are compared where statistics fade, and the steps of which nothing is left
# there: exp(-ALPHA * FADED) is 1e-26.
LAST = 1000
FADED = 60_000
# The rows or columns that are compared where values are missing, and the columns otherwise.
LINES = 64
# The columns of a sparse matrix that are compared.
DENSE = 8


def result(case: Case, arrays: Any) -> Array:
    """Return what `checked` leaves of a result."""
    if case.norm in MISSING:
        return _incomplete(case, _lines(case, arrays.x), _lines(case, arrays.keep))
    if case.norm in BY_LABEL:
        return _by_label(case, arrays.x[:, :LINES], arrays.labels)
    if case.family == "quantiles":
        return _quantiles(case, arrays.x[:, :LINES])
    if case.family == "sparse":
        return _sparse(case, arrays.x[:, :DENSE].toarray(), arrays.labels)
    x = arrays.x if case.axis == 0 else arrays.x.T
    if case.norm in ORDER:
        return medians(x, case, _steps(case, len(x)))
    if case.window:
        steps = _steps(case, len(x))
        return windows(x, starts(case, arrays, steps), steps)
    return fading(x[-FADED - LAST :], shares(case, arrays)[-FADED - LAST :])[-LAST:]


def checked(case: Case, arrays: Any, y: Any) -> Any:
    """Return the part of a result, time first, that the definition has."""
    if case.norm in MISSING:
        return _lines(case, np.where(arrays.keep, y, 0))
    if case.norm in BY_LABEL:
        return y[..., :LINES]
    if case.family == "quantiles":
        y = y[:, :LINES]
        return _ranks(arrays.x[:, :LINES], y) if case.norm == "quantiles_error" else y
    if case.family == "sparse":
        y = y[:, :DENSE]
        return y if case.norm.startswith("moments") else y.toarray()
    y = y.reshape(case.shape)
    y = y if case.axis == 0 else y.T
    return y[_steps(case, len(y)) if case.window else slice(-LAST, None)]


def allowed_error(case: Case) -> float:
    """Return the allowed error of moving norms and ranks, relative to the largest value.

    Sums that run over millions of float32 steps drift, and are no reason not to time them. A window
    with a step more, or with another divisor of the variance, is off by more than this. An error of
    rank holds in 99 of 100 sketches.
    """
    if case.norm == "quantiles_error":
        return 2 * ERROR / max(Q)
    return 0.2 / case.window if case.window else 1e-4


def _steps(case: Case, steps: int) -> Array:
    return np.linspace(case.window - 1, steps - 1, WINDOWS).astype(np.int64)


def starts(case: Case, arrays: Any, steps: Array) -> Array:
    """Return where the windows of some steps begin."""
    if case.family == "times":
        begin = arrays.times[steps] - np.timedelta64(case.window, "m")
        return np.searchsorted(arrays.times, begin, "right")
    return steps + 1 - case.window


def windows(x: Array, begin: Array, steps: Array) -> Array:
    """Return the steps whose windows begin there."""
    rows = []
    for start, t in zip(begin, steps, strict=True):
        values = x[start : t + 1].astype(np.longdouble)
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


def shares(case: Case, arrays: Any) -> Array:
    """Return what is left of the weights at each step."""
    if case.family == "times":
        passed = np.diff(arrays.times, prepend=arrays.times[:1]) / np.timedelta64(HALFLIFE, "m")
        return np.exp2(-passed.astype(np.longdouble))
    return np.full(case.shape[case.axis], 1 - np.longdouble(ALPHA))


def fading(x: Array, left: Array) -> Array:
    """Return all steps of braindecode's formula, with the weights of pandas' `ewm`."""
    rows = []
    weight = mean = variance = np.longdouble(0)
    for values, share in zip(x.astype(np.longdouble) - x[0], left, strict=True):
        weight = 1 + share * weight
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


def _quantiles(case: Case, x: Array) -> Array:
    if case.norm == "quantiles_error":
        return np.broadcast_to(np.array(Q)[:, np.newaxis], (len(Q), x.shape[1]))
    x = np.sort(x, axis=0).astype(np.float64)
    place = np.array(Q)[:, np.newaxis] * (len(x) - 1)
    below = place[:, 0].astype(np.int64)
    low, median, high = x[below] + (place % 1) * (x[below + 1] - x[below])
    return np.stack([median, high - low] if case.norm == "median_iqr" else [low, median, high])


def _ranks(x: Array, y: Array) -> Array:
    return np.stack([(x <= quantiles).mean(axis=0) for quantiles in y])


def _sparse(case: Case, x: Array, batches: Array | None) -> Array:
    x = x.astype(np.float64)
    if case.norm.startswith("moments"):
        return np.stack([x.mean(axis=0), x.var(axis=0)])
    batches = np.zeros(len(x)) if batches is None else batches
    for batch in np.unique(batches):
        own = batches == batch
        deviation = x[own].std(axis=0)
        x[own] /= np.where(deviation == 0, 1, deviation)
    return np.minimum(x, MOST)
