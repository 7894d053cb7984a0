"""Compares results with the definition, computed in float64 on the same numbers."""

from __future__ import annotations

import math
from typing import Any

from peers import arrays as peers_arrays
from peers import cases as peers_cases
from peers import cell_definition, definition

from .arrays import Arrays, Sequences
from .cases import Case
from .sequences import SequenceCase


def expected(device: Any, case: Case | SequenceCase, arrays: Arrays | Sequences) -> list[Any]:
    """Return the output, or dx and the gradients of the parameters, in float64."""
    if isinstance(case, SequenceCase):
        # On the host, to save the memory of the device.
        whole = case.as_peers_case
        results = cell_definition.results(whole, peers_arrays.arrays_of(whole))
        return [device.wide(device.taken(array)) for array in results]
    inputs = (device.wide(array) for array in (arrays.x, arrays.dy, arrays.gamma, arrays.beta))
    exact = peers_arrays.Arrays(*inputs, None, None)
    of_norm = as_peers_case(case)
    if case.direction == "forward":
        return [definition.forward(of_norm, exact)]
    return definition.backward(of_norm, exact)


def as_peers_case(case: Case) -> peers_cases.Case:
    """Return the case as one of the definitions."""
    return peers_cases.Case(case.norm, case.direction, (case.rows, case.width), case.dtype)


def disagreement(device: Any, dtype: str, result: Any, wanted: list[Any]) -> str | None:
    """Return the error of one array or of several in words; None if it is small enough."""
    results = list(result) if isinstance(result, (tuple, list)) else [result]
    if len(results) != len(wanted):
        return f"{len(results)} arrays, not {len(wanted)}"
    size = math.prod(wanted[0].shape)
    for number, (given, right) in enumerate(zip(results, wanted, strict=True)):
        actual = device.wide(given)
        if math.prod(actual.shape) != math.prod(right.shape):
            return f"result {number} has another shape"
        error = float(abs(actual.reshape(right.shape) - right).max() / abs(right).max())
        allowed = definition.allowed_error(dtype, size // math.prod(right.shape))
        if not error <= allowed:  # also true for a NaN
            return (
                f"result {number} is off by {error:.1g} of the largest value, "
                f"{allowed:.1g} is allowed"
            )
    return None
