"""Norms by moving windows, forward and backward, with missing steps, and chunk by chunk."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from numnorm.array_likes import as_plain_array, check_out
from numnorm.backends.contract.moving import MovingState, Windows, checked_steps, ends_of
from numnorm.backends.contract.weighting import Weighting
from numnorm.backends.cpu.compiler.jit import Kernel
from numnorm.backends.cpu.memory.host_arrays import Array
from numnorm.backends.cpu.memory.left_out import kept_by, selected_by
from numnorm.backends.cpu.moving import window_kernels
from numnorm.backends.cpu.moving.arrays import (
    NO_STATISTICS,
    Plan,
    in_own_dtype,
    joined,
    last_steps,
    new_statistics,
    parts_of,
    plan_of,
    result_of,
    saved_statistics,
    target_of,
)
from numnorm.backends.cpu.moving.lanes import group_count
from numnorm.backends.cpu.moving.masked_window_kernels import (
    make_masked_sequences_kernel,
    make_masked_windows_kernel,
)
from numnorm.backends.cpu.moving.missing_steps import as_mask, gradient_of_sequences
from numnorm.backends.cpu.moving.sequence_kernel import make_sequence_windows_kernel, stretch_count
from numnorm.backends.cpu.moving.timed_windows import timed_backward, timed_forward, timed_step
from numnorm.layouts import MovingLayout, sequences_by

# All steps


_gradients_kernel = functools.cache(window_kernels.make_window_gradients_kernel)
_SPECIAL_OF_GRADIENTS = window_kernels.HEADS + window_kernels.TAILS


class Kernels(NamedTuple):
    """Cached makers of kernels of adjacent channels, and of those along one channel."""

    across: Callable[..., Kernel]
    along: Callable[..., Kernel]


PLAIN = Kernels(
    functools.cache(window_kernels.make_windows_kernel),
    functools.cache(make_sequence_windows_kernel),
)


def moving_forward(
    x: Array, layout: MovingLayout, windows: Windows, out: Any, save: bool
) -> tuple[Array, Array | None, Array | None]:
    """Return y and, if `save` is true, mean and rstd of each step."""
    if windows.bounds is not None:
        return timed_forward(x, None, layout, windows, out, save)
    plan, run = forward_run(x.dtype, layout, windows)
    source = plan.flat(x)
    if plan.small and out is None and not save and run is not None:
        # All that follows would take longer than the kernel.
        target = np.empty_like(source)
        run.kernel.entry(0, source, target, *run.unsaved)
        return result_of(target, x, None), None, None
    target = target_of(source, x, out, (source,))
    mean, rstd = new_statistics(x, save)
    run_windows(plan, run, (source, target, mean, rstd))
    y = result_of(target, x, out)
    return y, *saved_statistics(plan, x, save, mean, rstd)


def moving_backward(
    dy: Any, x: Array, mean: Any, rstd: Any, layout: MovingLayout, windows: Windows, out: Any
) -> Array:
    """Return dx."""
    if windows.bounds is not None:
        return timed_backward(dy, x, None, mean, rstd, layout, windows, out)
    dx_of = functools.partial(windows_dx, layout=layout, windows=windows)
    return in_own_dtype(dx_of, dy, x, mean, rstd, out)


def windows_dx(
    dy: Array,
    x: Array,
    statistics: tuple[Array, Array],
    layout: MovingLayout,
    windows: Windows,
    out: Any,
) -> Array:
    """Return dx in the dtype that dy and x have."""
    plan = plan_of(x.dtype, layout)
    inputs = plan.flat(dy), plan.flat(x), *statistics
    target = target_of(inputs[1], x, out, inputs)
    if plan.size:
        begin, sizes = ends_of(windows, layout.steps)
        count = -(-layout.steps // sizes[0]) + 1
        groups = group_count(plan.shape, count, _SPECIAL_OF_GRADIENTS, plan.across)
        kernel = _gradients_kernel(plan.element_type, plan.across)
        options, parts = (float(windows.centred), float(windows.scaled)), parts_of(groups)
        blocks = groups, count, begin
        plan.run(kernel, (*inputs, target, plan.shape, blocks, sizes, options, parts), parts, 5)
    return result_of(target, x, out)


class Run(NamedTuple):
    """A kernel, its arguments behind the arrays, and into how many parts they divide its work.

    `unsaved` are all arguments of its entry behind x and y if no statistics are to be saved.
    """

    kernel: Kernel
    arguments: tuple[Any, ...]
    parts: int
    unsaved: tuple[Any, ...]


def run_windows(plan: Plan, run: Run | None, arrays: tuple[Any, ...]) -> None:
    """Run a forward kernel, if there is anything to do."""
    if run is not None:
        plan.run(run.kernel, (*arrays, *run.arguments), run.parts, len(arrays))


@functools.lru_cache(maxsize=1024)
def forward_run(
    dtype: Any,
    layout: MovingLayout,
    windows: Windows,
    kernels: Kernels = PLAIN,
) -> tuple[Plan, Run | None]:
    """Return the plan of a whole array, and what runs for its windows."""
    plan = plan_of(dtype, layout)
    begin, sizes = ends_of(windows, layout.steps)
    return plan, run_of(plan, (0, 1, begin), sizes, windows, kernels)


def run_of(
    plan: Plan,
    first: tuple[int, int, int],
    sizes: tuple[int, int, int, int],
    windows: Windows,
    kernels: Kernels = PLAIN,
) -> Run | None:
    """Return what runs; `first` are the anchor, whether it is new, and the first end."""
    count = -(-(plan.shape[1] - first[0]) // sizes[0])
    if plan.size == 0 or count <= 0:
        return None
    if plan.across:
        groups = group_count(plan.shape, count, 0, True)
        kernel = kernels.across(plan.element_type)
    else:
        outer, _, inner = plan.shape
        count = stretch_count(count, sizes[0])
        groups = outer * inner * count
        kernel = kernels.along(plan.element_type, inner == 1)
    options = np.array([windows.centred, windows.scaled, windows.eps], np.float64)
    numbers = np.array([*plan.shape, groups, count, *first, *sizes], np.int64)
    parts = parts_of(groups)
    arguments = numbers, options, parts
    return Run(kernel, arguments, parts, (*NO_STATISTICS, *arguments, 0, parts))


# Missing steps


MASKED = Kernels(
    functools.cache(make_masked_windows_kernel), functools.cache(make_masked_sequences_kernel)
)


def masked_moving_forward(
    weighting: Weighting, x: Array, layout: MovingLayout, windows: Windows, out: Any, save: bool
) -> tuple[Array, Array | None, Array | None]:
    """Return y and, if `save` is true, mean and rstd of each step."""
    keep, fill = selected_by(weighting, x)
    if windows.bounds is not None:
        y, *saved = timed_forward(x, keep, layout, windows, out, save)
        return fill(y), saved[0], saved[1]
    plan, run = forward_run(x.dtype, layout, windows, MASKED)
    source = plan.flat(x)
    target = target_of(source, x, out, (source,))
    mean, rstd = new_statistics(x, save)
    run_windows(plan, run, (source, as_mask(keep), target, mean, rstd))
    y = fill(result_of(target, x, out))
    return y, *saved_statistics(plan, x, save, mean, rstd)


def masked_moving_backward(
    weighting: Weighting,
    dy: Any,
    x: Array,
    mean: Any,
    rstd: Any,
    layout: MovingLayout,
    windows: Windows,
    out: Any,
) -> Array:
    """Return dx."""
    if windows.bounds is not None:
        keep = kept_by(weighting, x)
        return timed_backward(dy, x, keep, mean, rstd, layout, windows, out)
    dx_of = functools.partial(_masked_dx, windows=windows)
    return gradient_of_sequences(dx_of, weighting, dy, x, mean, rstd, layout, out)


def _masked_dx(
    keep: Array,
    dy: Array,
    x: Array,
    mean: Array,
    rstd: Array,
    layout: MovingLayout,
    windows: Windows,
) -> Array:
    """Return dx, by the kernel without missing steps.

    It divides by the steps of a window, so dy is made larger by how many there are for each kept
    one. The gradient of a step through its own output is added again, without that.
    """
    steps, kept = _lengths(keep, layout, windows)
    known = _with_pivots(x, keep, layout, windows)
    scaled = dy * (steps / np.maximum(kept, 1))
    given = scaled, known, (mean.reshape(-1), rstd.reshape(-1))
    dx = windows_dx(*given, layout, windows, None)
    with np.errstate(all="ignore"):
        dx += rstd * (dy - scaled)
    return dx


def _with_pivots(x: Array, keep: Array, layout: MovingLayout, windows: Windows) -> Array:
    """Return x with values at missing steps that the kernel may take for its pivots.

    Its pivots are the values at the first and the last step of a block. A missing first step gets
    the next value that is kept, any other the last one: if the block has a value, it is that one.
    """
    steps, axis = layout.steps, layout.axis
    window = ends_of(windows, steps)[1][0]
    numbers = np.arange(steps).reshape([-1 if a == axis else 1 for a in range(x.ndim)])
    last = np.maximum.accumulate(np.where(keep, numbers, 0), axis=axis)
    following = np.flip(np.where(keep, numbers, max(steps - 1, 0)), axis)
    following = np.flip(np.minimum.accumulate(following, axis=axis), axis)
    nearest = np.take_along_axis(x, np.where(numbers % window == 1, following, last), axis)
    # A window without this step would be spoilt by a value that is not finite.
    return np.where(keep | ~np.isfinite(nearest), x, nearest)


def _lengths(keep: Array, layout: MovingLayout, windows: Windows) -> tuple[Array, Array]:
    """Return the number of steps of each step's window, and how many of them are kept."""
    begin, (window, shift, _, _) = ends_of(windows, layout.steps)
    stops = np.clip(np.arange(layout.steps) - shift, begin, layout.steps - 1) + 1
    starts = np.maximum(stops - window, 0)
    size = list(keep.shape)
    size[layout.axis] = 1
    counts = np.cumsum(keep, axis=layout.axis, dtype=np.int64)
    counts = np.concatenate((np.zeros(size, np.int64), counts), axis=layout.axis)
    kept = counts.take(stops, layout.axis) - counts.take(starts, layout.axis)
    shape = [-1 if axis == layout.axis else 1 for axis in range(keep.ndim)]
    return (stops - starts).reshape(shape), kept


