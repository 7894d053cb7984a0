"""Exponential norms on device arrays, forward and backward, with missing steps."""

import functools
import math
from typing import Any

from numnorm.backends.contract import moving as contract
from numnorm.backends.contract.weighting import Weighting
from numnorm.backends.cuda.arrays.device_array import DeviceArray
from numnorm.backends.cuda.arrays.launch import launch
from numnorm.backends.cuda.compiler.element_type import FLOAT64, ElementType
from numnorm.backends.cuda.compiler.target import Kernel
from numnorm.backends.cuda.moving.arguments import Sequences, StepStatistics
from numnorm.backends.cuda.moving.arrays import Given, dx_of, given, normalized
from numnorm.backends.cuda.moving.exponential_kernels import (
    Decay,
    GradientArrays,
    Shares,
    make_exponential,
    make_exponential_gradients,
    make_shares,
)
from numnorm.backends.cuda.statistics.stored import float64_memory
from numnorm.layouts import MovingLayout

# From ``_FADED / alpha`` steps behind the first one on, the share of a step is alpha.
_FADED = 40.0

_exponential = functools.cache(make_exponential)
_exponential_gradients = functools.cache(make_exponential_gradients)
_share_table = functools.cache(make_shares)


def missing_exponential_forward(
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

    def launch_norm(of_x: Given, element: ElementType, y: Any, saved: StepStatistics) -> None:
        kernel = _exponential(of_x.x.element, element, of_x.missing)
        arrays = of_x.x.array, of_x.marks, y, saved
        _launch(kernel, of_x.x, of_x.sequences, arrays, (_weights(decay, layout),))

    return normalized(launch_norm, x, weighting, layout, out, save)


exponential_forward = functools.partial(missing_exponential_forward, None)
"""What `missing_exponential_forward` returns, where all steps count."""


def missing_exponential_backward(
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
        dy: DeviceArray, x: DeviceArray, saved: ElementType, statistics: StepStatistics, dx: Any
    ) -> None:
        of_x = given(x, weighting, layout)
        shares = _shares(of_x, decay)
        room = weights.initial * layout.outer * layout.inner
        table = float64_memory(x, room) if room else None
        arrays = GradientArrays(dy.array, x.array, statistics, of_x.marks, shares), dx, table
        kernel = _exponential_gradients(x.element, saved, of_x.missing)
        _launch(kernel, x, of_x.sequences, arrays, (weights,))

    return dx_of(launch_gradient, dy, x, mean, rstd, out)


exponential_backward = functools.partial(missing_exponential_backward, None)
"""What `missing_exponential_backward` returns, where all steps count."""


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
    launch(kernel, -(-count // kernel.threads), x, arrays, (sequences, *numbers))
