"""Gradients of rows of one, two or four registers: read once, summed there, and written.

Longer rows are read twice, and narrow rows of other widths are taken in tiles. Beyond the caches
memory waits while a tile is worked on; here the next row is read meanwhile, as all that a row
needs is in registers and few instructions long.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.backends.contract.norms import Formula
from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.memory.nontemporal import fence_after_stores, use_nontemporal_gradient
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.optional import part
from numnorm.backends.cpu.simd.optional_vector import add, make_load_or_scalar
from numnorm.backends.cpu.simd.vector import (
    make_load,
    make_zeros,
    reduce_sum,
    store,
    store_nontemporal,
)
from numnorm.backends.cpu.statistics.accumulators import ROWS_BETWEEN_FLUSHES, flush
from numnorm.backends.cpu.statistics.normalize import make_normalized
from numnorm.backends.cpu.statistics.saved import make_means, make_saved_statistics
from numnorm.backends.formulas.norms import input_gradient

_input_gradient = inlined(input_gradient)


@inlined
def _none_is_short(*arguments):
    return False


def _has_short_rows(element_type: ElementType) -> bool:
    """Return whether rows of such elements are better here than in tiles.

    Halves are not: what converts them takes longer than memory does.
    """
    return element_type.storage_dtype.itemsize > 2


def _make_backward_row(
    formula: Formula, element_type: ElementType, count: int, put: Callable[..., Any]
) -> Callable[..., Any]:
    backward, normalized = inlined(formula.backward), make_normalized(formula.centred)
    to_compute, to_storage = element_type.to_compute, element_type.to_storage
    statistics_of, means_of = make_saved_statistics(element_type), make_means(element_type)
    load = make_load(count)

    @inlined
    def backward_row(dy, x, dx, saved, weights, coefficients):
        """Store dx, and return what the row adds to the gradients of gamma and beta."""
        mean, rstd = saved
        scale, mean_hi, mean_lo, factor = statistics_of(mean, rstd)
        grad = to_compute(load(dy, 0))
        xhat = normalized(to_compute(load(x, 0)), scale, mean_hi, mean_lo, factor)
        g = backward(grad, xhat, weights[0], weights[1])
        sums = np.float64(reduce_sum(g)), np.float64(reduce_sum(g * xhat))
        mean_g, mean_g_xhat = means_of(sums[0], sums[1], rstd, coefficients)
        put(dx, 0, to_storage(_input_gradient(g, xhat, mean_g, mean_g_xhat, factor) * scale))
        return grad * xhat, grad

    return backward_row


def _make_backward(formula: Formula, element_type: ElementType, count: int) -> Callable[..., Any]:
    store_rows = _make_backward_rows(formula, element_type, count, store)
    store_nontemporal_rows = _make_backward_rows(formula, element_type, count, store_nontemporal)

    @inlined
    def rows(arrays, saved, weights, coefficients, inner, totals, start, stop):
        nontemporal = use_nontemporal_gradient(arrays[2], count)
        if nontemporal:
            store_nontemporal_rows(arrays, saved, weights, coefficients, inner, totals, start, stop)
        else:
            store_rows(arrays, saved, weights, coefficients, inner, totals, start, stop)
        fence_after_stores(nontemporal)

    return rows


def _make_backward_rows(
    formula: Formula, element_type: ElementType, count: int, put: Callable[..., Any]
) -> Callable[..., Any]:
    backward_row, real = (
        _make_backward_row(formula, element_type, count, put),
        element_type.compute_type,
    )
    load_or_scalar, zeros = make_load_or_scalar(count), make_zeros(real, count)

    @inlined
    def rows(arrays, saved, weights, coefficients, inner, totals, start, stop):
        (dy, x, dx), (mean, rstd) = arrays, saved
        gamma = load_or_scalar(part(weights[0], 0), 0, real(1))
        beta = load_or_scalar(part(weights[1], 0), 0, real(0))
        for begin in range(start, stop, ROWS_BETWEEN_FLUSHES):
            dgamma, dbeta = zeros(), zeros()
            for i in range(begin, min(begin + ROWS_BETWEEN_FLUSHES, stop)):
                of_row = part(mean, i), rstd[i]
                dy_xhat, grad = backward_row(
                    dy[i], x[i], dx[i], of_row, (gamma, beta), coefficients
                )
                dgamma, dbeta = dgamma + dy_xhat, dbeta + grad
            add(part(inner[0], 0), 0, dgamma)
            add(part(inner[1], 0), 0, dbeta)
            flush(inner[0], totals[0])
            flush(inner[1], totals[1])

    return rows


def make_short_backward(formula: Formula, element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled function that stores some rows' gradients, True if they are short."""
    if not _has_short_rows(element_type):
        return _none_is_short
    lanes = element_type.lanes
    one, two = (
        _make_backward(formula, element_type, lanes),
        _make_backward(formula, element_type, 2 * lanes),
    )
    four = _make_backward(formula, element_type, 4 * lanes)

    @inlined
    def short_rows(arrays, saved, segments, weights, coefficients, inner, totals, start, stop):
        width = arrays[1].shape[1]
        if segments[1] != 1 or segments[2] > 1:
            return False
        if width == lanes:
            one(arrays, saved, weights, coefficients, inner, totals, start, stop)
        elif width == 2 * lanes:
            two(arrays, saved, weights, coefficients, inner, totals, start, stop)
        elif width == 4 * lanes:
            four(arrays, saved, weights, coefficients, inner, totals, start, stop)
        else:
            return False
        return True

    return short_rows
