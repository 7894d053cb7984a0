"""Two rows at a time, forward.

From the sums of a row follows what the row is scaled by, in a chain of some forty instructions
that each wait for the one before; of two rows the chains run side by side. gamma and beta are
loaded once for both. What is computed for each row, in which order, is that of a row on its own.

Beyond the caches it is one row at a time that keeps up with memory.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.backends.contract.norms import Formula
from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.memory.alignment import each_peels_to_alignment, make_peel
from numnorm.backends.cpu.rows.segment_loops import make_apply_pair
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.masked import make_masked_load, select_lanes
from numnorm.backends.cpu.simd.optional import part
from numnorm.backends.cpu.simd.processor import has_avx512
from numnorm.backends.cpu.simd.vector import make_load, make_zeros, reduce_sum
from numnorm.backends.cpu.statistics.row_moments import make_pivot
from numnorm.backends.cpu.statistics.saved import save
from numnorm.backends.formulas.norms import inverse_deviation, squared_deviations

_inverse_deviation = inlined(inverse_deviation)
_squared_deviations = inlined(squared_deviations)


def make_are_paired(formula: Formula) -> Callable[..., Any]:
    """Return a compiled ``are_paired(y, segments)``: whether rows go in pairs.

    Those of a result in cache do, each a sum of one stretch. The four sums of two centred rows
    take all sixteen registers of AVX2, which leaves none for the elements.
    """
    fit = has_avx512() or not formula.centred

    @inlined
    def are_paired(y, segments):
        _, segment_count, channels = segments
        of_one_run = (
            segment_count == 1 and channels <= 1 and y.shape[1] <= tuning.SUM_BLOCK_ELEMENTS
        )
        return fit and of_one_run and y.size * y.itemsize < tuning.PAIR_BELOW_BYTES

    return are_paired


def _make_sums(element_type: ElementType, count: int, *, centred: bool) -> Callable[..., Any]:
    """Return a compiled function of two rows: the guesses of their means, and their sums."""
    to_compute, real = element_type.to_compute, element_type.compute_type
    load, masked_load, zeros = make_load(count), make_masked_load(count), make_zeros(real, count)
    pivot, peel_of = make_pivot(element_type), make_peel(element_type)
    at_lines = each_peels_to_alignment(element_type)

    def statistics_around(row):
        return pivot(row, real(1))

    def zero(row):
        return real(0)

    high_of = inlined(statistics_around if centred else zero)

    @inlined
    def sums(a, b):
        of_a, of_b = high_of(a), high_of(b)
        a_first, a_second, b_first, b_second = zeros(), zeros(), zeros(), zeros()
        line = min(peel_of(a, a.size), a.size)
        if at_lines and line > 0:
            j, mean_lo = line - count, count - line
            deviation = select_lanes(
                to_compute(masked_load(a, j, mean_lo, count)) - of_a, mean_lo, count
            )
            a_first, a_second = a_first + deviation, a_second + deviation * deviation
            deviation = select_lanes(
                to_compute(masked_load(b, j, mean_lo, count)) - of_b, mean_lo, count
            )
            b_first, b_second = b_first + deviation, b_second + deviation * deviation
        whole = a.size - (a.size - line) % count
        for j in range(line, whole, count):
            deviation = to_compute(load(a, j)) - of_a
            a_first, a_second = a_first + deviation, a_second + deviation * deviation
            deviation = to_compute(load(b, j)) - of_b
            b_first, b_second = b_first + deviation, b_second + deviation * deviation
        tail = a.size - whole
        if tail > 0:
            deviation = select_lanes(to_compute(masked_load(a, whole, 0, tail)) - of_a, 0, tail)
            a_first, a_second = a_first + deviation, a_second + deviation * deviation
            deviation = select_lanes(to_compute(masked_load(b, whole, 0, tail)) - of_b, 0, tail)
            b_first, b_second = b_first + deviation, b_second + deviation * deviation
        return (of_a, a_first, a_second), (of_b, b_first, b_second)

    return sums


def _make_statistics(element_type: ElementType, *, centred: bool) -> Callable[..., Any]:
    """Return a compiled function ``statistics(found, width, scaling)`` of a row's sums.

    It returns whether they will do, and what is saved of the row.
    """
    real, smallest = element_type.compute_type, element_type.smallest_variance

    @inlined
    def of_centred(sums, inv_count):
        mean_hi, first, second = (
            sums[0],
            np.float64(reduce_sum(sums[1])),
            np.float64(reduce_sum(sums[2])),
        )
        mean_lo = first * inv_count
        m2 = _squared_deviations(second, first, mean_lo)
        # Squares that vanish may leave a little less than nothing; max() would turn a NaN into 0.
        if m2 < 0.0:
            m2 = 0.0
        return mean_hi, real(mean_lo), first * mean_lo, m2

    @inlined
    def of_uncentred(sums, inv_count):
        return None, None, 0.0, np.float64(reduce_sum(sums[2]))

    moments = of_centred if centred else of_uncentred

    @inlined
    def statistics(sums, width, scaling):
        eps, eps_on_deviation, count = scaling
        mean_hi, mean_lo, poor, m2 = moments(sums, 1.0 / width)
        variance = m2 * (np.float64(1) / count)
        row_statistics = variance + eps + eps_on_deviation * eps_on_deviation
        fine = poor <= m2 and smallest < row_statistics < np.inf
        return fine, (
            real(1),
            mean_hi,
            mean_lo,
            _inverse_deviation(variance, eps, eps_on_deviation),
        )

    return statistics


def make_pair(formula: Formula, element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``pair(x, i, scaling, weights, y, saved)`` of the i-th row and the next.

    It returns whether it has normalized them: not if a mean was guessed badly, or squares
    overflow or vanish.
    """
    count, real = 2 * element_type.lanes, element_type.compute_type
    sums = _make_sums(element_type, count, centred=formula.centred)
    statistics = _make_statistics(element_type, centred=formula.centred)
    apply_pair = make_apply_pair(formula, element_type, count)

    @inlined
    def narrowed(found):
        scale, mean_hi, mean_lo, rstd = found
        return scale, mean_hi, mean_lo, real(rstd)

    @inlined
    def pair(x, i, scaling, weights, y, saved):
        a, b = sums(x[i], x[i + 1])
        a_fine, of_a = statistics(a, x.shape[1], scaling)
        b_fine, of_b = statistics(b, x.shape[1], scaling)
        if not (a_fine and b_fine):
            return False
        here, found = (part(weights[0], 0), part(weights[1], 0)), (narrowed(of_a), narrowed(of_b))
        apply_pair((x[i], x[i + 1]), found, here, (y[i], y[i + 1]))
        save(saved, i, of_a)
        save(saved, i + 1, of_b)
        return True

    return pair
