"""Padded sequences of a device as rows, and back; what a recurrent cell is given beside them.

Which row lies where is found on the host. All of this is done before and after the loop over the
steps.
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
)
from numnorm.backends.cuda.arrays.gather_rows import gather_rows
from numnorm.backends.cuda.arrays.launch import on_device_of
from numnorm.backends.cuda.compiler.element_type import ElementType, compute_element_type

_SWAPPED = (1, 0, 2)


def as_like(name: str, value: Any, x: DeviceArray) -> DeviceArray:
    """Return an array of a float dtype that must lie where x does."""
    return as_companion(name, value, x)


def pack_padded(
    x: DeviceArray, layout: SequenceLayout, batch_first: bool, like: DeviceArray | None
) -> DeviceArray:
    """Return the rows of padded sequences in the dtype that they are computed in."""
    element = compute_element_type(x.element) if like is None else like.element
    with on_device_of(x):
        source = dataclasses.replace(x, array=in_order(x, _SWAPPED if batch_first else None))
        shape = layout.count, x.shape[-1]
        array = _converted(source, element, shape, layout.indices)
    return dataclasses.replace(x, array=array, element=element, shape=shape)


def pad_packed(
    rows: Any,
    start: int,
    layout: SequenceLayout,
    batch_first: bool,
    x: DeviceArray,
    dtype: ElementType,
) -> Any:
    """Return an array of all sequences, of rows of the dtype of x that begin at one of an array."""
    library, shape = x.library, (layout.time, layout.batch, x.library.shape(rows)[1])
    with on_device_of(x):
        if layout.indices is None:
            rows = library.rows(rows, start, start + layout.count)
            found = _converted(dataclasses.replace(x, array=rows), dtype, shape)
        else:
            indices = np.full(layout.time * layout.batch, -1)
            indices[layout.indices] = start + np.arange(layout.count)
            found = gather_rows(dataclasses.replace(x, array=rows), dtype, shape, indices)
        return library.permuted(found, _SWAPPED) if batch_first else found


def cell_state(name: str, value: Any, shape: Shape, x: DeviceArray) -> DeviceArray:
    """Return a new array of a state, of the dtype of x; None stands for 0."""
    with on_device_of(x):
        if value is None:
            array = x.library.full(x.array, shape, x.element.name, 0.0)
        else:
            given = as_companion(name, value, x)
            check_shape(name, given.shape, shape, "that of the batch and the units")
            given = dataclasses.replace(given, array=x.library.contiguous(given.array))
            array = gather_rows(given, x.element, shape)
    return dataclasses.replace(x, name=name, array=array, shape=shape)


def sort_states(states: DeviceArray, layout: SequenceLayout) -> DeviceArray:
    """Return the states of the order of a layout."""
    if layout.order is None:
        return states
    shape = layout.order.size, states.shape[1]
    with on_device_of(states):
        array = gather_rows(states, states.element, shape, layout.order)
    return dataclasses.replace(states, array=array, shape=shape)


def unsort_states(
    states: Any, indices: Any, given: DeviceArray, layout: SequenceLayout, dtype: ElementType
) -> Any:
    """Return the states of the whole batch, those of the order from their places in an array."""
    source = dataclasses.replace(given, array=getattr(states, "array", states))
    if layout.order is not None:
        of_order = np.arange(layout.order.size) if indices is None else indices
        indices = np.full(layout.batch, -1)
        indices[layout.order] = of_order
    with on_device_of(given):
        return _converted(source, dtype, given.shape, indices, given.array)


def _converted(
    x: DeviceArray, into: ElementType, shape: Shape, indices: Any = None, others: Any = None
) -> Any:
    """Return `gather_rows`, but x itself in a shape where that is all that is asked for."""
    if indices is None and x.element == into:
        return x.library.reshaped(x.array, shape)
    return gather_rows(x, into, shape, indices, others)


def cell_parameter(
    name: str, value: Any, x: DeviceArray, check: Callable[[Shape], None]
) -> DeviceArray:
    """Return a parameter in the dtype of x, C-contiguous, its shape checked."""
    given = as_companion(name, value, x)
    check(given.shape)
    with on_device_of(x):
        source = dataclasses.replace(given, array=x.library.contiguous(given.array))
        array = _converted(source, x.element, given.shape)
    return dataclasses.replace(given, array=array, element=x.element)


def zoneout_mask(share: Any, layout: SequenceLayout, width: int, x: DeviceArray) -> DeviceArray:
    """Return what steps keep of each element: one share of all, or a host's array of them."""
    shape = layout.count, width
    with on_device_of(x):
        if isinstance(share, float):
            array = x.library.full(x.array, shape, x.element.name, share)
        else:
            # NumPy's generator draws, so that what is kept is the same on every device; it is
            # copied over, as the places of the rows are.
            rows = np.ascontiguousarray(layout.rows(share), x.element.compute_type)
            array = x.library.from_host(x.array, rows)
    return dataclasses.replace(x, name="zoneout", array=array, shape=shape)


def parameter_gradient(name: str, gradient: Any, parameter: Any, x: DeviceArray) -> Any:
    """Return a gradient in the dtype of its parameter: a copy, as some parameters share one."""
    given = as_float_array(name, parameter)
    with on_device_of(x):
        source = dataclasses.replace(given, array=gradient, element=x.element)
        if len(given.shape) == 1:
            # Of several biases the gradient is one sum: each of them gets memory of its own.
            return gather_rows(source, given.element, given.shape)
        return _converted(source, given.element, given.shape)
