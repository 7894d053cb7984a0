"""The norms with statistics of each channel, with a selection of elements: checks and launches."""

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from numnorm.array_likes import is_on_device
from numnorm.backends.contract.backend import GivenMoments
from numnorm.backends.contract.norms import Detached
from numnorm.backends.contract.weighting import Weighting
from numnorm.backends.cuda.arrays.device_array import (
    DeviceArray,
    as_parameter,
    output_like,
    result,
)
from numnorm.backends.cuda.arrays.known_calls import repeats
from numnorm.backends.cuda.arrays.launch import launch, launch_threads, on_device_of
from numnorm.backends.cuda.columns.column_shape import ColumnShape, fold_shape
from numnorm.backends.cuda.columns.columns import (
    broadcast_backward,
    broadcast_forward,
    element_of,
    parameter_of,
)
from numnorm.backends.cuda.columns.moments import flat_moments, in_shape_of
from numnorm.backends.cuda.compiler.target import Kernel
from numnorm.backends.cuda.rows.arguments import Parameter, RowParameters
from numnorm.backends.cuda.statistics.stored import (
    Statistic,
    float64_memory,
    given_statistic,
    handed_out,
    in_float64,
    most_lost,
    new_statistic,
    reciprocal_deviation,
    root,
    zero_statistic,
)
from numnorm.backends.cuda.threads.row_columns import Weights
from numnorm.backends.cuda.weighted.arrays import selection_of
from numnorm.backends.cuda.weighted.column_kernels import (
    SUMS,
    Coefficients,
    ColumnSizes,
    ColumnTypes,
    Flows,
    MomentArrays,
    make_column_sums,
    make_counted_variance,
    make_first_values,
    make_merged_counted,
    make_moments,
    make_pivots,
    make_update_counted,
    make_variance,
    make_weighted_dx,
    make_weighted_outputs,
    make_weighted_slopes,
)
from numnorm.backends.cuda.weighted.selection import Fill, Selection
from numnorm.layouts import ColumnLayout

# A block of 32 neighbouring channels, or of one.
ACROSS = ColumnShape(32, 8, 1, 1, whole=False)
ALONG = ColumnShape(1, 256, 1, 1, whole=False)
# The values of a channel that a thread adds up, and blocks that occupy a device: a small array is
# divided into smaller parts to get them.
_LEAST_STEPS, _MOST_STEPS, _BLOCKS = 4, 64, 512

_first_values = functools.cache(make_first_values)
_pivots = functools.cache(make_pivots)
_column_sums = functools.cache(make_column_sums)
_moments = functools.cache(make_moments)
_variance = functools.cache(make_variance)
_update_counted = functools.cache(make_update_counted)
_counted_variance = functools.cache(make_counted_variance)
_merged_counted = functools.cache(make_merged_counted)
_outputs = functools.cache(make_weighted_outputs)
_slopes = functools.cache(make_weighted_slopes)
_dx = functools.cache(make_weighted_dx)


