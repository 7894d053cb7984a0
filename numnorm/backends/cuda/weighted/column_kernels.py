"""The kernels of the norms with statistics of each channel, with a selection of elements.

An array is ``(outer, channels, inner)``, and value v of a channel has the entry ``v // inner``. The
values are divided into parts. A block has a part of as many neighbouring channels as it has lanes,
whose values are divided among its teams. So neighbouring threads have neighbouring channels, or, in
blocks of one lane, neighbouring values.
"""

import functools
from typing import Any, NamedTuple

from numnorm.backends.cuda.columns.column_shape import ColumnShape
from numnorm.backends.cuda.columns.thread_elements import make_fold_sums
from numnorm.backends.cuda.compiler.element_type import FLOAT64, ElementType
from numnorm.backends.cuda.compiler.target import (
    Kernel,
    constant,
    cuda,
    device,
    make_load_one,
    make_store_one,
)
from numnorm.backends.cuda.rows.arguments import parameters_kind
from numnorm.backends.cuda.threads.row_columns import Weights
from numnorm.backends.cuda.weighted.selection import (
    FILL,
    INFINITY,
    NAN,
    SELECTION,
    ZERO,
    in_mask,
    is_kept,
    make_number_of,
    make_weight_of,
    quotient,
)
from numnorm.backends.formulas.norms import merge_moments, moved

_DOUBLE = FLOAT64.compute_type
_ONE = constant(FLOAT64, 1.0)
# A variance that squares have lost is no 0, which would mean a constant channel.
_SMALLEST_M2, _LEAST = constant(FLOAT64, 1e-315), constant(FLOAT64, 5e-324)
# Weights of the sum 1, the commonest, may add up to a little more: W - 1 is rounding then.
_ROUNDED_UP = constant(FLOAT64, 1.0 + 1e-9)
# Threads of a block of channels.
_THREADS = 128

SUMS = 4


class ColumnSizes(NamedTuple):
    """The shape of an array of channels, and how it is divided.

    Attributes
    ----------
    outer, channels, inner : index
        The shape.
    part, parts : index
        The number of values of a channel in a part, and of parts.
    """

    outer: int
    channels: int
    inner: int
    part: int
    parts: int


class Coefficients(NamedTuple):
    """The numbers of each channel, float64: the mean and a table ``(number of others, channels)``.

    The table has ``rstd`` in the forward pass, and else ``factor, shift, slope``.
    """

    mean: Any
    table: Any


class ColumnTypes(NamedTuple):
    """The types of x, dy and the weights of elements, for which a kernel is compiled."""

    element: ElementType
    dy: ElementType
    weights: ElementType


class Flows(NamedTuple):
    """Whether (1 or 0) the gradient flows through the mean and through the scale, and `most_lost`.

    `most_lost` is what the rounding of a saved mean may have lost, as a part of the mean.
    """

    mean: int
    scale: int
    most_lost: float


SIZES = ColumnSizes, ("index",) * 5
COEFFICIENTS = Coefficients, ("address",) * 2
PARAMETERS = parameters_kind(FLOAT64)
FLOWS = Flows, ("index", "index", "float64")


@functools.cache
def _make_work(shape: ColumnShape) -> Any:
    """Return a device function ``work(sizes)``: a thread's part and channel, first and last value.

    A thread has every teams-th value from its first one on, and none behind the last channel.
    """
    lanes = shape.lanes

    @device
    def work(sizes):
        strips = (sizes.channels + lanes - 1) // lanes
        part, thread = cuda.blockIdx.x // strips, cuda.threadIdx.x
        channel = cuda.blockIdx.x % strips * lanes + thread % lanes
        start = part * sizes.part
        stop = min(start + sizes.part, sizes.outer * sizes.inner)
        if channel >= sizes.channels:
            stop = start
        return part, channel, start + thread // lanes, stop

    return work


@device
def _place(sizes, channel, number):
    """Return the entry of a value of a channel, and its place in this entry."""
    if sizes.inner == 1:
        return number, channel
    entry = number // sizes.inner
    return entry, channel * sizes.inner + number - entry * sizes.inner


# Pivots


