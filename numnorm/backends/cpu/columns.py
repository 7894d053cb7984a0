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
from numnorm.backends.cpu.parallel import row_parts, run
from numnorm.backends.cpu.storage import Storage, storage_of
from numnorm.backends.scalars import merge_moments

# Groups of rows in a part: few of its rows are then left for the slower loop.
_GROUPS = 4


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


def _family(layout: ColumnLayout) -> _Family:
    return _ACROSS if layout.inner == 1 else _ALONG


def _tasks(layout: ColumnLayout, entries: int) -> int:
    """Return how many pieces of work there are in some outer entries."""
    return entries if layout.inner == 1 else entries * layout.channels


def _parts(layout: ColumnLayout) -> int:
    """Return into how many parts the elements are cut for a result."""
    least = _GROUPS * GROUP if layout.inner == 1 else 1
    elements = layout.per_channel * layout.channels
    return row_parts(_tasks(layout, layout.outer), elements, least)


def column_moments(x: Array, layout: ColumnLayout) -> tuple[int, Array, Array]:
    """Return (count, mean, m2) of each channel."""
    return streamed_moments(x, layout, None)


def streamed_moments(
    x: Array, layout: ColumnLayout, after: tuple[int, Any, Any] | None
) -> tuple[int, Array, Array]:
    """Return (count, mean, m2) of each channel, going on from `after`, in new arrays."""
    if after is None:
        count, (mean, m2) = 0, np.zeros((2, layout.channels))
    else:
        count, mean, m2 = _given("after", after)
    if layout.per_channel == 0 or layout.channels == 0:
        return count, mean, m2
    storage = storage_of(x.dtype)
    source = as_kernel_array(x, storage, None, layout.kernel_shape)
    means, m2s = np.empty((2, layout.blocks, layout.channels))
    arguments = (source, layout.block, means, m2s)
    run(_family(layout).moments(storage), arguments, x.size, _tasks(layout, layout.blocks))
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
    storage = storage_of(x.dtype)
    source = as_kernel_array(x, storage, None, layout.kernel_shape)
    statistics = _statistics(mean, rstd, layout)
    weights = (
        _parameter("gamma", gamma, layout, storage),
        _parameter("beta", beta, layout, storage),
    )
    target = output_like(source, x, "x", out, storage, None, (*statistics, *weights))
    if x.size:
        terms = empty_table(4, layout.channels, storage.working_dtype)
        scaled = _output_terms(storage).serial(*statistics, *weights, terms, 0, layout.channels)
        parts = _parts(layout)
        arguments = (source, terms, scaled or None, target, parts)
        run(_family(layout).forward(storage), arguments, x.size, parts)
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
    storage = storage_of(x.dtype)
    source = as_kernel_array(x, storage, None, layout.kernel_shape)
    slopes = as_kernel_array(like_input("dy", dy, x), storage, None, layout.kernel_shape)
    statistics = _statistics(mean, rstd, layout)
    weight = _parameter("gamma", gamma, layout, storage)
    dtype = gradient_dtype("gamma", gamma, x.dtype)
    target = output_like(source, x, "x", out, storage, None, (slopes, *statistics, weight))
    dgamma, dbeta = np.zeros((2, layout.channels))
    if x.size:
        channels = layout.channels
        terms = empty_table(8, channels, storage.working_dtype)
        scaled = _centre_terms(storage).serial(*statistics, terms, 0, channels)
        sums, dbeta = _sums(slopes, source, terms, layout, storage)
        share = 1.0 / layout.per_channel
        shares = 0.0 if detached.mean else share, 0.0 if detached.scale else share
        arguments = (weight, sums, dbeta, *shares, dgamma, terms, 0, channels)
        scaled |= _gradient_terms(storage).serial(*arguments)
        parts = _parts(layout)
        if detached.mean and detached.scale:
            # The statistics are constants, and dx does not depend on x.
            constant = _constant_terms(terms, channels)
            kernel = _family(layout).forward(storage)
            run(kernel, (slopes, constant, scaled or None, target, parts), x.size, parts)
        else:
            kernel = _family(layout).dx(storage)
            run(kernel, (slopes, source, terms, scaled or None, target, parts), x.size, parts)
    with np.errstate(over="ignore"):  # a sum may leave the range of float16
        return result(target, x, out, None), dgamma.astype(dtype), dbeta.astype(dtype)


def _constant_terms(terms: Array, channels: int) -> Array:
    """Return the terms with which `channel_output` of dy is dx, for constant statistics."""
    table = empty_table(4, channels, terms.dtype)
    table[0], table[1], table[2], table[3] = terms[7], 0, terms[4], 0
    return table


def _sums(
    dy: Array, x: Array, terms: Array, layout: ColumnLayout, storage: Storage
) -> tuple[Array, Array]:
    """Return the sums of ``dy * (x * scale - high) * rstd`` and of dy over each channel."""
    products, plain = np.empty((2, layout.blocks, layout.channels))
    arguments = (dy, x, terms, layout.block, products, plain)
    kernel = _family(layout).sums(storage)
    run(kernel, arguments, x.size, _tasks(layout, layout.blocks))
    return products.sum(axis=0), plain.sum(axis=0)
