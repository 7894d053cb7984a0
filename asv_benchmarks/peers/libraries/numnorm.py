"""numnorm."""

from __future__ import annotations

from functools import partial
from types import ModuleType
from typing import Any

import numba

import numnorm
from numnorm import rnn

from ..arrays import Arrays, Sequences
from ..cases import ALPHA, CELLS, GROUPS, Case
from . import Call

PACKAGES = ("numnorm", "numba", "llvmlite", "numpy")

start = numba.set_num_threads


def call_of(case: Case, arrays: Any) -> Call:
    """Return the call of one of numnorm's functions; a cell packs its weights in the call."""
    if case.family == "cells":
        return _cell(case, arrays)
    if case.family in ("moving", "missing"):
        return Call(_statistics(case, arrays), lambda y: [y])
    if case.family == "robust":
        return Call(_robust(case, arrays.x), lambda y: [y])
    if case.family == "estimators":
        from numnorm import sklearn

        return Call(partial(getattr(sklearn, case.norm)().fit_transform, arrays.x), lambda y: [y])
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
    if case.window:
        return partial(numnorm.moving_norm, arrays.x, case.window, axis=case.axis)
    if case.family == "moving":
        return partial(numnorm.exponential_norm, arrays.x, ALPHA, axis=case.axis)
    if case.norm == "rows_where":
        return partial(numnorm.layer_norm, arrays.x, eps=0.0, where=arrays.keep)
    norm = numnorm.layer_norm if case.norm == "rows_nan" else numnorm.batch_norm
    return partial(norm, arrays.x, eps=0.0, nan_policy="omit")


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
