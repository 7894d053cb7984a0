"""A norm inside a recurrent cell, one row at a time: statistics, output and gradient."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from numnorm.backends.contract.norms import Formula, Norm
from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.rows.segment_loops import make_gradient_sums, make_input_gradients
from numnorm.backends.cpu.simd.access import VectorAccess
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.statistics.normalize import location, make_factor
from numnorm.backends.cpu.statistics.normalize import make_normalized as make_centred_scaled
from numnorm.backends.cpu.statistics.row_statistics import make_row_statistics
from numnorm.backends.cpu.statistics.saved import make_means, make_saved_statistics


class CellNorm(NamedTuple):
    """Compiled functions of one row.

    Attributes
    ----------
    statistics : callable
        ``statistics(row, scaling)`` of one row.
    save : callable
        ``save(statistics, mean, rstd, i)`` stores them at index i of two arrays.
    saved : callable
        ``saved(mean, rstd, i)`` loads them.
    apply : callable
        ``apply(x, statistics, gamma, beta)``: the output for values x.
    gradient : callable
        ``gradient(dy, x, mean, rstd, i, gamma, beta, coefficients, sums, dx)`` stores a row's dx
        and adds the gradients of gamma and beta to `sums`, a pair of arrays or None.
    """

    statistics: Callable[..., Any]
    save: Callable[..., Any]
    saved: Callable[..., Any]
    apply: Callable[..., Any]
    gradient: Callable[..., Any]


def make_normalized(
    norm: Norm | None, element_type: ElementType, access: VectorAccess
) -> Callable[..., Any]:
    """Return a compiled ``normalized(row, statistics, gamma, beta, j, tail)`` of a vector."""
    read, coefficient, _ = access
    apply, real = make_cell_norm(norm, element_type).apply, element_type.compute_type

    @inlined
    def normalized(row, statistics, gamma, beta, j, tail):
        gain, shift = coefficient(gamma, j, tail, real(1)), coefficient(beta, j, tail, real(0))
        return apply(read(row, j, tail), statistics, gain, shift)

    return normalized


@functools.cache
def make_cell_norm(norm: Norm | None, element_type: ElementType) -> CellNorm:
    """Return the functions of a norm, or of the identity if it is None."""
    if norm is None:
        return _identity()
    return _norm(norm.formula, element_type, summed=norm.parameters > 0)


def _norm(formula: Formula, element_type: ElementType, *, summed: bool) -> CellNorm:
    factor, row_statistics = make_factor(element_type), make_row_statistics(formula, element_type)
    forward, normalized = inlined(formula.forward), make_centred_scaled(formula.centred)
    statistics_of, means_of = make_saved_statistics(element_type), make_means(element_type)
    gradient_sums = make_gradient_sums(formula, element_type)
    input_gradients = make_input_gradients(formula, element_type)

    @inlined
    def statistics(row, scaling):
        scale, mean_hi, mean_lo, rstd = row_statistics(row, scaling)
        return scale, mean_hi, mean_lo, np.float64(rstd)

    @inlined
    def save(stats, mean, rstd, i):
        scale, mean_hi, mean_lo, scaled_rstd = stats
        mean[i] = location(mean_hi, mean_lo, scaled_rstd) / scale
        rstd[i] = scaled_rstd * scale

    @inlined
    def apply(x, stats, gamma, beta):
        scale, mean_hi, mean_lo, rstd = stats
        return forward(normalized(x, scale, mean_hi, mean_lo, factor(rstd)), gamma, beta)

    def centred_mean(mean, i):
        return mean[i]

    def no_mean(mean, i):
        return None

    mean_of = inlined(centred_mean if formula.centred else no_mean)

    @inlined
    def saved(mean, rstd, i):
        return statistics_of(mean_of(mean, i), rstd[i])

    targets_of = inlined((lambda sums: sums) if summed else (lambda sums: (None, None)))

    @inlined
    def gradient(dy, x, mean, rstd, i, gamma, beta, coefficients, sums, dx):
        stats, weights = saved(mean, rstd, i), (gamma, beta)
        sum_g, sum_g_xhat, _, _ = gradient_sums(dy, x, 0, 0, stats, weights, targets_of(sums))
        means = means_of(sum_g, sum_g_xhat, rstd[i], coefficients)
        input_gradients(dy, x, None, 0, stats, weights, means, dx)

    return CellNorm(statistics, save, saved, apply, gradient)


def _identity() -> CellNorm:
    @inlined
    def statistics(row, scaling):
        return None

    @inlined
    def save(stats, mean, rstd, i):
        pass

    @inlined
    def saved(mean, rstd, i):
        return None

    @inlined
    def apply(x, stats, gamma, beta):
        return x

    @inlined
    def gradient(dy, x, mean, rstd, i, gamma, beta, coefficients, sums, dx):
        for j in range(dy.size):
            dx[j] = dy[j]

    return CellNorm(statistics, save, saved, apply, gradient)
