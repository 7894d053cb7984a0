"""The loops over elements of a channel norm, given the terms of each channel.

The terms are arrays where a loop runs across channels, and numbers where it runs along one. The
scale, and what undoes it, are None where they are 1 for every channel.
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
    """Return a compiled ``is_wide(x)``: whether its rows are worth taking in groups."""
    itemsize = element_type.storage_dtype.itemsize
    return inlined(lambda x: x.shape[1] * itemsize >= tuning.GROUP_LEAST_ROW_BYTES)


class _Elementwise(NamedTuple):
    """A result of elements of a row of each array, made for an access.

    Attributes
    ----------
    terms : callable
        Compiled ``coefficients(given, j, tail)``: the terms of the elements from j on.
    put : callable
        Compiled ``put(rows, j, tail, coefficients, out)``: stores the elements from j on.
    """

    coefficients: Callable[..., Any]
    put: Callable[..., Any]


def _output(element_type: ElementType, access: VectorAccess) -> _Elementwise:
    """`channel_output` of x, with the terms scale, high, factor and offset."""
    real, to_compute, to_storage = (
        element_type.compute_type,
        element_type.to_compute,
        element_type.to_storage,
    )
    read, coefficient, write = access

    @inlined
    def coefficients(given, j, tail):
        scale, mean_hi, factor, offset = given
        one, zero = real(1), real(0)
        of_x = coefficient(scale, j, tail, one), coefficient(mean_hi, j, tail, zero)
        return (*of_x, coefficient(factor, j, tail, one), coefficient(offset, j, tail, zero))

    @inlined
    def put(rows, j, tail, coefficients, y):
        scale, mean_hi, factor, offset = coefficients
        x = to_compute(read(rows[0], j, tail)) * scale
        write(y, j, to_storage(_channel_output(x, mean_hi, factor, offset)), tail)

    return _Elementwise(coefficients, put)


def _gradient(element_type: ElementType, access: VectorAccess) -> _Elementwise:
    """`channel_gradient` of dy and x; scale, high, rstd, factor, slope, offset, back."""
    real, to_compute, to_storage = (
        element_type.compute_type,
        element_type.to_compute,
        element_type.to_storage,
    )
    read, coefficient, write = access

    @inlined
    def coefficients(given, j, tail):
        scale, mean_hi, rstd, factor, grad, offset, back = given
        one, zero = real(1), real(0)
        of_x = (
            coefficient(scale, j, tail, one),
            coefficient(mean_hi, j, tail, zero),
            coefficient(rstd, j, tail, one),
        )
        of_dy = coefficient(factor, j, tail, one), coefficient(grad, j, tail, zero)
        return (*of_x, *of_dy, coefficient(offset, j, tail, zero), coefficient(back, j, tail, one))

    @inlined
    def put(rows, j, tail, coefficients, dx):
        scale, mean_hi, rstd, factor, grad, offset, back = coefficients
        dy, x = to_compute(read(rows[0], j, tail)), to_compute(read(rows[1], j, tail)) * scale
        values = _channel_gradient(dy, x, mean_hi, rstd, factor, grad, offset) * back
        write(dx, j, to_storage(values), tail)

    return _Elementwise(coefficients, put)


def _make_row(element_type: ElementType, kind: Callable[..., Any]) -> Any:
    """Return a compiled ``store_row(rows, coefficients, out, nontemporal)`` of one row of each array."""
    count, peel_of = 2 * element_type.lanes, make_peel(element_type)
    at_lines = each_peels_to_alignment(element_type)
    first_terms_of, put_first = kind(element_type, tail_access(count))
    last_terms_of, put_last = kind(element_type, peel_access(count))

    def make_whole_lanes(nontemporal):
        coefficients_of, put = kind(element_type, full_access(count, nontemporal=nontemporal))

        @inlined
        def all_lanes(rows, line, whole, coefficients, out):
            for j in range(line, whole, count):
                put(rows, j, count, coefficients_of(coefficients, j, count), out)

        return all_lanes

    store_whole, store_nontemporal_full = make_whole_lanes(False), make_whole_lanes(True)

    @inlined
    def store_row(rows, coefficients, out, nontemporal):
        line = min(peel_of(out, out.size), out.size)
        if at_lines and line > 0:
            j = line - count
            put_last(rows, j, line, last_terms_of(coefficients, j, line), out)
        whole = out.size - (out.size - line) % count
        if nontemporal:
            store_nontemporal_full(rows, line, whole, coefficients, out)
        else:
            store_whole(rows, line, whole, coefficients, out)
        tail = out.size - whole
        if tail > 0:
            put_first(rows, whole, tail, first_terms_of(coefficients, whole, tail), out)

    return store_row


def _make_group(
    element_type: ElementType, kind: Callable[..., Any], rows_of: Callable[..., Any]
) -> Any:
    """Return a compiled ``store_group(arrays, i, coefficients, out, nontemporal)`` of the rows from i on."""
    count = element_type.lanes
    first_terms_of, put_first = kind(element_type, tail_access(count))

    def make_whole_lanes(nontemporal):
        access = full_access(count, ahead=tuning.GROUP_ROWS, nontemporal=nontemporal)
        coefficients_of, put = kind(element_type, access)

        @inlined
        def all_lanes(arrays, i, whole, coefficients, out):
            for j in range(0, whole, count):
                here = coefficients_of(coefficients, j, count)
                for r in range(tuning.GROUP_ROWS):
                    put(rows_of(arrays, i + r), j, count, here, out[i + r])

        return all_lanes

    store_whole, store_nontemporal_full = make_whole_lanes(False), make_whole_lanes(True)

    @inlined
    def store_group(arrays, i, coefficients, out, nontemporal):
        width = out.shape[1]
        tail = width % count
        whole = width - tail
        if nontemporal:
            store_nontemporal_full(arrays, i, whole, coefficients, out)
        else:
            store_whole(arrays, i, whole, coefficients, out)
        if tail > 0:
            here = first_terms_of(coefficients, whole, tail)
            for r in range(tuning.GROUP_ROWS):
                put_first(rows_of(arrays, i + r), whole, tail, here, out[i + r])

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
    """Return a compiled ``output_row((x,), coefficients, y, nontemporal)`` of one row."""
    return _make_row(element_type, _output)


@functools.cache
def make_output_group(element_type: ElementType) -> Callable[..., Any]:
    """Return the same for a group of rows, whose terms are loaded once."""
    return _make_group(element_type, _output, _row)


@functools.cache
def make_gradient_row(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``gradient_row((dy, x), coefficients, dx, nontemporal)`` of one row."""
    return _make_row(element_type, _gradient)


