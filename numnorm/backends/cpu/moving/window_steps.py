"""Norms by moving windows, chunk by chunk."""

from typing import Any

import numpy as np

from numnorm.arguments import check_integer
from numnorm.array_likes import as_plain_array, check_out
from numnorm.backends.contract.moving import MovingState, Windows
from numnorm.backends.contract.weighting import Weighting
from numnorm.backends.cpu.memory.host_arrays import Array
from numnorm.backends.cpu.memory.left_out import selected_by
from numnorm.backends.cpu.moving.arrays import plan_of, statistics_for
from numnorm.backends.cpu.moving.missing.kept import as_mask
from numnorm.backends.cpu.moving.missing.windows import MISSING
from numnorm.backends.cpu.moving.windows import run_of, run_windows
from numnorm.layouts import MovingLayout, sequences_by


def moving_step(
    x: Array, state: MovingState | None, layout: MovingLayout, windows: Windows, out: Any
) -> tuple[Array, MovingState]:
    """Return y of the next chunk, and the state after it."""
    keep = None if state is None or state.kept is None else np.ones(x.shape, bool)
    return _step(x, keep, state, layout, windows, out)


def missing_moving_step(
    weighting: Weighting,
    x: Array,
    state: MovingState | None,
    layout: MovingLayout,
    windows: Windows,
    out: Any,
) -> tuple[Array, MovingState]:
    """Return the same, with statistics of what a weighting keeps."""
    keep, fill = selected_by(weighting, x)
    y, after = _step(x, keep, state, layout, windows, out)
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
        state = MovingState(0, x[_last(layout, 0)])
    done, before = _checked(state, x, layout, window)
    steps, held = done + layout.steps, before.shape[axis]
    together = np.concatenate((before, x), axis=axis)
    last = _last(layout, min(window - 1, steps))
    whole = sequences_by(layout.outer, held + layout.steps, layout.inner, axis)
    plan = plan_of(together.dtype, whole)
    source = plan.flat(together)
    target, statistics = np.empty_like(source), statistics_for(x, False)
    # Anchors lie at multiples of the window from the beginning of the stream.
    anchor = done // window * window
    blocks = anchor - (done - held), int(anchor == 0), done - anchor
    sizes, kept = (window, 0, 0, 0), None
    if keep is None:
        run_windows(plan, run_of(plan, blocks, sizes, windows), (source, target, *statistics))
    else:
        kept = np.concatenate((_kept(state, before), keep), axis=axis)
        run = run_of(plan, blocks, sizes, windows, MISSING)
        run_windows(plan, run, (source, as_mask(kept), target, *statistics))
        kept = kept[last].copy()
    y = target.view(x.dtype).reshape(together.shape)[_last(layout, layout.steps)]
    after = MovingState(steps, together[last].copy(), kept)
    if out is None:
        return np.ascontiguousarray(y), after
    check_out(out, x, "x")
    out[...] = y
    return out, after


def _kept(state: MovingState, before: Array) -> Array:
    """Return which values of a state count."""
    if state.kept is None:
        return np.ones(before.shape, bool)
    kept = as_plain_array("state.kept", state.kept)
    if kept.shape != before.shape or kept.dtype != np.bool_:
        raise ValueError(f"state.kept must be a mask of {before.shape} values, got {kept.shape}")
    return kept


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
