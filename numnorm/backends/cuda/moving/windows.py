"""Norms by moving windows on device arrays, forward and backward, with missing steps."""

import functools
import math
from typing import Any

from numnorm.backends.contract import moving as contract
from numnorm.backends.contract.moving import ends_of
from numnorm.backends.contract.weighting import Weighting
from numnorm.backends.cuda.arrays.device_array import DeviceArray
from numnorm.backends.cuda.arrays.launch import launch
from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import Kernel
from numnorm.backends.cuda.moving.arguments import StepStatistics
from numnorm.backends.cuda.moving.arrays import Given, dx_of, given, normalized
from numnorm.backends.cuda.moving.window_kernels import (
    ROWS,
    GradientArrays,
    Scaling,
    Windows,
    make_chunk_gradients,
    make_chunk_sums,
    make_window_counts,
    make_window_gradients,
    make_windows,
)
from numnorm.backends.cuda.statistics.stored import float64_memory
from numnorm.layouts import MovingLayout

# Shorter windows are added up step by step.
_LEAST_IN_CHUNKS = 16

_chunk_sums = functools.cache(make_chunk_sums)
_windows = functools.cache(make_windows)
_window_counts = functools.cache(make_window_counts)
_chunk_gradients = functools.cache(make_chunk_gradients)
_window_gradients = functools.cache(make_window_gradients)


def missing_moving_forward(
    weighting: Weighting | None,
    x: DeviceArray,
    layout: MovingLayout,
    windows: contract.Windows,
    out: Any,
    save: bool,
) -> tuple[Any, Any, Any]:
    """Return y and, if `save` is true, mean and rstd of each step.

    The statistics are those of the steps that a weighting keeps; None keeps all.
    """

    def launch_norm(of_x: Given, element: ElementType, y: Any, saved: StepStatistics) -> None:
        sizes, scaling = _sizes(layout, windows), _scaling(windows)
        table = _launch_chunk_sums(of_x, sizes, scaling.centred)
        kernel = _windows(of_x.x.element, element, of_x.missing)
        arrays = of_x.x.array, table, of_x.marks, y, saved
        _launch(kernel, layout.steps, of_x, arrays, (of_x.sequences, sizes, scaling))

    return normalized(launch_norm, x, weighting, layout, out, save)


moving_forward = functools.partial(missing_moving_forward, None)
"""What `missing_moving_forward` returns, where all steps count."""


def missing_moving_backward(
    weighting: Weighting | None,
    dy: Any,
    x: DeviceArray,
    mean: Any,
    rstd: Any,
    layout: MovingLayout,
    windows: contract.Windows,
    out: Any,
) -> Any:
    """Return dx, for statistics of the steps that a weighting keeps; None keeps all."""
    sizes, scaling = _sizes(layout, windows), _scaling(windows)

    def launch_gradient(
        dy: DeviceArray, x: DeviceArray, saved: ElementType, statistics: StepStatistics, dx: Any
    ) -> None:
        of_x = given(x, weighting, layout)
        numbers = of_x.sequences, sizes, scaling
        inverses = _inverse_counts(of_x, sizes) if of_x.missing else None
        arrays = GradientArrays(dy.array, x.array, statistics, of_x.marks, inverses)
        table = _table(of_x, sizes)
        kinds = x.element, saved, of_x.missing
        if table is not None:
            _launch(_chunk_gradients(*kinds), sizes.chunks, of_x, (arrays, table), numbers)
        _launch(_window_gradients(*kinds), layout.steps, of_x, (arrays, table, dx), numbers)

    return dx_of(launch_gradient, dy, x, mean, rstd, out)


moving_backward = functools.partial(missing_moving_backward, None)
"""What `missing_moving_backward` returns, where all steps count."""


def _sizes(layout: MovingLayout, windows: contract.Windows) -> Windows:
    """Return the windows, and chunks of about the root of a window: they depend on it alone."""
    begin, (window, shift, _, _) = ends_of(windows, layout.steps)
    if window < _LEAST_IN_CHUNKS:
        return Windows(window, shift, begin, 1, 0)
    chunk = math.isqrt(window)
    return Windows(window, shift, begin, chunk, layout.steps // chunk)


def _scaling(windows: contract.Windows) -> Scaling:
    return Scaling(float(windows.mean), float(windows.scale), windows.eps)


def _table(of_x: Given, sizes: Windows) -> Any:
    """Return new memory for the table of chunks; None if there are none."""
    cells = of_x.sequences.outer * sizes.chunks * of_x.sequences.inner
    return float64_memory(of_x.x, ROWS * cells) if cells else None


def _launch_chunk_sums(of_x: Given, sizes: Windows, centred: float) -> Any:
    """Return the sums of the chunks; None if there are none."""
    table = _table(of_x, sizes)
    if table is not None:
        kernel = _chunk_sums(of_x.x.element, of_x.missing)
        arrays = of_x.x.array, table, of_x.marks
        _launch(kernel, sizes.chunks, of_x, arrays, (of_x.sequences, sizes, centred))
    return table


def _inverse_counts(of_x: Given, sizes: Windows) -> Any:
    """Return 1 over the number of steps that count in each window."""
    inverses = float64_memory(of_x.x, math.prod(of_x.x.shape))
    table = _launch_chunk_sums(of_x, sizes, 1.0)
    arrays = of_x.x.array, table, of_x.marks, inverses
    kernel = _window_counts(of_x.x.element)
    _launch(kernel, of_x.sequences.steps, of_x, arrays, (of_x.sequences, sizes))
    return inverses


def _launch(
    kernel: Kernel, length: int, of_x: Given, arrays: tuple[Any, ...], numbers: tuple[Any, ...]
) -> None:
    """Launch a kernel with `length` threads for each channel."""
    count = of_x.sequences.outer * length * of_x.sequences.inner
    launch(kernel, -(-count // kernel.threads), of_x.x, arrays, numbers)
