"""The kernel of the norms with statistics of each row, of which elements are left out."""

from collections.abc import Callable
from typing import Any, NamedTuple

from numnorm.backends.contract.norms import Formula
from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.compiler.jit import Kernel, inlined
from numnorm.backends.cpu.memory.borrowed import as_flat, row, window
from numnorm.backends.cpu.memory.grouped_kernel import make_grouped_kernel
from numnorm.backends.cpu.memory.placement import LINE
from numnorm.backends.cpu.memory.write_combining import uses_write_combining
from numnorm.backends.cpu.rows.arguments import Parameters, Segments, Statistics
from numnorm.backends.cpu.rows.segment_loops import channel_of
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.kept import filled
from numnorm.backends.cpu.simd.masked import make_masked_load, masked_store
from numnorm.backends.cpu.simd.optional import part
from numnorm.backends.cpu.simd.optional_vector import make_load_or_scalar, make_masked_elements
from numnorm.backends.cpu.simd.processor import has_avx512
from numnorm.backends.cpu.simd.vector import make_load, prefetch, store
from numnorm.backends.cpu.statistics.normalize import make_factor, make_normalized
from numnorm.backends.cpu.statistics.saved import save
from numnorm.backends.cpu.weighted.loops import Fill
from numnorm.backends.cpu.weighted.masked_statistics import make_masked_statistics
from numnorm.backends.cpu.weighted.writer import make_writer


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
    keep : array of uint8
        0 where an element is left out, flat, for all rows or for each row.
    step : int
        The distance from the numbers of one row to those of the next: 0 if all rows share them.
    omit : int
        1 if a NaN is left out, too, else 0.
    """

    keep: Any
    step: int
    omit: int


def _make_apply(formula: Formula, element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``apply(x, keep, ahead, statistics, weights, fill, y)`` of a segment."""
    count, real = 2 * element_type.lanes, element_type.compute_type
    to_compute, to_storage = element_type.to_compute, element_type.to_storage
    forward, normalized = inlined(formula.forward), make_normalized(formula.centred)
    load, masked_load = make_load(count), make_masked_load(count)
    load_or_scalar, masked_elements = make_load_or_scalar(count), make_masked_elements(count)
    prefetches, line_elements = has_avx512(), LINE // element_type.storage_dtype.itemsize

    @inlined
    def result(values, kept, statistics, gamma, beta, fill):
        scale, mean_hi, mean_lo, rstd = statistics
        x = to_compute(values)
        y = forward(normalized(x, scale, mean_hi, mean_lo, rstd), gamma, beta)
        return to_storage(filled(y, kept, x, fill.fill, fill.missing))

    @inlined
    def apply(x, keep, ahead, statistics, weights, fill, y):
        gamma, beta = weights
        tail = x.size - x.size % count
        for j in range(0, tail, count):
            if prefetches:
                for line in range(j, j + count, line_elements):
                    prefetch(x, line + ahead)
            weight, bias = load_or_scalar(gamma, j, real(1)), load_or_scalar(beta, j, real(0))
            store(y, j, result(load(x, j), load(keep, j), statistics, weight, bias, fill))
        n = x.size - tail
        if n > 0:
            weight = masked_elements(gamma, tail, 0, n, real(1))
            bias = masked_elements(beta, tail, 0, n, real(0))
            values, kept = masked_load(x, tail, 0, n), masked_load(keep, tail, 0, n)
            masked_store(y, tail, result(values, kept, statistics, weight, bias, fill), 0, n)

    return apply


def make_masked_forward(formula: Formula, element_type: ElementType) -> Kernel:
    """Return the forward kernel of a formula, for x ``(N, D)``; see `make_row_forward`."""
    statistics_of = make_masked_statistics(formula, element_type)
    apply, factor = _make_apply(formula, element_type), make_factor(element_type)
    make_buffer, begin, target_of, written, finish = make_writer(
        element_type, tuning.SUM_BLOCK_ELEMENTS
    )

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
        width, (keep, step, omit), flat_y = x.shape[1], mask, as_flat(y)
        all_segments = segments.segment, width // segments.segment, segments.channels
        start, stop = first * x.shape[0] // parts, last * x.shape[0] // parts
        buffer, combines, state = (
            make_buffer(),
            uses_write_combining(y),
            begin(flat_y, start * width),
        )
        for i in range(start, stop):
            source, kept, c = row(x, i), window(keep, i * step, width), channel_of(i, all_segments)
            statistics = statistics_of(source, kept, omit, scaling)
            of_row = statistics[0], statistics[1], statistics[2], factor(statistics[3])
            for segment in range(0, width, segments.segment):
                gamma, beta = part(weights.gamma, c), part(weights.beta, c)
                for left in range(0, segments.segment, tuning.SUM_BLOCK_ELEMENTS):
                    n = min(tuning.SUM_BLOCK_ELEMENTS, segments.segment - left)
                    weight, at = (window(gamma, left, n), window(beta, left, n)), segment + left
                    target = target_of(flat_y, i * width + at, n, buffer, state, combines)
                    values, of_block = window(source, at, n), window(kept, at, n)
                    apply(values, of_block, width, of_row, weight, fill, target)
                    state = written(flat_y, n, buffer, state, combines)
                c = c + 1 if c + 1 < segments.channels else 0
            save(saved, i, statistics)
        finish(flat_y, buffer, state, combines)

    return make_grouped_kernel(f"masked.row_forward.{formula.name}.{element_type.name}", kernel)
