"""The norms whose statistics belong to a channel, on NumPy arrays."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from numnorm.arguments import ColumnLayout, as_plain_array, check_float
from numnorm.backends.contract import Detached
from numnorm.backends.cpu.arrays import (
    Array,
    as_kernel_array,
    as_parameter,
    as_statistic,
    gradient_dtype,
    like_input,
    output_like,
    result,
)
from numnorm.backends.cpu.column_backward_kernels import (
    make_dx_across,
    make_dx_along,
    make_sums_across,
    make_sums_along,
)
from numnorm.backends.cpu.column_forward_kernels import make_forward_across, make_forward_along
from numnorm.backends.cpu.column_moments_kernels import (
    make_fold,
    make_moments_across,
    make_moments_along,
)
from numnorm.backends.cpu.column_reading import GROUP
from numnorm.backends.cpu.column_terms_kernels import (
    make_centre_terms,
    make_gradient_terms,
    make_output_terms,
)
from numnorm.backends.cpu.jit import Twins
from numnorm.backends.cpu.memory import empty_table
from numnorm.backends.cpu.parallel import is_small, row_parts, run
from numnorm.backends.cpu.storage import Storage, storage_of
from numnorm.backends.scalars import merge_moments

# Groups of rows in a part: few of its rows are then left for the slower loop.
_GROUPS = 4

_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)


class _Family(NamedTuple):
    """The kernels of one layout."""

    moments: Callable[..., Twins]
    forward: Callable[..., Twins]
    sums: Callable[..., Twins]
    dx: Callable[..., Twins]


# Without inner axes the loops run across the channels, with them along each channel.
_ACROSS = _Family(
    moments=functools.cache(make_moments_across),
    forward=functools.cache(make_forward_across),
    sums=functools.cache(make_sums_across),
    dx=functools.cache(make_dx_across),
)
_ALONG = _Family(
    moments=functools.cache(make_moments_along),
    forward=functools.cache(make_forward_along),
    sums=functools.cache(make_sums_along),
    dx=functools.cache(make_dx_along),
)
_fold = functools.cache(make_fold)
_centre_terms = functools.cache(make_centre_terms)
_output_terms = functools.cache(make_output_terms)
_gradient_terms = functools.cache(make_gradient_terms)


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
    """

    storage: Storage
    family: _Family
    elements: int
    parts: int
    block_parts: int
    small: bool

    def run(self, kernel: Twins, arguments: tuple[Any, ...], parts: int) -> None:
        """Run all parts of a kernel's work."""
        if self.small:
            kernel.serial(*arguments, 0, parts)
        else:
            run(kernel, arguments, self.elements, parts)

    def table(self, rows: int, layout: ColumnLayout) -> Array:
        """Return an uninitialized table of the channels' terms."""
        if self.small:
            return np.empty((rows, layout.channels), self.storage.working_dtype)
        return empty_table(rows, layout.channels, self.storage.working_dtype)


