"""The loops over the elements of a channel norm, given the coefficients of each channel.

A coefficient is an array where a loop runs across channels, and a number where it runs along one.
The coefficients `scale` and `back` are None if they are 1 for every channel.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.memory.alignment import each_peels_to_alignment, make_peel
from numnorm.backends.cpu.simd.access import VectorAccess, full_access, peel_access, tail_access
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.masked import make_masked_load, select_lanes
from numnorm.backends.cpu.simd.vector import make_load, make_zeros, reduce_sum
from numnorm.backends.formulas.norms import channel_gradient, channel_output

_channel_output, _channel_gradient = inlined(channel_output), inlined(channel_gradient)


@functools.cache
def make_is_wide(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``is_wide(x)``: whether its rows are wide enough for groups of rows."""
    itemsize = element_type.storage_dtype.itemsize
    return inlined(lambda x: x.shape[1] * itemsize >= tuning.GROUP_LEAST_ROW_BYTES)


class _Elementwise(NamedTuple):
    """Compiled functions that compute a vector of a result, for one kind of access.

    Attributes
    ----------
    coefficients : callable
        ``coefficients(given, j, tail)`` loads the coefficients of the elements from j on.
    put : callable
        ``put(rows, j, tail, coefficients, out)`` computes and stores the elements from j on.
    """

    coefficients: Callable[..., Any]
    put: Callable[..., Any]


def _output(element_type: ElementType, access: VectorAccess) -> _Elementwise:
    """Return `channel_output` of x, with the coefficients scale, mean_hi, factor and offset."""
    to_compute, to_storage = element_type.to_compute, element_type.to_storage
    read, coefficient, write = access
    one, zero = element_type.compute_type(1), element_type.compute_type(0)

    @inlined
    def coefficients(given, j, tail):
        scale, mean_hi, factor, offset = given
        return (
            coefficient(scale, j, tail, one), coefficient(mean_hi, j, tail, zero),
            coefficient(factor, j, tail, one), coefficient(offset, j, tail, zero),
        )  # fmt: skip

    @inlined
    def put(rows, j, tail, coefficients, y):
        scale, mean_hi, factor, offset = coefficients
        x = to_compute(read(rows[0], j, tail)) * scale
        write(y, j, to_storage(_channel_output(x, mean_hi, factor, offset)), tail)

    return _Elementwise(coefficients, put)


def _gradient(element_type: ElementType, access: VectorAccess) -> _Elementwise:
    """Return `channel_gradient` of dy and x, times back.

    The coefficients are scale, mean_hi, rstd, factor, xhat_factor, offset and back.
    """
    to_compute, to_storage = element_type.to_compute, element_type.to_storage
    read, coefficient, write = access
    one, zero = element_type.compute_type(1), element_type.compute_type(0)

    @inlined
    def coefficients(given, j, tail):
        scale, mean_hi, rstd, factor, xhat_factor, offset, back = given
        return (
            coefficient(scale, j, tail, one), coefficient(mean_hi, j, tail, zero),
            coefficient(rstd, j, tail, one), coefficient(factor, j, tail, one),
            coefficient(xhat_factor, j, tail, zero), coefficient(offset, j, tail, zero),
            coefficient(back, j, tail, one),
        )  # fmt: skip

    @inlined
    def put(rows, j, tail, coefficients, dx):
        scale, mean_hi, rstd, factor, xhat_factor, offset, back = coefficients
        dy, x = to_compute(read(rows[0], j, tail)), to_compute(read(rows[1], j, tail)) * scale
        values = _channel_gradient(dy, x, mean_hi, rstd, factor, xhat_factor, offset) * back
        write(dx, j, to_storage(values), tail)

    return _Elementwise(coefficients, put)


