"""Norms by order statistics of moving windows, forward and backward, and chunk by chunk."""

import functools
from typing import Any

import numpy as np

from numnorm.arguments import check_shape
from numnorm.array_likes import as_plain_array, check_out
from numnorm.backends.contract.moving import MovingState, checked_steps, ends_of
from numnorm.backends.contract.moving_order import OrderWindows
from numnorm.backends.contract.weighting import Weighting
from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.memory.host_arrays import Array, as_float_array, as_statistic, rounded
from numnorm.backends.cpu.memory.left_out import selected_by
from numnorm.backends.cpu.moving.arrays import (
    Plan,
    joined,
    last_steps,
    new_statistics,
    parts_of,
    plan_of,
    result_of,
    target_of,
)
from numnorm.backends.cpu.moving.order_gradient_kernel import make_order_gradient_kernel
from numnorm.backends.cpu.moving.order_narrow_kernel import make_narrow_order_kernel
from numnorm.backends.cpu.moving.order_results import DEVIATION, QUANTILES, UNSCALED
from numnorm.backends.cpu.moving.order_wide_kernel import make_wide_order_kernel
from numnorm.layouts import MovingLayout, sequences_by

_KINDS = {None: UNSCALED, "mad": DEVIATION, "quantiles": QUANTILES, "range": QUANTILES}
_NO_MASK = np.empty(0, np.uint8)

_narrow_kernel = functools.cache(make_narrow_order_kernel)
_wide_kernel = functools.cache(make_wide_order_kernel)
_gradient_kernel = functools.cache(make_order_gradient_kernel)


def moving_order_forward(
    weighting: Weighting | None,
    x: Array,
    layout: MovingLayout,
    windows: OrderWindows,
    out: Any,
    save: bool,
) -> tuple[Array, Array | None, Array | None]:
    """Return y and, if `save` is true, median and scale of each step."""
    keep, fill = (None, _same) if weighting is None else selected_by(weighting, x)
    begin, sizes = ends_of(windows.windows, layout.steps)
    wide = _widened(x)
    plan = plan_of(wide.dtype, layout)
    source, (median, scales) = plan.flat(wide), new_statistics(wide, save)
    target = target_of(source, wide, out if wide is x else None, (source,))
    _run(plan, (source, keep, target, median, scales), (begin, *sizes), windows)
    y = _in_dtype(target, x, out)
    dtype = np.float32 if x.dtype.itemsize == 2 else np.float64
    saved = (rounded(a, np.dtype(dtype)).reshape(x.shape) for a in (median, scales) if save)
    return fill(y), *(tuple(saved) or (None, None))


def moving_order_backward(
    weighting: Weighting | None,
    dy: Any,
    x: Array,
    median: Any,
    scales: Any,
    layout: MovingLayout,
    windows: OrderWindows,
    out: Any,
) -> Array:
    """Return dx."""
    gradient = as_float_array("dy", dy)
    check_shape("dy", gradient.shape, x.shape, "the shape of x")
    meaning = "the shape of x"
    saved = (
        as_statistic("median", median, x.shape, meaning),
        as_statistic("scales", scales, x.shape, meaning),
    )
    if out is not None:
        check_out(out, x, "x")
    keep = None if weighting is None else selected_by(weighting, x)[0]
    plan, mask = plan_of(np.dtype(np.float64), layout), _mask(keep)
    flat = [plan.flat(array.astype(np.float64)) for array in (gradient, x)]
    if keep is not None:
        flat[0][mask == 0] = 0.0
    dx = np.zeros(plan.size)
    if plan.size:
        begin, sizes = ends_of(windows.windows, layout.steps)
        channels = layout.outer * layout.inner
        block = max(sizes[0], tuning.ORDER_BLOCK_LEAST)
        blocks = channels, 1, layout.steps, block
        numbers, options = _arguments(plan, blocks, (begin, *sizes), windows, keep)
        parts = parts_of(channels)
        arrays = flat[0], flat[1], mask, *saved, dx
        plan.run(_gradient_kernel(), (*arrays, numbers, options, parts), parts, _WORK)
    if keep is not None:
        dx[mask == 0] = 0.0
    return rounded(dx.reshape(x.shape), x.dtype, out)


