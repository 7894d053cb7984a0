"""Backend functions between the layers of a stack of recurrent cells."""

from collections.abc import Sequence

import numpy as np

from numnorm.backends.cpu.memory.host_arrays import Array


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
