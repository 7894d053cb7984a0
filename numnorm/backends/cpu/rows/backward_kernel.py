"""The backward kernel of every norm whose statistics are shared by a row."""

from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.backends.contract.norms import Formula
from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.compiler.jit import Kernel, inlined
from numnorm.backends.cpu.memory.alignment import (
    aligned_copy,
    common_peel,
    keep_alive,
    peels_to_alignment,
)
from numnorm.backends.cpu.memory.borrowed import borrowed, make_scratch
from numnorm.backends.cpu.memory.grouped_kernel import make_grouped_kernel
from numnorm.backends.cpu.memory.nontemporal import fence_after_stores, use_nontemporal_gradient
from numnorm.backends.cpu.rows.arguments import (
    GradientCoefficients,
    Parameters,
    Segments,
    Statistics,
)
from numnorm.backends.cpu.rows.parameter_gradient_kernel import add_parts
from numnorm.backends.cpu.rows.register_rows_backward import make_short_backward
from numnorm.backends.cpu.rows.segment_loops import (
    channel_of,
    make_gradient_lanes,
    make_gradient_sums,
    make_input_gradients,
    next_channel,
)
from numnorm.backends.cpu.rows.tile_sums import room_for_sums
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.optional import part
from numnorm.backends.cpu.simd.vector import make_reduce_rows, reduce_sum, store
from numnorm.backends.cpu.statistics.accumulators import (
    ROWS_BETWEEN_FLUSHES,
    collect,
    compute_sums,
    flush,
    is_by_channel,
    with_parts,
)
from numnorm.backends.cpu.statistics.saved import make_means, make_saved_statistics


def _narrow_width(element_type: ElementType) -> int:
    """Return from how many elements on rows are not taken in tiles, of halves twice as many."""
    width = tuning.BACKWARD_TILE_BELOW_ROW_BYTES // element_type.compute_dtype.itemsize
    return width if element_type.storage_dtype.itemsize > 2 else 2 * width


