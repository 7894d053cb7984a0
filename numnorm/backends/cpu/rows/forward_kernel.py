"""The forward kernel of the norms with statistics of each row.

Some rows are taken in pairs. From a row's sums to its rstd leads a chain of some forty dependent
instructions. The chains of two rows run in parallel, and gamma and beta are loaded once for both.
Each row is computed in the same order as on its own. Results that leave the caches gain nothing,
because memory limits them.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.backends.contract.norms import Formula
from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.compiler.jit import Kernel, inlined
from numnorm.backends.cpu.memory.alignment import each_peels_to_alignment, make_peel
from numnorm.backends.cpu.memory.grouped_kernel import make_grouped_kernel
from numnorm.backends.cpu.memory.kernel_arrays import as_flat, row, window
from numnorm.backends.cpu.memory.nontemporal import (
    begin,
    fence_after_stores,
    make_buffer,
    make_write_combiner,
    use_nontemporal,
    uses_write_combining,
)
from numnorm.backends.cpu.rows.arguments import Parameters, Scaling, Segments, Statistics
from numnorm.backends.cpu.rows.segment_loops import (
    channel_of,
    make_apply,
    make_apply_pair,
    next_channel,
)
from numnorm.backends.cpu.rows.tiles import make_narrow_rows
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.masked import make_masked_load, select_lanes
from numnorm.backends.cpu.simd.optional import part
from numnorm.backends.cpu.simd.processor import has_avx512
from numnorm.backends.cpu.simd.vector import make_load, make_zeros, reduce_sum
from numnorm.backends.cpu.statistics.normalize import make_factor
from numnorm.backends.cpu.statistics.row_statistics import make_pivot, make_row_statistics
from numnorm.backends.cpu.statistics.saved import save
from numnorm.backends.formulas.norms import inverse_deviation, squared_deviations

# Two rows at a time


_inverse_deviation = inlined(inverse_deviation)
_squared_deviations = inlined(squared_deviations)


def make_are_paired(formula: Formula) -> Callable[..., Any]:
    """Return a compiled ``are_paired(y, segments)``: whether rows are taken in pairs.

    They are if the result stays in cache, and each row is one segment and one block of a sum. The
    four sums of two centred rows take all sixteen registers of AVX2, so centred rows need AVX-512.
    """
    fit = has_avx512() or not formula.centred

    @inlined
    def are_paired(y, segments):
        _, segment_count, channels = segments
        one_segment = segment_count == 1 and channels <= 1
        one_block = one_segment and y.shape[1] <= tuning.SUM_BLOCK_ELEMENTS
        return fit and one_block and y.size * y.itemsize < tuning.PAIR_BELOW_BYTES

    return are_paired


def _make_sums(element_type: ElementType, count: int, *, centred: bool) -> Callable[..., Any]:
    """Return a compiled ``sums(a, b)`` of two rows: ``(pivot, first, second)`` of each.

    The last two are vectors: the sums of the deviations from the pivot and of their squares.
    """
    to_compute, real = element_type.to_compute, element_type.compute_type
    load, masked_load, zeros = make_load(count), make_masked_load(count), make_zeros(real, count)
    pivot, peel_of = make_pivot(element_type), make_peel(element_type)
    peeled = each_peels_to_alignment(element_type)

    def pivot_of_row(values):
        return pivot(values, real(1))

    def zero(values):
        return real(0)

    pivot_of = inlined(pivot_of_row if centred else zero)

    @inlined
    def sums(a, b):
        a_pivot, b_pivot = pivot_of(a), pivot_of(b)
        a_first, a_second, b_first, b_second = zeros(), zeros(), zeros(), zeros()
        peel = min(peel_of(a, a.size), a.size)
        if peeled and peel > 0:
            j, low = peel - count, count - peel
            values = to_compute(masked_load(a, j, low, count))
            deviation = select_lanes(values - a_pivot, low, count)
            a_first, a_second = a_first + deviation, a_second + deviation * deviation
            values = to_compute(masked_load(b, j, low, count))
            deviation = select_lanes(values - b_pivot, low, count)
            b_first, b_second = b_first + deviation, b_second + deviation * deviation
        tail = a.size - (a.size - peel) % count
        for j in range(peel, tail, count):
            deviation = to_compute(load(a, j)) - a_pivot
            a_first, a_second = a_first + deviation, a_second + deviation * deviation
            deviation = to_compute(load(b, j)) - b_pivot
            b_first, b_second = b_first + deviation, b_second + deviation * deviation
        n = a.size - tail
        if n > 0:
            deviation = select_lanes(to_compute(masked_load(a, tail, 0, n)) - a_pivot, 0, n)
            a_first, a_second = a_first + deviation, a_second + deviation * deviation
            deviation = select_lanes(to_compute(masked_load(b, tail, 0, n)) - b_pivot, 0, n)
            b_first, b_second = b_first + deviation, b_second + deviation * deviation
        return (a_pivot, a_first, a_second), (b_pivot, b_first, b_second)

    return sums


def _make_statistics(element_type: ElementType, *, centred: bool) -> Callable[..., Any]:
    """Return a compiled ``statistics(sums, width, scaling)`` of one row's sums.

    It returns whether the row needs no other pass, and ``(scale, mean_hi, mean_lo, rstd)``.
    """
    real, smallest = element_type.compute_type, element_type.smallest_variance

    @inlined
    def centred_moments(sums, inv_count):
        mean_hi, first = sums[0], np.float64(reduce_sum(sums[1]))
        second = np.float64(reduce_sum(sums[2]))
        mean_lo = first * inv_count
        m2 = _squared_deviations(second, first, mean_lo)
        # Squares that vanish may leave a little less than 0; max() would turn a NaN into 0.
        if m2 < 0.0:
            m2 = 0.0
        return mean_hi, real(mean_lo), first * mean_lo, m2

    @inlined
    def uncentred_moments(sums, inv_count):
        return None, None, 0.0, np.float64(reduce_sum(sums[2]))

    moments = centred_moments if centred else uncentred_moments

    @inlined
    def statistics(sums, width, scaling):
        eps, eps_on_deviation, count = scaling
        mean_hi, mean_lo, lost, m2 = moments(sums, 1.0 / width)
        variance = m2 * (np.float64(1) / count)
        total = variance + eps + eps_on_deviation * eps_on_deviation
        fine = lost <= m2 and smallest < total < np.inf
        rstd = _inverse_deviation(variance, eps, eps_on_deviation)
        return fine, (real(1), mean_hi, mean_lo, rstd)

    return statistics


def make_pair(formula: Formula, element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``pair(x, i, scaling, weights, y, saved)`` for the rows i and i + 1.

    It returns whether it has normalized them: not if a pivot was poor, or squares overflow or
    vanish.
    """
    count, real = 2 * element_type.lanes, element_type.compute_type
    sums = _make_sums(element_type, count, centred=formula.centred)
    statistics = _make_statistics(element_type, centred=formula.centred)
    apply_pair = make_apply_pair(formula, element_type, count)

    @inlined
    def in_compute_type(statistics):
        scale, mean_hi, mean_lo, rstd = statistics
        return scale, mean_hi, mean_lo, real(rstd)

    @inlined
    def pair(x, i, scaling, weights, y, saved):
        rows, results = (row(x, i), row(x, i + 1)), (row(y, i), row(y, i + 1))
        a, b = sums(rows[0], rows[1])
        a_fine, a_statistics = statistics(a, x.shape[1], scaling)
        b_fine, b_statistics = statistics(b, x.shape[1], scaling)
        if not (a_fine and b_fine):
            return False
        both = in_compute_type(a_statistics), in_compute_type(b_statistics)
        weight = part(weights[0], 0), part(weights[1], 0)
        apply_pair(rows, both, weight, results)
        save(saved, i, a_statistics)
        save(saved, i + 1, b_statistics)
        return True

    return pair


