"""The moments of channels: of an array, of a stream of chunks, and merged from two."""

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from numnorm.arguments import check_float
from numnorm.array_likes import as_plain_array
from numnorm.backends.contract.backend import BlockMoments, GivenMoments
from numnorm.backends.cpu.columns.moments_kernels import make_fold
from numnorm.backends.cpu.columns.plan import plan_of
from numnorm.backends.cpu.memory.host_arrays import Array
from numnorm.backends.formulas.norms import merge_moments, split_sum
from numnorm.layouts import ColumnLayout

# Moments whose count is a number for each channel: sums of weights


# The count, mean, m2 and mean_lo of each channel, all float64.
Counted = tuple[Array, Array, Array, Array]


def merge_counted(one: Counted, other: Counted) -> Counted:
    """Return the moments of two sets of values together: `merge_moments` for each channel."""
    count, mean, m2, mean_lo = one
    other_count, other_mean, other_m2, other_lo = other
    with np.errstate(all="ignore"):
        total = count + other_count
        weight = other_count / np.where(total > 0.0, total, 1.0)
        # A step from the set with the larger count goes at most half of the way.
        ahead = weight > 0.5
        half = (other_mean * 0.5 - mean * 0.5) + (other_lo * 0.5 - mean_lo * 0.5)
        step = half * np.where(ahead, 2.0 * (weight - 1.0), 2.0 * weight)
        start, start_lo = np.where(ahead, other_mean, mean), np.where(ahead, other_lo, mean_lo)
        rounded, lost = two_sum(start, step)
        merged, merged_lo = split_sum(rounded, lost + start_lo)
        between = half * (4.0 * count * weight) * half
        sums = merged, m2 + other_m2 + between, merged_lo
    # A set without values may have any mean.
    filled = [
        np.where(other_count == 0.0, a, np.where(count == 0.0, b, both))
        for a, b, both in zip(one[1:], other[1:], sums, strict=True)
    ]
    return total, filled[0], filled[1], filled[2]


