"""The norms whose statistics belong to a channel, on NumPy arrays."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from numnorm.arguments import Shape, as_plain_array, check_float
from numnorm.backends.contract.norms import Detached
from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.columns.backward_kernels import (
    make_dx_across,
    make_dx_along,
    make_frozen_statistics_across,
    make_frozen_statistics_along,
    make_sums_across,
    make_sums_along,
)
from numnorm.backends.cpu.columns.coefficient_kernels import (
    make_centre_coefficients,
    make_frozen_coefficients,
    make_gradient_coefficients,
    make_output_coefficients,
    make_parameter_gradients,
)
from numnorm.backends.cpu.columns.forward_kernels import make_forward_across, make_forward_along
from numnorm.backends.cpu.columns.moments_kernels import (
    make_fold,
    make_moments_across,
    make_moments_along,
)
from numnorm.backends.cpu.compiler.jit import Kernel
from numnorm.backends.cpu.compiler.parallel import is_small, row_parts, run
from numnorm.backends.cpu.memory.host_arrays import (
    Array,
    as_kernel_array,
    as_parameter,
    as_statistic,
    gradient_dtype,
    like_input,
    output_like,
    result,
)
from numnorm.backends.cpu.memory.placement import LINE, empty_like, empty_table, peel_bytes
from numnorm.backends.cpu.simd.element_type import ElementType, element_type_of
from numnorm.backends.cpu.simd.processor import has_avx
from numnorm.backends.formulas.norms import merge_moments
from numnorm.layouts import ColumnLayout

_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)


class _Family(NamedTuple):
    """The kernels of one layout."""

    moments: Callable[..., Kernel]
    forward: Callable[..., Kernel]
    sums: Callable[..., Kernel]
    dx: Callable[..., Kernel]
    frozen_statistics: Callable[..., Kernel]


# Without inner axes the loops run across the channels, with them along each channel.
_ACROSS = _Family(
    moments=functools.cache(make_moments_across),
    forward=functools.cache(make_forward_across),
    sums=functools.cache(make_sums_across),
    dx=functools.cache(make_dx_across),
    frozen_statistics=functools.cache(make_frozen_statistics_across),
)
_ALONG = _Family(
    moments=functools.cache(make_moments_along),
    forward=functools.cache(make_forward_along),
    sums=functools.cache(make_sums_along),
    dx=functools.cache(make_dx_along),
    frozen_statistics=functools.cache(make_frozen_statistics_along),
)
_fold = functools.cache(make_fold)
_centre_coefficients = functools.cache(make_centre_coefficients)
_output_coefficients = functools.cache(make_output_coefficients)
_gradient_coefficients = functools.cache(make_gradient_coefficients)
_frozen_coefficients = functools.cache(make_frozen_coefficients)
_parameter_gradients = functools.cache(make_parameter_gradients)


class _Plan(NamedTuple):
    """What follows from dtype and layout alone, found once for all calls like it.

    Attributes
    ----------
    storage, family, elements
        How elements are stored, the kernels of the layout, and how many elements there are.
    parts : int
        Into how many parts the elements are cut for a result.
    block_parts : int
        How many pieces of work there are in the blocks that statistics are taken over.
    small : bool
        Whether neither threads nor the place of anything in memory are worth a thought.
    in_lines : bool
        Whether loops across channels are to begin at cache lines, a whole number of which each
        row must be.
    shape : tuple of int
        That of an array in kernels.
    channels, working
        The shape of what there is one of for each channel, and the dtype of gamma and beta.
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
    compute_type: np.dtype[Any]

    def run(self, kernel: Kernel, arguments: tuple[Any, ...], parts: int) -> None:
        """Run all parts of a kernel's work."""
        if self.small:
            kernel.serial(*arguments, 0, parts)
        else:
            run(kernel, arguments, self.elements, parts)

    def source(self, x: Array) -> Array:
        """Return an array as kernels take it."""
        if x.dtype is self.element_type.storage_dtype and x.shape == self.shape and x.flags.carray:
            return x  # nothing left to do
        return as_kernel_array(x, self.element_type, None, self.shape)

    def target(
        self, source: Array, x: Array, out: Any, other: Array | None = None, *, like_x: bool = False
    ) -> Array:
        """Return an array for a result of x and another one, as kernels take them.

        What else a kernel reads it has read before it stores anything there. A new array begins
        as far into a line as x where that is asked for and loops across channels begin at lines,
        which are those of both then.
        """
        if out is None:
            if self.small:
                return np.empty_like(source)
            return empty_like(source, other, aligned=like_x and self.aligned)
        return output_like(source, x, "x", out, self.element_type, None, (other,))

    def shift(self, target: Array) -> int:
        """Return after how many channels the kernels should begin the rows of a result."""
        return peel_bytes(target) if self.aligned else 0

    def table(self, rows: int, shift: int = 0) -> Array:
        """Return an uninitialized table of the channels' terms."""
        if self.small:
            return np.empty((rows, self.channels[0]), self.compute_type)
        return empty_table(rows, self.channels[0] + shift, self.compute_type, shift)

    def repeat(self, coefficients: Array, shift: int) -> None:
        """Let the terms of the first channels follow those of the last."""
        if shift:
            channels = self.channels[0]
            coefficients[:, channels : channels + shift] = coefficients[:, :shift]