def _make_row(element_type: ElementType, kind: Callable[..., Any]) -> Any:
    """Return a compiled ``store_row(rows, coefficients, out, nontemporal)``.

    It takes one row of each array, and computes the peel, the full vectors and the tail.
    """
    count, peel_of = 2 * element_type.lanes, make_peel(element_type)
    peels = each_peels_to_alignment(element_type)
    tail_coefficients, put_tail = kind(element_type, tail_access(count))
    peel_coefficients, put_peel = kind(element_type, peel_access(count))

    def make_full(nontemporal):
        coefficients_of, put = kind(element_type, full_access(count, nontemporal=nontemporal))

        @inlined
        def full(rows, start, stop, coefficients, out):
            for j in range(start, stop, count):
                put(rows, j, count, coefficients_of(coefficients, j, count), out)

        return full

    store_full, store_full_nontemporal = make_full(False), make_full(True)

    @inlined
    def store_row(rows, coefficients, out, nontemporal):
        start = min(peel_of(out, out.size), out.size)
        if peels and start > 0:
            j = start - count
            put_peel(rows, j, start, peel_coefficients(coefficients, j, start), out)
        stop = out.size - (out.size - start) % count
        if nontemporal:
            store_full_nontemporal(rows, start, stop, coefficients, out)
        else:
            store_full(rows, start, stop, coefficients, out)
        tail = out.size - stop
        if tail > 0:
            put_tail(rows, stop, tail, tail_coefficients(coefficients, stop, tail), out)

    return store_row


def _make_group(
    element_type: ElementType, kind: Callable[..., Any], rows_of: Callable[..., Any]
) -> Any:
    """Return a compiled ``store_group(arrays, i, coefficients, out, nontemporal)``.

    It computes a group of rows from row i on, and loads the coefficients once for all of them.
    """
    count = element_type.lanes
    tail_coefficients, put_tail = kind(element_type, tail_access(count))

    def make_full(nontemporal):
        access = full_access(count, ahead=tuning.GROUP_ROWS, nontemporal=nontemporal)
        coefficients_of, put = kind(element_type, access)

        @inlined
        def full(arrays, i, stop, coefficients, out):
            for j in range(0, stop, count):
                loaded = coefficients_of(coefficients, j, count)
                for r in range(tuning.GROUP_ROWS):
                    put(rows_of(arrays, i + r), j, count, loaded, out[i + r])

        return full

    store_full, store_full_nontemporal = make_full(False), make_full(True)

    @inlined
    def store_group(arrays, i, coefficients, out, nontemporal):
        width = out.shape[1]
        tail = width % count
        stop = width - tail
        if nontemporal:
            store_full_nontemporal(arrays, i, stop, coefficients, out)
        else:
            store_full(arrays, i, stop, coefficients, out)
        if tail > 0:
            loaded = tail_coefficients(coefficients, stop, tail)
            for r in range(tuning.GROUP_ROWS):
                put_tail(rows_of(arrays, i + r), stop, tail, loaded, out[i + r])

    return store_group


@inlined
def _row(arrays: Any, i: int) -> Any:
    (x,) = arrays
    return (x[i],)


@inlined
def _pair_of_rows(arrays: Any, i: int) -> Any:
    dy, x = arrays
    return dy[i], x[i]


