"""Norms by moving windows in which steps are missing, forward and backward."""

import functools
from typing import Any

import numpy as np

from numnorm.backends.contract.moving import Windows
from numnorm.backends.contract.weighting import Weighting
from numnorm.backends.cpu.memory.host_arrays import Array
from numnorm.backends.cpu.memory.left_out import selected_by
from numnorm.backends.cpu.moving.arrays import (
    result_of,
    statistics_for,
    statistics_of,
    target_of,
)
from numnorm.backends.cpu.moving.missing.kept import as_mask, gradient_of_sequences
from numnorm.backends.cpu.moving.missing.sequence_kernel import make_missing_sequences_kernel
from numnorm.backends.cpu.moving.missing.window_kernel import make_missing_windows_kernel
from numnorm.backends.cpu.moving.windows import (
    Kernels,
    ends_of,
    forward_run,
    run_windows,
    windows_dx,
)
from numnorm.layouts import MovingLayout

MISSING = Kernels(
    functools.cache(make_missing_windows_kernel), functools.cache(make_missing_sequences_kernel)
)


def missing_moving_forward(
    weighting: Weighting, x: Array, layout: MovingLayout, windows: Windows, out: Any, save: bool
) -> tuple[Array, Array | None, Array | None]:
    """Return y and, if `save` is true, mean and rstd of each step."""
    plan, run = forward_run(x.dtype, layout, windows, MISSING)
    keep, fill = selected_by(weighting, x)
    source = plan.flat(x)
    target = target_of(source, x, out, (source,))
    mean, rstd = statistics_for(x, save)
    run_windows(plan, run, (source, as_mask(keep), target, mean, rstd))
    y = fill(result_of(target, x, out))
    return y, *statistics_of(plan, x, save, mean, rstd)


def missing_moving_backward(
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
    dx_of = functools.partial(_dx, windows=windows)
    return gradient_of_sequences(dx_of, weighting, dy, x, mean, rstd, layout, out)


def _dx(
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
