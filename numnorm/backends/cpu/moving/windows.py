"""Norms by moving windows: forward, backward, and chunk by chunk."""

import functools
from typing import Any

import numpy as np

from numnorm.arguments import check_integer
from numnorm.array_likes import as_plain_array
from numnorm.backends.contract.moving import MovingState, Windows
from numnorm.backends.cpu.memory.host_arrays import Array, check_out, rounded
from numnorm.backends.cpu.moving import gradient_kernel, window_kernels
from numnorm.backends.cpu.moving.arrays import (
    Plan,
    given_statistics,
    in_one_dtype,
    parts_of,
    plan_of,
    result_of,
    saved_of,
    statistics_for,
    target_of,
)
from numnorm.backends.cpu.moving.lanes import group_count
from numnorm.layouts import MovingLayout

_windows_kernel = functools.cache(window_kernels.make_windows_kernel)
_gradients_kernel = functools.cache(gradient_kernel.make_window_gradients_kernel)
_SPECIAL = window_kernels.HEADS + window_kernels.TAILS
_SPECIAL_OF_GRADIENTS = gradient_kernel.HEADS + gradient_kernel.TAILS


def moving_forward(
    x: Array, layout: MovingLayout, windows: Windows, out: Any, save: bool
) -> tuple[Array, Array | None, Array | None]:
    """Return y and, if `save` is true, mean and rstd of each step."""
    plan = plan_of(x, layout)
    source = plan.flat(x)
    target = target_of(source, x, out, (source,))
    mean, rstd = statistics_for(x, save)
    begin, sizes = _ends(windows, layout.steps)
    _run(plan, (source, target, mean, rstd), (0, 1, begin), sizes, windows)
    y = result_of(target, x, out)
    if not save:
        return y, None, None
    return y, saved_of(plan, x, mean), saved_of(plan, x, rstd)


def moving_backward(
    dy: Any, x: Array, mean: Any, rstd: Any, layout: MovingLayout, windows: Windows, out: Any
) -> Array:
    """Return dx."""
    statistics = given_statistics(mean, rstd, x)
    dtype = x.dtype
    if out is not None:
        check_out(out, x, "x")
    gradient, x = in_one_dtype(dy, x)
    if x.dtype != dtype:
        dx = _dx(gradient, x, statistics, layout, windows, None)
        return rounded(dx, dtype, out)
    return _dx(gradient, x, statistics, layout, windows, out)


def _dx(
    dy: Array,
    x: Array,
    statistics: tuple[Array, Array],
    layout: MovingLayout,
    windows: Windows,
    out: Any,
) -> Array:
    """Return dx in the dtype that dy and x have."""
    plan = plan_of(x, layout)
    inputs = plan.flat(dy), plan.flat(x), *statistics
    target = target_of(inputs[1], x, out, inputs)
    if plan.size:
        begin, sizes = _ends(windows, layout.steps)
        count = -(-layout.steps // sizes[0]) + 1
        groups = group_count(plan.shape, count, _SPECIAL_OF_GRADIENTS, plan.across)
        kernel = _gradients_kernel(plan.element_type, plan.across)
        options, parts = (float(windows.mean), float(windows.scale)), parts_of(groups)
        blocks = groups, count, begin
        plan.run(kernel, (*inputs, target, plan.shape, blocks, sizes, options, parts), parts, 5)
    return result_of(target, x, out)


def moving_step(
    x: Array, state: MovingState | None, layout: MovingLayout, windows: Windows, out: Any
) -> tuple[Array, MovingState]:
    """Return y of the next chunk, and the state after it."""
    window = windows.window
    if state is None:
        done, before = 0, x[_last(layout, 0)]
    else:
        done, before = _checked(state, x, layout, window)
    steps = done + layout.steps
    together = np.concatenate((before, x), axis=layout.axis)
    kept = min(window - 1, steps)
    values = together[_last(layout, kept)].copy()
    held = before.shape[layout.axis]
    whole = MovingLayout(layout.outer, held + layout.steps, layout.inner, layout.axis)
    plan = plan_of(together, whole)
    source = plan.flat(together)
    target = np.empty_like(source)
    # Anchors lie at multiples of the window from the beginning of the stream.
    anchor = done // window * window
    blocks = anchor - (done - held), int(anchor == 0), done - anchor
    _run(plan, (source, target, *statistics_for(x, False)), blocks, (window, 0, 0, 0), windows)
    y = target.view(x.dtype).reshape(together.shape)[_last(layout, layout.steps)]
    if out is None:
        return np.ascontiguousarray(y), MovingState(steps, values)
    check_out(out, x, "x")
    out[...] = y
    return out, MovingState(steps, values)


def _last(layout: MovingLayout, count: int) -> tuple[slice, ...]:
    """Return the index of the last steps."""
    return (*[slice(None)] * layout.axis, slice(-count, None) if count else slice(0))


def _checked(state: MovingState, x: Array, layout: MovingLayout, window: int) -> tuple[int, Array]:
    """Return the steps and the values of a state, if they fit a chunk and a window."""
    steps = check_integer("state.steps", state.steps, 0)
    values = as_plain_array("state.values", state.values)
    shape = list(x.shape)
    shape[layout.axis] = values.shape[layout.axis] if values.ndim == x.ndim else 0
    if values.shape != tuple(shape) or values.dtype != x.dtype:
        raise ValueError(
            f"state must be of chunks like x, which has shape {x.shape} and dtype {x.dtype}, got "
            f"values of shape {values.shape} and dtype {values.dtype}"
        )
    if shape[layout.axis] != min(window - 1, steps):
        raise ValueError(f"state must be of a window of {window} steps, got one of another window")
    return steps, values


def _ends(windows: Windows, steps: int) -> tuple[int, tuple[int, int, int, int]]:
    """Return at which step the first window ends, and the `windows` of kernels."""
    window = max(1, min(windows.window, steps))
    if not windows.center:
        begin = min(windows.min_window, window) - 1
        return begin, (window, 0, begin, 0)
    shift = window // 2 - (window - 1)
    return window - 1, (window, shift, window - 1 + shift, -shift)


def _run(
    plan: Plan,
    arrays: tuple[Any, ...],
    first: tuple[int, int, int],
    sizes: tuple[int, int, int, int],
    windows: Windows,
) -> None:
    """Run the forward kernel; `first` are the anchor, whether it is new, and the first end."""
    count = -(-(plan.shape[1] - first[0]) // sizes[0])
    if plan.size == 0 or count <= 0:
        return
    groups = group_count(plan.shape, count, _SPECIAL, plan.across)
    kernel = _windows_kernel(plan.element_type, plan.across)
    options = float(windows.mean), float(windows.scale), windows.eps
    parts = parts_of(groups)
    blocks = groups, count, *first
    plan.run(kernel, (*arrays, plan.shape, blocks, sizes, options, parts), parts, len(arrays))
