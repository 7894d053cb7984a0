"""Norms by windows that last a duration, forward and backward, and chunk by chunk."""

import functools
from typing import Any, NamedTuple

import numpy as np

from numnorm.arguments import check_integer
from numnorm.array_likes import as_plain_array, check_out
from numnorm.backends.contract.moving import MovingState, Windows, check_values
from numnorm.backends.cpu.memory.host_arrays import Array, as_kernel_array, rounded
from numnorm.backends.cpu.memory.placement import empty_like, writable_alias
from numnorm.backends.cpu.moving.arrays import (
    in_own_dtype,
    joined,
    last_steps,
    new_statistics,
    parts_of,
    plan_of,
    saved_statistics,
)
from numnorm.backends.cpu.moving.missing_steps import as_mask
from numnorm.backends.cpu.moving.timed_window_kernels import (
    make_bounds_kernel,
    make_timed_gradients_kernel,
    make_timed_windows_kernel,
)
from numnorm.backends.cpu.simd.element_type import element_type_of
from numnorm.layouts import MovingLayout, sequences_by

_kernel = functools.cache(make_timed_windows_kernel)
_gradients_kernel = functools.cache(make_timed_gradients_kernel)
_bounds_kernel = functools.cache(make_bounds_kernel)
_NO_MASK = as_mask(np.empty(0, bool))


def window_bounds(numbers: Array, length: Any, closed: tuple[bool, bool], center: bool) -> Array:
    """Return the first step of each window, and behind all those the step after its last one.

    The times and the duration are both int64 or both float64.
    """
    bounds = np.empty(2 * numbers.size, np.int64)
    if not numbers.flags.carray:
        numbers = writable_alias(np.ascontiguousarray(numbers))
    _bounds_kernel().serial(numbers, bounds, length, (*closed, center), 0, 1)
    return bounds


class _Found(NamedTuple):
    """What the kernel stores: y in the dtype that it computes in, and mean and rstd."""

    y: Array
    mean: Array
    rstd: Array


def timed_forward(
    x: Array, keep: Array | None, layout: MovingLayout, windows: Windows, out: Any, save: bool
) -> tuple[Array, Array | None, Array | None]:
    """Return y and, if `save` is true, mean and rstd of each step; None keeps all steps."""
    plan = plan_of(x.dtype, layout)
    anchors = np.full(layout.outer * layout.inner, -1, np.int64)
    found = _run(x, keep, layout, windows, anchors, 0, save)
    y = _given(found.y.reshape(x.shape), x, out)
    return y, *saved_statistics(plan, x, save, found.mean, found.rstd)


def _run(
    x: Array,
    keep: Array | None,
    layout: MovingLayout,
    windows: Windows,
    anchors: Array,
    first: int,
    save: bool,
) -> _Found:
    """Run the kernel for the windows of the steps from `first` on."""
    source = _computed(x)
    found = _Found(empty_like(source), *new_statistics(x, save))
    if x.size:
        mask = _NO_MASK if keep is None else as_mask(keep)
        shape = layout.outer, layout.steps, layout.inner, first
        options = float(windows.centred), float(windows.scaled), windows.eps
        parts = _parts(layout)
        arrays = source, mask, *found, windows.bounds.both, anchors
        plan = plan_of(source.dtype, layout)
        plan.run(_kernel(), (*arrays, shape, options, parts), parts, 2 + 2 * save)
    return found


def timed_backward(
    dy: Any,
    x: Array,
    keep: Array | None,
    mean: Any,
    rstd: Any,
    layout: MovingLayout,
    windows: Windows,
    out: Any,
) -> Array:
    """Return dx; 0 for what does not count."""

    def dx_of(dy: Array, x: Array, statistics: tuple[Array, Array], out: Any) -> Array:
        inputs = _computed(dy), _computed(x)
        dx = empty_like(inputs[1])
        if x.size:
            mask = _NO_MASK if keep is None else as_mask(keep)
            shape, parts = (layout.outer, layout.steps, layout.inner), _parts(layout)
            options = float(windows.centred), float(windows.scaled)
            arrays = *inputs, mask, *statistics, dx
            plan = plan_of(inputs[1].dtype, layout)
            given = *arrays, windows.bounds.both, shape, options, parts
            plan.run(_gradients_kernel(), given, parts, 5)
        return _given(dx.reshape(x.shape), x, out)

    return in_own_dtype(dx_of, dy, x, mean, rstd, out)


def timed_step(
    x: Array,
    keep: Array | None,
    state: MovingState | None,
    layout: MovingLayout,
    windows: Windows,
    out: Any,
) -> tuple[Array, MovingState]:
    """Return y of the next chunk, and the state after it, without the times.

    The bounds are those of the steps of the state and of the chunk.
    """
    axis, channels = layout.axis, layout.outer * layout.inner
    if state is None:
        anchors = np.full(channels, -1, np.int64)
        state = MovingState(0, x[last_steps(layout, 0)], anchors=anchors)
    before = as_plain_array("state.values", state.values)
    check_values(before, x, axis)
    done = check_integer("state.steps", state.steps, 0)
    held, all_times = before.shape[axis], windows.bounds.starts.size
    steps = held + layout.steps
    if all_times != steps:
        got = all_times - layout.steps
        raise ValueError(f"state.times must be the times of its {held} values, got {got}")
    anchors = _checked_anchors(state, channels, windows.bounds.stops[held - 1] if held else 0)
    together, keep = joined(x, keep, state, before, axis)
    whole = sequences_by(layout.outer, steps, layout.inner, axis)
    found = _run(together, keep, whole, windows, anchors, held, False)
    y = found.y.reshape(together.shape)[last_steps(layout, layout.steps)]
    first = windows.bounds.later
    last = last_steps(layout, steps - first)
    kept = None if keep is None else keep[last].copy()
    anchors = np.where(anchors < first, -1, anchors - first)
    after = MovingState(done + layout.steps, together[last].copy(), kept, None, anchors)
    return _given(np.ascontiguousarray(y), x, out), after


def _checked_anchors(state: MovingState, channels: int, stop: int) -> Array:
    """Return a copy of the anchors of a state, whose last window ends before the step `stop`."""
    anchors = as_plain_array("state.anchors", state.anchors)
    if anchors.shape != (channels,) or anchors.dtype != np.int64:
        got = f"shape {anchors.shape} and dtype {anchors.dtype.name}"
        raise ValueError(
            f"state.anchors must be int64, one for each of {channels} channels, got {got}"
        )
    wrong = (anchors < -1) | (anchors >= stop)
    if wrong.any():
        wanted = f"-1 or steps before {stop}, the end of its last window"
        raise ValueError(f"state.anchors must be {wanted}, got {anchors[wrong][0]}")
    return anchors.copy()


def _computed(x: Array) -> Array:
    """Return an array, flat, in the dtype in which kernels read and write it."""
    kind = x.dtype if x.dtype.itemsize >= 4 else np.dtype(np.float32)
    wide = x.astype(kind, copy=False)
    return as_kernel_array(wide, element_type_of(kind), None, (x.size,))


def _given(result: Array, x: Array, out: Any) -> Array:
    """Return a result as the caller gets it."""
    if out is not None:
        check_out(out, x, "x")
    given: Array = rounded(result, x.dtype, out)
    return given


def _parts(layout: MovingLayout) -> int:
    return parts_of(layout.outer * layout.inner)
