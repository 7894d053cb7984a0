"""The norms with statistics of each channel, with weights: the callers of the kernels."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from numnorm.arguments import check_shape
from numnorm.backends.contract.norms import Detached
from numnorm.backends.contract.weighting import Weighting
from numnorm.backends.cpu.columns.columns import column_forward, output_coefficients, parameter_of
from numnorm.backends.cpu.columns.moments import Counted
from numnorm.backends.cpu.columns.plan import plan_of
from numnorm.backends.cpu.compiler.jit import Kernel
from numnorm.backends.cpu.compiler.parallel import row_parts, run, summed_parts
from numnorm.backends.cpu.memory.host_arrays import (
    Array,
    as_float_array,
    as_kernel_array,
    as_parameter,
    as_statistic,
    gradient_dtype,
    result,
)
from numnorm.backends.cpu.memory.left_out import filling_of, kept_by
from numnorm.backends.cpu.simd.element_type import element_type_of, in_float64
from numnorm.backends.cpu.statistics import broadcast_parameters
from numnorm.backends.cpu.weighted.arrays import kept_of, output_for, result_of, selection_of
from numnorm.backends.cpu.weighted.column_kernels import (
    Columns,
    make_column_dx,
    make_gradient_finish,
    make_gradient_sums,
    make_moment_finish,
    make_moment_sums,
    make_pivots,
)
from numnorm.backends.cpu.weighted.loops import Selection
from numnorm.backends.cpu.weighted.masked_columns import (
    make_masked_fold,
    make_masked_forward_across,
    make_masked_forward_along,
    make_masked_moments_across,
    make_masked_moments_along,
)
from numnorm.layouts import ColumnLayout

_FLOAT64 = np.dtype(np.float64)
# The squared distance of a pivot from its mean, in variances, that sums in float64 may have: more
# for float32, whose own digits are lost only then.
_FARTHEST = {"float32": 1e6, "float64": 1.0}

# The lengths of the segments that a single channel is divided into, a power of two between these.
# Parts of a kernel are made of segments, and short ones take longer.
_SHORTEST, _LONGEST = 64, 4096

_pivots = functools.cache(make_pivots)
_moment_sums = functools.cache(make_moment_sums)
_gradient_sums = functools.cache(make_gradient_sums)
_dx_kernel = functools.cache(make_column_dx)


class _Source(NamedTuple):
    """An array of channels as kernels take it."""

    wide: Array
    array: Array
    selection: Selection
    columns: Columns

    def run(self, kernel: Kernel, arguments: tuple[Any, ...], parts: int, arrays: int) -> None:
        """Run all parts of a kernel; it reads or writes `arrays` arrays of the size of x."""
        if self.array.size:
            given = self.array.reshape(-1), *arguments, parts
            run(kernel, given, arrays * self.array.nbytes, parts)


def _source(weighting: Weighting, x: Array, layout: ColumnLayout, dtype: np.dtype[Any]) -> _Source:
    wide = x.astype(dtype, copy=False)
    array = as_kernel_array(wide, element_type_of(dtype), None, layout.kernel_shape)
    width = layout.channels * layout.inner
    selection = selection_of(weighting, x.shape, None, layout.outer, width)
    return _Source(wide, array, selection, Columns(layout.outer, layout.channels, layout.inner))


class _MaskedFamily(NamedTuple):
    """The kernel factories of one layout, for elements that are left out."""

    moments: Callable[..., Kernel]
    forward: Callable[..., Kernel]


_ACROSS = _MaskedFamily(
    functools.cache(make_masked_moments_across), functools.cache(make_masked_forward_across)
)
_ALONG = _MaskedFamily(
    functools.cache(make_masked_moments_along), functools.cache(make_masked_forward_along)
)
_fold, _finish = functools.cache(make_masked_fold), functools.cache(make_moment_finish)
_gradients = functools.cache(make_gradient_finish)


def weighted_moments(weighting: Weighting, x: Array, layout: ColumnLayout) -> Counted:
    """Return the sum of the weights, mean, m2 and mean_lo of each channel.

    A channel of which nothing is left has moments of 0.
    """
    total, mean, mean_lo, m2 = _moments(weighting, x, layout)[0]
    return total, mean, m2, mean_lo


def weighted_statistics(
    weighting: Weighting, x: Array, layout: ColumnLayout
) -> tuple[Array, Array, Array]:
    """Return the sum of the weights, mean and variance of each channel.

    The last two are NaN where nothing has weight.
    """
    moments, (mean, variance) = _moments(weighting, x, layout)
    return moments[0], mean, variance


def _moments(weighting: Weighting, x: Array, layout: ColumnLayout) -> tuple[Array, Array]:
    """Return the tables of `make_masked_fold`: of moments, and of statistics."""
    moments, statistics = np.empty((4, layout.channels)), np.empty((2, layout.channels))
    if not x.size:
        moments[...], statistics[...] = 0.0, np.nan
    elif weighting.weights is None:
        layout = _along(layout)
        plan = plan_of(x.dtype, layout)
        table = np.empty((4, layout.blocks, layout.channels))
        # Sums of float32 would lose digits that `batch_moments` keeps and merges.
        element_type = in_float64(plan.element_type)
        kernel = (_ACROSS if layout.inner == 1 else _ALONG).moments(element_type)
        arguments = plan.source(x), *kept_of(weighting, x.shape), layout.block, table
        plan.run(kernel, arguments, plan.block_parts, 1)
        _fold()(table, moments, statistics)
    else:
        _add_up(weighting, x, layout, moments, statistics)
    return moments, statistics


@functools.lru_cache(maxsize=1024)
def _along(layout: ColumnLayout) -> ColumnLayout:
    """Return a layout in which the elements of a single channel lie side by side.

    Across channels a vector would hold one element. All else stays as it is.
    """
    if layout.channels != 1 or layout.inner != 1:
        return layout
    inner = math.gcd(layout.outer, _LONGEST)
    inner = inner if inner >= _SHORTEST else layout.outer
    return ColumnLayout(layout.outer // inner, 1, inner)


def _add_up(
    weighting: Weighting, x: Array, layout: ColumnLayout, moments: Array, statistics: Array
) -> None:
    """Store the moments and statistics of channels with weights."""
    dtype = element_type_of(x.dtype).compute_dtype
    source = _source(weighting, x, layout, dtype)
    keep, keep_step, weights, weight_step, omit = source.selection
    pivots, sums = np.zeros(layout.channels), _moment_sums(dtype.name)
    steps = keep, keep_step, weights, weight_step, omit, tuple(source.columns)
    further, found = np.zeros(layout.channels), np.zeros(layout.channels, np.int64)
    _pivots()(source.array.reshape(-1), *steps, pivots, further, found)
    for farthest in (_FARTHEST[dtype.name], np.inf):
        table = _table(sums, source, source.array, pivots)
        if not _finish()(table, pivots, farthest, moments, statistics):
            break


def _table(kernel: Kernel, source: _Source, dy: Array, pivots: Array) -> Array:
    """Return four sums of each part and channel, and what rounding took from them."""
    outer, channels, inner = source.columns
    parts = summed_parts(outer, channels * inner, 4 * channels)
    table = np.zeros((parts, 8, channels))
    arguments = dy.reshape(-1), *source.selection, *source.columns, pivots, table.reshape(-1)
    source.run(kernel, arguments, parts, 1 if dy is source.array else 2)
    return table


def weighted_column_forward(
    weighting: Weighting,
    x: Array,
    mean: Array,
    m2: Array,
    divisor: float,
    eps: float,
    gamma: Any,
    beta: Any,
    layout: ColumnLayout,
    out: Any,
) -> tuple[Array, Array]:
    """Return what `column_forward` returns; elements that are left out get their fill values."""
    if weighting.keep is None and not weighting.omit:
        return column_forward(x, mean, m2, divisor, eps, gamma, beta, layout, out)
    own = _along(layout)
    plan = plan_of(x.dtype, own)
    element_type, parts, source = plan.element_type, plan.parts, plan.source(x)
    try:
        gamma, beta = parameter_of("gamma", gamma, plan), parameter_of("beta", beta, plan)
    except ValueError as error:
        refill = filling_of(weighting, x)
        of_all = functools.partial(weighted_column_forward, weighting)
        given = x, mean, m2, divisor, eps, gamma, beta, layout, out
        y, rstd = broadcast_parameters.forward_of_channels(of_all, error, *given)
        return refill(y), rstd
    keep, omit = kept_of(weighting, x.shape)
    target = plan.target(source, x, out, keep)
    rstd, coefficients = np.empty(plan.channels), plan.table(4)
    found = output_coefficients(element_type)(
        mean, m2, divisor, eps, gamma, beta, rstd, coefficients
    )
    if found == 2:
        raise ValueError(f"running_var must not be negative, got {np.nanmin(m2):g}")
    kernel = (_ACROSS if own.inner == 1 else _ALONG).forward(element_type)
    fills = weighting.fill, weighting.fill_missing
    arguments = source, keep, omit, coefficients, found == 1 or None, *fills, target, parts
    plan.run(kernel, arguments, parts, 2)
    return result(target, x, out, None), rstd


def weighted_column_backward(
    weighting: Weighting,
    dy: Any,
    x: Array,
    mean: Any,
    rstd: Any,
    gamma: Any,
    layout: ColumnLayout,
    detached: Detached,
    out: Any,
) -> tuple[Array, Array, Array]:
    """Return what `column_backward` returns, with statistics of what a weighting keeps."""
    shape, meaning = (layout.channels,), "the channels of x"
    grad = as_float_array("dy", dy)
    check_shape("dy", grad.shape, x.shape, "the shape of the input")
    mean = as_statistic("mean", mean, shape, meaning)
    rstd = as_statistic("rstd", rstd, shape, meaning)
    try:
        weight = _parameter("gamma", gamma, shape, meaning, 1.0)
    except ValueError as error:
        given = grad, x, mean, rstd, gamma, layout, detached, out
        return _broadcast_backward(weighting, error, *given)
    dtype = np.result_type(
        element_type_of(x.dtype).compute_dtype, element_type_of(grad.dtype).compute_dtype
    )
    source = _source(weighting, x, layout, dtype)
    grad = as_kernel_array(
        grad.astype(dtype, copy=False), element_type_of(dtype), None, layout.kernel_shape
    )
    sums = _table(_gradient_sums(dtype.name), source, grad, mean)
    table, gradients = np.empty((4, *shape)), np.empty((2, *shape))
    _gradients()(sums, mean, rstd, weight, detached.mean, detached.scale, table, gradients)
    dgamma, dbeta = gradients
    inputs = grad, source.selection.keep, source.selection.weights
    target = output_for(source.array, source.wide, x, out, inputs)
    arguments = (
        grad.reshape(-1),
        *source.selection,
        *source.columns,
        table.reshape(-1),
        target.reshape(-1),
    )
    source.run(_dx_kernel(dtype.name), arguments, row_parts(layout.outer, x.size), 3)
    own = gradient_dtype("gamma", gamma, x.dtype)
    with np.errstate(all="ignore"):  # a sum may leave the range of the dtype
        return result_of(target, source.wide, x, out), dgamma.astype(own), dbeta.astype(own)


def _parameter(name: str, value: Any, shape: tuple[int], meaning: str, missing: float) -> Array:
    """Return gamma or beta in float64."""
    if value is None:
        return np.full(shape, missing)
    return as_parameter(name, value, shape, meaning, _FLOAT64, shape)


def _broadcast_backward(
    weighting: Weighting,
    error: ValueError,
    dy: Array,
    x: Array,
    mean: Array,
    rstd: Array,
    *others: Any,
) -> tuple[Array, Array, Array]:
    """Return the gradients for a gamma that broadcasts against x."""
    of_all = functools.partial(weighted_column_backward, weighting)
    given = dy, x, mean, rstd, *others
    return broadcast_parameters.backward_of_channels(
        of_all, error, *given, keep=kept_by(weighting, x)
    )