# All rows


def _make_apply_row(
    formula: Formula, element_type: ElementType, *, wide: bool
) -> Callable[..., Any]:
    """Return a compiled function that stores the result of row i, segment by segment.

    It is ``apply_row(x, i, statistics, segments, first_channel, weights, y, nontemporal)``.
    """
    factor = make_factor(element_type)
    apply_segment = make_apply(formula, element_type, wide=wide)

    @inlined
    def apply_row(x, i, statistics, segments, first_channel, weights, y, nontemporal):
        scale, mean_hi, mean_lo, rstd = statistics
        of_row, width = (scale, mean_hi, mean_lo, factor(rstd)), x.shape[1]
        segment, _, channels = segments
        c, source, target = first_channel, row(x, i), row(y, i)
        if not wide and segment == width:  # the loop over short segments is then faster
            weight = part(weights[0], c), part(weights[1], c)
            apply_segment(source, width, of_row, weight, target, nontemporal)
            return
        for left in range(0, width, segment):
            weight = part(weights[0], c), part(weights[1], c)
            values, results = window(source, left, segment), window(target, left, segment)
            apply_segment(values, width, of_row, weight, results, nontemporal)
            c = c + 1 if c + 1 < channels else 0

    return apply_row


def _make_append_row(
    formula: Formula, element_type: ElementType, append: Any
) -> Callable[..., Any]:
    """Return a compiled ``append_row(x, statistics, weights, buffer, state, flat_y)``.

    It stores the result of a row of one segment through the write-combining `buffer`, and returns
    the buffer's new state.
    """
    factor = make_factor(element_type)
    apply_segment = make_apply(formula, element_type, wide=True)

    @inlined
    def append_row(x, statistics, weights, buffer, state, flat_y):
        scale, mean_hi, mean_lo, rstd = statistics
        of_row, (gamma, beta) = (scale, mean_hi, mean_lo, factor(rstd)), weights
        for left in range(0, x.size, tuning.SUM_BLOCK_ELEMENTS):
            size = min(tuning.SUM_BLOCK_ELEMENTS, x.size - left)
            weight = window(gamma, left, size), window(beta, left, size)
            values, target = window(x, left, size), window(buffer, state[1], size)
            apply_segment(values, x.size, of_row, weight, target, False)
            state = append(buffer, state, size, flat_y)
        return state

    return append_row