@functools.cache
def make_gradient_group(element_type: ElementType) -> Callable[..., Any]:
    """Return the same for a group of rows, whose terms are loaded once."""
    return _make_group(element_type, _gradient, _pair_of_rows)


def _make_segment_sums(
    element_type: ElementType,
    put: Callable[..., Any],
    put_first: Callable[..., Any],
    put_last: Callable[..., Any],
) -> Any:
    """Return a compiled ``segment_sums(dy, x, peel, of_x, of_dy, dx)`` along one channel.

    They are the sums of ``dy * (x * scale - mean_hi) * rstd``, which are `of_x`, and of dy, in
    float64. On the way ``put(dx, j, grad, tail, of_dy)`` does what it likes with lanes of dy.
    The first `peel` elements are in the last lanes: see `runs.make_gradient_lanes`.
    """
    real, to_compute, count = (
        element_type.compute_type,
        element_type.to_compute,
        2 * element_type.lanes,
    )
    load, masked_load, zeros = make_load(count), make_masked_load(count), make_zeros(real, count)
    at_lines = each_peels_to_alignment(element_type)

    @inlined
    def stretch_sums(dy, x, start, stop, peel, of_x, of_dy, dx):
        scale, mean_hi, rstd = of_x
        one, two = zeros(), zeros()
        line = start + min(peel, stop - start)
        if at_lines and line > start:
            j, mean_lo = line - count, count - (line - start)
            grad = to_compute(masked_load(dy, j, mean_lo, count))
            xhat = (to_compute(masked_load(x, j, mean_lo, count)) * scale - mean_hi) * rstd
            one = one + grad * select_lanes(xhat, mean_lo, count)
            two = two + grad
            put_last(dx, j, grad, line - start, of_dy)
        whole = stop - (stop - line) % count
        for j in range(line, whole, count):
            grad = to_compute(load(dy, j))
            one = one + grad * ((to_compute(load(x, j)) * scale - mean_hi) * rstd)
            two = two + grad
            put(dx, j, grad, count, of_dy)
        tail = stop - whole
        if tail > 0:
            grad = to_compute(masked_load(dy, whole, 0, tail))
            xhat = (to_compute(masked_load(x, whole, 0, tail)) * scale - mean_hi) * rstd
            one = one + grad * select_lanes(xhat, 0, tail)
            two = two + grad
            put_first(dx, whole, grad, tail, of_dy)
        return reduce_sum(one), reduce_sum(two)

    @inlined
    def segment_sums(dy, x, peel, of_x, of_dy, dx):
        sum_of_products, sum_dy = np.float64(0), np.float64(0)
        for start in range(0, x.size, tuning.SUM_BLOCK_ELEMENTS):
            stop = min(start + tuning.SUM_BLOCK_ELEMENTS, x.size)
            one, two = stretch_sums(dy, x, start, stop, peel, of_x, of_dy, dx)
            sum_of_products += one
            sum_dy += two
        return sum_of_products, sum_dy

    return segment_sums


@inlined
def _put_nothing(dx: Any, j: int, grad: Any, tail: int, of_dy: Any) -> None:
    pass


@functools.cache
def make_gradient_sums(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``gradient_sums(dy, x, (scale, mean_hi, rstd))`` of a channel."""
    segment_sums = _make_segment_sums(element_type, _put_nothing, _put_nothing, _put_nothing)
    return inlined(lambda dy, x, of_x: segment_sums(dy, x, 0, of_x, None, None))


@functools.cache
def make_frozen_statistics_gradient(
    element_type: ElementType, *, nontemporal: bool
) -> Callable[..., Any]:
    """Return a compiled function for the same sums that stores ``dy * back * factor`` as dx.

    It is ``frozen_statistics_gradient(dy, x, (scale, mean_hi, rstd), (factor, back), dx)``, where what undoes
    the scale may be None.
    """
    count = 2 * element_type.lanes

    def make_put(access):
        _, coefficient, write = access
        real, to_storage = element_type.compute_type, element_type.to_storage

        @inlined
        def put(dx, j, grad, tail, of_dy):
            factor, back = of_dy
            scaled = grad * coefficient(back, j, tail, real(1))
            write(dx, j, to_storage(scaled * factor), tail)

        return put

    puts = (full_access(count, nontemporal=nontemporal), tail_access(count), peel_access(count))
    segment_sums, peel_of = (
        _make_segment_sums(element_type, *map(make_put, puts)),
        make_peel(element_type),
    )
    return inlined(
        lambda dy, x, of_x, of_dy, dx: segment_sums(dy, x, peel_of(dx, dx.size), of_x, of_dy, dx)
    )
