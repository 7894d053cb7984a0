"""A norm inside a recurrent cell: statistics of parts of a row that a team holds in registers.

The statistics of a part are four numbers of the compute type, ``scale, mean_hi, mean_lo, factor``:
``((x * scale - mean_hi) - mean_lo) * factor`` is the normalized value. The forward pass stores them
in a table ``(rows, sites, NUMBERS)``, from which the backward pass loads them.

Arguments that the device functions share:

``values``
    The thread's units, section after section, with 0 for units past the row's end.
``pivots``
    For each part, any of its values, the same for all threads.
``stats``
    `NUMBERS` statistics for each part.
``squares``
    For each part, the sum of squared deviations of ``x * scale``.
``at, width``
    The thread's first unit, and the number of units.
``scaling``
    The fields of `ScalingNumbers`.
``smem``
    Shared memory of ``SMEM_PER_WARP * smem_for_parts(...)`` numbers.
"""

import dataclasses
import functools
from typing import Any

from numnorm.backends.contract.norms import Formula, Norm
from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import (
    constant,
    cuda,
    device,
    make_load_one,
    make_store_one,
)
from numnorm.backends.cuda.statistics.row_statistics import (
    make_inverse_deviation,
    make_means,
    make_power_of_two,
)
from numnorm.backends.cuda.threads.reductions import (
    WARP,
    SumsOf,
    make_team_largest,
    make_team_largest_of,
    make_team_sums,
)
from numnorm.backends.cuda.threads.row_columns import row_columns
from numnorm.backends.cuda.threads.row_shape import RowShape
from numnorm.backends.formulas.norms import input_gradient

# The statistics of one part of a row.
NUMBERS = 4
# Successive sums use different buffers of shared memory, this many: no thread writes to a buffer
# that another thread still reads.
SMEM_PER_WARP = 3


@dataclasses.dataclass(frozen=True)
class Parts:
    """The parts of a thread's values that have statistics of their own.

    Parameters
    ----------
    count : int
        The number of parts.
    sections : int
        The number of sections in a part. A section is one array of H units in a row, for example a
        gate; a thread holds the same units of each.
    """

    count: int
    sections: int


CELL = Parts(1, 1)


def gain_of(norm: Norm | None, element: ElementType) -> ElementType | None:
    """Return the type of a norm's gamma; None if the norm has a number in its place."""
    return element if norm is not None and norm.parameters > 0 else None


def bias_of(norm: Norm | None, element: ElementType) -> ElementType | None:
    """Return the type of a norm's beta; None if the norm has a number in its place."""
    return element if norm is not None and norm.parameters > 1 else None


