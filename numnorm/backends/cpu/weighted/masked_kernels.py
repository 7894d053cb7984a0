"""The kernel of the norms with statistics of each row, of which elements are left out."""

from collections.abc import Callable
from typing import Any, NamedTuple

from numnorm.backends.contract.norms import Formula
from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.compiler.jit import Kernel, inlined
from numnorm.backends.cpu.memory.alignment import each_peels_to_alignment, make_peel
from numnorm.backends.cpu.memory.borrowed import as_flat, row, window
from numnorm.backends.cpu.memory.grouped_kernel import make_grouped_kernel
from numnorm.backends.cpu.memory.placement import LINE
from numnorm.backends.cpu.memory.write_combining import uses_write_combining
from numnorm.backends.cpu.rows.arguments import Parameters, Segments, Statistics
from numnorm.backends.cpu.rows.segment_loops import channel_of
from numnorm.backends.cpu.rows.tiles_forward import widest
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.kept import filled, make_masked_kept
from numnorm.backends.cpu.simd.masked import make_masked_load, masked_store
from numnorm.backends.cpu.simd.optional import part
from numnorm.backends.cpu.simd.optional_vector import make_load_or_scalar, make_masked_elements
from numnorm.backends.cpu.simd.processor import has_avx512
from numnorm.backends.cpu.simd.vector import make_load, prefetch, store
from numnorm.backends.cpu.statistics.normalize import make_factor, make_normalized
from numnorm.backends.cpu.statistics.saved import save
from numnorm.backends.cpu.weighted.loops import Fill
from numnorm.backends.cpu.weighted.masked_statistics import (
    make_masked_statistics,
    make_no_statistics,
)
from numnorm.backends.cpu.weighted.masked_tiles import make_masked_tile
from numnorm.backends.cpu.weighted.writer import Writer, make_writer


class Scaling(NamedTuple):
    """How a row's sum of squares becomes its deviation.

    Attributes
    ----------
    eps, eps_on_deviation : float
        What is added to the variance and to the deviation.
    share, more : float
        The sum of squares is divided by ``number * share + more``, with the number of elements.
    """

    eps: float
    eps_on_deviation: float
    share: float
    more: float


class Mask(NamedTuple):
    """Which elements are left out.

    Attributes
    ----------
    keep : array of uint8 or None
        0 where an element is left out, flat, for all rows or for each row.
    step : int
        The distance from a row's numbers to the next row's: 0 if all rows share them.
    omit : int or None
        None if a NaN is not left out.
    """

    keep: Any
    step: int
    omit: int


