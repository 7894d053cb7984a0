"""Gamma and beta that broadcast against an x on a device: they are applied outside the kernels."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from numnorm.arguments import Shape
from numnorm.backends.contract.gains import Parameter, check_all, check_any
from numnorm.backends.contract.weighting import Weighting
from numnorm.backends.cuda.arrays.device_array import (
    DeviceArray,
    as_companion,
    output_like,
    result,
    with_array,
)
from numnorm.backends.cuda.arrays.gather_rows import in_dtype
from numnorm.backends.cuda.arrays.launch import ArrayOffset, launch_threads
from numnorm.backends.cuda.arrays.masks import in_rows
from numnorm.backends.cuda.arrays.row_totals import write_row_totals
from numnorm.backends.cuda.compiler.element_type import (
    FLOAT64,
    ElementType,
    compute_element_type,
)
from numnorm.backends.cuda.compiler.target import Kernel
from numnorm.backends.cuda.statistics.broadcast_kernels import (
    NOTHING_LEFT_OUT,
    Axis,
    Centre,
    LeftOut,
    SumSizes,
    axes_group,
    make_broadcast_sums,
    make_gained,
    make_lost_means,
)
from numnorm.backends.cuda.statistics.stored import (
    Statistic,
    float64_memory,
    most_lost,
    saved,
)
from numnorm.layouts import ColumnLayout, RowLayout, StatisticAxes, axes_of_channels, axes_of_rows

# Sums are divided so that so many threads have work, each with at least so many terms.
_THREADS, _LEAST_TERMS = 1 << 16, 16

_gained = functools.cache(make_gained)
_broadcast_sums = functools.cache(make_broadcast_sums)
_lost_means_of = functools.cache(make_lost_means)


# Axes


class View(NamedTuple):
    """How kernels see x, and along which axes its statistics are the same.

    Attributes
    ----------
    axes : StatisticAxes
    segment, channels : int
        In the order of the axes, x is ``(-1, channels, segment)``.
    shared : bool
        Whether a parameter of the usual shape has one number for each channel, or else for each
        element of a segment, too.
    """

    axes: StatisticAxes
    segment: int
    channels: int
    shared: bool

    def steps(self, parameter: Parameter, shape: Shape) -> list[int]:
        """Return the step of a parameter along each axis of an x of a given shape."""
        if parameter.is_broadcast(shape):
            own = parameter.array.shape
            return [s if n > 1 else 0 for n, s in zip(own, _steps_of(own), strict=True)]
        first = self.segment if self.shared else 1
        last, steps, before = self.segment * self.channels, [0] * len(shape), 1
        for axis in reversed(self.axes.order):
            if first <= before < last:
                steps[axis] = before // first
            before *= shape[axis]
        return steps


def view_of_rows(x: DeviceArray, layout: RowLayout) -> View:
    """Return the view of an x of rows."""
    axes = axes_of_rows(x.shape, layout.order, layout.rows)
    return View(axes, layout.segment, layout.channels, layout.shared)


def view_of_channels(x: DeviceArray, layout: ColumnLayout) -> View:
    """Return the view of an x of channels."""
    axes = axes_of_channels(x.shape, layout.outer, layout.channels)
    return View(axes, layout.inner, layout.channels, shared=True)


def _steps_of(shape: Sequence[int]) -> list[int]:
    """Return the distance of neighbours along each axis of a C-contiguous array."""
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


def _group(axes: Sequence[Axis]) -> Any:
    """Return axes as an argument of a kernel; those that are like one become one."""
    joined: list[Axis] = []
    for axis in axes:
        if axis.size == 1:
            continue
        outer = joined[-1] if joined else None
        if outer is not None and outer[1:] == (axis.one * axis.size, axis.other * axis.size):
            joined[-1] = axis._replace(size=outer.size * axis.size)
        else:
            joined.append(axis)
    joined = joined or [Axis(1, 0, 0)]
    return axes_group(len(joined))(*joined)


# Parameters and outputs


def given_parameter(x: DeviceArray) -> Callable[[str, Any], DeviceArray]:
    """Return a function of a name and a caller's parameter, which returns it, checked."""

    def given(name: str, value: Any) -> DeviceArray:
        return as_companion(name, value, x)

    return given


def contiguous(parameter: Parameter) -> Any:
    """Return the array of a parameter, C-contiguous; None for None."""
    array = parameter.array
    return None if array is None else array.lib.contiguous(array.array)


