"""The backward kernel of the norms with statistics of each row, masked or with weights.

A row is one segment: gamma has a number for each of its elements, or there is one number for all.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from numnorm.backends.contract.norms import Formula
from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.compiler.jit import Kernel, inlined, shared
from numnorm.backends.cpu.memory.alignment import aligned_copy, common_peel, peels_to_alignment
from numnorm.backends.cpu.memory.grouped_kernel import make_grouped_kernel
from numnorm.backends.cpu.memory.kernel_arrays import release, row
from numnorm.backends.cpu.memory.nontemporal import fence_after_stores, use_nontemporal_gradient
from numnorm.backends.cpu.memory.placement import LINE
from numnorm.backends.cpu.rows.arguments import Parameters, Statistics
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.kept import (
    make_masked_kept,
    make_no_weight,
    total_weight,
    weighing,
    weight_kept,
    where_kept,
)
from numnorm.backends.cpu.simd.masked import make_masked_load, masked_store
from numnorm.backends.cpu.simd.optional import (
    add,
    add_product,
    make_load_or_scalar,
    make_masked_elements,
    masked_add,
    masked_add_product,
    part,
    scaled,
)
from numnorm.backends.cpu.simd.vector import (
    make_load,
    make_zeros,
    multiply_add,
    prefetch_l1,
    reduce_sum,
    store,
    store_either,
    store_nontemporal,
)
from numnorm.backends.cpu.statistics.accumulators import flush, partial_sums
from numnorm.backends.cpu.statistics.normalize import make_normalized
from numnorm.backends.cpu.statistics.saved import (
    FAR,
    MOST_LOST,
    make_means,
    make_saved_statistics,
)
from numnorm.backends.cpu.weighted.loops import quotient
from numnorm.backends.cpu.weighted.row_forward import Mask, make_masked_sums, of_row
from numnorm.backends.formulas.norms import input_gradient

_input_gradient = inlined(input_gradient)


class Through(NamedTuple):
    """How the gradient flows through the statistics of a row.

    Attributes
    ----------
    mean, scale : float
        1, or 0 if the gradient does not flow through the mean or the scale.
    share, more : float
        The sum of squares is divided by ``number * share + more``, with the number of elements, or
        the sum of their weights.
    eps_on_deviation : float
        What is added to the deviation.
    """

    mean: float
    scale: float
    share: float
    more: float
    eps_on_deviation: float


def _make_statistics(formula: Formula, element_type: ElementType) -> Callable[..., Any]:
    """Return `saved.make_statistics_of_row` for what is kept of a row."""
    statistics_of = make_saved_statistics(element_type)
    if not formula.centred or element_type.storage_dtype != np.float64:
        return inlined(lambda x, selected, mean, rstd: statistics_of(mean, rstd))
    far, most_lost, masked_sums = FAR, MOST_LOST, make_masked_sums(element_type)

    @shared
    def lost_of(x, selected, scale, mean_hi):
        number, first, _ = masked_sums(x, selected, scale, mean_hi)
        lost = quotient(first, number)
        return lost if abs(lost) <= abs(mean_hi) * most_lost else 0.0

    @inlined
    def statistics(x, selected, mean, rstd):
        scale, mean_hi, mean_lo, factor = statistics_of(mean, rstd)
        if abs(mean_hi) * factor > far:
            mean_lo = lost_of(x, selected, scale, mean_hi)
        return scale, mean_hi, mean_lo, factor

    return statistics


def _make_gradients(formula: Formula, element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled function of dy, xhat and dL/dxhat, 0 where an element is left out."""
    backward, normalized = inlined(formula.backward), make_normalized(formula.centred)
    to_compute = element_type.to_compute

    @inlined
    def gradients(dy, x, kept, omit, statistics, gamma, beta):
        scale, mean_hi, mean_lo, rstd = statistics
        xhat = where_kept(normalized(x, scale, mean_hi, mean_lo, rstd), kept, x, omit)
        grad = where_kept(to_compute(dy), kept, x, omit)
        # A gamma that nothing takes may be NaN.
        return grad, xhat, where_kept(backward(grad, xhat, gamma, beta), kept, x, omit)

    return gradients


