"""Missing values and weights as kernels take them, and the arrays of their results."""

import functools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from numnorm.arguments import Shape
from numnorm.array_likes import check_out
from numnorm.backends.contract.weighting import Weighting
from numnorm.backends.cpu.memory.host_arrays import Array, Order, output_like, rounded
from numnorm.backends.cpu.memory.host_arrays import result as in_place
from numnorm.backends.cpu.memory.placement import empty_like, writable_alias
from numnorm.backends.cpu.simd.element_type import element_type_of
from numnorm.backends.cpu.weighted.loops import Selection
from numnorm.backends.cpu.weighted.row_forward import Mask
from numnorm.layouts import ColumnLayout

_BOOL, _FLOAT32, _FLOAT64 = np.dtype(bool), np.dtype(np.float32), np.dtype(np.float64)
# The most ones that are kept from call to call.
_MOST_KEPT = 4096


@functools.lru_cache(maxsize=64)
def _ones(width: int, dtype: np.dtype[Any]) -> Array:
    """Return ones, which kernels only read."""
    return np.ones(width, dtype)


def selection_of(
    weighting: Weighting, shape: Shape, order: Order, rows: int, width: int
) -> Selection:
    """Return the selection for an array of a shape, whose axes in this order are rows."""
    keep, keep_step = _flat(weighting.keep, _BOOL, shape, order, rows, width)
    weights, weight_step = _flat(weighting.weights, _FLOAT64, shape, order, rows, width)
    omit = int(weighting.omit)
    return Selection(keep.view(np.uint8), keep_step, weights, weight_step, omit)


def mask_of(weighting: Weighting, shape: Shape, order: Order, rows: int, width: int) -> Mask:
    """Return the mask for an array of a shape, whose axes in this order are rows."""
    keep, step, weights, weight_step = weighting.keep, 0, weighting.weights, 0
    if keep is not None:
        keep, step = _flat(keep, _BOOL, shape, order, rows, width)
        keep = keep.view(np.uint8)
    if weights is not None:
        weights, weight_step = _flat(weights, _FLOAT64, shape, order, rows, width)
    # With None the loops have no test for NaN.
    return Mask(keep, step, weights, weight_step, 1 if weighting.omit else None)


def whole_mask(weighting: Weighting, shape: Shape) -> Weighting:
    """Return a weighting whose mask, if there is one, has this shape and is C-contiguous."""
    keep = weighting.keep
    if keep is None or (keep.shape == shape and keep.flags.carray):
        return weighting
    return weighting._replace(keep=np.array(np.broadcast_to(keep, shape), order="C"))


def kept_of(weighting: Weighting, shape: Shape) -> tuple[Array | None, int | None]:
    """Return the flat bytes of `keep` and `omit`, each None if it is not given."""
    keep = whole_mask(weighting, shape).keep
    return None if keep is None else keep.reshape(-1).view(np.uint8), 1 if weighting.omit else None


def column_weights(weighting: Weighting, shape: Shape, layout: ColumnLayout) -> Array | None:
    """Return the weights of an array of a shape as the kernels of this layout take them.

    They are flat, or of shape ``(outer, 1)`` where all elements of an entry share one; None if
    there are none. Loops along channels take float64 alone.
    """
    weights = weighting.weights
    if weights is None:
        return None
    if layout.inner != 1 or weights.dtype is not _FLOAT32:
        weights = weights.astype(_FLOAT64, copy=False)
    if weights.shape == shape and weights.flags.carray:
        return weights.reshape(-1)
    axes = _leading(shape, layout.outer)
    if axes and weights.size == layout.outer and weights.shape[:axes] == shape[:axes]:
        return np.array(weights, _FLOAT64, order="C").reshape(layout.outer, 1)
    full = np.broadcast_to(weights, shape)
    if full.flags.c_contiguous and full.flags.aligned:
        return writable_alias(full).reshape(-1)
    if (axes or layout.outer == 1) and _repeats(full, range(axes, full.ndim)):
        first: Any = (..., *(0,) * (full.ndim - axes))
        each = full[first]
        return np.array(each, _FLOAT64, order="C").reshape(layout.outer, 1)
    return np.array(full, order="C").reshape(-1)


def _repeats(full: Array, axes: Iterable[int]) -> bool:
    """Return whether an array has the same numbers all along these axes."""
    return all(full.shape[axis] == 1 or not full.strides[axis] for axis in axes)


def _flat(
    values: Any, dtype: np.dtype[Any], shape: Shape, order: Order, rows: int, width: int
) -> tuple[Array, int]:
    """Return values that broadcast against a shape, flat, and the distance from row to row."""
    if values is None or 0 in shape:
        return _ones(width, dtype) if width <= _MOST_KEPT else np.ones(width, dtype), 0
    if values.shape == shape and order is None and values.dtype is dtype and values.flags.carray:
        return values.reshape(-1), width
    full = np.broadcast_to(values.astype(dtype, copy=False), shape)
    if order is not None:
        full = full.transpose(order)
    row_axes = _leading(full.shape, rows)
    if row_axes and _repeats(full, range(row_axes)):
        return np.array(full[(0,) * row_axes], order="C").reshape(width), 0
    # A read-only array would be another type of argument, and so another compilation.
    in_place = full.flags.c_contiguous and full.flags.aligned
    contiguous = writable_alias(full) if in_place else np.array(full, order="C")
    return contiguous.reshape(rows * width), width


def _leading(shape: Shape, rows: int) -> int:
    """Return how many of the first axes have `rows` elements together; 0 if no number has."""
    return next((k for k in range(1, len(shape) + 1) if math.prod(shape[:k]) == rows), 0)


def output_for(
    source: Array,
    wide: Array,
    x: Array,
    out: Any,
    inputs: tuple[Any, ...],
    *,
    name: str = "x",
    order: Order = None,
) -> Array:
    """Return an array for the result of a kernel, in the memory of `out` if possible.

    `source` is the kernel's array of x, and `wide` is x in the dtype that the kernel computes in.
    """
    if out is not None:
        check_out(out, x, name)
    if out is None or wide.dtype != x.dtype:
        return empty_like(source)
    return output_like(source, x, name, out, element_type_of(x.dtype), order, inputs)


def result_of(target: Array, wide: Array, x: Array, out: Any, *, order: Order = None) -> Array:
    """Return the result of a kernel in the dtype of x, in `out` if that is given."""
    if wide.dtype == x.dtype:
        return in_place(target, x, out, order)
    y: Array = rounded(in_place(target, wide, None, order), x.dtype, out)
    return y
