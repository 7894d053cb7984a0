"""The kernels of the norms with statistics of each row, with a selection of its elements.

A team of threads has a row, or a segment of one, and reads it once for each sum that depends on the
one before. A row of the table of coefficients has five float64 numbers: the mean, what its rounding
lost, rstd, and the gradients through the mean and through the scale.
"""

import functools
from typing import Any, NamedTuple

import numpy as np

from numnorm.backends.contract.norms import Formula
from numnorm.backends.cuda.compiler.element_type import FLOAT64, ElementType
from numnorm.backends.cuda.compiler.target import (
    Kernel,
    constant,
    cuda,
    device,
    make_load_one,
    make_store_one,
)
from numnorm.backends.cuda.rows.arguments import SIZES, STATISTICS, parameters_kind
from numnorm.backends.cuda.statistics.row_statistics import (
    make_inverse_deviation,
    make_power_of_two,
    make_scale_gradient_factor,
)
from numnorm.backends.cuda.statistics.stored import most_lost
from numnorm.backends.cuda.threads.reductions import WARP, make_team_largest, make_team_sums
from numnorm.backends.cuda.threads.row_columns import Weights
from numnorm.backends.cuda.threads.row_shape import RowShape
from numnorm.backends.cuda.weighted.selection import (
    FILL,
    NAN,
    ONE,
    SELECTION,
    ZERO,
    in_mask,
    is_kept,
    make_number_of,
    make_weight_of,
    quotient,
)

_DOUBLE = FLOAT64.compute_type
# A mean square between these lost no digits to underflow and did not overflow.
_SMALLEST, _LARGEST = constant(FLOAT64, 1e-280), constant(FLOAT64, 1e280)

COEFFICIENTS = 5


class WeightedScaling(NamedTuple):
    """How a row's sum of squares becomes its deviation.

    Attributes
    ----------
    eps, eps_on_deviation : number
        What is added to the variance and to the deviation.
    least : number
        The deviation that epsilon alone would give.
    share, more : number
        The sum of squares is divided by ``total * share + more``, with the sum of the weights.
    """

    eps: float
    eps_on_deviation: float
    least: float
    share: float
    more: float


class Through(NamedTuple):
    """Whether (1 or 0) the gradient flows through the mean and through the scale of a row."""

    mean: int
    scale: int


SCALING = WeightedScaling, ("float64",) * 5
THROUGH = Through, ("index",) * 2
PARAMETERS = parameters_kind(FLOAT64)


class Types(NamedTuple):
    """The types of arrays for which a kernel is compiled.

    Attributes
    ----------
    element : ElementType
        Of x and of the result.
    dy : ElementType
        Of the gradient.
    saved : ElementType
        Of the saved statistics.
    weights : ElementType
        Of the weights of elements.
    parameters : Weights
        Of gamma and beta.
    """

    element: ElementType
    dy: ElementType
    saved: ElementType
    weights: ElementType
    parameters: Weights


# Sums of a row


@functools.cache
def _make_sums_of_team(shape: RowShape, count: int) -> Any:
    """Return `make_team_sums` with shared memory that earlier sums may have used."""
    team_sums, wide = make_team_sums(shape.team, count), shape.team > WARP

    @device
    def sums_of_team(values, smem):
        if wide:
            cuda.syncthreads()
        team_sums(values, smem)

    return sums_of_team


@functools.cache
def _make_largest_of_team(shape: RowShape) -> Any:
    """Return `make_team_largest` with shared memory that earlier sums may have used."""
    team_largest, wide = make_team_largest(shape.team), shape.team > WARP

    @device
    def largest_of_team(value, smem):
        if wide:
            cuda.syncthreads()
        return team_largest(value, smem)

    return largest_of_team


@functools.cache
def _make_row_sums(element: ElementType, weights: ElementType, shape: RowShape) -> Any:
    """Return a device function ``row_sums(x, selection, row, width, scale, pivot, sums, smem)``.

    It stores the sums of w, w d and w d**2 of a row in `sums`, with ``d = x * scale - pivot``.
    """
    load, weight_of = make_load_one(element), make_weight_of(weights)
    sums_of_team, team = _make_sums_of_team(shape, 3), shape.team

    @device
    def row_sums(x, selection, row, width, scale, pivot, sums, smem):
        total, first, second = ZERO, ZERO, ZERO
        for j in range(cuda.threadIdx.x % team, width, team):
            value = _DOUBLE(load(x, row * width + j))
            if is_kept(selection, row, j, value):
                weight = weight_of(selection, row, j)
                total += weight
                if weight > ZERO:
                    deviation = value * scale - pivot
                    first += weight * deviation
                    second += weight * deviation * deviation
        sums[0], sums[1], sums[2] = total, first, second
        sums_of_team(sums, smem)

    return row_sums