class _Source(NamedTuple):
    """An array of channels, and how kernels take it."""

    x: DeviceArray
    array: Any
    selection: Selection
    types: ColumnTypes
    shape: ColumnShape
    blocks: int
    sizes: ColumnSizes

    @property
    def inputs(self) -> tuple[Any, ...]:
        """The arrays that kernels read; some may be None."""
        return self.array, self.selection.keep, self.selection.weights

    def launch(self, kernel: Kernel, arrays: Any, numbers: Any = ()) -> None:
        """Launch a kernel with a block for each part and strip of channels."""
        launch(kernel, self.blocks, self.x, arrays, (self.sizes, *numbers))

    def launch_fold(self, kernel: Kernel, arrays: Any, numbers: Any = ()) -> None:
        """Launch a kernel whose blocks have all parts of some channels."""
        lanes = fold_shape(self.sizes.channels).lanes
        blocks = -(-self.sizes.channels // lanes)
        launch(kernel, blocks, self.x, arrays, (self.sizes, *numbers))


@functools.lru_cache(maxsize=1024)
def _plan(layout: ColumnLayout) -> tuple[ColumnShape, int, ColumnSizes]:
    shape = ACROSS if layout.inner == 1 else ALONG
    strips = -(-layout.channels // shape.lanes)
    turns = -(-layout.per_channel // shape.teams)
    steps = max(_LEAST_STEPS, min(_MOST_STEPS, turns * strips // _BLOCKS))
    part = shape.teams * steps
    parts = -(-layout.per_channel // part)
    sizes = ColumnSizes(layout.outer, layout.channels, layout.inner, part, parts)
    return shape, parts * strips, sizes


def _source(
    weighting: Weighting, x: DeviceArray, layout: ColumnLayout, dy: DeviceArray | None = None
) -> _Source:
    width = layout.channels * layout.inner
    selection, of_weights = selection_of(weighting, x, None, layout.outer, width)
    types = ColumnTypes(x.element, x.element if dy is None else dy.element, of_weights)
    return _Source(x, x.lib.contiguous(x.array), selection, types, *_plan(layout))


# Moments


class Counted(NamedTuple):
    """The sum of the weights of each channel, the mean, m2, and what rounding took of the mean."""

    total: Statistic
    mean: Statistic
    m2: Statistic
    mean_lo: Statistic

    @property
    def arrays(self) -> MomentArrays:
        """The moments as an argument of `launch`."""
        return MomentArrays(*(statistic.array for statistic in self))


_FIELDS = "count", "mean", "m2", "mean_lo"


def _new_moments(x: DeviceArray, channels: int) -> Counted:
    return Counted(*(new_statistic(name, x, channels) for name in _FIELDS))


def weighted_moments(weighting: Weighting, x: DeviceArray, layout: ColumnLayout) -> Counted:
    """Return the moments of each channel, which are 0 where nothing is left."""
    channels = layout.channels
    with on_device_of(x):
        if not (layout.per_channel and channels):
            return Counted(*(zero_statistic(name, x, channels) for name in _FIELDS))
        source, moments = _source(weighting, x, layout), _new_moments(x, channels)
        sizes, element = source.sizes, x.element
        table = float64_memory(x, sizes.parts * SUMS * channels)
        pivots = float64_memory(x, channels)
        first = _first_values(source.types, source.shape)
        source.launch(first, (source.array, source.selection, table))
        kernel = _pivots(element)
        launch_threads(kernel, channels, x, (source.array, table, pivots), (sizes,))
        sums = _column_sums(source.types, source.shape, gradient=False)
        fold = _moments(fold_shape(channels))
        # A first value may be far from the mean. Only the sums around the mean are kept.
        for target in (MomentArrays(None, pivots, None, None), moments.arrays):
            source.launch(sums, (source.array, None, source.selection, pivots, table))
            source.launch_fold(fold, (table, pivots, target))
        return moments


def handed_out_moments(moments: Counted) -> tuple[Any, Any, Any, Any]:
    """Return the caller's count, mean, m2 and mean_lo."""
    with on_device_of(moments.mean.x):
        count, mean, m2, mean_lo = map(handed_out, moments)
        return count, mean, m2, mean_lo


def mean_and_variance(moments: Counted) -> tuple[Statistic, Statistic]:
    """Return the mean and variance of each channel, NaN where nothing is left."""
    x, channels = moments.mean.x, moments.mean.shape[0]
    with on_device_of(x):
        mean, variance = (new_statistic(name, x, channels) for name in ("mean", "variance"))
        _launch_each(_variance(), x, channels, (moments.arrays, mean.array, variance.array))
    return mean, variance


def update_counted(
    running: tuple[DeviceArray, DeviceArray],
    mean: Statistic,
    variance: Statistic,
    total: Statistic,
    correction: float,
    momentum: float,
) -> None:
    """Move the mean of each channel that has weight, and the variance that can be corrected."""
    for target, new, subtracted in zip(running, (mean, variance), (0.0, correction), strict=True):
        library = target.lib
        with on_device_of(target):
            moved = library.contiguous(target.array)
            kernel = _update_counted(target.element)
            arrays, numbers = (moved, new.array, total.array), (subtracted, momentum)
            _launch_each(kernel, new.x, new.shape[0], arrays, numbers)
            if moved is not target.array:
                library.copy(target.array, moved)


def _launch_each(
    kernel: Kernel, x: DeviceArray, channels: int, arrays: Any, numbers: Any = ()
) -> None:
    """Launch a kernel with one thread for each channel."""
    if channels:
        launch_threads(kernel, channels, x, arrays, (channels, *numbers))


def merged_counted(mean: DeviceArray, moments: GivenMoments, other: GivenMoments) -> Any:
    """Return count, mean, m2 and mean_lo of two sets of the caller's, with counts of channels."""
    both = flat_moments(mean, moments), flat_moments(mean, other)
    merged = merged_with_counts(mean, math.prod(mean.shape), *both)
    with on_device_of(mean):
        return tuple(in_shape_of(mean, statistic) for statistic in merged)


def merged_with_counts(
    x: DeviceArray, channels: int, moments: GivenMoments | Counted, other: GivenMoments | Counted
) -> Counted:
    """Return the moments of two sets of values together, with counts of each channel."""
    with on_device_of(x):
        one, two = _counted("moments", moments, x, channels), _counted("other", other, x, channels)
        merged = _new_moments(x, channels)
        _launch_each(_merged_counted(), x, channels, (one.arrays, two.arrays, merged.arrays))
        return merged


def _counted(name: str, moments: GivenMoments | Counted, x: DeviceArray, channels: int) -> Counted:
    """Return the caller's moments, checked, with a count of each channel in float64."""
    if isinstance(moments, Counted):
        return moments
    fields = []
    for field, value in zip(_FIELDS, moments, strict=True):
        given = zero_statistic(field, x, channels) if value is None else value
        if field == "count" and not is_on_device(given):
            counts = np.asarray(given, np.float64).reshape(-1)
            counts = np.broadcast_to(counts, (channels,))
            dtype = x.lib.statistic_name("float64")
            given = x.lib.from_host(x.array, np.ascontiguousarray(counts, dtype))
        if not isinstance(given, Statistic):
            given = in_float64(given_statistic(f"{name}.{field}", given, x, channels))
        fields.append(given)
    return Counted(*fields)


def counted_variance(m2: DeviceArray, count: Any, ddof: int) -> Any:
    """Return the caller's m2 divided by count - ddof, NaN where that is not greater than 0."""
    with on_device_of(m2):
        return in_shape_of(m2, _divided(m2, count, ddof))


def counted_deviation(m2: DeviceArray, count: Any, ddof: int) -> Any:
    """Return the square root of `counted_variance`."""
    with on_device_of(m2):
        return in_shape_of(m2, root(_divided(m2, count, ddof)))


def _divided(m2: DeviceArray, count: Any, ddof: int) -> Statistic:
    channels = math.prod(m2.shape)
    given = flat_moments(m2, (count, m2.array, m2.array, None))
    counted = _counted("moments", given, m2, channels)
    variance = new_statistic("variance", m2, channels)
    arrays = counted.m2.array, counted.total.array, variance.array
    _launch_each(_counted_variance(), m2, channels, arrays, (float(ddof),))
    return variance


# Norms


def weighted_column_forward(
    weighting: Weighting,
    x: DeviceArray,
    mean: Statistic,
    m2: Statistic,
    divisor: float,
    eps: float,
    gamma: Any,
    beta: Any,
    layout: ColumnLayout,
    out: Any,
) -> tuple[Any, Statistic]:
    """Return what `column_forward` returns; elements that are left out get their fill values."""
    rstd = reciprocal_deviation(m2 / divisor, eps)
    with on_device_of(x):
        try:
            gain = parameter_of("gamma", gamma, layout, x)
            bias = parameter_of("beta", beta, layout, x)
        except ValueError as error:
            of_all = functools.partial(weighted_column_forward, weighting)
            given = x, mean, m2, divisor, eps, gamma, beta, layout, out, weighting
            return broadcast_forward(of_all, error, *given)
        source, centre = _source(weighting, x, layout), in_float64(mean)
        parameters = RowParameters(_argument(gain, 1.0), _argument(bias, 0.0))
        inputs = centre.array, rstd.array, *(p.address for p in parameters)
        output = output_like(x, None, out, (*source.inputs, *inputs))
        weights = Weights(element_of(gain), element_of(bias))
        kernel = _outputs(source.types, weights, source.shape)
        coefficients = Coefficients(centre.array, rstd.array)
        arrays = source.array, source.selection, coefficients, parameters, output.target
        source.launch(kernel, arrays, (Fill(weighting.fill, weighting.fill_missing),))
        return result(output, x, None), rstd


@repeats("weighting", "dy", "mean", "rstd", "gamma", "out")
def weighted_column_backward(
    weighting: Weighting,
    dy: Any,
    x: DeviceArray,
    mean: Any,
    rstd: Any,
    gamma: Any,
    layout: ColumnLayout,
    detached: Detached,
    out: Any,
) -> tuple[Any, Any, Any]:
    """Return what `column_backward` returns, with statistics of what a weighting keeps."""
    channels = layout.channels
    with on_device_of(x):
        grad = as_parameter("dy", dy, x.shape, f"the shape of {x.name}", x)
        saved = given_statistic("mean", mean, x, channels)
        of_rstd = given_statistic("rstd", rstd, x, channels)
        centre, scale = in_float64(saved), in_float64(of_rstd)
        try:
            gain = parameter_of("gamma", gamma, layout, x)
        except ValueError as error:

            def without_gamma(dy: Any) -> Any:
                given = weighting, dy, x, mean, rstd, None
                return weighted_column_backward(*given, layout, detached, out)[0]

            of_all = grad, x, saved, of_rstd, gamma, layout, weighting
            return broadcast_backward(without_gamma, error, *of_all)
        gradient = x.element if gain is None else gain.element
        source = _source(weighting, x, layout, grad)
        parameters = RowParameters(_argument(gain, 1.0), Parameter(None, 0.0))
        inputs = grad.array, centre.array, scale.array, parameters.gamma.address
        output = output_like(x, None, out, (*source.inputs, *inputs))
        table = float64_memory(x, source.sizes.parts * SUMS * channels)
        kernel = _column_sums(source.types, source.shape, gradient=True)
        given: Any = source.array, grad.array, source.selection, centre.array, table
        source.launch(kernel, given)
        coefficients = Coefficients(centre.array, float64_memory(x, 3 * channels))
        dgamma = x.lib.empty(x.array, (channels,), gradient.name)
        dbeta = x.lib.empty(x.array, (channels,), gradient.name)
        flows = Flows(int(not detached.mean), int(not detached.scale), most_lost(saved.element))
        fold = _slopes(element_of(gain), gradient, fold_shape(channels))
        arrays = table, coefficients, scale.array, parameters, dgamma, dbeta
        source.launch_fold(fold, arrays, (flows,))
        given = grad.array, source.array, source.selection, coefficients, output.target
        source.launch(_dx(source.types, source.shape), given)
        return result(output, x, None), dgamma, dbeta


def _argument(array: DeviceArray | None, missing: float) -> Parameter:
    return Parameter(None if array is None else array.array, missing)
