"""What goes from one layer of recurrent cells to the next, and back, on the host."""

from collections.abc import Sequence

import numpy as np

from numnorm.backends.cpu.memory.host_arrays import Array


def to_time_major(x: Array, batch_first: bool) -> Array:
    """Return x, time and batch swapped if the batch comes first."""
    return x.swapaxes(0, 1) if batch_first else x


def concatenate(arrays: Sequence[Array]) -> Array:
    """Return arrays, whose last axes alone differ, as one."""
    return np.concatenate(arrays, axis=-1)


def split(array: Array, widths: Sequence[int]) -> list[Array]:
    """Return the arrays of these widths that stand side by side in one."""
    return np.split(array, np.cumsum(widths)[:-1], axis=-1)


def as_mask(mask: Array, array: Array) -> Array:
    """Return the mask itself."""
    return mask


def apply_mask(array: Array, mask: Array, factor: float) -> Array:
    """Return an array times a factor where the mask is true; half precision is rounded once."""
    # Not in place: a layer's output may be what it has saved.
    compute_type = np.result_type(array.dtype, np.float32)
    factors = np.multiply(mask, factor, dtype=compute_type)
    result: Array = (array * factors).astype(array.dtype, copy=False)
    return result


def add(one: Array, other: Array) -> Array:
    """Return the sum of two arrays."""
    result: Array = one + other
    return result
