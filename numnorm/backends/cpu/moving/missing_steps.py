"""Masks as kernels take them, and gradients of sequences in which steps are missing."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from numnorm.arguments import check_float, check_shape
from numnorm.array_likes import as_plain_array, changes_other_elements, check_out
from numnorm.backends.contract.weighting import Weighting
from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.memory.host_arrays import Array, as_float_array, rounded
from numnorm.backends.cpu.memory.left_out import kept_by
from numnorm.backends.cpu.moving.lanes import LANES
from numnorm.backends.cpu.simd.element_type import element_type_of
from numnorm.layouts import MovingLayout, sequences_by

# Vectors are loaded from arrays of floats, so kernels take masks as numbers: 1 for what is kept.
MASK = element_type_of(np.dtype(np.float32))
HALF = 0.5


def as_mask(keep: Array) -> Array:
    """Return a mask as kernels take it."""
    return keep.astype(MASK.storage_dtype, order="C").reshape(-1)


def gradient_of_sequences(
    dx_of: Callable[..., Array],
    weighting: Weighting,
    dy: Any,
    x: Array,
    mean: Any,
    rstd: Any,
    layout: MovingLayout,
    out: Any,
) -> Any:
    """Return dx for the caller: 0 for what does not count.

    ``dx_of(keep, dy, x, mean, rstd, layout)`` returns it for some of the sequences. All arrays have
    the shape ``(outer, steps, inner)``; dy, x, mean and rstd are float64, and
    finite at steps that do not count.
    """
    gradient = as_float_array("dy", dy)
    check_shape("dy", gradient.shape, x.shape, "the shape of x")
    statistics = _statistic("mean", mean, x), _statistic("rstd", rstd, x)
    if out is not None:
        check_out(out, x, "x")
    shape = layout.outer, layout.steps, layout.inner
    keep = kept_by(weighting, x).reshape(shape)
    inputs = gradient, x, *statistics
    arrays = [array.reshape(shape) for array in inputs]
    in_place = out is not None and out.flags.c_contiguous
    if in_place and not any(changes_other_elements(out, array) for array in (keep, *inputs)):
        dx = out.reshape(shape)
    else:
        dx = np.empty(shape, x.dtype)
    for part in _parts(layout):
        own = keep[part]
        outer, steps, inner = own.shape
        prepared = _prepared(
            own, *(np.array(array[part], np.float64, order="C") for array in arrays)
        )
        of_part = dx_of(own, *prepared, sequences_by(outer, steps, inner, 1))
        of_part[~own] = 0.0
        dx[part] = rounded(of_part, x.dtype)
    if out is None:
        return dx.reshape(x.shape)
    if not np.may_share_memory(out, dx):
        out[...] = dx.reshape(x.shape)
    return out


def _statistic(name: str, value: Any, x: Array) -> Array:
    array = as_plain_array(name, value)
    check_shape(name, array.shape, x.shape, "the shape of x")
    check_float(name, array.dtype)
    return array


def _parts(layout: MovingLayout) -> Iterator[tuple[slice, slice, slice]]:
    """Yield some of the sequences at a time."""
    outer, steps, inner = layout.outer, layout.steps, layout.inner
    size = outer * steps * inner
    most = max(tuning.MOVING_BLOCK_ELEMENTS, size // tuning.MOVING_BLOCKS_MOST)
    sequences, every = most // max(steps, 1), slice(None)
    if inner <= max(sequences, LANES):
        entries = max(1, sequences // max(inner, 1))
        for i in range(0, outer, entries):
            yield slice(i, i + entries), every, every
        return
    blocks = inner // max(sequences, LANES)
    ends = [inner * block // blocks for block in range(blocks + 1)]
    for i in range(outer):
        for start, stop in itertools.pairwise(ends):
            yield slice(i, i + 1), every, slice(start, stop)


def _prepared(
    keep: Array, dy: Array, x: Array, mean: Array, rstd: Array
) -> tuple[Array, Array, Array, Array]:
    """Return dy, x, mean and rstd of sequences, changed in place, finite where nothing counts.

    The mean of no value is that of a step nearby, so that its distance from x is small.
    """
    left_out = ~keep
    unknown = left_out & np.isnan(mean)
    if unknown.any():
        np.copyto(mean, _nearby(mean), where=unknown)
    rstd[left_out & np.isnan(rstd)] = 0.0
    dy[left_out] = 0.0
    np.copyto(x, mean, where=left_out)
    return dy, x, mean, rstd


def _nearby(values: Array) -> Array:
    """Return the last value before each step that is not NaN, or the first one; 0 if all are."""
    known = ~np.isnan(values)
    numbers = np.arange(values.shape[1])[:, None]
    last = np.maximum.accumulate(np.where(known, numbers, 0), axis=1)
    first = np.expand_dims(known.argmax(axis=1), 1)
    nearby = np.take_along_axis(values, np.maximum(last, first), 1)
    return np.nan_to_num(nearby, nan=0.0, posinf=np.inf, neginf=-np.inf)