@functools.cache
def _make_pivot(element: ElementType, weights: ElementType, shape: RowShape) -> Any:
    """Return a device function ``pivot(x, selection, row, width, smem)``.

    It returns the first element of a row that counts, and 0 if there is none. So all deviations of
    a constant row are 0.
    """
    load, weight_of = make_load_one(element), make_weight_of(weights)
    largest_of_team, team = _make_largest_of_team(shape), shape.team

    @device
    def left_from_first(x, selection, row, width):
        for j in range(cuda.threadIdx.x % team, width, team):
            value = _DOUBLE(load(x, row * width + j))
            if is_kept(selection, row, j, value) and weight_of(selection, row, j) > ZERO:
                return _DOUBLE(width - j)
        return ZERO

    @device
    def pivot(x, selection, row, width, smem):
        left = largest_of_team(left_from_first(x, selection, row, width), smem)
        if left == ZERO:
            return ZERO
        return _DOUBLE(load(x, row * width + width - np.int64(left)))

    return pivot


@functools.cache
def _make_scale(element: ElementType, weights: ElementType, shape: RowShape) -> Any:
    """Return a device function ``scale_of(x, selection, row, width, least, smem)``.

    It returns the power of two that brings the largest value that counts, or `least`, near 1.
    """
    load, weight_of = make_load_one(element), make_weight_of(weights)
    largest_of_team, power_of_two = _make_largest_of_team(shape), make_power_of_two(FLOAT64)
    team = shape.team

    @device
    def scale_of(x, selection, row, width, least, smem):
        largest = least
        for j in range(cuda.threadIdx.x % team, width, team):
            value = _DOUBLE(load(x, row * width + j))
            if is_kept(selection, row, j, value) and weight_of(selection, row, j) > ZERO:
                largest = max(largest, abs(value))
        return power_of_two(largest_of_team(largest, smem))

    return scale_of


@functools.cache
def _make_statistics(
    formula: Formula, element: ElementType, weights: ElementType, shape: RowShape
) -> Any:
    """Return a device function ``statistics(x, selection, row, width, least, sums, smem)``.

    It returns (scale, pivot, mean, total, m2) of a row. The mean of ``x * scale`` is ``pivot +
    mean``, m2 is the sum of its squared deviations, and `total` is the sum of the weights. Without
    centring, pivot and mean are 0, and m2 is the sum of squares.
    """
    row_sums, pivot_of = (make(element, weights, shape) for make in (_make_row_sums, _make_pivot))
    scale_of, centred = _make_scale(element, weights, shape), formula.centred

    @device
    def statistics(x, selection, row, width, least, sums, smem):
        scale, pivot = ONE, pivot_of(x, selection, row, width, smem) if centred else ZERO
        row_sums(x, selection, row, width, scale, pivot, sums, smem)
        if not (_SMALLEST * sums[0] <= sums[2] and sums[2] <= _LARGEST * sums[0]):
            scale = scale_of(x, selection, row, width, least, smem)
            pivot *= scale
            row_sums(x, selection, row, width, scale, pivot, sums, smem)
        if not centred:
            return scale, ZERO, ZERO, sums[0], sums[2]
        mean = quotient(sums[1], sums[0])
        m2 = sums[2] - sums[1] * mean
        if sums[1] * mean > m2:
            pivot += mean
            row_sums(x, selection, row, width, scale, pivot, sums, smem)
            mean = quotient(sums[1], sums[0])
            m2 = sums[2] - sums[1] * mean
        # max() would turn a NaN into 0.
        return scale, pivot, mean, sums[0], ZERO if m2 < ZERO else m2

    return statistics


# Forward


