"""The forward kernel of the norms with statistics of each row."""

from collections.abc import Callable
from typing import Any

from numnorm.backends.contract.norms import Formula
from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.compiler.jit import Kernel, inlined
from numnorm.backends.cpu.memory.alignment import make_peel
from numnorm.backends.cpu.memory.borrowed import as_flat, row, window
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
from numnorm.backends.cpu.rows.tiles_forward import make_narrow_rows
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.optional import part
from numnorm.backends.cpu.statistics.normalize import make_factor
from numnorm.backends.cpu.statistics.row_normalizer import make_row_statistics
from numnorm.backends.cpu.statistics.saved import save


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


def make_row_forward(formula: Formula, element_type: ElementType, *, narrow: bool) -> Kernel:
    """Return the forward kernel of a formula for rows that are narrow, or for rows that are not.

    It takes ``x (N, D)``, gamma and beta, the segments, the scaling, y, the arrays for the saved
    statistics, and the number of parts that the rows are divided into. The arrays are ``(N,)``,
    or ``(0,)`` to save nothing. The mean of a formula without centring is the root mean square.
    """
    if narrow:
        some_rows = make_narrow_rows(
            formula,
            element_type,
            make_row_statistics(formula, element_type),
            _make_apply_row(formula, element_type, wide=False),
        )
    else:
        some_rows = _make_paired_rows(formula, element_type)

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
