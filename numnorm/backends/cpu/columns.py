"""The norms whose statistics belong to a channel, on NumPy arrays."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from numnorm.arguments import ColumnLayout
from numnorm.backends.contract import Detached, Norm
from numnorm.backends.cpu.arrays import (
    Array,
    as_kernel_array,
    as_parameter,
    as_statistic,
    both_or_neither,
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
from numnorm.backends.cpu.jit import Twins
from numnorm.backends.cpu.parallel import row_parts, run
from numnorm.backends.cpu.storage import Storage, storage_of


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


def _family(layout: ColumnLayout) -> _Family:
    return _ACROSS if layout.inner == 1 else _ALONG


def _tasks(layout: ColumnLayout, entries: int) -> int:
    """Return how many pieces of work there are in some outer entries."""
    return entries if layout.inner == 1 else entries * layout.channels


def column_moments(
    x: Array, layout: ColumnLayout, after: tuple[int, Any, Any] | None
) -> tuple[int, Array, Array]:
    """Return (count, mean, m2) of each channel, going on from `after`."""
    if after is None:
        count, mean, m2 = 0, np.zeros(layout.channels), np.zeros(layout.channels)
    else:
        count, mean, m2 = after[0], np.array(after[1], np.float64), np.array(after[2], np.float64)
    if layout.per_channel == 0 or layout.channels == 0:
        return count, mean, m2
    storage = storage_of(x.dtype)
    source = as_kernel_array(x, storage, None, layout.kernel_shape)
    means = np.empty((layout.blocks, layout.channels))
    m2s = np.empty_like(means)
    arguments = (source, layout.block, means, m2s)
    run(_family(layout).moments(storage), arguments, x.size, _tasks(layout, layout.blocks))
    last = layout.outer - (layout.blocks - 1) * layout.block
    counts = float(layout.block * layout.inner), float(last * layout.inner)
    _fold().serial(float(count), mean, m2, *counts, means, m2s, 0, layout.blocks)
    return count + layout.per_channel, mean, m2


class _Centre(NamedTuple):
    """Mean and scale of each channel, of x times a power of two, in the working type."""

    scale: Array
    high: Array
    low: Array
    rstd: Array


def _centre(mean: Any, rstd: Any, layout: ColumnLayout, storage: Storage) -> _Centre:
    shape = (layout.channels,)
    mean = as_statistic("mean", mean, shape, "the channels of x")
    rstd = as_statistic("rstd", rstd, shape, "the channels of x")
    most = storage.largest_exponent
    scale = np.ones(layout.channels)
    if not ((rstd > 2.0**-most) & (rstd < 2.0**most)).all():
        # An rstd beyond the working type is used as its ratio to a power of two.
        exponent = np.frexp(rstd)[1]
        exponent = np.where(np.abs(exponent) < most, 0, np.clip(exponent, -most, most))
        scale = np.ldexp(1.0, exponent)
        mean, rstd = mean * scale, rstd / scale
    with np.errstate(invalid="ignore", over="ignore"):
        high = mean.astype(storage.working)
        low = (mean - high).astype(storage.working)
    return _Centre(scale.astype(storage.working), high, low, rstd.astype(storage.working))


def _parameter(name: str, value: Any, layout: ColumnLayout, storage: Storage) -> Array | None:
    if value is None:
        return None
    shape = (layout.channels,)
    return as_parameter(name, value, shape, "the channels of x", storage.working_dtype, shape)


def column_forward(
    norm: Norm,
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
    centre = _centre(mean, rstd, layout, storage)
    weights = both_or_neither(
        _parameter("gamma", gamma, layout, storage),
        _parameter("beta", beta, layout, storage),
    )
    target = output_like(source, x, "x", out, storage, None, (*centre, *weights))
    if x.size:
        parts = row_parts(_tasks(layout, layout.outer))
        arguments = (source, *centre, *weights, target, parts)
        run(_family(layout).forward(norm.formula, storage), arguments, x.size, parts)
    return result(target, x, out, None)


def column_backward(
    norm: Norm,
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
    shape = layout.kernel_shape
    source = as_kernel_array(x, storage, None, shape)
    slope = as_kernel_array(like_input("dy", dy, x), storage, None, shape)
    centre = _centre(mean, rstd, layout, storage)
    weight = _parameter("gamma", gamma, layout, storage)
    dtype = gradient_dtype("gamma", gamma, x.dtype)
    target = output_like(source, x, "x", out, storage, None, (slope, *centre, weight))
    dgamma, dbeta = _sums(norm, slope, source, centre, layout, storage)
    if x.size:
        means = _means(dgamma, dbeta, weight, layout, detached, centre.rstd.dtype)
        parts = row_parts(_tasks(layout, layout.outer))
        arguments = (slope, source, *centre, weight, *means, target, parts)
        run(_family(layout).dx(norm.formula, storage), arguments, x.size, parts)
    with np.errstate(over="ignore"):  # a sum may leave the range of float16
        return result(target, x, out, None), dgamma.astype(dtype), dbeta.astype(dtype)


def _sums(
    norm: Norm, dy: Array, x: Array, centre: _Centre, layout: ColumnLayout, storage: Storage
) -> tuple[Array, Array]:
    """Return the sums of dy * xhat and of dy over each channel."""
    if x.size == 0:
        return np.zeros(layout.channels), np.zeros(layout.channels)
    with_xhat = np.empty((layout.blocks, layout.channels))
    plain = np.empty_like(with_xhat)
    arguments = (dy, x, *centre, layout.block, with_xhat, plain)
    run(
        _family(layout).sums(norm.formula, storage),
        arguments,
        x.size,
        _tasks(layout, layout.blocks),
    )
    return with_xhat.sum(axis=0), plain.sum(axis=0)


def _means(
    dgamma: Array,
    dbeta: Array,
    gamma: Array | None,
    layout: ColumnLayout,
    detached: Detached,
    working: np.dtype[Any],
) -> tuple[Array, Array]:
    """Return the means of g and of g * xhat, which flow through mean and scale."""
    share = (1.0 if gamma is None else gamma.astype(np.float64)) / layout.per_channel
    nothing = np.zeros(layout.channels, working)
    return (
        nothing if detached.mean else (dbeta * share).astype(working),
        nothing if detached.scale else (dgamma * share).astype(working),
    )
