"""The norms with statistics per channel, on NumPy arrays: the functions of the backend."""

import functools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from numnorm.arguments import Shape, as_plain_array, check_float
from numnorm.backends.contract.backend import GivenMoments
from numnorm.backends.contract.norms import Detached
from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.columns import coefficient_kernels, moments_kernels
from numnorm.backends.cpu.columns.backward_kernels import (
    make_dx_across,
    make_dx_along,
    make_frozen_statistics_across,
    make_frozen_statistics_along,
    make_sums_across,
    make_sums_along,
)
from numnorm.backends.cpu.columns.forward_kernels import make_forward_across, make_forward_along
from numnorm.backends.cpu.compiler.jit import Kernel
from numnorm.backends.cpu.compiler.parallel import is_small, row_parts, run
from numnorm.backends.cpu.memory.host_arrays import (
    Array,
    as_kernel_array,
    as_parameter,
    as_statistic,
    gradient_dtype,
    in_wider_dtype,
    like_input,
    output_like,
    result,
    wider_dtype,
)
from numnorm.backends.cpu.memory.placement import LINE, empty_like, empty_table, peel_elements
from numnorm.backends.cpu.simd.element_type import ElementType, element_type_of
from numnorm.backends.cpu.simd.processor import has_avx
from numnorm.backends.cpu.statistics.stored import restore_means
from numnorm.backends.formulas.norms import merge_moments
from numnorm.layouts import ColumnLayout

_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)


class _Family(NamedTuple):
    """The kernel factories of one layout."""

    moments: Callable[..., Kernel]
    forward: Callable[..., Kernel]
    sums: Callable[..., Kernel]
    dx: Callable[..., Kernel]
    frozen_statistics: Callable[..., Kernel]


# Without inner axes the loops run across the channels, with inner axes along each channel.
_ACROSS = _Family(
    moments=functools.cache(moments_kernels.make_moments_across),
    forward=functools.cache(make_forward_across),
    sums=functools.cache(make_sums_across),
    dx=functools.cache(make_dx_across),
    frozen_statistics=functools.cache(make_frozen_statistics_across),
)
_ALONG = _Family(
    moments=functools.cache(moments_kernels.make_moments_along),
    forward=functools.cache(make_forward_along),
    sums=functools.cache(make_sums_along),
    dx=functools.cache(make_dx_along),
    frozen_statistics=functools.cache(make_frozen_statistics_along),
)
_fold = functools.cache(moments_kernels.make_fold)
_centre_coefficients = functools.cache(coefficient_kernels.make_centre_coefficients)
_output_coefficients = functools.cache(coefficient_kernels.make_output_coefficients)
_gradient_coefficients = functools.cache(coefficient_kernels.make_gradient_coefficients)
_frozen_coefficients = functools.cache(coefficient_kernels.make_frozen_coefficients)
_parameter_gradients = functools.cache(coefficient_kernels.make_parameter_gradients)


class _Plan(NamedTuple):
    """Everything that follows from dtype and layout, computed once.

    Attributes
    ----------
    element_type, family, elements
        The element type, the kernels of the layout, and the number of elements.
    parts : int
        The number of parts that an elementwise kernel is divided into.
    block_parts : int
        The number of parts of a kernel that computes statistics, per block.
    small : bool
        Whether the arrays are too small to gain from threads or from aligned memory.
    aligned : bool
        Whether loops across channels start at cache lines. Each row is a whole number of lines.
    shape : tuple of int
        The shape of an array in kernels.
    channels : tuple of int
        The shape of a statistic.
    compute_dtype : numpy.dtype
        The dtype of gamma, beta and the coefficients.
    """

    element_type: ElementType
    family: _Family
    elements: int
    parts: int
    block_parts: int
    small: bool
    aligned: bool
    shape: Shape
    channels: tuple[int]
    compute_dtype: np.dtype[Any]

    def run(self, kernel: Kernel, arguments: tuple[Any, ...], parts: int, arrays: int) -> None:
        """Run all parts of a kernel; it reads or writes `arrays` arrays of the size of x."""
        if self.small:
            kernel.serial(*arguments, 0, parts)
        else:
            work = arrays * self.elements * self.element_type.storage_dtype.itemsize
            run(kernel, arguments, work, parts)

    def source(self, x: Array) -> Array:
        """Return an array in the form that kernels take."""
        if x.dtype is self.element_type.storage_dtype and x.shape == self.shape and x.flags.carray:
            return x
        return as_kernel_array(x, self.element_type, None, self.shape)

    def target(
        self, source: Array, x: Array, out: Any, other: Array | None = None, *, like_x: bool = False
    ) -> Array:
        """Return an array for the result of a kernel that reads `source` and `other`.

        `x` is the caller's form of `source`. With `like_x`, a new array gets the alignment of x, if
        loops start at cache lines: a peel is then the same for both.
        """
        if out is None:
            if self.small:
                return np.empty_like(source)
            return empty_like(source, other, aligned=like_x and self.aligned)
        return output_like(source, x, "x", out, self.element_type, None, (other,))

    def shift(self, target: Array) -> int:
        """Return by how many channels kernels shift the rows, to start them at cache lines."""
        return peel_elements(target) if self.aligned else 0

    def table(self, rows: int, shift: int = 0) -> Array:
        """Return an uninitialized table for coefficients, with `shift` additional columns."""
        if self.small:
            return np.empty((rows, self.channels[0]), self.compute_dtype)
        return empty_table(rows, self.channels[0] + shift, self.compute_dtype, shift)

    def repeat(self, coefficients: Array, shift: int) -> None:
        """Append the coefficients of the first `shift` channels behind the last channel's."""
        if shift:
            channels = self.channels[0]
            coefficients[:, channels : channels + shift] = coefficients[:, :shift]


