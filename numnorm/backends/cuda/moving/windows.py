"""Norms by moving windows on device arrays, forward and backward, with missing steps."""

import functools
import math
from typing import Any

from numnorm.arguments import Shape
from numnorm.backends.contract import moving as contract
from numnorm.backends.contract.moving import checked_steps, ends_of
from numnorm.backends.contract.weighting import Weighting
from numnorm.backends.cuda.arrays.device_array import (
    DeviceArray,
    as_companion,
    output_like,
    result,
    with_array,
)
from numnorm.backends.cuda.arrays.known_calls import repeats
from numnorm.backends.cuda.arrays.launch import launch_threads, on_device_of
from numnorm.backends.cuda.arrays.masks import as_mask_of
from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import Kernel
from numnorm.backends.cuda.moving.arguments import NOTHING_MISSING, Sequences, StepStatistics
from numnorm.backends.cuda.moving.arrays import (
    Given,
    contiguous,
    dx_of,
    given,
    new_statistics,
    normalized,
)
from numnorm.backends.cuda.moving.stream_kernels import (
    Joined,
    Marks,
    make_joined,
    make_last_steps,
)
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
_joined_steps = functools.cache(make_joined)
_last = functools.cache(make_last_steps)


@repeats("weighting", "out")
def masked_moving_forward(
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


moving_forward = functools.partial(masked_moving_forward, None)
"""What `masked_moving_forward` returns, where all steps count."""


@repeats("weighting", "dy", "mean", "rstd", "out")
def masked_moving_backward(
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
        dy: DeviceArray, of_x: Given, saved: ElementType, statistics: StepStatistics, dx: Any
    ) -> None:
        numbers = of_x.sequences, sizes, scaling
        inverses = _inverse_counts(of_x, sizes) if of_x.missing else None
        arrays = GradientArrays(dy.array, of_x.x.array, statistics, of_x.marks, inverses)
        table = _table(of_x, sizes)
        kinds = of_x.x.element, saved, of_x.missing
        if table is not None:
            _launch(_chunk_gradients(*kinds), sizes.chunks, of_x, (arrays, table), numbers)
        _launch(_window_gradients(*kinds), layout.steps, of_x, (arrays, table, dx), numbers)

    return dx_of(launch_gradient, weighting, dy, x, mean, rstd, layout, out)


moving_backward = functools.partial(masked_moving_backward, None)
"""What `masked_moving_backward` returns, where all steps count."""


# Chunk by chunk


def masked_moving_step(
    weighting: Weighting | None,
    x: DeviceArray,
    state: contract.MovingState | None,
    layout: MovingLayout,
    windows: contract.Windows,
    out: Any,
) -> tuple[Any, contract.MovingState]:
    """Return y of the next chunk, and the state after it."""
    window, scaling = windows.window, _scaling(windows)
    # Chunks of windows lie as from the beginning of the stream: so do the roundings of sums.
    chunk = math.isqrt(window) if window >= _LEAST_IN_CHUNKS else 1
    with on_device_of(x):
        output = output_like(x, None, out, ())
        joined, counted, shape = _joined(weighting, x, state, layout, window, chunk)
        first = shape.ahead + shape.held
        chunks = shape.total // chunk if window >= _LEAST_IN_CHUNKS else 0
        sizes = Windows(window, 0, 0, chunk, chunks, first)
        if 0 not in x.shape:
            element, nothing = new_statistics(x, False)
            table = _launch_chunk_sums(joined, sizes, scaling.centred)
            arrays = joined.x.array, table, joined.marks, output.target, nothing
            kernel = _windows(x.element, element, joined.missing)
            _launch(kernel, layout.steps, joined, arrays, (joined.sequences, sizes, scaling))
        steps = shape.steps + (0 if state is None else state.steps)
        count = min(window - 1, steps)
        after = contract.MovingState(steps, *_last_steps(joined, counted, layout.axis, count))
        return result(output, x, None), after


moving_step = functools.partial(masked_moving_step, None)
"""What `masked_moving_step` returns, where all steps of the chunk count."""


def _joined(
    weighting: Weighting | None,
    x: DeviceArray,
    state: contract.MovingState | None,
    layout: MovingLayout,
    window: int,
    chunk: int,
) -> tuple[Given, Any, Joined]:
    """Return the held steps followed by the steps of x, and which of them count.

    Zeros stand before them, in no window, so that they begin at a multiple of a chunk.
    """
    source = contiguous(x)
    values, kept, done = None, None, 0
    if state is not None:
        held = as_companion("state.values", state.values, x)
        done = checked_steps(state, held, x, layout.axis, window)
        values = x.lib.contiguous(held.array)
        kept = None if state.kept is None else _kept(state.kept, held.shape, x)
    before = min(window - 1, done)
    ahead = (done - before) % chunk
    sizes = Joined(layout.outer, ahead, before, layout.steps, layout.inner)
    absent = given(source, weighting, layout).absent
    if absent is None and kept is not None:
        absent = NOTHING_MISSING
    shape = list(x.shape)
    shape[layout.axis] = sizes.total
    array = x.lib.empty(x.array, tuple(shape), x.element.name)
    marks = Marks(None, None)
    if absent is not None:
        marks = Marks(*(x.lib.empty(x.array, tuple(shape), "bool") for _ in range(2)))
    count = math.prod(shape)
    if count:
        kernel = _joined_steps(x.element, absent is not None)
        arrays = values, kept, source.array, absent or NOTHING_MISSING, array, marks
        launch_threads(kernel, count, x, arrays, (sizes,))
    if absent is not None:
        absent = absent._replace(keep=marks.keep)
    sequences = Sequences(layout.outer, sizes.total, layout.inner)
    whole = with_array(x, array, shape=tuple(shape))
    return Given(whole, absent, sequences), marks.counted, sizes


def _kept(value: Any, shape: Shape, x: DeviceArray) -> Any:
    """Return which values of a state count, checked."""
    kept = as_mask_of("state.kept", value, x)
    if x.lib.shape(kept) != shape:
        got = x.lib.shape(kept)
        raise ValueError(f"state.kept must be a mask of {shape} values, got {got}")
    return x.lib.contiguous(kept)


def _last_steps(joined: Given, counted: Any, axis: int, count: int) -> tuple[Any, Any]:
    """Return copies of the last steps, and which of them count; None if all do."""
    x, shape = joined.x, list(joined.x.shape)
    shape[axis] = count
    values = x.lib.empty(x.array, tuple(shape), x.element.name)
    kept = x.lib.empty(x.array, tuple(shape), "bool") if joined.missing else None
    size = math.prod(shape)
    if size:
        kernel = _last(x.element, joined.missing)
        arrays = x.array, counted, values, kept
        launch_threads(kernel, size, x, arrays, (joined.sequences, count))
    return values, kept


def _sizes(layout: MovingLayout, windows: contract.Windows) -> Windows:
    """Return the windows, and chunks of about the root of a window: they depend on it alone."""
    begin, (window, shift, _, _) = ends_of(windows, layout.steps)
    if window < _LEAST_IN_CHUNKS:
        return Windows(window, shift, begin, 1, 0, 0)
    chunk = math.isqrt(window)
    return Windows(window, shift, begin, chunk, layout.steps // chunk, 0)


def _scaling(windows: contract.Windows) -> Scaling:
    return Scaling(float(windows.centred), float(windows.scaled), windows.eps)


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
    launch_threads(kernel, count, of_x.x, arrays, numbers)