def _make_summing(formula: Formula, element_type: ElementType) -> tuple[Any, Any]:
    """Return compiled functions that add a full or a masked vector to a row's sums.

    The sums are the number of elements, or their weight, and g and g * xhat with g = dL/dxhat. The
    gradients of gamma and beta are added to the `targets`, element by element, unless these are
    None.
    """
    real, to_compute = element_type.compute_type, element_type.to_compute
    gradients, count = _make_gradients(formula, element_type), element_type.lanes
    load, masked_load = make_load(count), make_masked_load(count)
    load_or_scalar, masked_elements = make_load_or_scalar(count), make_masked_elements(count)
    masked_kept = make_masked_kept(count)

    @inlined
    def added(sums, g, xhat, kept, weight, x, omit):
        number, sum_g, sum_g_xhat = sums
        number = number + weight_kept(weight, weighing(kept, weight), x, omit)
        return number, sum_g + g, multiply_add(g, xhat, sum_g_xhat)

    @inlined
    def sum_full(sums, arrays, selected, statistics, parameters, targets, j):
        (dy, x), (keep, weights, omit) = arrays, selected
        gamma = load_or_scalar(parameters[0], j, real(1))
        beta = load_or_scalar(parameters[1], j, real(0))
        values, kept = to_compute(load(x, j)), load_or_scalar(keep, j, None)
        grad, xhat, g = gradients(load(dy, j), values, kept, omit, statistics, gamma, beta)
        add_product(targets[0], j, grad, xhat)
        add(targets[1], j, grad)
        return added(sums, g, xhat, kept, load_or_scalar(weights, j, None), values, omit)

    @inlined
    def sum_masked(sums, arrays, selected, statistics, parameters, targets, j, begin, end):
        (dy, x), (keep, weights, omit) = arrays, selected
        gamma = masked_elements(parameters[0], j, begin, end, real(1))
        beta = masked_elements(parameters[1], j, begin, end, real(0))
        values, kept = to_compute(masked_load(x, j, begin, end)), masked_kept(keep, j, begin, end)
        grad = masked_load(dy, j, begin, end)
        grad, xhat, g = gradients(grad, values, kept, omit, statistics, gamma, beta)
        masked_add_product(targets[0], j, grad, xhat, begin, end)
        masked_add(targets[1], j, grad, begin, end)
        weight = masked_elements(weights, j, begin, end, None)
        return added(sums, g, xhat, kept, weight, values, omit)

    return sum_full, sum_masked