@functools.lru_cache(maxsize=1024)
def _plan(dtype: Any, layout: ColumnLayout) -> _Plan:
    across = layout.inner == 1
    elements, element_type = layout.per_channel * layout.channels, element_type_of(dtype)
    pieces = 1 if across else layout.channels
    least = tuning.PART_LEAST_GROUPS * tuning.GROUP_ROWS if across else 1
    row_bytes, small = layout.channels * element_type.storage_dtype.itemsize, is_small(elements)
    return _Plan(
        element_type,
        _ACROSS if across else _ALONG,
        elements,
        row_parts(layout.outer * pieces, elements, least),
        layout.blocks * pieces,
        small,
        across and not small and has_avx() and row_bytes % LINE == 0,
        layout.kernel_shape,
        (layout.channels,),
        element_type.compute_dtype,
    )


def column_moments(x: Array, layout: ColumnLayout) -> tuple[int, Array, Array]:
    """Return (count, mean, m2) of each channel."""
    return streamed_moments(x, layout, None)


def streamed_moments(
    x: Array, layout: ColumnLayout, after: tuple[int, Any, Any] | None
) -> tuple[int, Array, Array]:
    """Return (count, mean, m2) of each channel, going on from `after`, in new arrays."""
    plan = _plan(x.dtype, layout)
    if not plan.elements:
        return _moments_before(after, layout)
    source = plan.source(x)
    shape = (layout.blocks, layout.channels)
    means, m2s = np.empty(shape), np.empty(shape)
    kernel = plan.family.moments(plan.element_type)
    plan.run(kernel, (source, layout.block, means, m2s), plan.block_parts)
    if after is None and layout.blocks == 1:  # nothing to merge
        return layout.per_channel, means[0], m2s[0]
    count, mean, m2 = _moments_before(after, layout)
    last = layout.outer - (layout.blocks - 1) * layout.block
    counts = float(layout.block * layout.inner), float(last * layout.inner)
    _fold().serial(float(count), mean, m2, *counts, means, m2s, 0, layout.blocks)
    return count + layout.per_channel, mean, m2


def merged_moments(
    mean: Array, moments: tuple[int, Any, Any], other: tuple[int, Any, Any]
) -> tuple[Array, Array]:
    """Return mean and m2 of two sets of the caller's moments, of which none is empty."""
    return merge_moments(*_given("moments", moments), *_given("other", other))


def variance(m2: Array, divisor: int) -> Array:
    """Return the caller's m2 over a number."""
    return m2 / divisor


def _moments_before(
    after: tuple[int, Any, Any] | None, layout: ColumnLayout
) -> tuple[int, Array, Array]:
    """Return those to go on from: those of nothing if none are given."""
    if after is not None:
        return _given("after", after)
    mean, m2 = np.zeros((2, layout.channels))
    return 0, mean, m2


def _given(name: str, moments: tuple[int, Any, Any]) -> tuple[int, Array, Array]:
    """Return moments of the caller's, checked, in new arrays of float64."""
    count, *arrays = moments
    found = []
    for field, value in zip(("mean", "m2"), arrays, strict=True):
        array = as_plain_array(f"{name}.{field}", value)
        check_float(f"{name}.{field}", array.dtype)
        found.append(np.array(array, np.float64))
    return count, found[0], found[1]


