"""From the sums of every part of the rows to the gradients of the parameters."""

from typing import Any

import numpy as np
from numba.core import types
from numba.extending import overload

from numnorm.backends.cpu.borrowed import borrowed
from numnorm.backends.cpu.jit import Twins, inlined, stand_alone, twins


@inlined
def _add_parts(totals: Any, result: Any) -> None:
    """Add up parts ``(parts, size)`` in order, in place of the first, and round once."""
    for p in range(1, totals.shape[0]):
        for j in range(totals.shape[1]):
            totals[0, j] += totals[p, j]
    for j in range(totals.shape[1]):
        result[j] = totals[0, j]


def add_parts(totals, results, k):
    """Add up the parts of the k-th parameter, of any shape, unless there is none (None)."""
    if totals is not None:
        _add_parts(np.reshape(totals, (totals.shape[0], -1)), results[k])


@overload(add_parts)
def _of_parameter(totals, results, k):
    if not isinstance(totals, types.Array):
        return lambda totals, results, k: None

    def implementation(totals, results, k):
        _add_parts(totals.reshape((totals.shape[0], results.shape[1])), results[k])

    return implementation


def make_row_totals() -> Twins:
    """Return a kernel ``(totals, result)`` that adds up parts in order, and rounds once.

    `totals` is ``(parameters, parts, size)``, and its first parts become the sums; `result` is
    ``(parameters, size)``.
    """

    def kernel(totals, result, first, last):
        stand_alone()
        totals, result = borrowed(totals), borrowed(result)
        for k in range(first, last):
            _add_parts(totals[k], result[k])

    return twins("row_totals", kernel)