def _make_result(formula: Formula, element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled function of the results of stored elements."""
    to_compute, to_storage = element_type.to_compute, element_type.to_storage
    forward, normalized = inlined(formula.forward), make_normalized(formula.centred)

    @inlined
    def result(values, kept, omit, statistics, gamma, beta, fill):
        scale, mean_hi, mean_lo, rstd = statistics
        x = to_compute(values)
        y = forward(normalized(x, scale, mean_hi, mean_lo, rstd), gamma, beta)
        return to_storage(filled(y, kept, x, omit, fill.fill, fill.missing))

    return result


def _make_apply(element_type: ElementType, result: Callable[..., Any]) -> Callable[..., Any]:
    """Return a compiled function that stores the results of a part of a segment."""
    count, real = 2 * element_type.lanes, element_type.compute_type
    load, masked_load = make_load(count), make_masked_load(count)
    load_or_scalar, masked_elements = make_load_or_scalar(count), make_masked_elements(count)
    masked_kept, peel_of = make_masked_kept(count), make_peel(element_type)
    peeled = each_peels_to_alignment(element_type)
    prefetches, line_elements = has_avx512(), LINE // element_type.storage_dtype.itemsize

    @inlined
    def store_masked(x, keep, omit, statistics, weights, fill, y, j, begin, end):
        weight = masked_elements(weights[0], j, begin, end, real(1))
        bias = masked_elements(weights[1], j, begin, end, real(0))
        values, kept = masked_load(x, j, begin, end), masked_kept(keep, j, begin, end)
        results = result(values, kept, omit, statistics, weight, bias, fill)
        masked_store(y, j, results, begin, end)

    @inlined
    def apply(x, keep, omit, ahead, statistics, weights, fill, y):
        gamma, beta = weights
        peel = min(peel_of(y, y.size), y.size)
        if peeled and peel > 0:
            j, low = peel - count, count - peel
            store_masked(x, keep, omit, statistics, weights, fill, y, j, low, count)
        tail = y.size - (y.size - peel) % count
        for j in range(peel, tail, count):
            if prefetches:
                for line in range(j, j + count, line_elements):
                    prefetch(x, line + ahead)
            weight, bias = load_or_scalar(gamma, j, real(1)), load_or_scalar(beta, j, real(0))
            values, kept = load(x, j), load_or_scalar(keep, j, None)
            store(y, j, result(values, kept, omit, statistics, weight, bias, fill))
        if tail < y.size:
            n = y.size - tail
            store_masked(x, keep, omit, statistics, weights, fill, y, tail, 0, n)

    return apply


def _make_apply_row(
    element_type: ElementType, result: Callable[..., Any], writer: Writer
) -> Callable[..., Any]:
    """Return a compiled function that stores a row's results, and returns the writer's state."""
    apply, factor = _make_apply(element_type, result), make_factor(element_type)
    _, _, target_of, written, _ = writer

    @inlined
    def apply_row(x, i, mask, statistics, weights, segments, fill, to):
        scale, mean_hi, mean_lo, rstd = statistics
        of_row, width = (scale, mean_hi, mean_lo, factor(rstd)), x.shape[1]
        segment, _, channels = segments
        y, buffer, state, combines = to
        source, keep, c = (
            row(x, i),
            window(mask.keep, i * mask.step, width),
            channel_of(i, segments),
        )
        for at in range(0, width, segment):
            gamma, beta = part(weights.gamma, c), part(weights.beta, c)
            for left in range(0, segment, tuning.SUM_BLOCK_ELEMENTS):
                n, j = min(tuning.SUM_BLOCK_ELEMENTS, segment - left), at + left
                weight, kept = (window(gamma, left, n), window(beta, left, n)), window(keep, j, n)
                target = target_of(y, i * width + j, n, buffer, state, combines)
                apply(window(source, j, n), kept, mask.omit, width, of_row, weight, fill, target)
                state = written(y, n, buffer, state, combines)
            c = c + 1 if c + 1 < channels else 0
        return state

    return apply_row


def _make_tiles(
    formula: Formula,
    element_type: ElementType,
    statistics_of: Callable[..., Any],
    result: Callable[..., Any],
    writer: Writer,
) -> Callable[..., Any]:
    """Return a compiled function for rows in tiles, which returns the writer's state."""
    lanes, narrow, (_, _, target_of, written, _) = element_type.lanes, widest(element_type), writer
    factor = make_factor(element_type)
    tile = make_masked_tile(formula, element_type, statistics_of, result, factor)

    @inlined
    def tiles(x, mask, scaling, weights, fill, to, saved, start, stop):
        y, buffer, state, combines = to
        flat, width = as_flat(x), x.shape[1]
        step = lanes if width <= narrow else 2
        for i in range(start, stop, step):
            number, at = min(step, stop - i), i * width
            size = number * width
            target = target_of(y, at, size, buffer, state, combines)
            keep = window(mask.keep, i * mask.step, number * width)
            own = Mask(keep, mask.step, mask.omit)
            given = window(flat, at, size), own, width, scaling, weights, fill
            tile(*given, target, saved, i, number)
            state = written(y, size, buffer, state, combines)
        return state

    return tiles


def _make_rows(
    formula: Formula,
    element_type: ElementType,
    statistics_of: Callable[..., Any],
    result: Callable[..., Any],
    writer: Writer,
) -> Callable[..., Any]:
    """Return a compiled function for rows one by one, which returns the writer's state.

    The results of a row are stored after the statistics of the next one: from the sums of a row to
    its rstd leads a long chain of instructions, which does not wait for these stores.
    """
    no_statistics = make_no_statistics(formula, element_type)
    apply_row = _make_apply_row(element_type, result, writer)

    @inlined
    def rows(x, mask, scaling, weights, segments, fill, to, saved, start, stop):
        y, buffer, state, combines = to
        width, before = x.shape[1], no_statistics()
        for i in range(start, stop + 1):
            statistics = before
            if i < stop:
                keep = window(mask.keep, i * mask.step, width)
                statistics = statistics_of(row(x, i), keep, mask.omit, scaling)
                save(saved, i, statistics)
            if i > start:
                to = y, buffer, state, combines
                state = apply_row(x, i - 1, mask, before, weights, segments, fill, to)
            before = statistics
        return state

    return rows


def make_masked_forward(formula: Formula, element_type: ElementType) -> Kernel:
    """Return the forward kernel of a formula, for x ``(N, D)``; see `make_row_forward`."""
    narrow, lanes = widest(element_type), element_type.lanes
    writer = make_writer(element_type, max(tuning.SUM_BLOCK_ELEMENTS, lanes * narrow))
    make_buffer, begin, _, _, finish = writer
    parts_of = make_masked_statistics(formula, element_type), _make_result(formula, element_type)
    rows = _make_rows(formula, element_type, *parts_of, writer)
    tiles = _make_tiles(formula, element_type, *parts_of, writer)

    def kernel(
        x: Any,
        mask: Mask,
        weights: Parameters,
        segments: Segments,
        scaling: Scaling,
        fill: Fill,
        y: Any,
        saved: Statistics,
        parts: int,
        first: int,
        last: int,
    ) -> None:
        width, flat_y, buffer = x.shape[1], as_flat(y), make_buffer()
        all_segments = segments.segment, width // segments.segment, segments.channels
        start, stop = first * x.shape[0] // parts, last * x.shape[0] // parts
        combines, state = uses_write_combining(y), begin(flat_y, start * width)
        to = flat_y, buffer, state, combines
        small = y.size * y.itemsize < tuning.PAIR_BELOW_BYTES
        most = tuning.SUM_BLOCK_ELEMENTS if small else narrow
        if all_segments[1] == 1 and segments.channels <= 1 and width <= most:
            state = tiles(x, mask, scaling, weights, fill, to, saved, start, stop)
        else:
            given = x, mask, scaling, weights, all_segments, fill, to, saved, start, stop
            state = rows(*given)
        finish(flat_y, buffer, state, combines)

    return make_grouped_kernel(f"masked.row_forward.{formula.name}.{element_type.name}", kernel)