def make_first_values(types: ColumnTypes, shape: ColumnShape) -> Kernel:
    """Return the kernel that finds the first value that counts, of each part and channel.

    It takes the address of x, `Selection`, the address of a table of float64 ``(parts, channels)``
    and `ColumnSizes`. It stores how many values of the channel begin there, 0 if there is none.
    """
    load, weight_of = make_load_one(types.element), make_weight_of(types.weights)
    store, work = make_store_one(FLOAT64), _make_work(shape)
    lanes, teams, threads = shape.lanes, shape.teams, shape.threads

    @device
    def left_from_first(x, selection, sizes, channel, start, stop):
        for number in range(start, stop, teams):
            entry, column = _place(sizes, channel, number)
            value = _DOUBLE(load(x, entry * sizes.channels * sizes.inner + column))
            weight = weight_of(selection, entry, column)
            if is_kept(selection, entry, column, value) and weight > ZERO:
                return _DOUBLE(sizes.outer * sizes.inner - number)
        return ZERO

    def kernel(x, selection, table, sizes):
        found, thread = cuda.shared.array(threads, _DOUBLE), cuda.threadIdx.x
        part, channel, start, stop = work(sizes)
        found[thread] = left_from_first(x, selection, sizes, channel, start, stop)
        cuda.syncthreads()
        if thread < lanes and channel < sizes.channels:
            most = ZERO
            for team in range(teams):
                most = max(most, found[team * lanes + thread])
            store(table, part * sizes.channels + channel, most)

    return Kernel(kernel, ("address", SELECTION, "address", SIZES), threads)


def make_pivots(element: ElementType) -> Kernel:
    """Return the kernel of the first value that counts of each channel, 0 if there is none.

    So all deviations of a constant channel are 0. It takes the addresses of x, of the table of
    `make_first_values` and of the pivots, and `ColumnSizes`. Each thread has a channel.
    """
    load, load_found, store = (
        make_load_one(element),
        make_load_one(FLOAT64),
        make_store_one(FLOAT64),
    )

    def kernel(x, table, pivots, sizes):
        channel = cuda.blockIdx.x * _THREADS + cuda.threadIdx.x
        if channel < sizes.channels:
            part, left, pivot = 0, 0, ZERO
            while part < sizes.parts and left == 0:
                left = int(load_found(table, part * sizes.channels + channel))
                part += 1
            if left > 0:
                number = sizes.outer * sizes.inner - left
                entry, column = _place(sizes, channel, number)
                pivot = _DOUBLE(load(x, entry * sizes.channels * sizes.inner + column))
            store(pivots, channel, pivot)

    return Kernel(kernel, ("address",) * 3 + (SIZES,), _THREADS)


# Sums


@functools.cache
def _make_add_moments(types: ColumnTypes) -> Any:
    """Return a device function that adds w, w d, w d**2 and |d| of a value to the sums."""
    load, weight_of = make_load_one(types.element), make_weight_of(types.weights)

    @device
    def add(arrays, selection, entry, column, at, pivot, sums):
        value = _DOUBLE(load(arrays[0], at))
        if is_kept(selection, entry, column, value):
            weight = weight_of(selection, entry, column)
            sums[0] += weight
            if weight > ZERO:
                deviation = value - pivot
                sums[1] += weight * deviation
                sums[2] += weight * deviation * deviation
                sums[3] += abs(deviation)

    return add


@functools.cache
def _make_add_gradients(types: ColumnTypes) -> Any:
    """Return a device function that adds w, w d, dy and dy d of a value to the sums."""
    load, weight_of = make_load_one(types.element), make_weight_of(types.weights)
    load_dy = make_load_one(types.dy)

    @device
    def add(arrays, selection, entry, column, at, pivot, sums):
        value = _DOUBLE(load(arrays[0], at))
        if is_kept(selection, entry, column, value):
            weight, deviation = weight_of(selection, entry, column), value - pivot
            d = _DOUBLE(load_dy(arrays[1], at))
            sums[0] += weight
            if weight > ZERO:
                sums[1] += weight * deviation
            sums[2] += d
            sums[3] += d * deviation

    return add


