"""Array operations between layers of recurrent cells on a device: concatenate, dropout, add."""

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from numnorm.backends.contract.recurrent import SequenceLayout
from numnorm.backends.cuda.arrays.device_array import DeviceArray, as_float_array, with_array
from numnorm.backends.cuda.arrays.launch import launch_threads, on_device_of
from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import (
    Kernel,
    constant,
    cuda,
    load_flag,
    make_load_one,
    make_store_one,
)

# Kernels

_THREADS = 128


def make_moved(element: ElementType) -> Kernel:
    """Return the kernel that copies adjacent columns of an array's rows.

    It takes ``source, result`` as addresses; the number of elements ``count`` and of columns
    ``width`` to copy; the source's row width and first column, and those of the result.
    """
    load, store = make_load_one(element), make_store_one(element)

    def kernel(source, result, count, width, of_width, of_start, into_width, into_start):
        i = cuda.blockIdx.x * _THREADS + cuda.threadIdx.x
        if i < count:
            row = i // width
            column = i - row * width
            value = load(source, row * of_width + of_start + column)
            store(result, row * into_width + into_start + column, value)

    return Kernel(kernel, ("address",) * 2 + ("index",) * 6, _THREADS)


def make_masked(element: ElementType) -> Kernel:
    """Return the kernel that multiplies by a factor where a mask is true, and by 0 elsewhere.

    It takes ``source, mask, result`` as addresses, with a byte for each element of the mask; the
    number of elements ``count``; and the ``factor``.
    """
    load, store = make_load_one(element), make_store_one(element)
    zero = constant(element, 0.0)

    def kernel(source, mask, result, count, factor):
        i = cuda.blockIdx.x * _THREADS + cuda.threadIdx.x
        if i < count:
            # Multiply even by 0: an infinite or NaN element becomes NaN, and stays visible.
            store(result, i, load(source, i) * (factor if load_flag(mask, i) else zero))

    parameters = ("address",) * 3 + ("index",) + (element.compute_name,)
    return Kernel(kernel, parameters, _THREADS)


def make_added(element: ElementType) -> Kernel:
    """Return the kernel of a sum: ``one, other, result`` as addresses, and ``count``."""
    load, store = make_load_one(element), make_store_one(element)

    def kernel(one, other, result, count):
        i = cuda.blockIdx.x * _THREADS + cuda.threadIdx.x
        if i < count:
            store(result, i, load(one, i) + load(other, i))

    return Kernel(kernel, ("address",) * 3 + ("index",), _THREADS)


# Arrays between layers

_added, _masked, _moved = (functools.cache(make) for make in (make_added, make_masked, make_moved))


def to_time_major(x: DeviceArray, batch_first: bool) -> Any:
    """Return x as the caller's array, time and batch swapped if the batch comes first."""
    return x.lib.permuted(x.array, (1, 0, 2)) if batch_first else x.array


def concatenate(arrays: Sequence[Any]) -> Any:
    """Return the arrays concatenated along their last axis."""
    parts = [_contiguous(array) for array in arrays]
    like = parts[0]
    widths = [part.shape[-1] for part in parts]
    with on_device_of(like):
        result = _new(like, sum(widths))
        for part, width, start in zip(parts, widths, _starts(widths), strict=True):
            _copy_columns(part, result, width, (width, 0), (sum(widths), start))
    return result


def split(array: Any, widths: Sequence[int]) -> list[Any]:
    """Return the arrays of these widths of which `array` is the concatenation."""
    if len(widths) == 1:
        return [array]
    whole = _contiguous(array)
    results = []
    with on_device_of(whole):
        for width, start in zip(widths, _starts(widths), strict=True):
            results.append(_new(whole, width))
            _copy_columns(whole, results[-1], width, (whole.shape[-1], start), (width, 0))
    return results


def as_mask(mask: Any, array: Any) -> Any:
    """Return a copy of a NumPy mask on the device of an array."""
    x = as_float_array("y", array)
    with on_device_of(x):
        return x.lib.from_host(x.array, mask)


def apply_mask(array: Any, mask: Any, factor: float) -> Any:
    """Return an array times a factor where the mask is true, and times 0 elsewhere."""
    x = _contiguous(array)
    with on_device_of(x):
        result = _new(x, x.shape[-1])
        count = math.prod(x.shape)
        if count:
            kernel = _masked(x.element)
            launch_threads(kernel, count, x, (x.array, mask, result), (count, factor))
    return result


def add(one: Any, other: Any) -> Any:
    """Return the sum of two arrays, rounded once."""
    x, y = _contiguous(one), _contiguous(other)
    with on_device_of(x):
        result = _new(x, x.shape[-1])
        count = math.prod(x.shape)
        if count:
            kernel = _added(x.element)
            launch_threads(kernel, count, x, (x.array, y.array, result), (count,))
    return result


def _contiguous(array: Any) -> DeviceArray:
    x = as_float_array("y", array)
    with on_device_of(x):
        return with_array(x, x.lib.contiguous(x.array))


def _new(x: DeviceArray, width: int) -> Any:
    """Return a new array like x but of another width."""
    return x.lib.empty(x.array, (*x.shape[:-1], width), x.element.name)


def _starts(widths: Sequence[int]) -> list[int]:
    """Return the first column of each part of a concatenation."""
    return [0, *itertools.accumulate(widths)][:-1]


def _copy_columns(
    x: DeviceArray, result: Any, width: int, of: tuple[int, int], into: tuple[int, int]
) -> None:
    """Copy `width` columns; `of` and `into` are each array's row width and first column."""
    kernel = _moved(x.element)
    count = math.prod(x.shape[:-1]) * width
    if count:
        sizes = count, width, *of, *into
        launch_threads(kernel, count, x, (x.array, result), sizes)


# Dropout of inputs and of states, with one mask for all steps


def dropped(rows: Any, kept: Any, factor: float, layout: SequenceLayout) -> Any:
    """Return packed rows times the factor where an element is kept, else 0."""
    array = getattr(rows, "array", rows)
    mask = layout.rows(np.broadcast_to(kept, (layout.time, *kept.shape)))
    result = apply_mask(array, as_mask(np.ascontiguousarray(mask), array), factor)
    return with_array(rows, result) if isinstance(rows, DeviceArray) else result


def dropout_mask(kept: Any, factor: float, layout: SequenceLayout, x: DeviceArray) -> DeviceArray:
    """Return the factors of the states, in the order of the layout."""
    rows = kept if layout.order is None else kept[layout.order]
    factors = np.multiply(rows, factor, dtype=x.element.compute_type)
    with on_device_of(x):
        array = x.lib.from_host(x.array, factors)
    return with_array(x, array, name="recurrent_dropout", shape=factors.shape)