def _make_wide_rows(formula: Formula, element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``wide_rows(x, scaling, segments, weights, y, saved, start, stop)``.

    It normalizes these rows, of any width, one after the other.
    """
    apply_row = _make_apply_row(formula, element_type, wide=True)
    row_statistics, peel_of = make_row_statistics(formula, element_type), make_peel(element_type)
    line_scratch = make_buffer(element_type, tuning.SUM_BLOCK_ELEMENTS)
    append, finish = make_write_combiner(element_type)
    append_row = _make_append_row(formula, element_type, append)

    @inlined
    def wide_rows(x, scaling, segments, weights, y, saved, start, stop):
        nontemporal = use_nontemporal(y, segments[0], peel_of(y, segments[0]))
        combines = segments[1] == 1 and uses_write_combining(y) and not nontemporal
        buffer, flat_y = line_scratch(), as_flat(y)
        channel, state = channel_of(start, segments), begin(flat_y, start * x.shape[1])
        for i in range(start, stop):
            statistics = row_statistics(row(x, i), scaling)
            if combines:
                weight = part(weights[0], channel), part(weights[1], channel)
                state = append_row(row(x, i), statistics, weight, buffer, state, flat_y)
            else:
                apply_row(x, i, statistics, segments, channel, weights, y, nontemporal)
            save(saved, i, statistics)
            channel = next_channel(channel, segments)
        if combines:
            finish(buffer, state, flat_y)
        fence_after_stores(combines or nontemporal)

    return wide_rows


def make_rows(formula: Formula, element_type: ElementType, *, narrow: bool) -> Callable[..., Any]:
    """Return a compiled ``rows(x, scaling, segments, weights, y, saved, start, stop)``.

    It normalizes these rows, which are all narrow, or all not.
    """
    if not narrow:
        return _make_paired_rows(formula, element_type)
    row_statistics = make_row_statistics(formula, element_type)
    apply_row = _make_apply_row(formula, element_type, wide=False)
    return make_narrow_rows(formula, element_type, row_statistics, apply_row)


def make_row_forward(formula: Formula, element_type: ElementType, *, narrow: bool) -> Kernel:
    """Return the forward kernel of a formula for rows that are narrow, or for rows that are not.

    It takes ``x (N, D)``, gamma and beta, the segments, the scaling, y, the arrays for the saved
    statistics, and the number of parts that the rows are divided into. The arrays are ``(N,)``,
    or ``(0,)`` to save nothing. The mean of a formula without centring is the root mean square.
    """
    some_rows = make_rows(formula, element_type, narrow=narrow)

    def kernel(
        x: Any,
        weights: Parameters,
        segments: Segments,
        scaling: Scaling,
        y: Any,
        saved: Statistics,
        parts: int,
        first: int,
        last: int,
    ) -> None:
        all_segments = segments.segment, x.shape[1] // segments.segment, segments.channels
        start, stop = first * x.shape[0] // parts, last * x.shape[0] // parts
        some_rows(x, scaling, all_segments, weights, y, saved, start, stop)

    name = f"row_forward.{formula.name}.{element_type.name}" + ".narrow" * narrow
    return make_grouped_kernel(name, kernel)


def _make_paired_rows(formula: Formula, element_type: ElementType) -> Callable[..., Any]:
    """Return `wide_rows` that takes rows in pairs where it can."""
    wide_rows, pair = _make_wide_rows(formula, element_type), make_pair(formula, element_type)
    are_paired = make_are_paired(formula)

    @inlined
    def paired_rows(x, scaling, segments, weights, y, saved, start, stop):
        i, paired = start, are_paired(y, segments)
        while i < stop:
            if paired and i + 1 < stop and pair(x, i, scaling, weights, y, saved):
                i += 2
            else:
                # One call for both cases: every call inlines another copy of the loops.
                end = min(i + 2, stop) if paired else stop
                wide_rows(x, scaling, segments, weights, y, saved, i, end)
                i = end

    return paired_rows