def moving_order_step(
    weighting: Weighting | None,
    x: Array,
    state: MovingState | None,
    layout: MovingLayout,
    windows: OrderWindows,
    out: Any,
) -> tuple[Array, MovingState]:
    """Return y of the next chunk, and the state after it."""
    keep, fill = (None, _same) if weighting is None else selected_by(weighting, x)
    window, axis = windows.windows.window, layout.axis
    if state is None:
        state = MovingState(0, x[last_steps(layout, 0)])
    before = as_plain_array("state.values", state.values)
    done = checked_steps(state, before, x, axis, window)
    held = before.shape[axis]
    together, kept = joined(x, keep, state, before, axis)
    wide = _widened(together)
    plan = plan_of(wide.dtype, sequences_by(layout.outer, held + layout.steps, layout.inner, axis))
    source = plan.flat(wide)
    target = np.empty_like(source)
    size = min(window, max(held + layout.steps, 1))
    arrays = source, kept, target, *new_statistics(wide, False)
    _run(plan, arrays, (held, size, 0, 0, 0), windows)
    y = target.view(wide.dtype).reshape(together.shape)[last_steps(layout, layout.steps)]
    last = last_steps(layout, min(window - 1, done + layout.steps))
    after = MovingState(
        done + layout.steps, together[last].copy(), None if kept is None else kept[last].copy()
    )
    if out is not None:
        check_out(out, x, "x")
    return fill(rounded(np.ascontiguousarray(y), x.dtype, out)), after


# Arguments of kernels

# Of a call, in arrays that it would only read or write: sorting takes as long.
_WORK = 32


def _run(
    plan: Plan,
    arrays: tuple[Any, ...],
    ends: tuple[int, int, int, int, int],
    windows: OrderWindows,
) -> None:
    """Run a forward kernel for arrays (x, keep, y, median, scales), if there is anything to do."""
    x, keep, *results = arrays
    (outer, steps, inner), (begin, window, *_) = plan.shape, ends
    if plan.size == 0 or begin >= steps:
        return
    narrow = window <= tuning.ORDER_NARROW_MOST
    block = max(window, tuning.ORDER_BLOCK_LEAST)
    stretch = tuning.ORDER_STRETCH_BLOCKS * block
    stretches = -(-(steps - begin) // stretch)
    groups = outer * stretches * inner
    blocks = groups, stretches, stretch, block
    numbers, options = _arguments(plan, blocks, ends, windows, keep)
    kernel = (_narrow_kernel if narrow else _wide_kernel)(plan.element_type)
    parts = parts_of(groups)
    plan.run(kernel, (x, _mask(keep), *results, numbers, options, parts), parts, _WORK)


def _arguments(
    plan: Plan,
    blocks: tuple[int, ...],
    ends: tuple[int, ...],
    windows: OrderWindows,
    keep: Array | None,
) -> tuple[Array, Array]:
    """Return numbers and options as kernels take them."""
    (kind, low, high, factor), (alpha, beta, rounding) = windows.spread, windows.rule
    flags = _KINDS[kind], int(keep is not None)
    numbers = np.array([*plan.shape, *blocks, *ends, *flags, rounding], np.int64)
    return numbers, np.array([low, high, factor, windows.windows.eps, alpha, beta], np.float64)


def _mask(keep: Array | None) -> Array:
    """Return a mask as kernels take it."""
    return _NO_MASK if keep is None else keep.astype(np.uint8, order="C").reshape(-1)


def _widened(x: Array) -> Array:
    """Return x in a dtype of kernels: float64 for half precision."""
    return x.astype(np.float64) if x.dtype.itemsize == 2 else x


def _in_dtype(target: Array, x: Array, out: Any) -> Any:
    """Return a flat result as the caller gets it, rounded to half precision if x is."""
    if x.dtype.itemsize != 2:
        return result_of(target, x, out)
    if out is not None:
        check_out(out, x, "x")
    return rounded(target.reshape(x.shape), x.dtype, out)


def _same(y: Array) -> Array:
    return y