def _statistic(name: str, value: Any, plan: _Plan) -> Array:
    """Return a statistic of each channel, checked, in float64."""
    plain = type(value) is np.ndarray and value.dtype is _FLOAT64
    if plain and value.shape == plan.channels and value.flags.carray:  # nothing left to ask
        return value
    return as_statistic(name, value, plan.channels, "the channels of x")


def _parameter(name: str, value: Any, plan: _Plan) -> Array | None:
    """Return gamma or beta, checked, in the working type."""
    if value is None:
        return None
    shape, compute_type = plan.channels, plan.compute_type
    plain = type(value) is np.ndarray and value.dtype is compute_type and value.shape == shape
    if plain and value.flags.carray:  # nothing left to ask
        return value
    return as_parameter(name, value, shape, "the channels of x", compute_type, shape)


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

    The variance is m2 over the divisor. Both statistics are in float32 or float64 and contiguous.
    """
    plan = _plan(x.dtype, layout)
    element_type, parts = plan.element_type, plan.parts
    source = plan.source(x)
    gamma, beta = _parameter("gamma", gamma, plan), _parameter("beta", beta, plan)
    target = plan.target(source, x, out)
    shift = plan.shift(target)
    rstd, coefficients = np.empty(plan.channels), plan.table(4, shift)
    scaled = _output_coefficients(element_type).serial(
        mean, m2, divisor, eps, gamma, beta, rstd, coefficients, 0, layout.channels
    )
    plan.repeat(coefficients, shift)
    kernel = plan.family.forward(element_type)
    if plan.small:
        kernel.serial(source, coefficients, scaled or None, target, shift, parts, 0, parts)
    else:
        plan.run(kernel, (source, coefficients, scaled or None, target, shift, parts), parts)
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
    plan = _plan(x.dtype, layout)
    source = plan.source(x)
    grads = plan.source(like_input("dy", dy, x))
    statistics = _statistic("mean", mean, plan), _statistic("rstd", rstd, plan)
    weight = _parameter("gamma", gamma, plan)
    dtype = gradient_dtype("gamma", gamma, x.dtype)
    frozen_statistics = detached.mean and detached.scale
    target = plan.target(source, x, out, grads, like_x=not frozen_statistics)
    # What the kernel of the terms can round to by itself.
    native = dtype if dtype is _FLOAT32 or dtype is _FLOAT64 else _FLOAT64
    gradients = np.empty((2, layout.channels), native)
    if not plan.elements:
        gradients[...] = 0
    elif frozen_statistics:
        _frozen_statistics_gradient(
            (grads, source), (*statistics, weight), layout, plan, target, gradients
        )
    else:
        _gradient((grads, source), (*statistics, weight), layout, plan, detached, target, gradients)
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
    """Store dx of dy and x, given mean, rstd and gamma, and the gradients of the parameters."""
    element_type, channels, parts = plan.element_type, layout.channels, plan.parts
    mean, rstd, weight = given
    shift = plan.shift(target)
    coefficients, sums = plan.table(8, shift), np.empty((2, layout.blocks, channels))
    scaled = _centre_coefficients(element_type).serial(mean, rstd, coefficients, 0, channels)
    plan.run(
        plan.family.sums(element_type),
        (*arrays, coefficients, layout.block, sums),
        plan.block_parts,
    )
    inv_count = 1.0 / layout.per_channel
    inv_counts = 0.0 if detached.mean else inv_count, 0.0 if detached.scale else inv_count
    scaled = _gradient_coefficients(element_type).serial(
        weight, sums, *inv_counts, scaled, gradients, coefficients, 0, channels
    )
    plan.repeat(coefficients, shift)
    arguments = *arrays, coefficients, scaled or None, target, shift, parts
    plan.run(plan.family.dx(element_type), arguments, parts)


def _frozen_statistics_gradient(
    arrays: tuple[Array, Array],
    given: tuple[Array, Array, Array | None],
    layout: ColumnLayout,
    plan: _Plan,
    target: Array,
    gradients: Array,
) -> None:
    """Store the same where the statistics are constants: dx does not depend on x."""
    element_type, channels = plan.element_type, layout.channels
    coefficients, sums = plan.table(6), np.empty((2, layout.blocks, channels))
    scaled = _frozen_coefficients(element_type).serial(*given, coefficients, 0, channels)
    arguments = *arrays, coefficients, scaled or None, layout.block, sums, target
    plan.run(plan.family.frozen_statistics(element_type), arguments, plan.block_parts)
    _parameter_gradients(element_type).serial(sums, coefficients, gradients, 0, channels)
