"""The moments of the channels of a device array: of an array, of chunks, and merged from two."""

import functools
import math
import operator
from collections.abc import Iterable
from typing import Any

from numnorm.array_likes import is_on_device
from numnorm.backends.contract.backend import GivenMoments
from numnorm.backends.cuda.arrays.device_array import DeviceArray, in_order, with_array
from numnorm.backends.cuda.arrays.gather_rows import gather_rows
from numnorm.backends.cuda.arrays.known_calls import repeats
from numnorm.backends.cuda.arrays.launch import ArrayOffset, launch, launch_threads, on_device_of
from numnorm.backends.cuda.arrays.row_totals import write_row_totals
from numnorm.backends.cuda.columns.column_shape import (
    IN_ORDER,
    ColumnPlan,
    ColumnShape,
    fold_shape,
    plan_of,
)
from numnorm.backends.cuda.columns.moments_kernels import (
    make_merged_moments,
    make_moments_across,
    make_moments_along,
)
from numnorm.backends.cuda.compiler.element_type import FLOAT64
from numnorm.backends.cuda.statistics.stored import (
    Statistic,
    float64_memory,
    given_statistic,
    handed_out,
    in_float64,
    make_two_moments,
    new_statistic,
    root,
    zero_statistic,
)
from numnorm.layouts import ColumnLayout, RowLayout, column_layout

_across = functools.cache(make_moments_across)
_along = functools.cache(make_moments_along)
_merged_moments = functools.cache(make_merged_moments)
_two_moments = functools.cache(make_two_moments)

_Moments = tuple[int, Statistic, Statistic, Statistic]
_FIELDS = "mean", "m2", "mean_lo"


def column_moments(x: DeviceArray, layout: ColumnLayout) -> tuple[int, Statistic, Statistic, float]:
    """Return (count, mean, m2, 1.0) of each channel."""
    with on_device_of(x):
        if layout.per_channel == 0 or layout.channels == 0:
            return *_empty_moments(x, layout)[:3], 1.0
        source = x.lib.contiguous(x.array)
        plan = plan_of(x, layout, source)
        fold = fold_shape(layout.channels)
        return *_launched(x, layout, source, plan, fold, None)[:3], 1.0


def averaged_moments(x: DeviceArray, layout: RowLayout) -> tuple[Statistic, Statistic]:
    """Return the mean and m2 of each channel, averaged over the samples; x has its rows."""
    channels = layout.parameter_shape[0]
    samples = layout.rows // channels
    with on_device_of(x):
        rows = with_array(x, in_order(x, layout.order))
        _, mean, m2, _ = column_moments(rows, column_layout((1, layout.rows, layout.width), 1))
        averages = []
        for each in (mean, m2):
            total = new_statistic(each.name, x, channels)
            write_row_totals(x, FLOAT64, each.array, total.array, samples, channels)
            averages.append(total / samples)
        return averages[0], averages[1]


@repeats(unless="after")  # whose count is another one in each call
def streamed_moments(
    x: DeviceArray, layout: ColumnLayout, after: GivenMoments | None
) -> tuple[int, Any, Any, Any]:
    """Return the moments of `after` and x together, in arrays of the library of x.

    Blocks of a fixed number of entries are merged one after the other. So the result does not
    depend on the sizes of the chunks, if each chunk but the last has a multiple of that number.
    """
    with on_device_of(x):
        before = None if after is None else _given("after", after, x, layout.channels)
        if layout.per_channel == 0 or layout.channels == 0:
            count, *arrays = before or _empty_moments(x, layout)
        else:
            source = x.lib.contiguous(x.array)
            plan = plan_of(x, layout, source, streamed=True)
            count, *arrays = _launched(x, layout, source, plan, IN_ORDER, before)
        mean, m2, mean_lo = map(handed_out, arrays)
        return count, mean, m2, mean_lo