def _launch_gained(
    source: DeviceArray,
    parameters: Sequence[Parameter],
    view: View,
    target: Any,
    into: ElementType,
    x: DeviceArray,
    left_out: LeftOut = NOTHING_LEFT_OUT,
) -> None:
    """Write ``source * gamma + beta``; only gamma or both are given."""
    arrays, types, steps = [], [], []
    for parameter in parameters:
        array = parameter.array
        arrays.append(contiguous(parameter))
        types.append(None if array is None else array.element)
        none = [0] * len(x.shape)
        steps.append(none if array is None else view.steps(parameter, x.shape))
    axes = _group([Axis(*each) for each in zip(x.shape, *steps, strict=True)])
    kernel = _gained(source.element, types[0], types[1], x.element, into, len(axes))
    count = math.prod(x.shape)
    given = source.array, *arrays, target, left_out
    launch_threads(kernel, count, x, given, (count, axes))


def write_sum(x: DeviceArray, source: Any, other: Any, target: Any) -> None:
    """Write the sum of two C-contiguous arrays like x, rounded once."""
    count = math.prod(x.shape)
    kernel = _gained(x.element, None, x.element, x.element, x.element, 1)
    given = source, None, other, target, NOTHING_LEFT_OUT
    axes = axes_group(1)(Axis(count, 0, 1))
    launch_threads(kernel, count, x, given, (count, axes))


def _left_out(weighting: Weighting | None, x: DeviceArray) -> LeftOut:
    """Return which elements of x, whose array is C-contiguous, a weighting leaves out."""
    if weighting is None:
        return NOTHING_LEFT_OUT
    keep, _ = in_rows(weighting.keep, x, None, 1, math.prod(x.shape))
    return LeftOut(x.array if weighting.omit else None, keep)


Normalize = Callable[[DeviceArray], tuple[Any, ...]]
"""A function that normalizes an x in its compute type, and returns y and other results."""


def forward(
    normalize: Normalize,
    error: ValueError,
    x: DeviceArray,
    parameters: list[Parameter],
    view: View,
    out: Any,
    weighting: Weighting | None = None,
) -> tuple[Any, ...]:
    """Return what `normalize` does, with parameters; raise the error if none of them broadcasts."""
    check_all(parameters, x.shape, error)
    given = [None if p.array is None else p.array.array for p in parameters]
    wide = compute_element_type(x.element)
    source = with_array(x, x.lib.contiguous(x.array))
    left_out = _left_out(weighting, source)
    output = output_like(x, None, out, (*given, *left_out))
    y, *others = normalize(in_dtype(source, wide))
    if math.prod(x.shape):
        plain = with_array(x, x.lib.contiguous(y), element=wide)
        _launch_gained(plain, parameters, view, output.target, x.element, x, left_out)
    return result(output, x, None), *others


def saved_for(x: DeviceArray, *statistics: Any) -> tuple[Any, ...]:
    """Return statistics of an x in its compute type as they are saved for x; None for None."""
    return tuple(None if array is None else saved(_statistic(array, x), x) for array in statistics)


def _statistic(array: Any, x: DeviceArray) -> Statistic:
    given = as_companion("statistic", array, x)
    return Statistic(
        given.name, array, x.lib, given.element, given.shape, x.device, x, shareable=True
    )


# Gradients


def backward(
    gradient: Callable[[Any], Any],
    error: ValueError,
    dy: DeviceArray,
    x: DeviceArray,
    statistics: tuple[DeviceArray | None, DeviceArray],
    parameters: list[Parameter],
    view: View,
    weighting: Weighting | None = None,
) -> tuple[Any, Any, Any]:
    """Return dx, dgamma and dbeta; raise the error if gamma does not broadcast.

    `gradient` returns dx, without a gamma, of an array in the place of dy. dy is C-contiguous. The
    statistics are the mean, None if the norm is not centred, and rstd.
    """
    check_any(parameters, x.shape, error)
    gamma = parameters[0]
    source = with_array(x, x.lib.contiguous(x.array))
    if not math.prod(x.shape):
        name = gamma.array.element.name
        zeros = (x.lib.full(x.array, gamma.array.shape, name, 0.0) for _ in range(2))
        return gradient(dy.array), *zeros
    left_out = _left_out(weighting, source)
    sums = _parameter_gradients(dy, source, statistics, gamma.array, view.axes, left_out)
    types = x.element, dy.element
    wide = FLOAT64 if FLOAT64 in types else compute_element_type(x.element)
    scaled = x.lib.empty(x.array, x.shape, wide.name)
    alone = gamma, gamma._replace(array=None)
    _launch_gained(dy, alone, view, scaled, wide, x)
    return gradient(scaled), *sums


