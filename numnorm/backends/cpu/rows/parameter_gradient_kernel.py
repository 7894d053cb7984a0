"""The gradients of gamma and beta from the sums of all parts of the rows."""

from typing import Any

import numpy as np
from numba.core import types

from numnorm.backends.cpu.compiler.jit import Function, make_function, overloaded, shared
from numnorm.backends.cpu.memory.borrowed import shaped


@shared
def _add_parts(totals: Any, result: Any) -> None:
    """Add up parts ``(parts, size)`` in order, into the first one, and round the sum once."""
    for p in range(1, totals.shape[0]):
        for j in range(totals.shape[1]):
            totals[0, j] += totals[p, j]
    for j in range(totals.shape[1]):
        result[j] = totals[0, j]


def add_parts(totals, result):
    """Add up the parts of a parameter of any shape, unless it is None or the result is empty."""
    if totals is not None and result.size > 0:
        _add_parts(np.reshape(totals, (totals.shape[0], -1)), result)


@overloaded(add_parts)
def _add_parts_of_parameter(totals, result):
    if not isinstance(totals, types.Array):
        return lambda totals, result: None

    def implementation(totals, result):
        if result.size > 0 and totals.size > 0:
            _add_parts(shaped(totals, (totals.shape[0], result.size)), result)

    return implementation


def make_row_totals() -> Function:
    """Return the kernel ``(dgamma_parts, dbeta_parts, dgamma, dbeta)``.

    It adds up parts ``(parts, size)`` in order, into the first part, and rounds the sums once to
    dgamma and dbeta ``(size,)``. Parts of None are skipped.
    """

    def kernel(dgamma_parts, dbeta_parts, dgamma, dbeta):
        add_parts(dgamma_parts, dgamma)
        add_parts(dbeta_parts, dbeta)

    return make_function("row_totals", kernel)
