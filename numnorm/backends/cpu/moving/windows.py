"""Norms by moving windows, forward and backward."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from numnorm.backends.contract.moving import Windows
from numnorm.backends.cpu.compiler.jit import Kernel
from numnorm.backends.cpu.memory.host_arrays import Array
from numnorm.backends.cpu.moving import window_gradients, window_kernel
from numnorm.backends.cpu.moving.arrays import (
    NOTHING,
    Plan,
    in_own_dtype,
    parts_of,
    plan_of,
    result_of,
    statistics_for,
    statistics_of,
    target_of,
)
from numnorm.backends.cpu.moving.lanes import group_count
from numnorm.backends.cpu.moving.sequence_kernel import make_sequence_windows_kernel, stretch_count
from numnorm.layouts import MovingLayout

_gradients_kernel = functools.cache(window_gradients.make_window_gradients_kernel)
_SPECIAL_OF_GRADIENTS = window_gradients.HEADS + window_gradients.TAILS


class Kernels(NamedTuple):
    """Cached makers of kernels of adjacent channels, and of those along one channel."""

    across: Callable[..., Kernel]
    along: Callable[..., Kernel]


PLAIN = Kernels(
    functools.cache(window_kernel.make_windows_kernel),
    functools.cache(make_sequence_windows_kernel),
)


def moving_forward(
    x: Array, layout: MovingLayout, windows: Windows, out: Any, save: bool
) -> tuple[Array, Array | None, Array | None]:
    """Return y and, if `save` is true, mean and rstd of each step."""
    plan, run = forward_run(x.dtype, layout, windows)
    source = plan.flat(x)
    if plan.small and out is None and not save and run is not None:
        # All that follows would take longer than the kernel.
        target = np.empty_like(source)
        run.kernel.entry(0, source, target, *run.unsaved)
        return result_of(target, x, None), None, None
    target = target_of(source, x, out, (source,))
    mean, rstd = statistics_for(x, save)
    run_windows(plan, run, (source, target, mean, rstd))
    y = result_of(target, x, out)
    return y, *statistics_of(plan, x, save, mean, rstd)


def moving_backward(
    dy: Any, x: Array, mean: Any, rstd: Any, layout: MovingLayout, windows: Windows, out: Any
) -> Array:
    """Return dx."""
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
        options, parts = (float(windows.mean), float(windows.scale)), parts_of(groups)
        blocks = groups, count, begin
        plan.run(kernel, (*inputs, target, plan.shape, blocks, sizes, options, parts), parts, 5)
    return result_of(target, x, out)


def ends_of(windows: Windows, steps: int) -> tuple[int, tuple[int, int, int, int]]:
    """Return at which step the first window ends, and the `windows` of kernels."""
    window = max(1, min(windows.window, steps))
    if not windows.center:
        begin = min(windows.min_window, window) - 1
        return begin, (window, 0, begin, 0)
    shift = window // 2 - (window - 1)
    return window - 1, (window, shift, window - 1 + shift, -shift)


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
    options = np.array([windows.mean, windows.scale, windows.eps], np.float64)
    numbers = np.array([*plan.shape, groups, count, *first, *sizes], np.int64)
    parts = parts_of(groups)
    arguments = numbers, options, parts
    return Run(kernel, arguments, parts, (*NOTHING, *arguments, 0, parts))
