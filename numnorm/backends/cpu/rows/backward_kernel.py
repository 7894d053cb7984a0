"""The backward kernel of the norms with statistics of each row.

Rows of one, two or four vectors stay in registers. Longer rows are read twice, and narrow rows of
other widths are taken in tiles. A row in registers takes few instructions, so that the processor
reads the next row meanwhile; it cannot do so across a tile.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba.core import types

from numnorm.backends.contract.norms import Formula
from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.compiler.jit import (
    Function,
    Kernel,
    inlined,
    make_function,
    overloaded,
    shared,
)
from numnorm.backends.cpu.memory.alignment import (
    aligned_copy,
    common_peel,
    peels_to_alignment,
)
from numnorm.backends.cpu.memory.grouped_kernel import make_grouped_kernel
from numnorm.backends.cpu.memory.kernel_arrays import make_scratch, release, row, shaped, window
from numnorm.backends.cpu.memory.nontemporal import fence_after_stores, use_nontemporal_gradient
from numnorm.backends.cpu.rows.arguments import (
    GradientCoefficients,
    Incoming,
    Parameters,
    Segments,
    Statistics,
)
from numnorm.backends.cpu.rows.segment_loops import (
    channel_of,
    make_added,
    make_gradient_lanes,
    make_gradient_sums,
    make_input_gradients,
    next_channel,
)
from numnorm.backends.cpu.rows.tiles import sums_scratch_size
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.optional import add, make_load_or_scalar, part
from numnorm.backends.cpu.simd.squares import make_reduce_rows
from numnorm.backends.cpu.simd.vector import (
    make_load,
    make_zeros,
    reduce_sum,
    store,
    store_either,
)
from numnorm.backends.cpu.statistics.accumulators import (
    collect,
    flush,
    is_by_channel,
    partial_sums,
    with_parts,
)
from numnorm.backends.cpu.statistics.normalize import make_normalized
from numnorm.backends.cpu.statistics.saved import make_means, make_statistics_of_row
from numnorm.backends.formulas.norms import input_gradient

# The gradients of gamma and beta from the sums of all parts of the rows


@shared
def _add_parts(totals: Any, result: Any) -> None:
    """Add up parts ``(parts, size)`` in order, into the first one, and round the sum once."""
    for p in range(1, totals.shape[0]):
        for j in range(totals.shape[1]):
            totals[0, j] += totals[p, j]
    for j in range(totals.shape[1]):
        result[j] = totals[0, j]


def add_parts(totals, result):
    """Add up the parts of a parameter of any shape, unless it is None or the result is empty."""
    if totals is not None and result.size > 0:
        _add_parts(np.reshape(totals, (totals.shape[0], -1)), result)


@overloaded(add_parts)
def _add_parts_of_parameter(totals, result):
    if not isinstance(totals, types.Array):
        return lambda totals, result: None

    def implementation(totals, result):
        if result.size > 0 and totals.size > 0:
            _add_parts(shaped(totals, (totals.shape[0], result.size)), result)

    return implementation


def make_row_totals() -> Function:
    """Return the kernel ``(dgamma_parts, dbeta_parts, dgamma, dbeta)``.

    It adds up parts ``(parts, size)`` in order, into the first part, and rounds the sums once to
    dgamma and dbeta ``(size,)``. Parts of None are skipped.
    """

    def kernel(dgamma_parts, dbeta_parts, dgamma, dbeta):
        add_parts(dgamma_parts, dgamma)
        add_parts(dbeta_parts, dbeta)

    return make_function("row_totals", kernel)


# Rows that stay in registers


_input_gradient = inlined(input_gradient)


@inlined
def _no_short_rows(*arguments):
    return False


def _has_short_rows(element_type: ElementType) -> bool:
    """Return whether rows of these elements are faster here than in tiles.

    Halves are not: their conversion takes longer than memory does.
    """
    return element_type.storage_dtype.itemsize > 2


def _make_backward(
    formula: Formula, element_type: ElementType, count: int, *, adds: bool
) -> Callable[..., Any]:
    """Return a compiled function for rows of `count` elements.

    ``rows(arrays, nontemporal, saved, weights, coefficients, partial, totals, start, stop)`` takes
    dy, x, dx and dtotal as `arrays`. It adds the gradients of gamma and beta to the partial
    sums, and flushes these to the totals.
    """
    backward, normalized = inlined(formula.backward), make_normalized(formula.centred)
    to_compute, to_storage = element_type.to_compute, element_type.to_storage
    statistics_of = make_statistics_of_row(formula, element_type)
    means_of = make_means(element_type)
    real, load = element_type.compute_type, make_load(count)
    load_or_scalar, zeros = make_load_or_scalar(count), make_zeros(real, count)
    added = make_added(element_type, adds=adds)

    @inlined
    def rows(arrays, nontemporal, saved, weights, coefficients, partial, totals, start, stop):
        (dy, x, dx, dtotal), (mean, rstd) = arrays, saved
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
                result = added(to_storage(gradient), load_or_scalar(row(dtotal, i), 0, None))
                store_either(row(dx, i), 0, result, nontemporal)
                dgamma, dbeta = dgamma + grad * xhat, dbeta + grad
            add(part(partial[0], 0), 0, dgamma)
            add(part(partial[1], 0), 0, dbeta)
            flush(partial[0], totals[0])
            flush(partial[1], totals[1])

    return rows


def make_short_backward(
    formula: Formula, element_type: ElementType, *, adds: bool
) -> Callable[..., Any]:
    """Return a compiled function for rows of one segment of one, two or four vectors.

    ``short_rows(arrays, saved, segments, weights, coefficients, partial, totals, start, stop)``
    does nothing and returns False for other rows.
    """
    if not _has_short_rows(element_type):
        return _no_short_rows
    lanes = element_type.lanes
    one = _make_backward(formula, element_type, lanes, adds=adds)
    two = _make_backward(formula, element_type, 2 * lanes, adds=adds)
    four = _make_backward(formula, element_type, 4 * lanes, adds=adds)

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


# All rows


# Python's numbers would be literals, for each of which Numba compiles a helper again.
_ZERO, _FALSE = np.int64(0), np.bool_(False)


def _tile_width(element_type: ElementType) -> int:
    """Return the width below which rows are taken in tiles, twice as large for halves."""
    width = tuning.BACKWARD_TILE_BELOW_ROW_BYTES // element_type.compute_dtype.itemsize
    return width if element_type.storage_dtype.itemsize > 2 else 2 * width


@inlined
def _rows_between_flushes(segments: tuple[int, int, int]) -> int:
    """Return after how many rows a channel's partial sums have as many terms as they may."""
    _, segment_count, channels = segments
    return tuning.ROWS_BETWEEN_FLUSHES * max(1, channels // segment_count)


def _make_loops(formula: Formula, element_type: ElementType, *, adds: bool) -> Callable[..., Any]:
    """Return a compiled function for one row with known statistics, segment by segment.

    `arrays` are the row's dy, x, dx and dtotal; `peels` are the peels of the loops over x and over
    dx; `rstd` is the saved one. The gradients of gamma and beta are added to the partial sums or
    the totals.
    """
    gradient_sums = make_gradient_sums(formula, element_type)
    input_gradients = make_input_gradients(formula, element_type, adds=adds)
    means_of = make_means(element_type)
    prefetched = tuning.PREFETCH_LEAST_ROW_BYTES // element_type.storage_dtype.itemsize

    @inlined
    def loops(
        arrays, peels, nontemporal, rstd, statistics, first_channel, segments, weights,
        coefficients, partial, totals,
    ):  # fmt: skip
        dy, x, dx, dtotal = arrays
        segment, segment_count, channels = segments
        ahead = x.size if x.size >= prefetched else 0
        sum_g, sum_g_xhat = np.float64(0), np.float64(0)
        c = first_channel
        for p in range(segment_count):
            left = p * segment
            g, g_xhat, dy_xhat, grad = gradient_sums(
                window(dy, left, segment), window(x, left, segment), peels[0], ahead, statistics,
                (part(weights[0], c), part(weights[1], c)),
                (part(partial[0], c), part(partial[1], c)),
            )  # fmt: skip
            sum_g += g
            sum_g_xhat += g_xhat
            collect(totals[0], c, dy_xhat)
            collect(totals[1], c, grad)
            c = c + 1 if c + 1 < channels else 0
        means = means_of(sum_g, sum_g_xhat, rstd, coefficients)
        c = first_channel
        for p in range(segment_count):
            left = p * segment
            input_gradients(
                window(dy, left, segment), window(x, left, segment),
                window(dtotal, left, segment), peels[1], statistics,
                (part(weights[0], c), part(weights[1], c)), means, window(dx, left, segment),
                nontemporal,
            )  # fmt: skip
            c = c + 1 if c + 1 < channels else 0

    return loops


def _make_whole_row(
    formula: Formula, element_type: ElementType, *, adds: bool
) -> Callable[..., Any]:
    """Return a compiled function for one row that is one segment and one block of a sum.

    It saves the loops over segments and blocks, which take long beside such a row.
    """
    gradient_lanes = make_gradient_lanes(formula, element_type, l1=True)
    input_gradients = make_input_gradients(formula, element_type, adds=adds)
    means_of = make_means(element_type)

    @inlined
    def whole_row(
        arrays, peels, ahead, nontemporal, rstd, statistics, c, weights, coefficients, targets,
        totals,
    ):  # fmt: skip
        dy, x, dx, dtotal = arrays
        g, g_xhat, dy_xhat, grad = gradient_lanes(
            dy, x, _ZERO, x.size, peels[0], ahead, statistics, weights, targets
        )
        collect(totals[0], c, np.float64(reduce_sum(dy_xhat)))
        collect(totals[1], c, np.float64(reduce_sum(grad)))
        sum_g, sum_g_xhat = np.float64(reduce_sum(g)), np.float64(reduce_sum(g_xhat))
        means = means_of(sum_g, sum_g_xhat, rstd, coefficients)
        input_gradients(dy, x, dtotal, peels[1], statistics, weights, means, dx, nontemporal)

    return whole_row


def _make_row(formula: Formula, element_type: ElementType, *, adds: bool) -> Callable[..., Any]:
    """Return a compiled function for one row of any width, whose first channel is c."""
    real, statistics_of = element_type.compute_type, make_statistics_of_row(formula, element_type)
    loops, whole_row = (
        _make_loops(formula, element_type, adds=adds),
        _make_whole_row(formula, element_type, adds=adds),
    )
    prefetched = tuning.PREFETCH_LEAST_ROW_BYTES // element_type.storage_dtype.itemsize

    @inlined
    def backward_row(
        arrays, peels, nontemporal, saved, c, segments, weights, coefficients, partial, totals
    ):
        mean, rstd = saved
        scale, mean_hi, mean_lo, factor = statistics_of(arrays[1], mean, rstd)
        size = arrays[1].size
        # One segment has a parameter for each element, one for the row, or none.
        if segments[1] == 1 and scale == real(1) and size <= tuning.SUM_BLOCK_ELEMENTS:
            statistics = None, mean_hi, mean_lo, factor
            # Beside one sum for each channel, a prefetch of streamed rows took longer.
            streams = nontemporal and not is_by_channel(totals[0])
            ahead = size if streams or size >= prefetched else 0
            whole_row(
                arrays, peels, ahead, nontemporal, rstd, statistics, c,
                (part(weights[0], c), part(weights[1], c)), coefficients,
                (part(partial[0], c), part(partial[1], c)), totals,
            )  # fmt: skip
        else:
            statistics = scale, mean_hi, mean_lo, factor
            loops(
                arrays, peels, nontemporal, rstd, statistics, c, segments, weights, coefficients,
                partial, totals,
            )  # fmt: skip

    return backward_row


def _make_tile(formula: Formula, element_type: ElementType, *, adds: bool) -> Callable[..., Any]:
    """Return a compiled function for up to as many narrow rows as a vector has lanes.

    It takes `number` rows from the row `start` on, whose channel is `first`, and returns the
    channel of the next row.
    """
    lanes, sums_size = element_type.lanes, sums_scratch_size(element_type)
    gradient_lanes, reduce = make_gradient_lanes(formula, element_type), make_reduce_rows(lanes)
    input_gradients = make_input_gradients(formula, element_type, adds=adds)
    statistics_of = make_statistics_of_row(formula, element_type)
    means_of = make_means(element_type)

    @inlined
    def backward_tile(
        arrays, saved, segments, first, weights, coefficients, partial, scratch, start, number
    ):
        dy, x, dx, dtotal = arrays
        mean, rstd = saved
        channel = first
        end = sums_size + lanes
        sums_of_g = window(scratch, sums_size, lanes)
        sums_of_g_xhat = window(scratch, end, lanes)
        for t in range(number):
            i = start + t
            statistics = statistics_of(row(x, i), part(mean, i), rstd[i])
            weight = part(weights[0], channel), part(weights[1], channel)
            targets = part(partial[0], channel), part(partial[1], channel)
            g, g_xhat, _, _ = gradient_lanes(
                row(dy, i), row(x, i), _ZERO, x.shape[1], _ZERO, _ZERO, statistics, weight, targets
            )
            store(scratch, t * lanes, g)
            store(scratch, (lanes + t) * lanes, g_xhat)
            channel = next_channel(channel, segments)
        store(sums_of_g, 0, reduce(scratch))
        store(sums_of_g_xhat, 0, reduce(window(scratch, lanes * lanes, lanes * lanes)))
        channel = first
        for t in range(number):
            i = start + t
            statistics = statistics_of(row(x, i), part(mean, i), rstd[i])
            sum_g, sum_g_xhat = np.float64(sums_of_g[t]), np.float64(sums_of_g_xhat[t])
            means = means_of(sum_g, sum_g_xhat, rstd[i], coefficients)
            weight = part(weights[0], channel), part(weights[1], channel)
            input_gradients(
                row(dy, i),
                row(x, i),
                row(dtotal, i),
                _ZERO,
                statistics,
                weight,
                means,
                row(dx, i),
                _FALSE,
            )
            channel = next_channel(channel, segments)
        return channel

    return backward_tile


def _make_wide_rows(
    formula: Formula, element_type: ElementType, *, adds: bool
) -> Callable[..., Any]:
    """Return a compiled function for the rows from start to stop, one after the other."""
    backward_row = _make_row(formula, element_type, adds=adds)

    @inlined
    def wide_rows(
        arrays, peels, saved, segments, weights, coefficients, partial, totals, start, stop
    ):
        dy, x, dx, dtotal = arrays
        mean, rstd = saved
        channel, between = channel_of(start, segments), _rows_between_flushes(segments)
        nontemporal = use_nontemporal_gradient(dx, segments[0], peels[1])
        for begin in range(start, stop, between):
            for i in range(begin, min(begin + between, stop)):
                backward_row(
                    (row(dy, i), row(x, i), row(dx, i), row(dtotal, i)), peels, nontemporal,
                    (part(mean, i), rstd[i]), channel, segments, weights, coefficients,
                    partial, totals,
                )  # fmt: skip
                channel = next_channel(channel, segments)
            flush(partial[0], totals[0])
            flush(partial[1], totals[1])
        fence_after_stores(nontemporal)

    return wide_rows


def _make_narrow_rows(
    formula: Formula, element_type: ElementType, *, adds: bool
) -> Callable[..., Any]:
    """Return a compiled function for the rows from start to stop, tile by tile."""
    backward_tile, lanes = _make_tile(formula, element_type, adds=adds), element_type.lanes
    scratch_size = sums_scratch_size(element_type) + 2 * lanes
    tile_scratch = make_scratch(element_type.compute_type, scratch_size)

    @inlined
    def narrow_rows(arrays, saved, segments, weights, coefficients, partial, totals, start, stop):
        scratch, between = tile_scratch(), _rows_between_flushes(segments)
        channel = channel_of(start, segments)
        for i in range(start, stop, lanes):
            channel = backward_tile(
                arrays, saved, segments, channel, weights, coefficients, partial, scratch,
                i, min(lanes, stop - i),
            )  # fmt: skip
            if (i - start + lanes) % between == 0 or i + lanes >= stop:
                flush(partial[0], totals[0])
                flush(partial[1], totals[1])

    return narrow_rows


def _make_part(formula: Formula, element_type: ElementType, *, adds: bool) -> Callable[..., Any]:
    """Return a compiled function for one part of the rows, from start to stop.

    It chooses the loops, and makes the partial sums of the gradients of gamma and beta.
    """
    wide_rows = _make_wide_rows(formula, element_type, adds=adds)
    narrow_rows = _make_narrow_rows(formula, element_type, adds=adds)
    short_rows, real = (
        make_short_backward(formula, element_type, adds=adds),
        element_type.compute_type,
    )
    tile_width = _tile_width(element_type)

    @inlined
    def backward_part(
        arrays, peels, saved, segments, weights, coefficients, results, totals, start, stop
    ):
        segment, _, channels = segments
        width = arrays[1].shape[1]
        dgamma = partial_sums(totals[0], real(0), peels[0], results[0], (channels, segment))
        dbeta = partial_sums(totals[1], real(0), peels[0], results[1], (channels, segment))
        partial = dgamma, dbeta
        by_element = not (is_by_channel(totals[0]) or is_by_channel(totals[1]))
        if by_element and short_rows(
            arrays, saved, segments, weights, coefficients, partial, totals, start, stop
        ):
            pass
        elif by_element and segments[1] == 1 and width < tile_width:
            narrow_rows(
                arrays, saved, segments, weights, coefficients, partial, totals, start, stop
            )
        else:
            wide_rows(
                arrays, peels, saved, segments, weights, coefficients, partial, totals, start, stop
            )
        release((dgamma, dbeta))

    return backward_part


def _make_all_parts(
    formula: Formula, element_type: ElementType, *, adds: bool
) -> Callable[..., Any]:
    """Return a compiled function of what a backward kernel takes, and of dtotal, or None."""
    backward_part = _make_part(formula, element_type, adds=adds)
    tile_width, peeled = _tile_width(element_type), peels_to_alignment(element_type)

    @inlined
    def all_parts(
        arrays, saved, weights, segments, coefficients, sums, results, parts, first, last
    ):
        (_, x, dx, _), segment = arrays, segments.segment
        is_peeled = peeled and x.shape[1] >= tile_width
        peels = (common_peel(x, segment), common_peel(dx, segment)) if is_peeled else (0, 0)
        gamma, beta = aligned_copy(weights.gamma, peels[0]), aligned_copy(weights.beta, peels[0])
        all_segments = segment, x.shape[1] // segment, segments.channels
        once = last - first == parts == 1 and x.shape[0] <= _rows_between_flushes(all_segments)
        dgamma = with_parts(sums.gamma, parts, results.gamma, once)
        dbeta = with_parts(sums.beta, parts, results.beta, once)
        for p in range(first, last):
            totals = part(dgamma, p), part(dbeta, p)
            start, stop = p * x.shape[0] // parts, (p + 1) * x.shape[0] // parts
            backward_part(
                arrays, peels, saved, all_segments, (gamma, beta), coefficients, results,
                totals, start, stop,
            )  # fmt: skip
        if last - first == parts:
            add_parts(dgamma, results.gamma)
            add_parts(dbeta, results.beta)
        release((gamma, beta, dgamma, dbeta))

    return all_parts


def make_row_backward(formula: Formula, element_type: ElementType) -> Kernel:
    """Return the kernel of a norm's gradients.

    It takes dy, ``x (N, D)``, the statistics, gamma and beta, the segments, the coefficients, dx,
    the totals of dgamma and dbeta for each part of the rows, dgamma and dbeta as `results`, and
    the number of parts. The parts follow from the shapes, so that no thread count changes a sum.
    A call that does all parts also stores the parts' sums in the results, of shape ``(size,)``,
    unless these are empty; only then may the totals have no parts.
    """
    all_parts = _make_all_parts(formula, element_type, adds=False)

    def kernel(
        dy: Any,
        x: Any,
        saved: Statistics,
        weights: Parameters,
        segments: Segments,
        coefficients: GradientCoefficients,
        dx: Any,
        sums: Parameters,
        results: Parameters,
        parts: int,
        first: int,
        last: int,
    ) -> None:
        arrays = dy, x, dx, None
        given = saved, weights, segments, coefficients
        all_parts(arrays, *given, sums, results, parts, first, last)

    return make_grouped_kernel(f"row_backward.{formula.name}.{element_type.name}", kernel)


def make_row_backward_added(formula: Formula, element_type: ElementType) -> Kernel:
    """Return the kernel of a norm's gradients that adds an array like dx to dx.

    It takes what the kernel of `make_row_backward` takes, and dtotal after dy.
    """
    all_parts = _make_all_parts(formula, element_type, adds=True)

    def kernel(
        incoming: Incoming,
        x: Any,
        saved: Statistics,
        weights: Parameters,
        segments: Segments,
        coefficients: GradientCoefficients,
        dx: Any,
        sums: Parameters,
        results: Parameters,
        parts: int,
        first: int,
        last: int,
    ) -> None:
        arrays = incoming.dy, x, dx, incoming.dtotal
        given = saved, weights, segments, coefficients
        all_parts(arrays, *given, sums, results, parts, first, last)

    return make_grouped_kernel(f"row_backward_added.{formula.name}.{element_type.name}", kernel)