def smem_for_parts(count: int, shape: RowShape) -> int:
    """Return the size of the shared memory for two sums of each part, in numbers."""
    return 2 * count * max(1, shape.threads // WARP)


def _make_row_statistics(
    formula: Formula, element: ElementType, shape: RowShape, parts: Parts
) -> Any:
    """Return a device function of the mean and the squared deviations of each part.

    ``row_statistics(values, pivots, stats, squares, at, width, inv_count, smem)`` reads each part's
    scale in `stats`, and stores mean_hi, mean_lo and the squares. The pivot makes the mean of a
    constant part exactly that constant.
    """
    columns = row_columns(element, shape)
    count, sections = parts.count, parts.sections
    lanes, vectors, stride, slots = columns.lanes, columns.vectors, columns.stride, columns.slots
    compute_type = element.compute_type
    zero = constant(element, 0.0)
    both = 2 * count
    buffer = smem_for_parts(count, shape)
    team_sums, team_both = (make_team_sums(shape.team, n) for n in (count, both))

    @device
    def centred(values, pivots, stats, squares, at, width, inv_count, smem):
        sums = cuda.local.array(both, compute_type)
        for n in range(count):
            sums[n] = zero
            scale = stats[n * NUMBERS]
            pivot = pivots[n] * scale
            for section in range(n * sections, (n + 1) * sections):
                for p in range(vectors):
                    if at + p * stride < width:
                        for j in range(lanes):
                            sums[n] += values[section * slots + p * lanes + j] * scale - pivot
        team_sums(sums, smem)
        for n in range(count):
            scale = stats[n * NUMBERS]
            mean_hi = pivots[n] * scale + sums[n] * inv_count
            stats[n * NUMBERS + 1] = mean_hi
            sums[n], sums[count + n] = zero, zero
            for section in range(n * sections, (n + 1) * sections):
                for p in range(vectors):
                    if at + p * stride < width:
                        for j in range(lanes):
                            deviation = values[section * slots + p * lanes + j] * scale - mean_hi
                            sums[n] += deviation
                            sums[count + n] += deviation * deviation
        team_both(sums, smem[buffer:])
        for n in range(count):
            mean_lo = sums[n] * inv_count
            m2 = sums[count + n] - sums[n] * mean_lo
            stats[n * NUMBERS + 2] = mean_lo
            # max() would turn a NaN into 0.
            squares[n] = zero if m2 < zero else m2

    @device
    def uncentred(values, pivots, stats, squares, at, width, inv_count, smem):
        for n in range(count):
            squares[n] = zero
            scale = stats[n * NUMBERS]
            for k in range(n * sections * slots, (n + 1) * sections * slots):
                value = values[k] * scale  # 0 past the row's end
                squares[n] += value * value
            stats[n * NUMBERS + 1], stats[n * NUMBERS + 2] = zero, zero
        team_sums(squares, smem[buffer:])

    return centred if formula.centred else uncentred


def _make_rescale(element: ElementType, shape: RowShape, parts: Parts) -> Any:
    """Return a device function ``rescale(values, stats, squares, scaling, smem)``.

    It changes the scale of each part whose squares are out of the range of the compute type, to a
    power of two that brings the largest absolute value, or epsilon, near 1.
    """
    count = parts.count
    size = parts.sections * row_columns(element, shape).slots
    largest_of = make_team_largest_of(shape.team, count)
    is_poor, power_of_two = make_is_poor(element), make_power_of_two(element)
    compute_type = element.compute_type
    infinity = constant(element, float("inf"))
    buffer = smem_for_parts(count, shape)

    @device
    def rescale(values, stats, squares, scaling, smem):
        largest = cuda.local.array(count, compute_type)
        _, _, _, eps_on_deviation, root_eps = scaling
        for n in range(count):
            poor = is_poor(squares[n], scaling)
            largest[n] = max(root_eps, eps_on_deviation) if poor else infinity
            for k in range(n * size, (n + 1) * size):
                largest[n] = max(largest[n], abs(values[k]))
        largest_of(largest, smem[2 * buffer :])
        for n in range(count):
            stats[n * NUMBERS] = power_of_two(largest[n])

    return rescale


@functools.cache
def make_is_poor(element: ElementType) -> Any:
    """Return a device function ``is_poor(squares, scaling)``: whether squares lost precision.

    They did if the variance, with eps, is tiny, infinite or NaN.
    """
    smallest = constant(element, element.smallest_variance)
    infinity = constant(element, float("inf"))

    @device
    def is_poor(squares, scaling):
        _, inv_divisor, eps, eps_on_deviation, _ = scaling
        total = squares * inv_divisor + eps + eps_on_deviation * eps_on_deviation
        return not (smallest < total and total < infinity)

    return is_poor


@functools.cache
def make_cell_moments(formula: Formula, element: ElementType, shape: RowShape, parts: Parts) -> Any:
    """Return a device function that computes the statistics of each part except their factor.

    ``moments(values, pivots, stats, squares, at, width, scaling, smem)``: like
    `make_cell_statistics`, but it stores each part's sum of squared deviations in `squares` and
    leaves its factor uncomputed.
    """
    row_statistics = _make_row_statistics(formula, element, shape, parts)
    rescale = _make_rescale(element, shape, parts)
    is_poor = make_is_poor(element)
    # All threads of a wide team see the same sums. Narrow teams share a warp: all of them rescale
    # if one must, because of the warp's shuffles.
    any_of = make_team_largest(WARP) if shape.team < WARP else device(lambda v, smem: v)
    count = parts.count
    zero, one = constant(element, 0.0), constant(element, 1.0)

    @device
    def moments(values, pivots, stats, squares, at, width, scaling, smem):
        inv_count = scaling[0]
        for n in range(count):
            stats[n * NUMBERS] = one
        row_statistics(values, pivots, stats, squares, at, width, inv_count, smem)
        poor = zero
        for n in range(count):
            poor = one if is_poor(squares[n], scaling) else poor
        if any_of(poor, smem) > zero:
            rescale(values, stats, squares, scaling, smem)
            row_statistics(values, pivots, stats, squares, at, width, inv_count, smem)

    return moments


@functools.cache
def make_cell_factor(element: ElementType) -> Any:
    """Return a device function ``factor(scale, squares, scaling)``: the inverse deviation."""
    inverse_deviation = make_inverse_deviation(element)
    one = constant(element, 1.0)

    @device
    def factor(scale, squares, scaling):
        _, inv_divisor, eps, eps_on_deviation, root_eps = scaling
        scaled_eps = eps if scale == one else root_eps * scale * (root_eps * scale)
        return inverse_deviation(squares * inv_divisor, scaled_eps, eps_on_deviation * scale)

    return factor


@functools.cache
def make_cell_statistics(
    formula: Formula, element: ElementType, shape: RowShape, parts: Parts
) -> Any:
    """Return a device function ``statistics(values, pivots, stats, at, width, scaling, smem)``.

    It stores the statistics of each part, and does not change the values. All threads of a block
    must call it.
    """
    moments = make_cell_moments(formula, element, shape, parts)
    factor = make_cell_factor(element)
    compute_type = element.compute_type
    count = parts.count

    @device
    def statistics(values, pivots, stats, at, width, scaling, smem):
        squares = cuda.local.array(count, compute_type)
        moments(values, pivots, stats, squares, at, width, scaling, smem)
        for n in range(count):
            stats[n * NUMBERS + 3] = factor(stats[n * NUMBERS], squares[n], scaling)

    return statistics


@functools.cache
def make_store_statistics(element: ElementType, count: int) -> Any:
    """Return a device function ``store_statistics(table, row, sites, site, stats)``.

    It stores `count` parts' statistics in a row of the table, which has `sites` sites, from a site
    on.
    """
    store_one = make_store_one(element)

    @device
    def store_statistics(table, row, sites, site, stats):
        for k in range(count * NUMBERS):
            store_one(table, (row * sites + site) * NUMBERS + k, stats[k])

    return store_statistics


@functools.cache
def make_load_statistics(element: ElementType, count: int) -> Any:
    """Return a device function ``load_statistics(table, row, sites, site, stats)``.

    It loads into `stats` what `make_store_statistics` has stored with the same arguments.
    """
    load_one = make_load_one(element)

    @device
    def load_statistics(table, row, sites, site, stats):
        for k in range(count * NUMBERS):
            stats[k] = load_one(table, (row * sites + site) * NUMBERS + k)

    return load_statistics


@device
def normalized(x: Any, stats: Any, part: Any) -> Any:
    """Return a value of a part, normalized."""
    k = part * NUMBERS
    return ((x * stats[k] - stats[k + 1]) - stats[k + 2]) * stats[k + 3]


def make_normalize(element: ElementType, shape: RowShape, parts: Parts) -> Any:
    """Return a device function ``normalize(values, stats, at, limit)``: in place, 0 from limit."""
    columns = row_columns(element, shape)
    sections = parts.sections
    lanes, vectors, stride, slots = columns.lanes, columns.vectors, columns.stride, columns.slots
    all_sections = parts.count * sections
    zero = constant(element, 0.0)

    @device
    def normalize(values, stats, at, limit):
        for section in range(all_sections):
            part = section // sections
            for p in range(vectors):
                active = at + p * stride < limit
                for j in range(lanes):
                    k = section * slots + p * lanes + j
                    # Past the row's end the normalized value may be infinite.
                    values[k] = normalized(values[k], stats, part) if active else zero

    return normalize


# The gradient


def make_norm_backward(
    norm: Norm | None, element: ElementType, shape: RowShape, sums_of: SumsOf
) -> Any:
    """Return a device function from the gradient of a norm's result to its input's, in place.

    ``norm_backward(grad, at, width, xhat, gain, numbers, stats, coefficients, smem)``: `grad`,
    `xhat` (the normalized values) and `gain` (gamma) are the thread's units, `numbers` is
    `AdaNumbers`, `stats` the part's statistics, `coefficients` are the gradient's; `smem` has two
    numbers for each warp. Without a norm it does nothing. All threads of a block must call it.
    """
    if norm is None:
        return device(lambda grad, at, width, xhat, gain, numbers, stats, coefficients, smem: None)
    columns = row_columns(element, shape)
    zero = constant(element, 0.0)
    compute_type = element.compute_type
    lanes, vectors, stride, slots = columns.lanes, columns.vectors, columns.stride, columns.slots
    backward, gradient = device(norm.formula.backward), device(input_gradient)
    row_sums = sums_of(2)
    means_of = make_means(element)

    @device
    def norm_backward(grad, at, width, xhat, gain, numbers, stats, coefficients, smem):
        sums = cuda.local.array(2, compute_type)
        sums[0], sums[1] = zero, zero
        for k in range(slots):
            # Only AdaNorm's formula uses numbers[1]; the other norms have arrays.
            grad[k] = backward(grad[k], xhat[k], gain[k], numbers[1])
            sums[0] += grad[k]
            sums[1] += grad[k] * xhat[k]
        row_sums(sums, smem)
        scale, factor = stats[0], stats[3]
        inv_count, inv_divisor, eps_on_deviation = coefficients
        means = means_of(sums[0], sums[1], scale, factor, inv_count, inv_divisor, eps_on_deviation)
        for p in range(vectors):
            active = at + p * stride < width
            for j in range(lanes):
                k = p * lanes + j
                new_grad = gradient(grad[k], xhat[k], means[0], means[1], factor) * scale
                # The sums over the gates need 0 past the row's end.
                grad[k] = new_grad if active else zero

    return norm_backward