@inlined
def _rows_between_flushes(segments: tuple[int, int, int]) -> int:
    """Return how many rows add as much to a channel's sums as may be added up before a flush."""
    _, segment_count, channels = segments
    return ROWS_BETWEEN_FLUSHES * max(1, channels // segment_count)


def _make_row_sums(formula: Formula, element_type: ElementType) -> Callable[..., Any]:
    gradient_sums = make_gradient_sums(formula, element_type)
    longest = tuning.PREFETCH_LEAST_ROW_BYTES // element_type.storage_dtype.itemsize

    @inlined
    def row_sums(dy, x, peel, statistics, first_channel, segments, weights, inner, totals):
        segment, segment_count, channels = segments
        ahead = x.size if x.size >= longest else 0
        gamma, beta = weights
        sum_g, sum_g_xhat = np.float64(0), np.float64(0)
        c = first_channel
        for p in range(segment_count):
            left, right = p * segment, (p + 1) * segment
            weight = part(gamma, c), part(beta, c)
            sums_here = part(inner[0], c), part(inner[1], c)
            g, g_xhat, dy_xhat, grad = gradient_sums(
                dy[left:right], x[left:right], peel, ahead, statistics, weight, sums_here
            )
            sum_g += g
            sum_g_xhat += g_xhat
            collect(totals[0], c, dy_xhat)
            collect(totals[1], c, grad)
            c = c + 1 if c + 1 < channels else 0
        return sum_g, sum_g_xhat

    return row_sums


def _make_loops(formula: Formula, element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled function for one row of known statistics."""
    row_sums, means_of = _make_row_sums(formula, element_type), make_means(element_type)
    input_gradients = make_input_gradients(formula, element_type)

    @inlined
    def loops(
        row,
        peels,
        nontemporal,
        rstd,
        found,
        first_channel,
        segments,
        weights,
        coefficients,
        inner,
        totals,
    ):
        dy, x, dx = row
        segment, segment_count, channels = segments
        gamma, beta = weights
        sum_g, sum_g_xhat = row_sums(
            dy, x, peels[0], found, first_channel, segments, weights, inner, totals
        )
        means = means_of(sum_g, sum_g_xhat, rstd, coefficients)
        c = first_channel
        for p in range(segment_count):
            left, right = p * segment, (p + 1) * segment
            weight = part(gamma, c), part(beta, c)
            here = dy[left:right], x[left:right], dx[left:right]
            input_gradients(here[0], here[1], peels[1], found, weight, means, here[2], nontemporal)
            c = c + 1 if c + 1 < channels else 0

    return loops


def _make_whole_row(formula: Formula, element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled function for one row that is one run of at most a stretch.

    To cut it into its only run, and that into its only stretch, would take too long.
    """
    gradient_lanes = make_gradient_lanes(formula, element_type, near=True)
    input_gradients, means_of = (
        make_input_gradients(formula, element_type),
        make_means(element_type),
    )

    @inlined
    def whole_row(row, peels, ahead, nontemporal, rstd, statistics, weights, coefficients, targets):
        dy, x, dx = row
        g, g_xhat, _, _ = gradient_lanes(
            dy, x, 0, x.size, peels[0], ahead, statistics, weights, targets
        )
        means = means_of(
            np.float64(reduce_sum(g)), np.float64(reduce_sum(g_xhat)), rstd, coefficients
        )
        input_gradients(dy, x, peels[1], statistics, weights, means, dx, nontemporal)

    return whole_row


def _make_row(formula: Formula, element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled function for one row of any width, cut into runs."""
    real, statistics_of = element_type.compute_type, make_saved_statistics(element_type)
    loops, whole_row = _make_loops(formula, element_type), _make_whole_row(formula, element_type)
    longest = tuning.PREFETCH_LEAST_ROW_BYTES // element_type.storage_dtype.itemsize

    @inlined
    def backward_row(
        row, peels, nontemporal, saved, c, segments, weights, coefficients, inner, totals
    ):
        mean, rstd = saved
        scale, mean_hi, mean_lo, factor = statistics_of(mean, rstd)
        size = row[1].size
        # A row with a parameter for each element, or with none, is one run.
        if not is_by_channel(totals[0]) and scale == real(1) and size <= tuning.SUM_BLOCK_ELEMENTS:
            found, ahead = (
                (None, mean_hi, mean_lo, factor),
                size if nontemporal or size >= longest else 0,
            )
            here = part(weights[0], c), part(weights[1], c)
            targets = part(inner[0], c), part(inner[1], c)
            whole_row(row, peels, ahead, nontemporal, rstd, found, here, coefficients, targets)
        elif scale == real(1):
            found = None, mean_hi, mean_lo, factor
            loops(
                row,
                peels,
                nontemporal,
                rstd,
                found,
                c,
                segments,
                weights,
                coefficients,
                inner,
                totals,
            )
        else:
            found = scale, mean_hi, mean_lo, factor
            loops(
                row, (0, 0), False, rstd, found, c, segments, weights, coefficients, inner, totals
            )

    return backward_row


def _make_tile(formula: Formula, element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled function for up to as many narrow rows as there are lanes."""
    lanes, room = element_type.lanes, room_for_sums(element_type)
    gradient_lanes = make_gradient_lanes(formula, element_type)
    totals = make_reduce_rows(lanes)
    input_gradients = make_input_gradients(formula, element_type)
    statistics_of, means_of = make_saved_statistics(element_type), make_means(element_type)

    @inlined
    def backward_tile(
        arrays, saved, segments, first, weights, coefficients, inner, scratch, start, number
    ):
        dy, x, dx = arrays
        mean, rstd = saved
        channel = first
        sums_of_g, sums_of_g_xhat = scratch[room:], scratch[room + lanes :]
        for t in range(number):
            i = start + t
            statistics = statistics_of(part(mean, i), rstd[i])
            weight = part(weights[0], channel), part(weights[1], channel)
            here = part(inner[0], channel), part(inner[1], channel)
            g, g_xhat, _, _ = gradient_lanes(
                dy[i], x[i], 0, x.shape[1], 0, 0, statistics, weight, here
            )
            store(scratch, t * lanes, g)
            store(scratch, (lanes + t) * lanes, g_xhat)
            channel = next_channel(channel, segments)
        store(sums_of_g, 0, totals(scratch))
        store(sums_of_g_xhat, 0, totals(scratch[lanes * lanes :]))
        channel = first
        for t in range(number):
            i = start + t
            statistics = statistics_of(part(mean, i), rstd[i])
            sums = np.float64(sums_of_g[t]), np.float64(sums_of_g_xhat[t])
            means = means_of(sums[0], sums[1], rstd[i], coefficients)
            weight = part(weights[0], channel), part(weights[1], channel)
            input_gradients(dy[i], x[i], 0, statistics, weight, means, dx[i])
            channel = next_channel(channel, segments)
        return channel

    return backward_tile


def _make_wide_rows(formula: Formula, element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled function for some rows, one after the other."""
    backward_row = _make_row(formula, element_type)

    @inlined
    def wide_rows(
        arrays, peels, saved, segments, weights, coefficients, inner, totals, start, stop
    ):
        dy, x, dx = arrays
        mean, rstd = saved
        channel, between = channel_of(start, segments), _rows_between_flushes(segments)
        nontemporal = use_nontemporal_gradient(dx, segments[0], peels[1])
        for begin in range(start, stop, between):
            for i in range(begin, min(begin + between, stop)):
                row, of_row = (dy[i], x[i], dx[i]), (part(mean, i), rstd[i])
                backward_row(
                    row,
                    peels,
                    nontemporal,
                    of_row,
                    channel,
                    segments,
                    weights,
                    coefficients,
                    inner,
                    totals,
                )
                channel = next_channel(channel, segments)
            flush(inner[0], totals[0])
            flush(inner[1], totals[1])
        fence_after_stores(nontemporal)

    return wide_rows


def _make_narrow_rows(formula: Formula, element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled function for some rows, tile by tile."""
    backward_tile = _make_tile(formula, element_type)
    lanes = element_type.lanes
    scratch = make_scratch(element_type.compute_type, room_for_sums(element_type) + 2 * lanes)

    @inlined
    def narrow_rows(arrays, saved, segments, weights, coefficients, inner, totals, start, stop):
        room, channel, between = (
            scratch(),
            channel_of(start, segments),
            _rows_between_flushes(segments),
        )
        for i in range(start, stop, lanes):
            number = min(lanes, stop - i)
            channel = backward_tile(
                arrays, saved, segments, channel, weights, coefficients, inner, room, i, number
            )
            if (i - start + lanes) % between == 0 or i + lanes >= stop:
                flush(inner[0], totals[0])
                flush(inner[1], totals[1])

    return narrow_rows


def make_row_backward(formula: Formula, element_type: ElementType) -> Kernel:
    """Return the kernel of a norm's gradients.

    It takes dy, ``x (N, D)``, their statistics, parameters and segments, the coefficients, dx, the
    sums for dgamma and dbeta, and their results. The sums have a row for each of the `parts` of x:
    the parts follow from the shapes, so that no thread count changes a sum. Where all parts are
    done in one call, the results of shape ``(size,)`` receive the parts' sums, unless they are
    empty; the sums may then have no parts.
    """
    wide_rows, narrow_rows = (
        _make_wide_rows(formula, element_type),
        _make_narrow_rows(formula, element_type),
    )
    short_rows, real = make_short_backward(formula, element_type), element_type.compute_type
    tile_width, at_lines = _narrow_width(element_type), peels_to_alignment(element_type)

    @inlined
    def backward_rows(
        arrays, peels, saved, segments, weights, coefficients, results, totals, start, stop
    ):
        segment, _, channels = segments
        width = arrays[1].shape[1]
        dgamma = compute_sums(totals[0], real(0), peels[0], results[0], (channels, segment))
        dbeta = compute_sums(totals[1], real(0), peels[0], results[1], (channels, segment))
        inner = (borrowed(dgamma), borrowed(dbeta))
        by_element = not (is_by_channel(totals[0]) or is_by_channel(totals[1]))
        if by_element and short_rows(
            arrays, saved, segments, weights, coefficients, inner, totals, start, stop
        ):
            return
        if by_element and segments[1] == 1 and width < tile_width:
            narrow_rows(arrays, saved, segments, weights, coefficients, inner, totals, start, stop)
        else:
            wide_rows(
                arrays, peels, saved, segments, weights, coefficients, inner, totals, start, stop
            )
        keep_alive((dgamma, dbeta))

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
        arrays, segment = (dy, x, dx), segments.segment
        at_line = at_lines and x.shape[1] >= tile_width
        peels = (common_peel(x, segment), common_peel(dx, segment)) if at_line else (0, 0)
        gamma, beta = aligned_copy(weights.gamma, peels[0]), aligned_copy(weights.beta, peels[0])
        all_segments, here = (
            (segment, x.shape[1] // segment, segments.channels),
            (borrowed(gamma), borrowed(beta)),
        )
        once = last - first == parts == 1 and x.shape[0] <= _rows_between_flushes(all_segments)
        dgamma = with_parts(sums.gamma, parts, results.gamma, once)
        dbeta = with_parts(sums.beta, parts, results.beta, once)
        for p in range(first, last):
            totals = (borrowed(part(dgamma, p)), borrowed(part(dbeta, p)))
            start, stop = p * x.shape[0] // parts, (p + 1) * x.shape[0] // parts
            backward_rows(
                arrays, peels, saved, all_segments, here, coefficients, results, totals, start, stop
            )
        if last - first == parts:
            add_parts(borrowed(dgamma), results.gamma)
            add_parts(borrowed(dbeta), results.beta)
        keep_alive((gamma, beta, dgamma, dbeta))

    return make_grouped_kernel(f"row_backward.{formula.name}.{element_type.name}", kernel)
