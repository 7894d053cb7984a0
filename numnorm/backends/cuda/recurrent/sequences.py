"""Packing of padded sequences on a device into rows, and back; states and parameters of a cell.

The host computes the rows' indices. All of this runs before or after the loop over the steps, or
once for many calls, if parameters are packed.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.arguments import Shape, check_shape
from numnorm.backends.contract.recurrent import SequenceLayout
from numnorm.backends.cuda.arrays.device_array import (
    DeviceArray,
    as_companion,
    as_float_array,
    in_order,
    with_array,
)
from numnorm.backends.cuda.arrays.gather_rows import gather_rows
from numnorm.backends.cuda.arrays.launch import on_device_of
from numnorm.backends.cuda.compiler.element_type import (
    ELEMENT_TYPES,
    ElementType,
    compute_element_type,
)

_SWAPPED = (1, 0, 2)


def as_like(name: str, value: Any, x: DeviceArray) -> DeviceArray:
    """Return an array of a float dtype, which must be in the library and on the device of x."""
    return as_companion(name, value, x)


def pack_padded(
    x: DeviceArray, layout: SequenceLayout, batch_first: bool, like: DeviceArray | None
) -> DeviceArray:
    """Return the rows of padded sequences in their compute dtype, or in the dtype of `like`."""
    element = compute_element_type(x.element) if like is None else like.element
    with on_device_of(x):
        source = with_array(x, in_order(x, _SWAPPED if batch_first else None))
        shape = layout.count, x.shape[-1]
        array = _converted(source, element, shape, layout.indices)
    return with_array(x, array, element=element, shape=shape)


def pad_packed(
    rows: Any,
    start: int,
    layout: SequenceLayout,
    batch_first: bool,
    x: DeviceArray,
    dtype: ElementType,
) -> Any:
    """Return the padded array of the rows from index `start` on, which have the dtype of x."""
    library = x.lib
    shape = (layout.time, layout.batch, x.lib.shape(rows)[1])
    with on_device_of(x):
        if layout.indices is None:
            rows = library.rows(rows, start, start + layout.count)
            padded = _converted(with_array(x, rows), dtype, shape)
        else:
            indices = np.full(layout.time * layout.batch, -1)
            indices[layout.indices] = start + np.arange(layout.count)
            padded = gather_rows(with_array(x, rows), dtype, shape, indices)
        return library.permuted(padded, _SWAPPED) if batch_first else padded


def cell_state(
    name: str, value: Any, shape: Shape, x: DeviceArray, batched: bool = True
) -> DeviceArray:
    """Return a copy of a state in the dtype of x; None stands for 0."""
    with on_device_of(x):
        if value is None:
            array = x.lib.full(x.array, shape, x.element.name, 0.0)
        else:
            given = as_companion(name, value, x)
            if batched:
                check_shape(name, given.shape, shape, "that of the batch and the units")
            else:
                check_shape(name, given.shape, shape[1:], "that of the units")
            given = with_array(given, x.lib.contiguous(given.array))
            array = gather_rows(given, x.element, shape)
    return with_array(x, array, name=name, shape=shape)


def sort_states(states: DeviceArray, layout: SequenceLayout) -> DeviceArray:
    """Return the states in the order of a layout."""
    if layout.order is None:
        return states
    shape = layout.order.size, states.shape[1]
    with on_device_of(states):
        array = gather_rows(states, states.element, shape, layout.order)
    return with_array(states, array, shape=shape)


def unsort_states(
    states: Any, indices: Any, given: DeviceArray, layout: SequenceLayout, dtype: ElementType
) -> Any:
    """Return the states in the order of the batch.

    ``states[indices]`` (`states` itself if `indices` is None) has one row for each nonempty
    sequence, in the order of the layout. Empty sequences are filled from `given`.
    """
    array = getattr(states, "array", states)
    if layout.order is None and indices is not None and (np.diff(indices) == 1).all():
        # The last rows of sequences of one length. The host may wait where it copies indices.
        start = int(indices[0]) if indices.size else 0
        with on_device_of(given):
            rows = given.lib.rows(array, start, start + indices.size)
            return gather_rows(with_array(given, rows), dtype, given.shape)
    source = with_array(given, array)
    if layout.order is not None:
        sorted_indices = np.arange(layout.order.size) if indices is None else indices
        indices = np.full(layout.batch, -1)
        indices[layout.order] = sorted_indices
    with on_device_of(given):
        return _converted(source, dtype, given.shape, indices, given.array)


def _converted(
    x: DeviceArray, into: ElementType, shape: Shape, indices: Any = None, others: Any = None
) -> Any:
    """Return `gather_rows`, but x itself, reshaped, if only the shape changes."""
    if indices is None and x.element == into:
        return x.lib.reshaped(x.array, shape)
    return gather_rows(x, into, shape, indices, others)


def cell_parameter(
    name: str, value: Any, x: DeviceArray, check: Callable[[Shape], None]
) -> DeviceArray:
    """Return a parameter in the dtype of x, C-contiguous, its shape checked."""
    given = as_companion(name, value, x)
    check(given.shape)
    if given.element == x.element and x.lib.is_contiguous(given.array):
        return given
    with on_device_of(x):
        source = with_array(given, x.lib.contiguous(given.array))
        array = _converted(source, x.element, given.shape)
    return with_array(given, array, element=x.element)


def zoneout_mask(
    probability: Any, layout: SequenceLayout, width: int, x: DeviceArray
) -> DeviceArray:
    """Return the zoneout mask of each row: one number for all elements, or a NumPy array."""
    shape = layout.count, width
    with on_device_of(x):
        if isinstance(probability, float):
            array = x.lib.full(x.array, shape, x.element.name, probability)
        else:
            # NumPy's generator draws the mask, so it is the same on every device.
            rows = np.ascontiguousarray(layout.rows(probability), x.element.compute_type)
            array = x.lib.from_host(x.array, rows)
    return with_array(x, array, name="zoneout", shape=shape)


def parameter_gradient(name: str, gradient: Any, parameter: Any, x: DeviceArray) -> Any:
    """Return a gradient in the dtype of its parameter."""
    given = as_float_array(name, parameter)
    with on_device_of(x):
        source = with_array(given, gradient, element=x.element)
        if len(given.shape) == 1:
            # Several biases share one gradient: each of them gets a copy.
            return gather_rows(source, given.element, given.shape)
        return _converted(source, given.element, given.shape)


# Parameters that are packed once for many calls


def packed_like(beside: DeviceArray, dtype: Any) -> DeviceArray:
    """Return the array `beside` with the compute dtype of an x of a NumPy dtype."""
    element = compute_element_type(ELEMENT_TYPES[dtype.name])
    if element.name == "float64" != beside.lib.statistic_name("float64"):
        raise TypeError(f"dtype must not be float64, of which there is no {beside.lib.label} now")
    return dataclasses.replace(beside, element=element)


def copied_parameter(name: str, value: Any, x: DeviceArray) -> Any:
    """Return a copy of a parameter, in its own library and dtype."""
    given = as_companion(name, value, x)
    with on_device_of(x):
        source = with_array(given, x.lib.contiguous(given.array))
        return gather_rows(source, given.element, given.shape)


def check_packed(parameter: Any, x: DeviceArray) -> None:
    """Raise unless a packed parameter is in the library and on the device of x."""
    packed = as_float_array("parameters", parameter)
    wanted, got = (f"a {a.lib.label} on device {a.device}" for a in (x, packed))
    if wanted != got:
        raise TypeError(f"parameters must be packed for {wanted}, as x is, got those for {got}")
    as_companion("parameters", parameter, x)  # its other checks, e.g. of streams