@functools.lru_cache(maxsize=1024)
def _plan(dtype: Any, layout: ColumnLayout) -> _Plan:
    across = layout.inner == 1
    elements, element_type = layout.per_channel * layout.channels, element_type_of(dtype)
    segments = 1 if across else layout.channels
    least = tuning.PART_LEAST_GROUPS * tuning.GROUP_ROWS if across else 1
    row_bytes, small = layout.channels * element_type.storage_dtype.itemsize, is_small(elements)
    return _Plan(
        element_type,
        _ACROSS if across else _ALONG,
        elements,
        row_parts(layout.outer * segments, elements, least),
        layout.blocks * segments,
        small,
        across and not small and has_avx() and row_bytes % LINE == 0,
        layout.kernel_shape,
        (layout.channels,),
        element_type.compute_dtype,
    )


def column_moments(x: Array, layout: ColumnLayout) -> tuple[int, Array, Array, float]:
    """Return (count, mean, m2 * unit, unit) of each channel."""
    count, (mean, _, m2), unit = _moments(x, layout, None)
    return count, mean, m2, unit


def streamed_moments(
    x: Array, layout: ColumnLayout, after: GivenMoments | None
) -> tuple[int, Array, Array, Array]:
    """Return (count, mean, m2, mean_lo) of each channel, merged with `after`, in new arrays."""
    count, (mean, mean_lo, m2), unit = _moments(x, layout, after)
    with np.errstate(over="ignore"):
        return count, mean, m2 / unit, mean_lo


def _unit(count: int) -> float:
    """Return a power of two near 1 / count: m2 times it is in range where the variance is."""
    return 2.0 ** -count.bit_length()


def _moments(
    x: Array, layout: ColumnLayout, after: GivenMoments | None
) -> tuple[int, Array, float]:
    """Return the count, a new table of mean, mean_lo and m2 * unit, and the unit."""
    plan = _plan(x.dtype, layout)
    count, total = (0, None) if after is None else _checked("after", after)
    if not plan.elements:
        return count, np.zeros((3, layout.channels)) if total is None else total, 1.0
    source, block_unit = plan.source(x), _unit(layout.block * layout.inner)
    moments = np.empty((3, layout.blocks, layout.channels))
    kernel = plan.family.moments(plan.element_type)
    plan.run(kernel, (source, layout.block, block_unit, moments), plan.block_parts, 1)
    if total is None and layout.blocks == 1:  # nothing to merge
        return layout.per_channel, moments[:, 0], block_unit
    unit = _unit(count + layout.per_channel)
    if total is None:
        total = np.empty((3, layout.channels))
    else:
        total[2] *= unit
    last = layout.outer - (layout.blocks - 1) * layout.block
    counts = float(layout.block * layout.inner), float(last * layout.inner)
    _fold()(float(count), total, *counts, moments, unit, block_unit)
    return count + layout.per_channel, total, unit


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


def _statistic(name: str, value: Any, plan: _Plan) -> Array:
    """Return a statistic of each channel, checked, in float64."""
    plain = type(value) is np.ndarray and value.dtype is _FLOAT64
    if plain and value.shape == plan.channels and value.flags.carray:
        return value
    return as_statistic(name, value, plan.channels, "the channels of x")


def _parameter(name: str, value: Any, plan: _Plan) -> Array | None:
    """Return gamma or beta, checked, in the compute type."""
    if value is None:
        return None
    shape, dtype = plan.channels, plan.compute_dtype
    plain = type(value) is np.ndarray and value.dtype is dtype and value.shape == shape
    if plain and value.flags.carray:
        return value
    return as_parameter(name, value, shape, "the channels of x", dtype, shape)