@functools.cache
def _make_parameter_index(*, shared: bool) -> Any:
    """Return a device function ``index(row, column, sizes)`` of an element's parameters."""

    @device
    def of_segment(row, column, sizes):
        if sizes.segment == sizes.width:
            return row % sizes.channels
        return (row * (sizes.width // sizes.segment) + column // sizes.segment) % sizes.channels

    @device
    def of_element(row, column, sizes):
        return row % sizes.channels * sizes.width + column

    return of_segment if shared else of_element


def make_weighted_forward(formula: Formula, types: Types, shape: RowShape) -> Kernel:
    """Return the forward kernel of a formula.

    It takes the address of x, `Selection`, `RowParameters`, the address of y, which may be x,
    `SavedStatistics`, `RowSizes`, `WeightedScaling` and `Fill`.
    """
    element, weights = types.element, types.parameters
    load, store = make_load_one(element), make_store_one(element)
    save = make_store_one(types.saved)
    statistics = _make_statistics(formula, element, types.weights, shape)
    inverse_deviation = make_inverse_deviation(FLOAT64)
    forward, index_of = device(formula.forward), _make_parameter_index(shared=weights.shared)
    gamma_of, beta_of = make_number_of(weights.gamma), make_number_of(weights.beta)
    team, teams, smem_size = shape.team, shape.teams, 3 * shape.threads // WARP
    rounded, narrowed = element.compute_type, types.saved.compute_type
    centred = formula.centred

    @device
    def result(x, selection, parameters, sizes, row, j, of_row, fill):
        if not in_mask(selection, row, j):
            return fill.fill
        value = _DOUBLE(load(x, row * sizes.width + j))
        if selection.omit != 0 and value != value:
            return fill.missing
        scale, pivot, mean, rstd = of_row
        xhat, index = ((value * scale - pivot) - mean) * rstd, index_of(row, j, sizes)
        return forward(xhat, gamma_of(parameters.gamma, index), beta_of(parameters.beta, index))

    def kernel(x, selection, parameters, y, saved, sizes, scaling, fill):
        smem, sums = cuda.shared.array(smem_size, _DOUBLE), cuda.local.array(3, _DOUBLE)
        thread, width = cuda.threadIdx.x, sizes.width
        row = cuda.blockIdx.x * teams + thread // team
        if row < sizes.rows:
            scale, pivot, mean, total, m2 = statistics(
                x, selection, row, width, scaling.least, sums, smem
            )
            variance = quotient(m2, total * scaling.share + scaling.more)
            eps, eps_on_deviation = scaling.eps * scale * scale, scaling.eps_on_deviation * scale
            rstd = inverse_deviation(variance, eps, eps_on_deviation)
            of_row = scale, pivot, mean, rstd
            for j in range(thread % team, width, team):
                y_of = result(x, selection, parameters, sizes, row, j, of_row, fill)
                store(y, row * width + j, rounded(y_of))
            if saved.mean != 0 and thread % team == 0:
                centre = pivot + mean
                if not centred:
                    centre = ZERO if rstd == ZERO else ONE / rstd
                # The mean is NaN if rstd is.
                save(saved.mean, row, narrowed((centre if rstd == rstd else NAN) / scale))
                save(saved.rstd, row, narrowed(rstd * scale))

    kinds = "address", SELECTION, PARAMETERS, "address", STATISTICS, SIZES, SCALING, FILL
    return Kernel(kernel, kinds, shape.threads)


# Backward


@functools.cache
def _make_gradient(formula: Formula, types: Types) -> Any:
    """Return a device function of an element's xhat and its gradient.

    ``gradient(dy, value, of_row, parameters, index)`` of a value that is kept.
    """
    weights = types.parameters
    gamma_of, beta_of = make_number_of(weights.gamma), make_number_of(weights.beta)
    backward = device(formula.backward)

    @device
    def gradient(d, value, of_row, parameters, index):
        mean, lost, rstd = of_row
        xhat = ((value - mean) - lost) * rstd
        gamma, beta = gamma_of(parameters.gamma, index), beta_of(parameters.beta, index)
        return xhat, backward(d, xhat, gamma, beta)

    return gradient


def make_weighted_coefficients(formula: Formula, types: Types, shape: RowShape) -> Kernel:
    """Return the kernel of the coefficients of rows.

    It takes the addresses of dy and x, `Selection`, `SavedStatistics`, `RowParameters`, the address
    of the table of coefficients, `RowSizes`, `WeightedScaling` and `Through`.
    """
    load, load_dy = make_load_one(types.element), make_load_one(types.dy)
    load_saved, store = make_load_one(types.saved), make_store_one(FLOAT64)
    row_sums = _make_row_sums(types.element, types.weights, shape)
    sums_of_team, gradient = _make_sums_of_team(shape, 2), _make_gradient(formula, types)
    index_of = _make_parameter_index(shared=types.parameters.shared)
    scale_gradient_factor = make_scale_gradient_factor(FLOAT64)
    team, teams, smem_size = shape.team, shape.teams, 3 * shape.threads // WARP
    centred, most = formula.centred, constant(FLOAT64, most_lost(types.saved))

    @device
    def gradient_sums(arrays, selection, parameters, sizes, row, of_row, sums, smem):
        dy, x = arrays
        g_sum, product_sum, width = ZERO, ZERO, sizes.width
        for j in range(cuda.threadIdx.x % team, width, team):
            value = _DOUBLE(load(x, row * width + j))
            if is_kept(selection, row, j, value):
                d, index = _DOUBLE(load_dy(dy, row * width + j)), index_of(row, j, sizes)
                xhat, g = gradient(d, value, of_row, parameters, index)
                g_sum += g
                product_sum += g * xhat
        sums[0], sums[1] = g_sum, product_sum
        sums_of_team(sums, smem)

    def kernel(dy, x, selection, saved, parameters, coefficients, sizes, scaling, through):
        smem, sums = cuda.shared.array(smem_size, _DOUBLE), cuda.local.array(3, _DOUBLE)
        thread, width = cuda.threadIdx.x, sizes.width
        row = cuda.blockIdx.x * teams + thread // team
        if row < sizes.rows:
            rstd = _DOUBLE(load_saved(saved.rstd, row))
            mean = _DOUBLE(load_saved(saved.mean, row)) if centred else ZERO
            row_sums(x, selection, row, width, ONE, mean, sums, smem)
            total, lost = sums[0], quotient(sums[1], sums[0])
            # A mean that the caller changed stays as it is.
            lost = lost if centred and abs(lost) <= most * abs(mean) else ZERO
            of_row = mean, lost, rstd
            gradient_sums((dy, x), selection, parameters, sizes, row, of_row, sums, smem)
            mean_g = quotient(sums[0], total) if through.mean != 0 else ZERO
            divisor = total * scaling.share + scaling.more
            factor = scale_gradient_factor(rstd, scaling.eps_on_deviation)
            mean_g_xhat = quotient(sums[1], divisor) * factor if through.scale != 0 else ZERO
            if thread % team == 0:
                at = row * COEFFICIENTS
                store(coefficients, at, mean)
                store(coefficients, at + 1, lost)
                store(coefficients, at + 2, rstd)
                store(coefficients, at + 3, mean_g)
                store(coefficients, at + 4, mean_g_xhat)

    arrays = "address", "address", SELECTION, STATISTICS, PARAMETERS, "address"
    return Kernel(kernel, (*arrays, SIZES, SCALING, THROUGH), shape.threads)


@functools.cache
def _make_write_dx(formula: Formula, types: Types) -> Any:
    """Return a device function that stores dx of an element.

    ``write_dx(arrays, selection, parameters, row, column, index, width, of_row, through)`` returns
    its terms of dgamma and dbeta. `arrays` are dy, x and dx, which may be one of them.
    """
    load, load_dy = make_load_one(types.element), make_load_one(types.dy)
    store, rounded = make_store_one(types.element), types.element.compute_type
    weight_of, gradient = make_weight_of(types.weights), _make_gradient(formula, types)

    @device
    def write_dx(arrays, selection, parameters, row, j, index, width, of_row, through):
        dy, x, dx = arrays
        at = row * width + j
        value, d, product, result = _DOUBLE(load(x, at)), ZERO, ZERO, ZERO
        if is_kept(selection, row, j, value):
            d = _DOUBLE(load_dy(dy, at))
            xhat, g = gradient(d, value, of_row, parameters, index)
            product = d * xhat
            shared = weight_of(selection, row, j) * (through[0] + xhat * through[1])
            result = of_row[2] * (g - shared)
        store(dx, at, rounded(result))
        return product, d

    return write_dx


@functools.cache
def _make_coefficients_of() -> Any:
    """Return a device function of a row's coefficients: (mean, lost, rstd), (g, g xhat)."""
    load = make_load_one(FLOAT64)

    @device
    def coefficients_of(coefficients, row):
        at = row * COEFFICIENTS
        of_row = load(coefficients, at), load(coefficients, at + 1), load(coefficients, at + 2)
        return of_row, (load(coefficients, at + 3), load(coefficients, at + 4))

    return coefficients_of


def _backward_kinds() -> tuple[Any, ...]:
    """Return what kernels of dx take.

    These are the addresses of dy and x, `Selection`, `RowParameters`, the addresses of the
    coefficients, of dx and of the partial sums ``(parameters, rows of the table, size)``, and
    `RowSizes`.
    """
    return "address", "address", SELECTION, PARAMETERS, *("address",) * 3, SIZES


def make_weighted_segments(formula: Formula, types: Types, count: int, shape: RowShape) -> Kernel:
    """Return the kernel of dx for rows whose segments share parameters, or that have none.

    A team has a segment, and stores its sums of `count` gradients. It takes `_backward_kinds`.
    """
    write_dx, coefficients_of = _make_write_dx(formula, types), _make_coefficients_of()
    sums_of_team, store = _make_sums_of_team(shape, 2), make_store_one(FLOAT64)
    team, teams, smem_size = shape.team, shape.teams, 2 * shape.threads // WARP

    def kernel(dy, x, selection, parameters, coefficients, dx, partials, sizes):
        smem, sums = cuda.shared.array(smem_size, _DOUBLE), cuda.local.array(2, _DOUBLE)
        thread, segment, width = cuda.threadIdx.x, sizes.segment, sizes.width
        number, segments = cuda.blockIdx.x * teams + thread // team, width // segment
        if number < sizes.rows * segments:
            row, start, channel = number // segments, number % segments, number % sizes.channels
            of_row, through = coefficients_of(coefficients, row)
            of_gamma, of_beta, arrays = ZERO, ZERO, (dy, x, dx)
            for k in range(thread % team, segment, team):
                product, d = write_dx(
                    arrays, selection, parameters, row, start * segment + k, channel, width,
                    of_row, through,
                )  # fmt: skip
                of_gamma += product
                of_beta += d
            if count > 0:
                sums[0], sums[1] = of_gamma, of_beta
                sums_of_team(sums, smem)
                if thread % team == 0:
                    store(partials, number, sums[0])
                    if count > 1:
                        store(partials, sizes.rows * segments + number, sums[1])

    return Kernel(kernel, _backward_kinds(), shape.threads)


def make_weighted_columns(formula: Formula, types: Types, count: int, shape: RowShape) -> Kernel:
    """Return the kernel of dx for rows with parameters for each of their elements.

    A thread has a column of a part of the rows of one channel, and stores its sums of `count`
    gradients. It takes `_backward_kinds` and the number of parts, a multiple of the channels.
    """
    write_dx, coefficients_of = _make_write_dx(formula, types), _make_coefficients_of()
    store, threads = make_store_one(FLOAT64), shape.threads

    def kernel(dy, x, selection, parameters, coefficients, dx, partials, sizes, parts):
        rows, width, channels = sizes.rows, sizes.width, sizes.channels
        strips = (width + threads - 1) // threads
        part = cuda.blockIdx.x // strips
        column = cuda.blockIdx.x % strips * threads + cuda.threadIdx.x
        channel, number = part % channels, part // channels
        each, of_channel = parts // channels, rows // channels
        if column < width:
            of_gamma, of_beta, index = ZERO, ZERO, channel * width + column
            for i in range(number * of_channel // each, (number + 1) * of_channel // each):
                row = i * channels + channel
                of_row, through = coefficients_of(coefficients, row)
                product, d = write_dx(
                    (dy, x, dx), selection, parameters, row, column, index, width, of_row, through
                )
                of_gamma += product
                of_beta += d
            store(partials, part * width + column, of_gamma)
            if count > 1:
                store(partials, (parts + part) * width + column, of_beta)

    return Kernel(kernel, (*_backward_kinds(), "index"), threads)
