"""The backward pass of rows of one, two or four vectors, which stay in registers.

Longer rows are read twice, and narrow rows of other widths are taken in tiles. Here a row takes few
instructions, so that the processor reads the next row meanwhile; it cannot do so across a tile.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.backends.contract.norms import Formula
from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.memory.borrowed import row
from numnorm.backends.cpu.memory.nontemporal import fence_after_stores, use_nontemporal_gradient
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.optional import part
from numnorm.backends.cpu.simd.optional_vector import add, make_load_or_scalar
from numnorm.backends.cpu.simd.vector import (
    make_load,
    make_zeros,
    reduce_sum,
    store_either,
)
from numnorm.backends.cpu.statistics.accumulators import flush
from numnorm.backends.cpu.statistics.normalize import make_normalized
from numnorm.backends.cpu.statistics.saved import make_means, make_statistics_of_row
from numnorm.backends.formulas.norms import input_gradient

_input_gradient = inlined(input_gradient)


@inlined
def _no_short_rows(*arguments):
    return False


def _has_short_rows(element_type: ElementType) -> bool:
    """Return whether rows of these elements are faster here than in tiles.

    Halves are not: their conversion takes longer than memory does.
    """
    return element_type.storage_dtype.itemsize > 2


def _make_backward(formula: Formula, element_type: ElementType, count: int) -> Callable[..., Any]:
    """Return a compiled function for rows of `count` elements.

    ``rows(arrays, nontemporal, saved, weights, coefficients, partial, totals, start, stop)`` takes
    dy, x and dx as `arrays`. It adds the gradients of gamma and beta to the partial sums, and
    flushes these to the totals.
    """
    backward, normalized = inlined(formula.backward), make_normalized(formula.centred)
    to_compute, to_storage = element_type.to_compute, element_type.to_storage
    statistics_of = make_statistics_of_row(formula, element_type)
    means_of = make_means(element_type)
    real, load = element_type.compute_type, make_load(count)
    load_or_scalar, zeros = make_load_or_scalar(count), make_zeros(real, count)

    @inlined
    def rows(arrays, nontemporal, saved, weights, coefficients, partial, totals, start, stop):
        (dy, x, dx), (mean, rstd) = arrays, saved
        gamma = load_or_scalar(part(weights[0], 0), 0, real(1))
        beta = load_or_scalar(part(weights[1], 0), 0, real(0))
        for begin in range(start, stop, tuning.ROWS_BETWEEN_FLUSHES):
            dgamma, dbeta = zeros(), zeros()
            for i in range(begin, min(begin + tuning.ROWS_BETWEEN_FLUSHES, stop)):
                saved_mean = part(mean, i)
                scale, mean_hi, mean_lo, factor = statistics_of(row(x, i), saved_mean, rstd[i])
                grad = to_compute(load(row(dy, i), 0))
                xhat = normalized(to_compute(load(row(x, i), 0)), scale, mean_hi, mean_lo, factor)
                g = backward(grad, xhat, gamma, beta)
                sum_g, sum_g_xhat = np.float64(reduce_sum(g)), np.float64(reduce_sum(g * xhat))
                mean_g, mean_g_xhat = means_of(sum_g, sum_g_xhat, rstd[i], coefficients)
                gradient = _input_gradient(g, xhat, mean_g, mean_g_xhat, factor) * scale
                store_either(row(dx, i), 0, to_storage(gradient), nontemporal)
                dgamma, dbeta = dgamma + grad * xhat, dbeta + grad
            add(part(partial[0], 0), 0, dgamma)
            add(part(partial[1], 0), 0, dbeta)
            flush(partial[0], totals[0])
            flush(partial[1], totals[1])

    return rows


def make_short_backward(formula: Formula, element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled function for rows of one segment of one, two or four vectors.

    ``short_rows(arrays, saved, segments, weights, coefficients, partial, totals, start, stop)``
    does nothing and returns False for other rows.
    """
    if not _has_short_rows(element_type):
        return _no_short_rows
    lanes = element_type.lanes
    one = _make_backward(formula, element_type, lanes)
    two = _make_backward(formula, element_type, 2 * lanes)
    four = _make_backward(formula, element_type, 4 * lanes)

    @inlined
    def short_rows(arrays, saved, segments, weights, coefficients, partial, totals, start, stop):
        width = arrays[1].shape[1]
        if segments[1] != 1 or segments[2] > 1:
            return False
        nontemporal = use_nontemporal_gradient(arrays[2], width)
        if width == lanes:
            one(arrays, nontemporal, saved, weights, coefficients, partial, totals, start, stop)
        elif width == 2 * lanes:
            two(arrays, nontemporal, saved, weights, coefficients, partial, totals, start, stop)
        elif width == 4 * lanes:
            four(arrays, nontemporal, saved, weights, coefficients, partial, totals, start, stop)
        else:
            return False
        fence_after_stores(nontemporal)
        return True

    return short_rows
