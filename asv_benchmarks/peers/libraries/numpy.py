"""NumPy: the definitions as they are, an in-place layer norm, cumulative sums, and `quantile`."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from .. import estimator_definition, robust_definition
from ..arrays import Array, Arrays, Incomplete, Labelled
from ..cases import EPS, Case, Q
from ..definition import backward, forward
from . import Call

PACKAGES = ("numpy",)


def start(threads: int) -> None:
    """Do nothing: arithmetic on arrays has one thread."""


def call_of(case: Case, arrays: Any) -> Call | None:
    """Return the definition in the dtype of the arrays, half precision in float32."""
    if case.family in ("cells", "order", "times", "sparse") or case.norm == "quantiles_dask":
        return None
    if case.family == "quantiles":
        return Call(partial(_quantiles, case, arrays.x), lambda q: [q])
    if case.family == "missing":
        return Call(partial(_missing, case, arrays), lambda y: [y])
    if case.family == "labels":
        return Call(partial(_by_label, case, arrays), lambda y: [y])
    if case.family == "inverse":
        y, mean, rstd = arrays.broadcast(case)
        return Call(lambda: y / rstd + mean, lambda x: [x])
    if case.family == "robust":
        return Call(partial(robust_definition.result, case, arrays.x), lambda y: [y])
    if case.family == "moving":
        return _windows(case, arrays.x) if case.window else None
    if case.family == "estimators":
        return Call(partial(estimator_definition.result, case, arrays.x), lambda y: [y])
    if case.out:
        if case.norm != "layer_norm" or case.dtype not in ("float32", "float64"):
            return None
        return Call(partial(_layer_norm_out, arrays, np.empty_like(arrays.x)), lambda y: [y])
    if case.direction == "forward":
        return Call(partial(_forward, case, arrays), lambda y: [y])
    return Call(partial(_backward, case, arrays), list)


def _forward(case: Case, arrays: Arrays) -> Array:
    return forward(case, _to_compute(arrays)).astype(arrays.x.dtype, copy=False)


def _backward(case: Case, arrays: Arrays) -> list[Array]:
    gradients = backward(case, _to_compute(arrays))
    return [gradient.astype(arrays.x.dtype, copy=False) for gradient in gradients]


def _to_compute(arrays: Arrays) -> Arrays:
    if arrays.x.dtype.itemsize > 2:
        return arrays
    return Arrays(*(array.astype(np.float32) for array in arrays))


def _layer_norm_out(arrays: Arrays, out: Array) -> Array:
    x = arrays.x
    np.subtract(x, x.mean(axis=1, keepdims=True), out=out)
    variance = np.einsum("ij,ij->i", out, out) / x.shape[1]
    out *= ((variance + EPS) ** -0.5)[:, np.newaxis]
    out *= arrays.gamma
    out += arrays.beta
    return out


def _missing(case: Case, arrays: Incomplete) -> Array:
    x, options = arrays.x, {"axis": case.axis, "keepdims": True}
    if case.norm == "rows_where":
        options["where"] = arrays.keep
        return (x - x.mean(**options)) / x.std(**options)
    return (x - np.nanmean(x, **options)) / np.nanstd(x, **options)


def _by_label(case: Case, arrays: Labelled) -> Array:
    x, labels = arrays
    kinds = np.unique(labels)
    if case.norm == "labels_statistics":
        parts = [x[labels == kind] for kind in kinds]
        return np.stack([[p.mean(axis=0) for p in parts], [p.std(axis=0) for p in parts]])
    y = np.empty_like(x)
    for kind in kinds:
        own = labels == kind
        part = x[own]
        y[own] = (part - part.mean(axis=0)) / part.std(axis=0)
    return y


def _quantiles(case: Case, x: Array) -> Array:
    low, median, high = found = np.quantile(x, Q, axis=0)
    return np.stack([median, high - low]) if case.norm == "median_iqr" else found


def _windows(case: Case, x: Array) -> Call:
    """Return the differences of cumulative sums in float64, of full windows."""
    length, axis = case.window, case.axis
    before = [(0, 0), (0, 0)]
    before[axis] = (1, 0)
    late, early, own = ([slice(None)] * 2 for _ in range(3))
    late[axis], early[axis] = slice(length, None), slice(None, -length)
    own[axis] = slice(length - 1, None)

    def mean(values: Array) -> Array:
        sums = np.pad(np.cumsum(values, axis=axis, dtype=np.float64), before)
        return (sums[tuple(late)] - sums[tuple(early)]) / length

    def run() -> Array:
        means = mean(x)
        return (x[tuple(own)] - means) / np.sqrt(mean(x * x) - means * means)

    def placed(y: Array) -> list[Array]:
        whole = np.full(x.shape, np.nan)
        whole[tuple(own)] = y
        return [whole]

    return Call(run, placed)