@functools.cache
def make_output_row(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``output_row((x,), coefficients, y, nontemporal)`` for one row."""
    return _make_row(element_type, _output)


@functools.cache
def make_output_group(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``output_group((x,), i, coefficients, y, nontemporal)``."""
    return _make_group(element_type, _output, _row)


@functools.cache
def make_gradient_row(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``gradient_row((dy, x), coefficients, dx, nontemporal)`` for one row."""
    return _make_row(element_type, _gradient)


@functools.cache
def make_gradient_group(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``gradient_group((dy, x), i, coefficients, dx, nontemporal)``."""
    return _make_group(element_type, _gradient, _pair_of_rows)


def _make_segment_sums(
    element_type: ElementType,
    put: Callable[..., Any],
    put_tail: Callable[..., Any],
    put_peel: Callable[..., Any],
) -> Any:
    """Return a compiled ``segment_sums(dy, x, peel, stats, factors, dx)`` of a channel's segment.

    It returns the sums of ``dy * (x * scale - mean_hi) * rstd`` and of dy in float64, where `stats`
    is ``(scale, mean_hi, rstd)``. The `put` functions get each vector of dy, and `factors`:
    ``put(dx, j, grad, tail, factors)``. The first `peel` elements are the last lanes of a vector.
    """
    count, to_compute = 2 * element_type.lanes, element_type.to_compute
    load, masked_load = make_load(count), make_masked_load(count)
    zeros = make_zeros(element_type.compute_type, count)
    peels = each_peels_to_alignment(element_type)

    @inlined
    def block_sums(dy, x, start, stop, peel, stats, factors, dx):
        scale, mean_hi, rstd = stats
        products, grads = zeros(), zeros()
        first = start + min(peel, stop - start)
        if peels and first > start:
            j, low = first - count, count - (first - start)
            grad = to_compute(masked_load(dy, j, low, count))
            xhat = (to_compute(masked_load(x, j, low, count)) * scale - mean_hi) * rstd
            products = products + grad * select_lanes(xhat, low, count)
            grads = grads + grad
            put_peel(dx, j, grad, first - start, factors)
        end = stop - (stop - first) % count
        for j in range(first, end, count):
            grad = to_compute(load(dy, j))
            products = products + grad * ((to_compute(load(x, j)) * scale - mean_hi) * rstd)
            grads = grads + grad
            put(dx, j, grad, count, factors)
        tail = stop - end
        if tail > 0:
            grad = to_compute(masked_load(dy, end, 0, tail))
            xhat = (to_compute(masked_load(x, end, 0, tail)) * scale - mean_hi) * rstd
            products = products + grad * select_lanes(xhat, 0, tail)
            grads = grads + grad
            put_tail(dx, end, grad, tail, factors)
        return reduce_sum(products), reduce_sum(grads)

    @inlined
    def segment_sums(dy, x, peel, stats, factors, dx):
        sum_of_products, sum_dy = np.float64(0), np.float64(0)
        for start in range(0, x.size, tuning.SUM_BLOCK_ELEMENTS):
            stop = min(start + tuning.SUM_BLOCK_ELEMENTS, x.size)
            one, two = block_sums(dy, x, start, stop, peel, stats, factors, dx)
            sum_of_products += one
            sum_dy += two
        return sum_of_products, sum_dy

    return segment_sums


@inlined
def _put_nothing(dx: Any, j: int, grad: Any, tail: int, factors: Any) -> None:
    pass


@functools.cache
def make_gradient_sums(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``gradient_sums(dy, x, (scale, mean_hi, rstd))`` of a segment.

    It returns the sums of ``dy * (x * scale - mean_hi) * rstd`` and of dy.
    """
    segment_sums = _make_segment_sums(element_type, _put_nothing, _put_nothing, _put_nothing)
    return inlined(lambda dy, x, stats: segment_sums(dy, x, 0, stats, None, None))


@functools.cache
def make_frozen_statistics_gradient(
    element_type: ElementType, *, nontemporal: bool
) -> Callable[..., Any]:
    """Return a compiled function that returns the same sums and stores dx.

    ``frozen_statistics_gradient(dy, x, (scale, mean_hi, rstd), (factor, back), dx)`` stores
    ``dy * back * factor`` as dx. A `back` of None stands for 1.
    """
    count, peel_of = 2 * element_type.lanes, make_peel(element_type)

    def make_put(access):
        _, coefficient, write = access
        to_storage, one = element_type.to_storage, element_type.compute_type(1)

        @inlined
        def put(dx, j, grad, tail, factors):
            factor, back = factors
            scaled = grad * coefficient(back, j, tail, one)
            write(dx, j, to_storage(scaled * factor), tail)

        return put

    puts = (full_access(count, nontemporal=nontemporal), tail_access(count), peel_access(count))
    segment_sums = _make_segment_sums(element_type, *map(make_put, puts))
    return inlined(
        lambda dy, x, stats, factors, dx: segment_sums(
            dy, x, peel_of(dx, dx.size), stats, factors, dx
        )
    )