def column_forward(
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
    """Return x normalized by the given statistics of each channel, and rstd.

    The variance is ``m2 / divisor``. Mean and m2 are contiguous, in float32 or float64.
    """
    plan = _plan(x.dtype, layout)
    element_type, parts = plan.element_type, plan.parts
    source = plan.source(x)
    gamma, beta = _parameter("gamma", gamma, plan), _parameter("beta", beta, plan)
    target = plan.target(source, x, out)
    shift = plan.shift(target)
    rstd, coefficients = np.empty(plan.channels), plan.table(4, shift)
    scaled, negative = _output_coefficients(element_type)(
        mean, m2, divisor, eps, gamma, beta, rstd, coefficients
    )
    if negative:
        raise ValueError(f"running_var must not be negative, got {np.nanmin(m2):g}")
    plan.repeat(coefficients, shift)
    kernel = plan.family.forward(element_type)
    if plan.small:
        kernel.serial(source, coefficients, scaled or None, target, shift, parts, 0, parts)
    else:
        plan.run(kernel, (source, coefficients, scaled or None, target, shift, parts), parts, 2)
    return target if source is x and out is None else result(target, x, out, None), rstd


def column_backward(
    dy: Any,
    x: Array,
    mean: Any,
    rstd: Any,
    gamma: Any,
    layout: ColumnLayout,
    detached: Detached,
    out: Any,
) -> tuple[Array, Array, Array]:
    """Return dx, dgamma, dbeta."""
    wide = wider_dtype("dy", dy, x)
    if wide is not None:
        return in_wider_dtype(
            wide, x, "x", gamma, (layout.channels,), out,
            lambda x, gamma: column_backward(dy, x, mean, rstd, gamma, layout, detached, None),
        )  # fmt: skip
    plan = _plan(x.dtype, layout)
    source = plan.source(x)
    grads = plan.source(like_input("dy", dy, x))
    statistics = _statistic("mean", mean, plan), _statistic("rstd", rstd, plan)
    arrays, given = (grads, source), (*statistics, _parameter("gamma", gamma, plan))
    dtype = gradient_dtype("gamma", gamma, x.dtype)
    frozen_statistics = detached.mean and detached.scale
    target = plan.target(source, x, out, grads, like_x=not frozen_statistics)
    # The kernel of the coefficients rounds to one of these two.
    native = dtype if dtype is _FLOAT32 or dtype is _FLOAT64 else _FLOAT64
    gradients = np.empty((2, layout.channels), native)
    if not plan.elements:
        gradients[...] = 0
    elif frozen_statistics:
        _frozen_statistics_gradient(arrays, given, layout, plan, target, gradients)
    else:
        _gradient(arrays, given, layout, plan, detached, target, gradients)
    if native is not dtype:
        with np.errstate(over="ignore"):  # a sum may leave the range of float16
            gradients = gradients.astype(dtype)
    dx = target if source is x and out is None else result(target, x, out, None)
    return dx, gradients[0], gradients[1]


def _gradient(
    arrays: tuple[Array, Array],
    given: tuple[Array, Array, Array | None],
    layout: ColumnLayout,
    plan: _Plan,
    detached: Detached,
    target: Array,
    gradients: Array,
) -> None:
    """Store dx, dgamma and dbeta of dy and x, given mean, rstd and gamma."""
    element_type, channels, parts = plan.element_type, layout.channels, plan.parts
    mean, rstd, weight = given
    shift = plan.shift(target)
    coefficients, sums = plan.table(8, shift), np.empty((2, layout.blocks, channels))
    scaled, lost = _centre_coefficients(element_type)(mean, rstd, coefficients)
    if lost:
        restore_means(arrays[1], coefficients[:4, :channels])
    arguments = *arrays, coefficients, layout.block, sums
    plan.run(plan.family.sums(element_type), arguments, plan.block_parts, 2)
    inv_count = 1.0 / layout.per_channel
    inv_counts = 0.0 if detached.mean else inv_count, 0.0 if detached.scale else inv_count
    scaled = _gradient_coefficients(element_type)(
        weight, sums, *inv_counts, scaled, gradients, coefficients
    )
    plan.repeat(coefficients, shift)
    dx_arguments = *arrays, coefficients, scaled or None, target, shift, parts
    plan.run(plan.family.dx(element_type), dx_arguments, parts, 3)


def _frozen_statistics_gradient(
    arrays: tuple[Array, Array],
    given: tuple[Array, Array, Array | None],
    layout: ColumnLayout,
    plan: _Plan,
    target: Array,
    gradients: Array,
) -> None:
    """Store the same for frozen statistics: dx does not depend on x."""
    element_type, channels = plan.element_type, layout.channels
    coefficients, sums = plan.table(6), np.empty((2, layout.blocks, channels))
    scaled = _frozen_coefficients(element_type)(*given, coefficients)
    arguments = *arrays, coefficients, scaled or None, layout.block, sums, target
    plan.run(plan.family.frozen_statistics(element_type), arguments, plan.block_parts, 3)
    _parameter_gradients(element_type)(sums, coefficients, gradients)
