"""Exponential norms on device arrays, forward and backward, with missing steps."""

import functools
import math
from typing import Any

from numnorm.arguments import Shape
from numnorm.backends.contract import moving as contract
from numnorm.backends.contract.weighting import Weighting
from numnorm.backends.cuda.arrays.device_array import DeviceArray, as_parameter
from numnorm.backends.cuda.arrays.known_calls import repeats
from numnorm.backends.cuda.arrays.launch import launch_threads, on_device_of
from numnorm.backends.cuda.compiler.element_type import FLOAT64, ElementType
from numnorm.backends.cuda.compiler.target import Kernel
from numnorm.backends.cuda.moving.arguments import Sequences, StepStatistics
from numnorm.backends.cuda.moving.arrays import Given, dx_of, normalized
from numnorm.backends.cuda.moving.exponential_kernels import (
    NO_PAST,
    NO_STREAM,
    Decay,
    GradientArrays,
    Past,
    Shares,
    Stream,
    make_exponential,
    make_exponential_gradients,
    make_shares,
)
from numnorm.backends.cuda.statistics.stored import (
    Statistic,
    float64_memory,
    handed_out,
    in_float64,
    new_statistic,
    zero_statistic,
)
from numnorm.layouts import MovingLayout

# From ``_FADED / alpha`` steps behind the first one on, the share of a step is alpha.
_FADED = 40.0

_exponential = functools.cache(make_exponential)
_exponential_gradients = functools.cache(make_exponential_gradients)
_share_table = functools.cache(make_shares)


@repeats("weighting", "out")
def masked_exponential_forward(
    weighting: Weighting | None,
    x: DeviceArray,
    layout: MovingLayout,
    decay: contract.Decay,
    out: Any,
    save: bool,
) -> tuple[Any, Any, Any]:
    """Return y and, if `save` is true, mean and rstd of each step.

    The statistics are those of the steps that a weighting keeps; None keeps all.
    """
    return _exponential_forward(weighting, x, layout, decay, out, save, NO_STREAM)


def _exponential_forward(
    weighting: Weighting | None,
    x: DeviceArray,
    layout: MovingLayout,
    decay: contract.Decay,
    out: Any,
    save: bool,
    stream: Stream,
) -> tuple[Any, Any, Any]:
    def launch_norm(of_x: Given, element: ElementType, y: Any, saved: StepStatistics) -> None:
        kernel = _exponential(of_x.x.element, element, of_x.missing)
        arrays = of_x.x.array, of_x.marks, y, saved, stream
        _launch(kernel, of_x.x, of_x.sequences, arrays, (_weights(decay, layout),))

    return normalized(launch_norm, x, weighting, layout, out, save, stream.before)


exponential_forward = functools.partial(masked_exponential_forward, None)
"""What `masked_exponential_forward` returns, where all steps count."""


@repeats("weighting", "dy", "mean", "rstd", "out")
def masked_exponential_backward(
    weighting: Weighting | None,
    dy: Any,
    x: DeviceArray,
    mean: Any,
    rstd: Any,
    layout: MovingLayout,
    decay: contract.Decay,
    out: Any,
) -> Any:
    """Return dx, for statistics of the steps that a weighting keeps; None keeps all."""
    weights = _weights(decay, layout)

    def launch_gradient(
        dy: DeviceArray, of_x: Given, saved: ElementType, statistics: StepStatistics, dx: Any
    ) -> None:
        shares = _shares(of_x, decay)
        room = weights.initial * layout.outer * layout.inner
        table = float64_memory(of_x.x, room) if room else None
        arrays = GradientArrays(dy.array, of_x.x.array, statistics, of_x.marks, shares), dx, table
        kernel = _exponential_gradients(of_x.x.element, saved, of_x.missing)
        _launch(kernel, of_x.x, of_x.sequences, arrays, (weights,))

    return dx_of(launch_gradient, weighting, dy, x, mean, rstd, layout, out)


exponential_backward = functools.partial(masked_exponential_backward, None)
"""What `masked_exponential_backward` returns, where all steps count."""


# Chunk by chunk


@repeats("weighting", "state", "out")
def masked_exponential_step(
    weighting: Weighting | None,
    x: DeviceArray,
    state: contract.ExponentialState | None,
    layout: MovingLayout,
    decay: contract.Decay,
    out: Any,
    save: bool,
) -> tuple[tuple[Any, Any, Any], contract.ExponentialState]:
    """Return the results for the next chunk, and the state after it."""
    shape = x.shape[: layout.axis] + x.shape[layout.axis + 1 :]
    channels, names = math.prod(shape), contract.ExponentialState._fields[:-1]
    with on_device_of(x):
        before = None if state is None else _statistics(state, x, shape)
        if 0 in x.shape:
            after = before or [zero_statistic(name, x, channels) for name in names]
        else:
            after = [new_statistic(name, x, channels) for name in names]
    stream = Stream(
        NO_PAST if before is None else Past(*(each.array for each in before)),
        Past(*(each.array for each in after)),
    )
    results = _exponential_forward(weighting, x, layout, decay, out, save, stream)
    with on_device_of(x):
        arrays = (x.lib.reshaped(handed_out(each), shape) for each in after)
        return results, contract.ExponentialState(*arrays)


exponential_step = functools.partial(masked_exponential_step, None)
"""What `masked_exponential_step` returns, where all steps count."""


def _statistics(state: contract.ExponentialState, x: DeviceArray, shape: Shape) -> list[Statistic]:
    """Return the fields of a state, one number for each channel, in float64."""
    fields = []
    for name, value in list(state._asdict().items())[:-1]:  # not its time, which no stream here has
        given = as_parameter(f"state.{name}", value, shape, "one for each channel", x)
        flat = (math.prod(shape),)
        fields.append(
            in_float64(Statistic(name, given.array, x.lib, given.element, flat, x.device, x))
        )
    return fields


def _weights(decay: contract.Decay, layout: MovingLayout) -> Decay:
    initial = min(decay.initial, layout.steps)
    return Decay(decay.alpha, int(decay.adjust), initial, decay.eps)


def _shares(of_x: Given, decay: contract.Decay) -> Shares:
    """Return the shares of each channel's steps, or of all channels' if none is missing."""
    sequences, known = of_x.sequences, 0
    if not of_x.missing:
        known = min(sequences.steps, math.ceil(_FADED / decay.alpha) if decay.adjust else 1)
        sequences = Sequences(1, known, 1)
    table = float64_memory(of_x.x, 2 * math.prod(sequences))
    kernel = _share_table(of_x.x.element if of_x.missing else FLOAT64, of_x.missing)
    arrays = of_x.x.array, of_x.marks, table
    _launch(kernel, of_x.x, sequences, arrays, (decay.alpha, int(decay.adjust)))
    return Shares(table, known)


def _launch(
    kernel: Kernel,
    x: DeviceArray,
    sequences: Sequences,
    arrays: tuple[Any, ...],
    numbers: tuple[Any, ...],
) -> None:
    """Launch a kernel with one thread for each channel."""
    count = sequences.outer * sequences.inner
    launch_threads(kernel, count, x, arrays, (sequences, *numbers))
