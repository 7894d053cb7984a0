"""The forward kernel of every norm whose statistics are shared by a row."""

from collections.abc import Callable
from typing import Any

from numnorm.backends.contract.norms import Formula
from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.compiler.jit import Kernel, inlined
from numnorm.backends.cpu.memory.alignment import make_peel
from numnorm.backends.cpu.memory.borrowed import borrowed
from numnorm.backends.cpu.memory.grouped_kernel import make_grouped_kernel
from numnorm.backends.cpu.memory.nontemporal import fence_after_stores, use_nontemporal
from numnorm.backends.cpu.memory.write_combining import begin, is_carried, make_carry, make_room
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
    formula: Formula, element_type: ElementType, count: int, *, followed: bool = False
) -> Callable[..., Any]:
    """Return a compiled function that stores a row's result, run by run.

    If the row is `followed`, the next one is asked for meanwhile.
    """
    real = element_type.compute_type
    apply_segment = make_apply(formula, element_type, count, followed=followed)

    @inlined
    def apply_row(x, i, statistics, segments, first_channel, weights, y, nontemporal):
        scale, mean_hi, mean_lo, rstd = statistics
        found = scale, mean_hi, mean_lo, real(rstd)
        segment, segment_count, channels = segments
        c = first_channel
        if segment_count == 1:
            here = part(weights[0], c), part(weights[1], c)
            apply_segment(x[i], x.shape[1], found, here, y[i], nontemporal)
            return
        for p in range(segment_count):
            left, right = p * segment, (p + 1) * segment
            here = part(weights[0], c), part(weights[1], c)
            apply_segment(x[i][left:right], x.shape[1], found, here, y[i][left:right], nontemporal)
            c = c + 1 if c + 1 < channels else 0

    return apply_row


def _make_carry_row(formula: Formula, element_type: ElementType, carry: Any) -> Callable[..., Any]:
    """Return a compiled function that stores the result of a row of one run, in carried lines."""
    real = element_type.compute_type
    apply_segment = make_apply(formula, element_type, 2 * element_type.lanes, followed=has_avx512())

    @inlined
    def carry_row(x, statistics, weights, room, held, flat_y):
        scale, mean_hi, mean_lo, rstd = statistics
        found = scale, mean_hi, mean_lo, real(rstd)
        for left in range(0, x.size, tuning.SUM_BLOCK_ELEMENTS):
            right = min(left + tuning.SUM_BLOCK_ELEMENTS, x.size)
            here = (
                slice_or_scalar(weights[0], left, right),
                slice_or_scalar(weights[1], left, right),
            )
            target = room[held[1] : held[1] + right - left]
            apply_segment(x[left:right], x.size, found, here, target, False)
            held = carry(room, held, right - left, flat_y)
        return held

    return carry_row


def _make_wide_rows(formula: Formula, element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled function that normalizes some rows of any width, one after the other."""
    # Processors with AVX-512 may have a slow third-level cache: they need the next row prefetched.
    apply_row = _make_apply_row(
        formula, element_type, 2 * element_type.lanes, followed=has_avx512()
    )
    row_statistics, rooms, (carry, finish) = (
        make_row_statistics(formula, element_type),
        make_room(element_type, tuning.SUM_BLOCK_ELEMENTS),
        make_carry(element_type),
    )
    carry_row, peel_of = _make_carry_row(formula, element_type, carry), make_peel(element_type)

    @inlined
    def wide_rows(x, scaling, segments, weights, y, saved, start, stop):
        nontemporal = use_nontemporal(y, segments[0], peel_of(y, segments[0]))
        carried = segments[1] == 1 and is_carried(y) and not nontemporal
        room, flat_y, channel = rooms(), borrowed(y.reshape(-1)), channel_of(start, segments)
        held = begin(flat_y, start * x.shape[1])
        for i in range(start, stop):
            found = row_statistics(x[i], scaling)
            if carried:
                here = part(weights[0], channel), part(weights[1], channel)
                held = carry_row(x[i], found, here, room, held, flat_y)
            else:
                apply_row(x, i, found, segments, channel, weights, y, nontemporal)
            save(saved, i, found)
            channel = next_channel(channel, segments)
        if carried:
            finish(room, held, flat_y)
        fence_after_stores(carried or nontemporal)

    return wide_rows


def make_row_forward(formula: Formula, element_type: ElementType) -> Kernel:
    """Return the forward kernel of a formula.

    It takes ``x (N, D)``, its parameters, segments and scaling, y, the statistics to be stored, of
    shape ``(N,)`` or ``(0,)`` to save nothing (the mean is the root mean square, where there is
    none), and into how many parts the rows are cut.
    """
    wide_rows, pair = _make_wide_rows(formula, element_type), make_pair(formula, element_type)
    are_paired, apply_row = (
        make_are_paired(formula),
        _make_apply_row(formula, element_type, element_type.lanes),
    )
    narrow_rows = make_narrow_rows(
        formula, element_type, make_row_statistics(formula, element_type), apply_row
    )
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
                    # One call for both cases: each would be another copy of its loops.
                    end = min(i + 2, stop) if paired else stop
                    wide_rows(x, scaling, all_segments, weights, y, saved, i, end)
                    i = end

    return make_grouped_kernel(f"row_forward.{formula.name}.{element_type.name}", kernel)