def _make_row_sums(formula: Formula, element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled function that takes the three sums of `_make_summing` of a whole row.

    The peel only rotates the lanes, which does not change a sum: see `make_gradient_lanes`.
    """
    sum_full, sum_masked = _make_summing(formula, element_type)
    count, line_elements = element_type.lanes, LINE // element_type.storage_dtype.itemsize
    zeros, no_weight = make_zeros(element_type.compute_type, count), make_no_weight(count)

    @inlined
    def block_sums(arrays, selected, start, stop, peel, ahead, statistics, parameters, targets):
        given = selected, statistics, parameters, targets
        sums, peel = (no_weight(selected[1]), zeros(), zeros()), min(peel, stop - start)
        aligned = start + peel
        if peel > 0:
            sums = sum_masked(sums, arrays, *given, aligned - count, count - peel, count)
        tail = stop - (stop - aligned) % count
        for j in range(aligned, tail, count):
            if ahead > 0:
                for line in range(j, j + count, line_elements):
                    prefetch_l1(arrays[0], line + ahead)
                    prefetch_l1(arrays[1], line + ahead)
            sums = sum_full(sums, arrays, *given, j)
        if tail < stop:
            sums = sum_masked(sums, arrays, *given, tail, 0, stop - tail)
        return sums

    @inlined
    def row_sums(arrays, selected, peel, ahead, statistics, parameters, targets):
        number, sum_g, sum_g_xhat = np.float64(0), np.float64(0), np.float64(0)
        size = arrays[1].size
        for start in range(0, size, tuning.SUM_BLOCK_ELEMENTS):
            stop = min(start + tuning.SUM_BLOCK_ELEMENTS, size)
            of_block, g, g_xhat = block_sums(
                arrays, selected, start, stop, peel, ahead, statistics, parameters, targets
            )
            number += total_weight(of_block)
            sum_g += reduce_sum(g)
            sum_g_xhat += reduce_sum(g_xhat)
        return number, sum_g, sum_g_xhat

    return row_sums


def _make_store_dx(formula: Formula, element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled function that stores dx of a row: see `make_input_gradients`."""
    backward, normalized = inlined(formula.backward), make_normalized(formula.centred)
    to_compute, to_storage = element_type.to_compute, element_type.to_storage
    real, count = element_type.compute_type, element_type.lanes
    load, masked_load = make_load(count), make_masked_load(count)
    load_or_scalar, masked_elements = make_load_or_scalar(count), make_masked_elements(count)
    masked_kept = make_masked_kept(count)

    @inlined
    def gradient(dy, x, kept, weight, omit, statistics, gamma, beta, means):
        scale, mean_hi, mean_lo, rstd = statistics
        value = to_compute(x)
        xhat = normalized(value, scale, mean_hi, mean_lo, rstd)
        g = backward(to_compute(dy), xhat, gamma, beta)
        mean_g, mean_g_xhat = scaled(means[0], weight), scaled(means[1], weight)
        dx = _input_gradient(g, xhat, mean_g, mean_g_xhat, rstd) * scale
        return to_storage(where_kept(dx, kept, value, omit))

    @inlined
    def full(arrays, selected, statistics, parameters, means, j):
        (dy, x), (keep, weights, omit) = arrays, selected
        gamma = load_or_scalar(parameters[0], j, real(1))
        beta = load_or_scalar(parameters[1], j, real(0))
        values, kept = load(x, j), load_or_scalar(keep, j, None)
        weight = load_or_scalar(weights, j, None)
        return gradient(load(dy, j), values, kept, weight, omit, statistics, gamma, beta, means)

    @inlined
    def store_masked(arrays, selected, statistics, parameters, means, dx, j, begin, end):
        (dy, x), (keep, weights, omit) = arrays, selected
        gamma = masked_elements(parameters[0], j, begin, end, real(1))
        beta = masked_elements(parameters[1], j, begin, end, real(0))
        grad, values = masked_load(dy, j, begin, end), masked_load(x, j, begin, end)
        kept = masked_kept(keep, j, begin, end)
        weight = masked_elements(weights, j, begin, end, None)
        lanes = gradient(grad, values, kept, weight, omit, statistics, gamma, beta, means)
        masked_store(dx, j, lanes, begin, end)

    @inlined
    def store_dx(arrays, selected, peel, statistics, parameters, means, dx, nontemporal):
        given, size = (selected, statistics, parameters, means), dx.size
        peel = min(peel, size)
        if peel > 0:
            store_masked(arrays, *given, dx, peel - count, count - peel, count)
        tail = size - (size - peel) % count
        if nontemporal:
            for j in range(peel, tail, count):
                store_nontemporal(dx, j, full(arrays, *given, j))
        else:
            for j in range(peel, tail, count):
                store(dx, j, full(arrays, *given, j))
        if tail < size:
            store_masked(arrays, *given, dx, tail, 0, size - tail)

    return store_dx


@inlined
def _coefficients(number, through):
    """Return the `GradientCoefficients` of a row with this number of elements, or weight."""
    divisor = number * through.share + through.more
    inv_count = through.mean / number if number > 0.0 else 0.0
    inv_divisor = through.scale / divisor if divisor > 0.0 else 0.0
    return inv_count, inv_divisor, through.eps_on_deviation


def _make_rows(formula: Formula, element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled function for the rows from start to stop."""
    statistics_of = _make_statistics(formula, element_type)
    row_sums = _make_row_sums(formula, element_type)
    store_dx, means_of = _make_store_dx(formula, element_type), make_means(element_type)
    prefetched = tuning.PREFETCH_LEAST_ROW_BYTES // element_type.storage_dtype.itemsize

    @inlined
    def rows(arrays, mask, peels, saved, parameters, through, partial, totals, start, stop):
        dy, x, dx = arrays
        width = x.shape[1]
        nontemporal = use_nontemporal_gradient(dx, width, peels[1])
        ahead = width if nontemporal or width >= prefetched else 0
        of_segment = part(parameters[0], 0), part(parameters[1], 0)
        targets = part(partial[0], 0), part(partial[1], 0)
        for begin in range(start, stop, tuning.ROWS_BETWEEN_FLUSHES):
            for i in range(begin, min(begin + tuning.ROWS_BETWEEN_FLUSHES, stop)):
                selected, rstd = of_row(mask, i, width), saved.rstd[i]
                statistics = statistics_of(row(x, i), selected, part(saved.mean, i), rstd)
                given = (row(dy, i), row(x, i)), selected
                number, sum_g, sum_g_xhat = row_sums(
                    *given, peels[0], ahead, statistics, of_segment, targets
                )
                means = means_of(sum_g, sum_g_xhat, rstd, _coefficients(number, through))
                target = row(dx, i)
                store_dx(*given, peels[1], statistics, of_segment, means, target, nontemporal)
            flush(partial[0], totals[0])
            flush(partial[1], totals[1])
        fence_after_stores(nontemporal)

    return rows


def _make_short(formula: Formula, element_type: ElementType, count: int) -> Callable[..., Any]:
    """Return `_make_rows` for rows of `count` elements, which stay in registers."""
    real, to_compute = element_type.compute_type, element_type.to_compute
    gradients = _make_gradients(formula, element_type)
    statistics_of, means_of = _make_statistics(formula, element_type), make_means(element_type)
    to_storage, zeros = element_type.to_storage, make_zeros(real, count)
    load, load_or_scalar = make_load(count), make_load_or_scalar(count)
    line_elements = LINE // element_type.storage_dtype.itemsize

    @inlined
    def rows(arrays, mask, saved, parameters, through, partial, totals, start, stop):
        dy, x, dx = arrays
        gamma = load_or_scalar(part(parameters[0], 0), 0, real(1))
        beta = load_or_scalar(part(parameters[1], 0), 0, real(0))
        nontemporal = use_nontemporal_gradient(dx, count)
        for begin in range(start, stop, tuning.ROWS_BETWEEN_FLUSHES):
            dgamma, dbeta = zeros(), zeros()
            for i in range(begin, min(begin + tuning.ROWS_BETWEEN_FLUSHES, stop)):
                selected, rstd = of_row(mask, i, count), saved.rstd[i]
                statistics = statistics_of(row(x, i), selected, part(saved.mean, i), rstd)
                keep, weights, omit = selected
                # With a NaN as the mask the load of dy waits for x.
                for line in range(count, 2 * count, line_elements):
                    prefetch_l1(row(dy, i), line)
                values, kept = to_compute(load(row(x, i), 0)), load_or_scalar(keep, 0, None)
                grad, xhat, g = gradients(
                    load(row(dy, i), 0), values, kept, omit, statistics, gamma, beta
                )
                weight = load_or_scalar(weights, 0, None)
                number = total_weight(weight_kept(weight, weighing(kept, weight), values, omit))
                sums = np.float64(reduce_sum(g)), np.float64(reduce_sum(g * xhat))
                mean_g, mean_g_xhat = means_of(*sums, rstd, _coefficients(number, through))
                of_means = scaled(mean_g, weight), scaled(mean_g_xhat, weight)
                lanes = _input_gradient(g, xhat, *of_means, statistics[3])
                lanes = where_kept(lanes * statistics[0], kept, values, omit)
                store_either(row(dx, i), 0, to_storage(lanes), nontemporal)
                dgamma, dbeta = dgamma + grad * xhat, dbeta + grad
            add(part(partial[0], 0), 0, dgamma)
            add(part(partial[1], 0), 0, dbeta)
            flush(partial[0], totals[0])
            flush(partial[1], totals[1])
        fence_after_stores(nontemporal)

    return rows


def make_masked_backward(formula: Formula, element_type: ElementType) -> Kernel:
    """Return the backward kernel of a formula, for x ``(N, D)``.

    The sums of the gradients of gamma and beta, ``(parts, 1, D)`` or None, are zeros at first. The
    parts follow from the shapes, so that no thread count changes a sum.
    """
    rows, peeled = _make_rows(formula, element_type), peels_to_alignment(element_type)
    real, lanes = element_type.compute_type, element_type.lanes
    one, two, four = (_make_short(formula, element_type, n * lanes) for n in (1, 2, 4))

    def kernel(
        dy: Any,
        x: Any,
        mask: Mask,
        saved: Statistics,
        weights: Parameters,
        through: Through,
        dx: Any,
        sums: Parameters,
        parts: int,
        first: int,
        last: int,
    ) -> None:
        width, arrays = x.shape[1], (dy, x, dx)
        # A vector of some types is half a line.
        peels = (
            (common_peel(x, width) % lanes, common_peel(dx, width) % lanes) if peeled else (0, 0)
        )
        gamma, beta = aligned_copy(weights.gamma, peels[0]), aligned_copy(weights.beta, peels[0])
        for p in range(first, last):
            totals = part(sums.gamma, p), part(sums.beta, p)
            partial = (
                partial_sums(totals[0], real(0), peels[0], None, (1, width)),
                partial_sums(totals[1], real(0), peels[0], None, (1, width)),
            )
            start, stop = p * x.shape[0] // parts, (p + 1) * x.shape[0] // parts
            given = saved, (gamma, beta), through, partial, totals, start, stop
            if width == lanes:
                one(arrays, mask, *given)
            elif width == 2 * lanes:
                two(arrays, mask, *given)
            elif width == 4 * lanes:
                four(arrays, mask, *given)
            else:
                rows(arrays, mask, peels, *given)
            release(partial)
        release((gamma, beta))

    return make_grouped_kernel(f"masked.row_backward.{formula.name}.{element_type.name}", kernel)
