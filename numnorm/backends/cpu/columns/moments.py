"""The moments of channels: of an array, of a stream of chunks, and merged from two."""

import functools
import math
import operator

import numpy as np

from numnorm.arguments import check_float
from numnorm.array_likes import as_plain_array
from numnorm.backends.contract.backend import GivenMoments
from numnorm.backends.cpu.columns.moments_kernels import (
    make_fold,
)
from numnorm.backends.cpu.columns.plan import plan_of
from numnorm.backends.cpu.memory.host_arrays import (
    Array,
)
from numnorm.backends.formulas.norms import merge_moments
from numnorm.layouts import ColumnLayout

fold_kernel = functools.cache(make_fold)


def column_moments(x: Array, layout: ColumnLayout) -> tuple[int, Array, Array, float]:
    """Return (count, mean, m2 * unit, unit) of each channel."""
    count, table, unit = _moments(x, layout, None)
    return count, table[0, 0], table[2, 0], unit


def streamed_moments(
    x: Array, layout: ColumnLayout, after: GivenMoments | None
) -> tuple[int, Array, Array, Array]:
    """Return (count, mean, m2, mean_lo) of each channel, merged with `after`, in new arrays."""
    count, table, unit = _moments(x, layout, after)
    with np.errstate(over="ignore"):
        return count, table[0, 0], table[2, 0] / unit, table[1, 0]


def unit_of(count: int) -> float:
    """Return a power of two near 1 / count: m2 times it is in range where the variance is."""
    return math.ldexp(1.0, -math.frexp(count)[1])


def _moments(
    x: Array, layout: ColumnLayout, after: GivenMoments | None
) -> tuple[int, Array, float]:
    """Return the count, a new table (3, 1, channels) of mean, mean_lo, m2 * unit, and the unit."""
    plan = plan_of(x.dtype, layout)
    count, total = (0, None) if after is None else _checked("after", after)
    if not plan.elements:
        return count, np.zeros((3, 1, layout.channels)) if total is None else total[:, None], 1.0
    source, block_unit = plan.source(x), unit_of(layout.block * layout.inner)
    moments = np.empty((3, layout.blocks, layout.channels))
    kernel = plan.family.moments(plan.element_type)
    plan.run(kernel, (source, layout.block, block_unit, moments), plan.block_parts, 1)
    if total is None and layout.blocks == 1:  # nothing to merge
        return layout.per_channel, moments, block_unit
    unit = unit_of(count + layout.per_channel)
    if total is None:
        total = np.empty((3, layout.channels))
    else:
        total[2] *= unit
    last = layout.outer - (layout.blocks - 1) * layout.block
    counts = float(layout.block * layout.inner), float(last * layout.inner)
    fold_kernel()(float(count), total, *counts, moments, unit, block_unit)
    return count + layout.per_channel, total[:, None], unit


def merged_moments(
    mean: Array, moments: GivenMoments, other: GivenMoments
) -> tuple[Array, Array, Array]:
    """Return mean, m2 and mean_lo of two sets of values from their moments; neither is empty."""
    (count, total), (other_count, others) = _checked("moments", moments), _checked("other", other)
    with np.errstate(over="ignore", invalid="ignore"):
        merged_mean, mean_lo, m2 = merge_moments(count, total, other_count, others, 1.0)
    return merged_mean, m2, mean_lo


def variance(m2: Array, divisor: int) -> Array:
    """Return ``m2 / divisor``."""
    return m2 / divisor


def deviation(m2: Array, divisor: int) -> Array:
    """Return ``sqrt(m2 / divisor)``."""
    result: Array = np.sqrt(m2 / divisor)
    return result


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
