"""A norm inside a recurrent cell: the statistics of parts of a row that a team holds in registers.

They are four numbers of the working type: ``((x * scale - mean_hi) - mean_lo) * factor`` is the
normalized value. The backward pass finds the very same ones in a table.
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
from numnorm.backends.cuda.statistics.row_normalizer import (
    make_inverse_deviation,
    make_power_of_two,
)
from numnorm.backends.cuda.threads.group_reductions import (
    WARP,
    make_team_largest,
    make_team_largest_of,
    make_team_sums,
)
from numnorm.backends.cuda.threads.row_columns import row_columns
from numnorm.backends.cuda.threads.row_shape import RowShape

# How many numbers the statistics of one part of a row are.
NUMBERS = 4
# The sums of a step take turns in this many rooms: no thread writes to one that is still read.
SMEM_PER_WARP = 3


@dataclasses.dataclass(frozen=True)
class Parts:
    """What of the registers is normalized together.

    Parameters
    ----------
    count : int
        How many parts there are, each with its own statistics.
    sections : int
        How many sections of a row's units, with a thread's columns of each, make a part.
    """

    count: int
    sections: int


CELL = Parts(1, 1)


def gain_of(norm: Norm | None, element: ElementType) -> ElementType | None:
    """Return the elements of a norm's gamma; None where a number stands for all of it."""
    return element if norm is not None and norm.parameters > 0 else None


def bias_of(norm: Norm | None, element: ElementType) -> ElementType | None:
    """Return those of its beta."""
    return element if norm is not None and norm.parameters > 1 else None


