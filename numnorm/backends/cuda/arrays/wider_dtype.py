"""The gradients for a dy of another dtype than x: computed in a dtype that holds both exactly."""

import dataclasses
from collections.abc import Callable
from typing import Any

from numnorm.backends.cuda.arrays.device_array import DeviceArray, output_like, result
from numnorm.backends.cuda.arrays.gather_rows import gather_rows, write_rows
from numnorm.backends.cuda.compiler.element_type import FLOAT32, FLOAT64, ElementType


def in_wider_dtype(
    dy: DeviceArray, x: DeviceArray, out: Any, backward: Callable[..., tuple[Any, ...]]
) -> tuple[Any, ...]:
    """Return the gradients ``backward(dy, x, out)`` of arrays of one dtype, with dx in that of x.

    dy and x have different dtypes. Each gradient is rounded once.
    """
    wide = FLOAT64 if FLOAT64 in (dy.element, x.element) else FLOAT32
    dy = _in_dtype(dy, wide)
    if wide == x.element:
        return backward(dy, x, out)
    output, source = output_like(x, None, out, ()), _in_dtype(x, wide)
    dx, *gradients = backward(dy, source, None)
    source = dataclasses.replace(source, array=x.lib.contiguous(dx))
    write_rows(source, x.element, x.shape, output.target)
    return result(output, x, None), *gradients


def _in_dtype(x: DeviceArray, into: ElementType) -> DeviceArray:
    if x.element == into:
        return x
    source = dataclasses.replace(x, array=x.lib.contiguous(x.array))
    return dataclasses.replace(x, array=gather_rows(source, into, x.shape), element=into)
