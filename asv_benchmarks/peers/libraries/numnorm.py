"""numnorm."""

from __future__ import annotations

from functools import partial
from types import ModuleType
from typing import Any

import numba
import numpy as np

import numnorm
from numnorm import rnn

from ..arrays import Array, Arrays, Labelled, Sequences, Sparse, Timed, in_chunks
from ..cases import ALPHA, CELLS, CHUNKS, ERROR, GROUPS, HALFLIFE, LEAST, MOST, Case, Q
from . import Call

PACKAGES = ("numnorm", "numba", "llvmlite", "numpy")

start = numba.set_num_threads


def call_of(case: Case, arrays: Any) -> Call:
    """Return the call of one of numnorm's functions; a cell packs its weights in the call."""
    if case.family == "cells":
        return _cell(case, arrays)
    if case.family in ("moving", "order", "missing"):
        return Call(_statistics(case, arrays), lambda y: [y])
    if case.family == "times":
        return Call(_by_times(case, arrays), lambda y: [y])
    if case.family == "quantiles":
        return Call(_quantiles(case, arrays.x), lambda q: [q])
    if case.family == "sparse":
        return Call(partial(_sparse, case, arrays), lambda y: [y])
    if case.family == "labels":
        return Call(partial(_by_label, case, arrays), lambda y: [y])
    if case.family == "robust":
        return Call(_robust(case, arrays.x), lambda y: [y])
    if case.family == "estimators":
        from numnorm import sklearn

        return Call(partial(getattr(sklearn, case.norm)().fit_transform, arrays.x), lambda y: [y])
    if case.family == "inverse":
        given = {} if case.norm == "denormalize" else {"channel_axis": -1}
        return Call(partial(numnorm.denormalize, *arrays, **given), lambda x: [x])
    call = _backward(case, arrays) if case.direction == "backward" else forward_of(case, arrays)
    if case.out:
        # The array of a result, for the alignment that numnorm gives it.
        call = partial(call, out=call())
    return Call(call, lambda result: list(result) if isinstance(result, tuple) else [result])


def forward_of(
    case: Case, arrays: Arrays, functions: ModuleType = numnorm, suffix: str = ""
) -> Any:
    """Return the call of the norm among `functions`, which have numnorm's names."""
    x, _, gamma, beta, mean, variance = arrays
    if case.norm == "standardize":
        return partial(functions.layer_norm, x, eps=0.0)
    norm = case.norm.removesuffix("_inference")
    parameters = {"rms_norm": [gamma], "ada_norm": []}.get(norm, [gamma, beta])
    options = _options(case)
    if case.norm == "batch_norm_inference":
        options |= {"running_mean": mean, "running_var": variance}
    return partial(getattr(functions, norm + suffix), x, *parameters, **options)


def _backward(case: Case, arrays: Arrays) -> Any:
    norm = case.norm.removesuffix("_inference")
    saved = forward_of(case, arrays, suffix="_forward")()[1:]
    parameters = [] if norm == "ada_norm" else [arrays.gamma]
    function = getattr(numnorm, f"{norm}_backward")
    return partial(function, arrays.dy, arrays.x, *saved, *parameters, **_options(case))


def _cell(case: Case, arrays: Sequences) -> Call:
    name = case.norm.removeprefix("ln_")
    run, forward, backward = (getattr(rnn, name + part) for part in ("", "_forward", "_backward"))
    given = {"x": arrays.x, "parameters": arrays.parameters, "norm": CELLS[case.norm]}
    if case.direction == "forward":
        return Call(partial(run, **given), lambda states: [states.y])
    return Call(
        lambda: backward(arrays.dy, forward(**given).saved),
        lambda gs: [gs.dx, *(gradient for gradient in gs.parameters if gradient is not None)],
    )


def _statistics(case: Case, arrays: Any) -> Any:
    if case.family == "order":
        scale = "iqr" if case.norm == "moving_quartiles" else None
        options = {"axis": case.axis, "scale": scale}
        return partial(numnorm.moving_robust_norm, arrays.x, case.window, **options)
    if case.window:
        return partial(numnorm.moving_norm, arrays.x, case.window, axis=case.axis)
    if case.family == "moving":
        return partial(numnorm.exponential_norm, arrays.x, ALPHA, axis=case.axis)
    if case.norm == "rows_where":
        return partial(numnorm.layer_norm, arrays.x, eps=0.0, where=arrays.keep)
    norm = numnorm.layer_norm if case.norm == "rows_nan" else numnorm.batch_norm
    return partial(norm, arrays.x, eps=0.0, nan_policy="omit")


def _by_times(case: Case, arrays: Timed) -> Any:
    x, times = arrays
    if case.window:
        duration = np.timedelta64(case.window, "m")
        return partial(numnorm.moving_norm, x, duration, times=times, axis=0)
    options: dict[str, Any] = {"halflife": np.timedelta64(HALFLIFE, "m"), "times": times}
    return partial(numnorm.exponential_norm, x, axis=0, eps=LEAST, **options)


def _quantiles(case: Case, x: Array) -> Any:
    if case.norm == "quantiles_dask":
        lazy, workers = in_chunks(x), numba.get_num_threads()
        return lambda: numnorm.quantiles(lazy).quantile(Q).compute(num_workers=workers)
    streamed = case.norm in ("quantiles_chunks", "quantiles_error")
    chunks = np.array_split(x, CHUNKS if streamed else 1)
    error = ERROR if case.norm == "quantiles_error" else None

    def run() -> Array:
        total = None
        for chunk in chunks:
            total = numnorm.quantiles(chunk, after=total, error=error)
        assert total is not None
        if case.norm == "median_iqr":
            return np.stack([total.median(), total.iqr()])
        return np.asarray(total.quantile(Q))

    return run


def _sparse(case: Case, arrays: Sparse) -> Any:
    x, labels = arrays
    if case.norm.startswith("moments"):
        moments = numnorm.batch_moments(x)
        return np.stack([moments.mean, moments.var()])
    return numnorm.batch_norm(x, with_mean=False, eps=0, clip=MOST, labels=labels)


def _by_label(case: Case, arrays: Labelled) -> Array:
    if case.norm == "labels_norm":
        return numnorm.batch_norm(arrays.x, labels=arrays.labels, eps=0.0)
    moments = numnorm.batch_moments(arrays.x, labels=arrays.labels).moments
    return np.stack([moments.mean, moments.std()])


def _robust(case: Case, x: Any) -> Any:
    kind = case.norm.partition("_")[0]
    options: dict[str, Any] = {"axis": case.axis, "nan_policy": "omit"}
    if kind == "mad":
        options["factor"] = "normal"
    return partial(numnorm.robust_norm, x, scale=None if kind == "median" else kind, **options)


def _options(case: Case) -> dict[str, Any]:
    if case.norm == "group_norm":
        return {"groups": GROUPS}
    return {"training": False} if case.norm == "batch_norm_inference" else {}