def make_column_sums(types: ColumnTypes, shape: ColumnShape, *, gradient: bool) -> Kernel:
    """Return the kernel of four sums of each part and channel, with ``d = x - pivot``.

    They are the sums of w, w d, w d**2 and |d|, or for a `gradient` those of w, w d, dy and dy d.
    It takes the addresses of x and dy, `Selection`, the addresses of the pivots and of the sums
    ``(parts, 4, channels)``, and `ColumnSizes`.
    """
    add = (_make_add_gradients if gradient else _make_add_moments)(types)
    load_pivot, store = make_load_one(FLOAT64), make_store_one(FLOAT64)
    work, fold = _make_work(shape), make_fold_sums(shape, 2)
    lanes, teams, threads = shape.lanes, shape.teams, shape.threads
    slots = 2 * threads

    def kernel(x, dy, selection, pivots, table, sizes):
        one = cuda.shared.array(slots, _DOUBLE)
        other = cuda.shared.array(slots, _DOUBLE)
        sums, thread = cuda.local.array(SUMS, _DOUBLE), cuda.threadIdx.x
        part, channel, start, stop = work(sizes)
        for k in range(SUMS):
            sums[k] = ZERO
        if start < stop:
            pivot = load_pivot(pivots, channel)
            for number in range(start, stop, teams):
                entry, column = _place(sizes, channel, number)
                at = entry * sizes.channels * sizes.inner + column
                add((x, dy), selection, entry, column, at, pivot, sums)
        for k in range(2):
            one[k * threads + thread], other[k * threads + thread] = sums[k], sums[2 + k]
        fold(one, other)
        if thread < lanes and channel < sizes.channels:
            for k in range(2):
                at = (part * SUMS + k) * sizes.channels + channel
                store(table, at, one[k * threads + thread])
                store(table, at + 2 * sizes.channels, other[k * threads + thread])

    kinds = "address", "address", SELECTION, "address", "address", SIZES
    return Kernel(kernel, kinds, threads)


