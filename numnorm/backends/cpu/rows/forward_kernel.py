"""The forward kernel of the norms with statistics of each row."""

from collections.abc import Callable
from typing import Any

from numnorm.backends.contract.norms import Formula
from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.compiler.jit import Kernel, inlined
from numnorm.backends.cpu.memory.alignment import make_peel
from numnorm.backends.cpu.memory.borrowed import as_flat
from numnorm.backends.cpu.memory.grouped_kernel import make_grouped_kernel
from numnorm.backends.cpu.memory.nontemporal import fence_after_stores, use_nontemporal
from numnorm.backends.cpu.memory.write_combining import (
    begin,
    make_buffer,
    make_write_combiner,
    uses_write_combining,
)
from numnorm.backends.cpu.rows.arguments import Parameters, Scaling, Segments, Statistics
from numnorm.backends.cpu.rows.pairs_forward import make_are_paired, make_pair
from numnorm.backends.cpu.rows.segment_loops import channel_of, make_apply, next_channel
from numnorm.backends.cpu.rows.tiles_forward import make_narrow_rows, widest
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.optional import part, slice_or_scalar
from numnorm.backends.cpu.simd.processor import has_avx512
from numnorm.backends.cpu.statistics.row_normalizer import make_row_statistics
from numnorm.backends.cpu.statistics.saved import save


def _make_apply_row(
    formula: Formula, element_type: ElementType, count: int, *, prefetches: bool = False
) -> Callable[..., Any]:
    """Return a compiled function that stores the result of row i, segment by segment.

    ``apply_row(x, i, statistics, segments, first_channel, weights, y, nontemporal)`` uses vectors
    of `count` lanes. If it `prefetches`, it prefetches the next row.
    """
    real = element_type.compute_type
    apply_segment = make_apply(formula, element_type, count, prefetches=prefetches)

    @inlined
    def apply_row(x, i, statistics, segments, first_channel, weights, y, nontemporal):
        scale, mean_hi, mean_lo, rstd = statistics
        row, width = (scale, mean_hi, mean_lo, real(rstd)), x.shape[1]
        segment, segment_count, channels = segments
        c = first_channel
        if segment_count == 1:
            weight = part(weights[0], c), part(weights[1], c)
            apply_segment(x[i], width, row, weight, y[i], nontemporal)
            return
        for p in range(segment_count):
            left, right = p * segment, (p + 1) * segment
            weight = part(weights[0], c), part(weights[1], c)
            apply_segment(x[i][left:right], width, row, weight, y[i][left:right], nontemporal)
            c = c + 1 if c + 1 < channels else 0

    return apply_row


def _make_append_row(
    formula: Formula, element_type: ElementType, append: Any
) -> Callable[..., Any]:
    """Return a compiled ``append_row(x, statistics, weights, buffer, state, flat_y)``.

    It stores the result of a row of one segment through the write-combining `buffer`, and returns
    the buffer's new state.
    """
    real = element_type.compute_type
    apply_segment = make_apply(
        formula, element_type, 2 * element_type.lanes, prefetches=has_avx512()
    )

    @inlined
    def append_row(x, statistics, weights, buffer, state, flat_y):
        scale, mean_hi, mean_lo, rstd = statistics
        row, (gamma, beta) = (scale, mean_hi, mean_lo, real(rstd)), weights
        for left in range(0, x.size, tuning.SUM_BLOCK_ELEMENTS):
            right = min(left + tuning.SUM_BLOCK_ELEMENTS, x.size)
            weight = slice_or_scalar(gamma, left, right), slice_or_scalar(beta, left, right)
            target = buffer[state[1] : state[1] + right - left]
            apply_segment(x[left:right], x.size, row, weight, target, False)
            state = append(buffer, state, right - left, flat_y)
        return state

    return append_row


def _make_wide_rows(formula: Formula, element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``wide_rows(x, scaling, segments, weights, y, saved, start, stop)``.

    It normalizes these rows, of any width, one after the other.
    """
    # Processors with AVX-512 may have a slow third-level cache: they need the next row prefetched.
    apply_row = _make_apply_row(
        formula, element_type, 2 * element_type.lanes, prefetches=has_avx512()
    )
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
            statistics = row_statistics(x[i], scaling)
            if combines:
                weight = part(weights[0], channel), part(weights[1], channel)
                state = append_row(x[i], statistics, weight, buffer, state, flat_y)
            else:
                apply_row(x, i, statistics, segments, channel, weights, y, nontemporal)
            save(saved, i, statistics)
            channel = next_channel(channel, segments)
        if combines:
            finish(buffer, state, flat_y)
        fence_after_stores(combines or nontemporal)

    return wide_rows


def make_row_forward(formula: Formula, element_type: ElementType) -> Kernel:
    """Return the forward kernel of a formula.

    It takes ``x (N, D)``, gamma and beta, the segments, the scaling, y, the arrays for the saved
    statistics, and the number of parts that the rows are divided into. The arrays are ``(N,)``,
    or ``(0,)`` to save nothing. The mean of a formula without centring is the root mean square.
    """
    wide_rows, pair = _make_wide_rows(formula, element_type), make_pair(formula, element_type)
    are_paired = make_are_paired(formula)
    row_statistics = make_row_statistics(formula, element_type)
    apply_row = _make_apply_row(formula, element_type, element_type.lanes)
    narrow_rows = make_narrow_rows(formula, element_type, row_statistics, apply_row)
    tile_width = widest(element_type)

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
        if x.shape[1] <= tile_width:
            narrow_rows(x, scaling, all_segments, weights, y, saved, start, stop)
        else:
            i, paired = start, are_paired(y, all_segments)
            while i < stop:
                if paired and i + 1 < stop and pair(x, i, scaling, weights, y, saved):
                    i += 2
                else:
                    # One call for both cases: every call inlines another copy of the loops.
                    end = min(i + 2, stop) if paired else stop
                    wide_rows(x, scaling, all_segments, weights, y, saved, i, end)
                    i = end

    return make_grouped_kernel(f"row_forward.{formula.name}.{element_type.name}", kernel)
