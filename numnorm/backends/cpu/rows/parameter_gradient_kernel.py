"""From the sums of every part of the rows to the gradients of the parameters."""

from typing import Any

import numpy as np
from numba.core import types
from numba.extending import overload

from numnorm.backends.cpu.compiler.jit import Kernel, inlined, make_kernel, mark_noinline
from numnorm.backends.cpu.memory.borrowed import borrowed, shaped


@inlined
def _add_parts(totals: Any, result: Any) -> None:
    """Add up parts ``(parts, size)`` in order, in place of the first, and round once."""
    for p in range(1, totals.shape[0]):
        for j in range(totals.shape[1]):
            totals[0, j] += totals[p, j]
    for j in range(totals.shape[1]):
        result[j] = totals[0, j]


def add_parts(totals, result):
    """Add up the parts of a parameter of any shape, if there is one and a place for its sum."""
    if totals is not None and result.size > 0:
        _add_parts(np.reshape(totals, (totals.shape[0], -1)), result)


@overload(add_parts)
def _of_parameter(totals, result):
    if not isinstance(totals, types.Array):
        return lambda totals, result: None

    def implementation(totals, result):
        if result.size > 0 and totals.size > 0:
            _add_parts(shaped(totals, (totals.shape[0], result.size)), result)

    return implementation


def make_row_totals() -> Kernel:
    """Return a kernel ``(dgamma, dbeta, of_gamma, of_beta)`` that adds up parts in order.

    dgamma and dbeta are ``(parts, size)`` or None, and their first parts become the sums; those
    are rounded once, for `of_gamma` and `of_beta` of shape ``(size,)``.
    """

    def kernel(dgamma, dbeta, of_gamma, of_beta, first, last):
        mark_noinline()
        add_parts(borrowed(dgamma), borrowed(of_gamma))
        add_parts(borrowed(dbeta), borrowed(of_beta))

    return make_kernel("row_totals", kernel)
