"""The loops over the elements of a channel norm, given the coefficients of each channel.

A coefficient is an array where a loop runs across channels, and a number where it runs along one.
The coefficients `scale` and `back` are None if they are 1 for every channel.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.memory.alignment import each_peels_to_alignment, make_peel
from numnorm.backends.cpu.memory.kernel_arrays import window
from numnorm.backends.cpu.simd.access import VectorAccess, full_access, tail_access
from numnorm.backends.cpu.simd.element_type import ElementType, widened
from numnorm.backends.cpu.simd.kept import filled, where_kept
from numnorm.backends.cpu.simd.masked import make_masked_load, select_lanes
from numnorm.backends.cpu.simd.optional import scaled
from numnorm.backends.cpu.simd.vector import make_load, make_zeros, prefetch, reduce_sum
from numnorm.backends.formulas.norms import channel_gradient, channel_output

_channel_output, _channel_gradient = inlined(channel_output), inlined(channel_gradient)


def _make_put_output(element_type: ElementType, access: VectorAccess) -> Callable[..., Any]:
    """Return a compiled ``put(arrays, j, active, coefficients, y)``: `channel_output` of x.

    It computes and stores a vector from the flat index j on. Its coefficients are scale, mean_hi,
    factor and offset.
    """
    to_compute, to_storage = element_type.to_compute, element_type.to_storage
    read, write = access.read, access.write

    @inlined
    def put(arrays, j, active, coefficients, y):
        scale, mean_hi, factor, offset = coefficients
        x = to_compute(read(arrays[0], j, active)) * scale
        write(y, j, to_storage(_channel_output(x, mean_hi, factor, offset)), active)

    return put


def _make_put_masked_output(element_type: ElementType, access: VectorAccess) -> Callable[..., Any]:
    """Return a compiled ``put((x, keep, omit), j, active, coefficients, y)`` like that of outputs.

    The coefficients also have the results of what `keep` leaves out, and of NaN that is left out.
    """
    to_compute, to_storage = element_type.to_compute, element_type.to_storage
    read, given, write = access.read, access.coefficient, access.write

    @inlined
    def put(arrays, j, active, coefficients, y):
        x, keep, omit = arrays
        scale, mean_hi, factor, offset, fill, missing = coefficients
        values, kept = to_compute(read(x, j, active)), given(keep, j, active, None)
        result = _channel_output(values * scale, mean_hi, factor, offset)
        write(y, j, to_storage(filled(result, kept, values, omit, fill, missing)), active)

    return put


def _make_put_gradient(element_type: ElementType, access: VectorAccess) -> Callable[..., Any]:
    """Return a compiled ``put((dy, x), j, active, coefficients, dx)`` of `channel_gradient`.

    The coefficients are scale, mean_hi, rstd, factor, xhat_factor, offset and back, by which the
    gradient is multiplied.
    """
    to_compute, to_storage = element_type.to_compute, element_type.to_storage
    read, write = access.read, access.write

    @inlined
    def put(arrays, j, active, coefficients, dx):
        scale, mean_hi, rstd, factor, xhat_factor, offset, back = coefficients
        dy, x = to_compute(read(arrays[0], j, active)), to_compute(read(arrays[1], j, active))
        values = _channel_gradient(dy, x * scale, mean_hi, rstd, factor, xhat_factor, offset)
        write(dx, j, to_storage(values * back), active)

    return put


def _make_put_masked_gradient(
    element_type: ElementType, access: VectorAccess
) -> Callable[..., Any]:
    """Return a compiled ``put((dy, x, keep, weights, omit), j, active, coefficients, dx)``.

    What flows through the statistics is multiplied by the weights, if there are any, and the
    gradient is 0 where an element is left out.
    """
    to_compute, to_storage = element_type.to_compute, element_type.to_storage
    read, given, write = access.read, access.coefficient, access.write

    @inlined
    def put(arrays, j, active, coefficients, dx):
        scale, mean_hi, rstd, factor, xhat_factor, offset, back = coefficients
        grad, values = (
            to_compute(read(arrays[0], j, active)),
            to_compute(read(arrays[1], j, active)),
        )
        keep, weights, omit = arrays[2:]
        kept, weight = given(keep, j, active, None), widened(given(weights, j, active, None))
        through = scaled(xhat_factor, weight), scaled(offset, weight)
        result = _channel_gradient(grad, values * scale, mean_hi, rstd, factor, *through)
        write(dx, j, to_storage(where_kept(result * back, kept, values, omit)), active)

    return put


def _make_row(element_type: ElementType, make_put: Callable[..., Any]) -> Callable[..., Any]:
    """Return a compiled ``store_row(arrays, begin, size, given, offset, out, nontemporal)``.

    It takes `size` elements of flat arrays, from the index `begin` on, in the peel, full vectors
    and the tail. The coefficients of the first element have the index `offset`.
    """
    count, peel_of = 2 * element_type.lanes, make_peel(element_type)
    peels, one = each_peels_to_alignment(element_type), element_type.compute_type(1)
    some = tail_access(count)
    load_some, put_some = some.coefficient, make_put(element_type, some)

    def make_full(nontemporal):
        access = full_access(count, nontemporal=nontemporal)
        load_full, put = access.coefficient, make_put(element_type, access)

        @inlined
        def full(arrays, begin, start, stop, given, offset, out):
            for j in range(start, stop, count):
                coefficients = load_full(given, offset + j, count, one)
                put(arrays, begin + j, count, coefficients, out)

        return full

    store_full, store_full_nontemporal = make_full(False), make_full(True)

    @inlined
    def store_row(arrays, begin, size, given, offset, out, nontemporal):
        start = peel_of(window(out, begin, size), size)
        if peels and start > 0:
            j, lanes = start - count, (count - start, np.int64(count))
            coefficients = load_some(given, offset + j, lanes, one)
            put_some(arrays, begin + j, lanes, coefficients, out)
        stop = size - (size - start) % count
        if nontemporal:
            store_full_nontemporal(arrays, begin, start, stop, given, offset, out)
        else:
            store_full(arrays, begin, start, stop, given, offset, out)
        if stop < size:
            lanes = np.int64(0), size - stop
            coefficients = load_some(given, offset + stop, lanes, one)
            put_some(arrays, begin + stop, lanes, coefficients, out)

    return store_row


def _make_group(element_type: ElementType, make_put: Callable[..., Any]) -> Callable[..., Any]:
    """Return a compiled ``store_group(arrays, begin, width, given, offset, out, nontemporal)``.

    It computes a group of rows from the flat index `begin` on, and loads the coefficients once for
    all of them.
    """
    count, one = element_type.lanes, element_type.compute_type(1)
    some = tail_access(count)
    load_some, put_some = some.coefficient, make_put(element_type, some)

    def make_full(nontemporal):
        access = full_access(count, nontemporal=nontemporal)
        load_full, put = access.coefficient, make_put(element_type, access)

        @inlined
        def full(arrays, begin, width, given, offset, out):
            for j in range(0, width - width % count, count):
                coefficients = load_full(given, offset + j, count, one)
                for r in range(tuning.GROUP_ROWS):
                    prefetch(arrays, begin + (r + tuning.GROUP_ROWS) * width + j)
                    put(arrays, begin + r * width + j, count, coefficients, out)

        return full

    store_full, store_full_nontemporal = make_full(False), make_full(True)

    @inlined
    def store_group(arrays, begin, width, given, offset, out, nontemporal):
        if nontemporal:
            store_full_nontemporal(arrays, begin, width, given, offset, out)
        else:
            store_full(arrays, begin, width, given, offset, out)
        tail = width % count
        if tail > 0:
            stop = width - tail
            coefficients = load_some(given, offset + stop, tail, one)
            for r in range(tuning.GROUP_ROWS):
                put_some(arrays, begin + r * width + stop, tail, coefficients, out)

    return store_group


def _make_rows(element_type: ElementType, make_put: Callable[..., Any]) -> Callable[..., Any]:
    """Return a compiled ``store_rows(arrays, rows, width, shift, given, out, how)``.

    It computes the rows from ``rows[0]`` to ``rows[1]`` - 1 of flat arrays, which have `width`
    channels. ``how`` says whether to take groups of rows, and whether stores are non-temporal.
    If `shift` is not 0, rows begin `shift` elements later, at a cache line, and the first and the
    last are partial. The coefficients of the first `shift` channels follow the last channel's.
    """
    store_row, store_group = _make_row(element_type, make_put), _make_group(element_type, make_put)

    @inlined
    def store_rows(arrays, rows, width, shift, given, out, how):
        (start, stop), (in_groups, nontemporal) = rows, how
        partial = 1 if shift > 0 and start < stop else 0
        whole = stop - partial
        grouped = whole - (whole - start) % tuning.GROUP_ROWS if in_groups else start
        for i in range(start, grouped, tuning.GROUP_ROWS):
            store_group(arrays, i * width + shift, width, given, shift, out, nontemporal)
        # The rows that are left: the end of row `start` - 1, whole rows, the beginning of the last.
        for k in range(1 - partial, 2 + partial):
            if k == 0:
                begin, size, offset, end = start * width, shift, width, start * width + shift
            elif k == 1:
                begin, size, offset = grouped * width + shift, width, shift
                end = whole * width + shift
            else:
                begin, size, offset = whole * width + shift, width - shift, shift
                end = stop * width
            # Without channels there is nothing to do, and a step of 0 would be an error.
            for j in range(begin, end, size if size > 0 else 1):
                store_row(arrays, j, size, given, offset, out, nontemporal)

    return store_rows


@functools.cache
def make_output_row(element_type: ElementType) -> Callable[..., Any]:
    """Return the ``store_row`` of `_make_row` for `channel_output`."""
    return _make_row(element_type, _make_put_output)


@functools.cache
def make_store_output_rows(element_type: ElementType) -> Callable[..., Any]:
    """Return the ``store_rows`` of `_make_rows` for `channel_output`."""
    return _make_rows(element_type, _make_put_output)


@functools.cache
def make_masked_output_row(element_type: ElementType) -> Callable[..., Any]:
    """Return the ``store_row`` of `_make_row` for `channel_output` with a mask."""
    return _make_row(element_type, _make_put_masked_output)


@functools.cache
def make_gradient_row(element_type: ElementType) -> Callable[..., Any]:
    """Return the ``store_row`` of `_make_row` for `channel_gradient`."""
    return _make_row(element_type, _make_put_gradient)


@functools.cache
def make_masked_gradient_row(element_type: ElementType) -> Callable[..., Any]:
    """Return the ``store_row`` of `_make_row` for `channel_gradient` with a mask or weights."""
    return _make_row(element_type, _make_put_masked_gradient)


@functools.cache
def make_store_gradient_rows(element_type: ElementType) -> Callable[..., Any]:
    """Return the ``store_rows`` of `_make_rows` for `channel_gradient`."""
    return _make_rows(element_type, _make_put_gradient)


def _make_segment_sums(
    element_type: ElementType, make_put: Callable[..., Any], *, nontemporal: bool = False
) -> Callable[..., Any]:
    """Return a compiled ``segment_sums(arrays, begin, size, peel, stats, factors)``.

    It returns the sums of ``dy * (x * scale - mean_hi) * rstd`` and of dy in float64, over `size`
    elements of the flat arrays ``(dy, x, ...)`` from index `begin` on, where `stats` is
    ``(scale, mean_hi, rstd)``. ``make_put(access)`` returns a compiled
    ``put(arrays, j, active, grad, factors)``, which gets each vector of dy. The first `peel`
    elements are the last lanes of a vector.
    """
    count, to_compute = 2 * element_type.lanes, element_type.to_compute
    load, masked_load = make_load(count), make_masked_load(count)
    zeros = make_zeros(element_type.compute_type, count)
    peels, lanes = each_peels_to_alignment(element_type), np.int64(count)
    put, put_some = (
        make_put(full_access(count, nontemporal=nontemporal)),
        make_put(tail_access(count)),
    )

    @inlined
    def add_some(arrays, j, low, high, stats, factors, products, grads):
        scale, mean_hi, rstd = stats
        grad = to_compute(masked_load(arrays[0], j, low, high))
        xhat = (to_compute(masked_load(arrays[1], j, low, high)) * scale - mean_hi) * rstd
        products = products + grad * select_lanes(xhat, low, high)
        put_some(arrays, j, (low, high), grad, factors)
        return products, grads + grad

    @inlined
    def block_sums(arrays, start, stop, peel, stats, factors):
        scale, mean_hi, rstd = stats
        sums = zeros(), zeros()
        first = start + (peel if peel < stop - start else stop - start)
        if peels and first > start:
            low = count - (first - start)
            sums = add_some(arrays, first - count, low, lanes, stats, factors, *sums)
        end = stop - (stop - first) % count
        products, grads = sums
        for j in range(first, end, count):
            grad = to_compute(load(arrays[0], j))
            xhat = (to_compute(load(arrays[1], j)) * scale - mean_hi) * rstd
            products = products + grad * xhat
            grads = grads + grad
            put(arrays, j, lanes, grad, factors)
        if end < stop:
            products, grads = add_some(
                arrays, end, np.int64(0), stop - end, stats, factors, products, grads
            )
        return reduce_sum(products), reduce_sum(grads)

    @inlined
    def segment_sums(arrays, begin, size, peel, stats, factors):
        sum_of_products, sum_dy = np.float64(0), np.float64(0)
        for start in range(begin, begin + size, tuning.SUM_BLOCK_ELEMENTS):
            stop = min(start + tuning.SUM_BLOCK_ELEMENTS, begin + size)
            one, two = block_sums(arrays, start, stop, peel, stats, factors)
            sum_of_products += one
            sum_dy += two
        return sum_of_products, sum_dy

    return segment_sums


@inlined
def _put_nothing(arrays: Any, j: int, active: Any, grad: Any, factors: Any) -> None:
    pass


@functools.cache
def make_gradient_sums(element_type: ElementType) -> Callable[..., Any]:
    """Return the ``segment_sums`` of a segment of dy and x that stores nothing."""
    return _make_segment_sums(element_type, lambda access: _put_nothing)


@functools.cache
def make_frozen_statistics_gradient(
    element_type: ElementType, *, nontemporal: bool
) -> Callable[..., Any]:
    """Return the ``segment_sums`` of a segment of dy, x and dx that stores dx.

    The factors are ``(factor, back)``, and dx is ``dy * back * factor``. A `back` of None stands
    for 1.
    """

    def make_put(access):
        coefficient, write = access.coefficient, access.write
        to_storage, one = element_type.to_storage, element_type.compute_type(1)

        @inlined
        def put(arrays, j, active, grad, factors):
            factor, back = coefficient(factors, j, active, one)
            write(arrays[2], j, to_storage(grad * back * factor), active)

        return put

    return _make_segment_sums(element_type, make_put, nontemporal=nontemporal)