# Chunk by chunk


def moving_step(
    x: Array, state: MovingState | None, layout: MovingLayout, windows: Windows, out: Any
) -> tuple[Array, MovingState]:
    """Return y of the next chunk, and the state after it."""
    step = _step if windows.bounds is None else timed_step
    return step(x, None, state, layout, windows, out)


def masked_moving_step(
    weighting: Weighting,
    x: Array,
    state: MovingState | None,
    layout: MovingLayout,
    windows: Windows,
    out: Any,
) -> tuple[Array, MovingState]:
    """Return what `moving_step` returns, with statistics of what a weighting keeps."""
    keep, fill = selected_by(weighting, x)
    step = _step if windows.bounds is None else timed_step
    y, after = step(x, keep, state, layout, windows, out)
    return fill(y), after


def _step(
    x: Array,
    keep: Array | None,
    state: MovingState | None,
    layout: MovingLayout,
    windows: Windows,
    out: Any,
) -> tuple[Array, MovingState]:
    window, axis = windows.window, layout.axis
    if state is None:
        state = MovingState(0, x[last_steps(layout, 0)])
    before = as_plain_array("state.values", state.values)
    done = checked_steps(state, before, x, axis, window)
    steps, held = done + layout.steps, before.shape[axis]
    together, kept = joined(x, keep, state, before, axis)
    whole = sequences_by(layout.outer, held + layout.steps, layout.inner, axis)
    plan = plan_of(together.dtype, whole)
    source = plan.flat(together)
    target, statistics = np.empty_like(source), new_statistics(x, False)
    # Anchors lie at multiples of the window from the beginning of the stream.
    anchor = done // window * window
    blocks = anchor - (done - held), int(anchor == 0), done - anchor
    sizes = window, 0, 0, 0
    if kept is None:
        run_windows(plan, run_of(plan, blocks, sizes, windows), (source, target, *statistics))
    else:
        run = run_of(plan, blocks, sizes, windows, MASKED)
        run_windows(plan, run, (source, as_mask(kept), target, *statistics))
    y = target.view(x.dtype).reshape(together.shape)[last_steps(layout, layout.steps)]
    last = last_steps(layout, min(window - 1, steps))
    after = MovingState(steps, together[last].copy(), None if kept is None else kept[last].copy())
    if out is None:
        return np.ascontiguousarray(y), after
    check_out(out, x, "x")
    out[...] = y
    return out, after