def two_sum(a: Any, b: Any) -> tuple[Any, Any]:
    """Return the rounded sum of any two numbers, and what it lost (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


# Moments with one count for all channels


_Blocks = tuple[int, int, Array, float]

fold_kernel = functools.cache(make_fold)


def column_moments(x: Array, layout: ColumnLayout) -> tuple[int, Array, Array, float]:
    """Return (count, mean, m2 * unit, unit) of each channel."""
    count, _, table, unit = blocks = _of_blocks(x, layout)
    if layout.blocks > 1:
        count, table, unit = _folded([blocks])
    return count, table[0, 0], table[2, 0], unit


def streamed_moments(
    x: Array, layout: ColumnLayout, after: GivenMoments | None
) -> tuple[int, Array, Array, Array]:
    """Return (count, mean, m2, mean_lo) of each channel, merged with `after`, in new arrays."""
    before = [] if after is None else [_as_blocks("after", after)]
    count, _, table, unit = blocks = _of_blocks(x, layout)
    if before or layout.blocks > 1:
        count, table, unit = _folded([*before, blocks])
    with np.errstate(all="ignore"):
        return count, table[0, 0], table[2, 0] / unit, table[1, 0]


def block_moments(x: Array, layout: ColumnLayout) -> BlockMoments:
    """Return the moments of each block of x."""
    return BlockMoments(*_of_blocks(x, layout))


def folded_moments(
    parts: Sequence[BlockMoments | GivenMoments],
) -> tuple[int, Array, Array, Array]:
    """Return (count, mean, m2, mean_lo) of all parts, merged in order."""
    given = [p if isinstance(p, BlockMoments) else _as_blocks("moments", p) for p in parts]
    shape = given[0][2].shape[2:]
    count, table, unit = _folded([(n, step, _flat(table), unit) for n, step, table, unit in given])
    mean, mean_lo, m2 = (row.reshape(shape) for row in table[:, 0])
    with np.errstate(all="ignore"):
        return count, mean, m2 / unit, mean_lo


def unit_of(count: int) -> float:
    """Return a power of two near 1 / count: m2 times it is in range where the variance is."""
    return math.ldexp(1.0, -math.frexp(count)[1])


def _of_blocks(x: Array, layout: ColumnLayout) -> _Blocks:
    """Return the fields of `BlockMoments` of x; an empty x has one block of zeros."""
    plan = plan_of(x.dtype, layout)
    if not plan.elements:
        return 0, 0, np.zeros((3, 1, layout.channels)), 1.0
    step = layout.block * layout.inner
    source, unit = plan.source(x), unit_of(step)
    table = np.empty((3, layout.blocks, layout.channels))
    kernel = plan.family.moments(plan.element_type)
    plan.run(kernel, (source, layout.block, unit, table), plan.block_parts, 1)
    return layout.per_channel, step, table, unit


def _folded(parts: Sequence[_Blocks]) -> tuple[int, Array, float]:
    """Return the count, mean, mean_lo and m2 * unit as a table of one block, and the unit."""
    filled = [part for part in parts if part[0]] or parts[:1]
    count, _, table, unit = filled[0]
    if len(filled) == 1 and table.shape[1] == 1:  # nothing to merge
        return count, table, unit
    count, done = sum([part[0] for part in filled]), 0
    unit, total = unit_of(count), np.empty((3, table.shape[2]))
    for values, step, table, block_unit in filled:
        last = values - (table.shape[1] - 1) * step
        fold_kernel()(float(done), total, float(step), float(last), table, unit, block_unit)
        done += values
    return count, total[:, None], unit


def merged_moments(
    mean: Array, moments: GivenMoments, other: GivenMoments
) -> tuple[Array, Array, Array]:
    """Return mean, m2 and mean_lo of two sets of values from their moments; neither is empty.

    If one has a count for each channel, either may be.
    """
    if np.ndim(moments[0]) or np.ndim(other[0]):
        return merge_counted(_counted("moments", moments), _counted("other", other))[1:]
    (count, total), (other_count, others) = _checked("moments", moments), _checked("other", other)
    with np.errstate(all="ignore"):
        merged_mean, mean_lo, m2 = merge_moments(count, total, other_count, others, 1.0)
    return merged_mean, m2, mean_lo


def streamed_counts(
    after: GivenMoments, moments: tuple[Array, Array, Array, Array]
) -> tuple[Array, Array, Array, Array]:
    """Return count, mean, m2 and mean_lo of two sets of values, with a count for each channel."""
    return merge_counted(_counted("after", after), _counted("moments", moments))


def variance(m2: Array, divisor: int) -> Array:
    """Return ``m2 / divisor``."""
    with np.errstate(all="ignore"):
        return m2 / divisor


def deviation(m2: Array, divisor: int) -> Array:
    """Return ``sqrt(m2 / divisor)``."""
    result: Array = np.sqrt(variance(m2, divisor))
    return result


def _as_blocks(name: str, moments: GivenMoments) -> _Blocks:
    """Return the caller's moments, checked, as one block."""
    count, table = _checked(name, moments)
    return count, count, table[:, None], 1.0


def _counted(name: str, moments: GivenMoments | Counted) -> Counted:
    """Return the caller's moments, checked, with a count for each channel."""
    _, mean, m2, mean_lo = moments
    _, (mean, mean_lo, m2) = _checked(name, (0, mean, m2, mean_lo))
    count = as_plain_array(f"{name}.count", moments[0])
    check_float(f"{name}.count", count.dtype)
    return np.broadcast_to(count.astype(np.float64), mean.shape), mean, m2, mean_lo


def _flat(table: Array) -> Array:
    """Return the table of `BlockMoments` with one axis of channels."""
    return table.reshape(*table.shape[:2], math.prod(table.shape[2:]))


def _checked(name: str, moments: GivenMoments) -> tuple[int, Array]:
    """Return the count and a new table of mean, mean_lo and m2 of the caller's moments, checked."""
    count, mean, m2, mean_lo = moments
    table = np.zeros((3, *np.shape(mean)))
    for row, field, value in ((0, "mean", mean), (2, "m2", m2), (1, "mean_lo", mean_lo)):
        if value is not None:
            array = as_plain_array(f"{name}.{field}", value)
            check_float(f"{name}.{field}", array.dtype)
            table[row] = array
    return operator.index(count), table
