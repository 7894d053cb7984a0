"""Backend functions around the passes: sequences, states, parameters, masks, layers of a stack.

The rows of packed sequences are ordered by step; within a step, by sequence, longest first.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from numnorm.arguments import Shape, check_float, check_shape
from numnorm.array_likes import as_plain_array
from numnorm.backends.contract.recurrent import SequenceLayout
from numnorm.backends.cpu.memory.host_arrays import Array, as_float_array, rounded
from numnorm.backends.cpu.simd.element_type import element_type_of

# Sequences, states and parameters


def as_like(name: str, value: Any, x: Array) -> Array:
    """Return a host array of a float dtype."""
    return as_float_array(name, value)


def pack_padded(x: Array, layout: SequenceLayout, batch_first: bool, like: Array | None) -> Array:
    """Return the rows of padded sequences, in the compute dtype or the dtype of `like`."""
    dtype = element_type_of(x.dtype).compute_dtype if like is None else like.dtype
    rows: Array = layout.rows(np.ascontiguousarray(x.swapaxes(0, 1) if batch_first else x, dtype))
    return rows


def pad_packed(
    rows: Array, start: int, layout: SequenceLayout, batch_first: bool, x: Array, dtype: Any
) -> Array:
    """Return the padded sequences of ``rows[start:]``, 0 beyond the end of each sequence."""
    rows = rows[start:]
    if layout.indices is not None:
        flat = np.zeros((layout.time * layout.batch, rows.shape[1]), rows.dtype)
        flat[layout.indices] = rows
        rows = flat
    padded = rows.reshape(layout.time, layout.batch, rows.shape[1])
    result: Array = rounded(padded.swapaxes(0, 1) if batch_first else padded, dtype)
    return result


def cell_state(name: str, value: Any, shape: Shape, x: Array, batched: bool = True) -> Array:
    """Return a new array of a state in the dtype of x; None stands for 0."""
    if value is None:
        return np.zeros(shape, x.dtype)
    array = as_float_array(name, value)
    if batched:
        check_shape(name, array.shape, shape, "that of the batch and the units")
    else:
        check_shape(name, array.shape, shape[1:], "that of the units")
    with np.errstate(all="ignore"):  # a float64 beyond float32 becomes infinite
        return np.array(array, x.dtype, order="C").reshape(shape)


def sort_states(states: Array, layout: SequenceLayout) -> Array:
    """Return the states sorted by length, longest first, without empty sequences."""
    return states if layout.order is None else states[layout.order]


def unsort_states(
    states: Array, indices: Any, given: Array, layout: SequenceLayout, dtype: Any
) -> Array:
    """Return the states in the order of the batch.

    ``states[indices]`` (`states` itself if `indices` is None) has one row for each nonempty
    sequence, in the order of the layout. Empty sequences are filled from `given`.
    """
    result = states if indices is None else states[indices]
    if layout.order is not None:
        whole = given.copy()
        whole[layout.order] = result
        result = whole
    converted: Array = rounded(result, dtype)
    return converted


def cell_parameter(name: str, value: Any, x: Array, check: Callable[[Shape], None]) -> Array:
    """Return a parameter in the dtype of x, C-contiguous, its shape checked."""
    array = value if type(value) is np.ndarray else as_plain_array(name, value)
    check(array.shape)
    if array.dtype is x.dtype and array.flags.c_contiguous:
        return array
    check_float(name, array.dtype)
    with np.errstate(all="ignore"):  # a float64 beyond float32 becomes infinite
        return np.ascontiguousarray(array, x.dtype)


def zoneout_mask(probability: Any, layout: SequenceLayout, width: int, x: Array) -> Array:
    """Return the zoneout mask of each row, from one value or an array (time, batch, width)."""
    if isinstance(probability, float):
        return np.full((layout.count, width), probability, x.dtype)
    return np.ascontiguousarray(layout.rows(probability), x.dtype)


def parameter_gradient(name: str, gradient: Any, parameter: Any, x: Array) -> Array:
    """Return a gradient in the shape and dtype of its parameter; float64 for integers."""
    like = as_plain_array(name, parameter)
    dtype = np.dtype(np.float64) if like.dtype.kind in "biu" else like.dtype
    # Parameters that are only added share one gradient, so vectors are copied.
    gradient = np.asarray(gradient).reshape(like.shape)
    with np.errstate(all="ignore"):  # a sum may leave the range of the dtype
        result: Array = gradient.astype(dtype, copy=gradient.ndim < 2)
    return result


# Parameters that are packed once for many calls


def packed_like(beside: Array, dtype: Any) -> Array:
    """Return an empty array of the compute dtype of `dtype`."""
    return np.empty(0, element_type_of(dtype).compute_dtype)


def copied_parameter(name: str, value: Any, x: Array) -> Array:
    """Return a copy of a parameter."""
    return as_plain_array(name, value).copy()


def check_packed(parameter: Any, x: Array) -> None:
    """Do nothing: every array of this backend lies on the host."""


# Between the layers of a stack


def to_time_major(x: Array, batch_first: bool) -> Array:
    """Return x, with its time and batch axes swapped if `batch_first`."""
    return x.swapaxes(0, 1) if batch_first else x


def concatenate(arrays: Sequence[Array]) -> Array:
    """Concatenate arrays along the last axis."""
    return np.concatenate(arrays, axis=-1)


def split(array: Array, widths: Sequence[int]) -> list[Array]:
    """Split an array along the last axis into arrays of these widths."""
    return np.split(array, np.cumsum(widths)[:-1], axis=-1)


def as_mask(mask: Array, array: Array) -> Array:
    """Return the mask: it needs no conversion here."""
    return mask


def apply_mask(array: Array, mask: Array, factor: float) -> Array:
    """Return ``array * mask * factor``, computed in float32 at least and rounded once."""
    # Not in place: the layer may have saved its output.
    compute_type = np.result_type(array.dtype, np.float32)
    factors = np.multiply(mask, factor, dtype=compute_type)
    with np.errstate(all="ignore"):  # as in kernels: a product may leave the range
        result: Array = (array * factors).astype(array.dtype, copy=False)
    return result


def add(one: Array, other: Array) -> Array:
    """Return the sum of two arrays."""
    with np.errstate(all="ignore"):
        result: Array = one + other
    return result


# Dropout of inputs and of states, with one mask for all steps


def dropped(rows: Array, kept: Array, factor: float, layout: SequenceLayout) -> Array:
    """Return packed rows times the factor where an element is kept, else 0."""
    mask = np.broadcast_to(kept, (layout.time, *kept.shape))
    return apply_mask(rows, layout.rows(mask), factor)


def dropout_mask(kept: Array, factor: float, layout: SequenceLayout, x: Array) -> Array:
    """Return the factors of the states, in the order of the layout."""
    return np.multiply(sort_states(kept, layout), factor, dtype=x.dtype)