@functools.cache
def _make_totals(shape: ColumnShape) -> Any:
    """Return a device function ``totals(table, sizes, one, other)`` over all parts.

    The first team gets the sums of its channel in two shared arrays, at its thread and
    `shape.threads` further on. It returns the channel.
    """
    lanes, teams, threads = shape.lanes, shape.teams, shape.threads
    load, fold = make_load_one(FLOAT64), make_fold_sums(shape, 2)

    @device
    def totals(table, sizes, one, other):
        thread = cuda.threadIdx.x
        channel = cuda.blockIdx.x * lanes + thread % lanes
        for k in range(2):
            one[k * threads + thread], other[k * threads + thread] = ZERO, ZERO
        if channel < sizes.channels:
            for part in range(thread // lanes, sizes.parts, teams):
                for k in range(2):
                    at = (part * SUMS + k) * sizes.channels + channel
                    one[k * threads + thread] += load(table, at)
                    other[k * threads + thread] += load(table, at + 2 * sizes.channels)
        fold(one, other)
        return channel

    return totals


class MomentArrays(NamedTuple):
    """The addresses of the float64 moments of each channel; 0 stands for no array."""

    total: Any
    mean: Any
    m2: Any
    mean_lo: Any


MOMENTS = MomentArrays, ("address",) * 4


def make_moments(shape: ColumnShape) -> Kernel:
    """Return the kernel of the moments of each channel; they are 0 where nothing counts.

    It takes the addresses of the sums of `make_column_sums` and of the pivots, `MomentArrays`,
    which it writes, and `ColumnSizes`. The mean may be written over the pivots.
    """
    lanes, threads, slots = shape.lanes, shape.threads, 2 * shape.threads
    load, store, totals = make_load_one(FLOAT64), make_store_one(FLOAT64), _make_totals(shape)

    def kernel(table, pivots, moments, sizes):
        one = cuda.shared.array(slots, _DOUBLE)
        other = cuda.shared.array(slots, _DOUBLE)
        channel, thread = totals(table, sizes, one, other), cuda.threadIdx.x
        if thread < lanes and channel < sizes.channels:
            total, first = one[thread], one[threads + thread]
            second, extent = other[thread], other[threads + thread]
            near, pivot = first / (_ONE if total == ZERO else total), load(pivots, channel)
            m2 = second - first * near
            if m2 <= ZERO:  # not if it is NaN
                m2 = _SMALLEST_M2 if extent > ZERO else ZERO
            mean = pivot + near
            store(moments.mean, channel, mean)
            if moments.total != 0:
                taken = mean - pivot
                lost = (pivot - (mean - taken)) + (near - taken)
                store(moments.total, channel, total)
                store(moments.m2, channel, m2)
                store(moments.mean_lo, channel, lost if abs(mean) < INFINITY else ZERO)

    return Kernel(kernel, ("address", "address", MOMENTS, SIZES), threads)


def make_variance() -> Kernel:
    """Return the kernel of the mean and variance of each channel, NaN where nothing counts.

    It takes `MomentArrays`, the addresses of mean and variance, and the number of channels.
    """
    load, store = make_load_one(FLOAT64), make_store_one(FLOAT64)

    def kernel(moments, mean, variance, channels):
        channel = cuda.blockIdx.x * _THREADS + cuda.threadIdx.x
        if channel < channels:
            total, m2 = load(moments.total, channel), load(moments.m2, channel)
            result = quotient(m2, total)
            store(mean, channel, load(moments.mean, channel) if total > ZERO else NAN)
            store(variance, channel, _LEAST if m2 > ZERO and result == ZERO else result)

    return Kernel(kernel, (MOMENTS, "address", "address", "index"), _THREADS)


def make_update_counted(running: ElementType) -> Kernel:
    """Return the kernel that moves a running statistic of each channel that has weight.

    It takes the addresses of the running statistic, of the new one and of the sums of weights W,
    both float64; the number of channels; and ``correction, momentum``. The new statistic is
    multiplied by W / (W - correction). A channel whose W - correction is not greater than 0 keeps
    its statistic.
    """
    load, store = make_load_one(running), make_store_one(running)
    load_new, move = make_load_one(FLOAT64), device(moved)
    rounded = running.compute_type

    def kernel(running, new, totals, channels, correction, momentum):
        channel = cuda.blockIdx.x * _THREADS + cuda.threadIdx.x
        if channel < channels:
            total = load_new(totals, channel)
            if total > correction * _ROUNDED_UP:
                fresh = load_new(new, channel) * (total / (total - correction))
                result = move(_DOUBLE(load(running, channel)), fresh, momentum)
                store(running, channel, rounded(result))

    return Kernel(kernel, ("address",) * 3 + ("index",) + ("float64",) * 2, _THREADS)


def make_merged_counted() -> Kernel:
    """Return the kernel that merges the moments of two sets of values, each with its counts.

    It takes three `MomentArrays`, of which it writes the last, and the number of channels.
    """
    load, store, merge = make_load_one(FLOAT64), make_store_one(FLOAT64), device(merge_moments)

    @device
    def moments_of(moments, channel):
        lost = load(moments.mean_lo, channel)
        return load(moments.mean, channel), lost, load(moments.m2, channel)

    def kernel(moments, other, merged, channels):
        channel = cuda.blockIdx.x * _THREADS + cuda.threadIdx.x
        if channel < channels:
            count, others = load(moments.total, channel), load(other.total, channel)
            mean, lost, m2 = moments_of(moments, channel)
            if count == ZERO:
                mean, lost, m2 = moments_of(other, channel)
            elif others != ZERO:
                both = merge(count, (mean, lost, m2), others, moments_of(other, channel), _ONE)
                mean, lost, m2 = both
            store(merged.total, channel, count + others)
            store(merged.mean, channel, mean)
            store(merged.mean_lo, channel, lost)
            store(merged.m2, channel, m2)

    return Kernel(kernel, (MOMENTS,) * 3 + ("index",), _THREADS)


def make_counted_variance() -> Kernel:
    """Return the kernel of ``m2 / (count - ddof)`` of each channel, NaN for no positive divisor.

    It takes the addresses of m2, of the counts and of the result, all float64; the number of
    channels; and ddof.
    """
    load, store = make_load_one(FLOAT64), make_store_one(FLOAT64)

    def kernel(m2, counts, variance, channels, ddof):
        channel = cuda.blockIdx.x * _THREADS + cuda.threadIdx.x
        if channel < channels:
            divisor = load(counts, channel) - ddof
            store(variance, channel, quotient(load(m2, channel), divisor))

    return Kernel(kernel, ("address",) * 3 + ("index", "float64"), _THREADS)


# Elements


def make_weighted_outputs(types: ColumnTypes, parameters: Weights, shape: ColumnShape) -> Kernel:
    """Return the kernel that stores ``(x - mean) * (rstd * gamma) + beta``, or a fill value.

    It takes the address of x, `Selection`, `Coefficients`, `RowParameters`, the address of y, which
    may be x, `ColumnSizes` and `Fill`.
    """
    load, store = make_load_one(types.element), make_store_one(types.element)
    load_number, rounded = make_load_one(FLOAT64), types.element.compute_type
    gamma_of, beta_of = make_number_of(parameters.gamma), make_number_of(parameters.beta)
    work, teams = _make_work(shape), shape.teams

    def kernel(x, selection, coefficients, parameters, y, sizes, fill):
        _, channel, start, stop = work(sizes)
        if start < stop:
            mean, rstd = (
                load_number(coefficients.mean, channel),
                load_number(coefficients.table, channel),
            )
            factor = rstd * gamma_of(parameters.gamma, channel)
            offset = beta_of(parameters.beta, channel)
            for number in range(start, stop, teams):
                entry, column = _place(sizes, channel, number)
                at = entry * sizes.channels * sizes.inner + column
                value, result = _DOUBLE(load(x, at)), fill.fill
                if in_mask(selection, entry, column):
                    result = (value - mean) * factor + offset
                    if selection.omit != 0 and value != value:
                        result = fill.missing
                store(y, at, rounded(result))

    kinds = "address", SELECTION, COEFFICIENTS, PARAMETERS, "address", SIZES, FILL
    return Kernel(kernel, kinds, shape.threads)


def make_weighted_slopes(
    gamma: ElementType | None, gradient: ElementType, shape: ColumnShape
) -> Kernel:
    """Return the kernel of dgamma, dbeta and the coefficients of dx: factor, shift and slope.

    It takes the address of the sums of `make_column_sums`, `Coefficients`, the address of rstd,
    `RowParameters`, the addresses of dgamma and dbeta, `ColumnSizes` and `Flows`.
    """
    lanes, threads, slots = shape.lanes, shape.threads, 2 * shape.threads
    load, store, totals = make_load_one(FLOAT64), make_store_one(FLOAT64), _make_totals(shape)
    store_gradient, rounded = make_store_one(gradient), gradient.compute_type
    gamma_of = make_number_of(gamma)

    @device
    def slopes(sums, mean, rstd, weight, flows):
        total, first, plain, products = sums
        divisor = total if total > ZERO else _ONE
        lost = first / divisor
        # A mean that the caller changed stays as it is.
        lost = lost if abs(lost) <= flows.most_lost * abs(mean) else ZERO
        # A channel of which nothing is left has a NaN as its statistics, and sums of 0.
        is_empty = plain == ZERO and products == ZERO
        of_gamma = ZERO if is_empty else rstd * (products - lost * plain)
        factor = weight * rstd
        through_mean = plain / divisor if flows.mean != 0 else ZERO
        slope = factor * rstd * (of_gamma / divisor) if flows.scale != 0 else ZERO
        return of_gamma, factor, factor * through_mean - lost * slope, slope

    def kernel(table, coefficients, rstd, parameters, dgamma, dbeta, sizes, flows):
        one = cuda.shared.array(slots, _DOUBLE)
        other = cuda.shared.array(slots, _DOUBLE)
        channel, thread = totals(table, sizes, one, other), cuda.threadIdx.x
        if thread < lanes and channel < sizes.channels:
            sums = one[thread], one[threads + thread], other[thread], other[threads + thread]
            mean, inverse = load(coefficients.mean, channel), load(rstd, channel)
            weight = gamma_of(parameters.gamma, channel)
            of_gamma, factor, shift, slope = slopes(sums, mean, inverse, weight, flows)
            store_gradient(dgamma, channel, rounded(of_gamma))
            store_gradient(dbeta, channel, rounded(sums[2]))
            store(coefficients.table, channel, factor)
            store(coefficients.table, sizes.channels + channel, shift)
            store(coefficients.table, 2 * sizes.channels + channel, slope)

    kinds = "address", COEFFICIENTS, "address", PARAMETERS, "address", "address", SIZES, FLOWS
    return Kernel(kernel, kinds, threads)


def make_weighted_dx(types: ColumnTypes, shape: ColumnShape) -> Kernel:
    """Return the kernel that stores ``dy * factor - w * (shift + (x - mean) * slope)``.

    It takes the addresses of dy and x, `Selection`, `Coefficients`, the address of dx, which may be
    dy or x, and `ColumnSizes`.
    """
    load, load_dy = make_load_one(types.element), make_load_one(types.dy)
    store, rounded = make_store_one(types.element), types.element.compute_type
    load_number, weight_of = make_load_one(FLOAT64), make_weight_of(types.weights)
    work, teams = _make_work(shape), shape.teams

    def kernel(dy, x, selection, coefficients, dx, sizes):
        _, channel, start, stop = work(sizes)
        if start < stop:
            mean, channels = load_number(coefficients.mean, channel), sizes.channels
            factor = load_number(coefficients.table, channel)
            shift = load_number(coefficients.table, channels + channel)
            slope = load_number(coefficients.table, 2 * channels + channel)
            for number in range(start, stop, teams):
                entry, column = _place(sizes, channel, number)
                at = entry * channels * sizes.inner + column
                value, result = _DOUBLE(load(x, at)), ZERO
                if is_kept(selection, entry, column, value):
                    weight = weight_of(selection, entry, column)
                    through = weight * (shift + (value - mean) * slope)
                    result = _DOUBLE(load_dy(dy, at)) * factor - through
                store(dx, at, rounded(result))

    kinds = "address", "address", SELECTION, COEFFICIENTS, "address", SIZES
    return Kernel(kernel, kinds, shape.threads)