class _Sums(NamedTuple):
    """A table of sums in parts, and its sizes."""

    table: Any
    sizes: SumSizes


def _parameter_gradients(
    dy: DeviceArray,
    x: DeviceArray,
    statistics: tuple[DeviceArray | None, DeviceArray],
    gamma: DeviceArray,
    axes: StatisticAxes,
    left_out: LeftOut,
) -> tuple[Any, Any]:
    """Return the sums of dy * xhat and of dy over the axes in which gamma has size 1."""
    mean, rstd = statistics
    places = _places(x.shape, axes)
    lost = None if mean is None else _lost_means(x, mean, places, axes, left_out)
    by_axis = sorted(zip(axes_of_sizes(axes), places, strict=True), key=lambda each: each[0])
    kept = [place for axis, place in by_axis if gamma.shape[axis] > 1]
    summed = [place for axis, place in by_axis if gamma.shape[axis] == 1]
    centre = Centre(None if mean is None else mean.array, rstd.array, lost)
    table, sizes = _sums(x, dy, rstd.element, centre, kept, summed, left_out)
    results = []
    for k in range(2):
        target = x.lib.empty(x.array, gamma.shape, gamma.element.name)
        matrix = ArrayOffset(table, k * sizes.parts * sizes.sums * FLOAT64.itemsize)
        write_row_totals(x, FLOAT64, matrix, target, sizes.parts, sizes.sums, gamma.element)
        results.append(target)
    return results[0], results[1]


def axes_of_sizes(axes: StatisticAxes) -> list[int]:
    """Return for each size the axis of x that it belongs to."""
    return [axis for axis, parts in zip(axes.order, axes.sizes, strict=True) for _ in parts]


def _places(shape: Shape, axes: StatisticAxes) -> list[Axis]:
    """Return all sizes, with their steps in x and in the statistics."""
    steps = _steps_of(shape)
    places: list[Axis] = []
    sizes = [size for parts in axes.sizes for size in parts]
    own = _steps_of([1 if s else n for n, s in zip(sizes, axes.shared, strict=True)])
    of_statistic = [0 if s else step for s, step in zip(axes.shared, own, strict=True)]
    for axis, parts in zip(axes.order, axes.sizes, strict=True):
        for size, inner in zip(parts, _steps_of(parts), strict=True):
            places.append(Axis(size, steps[axis] * inner, of_statistic[len(places)]))
    return places


def _lost_means(
    x: DeviceArray,
    mean: DeviceArray,
    places: list[Axis],
    axes: StatisticAxes,
    left_out: LeftOut,
) -> Any:
    """Return what rounding took of each saved mean, as memory of float64 numbers."""
    kept = [place for place, shared in zip(places, axes.shared, strict=True) if not shared]
    summed = [place for place, shared in zip(places, axes.shared, strict=True) if shared]
    centre = Centre(mean.array, None, None)
    table, sizes = _sums(x, None, mean.element, centre, kept, summed, left_out)
    lost = float64_memory(x, sizes.sums)
    kernel: Kernel = _lost_means_of(mean.element)
    numbers = sizes, most_lost(mean.element)
    launch_threads(kernel, sizes.sums, x, (table, mean.array, lost), numbers)
    return lost


def _sums(
    x: DeviceArray,
    dy: DeviceArray | None,
    element: ElementType,
    centre: Centre,
    kept: list[Axis],
    summed: list[Axis],
    left_out: LeftOut,
) -> _Sums:
    """Return the sums over some axes of x; its statistics are of an element type."""
    sums, terms = (math.prod(place.size for place in places) for places in (kept, summed))
    # Parts follow from the shape alone, and so do the roundings of sums.
    parts = max(1, min(-(-terms // _LEAST_TERMS), _THREADS // sums))
    neighbours = min((place.one for place in kept if place.size > 1), default=0) == 1
    sizes = SumSizes(sums, terms, parts, int(neighbours))
    groups = _group(kept), _group(summed)
    kinds = x.element, None if dy is None else dy.element, element
    kernel: Kernel = _broadcast_sums(*kinds, *map(len, groups))
    table = float64_memory(x, 2 * parts * sums)
    arrays = x.array, None if dy is None else dy.array, table, left_out, centre
    launch_threads(kernel, parts * sums, x, arrays, (sizes, *groups))
    return _Sums(table, sizes)
