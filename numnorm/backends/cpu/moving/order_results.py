"""What kernels of order statistics in moving windows share: their arguments and their results."""

from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.order.selection import times
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.formulas import order

# By what the deviations from the median are divided.
UNSCALED, DEVIATION, QUANTILES = range(3)


between, _quantile_place = inlined(order.between), inlined(order.quantile_place)


@inlined
def unpacked(numbers, options):
    """Return the tuples shape, blocks, windows, flags and method, read from the two arrays.

    ``blocks`` are the number of groups, the number of stretches of a channel (a group is one of
    them), the number of windows of a stretch, and the number of steps that are ranked at once.
    ``windows`` are the end of the first window, and what `contract.moving.ends_of` returns.
    ``flags`` are what the scale is, and whether there is a mask.
    ``method`` are the two quantiles, and alpha, beta and rounding of `formulas.order`.
    """
    shape = numbers[0], numbers[1], numbers[2]
    blocks = numbers[3], numbers[4], numbers[5], numbers[6]
    windows = numbers[7], numbers[8], numbers[9], numbers[10], numbers[11]
    flags = numbers[12], numbers[13]
    method = options[0], options[1], options[4], options[5], numbers[14]
    return shape, blocks, windows, flags, method


@inlined
def stretch_of(group, shape, blocks, begin):
    """Return where the channel of a group begins, and between which ends of windows it lies."""
    _, steps, inner = shape
    _, stretches, stretch, _ = blocks
    outer, k = group // (stretches * inner), group // inner % stretches
    first = begin + k * stretch
    return outer * steps * inner + group % inner, first, min(first + stretch, steps)


@inlined
def places_of(count, method):
    """Return the places of the median and of the two quantiles of so many values."""
    low, high, alpha, beta, rounding = method
    number = np.float64(count)
    return (
        _quantile_place(number, 0.5, alpha, beta, rounding, times),
        _quantile_place(number, low, alpha, beta, rounding, times),
        _quantile_place(number, high, alpha, beta, rounding, times),
    )


@inlined
def value_at(x, keep, masked, i):
    """Return whether an element counts, and its value, of which 0 has no sign."""
    return masked == 0 or keep[i] != 0, np.float64(x[i]) + 0.0


@inlined
def distance(lower, upper):
    """Return the distance of two quantiles; 0 for equal ones, infinite ones too."""
    return 0.0 if lower == upper else upper - lower


@inlined
def divisor_of(scale, kind, options):
    """Return by what deviations are divided, with the factor and eps of the options."""
    return scale if kind == UNSCALED else scale * options[2] + options[3]


@inlined
def outputs_of(end, last, windows):
    """Return the first of the steps whose window ends with `end`, and the step after them.

    `last` is the last step.
    """
    begin, _, shift, early, late = windows
    low = end + shift - (early if end == begin else 0)
    high = end + shift + 1 + (late if end == last else 0)
    return low, high


def make_put(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``put(arrays, place, given, found)``.

    It stores the results of the steps of a window. ``place`` are the index of the channel and the
    end of the window, and ``given`` are shape, windows, flags and options. ``found`` are the median
    and the scale, which are not stored in arrays without elements.
    """
    stored = np.float32 if element_type.name == "float32" else np.float64

    @inlined
    def put(arrays, place, given, found):
        x, y, median, scales = arrays
        (channel, end), (shape, windows, flags, options) = place, given
        center, scale = found
        divisor = divisor_of(scale, flags[0], options)
        low, high = outputs_of(end, shape[1] - 1, windows)
        for step in range(low, high):
            i = channel + step * shape[2]
            deviation = np.float64(x[i]) - center
            y[i] = stored(deviation / divisor if divisor != 0.0 else 0.0)
            if median.size > 0:
                median[i] = center
                scales[i] = scale

    return put
