"""The statistics of one row, at the scale at which its squares are in range."""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.backends.contract.norms import Formula
from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.statistics.row_moments import (
    make_pivot,
    make_rescale,
    make_statistics,
    make_statistics_around,
)
from numnorm.backends.formulas.norms import inverse_deviation

_inverse_deviation = inlined(inverse_deviation)


@functools.cache
def make_row_statistics(formula: Formula, element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``row_statistics(row, scaling)``: a scale, and the row's statistics there.

    It is the scale at which the row's squares are in range, which is 1 for nearly every row.
    """
    pivot, around = (
        make_optional_pivot(formula, element_type),
        make_row_statistics_around(formula, element_type),
    )

    @inlined
    def row_statistics(row, scaling):
        return around(row, scaling, pivot(row))

    return row_statistics


@functools.cache
def make_optional_pivot(formula: Formula, element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``pivot(row)``: a guess of the row's mean, None if it is not centred."""
    real, pivot = element_type.compute_type, make_pivot(element_type)
    return inlined((lambda row: pivot(row, real(1))) if formula.centred else (lambda row: None))


@functools.cache
def make_row_statistics_around(formula: Formula, element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``row_statistics(row, scaling, pivot)``: the same, given a guess of the mean."""
    real, smallest = element_type.compute_type, element_type.smallest_variance
    around = make_statistics_around(element_type, centred=formula.centred)
    statistics = make_statistics(element_type, centred=formula.centred)
    rescale = make_rescale(element_type)

    @inlined
    def row_statistics(row, scaling, pivot):
        eps, eps_on_deviation, count = scaling
        scale, inv_count = real(1), np.float64(1) / count
        mean_hi, mean_lo, m2 = around(row, scale, pivot)
        total = m2 * inv_count + eps + eps_on_deviation * eps_on_deviation
        if not smallest < total < np.inf:
            scale = rescale(row, max(math.sqrt(eps), eps_on_deviation))
            mean_hi, mean_lo, m2 = statistics(row, scale)
            root = math.sqrt(eps) * scale
            eps = root * root
        eps_on_deviation = np.float64(eps_on_deviation) * scale
        rstd = _inverse_deviation(m2 * inv_count, eps, eps_on_deviation)
        return scale, mean_hi, mean_lo, rstd

    return row_statistics
