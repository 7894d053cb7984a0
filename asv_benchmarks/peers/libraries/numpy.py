"""NumPy: the definitions as they are, and an in-place layer norm."""

from __future__ import annotations

from functools import partial

import numpy as np

from .. import estimator_definition
from ..arrays import Array, Arrays
from ..cases import EPS, Case
from ..definition import backward, forward
from . import Call

PACKAGES = ("numpy",)


def start(threads: int) -> None:
    """Do nothing: arithmetic on arrays has one thread."""


def call_of(case: Case, arrays: Arrays) -> Call | None:
    """Return the definition in the dtype of the arrays, half precision in float32."""
    if case.family == "cells":
        return None
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
