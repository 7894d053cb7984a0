"""Every norm by its definition, for arrays of any library with NumPy's methods and operators.

In float64 it is the reference for every result; in the dtype of the data it is the plain
implementation in NumPy or JAX.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from . import cell_definition, estimator_definition, robust_definition, statistics_definition
from .arrays import Array, Arrays, arrays_of
from .cases import EPS, GROUPS, Case

K = 0.1  # AdaNorm's

# The allowed error, relative to the largest value of a result. Statistics of a hundred thousand
# float32 numbers differ by hundreds of roundings between orders of summation, whereas a wrong
# formula, such as a variance with the divisor 1023 instead of 1024, is off by 8000. In half
# precision a library may round the statistics and their products with x, gamma and beta: eight
# roundings in total.
_ROUNDINGS = {"float16": 8, "bfloat16": 8, "float32": 1024, "float64": 1024}
# A sum of n numbers one by one has n roundings with random signs, about √n in total. PyTorch sums
# the gradient of a float16 gamma in this way, in float16.
_UNITS = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}


class Layout(NamedTuple):
    """A view of an array in which statistics and parameters are shared along whole axes."""

    shape: tuple[int, ...]
    over: tuple[int, ...]  # the axes that share statistics
    parameters: tuple[int, ...]  # the shape in which gamma and beta broadcast
    beside: tuple[int, ...]  # the axes that share gamma and beta


def layout_of(case: Case) -> Layout:
    """Return the layout of a case."""
    count, width = case.shape[:2]
    if case.norm.startswith("batch_norm"):
        return Layout((count, width, -1), (0, 2), (width, 1), (0, 2))
    if case.norm in ("group_norm", "instance_norm"):
        groups = GROUPS if case.norm == "group_norm" else width
        parameters = (groups, width // groups, 1)
        return Layout((count, *parameters[:2], -1), (2, 3), parameters, (0, 3))
    return Layout((count, width), (1,), (width,), (0,))


def _same(value: Any) -> Any:
    return value


def forward(case: Case, arrays: Arrays, constant: Callable[[Any], Any] = _same) -> Any:
    """Return the output; `constant` stops the gradient of AdaNorm's factor."""
    layout = layout_of(case)
    arrays = _arranged(arrays, layout)
    xhat, _ = _normalized(case, arrays, layout)
    if case.norm == "ada_norm":
        y = constant(1 - K * xhat) * xhat
    elif case.norm == "standardize":
        y = xhat
    elif case.norm == "rms_norm":
        y = xhat * arrays.gamma
    else:
        y = xhat * arrays.gamma + arrays.beta
    return y.reshape(case.shape)


def backward(case: Case, arrays: Arrays) -> list[Any]:
    """Return the gradients with respect to the input and to the parameters, if any."""
    layout = layout_of(case)
    arrays = _arranged(arrays, layout)
    xhat, rstd = _normalized(case, arrays, layout)
    g = arrays.dy * (1 - K * xhat if case.norm == "ada_norm" else arrays.gamma)
    dx = g
    if case.norm not in ("rms_norm", "batch_norm_inference"):
        dx = dx - g.mean(axis=layout.over, keepdims=True)
    if case.norm != "batch_norm_inference":
        dx = dx - xhat * (g * xhat).mean(axis=layout.over, keepdims=True)
    gradients = [(dx * rstd).reshape(case.shape)]
    if case.norm != "ada_norm":
        gradients.append((arrays.dy * xhat).sum(axis=layout.beside).reshape(-1))
    if case.norm not in ("ada_norm", "rms_norm"):
        gradients.append(arrays.dy.sum(axis=layout.beside).reshape(-1))
    return gradients


def _arranged(arrays: Arrays, layout: Layout) -> Arrays:
    shapes = [layout.shape] * 2 + [layout.parameters] * 4
    pairs = zip(arrays, shapes, strict=True)
    # A caller that needs only the output may pass no gradient.
    return Arrays(*(None if array is None else array.reshape(shape) for array, shape in pairs))


def _normalized(case: Case, arrays: Arrays, layout: Layout) -> tuple[Any, Any]:
    if case.norm == "batch_norm_inference":
        rstd = (arrays.variance + EPS) ** -0.5
        return (arrays.x - arrays.mean) * rstd, rstd
    centred = arrays.x
    if case.norm != "rms_norm":
        centred = centred - centred.mean(axis=layout.over, keepdims=True)
    squares = (centred * centred).mean(axis=layout.over, keepdims=True)
    rstd = (squares + (0.0 if case.norm == "standardize" else EPS)) ** -0.5
    return centred * rstd, rstd


@lru_cache(maxsize=1)
def _expected(case: Case) -> list[Array]:
    if case.family == "cells":
        return cell_definition.results(case, arrays_of(case))
    if case.family == "estimators":
        return [estimator_definition.result(case, arrays_of(case).x.astype(np.float64))]
    if case.family == "robust":
        return [robust_definition.result(case, arrays_of(case).x.astype(np.float64))]
    if case.family == "inverse":
        y, mean, rstd = (a.astype(np.float64) for a in arrays_of(case).broadcast(case))
        return [y / rstd + mean]
    if case.family in statistics_definition.FAMILIES:
        return [statistics_definition.result(case, arrays_of(case))]
    arrays = Arrays(*(array.astype(np.float64) for array in arrays_of(case)))
    return [forward(case, arrays)] if case.direction == "forward" else backward(case, arrays)


def errors_of(case: Case, results: list[Array]) -> Iterator[tuple[float, float]]:
    """Yield for each result its largest error and the allowed error, relative to its values."""
    expected = _expected(replace(case, out=False))
    if case.family in statistics_definition.FAMILIES:
        results = [statistics_definition.checked(case, arrays_of(case), y) for y in results]
    for result, wanted in zip(results, expected, strict=True):
        error = np.abs(result.reshape(wanted.shape) - wanted).max() / np.abs(wanted).max()
        if case.family in ("moving", "order", "times") or case.norm == "quantiles_error":
            yield float(error), statistics_definition.allowed_error(case)
        else:
            yield float(error), allowed_error(case.dtype, expected[0].size // wanted.size)


def allowed_error(dtype: str, summands: int) -> float:
    """Return the allowed error of a sum of `summands` elements, relative to the largest value."""
    return max(_ROUNDINGS[dtype], math.sqrt(summands)) * _UNITS[dtype]