def merged_moments(
    mean: DeviceArray, moments: GivenMoments, other: GivenMoments
) -> tuple[Any, Any, Any]:
    """Return mean, m2 and mean_lo of two sets of values merged, in new arrays."""
    channels = math.prod(mean.shape)
    with on_device_of(mean):
        count, *ours = _given("moments", flat_moments(mean, moments), mean, channels)
        others, *theirs = _given("other", flat_moments(mean, other), mean, channels)
        merged = [new_statistic(name, mean, channels) for name in _FIELDS]
        kernel = _two_moments()
        arrays = [statistic.array for statistic in (*ours, *theirs, *merged)]
        if channels:
            numbers = channels, float(count), float(others)
            launch_threads(kernel, channels, mean, arrays, numbers)
        new_mean, m2, mean_lo = (in_shape_of(mean, statistic) for statistic in merged)
        return new_mean, m2, mean_lo


def flat_moments(x: DeviceArray, moments: Iterable[Any]) -> Any:
    """Return the caller's moments, which may have several channel axes, with one."""
    if len(x.shape) == 1:
        return moments
    count = math.prod(x.shape)
    return tuple(
        x.lib.reshaped(x.lib.contiguous(field), (count,)) if is_on_device(field) else field
        for field in moments
    )


def in_shape_of(x: DeviceArray, statistic: Statistic) -> Any:
    """Return a new array for the caller, of the shape of x."""
    return x.lib.reshaped(handed_out(statistic), x.shape)


def placed_rows(field: DeviceArray, rows: Any) -> Any:
    """Return the rows of a field of moments at these indices; zeros where an index is negative."""
    with on_device_of(field):
        source = with_array(field, field.lib.contiguous(field.array))
        flat = len(rows), math.prod(field.shape[1:])
        placed = gather_rows(source, field.element, flat, rows)
        return field.lib.reshaped(placed, (len(rows), *field.shape[1:]))


def variance(m2: DeviceArray, divisor: int) -> Any:
    """Return m2 / divisor in a new array."""
    with on_device_of(m2):
        return in_shape_of(m2, _given_m2(m2) / divisor)


def deviation(m2: DeviceArray, divisor: int) -> Any:
    """Return sqrt(m2 / divisor) in a new array."""
    with on_device_of(m2):
        return in_shape_of(m2, root(_given_m2(m2) / divisor))


def _given_m2(m2: DeviceArray) -> Statistic:
    (flat,) = flat_moments(m2, [m2.array])
    return given_statistic("m2", flat, m2, math.prod(m2.shape))


def _empty_moments(x: DeviceArray, layout: ColumnLayout) -> _Moments:
    mean, m2, mean_lo = (zero_statistic(name, x, layout.channels) for name in _FIELDS)
    return 0, mean, m2, mean_lo


def _given(name: str, given: GivenMoments, x: DeviceArray, channels: int) -> _Moments:
    """Return the caller's moments, checked, in float64."""
    count, *arrays = given
    mean, m2, mean_lo = (
        zero_statistic(field, x, channels)
        if array is None
        else in_float64(given_statistic(f"{name}.{field}", array, x, channels))
        for field, array in zip(_FIELDS, arrays, strict=True)
    )
    return operator.index(count), mean, m2, mean_lo


def _launched(
    x: DeviceArray,
    layout: ColumnLayout,
    source: Any,
    plan: ColumnPlan,
    fold: ColumnShape,
    after: _Moments | None,
) -> _Moments:
    """Launch the kernels of the moments of all parts, and of the merged moments."""
    channels = layout.channels
    size = FLOAT64.itemsize
    work = float64_memory(x, plan.parts * (1 + 3 * channels))
    parts = work, ArrayOffset(work, plan.parts * size)
    kernel = (_across if layout.inner == 1 else _along)(x.element, plan.shape)
    launch(kernel, plan.blocks, x, (source, *parts), plan.sizes)
    before, *earlier = (0, None, None, None) if after is None else after
    arrays = [None if statistic is None else statistic.array for statistic in earlier]
    merged = [new_statistic(name, x, channels) for name in _FIELDS]
    launch(
        _merged_moments(fold),
        -(-channels // fold.lanes),
        x,
        (*parts, *arrays, *(statistic.array for statistic in merged)),
        (plan.parts, channels, float(before)),
    )
    mean, m2, mean_lo = merged
    return before + layout.per_channel, mean, m2, mean_lo
