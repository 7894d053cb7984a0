"""The moments of the channels of a device array: of an array, of chunks, and merged from two."""

import functools
from typing import Any

from numnorm.backends.cuda.arrays.device_array import DeviceArray
from numnorm.backends.cuda.arrays.launch import ArrayOffset, launch, on_device_of
from numnorm.backends.cuda.columns.column_shape import ColumnShape
from numnorm.backends.cuda.columns.merged_moments_kernel import make_merged_moments
from numnorm.backends.cuda.columns.moments_kernels import make_moments_across, make_moments_along
from numnorm.backends.cuda.columns.plans import IN_ORDER, ColumnPlan, fold_shape, plan_of
from numnorm.backends.cuda.compiler.element_type import FLOAT64
from numnorm.backends.cuda.statistics.stored import (
    Statistic,
    float64_memory,
    given_statistic,
    handed_out,
    in_float64,
    new_statistic,
    zero_statistic,
)
from numnorm.backends.cuda.statistics.stored_kernels import make_two_moments
from numnorm.layouts import ColumnLayout

_across = functools.cache(make_moments_across)
_along = functools.cache(make_moments_along)
_merged_moments = functools.cache(make_merged_moments)
_two_moments = functools.cache(make_two_moments)

_Moments = tuple[int, Statistic, Statistic]


def column_moments(x: DeviceArray, layout: ColumnLayout) -> _Moments:
    """Return (count, mean, m2) of each channel."""
    with on_device_of(x):
        if layout.per_channel == 0 or layout.channels == 0:
            return _empty_moments(x, layout)
        source = x.library.contiguous(x.array)
        plan, fold = plan_of(x, layout, source), fold_shape(layout.channels)
        return _launched(x, layout, source, plan, fold, None)


def streamed_moments(
    x: DeviceArray, layout: ColumnLayout, after: tuple[int, Any, Any] | None
) -> tuple[int, Any, Any]:
    """Return the moments of `after` and x together, in arrays of the library of x.

    Blocks of a fixed number of entries are merged one after the other. So the result does not
    depend on the sizes of the chunks, if each chunk but the last has a multiple of that number.
    """
    with on_device_of(x):
        before = None if after is None else _given("after", after, x, layout.channels)
        if layout.per_channel == 0 or layout.channels == 0:
            count, mean, m2 = before or _empty_moments(x, layout)
        else:
            source = x.library.contiguous(x.array)
            plan = plan_of(x, layout, source, streamed=True)
            count, mean, m2 = _launched(x, layout, source, plan, IN_ORDER, before)
        return count, handed_out(mean), handed_out(m2)


def merged_moments(
    mean: DeviceArray, moments: tuple[int, Any, Any], other: tuple[int, Any, Any]
) -> tuple[Any, Any]:
    """Return mean and m2 of two sets of values merged, in new arrays."""
    (channels,) = mean.shape
    with on_device_of(mean):
        count, *ours = _given("moments", moments, mean, channels)
        others, *theirs = _given("other", other, mean, channels)
        merged = [new_statistic(name, mean, channels) for name in ("mean", "m2")]
        kernel = _two_moments()
        arrays = [statistic.array for statistic in (*ours, *theirs, *merged)]
        if channels:
            blocks = -(-channels // kernel.threads)
            launch(kernel, blocks, mean, arrays, (channels, float(count), float(others)))
        return handed_out(merged[0]), handed_out(merged[1])


def variance(m2: DeviceArray, divisor: int) -> Any:
    """Return m2 / divisor in a new array."""
    with on_device_of(m2):
        return handed_out(given_statistic("m2", m2.array, m2, m2.shape[0]) / divisor)


def _empty_moments(x: DeviceArray, layout: ColumnLayout) -> _Moments:
    mean, m2 = (zero_statistic(name, x, layout.channels) for name in ("mean", "m2"))
    return 0, mean, m2


def _given(name: str, given: tuple[int, Any, Any], x: DeviceArray, channels: int) -> _Moments:
    """Return the caller's moments, checked, in float64."""
    count, *arrays = given
    mean, m2 = (
        in_float64(given_statistic(f"{name}.{field}", array, x, channels))
        for field, array in zip(("mean", "m2"), arrays, strict=True)
    )
    return count, mean, m2


def _launched(
    x: DeviceArray,
    layout: ColumnLayout,
    source: Any,
    plan: ColumnPlan,
    fold: ColumnShape,
    after: _Moments | None,
) -> _Moments:
    """Launch the kernels of the moments of all parts, and of the merged moments."""
    channels, size = layout.channels, FLOAT64.itemsize
    work, means = float64_memory(x, plan.parts * (1 + 2 * channels)), plan.parts * size
    parts = work, ArrayOffset(work, means), ArrayOffset(work, means + plan.parts * channels * size)
    kernel = (_across if layout.inner == 1 else _along)(x.element, plan.shape)
    launch(kernel, plan.blocks, x, (source, *parts), plan.sizes)
    before, arrays = 0, (None, None)
    if after is not None:
        before, arrays = after[0], (after[1].array, after[2].array)
    mean, m2 = new_statistic("mean", x, channels), new_statistic("m2", x, channels)
    launch(
        _merged_moments(fold),
        -(-channels // fold.lanes),
        x,
        (*parts, *arrays, mean.array, m2.array),
        (plan.parts, channels, float(before)),
    )
    return before + layout.per_channel, mean, m2