@functools.lru_cache(maxsize=1024)
def _plan(dtype: Any, layout: ColumnLayout) -> _Plan:
    across = layout.inner == 1
    elements = layout.per_channel * layout.channels
    pieces = 1 if across else layout.channels
    return _Plan(
        storage_of(dtype),
        _ACROSS if across else _ALONG,
        elements,
        row_parts(layout.outer * pieces, elements, _GROUPS * GROUP if across else 1),
        layout.blocks * pieces,
        is_small(elements),
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
    source = as_kernel_array(x, plan.storage, None, layout.kernel_shape)
    means, m2s = np.empty((2, layout.blocks, layout.channels))
    kernel = plan.family.moments(plan.storage)
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


def _statistics(mean: Any, rstd: Any, layout: ColumnLayout) -> tuple[Array, Array]:
    shape = (layout.channels,)
    return (
        as_statistic("mean", mean, shape, "the channels of x"),
        as_statistic("rstd", rstd, shape, "the channels of x"),
    )


def _parameter(name: str, value: Any, layout: ColumnLayout, storage: Storage) -> Array | None:
    if value is None:
        return None
    shape = (layout.channels,)
    return as_parameter(name, value, shape, "the channels of x", storage.working_dtype, shape)


def column_forward(
    x: Array,
    mean: Any,
    rstd: Any,
    gamma: Any,
    beta: Any,
    layout: ColumnLayout,
    out: Any,
) -> Array:
    """Return x normalized by the given statistics of each channel."""
    plan = _plan(x.dtype, layout)
    storage = plan.storage
    source = as_kernel_array(x, storage, None, layout.kernel_shape)
    statistics = _statistics(mean, rstd, layout)
    weights = (
        _parameter("gamma", gamma, layout, storage),
        _parameter("beta", beta, layout, storage),
    )
    target = output_like(source, x, "x", out, storage, None, (*statistics, *weights))
    if plan.elements:
        terms = plan.table(4, layout)
        scaled = _output_terms(storage).serial(*statistics, *weights, terms, 0, layout.channels)
        arguments = (source, terms, scaled or None, target, plan.parts)
        plan.run(plan.family.forward(storage), arguments, plan.parts)
    return result(target, x, out, None)


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
    storage, channels = plan.storage, layout.channels
    source = as_kernel_array(x, storage, None, layout.kernel_shape)
    slopes = as_kernel_array(like_input("dy", dy, x), storage, None, layout.kernel_shape)
    statistics = _statistics(mean, rstd, layout)
    weight = _parameter("gamma", gamma, layout, storage)
    dtype = gradient_dtype("gamma", gamma, x.dtype)
    target = output_like(source, x, "x", out, storage, None, (slopes, *statistics, weight))
    # What the kernel of the terms can round to by itself.
    native = dtype if dtype is _FLOAT32 or dtype is _FLOAT64 else _FLOAT64
    gradients = np.empty((2, channels), native)
    if plan.elements:
        terms = plan.table(8, layout)
        scaled = _centre_terms(storage).serial(*statistics, terms, 0, channels)
        sums = _sums(slopes, source, terms, layout, plan)
        share = 1.0 / layout.per_channel
        shares = 0.0 if detached.mean else share, 0.0 if detached.scale else share
        flow = (weight, *sums, *shares, gradients, terms)
        scaled |= _gradient_terms(storage).serial(*flow, 0, channels)
        if detached.mean and detached.scale:
            # The statistics are constants, and dx does not depend on x.
            constant = _constant_terms(terms, layout, plan)
            kernel, inputs = plan.family.forward(storage), [slopes, constant]
        else:
            kernel, inputs = plan.family.dx(storage), [slopes, source, terms]
        plan.run(kernel, (*inputs, scaled or None, target, plan.parts), plan.parts)
    else:
        gradients[...] = 0
    if native is not dtype:
        with np.errstate(over="ignore"):  # a sum may leave the range of float16
            gradients = gradients.astype(dtype)
    return result(target, x, out, None), gradients[0], gradients[1]


def _constant_terms(terms: Array, layout: ColumnLayout, plan: _Plan) -> Array:
    """Return the terms with which `channel_output` of dy is dx, for constant statistics."""
    table = plan.table(4, layout)
    table[0], table[1], table[2], table[3] = terms[7], 0, terms[4], 0
    return table


def _sums(
    dy: Array, x: Array, terms: Array, layout: ColumnLayout, plan: _Plan
) -> tuple[Array, Array]:
    """Return the sums of ``dy * (x * scale - high) * rstd`` and of dy over each channel."""
    sums = np.empty((2, layout.blocks, layout.channels))
    kernel = plan.family.sums(plan.storage)
    plan.run(kernel, (dy, x, terms, layout.block, sums[0], sums[1]), plan.block_parts)
    whole = sums[:, 0] if layout.blocks == 1 else sums.sum(axis=1)
    return whole[0], whole[1]
