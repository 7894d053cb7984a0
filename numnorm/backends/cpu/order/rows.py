"""Norms by order statistics of rows: the callers of their kernel, and their gradients."""

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from numnorm.arguments import Shape, check_shape
from numnorm.array_likes import check_out
from numnorm.backends.contract.order import OrderScaling
from numnorm.backends.contract.weighting import KEEP_ALL, Weighting
from numnorm.backends.cpu.compiler.parallel import row_parts, run
from numnorm.backends.cpu.memory.host_arrays import (
    Array,
    as_float_array,
    as_kernel_array,
    output_like,
    result,
    rounded,
)
from numnorm.backends.cpu.memory.left_out import kept_by
from numnorm.backends.cpu.memory.placement import empty_like, writable_alias
from numnorm.backends.cpu.order import kernel as entries
from numnorm.backends.cpu.order.kernel import make_order_kernel
from numnorm.backends.cpu.simd.element_type import ElementType, element_type_of
from numnorm.layouts import RowLayout

# An element takes about as long as so many bytes that are read and written.
_WORK = 64
_CENTERS = {"median": entries.MEDIAN, "mean": entries.MEAN}
_KINDS = {
    None: entries.UNSCALED,
    "mad": entries.MAD,
    "quantiles": entries.QUANTILES,
    "range": entries.RANGE,
}
_NO_RESULT = np.empty(0)
# Gradients are computed for rows of about so many elements at a time.
_TOGETHER = 1 << 18


class _Plan(NamedTuple):
    """What follows from the dtype, the shape and the layout of an array.

    Attributes
    ----------
    element_type : ElementType
    order : tuple of int or None
        The permutation of the axes with which x is copied; None if the kernel takes x as it lies.
    shape : tuple of int
        Of x in the kernel: ``(outer, times, between, along)``.
    block : int
        The number of rows that are done at once.
    """

    element_type: ElementType
    order: tuple[int, ...] | None
    shape: tuple[int, int, int, int]
    block: int


@functools.lru_cache(maxsize=1024)
def _plan_of(dtype: Any, shape: Shape, layout: RowLayout) -> _Plan:
    element_type = element_type_of(dtype)
    taken = _as_it_lies(shape, layout)
    order, shape4 = (layout.order, (layout.rows, 1, 1, layout.width)) if taken is None else taken
    block = min(element_type.lanes, entries.ROWS_AT_ONCE) if shape4[3] == 1 else 1
    return _Plan(element_type, order, shape4, min(block, max(shape4[2], 1)))


def _as_it_lies(shape: Shape, layout: RowLayout) -> tuple[None, tuple[int, int, int, int]] | None:
    """Return the shape of x in the kernel if rows need not be copied: at most two runs of axes."""
    order, own = layout.order or tuple(range(len(shape))), len(layout.parameter_shape)
    along = set(order[len(order) - own :])
    sizes: list[int] = [1]  # in turn of other axes and of those of a row
    for axis, size in enumerate(shape):
        if size == 1:
            continue
        if (len(sizes) % 2 == 0) == (axis in along):
            sizes[-1] *= size
        else:
            sizes.append(size)
    if len(sizes) > 4:
        return None
    outer, times, between, within = (*sizes, 1, 1, 1, 1)[:4]
    if between == 1:
        times, within = 1, times * within
    return None, (outer, times, between, within)


def order_forward(
    x: Array,
    layout: RowLayout,
    scaling: OrderScaling,
    weighting: Weighting | None,
    out: Any,
) -> tuple[Array, Array, Array]:
    """Return y, and the center and the scale of each row."""
    plan = _plan_of(x.dtype, x.shape, layout)
    source = _source(x, plan)
    if out is None:
        target = empty_like(source)
    else:
        rows = _rows_of(weighting, x.shape, layout)
        target = output_like(source, x, "x", out, plan.element_type, plan.order, rows[:2])
    found = _found(source, target.reshape(-1), plan, layout, scaling, weighting, x.shape)
    saved = found.astype(plan.element_type.saved, copy=False)
    center, scale = (
        saved[:, i].reshape(layout.statistic_shape).copy() for i in range(entries.STORED)
    )
    return result(target, x, out, plan.order), center, scale