def smem_for_parts(count: int, shape: RowShape) -> int:
    """Return how many numbers a block's threads share for two sums of each of so many parts."""
    return 2 * count * max(1, shape.threads // WARP)


def _make_row_statistics(
    formula: Formula, element: ElementType, shape: RowShape, parts: Parts
) -> Any:
    """Return a device function ``row_statistics(values, origins, found, squares, at, width, inv_count, smem)``.

    It finds high and low of each part, into `found`, where its scale is, and its `squares`, the
    sum of its squared deviations. An origin is any of a part's values: a constant part then gives
    exactly that constant.
    """
    columns, count, sections = row_columns(element, shape), parts.count, parts.sections
    lanes, vectors, stride, slots = columns.lanes, columns.vectors, columns.stride, columns.slots
    compute_type, zero = element.compute_type, constant(element, 0.0)
    team_sums = make_team_sums(element, shape.team, count)
    both, half = 2 * count, smem_for_parts(count, shape)
    team_both = make_team_sums(element, shape.team, both)

    @device
    def centred(values, origins, found, squares, at, width, inv_count, smem):
        sums = cuda.local.array(both, compute_type)
        for n in range(count):
            sums[n] = zero
            scale = found[n * NUMBERS]
            origin = origins[n] * scale
            for section in range(n * sections, (n + 1) * sections):
                for p in range(vectors):
                    if at + p * stride < width:
                        for j in range(lanes):
                            sums[n] += values[section * slots + p * lanes + j] * scale - origin
        team_sums(sums, smem)
        for n in range(count):
            scale = found[n * NUMBERS]
            mean_hi = origins[n] * scale + sums[n] * inv_count
            found[n * NUMBERS + 1] = mean_hi
            sums[n], sums[count + n] = zero, zero
            for section in range(n * sections, (n + 1) * sections):
                for p in range(vectors):
                    if at + p * stride < width:
                        for j in range(lanes):
                            deviation = values[section * slots + p * lanes + j] * scale - mean_hi
                            sums[n] += deviation
                            sums[count + n] += deviation * deviation
        team_both(sums, smem[half:])
        for n in range(count):
            mean_lo = sums[n] * inv_count
            m2 = sums[count + n] - sums[n] * mean_lo
            found[n * NUMBERS + 2] = mean_lo
            # max() would turn a NaN into 0.
            squares[n] = zero if m2 < zero else m2

    @device
    def uncentred(values, origins, found, squares, at, width, inv_count, smem):
        for n in range(count):
            squares[n] = zero
            scale = found[n * NUMBERS]
            for k in range(n * sections * slots, (n + 1) * sections * slots):
                value = values[k] * scale  # those that are not there are 0
                squares[n] += value * value
            found[n * NUMBERS + 1], found[n * NUMBERS + 2] = zero, zero
        team_sums(squares, smem[half:])

    return centred if formula.centred else uncentred


def _make_rescale(element: ElementType, shape: RowShape, parts: Parts) -> Any:
    """Return a device function ``rescale(values, found, squares, scaling, smem)``.

    It makes the scale of each part whose squares left the range of the working type a power of
    two that brings its largest absolute value, or epsilon, near 1.
    """
    slots, count = row_columns(element, shape).slots, parts.count
    size = parts.sections * slots
    largest_of, power_of_two = (
        make_team_largest_of(element, shape.team, count),
        make_power_of_two(element),
    )
    is_poor, compute_type = make_is_poor(element), element.compute_type
    infinity, half = constant(element, float("inf")), smem_for_parts(count, shape)

    @device
    def rescale(values, found, squares, scaling, smem):
        largest = cuda.local.array(count, compute_type)
        _, _, _, eps_on_deviation, root_eps = scaling
        for n in range(count):
            poor = is_poor(squares[n], scaling)
            largest[n] = max(root_eps, eps_on_deviation) if poor else infinity
            for k in range(n * size, (n + 1) * size):
                largest[n] = max(largest[n], abs(values[k]))
        largest_of(largest, smem[2 * half :])
        for n in range(count):
            found[n * NUMBERS] = power_of_two(largest[n])

    return rescale


@functools.cache
def make_is_poor(element: ElementType) -> Any:
    """Return a device function: whether squares are too small or too large for their digits."""
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
    """Return a device function of the statistics of parts, but for their factors.

    ``moments(values, origins, found, squares, at, width, scaling, smem)``, as
    `make_cell_statistics`; the squared deviations are added up in `squares`, scaled.
    """
    row_statistics = _make_row_statistics(formula, element, shape, parts)
    rescale, is_poor = _make_rescale(element, shape, parts), make_is_poor(element)
    # Wider teams agree, as they have the same sums; others of a warp go along.
    any_of = make_team_largest(element, WARP) if shape.team < WARP else device(lambda v, smem: v)
    count, zero, one = parts.count, constant(element, 0.0), constant(element, 1.0)

    @device
    def moments(values, origins, found, squares, at, width, scaling, smem):
        inv_count = scaling[0]
        for n in range(count):
            found[n * NUMBERS] = one
        row_statistics(values, origins, found, squares, at, width, inv_count, smem)
        poor = zero
        for n in range(count):
            poor = one if is_poor(squares[n], scaling) else poor
        if any_of(poor, smem) > zero:
            rescale(values, found, squares, scaling, smem)
            row_statistics(values, origins, found, squares, at, width, inv_count, smem)

    return moments


@functools.cache
def make_cell_factor(element: ElementType) -> Any:
    """Return a device function ``factor(scale, squares, scaling)``, the last of the statistics."""
    inverse_deviation, one = make_inverse_deviation(element), constant(element, 1.0)

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
    """Return a device function ``statistics(values, origins, found, at, width, scaling, smem)``.

    It finds the statistics of each part of a thread's values, and leaves those alone. An origin is
    any value of a part. The scaling is ``inv_count, inv_divisor, eps, eps_on_deviation, root_eps``:
    1 over the number of elements, 1 over the divisor of their squares, and the root of eps. The
    room has `SMEM_PER_WARP` times `smem_for_parts`. All threads of a block take part.
    """
    moments, factor = make_cell_moments(formula, element, shape, parts), make_cell_factor(element)
    compute_type, count = element.compute_type, parts.count

    @device
    def statistics(values, origins, found, at, width, scaling, smem):
        squares = cuda.local.array(count, compute_type)
        moments(values, origins, found, squares, at, width, scaling, smem)
        for n in range(count):
            found[n * NUMBERS + 3] = factor(found[n * NUMBERS], squares[n], scaling)

    return statistics


@functools.cache
def make_keep_statistics(element: ElementType, count: int) -> Any:
    """Return a device function ``keep(table, row, sites, place, found)`` of a row's statistics.

    The row of the table has so many `sites`; those of `found` begin at one of them.
    """
    store_one = make_store_one(element)

    @device
    def keep(table, row, sites, place, found):
        for k in range(count * NUMBERS):
            store_one(table, (row * sites + place) * NUMBERS + k, found[k])

    return keep


@functools.cache
def make_kept_statistics(element: ElementType, count: int) -> Any:
    """Return a device function ``kept(table, row, sites, place, found)``: them again."""
    load_one = make_load_one(element)

    @device
    def kept(table, row, sites, place, found):
        for k in range(count * NUMBERS):
            found[k] = load_one(table, (row * sites + place) * NUMBERS + k)

    return kept


@device
def normalized(x: Any, found: Any, n: Any) -> Any:
    """Return a value of the n-th part, normalized."""
    at = n * NUMBERS
    return ((x * found[at] - found[at + 1]) - found[at + 2]) * found[at + 3]


def make_normalize(element: ElementType, shape: RowShape, parts: Parts) -> Any:
    """Return a device function ``normalize(values, found, at, limit)`` of a thread's in place."""
    columns, sections = row_columns(element, shape), parts.sections
    lanes, vectors, stride, slots = columns.lanes, columns.vectors, columns.stride, columns.slots
    count, zero = parts.count * sections, constant(element, 0.0)

    @device
    def normalize(values, found, at, limit):
        for section in range(count):
            for p in range(vectors):
                active = at + p * stride < limit
                for j in range(lanes):
                    k = section * slots + p * lanes + j
                    # What is not there has none, which is infinite at worst.
                    values[k] = (
                        normalized(values[k], found, section // sections) if active else zero
                    )

    return normalize
