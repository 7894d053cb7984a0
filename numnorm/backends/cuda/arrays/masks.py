"""Masks and weights of device arrays: checks, and the memory that kernels read."""

import math
from typing import Any

import numpy as np

from numnorm.arguments import Shape
from numnorm.array_likes import is_on_device
from numnorm.backends.cuda.arrays.device_array import (
    DeviceArray,
    Order,
    as_float_array,
    check_stream,
)
from numnorm.backends.cuda.arrays.libraries import library_of


def as_mask_of(name: str, value: Any, x: DeviceArray) -> Any:
    """Return the caller's mask on the device of x, checked."""
    _check_place(name, value, x)
    kind = x.lib.dtype_name(value)
    if kind != "bool":
        raise TypeError(f"{name} must have dtype bool on a device, got {kind}: use mask != 0")
    return value


def as_weights_of(name: str, value: Any, x: DeviceArray, shape: Shape) -> Any:
    """Return the caller's weights on the device of x, checked, in another shape."""
    _check_place(name, value, x)
    if as_float_array(name, value).shape == shape:
        return value
    return x.lib.reshaped(x.lib.contiguous(value), shape)


def _check_place(name: str, value: Any, x: DeviceArray) -> None:
    if library_of(type(value)) is not x.lib or x.lib.device(value) != x.device:  # type: ignore[arg-type]
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise TypeError(
            f"{name} must lie on the host, or be a {x.lib.label} on device {x.device}, as {x.name} "
            f"is, got {kind}"
        )
    check_stream(name, value, x)


def in_rows(values: Any, x: DeviceArray, order: Order, rows: int, width: int) -> tuple[Any, int]:
    """Return values that broadcast against x in C-contiguous memory, and the step of a row."""
    if values is None:
        return None, 0
    if not is_on_device(values):
        values = x.lib.from_host(x.array, _in_dtype_of(x, values))
    shape = x.lib.shape(values)
    shape = (1,) * (len(x.shape) - len(shape)) + shape
    axes = range(len(shape)) if order is None else order
    moved, full = [shape[a] for a in axes], [x.shape[a] for a in axes]
    ahead = _leading(full, rows)
    is_one_row = ahead is not None and moved == [1] * ahead + full[ahead:]
    if is_one_row or moved == full:
        values = x.lib.reshaped(x.lib.contiguous(values), shape)
    else:
        values = x.lib.broadcast(values, x.shape)
    values = values if order is None else x.lib.permuted(values, order)
    return x.lib.contiguous(values), 0 if is_one_row else width


def _in_dtype_of(x: DeviceArray, values: Any) -> Any:
    """Return a mask of the host, or weights in a dtype that the library of x has."""
    if values.dtype != np.bool_:
        values = values.astype(x.lib.statistic_name("float64"), copy=False)
    return np.ascontiguousarray(values)


def _leading(shape: list[int], rows: int) -> int | None:
    """Return how many of the first axes have `rows` elements together; None if no number has."""
    counts = range(len(shape) + 1)
    return next((k for k in counts if math.prod(shape[:k]) == rows), None)