def _source(x: Array, plan: _Plan) -> Array:
    """Return x as the kernel takes it, copied only if needed."""
    shape = x.shape if plan.order is None else tuple(x.shape[axis] for axis in plan.order)
    return as_kernel_array(x, plan.element_type, plan.order, shape)


def _found(
    source: Array,
    target: Array,
    plan: _Plan,
    layout: RowLayout,
    scaling: OrderScaling,
    weighting: Weighting | None,
    shape: Shape,
    columns: int = entries.STORED,
) -> Array:
    """Run the kernel; return the first statistics of each row."""
    table = np.full((layout.rows, columns), math.nan)
    if not source.size:
        return table
    keep, weights, strides = _rows_of(weighting, shape, layout)
    given = KEEP_ALL if weighting is None else weighting
    (kind, low, high, factor), (alpha, beta, rounding) = scaling.spread, scaling.rule
    is_word = isinstance(scaling.center, str)
    words = (
        _CENTERS[scaling.center] if is_word else entries.NUMBER,  # type: ignore[index]
        _KINDS[kind],
        rounding,
    )
    plain = not (given.omit or keep.size or weights.size)
    storage, real = plan.element_type.storage_dtype, plan.element_type.compute_dtype
    direct = plain and storage == real and plan.shape[1] == plan.shape[2] == 1
    flags = int(given.omit), int(direct)
    numbers = np.array([*plan.shape, plan.block, *strides, *flags, *words, columns], np.int64)
    options = np.array(
        [
            0.0 if is_word else scaling.center,
            *(low, high, alpha, beta),
            *(factor, scaling.eps, given.fill, given.fill_missing),
        ]
    )
    outer, _, between, _ = plan.shape
    parts = row_parts(outer * -(-between // plan.block), source.size)
    kernel = make_order_kernel(plan.element_type, bool(weights.size))
    arrays = source.reshape(-1), keep, weights, target, table.reshape(-1)
    with np.errstate(all="ignore"):
        run(kernel, (*arrays, numbers, options, parts), _WORK * source.size, parts)
    return table


def _rows_of(
    weighting: Weighting | None, shape: Shape, layout: RowLayout
) -> tuple[Array, Array, tuple[int, int]]:
    """Return mask and weights as flat rows, and how far their rows are apart."""
    keep = weights = None
    if weighting is not None:
        keep, weights = weighting.keep, weighting.weights
    mask, mask_stride = _flat_rows(keep, np.uint8, shape, layout)
    each, each_stride = _flat_rows(weights, np.float64, shape, layout)
    return mask, each, (mask_stride, each_stride)


def _flat_rows(array: Any, dtype: Any, shape: Shape, layout: RowLayout) -> tuple[Array, int]:
    """Return an array that broadcasts against x as flat rows, one if all are the same."""
    if array is None:
        return np.empty(0, dtype), 0
    order = layout.order or tuple(range(len(shape)))
    others = len(layout.statistic_shape)
    full = array.reshape((1,) * (len(shape) - array.ndim) + array.shape).transpose(order)
    same = all(n == 1 for n in full.shape[:others])
    wanted = tuple(shape[axis] for axis in order)
    wanted = (1,) * others + wanted[others:] if same else wanted
    rows = np.ascontiguousarray(np.broadcast_to(full, wanted))
    rows = rows.view(dtype) if rows.dtype == np.bool_ else rows.astype(dtype, copy=False)
    flat = rows if rows.flags.carray else writable_alias(rows)
    return flat.reshape(-1), 0 if same else layout.width


# Gradients


def order_backward(
    dy: Any,
    x: Array,
    scale: Array,
    layout: RowLayout,
    scaling: OrderScaling,
    weighting: Weighting | None,
    out: Any,
) -> Array:
    """Return dx: through the elements that the order statistics of a row are made of."""
    gradient = as_float_array("dy", dy)
    check_shape("dy", gradient.shape, x.shape, "the shape of x")
    if out is not None:
        check_out(out, x, "x")
    plan, moved = _plan_of(x.dtype, x.shape, layout), _moved(layout, x.ndim)
    source = _source(x, plan)
    found = _found(
        source, _NO_RESULT.astype(source.dtype), plan, layout, scaling, weighting, x.shape,
        entries.FOUND,
    )  # fmt: skip
    found[:, entries.SCALE] = scale.reshape(-1)
    size = layout.rows, layout.width
    values, gradients = (a.transpose(moved).reshape(size) for a in (x, gradient))
    keep, weights = _counting(weighting, x)
    kept, shares = (
        None if a is None else np.broadcast_to(a, x.shape).transpose(moved).reshape(size)
        for a in (keep, weights)
    )
    dx, step = np.empty(size), max(1, _TOGETHER // max(1, layout.width))
    for start in range(0, layout.rows, step):
        some = slice(start, start + step)
        own = None if kept is None else kept[some]
        each = None if shares is None else shares[some]
        with np.errstate(all="ignore"):
            dx[some] = _rows_dx(gradients[some], values[some], own, each, found[some], scaling)
    whole = dx.reshape([x.shape[axis] for axis in moved]).transpose(np.argsort(moved))
    return rounded(np.ascontiguousarray(whole), x.dtype, out)


def _moved(layout: RowLayout, ndim: int) -> tuple[int, ...]:
    return layout.order or tuple(range(ndim))


def _counting(weighting: Weighting | None, x: Array) -> tuple[Array | None, Array | None]:
    """Return a mask of what is not left out, and the weights; None if there is none."""
    if weighting is None:
        return None, None
    return kept_by(weighting, x), weighting.weights


def _rows_dx(
    dy: Array,
    x: Array,
    keep: Array | None,
    weights: Array | None,
    found: Array,
    scaling: OrderScaling,
) -> Array:
    """Return dx of some rows; what is left out gets 0."""

    def of(entry: int) -> Array:
        return found[:, entry : entry + 1]

    dy = dy.astype(np.float64)
    counts = np.ones(x.shape, bool) if keep is None else keep
    dy = np.where(counts, dy, 0.0)
    x = np.where(counts, x, 0.0).astype(np.float64)
    if weights is not None:
        counts = counts & (weights > 0.0)
    deviations = (x - of(entries.HIGH)) - of(entries.LOW)
    divisor: Any = 1.0
    kind, factor = scaling.spread.kind, scaling.spread.factor
    if kind is not None:
        divisor = of(entries.SCALE) * factor + scaling.eps
    dx = dy / divisor
    of_center = -np.sum(dx, axis=1, keepdims=True)
    if kind is not None:
        # dy of what is left out is 0, whatever y is there.
        along = np.where(dy == 0.0, 0.0, dy * (deviations / divisor))
        of_scale = -factor * np.sum(along, axis=1, keepdims=True) / divisor
        if kind == "mad":
            distances = np.abs(deviations)
            signs = np.sign(deviations) * _attaining(distances, counts, of, entries.OF_SCALE)
            dx += of_scale * signs
            of_center -= of_scale * np.sum(signs, axis=1, keepdims=True)
        else:
            dx += of_scale * _attaining(x, counts, of, entries.OF_UPPER)
            dx -= of_scale * _attaining(x, counts, of, entries.OF_SCALE)
    if scaling.center == "median":
        dx += of_center * _attaining(x, counts, of, entries.OF_CENTER)
    elif scaling.center == "mean":
        share = counts if weights is None else np.where(counts, weights, 0.0)
        dx += of_center * (share / np.sum(share, axis=1, keepdims=True))
    dx = np.where((divisor == 0.0) & ~np.isnan(of(entries.CENTER)), 0.0, dx)
    return dx if keep is None else np.where(keep, dx, 0.0)


def _attaining(values: Array, counts: Array, of: Any, entry: int) -> Array:
    """Return how a quantile depends on each value: equal values share it equally."""
    lower, upper = (counts & (values == of(entry + i)) for i in (0, 1))
    share = of(entry + 2)
    return (1.0 - share) * _shared(lower) + share * _shared(upper)


def _shared(those: Array) -> Array:
    return those / np.maximum(np.sum(those, axis=1, keepdims=True), 1)
