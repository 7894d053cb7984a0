"""From the caller's arrays to what the kernels take, and back: layout, element type, output."""

import math
from typing import Any

import numpy as np

from numnorm.arguments import check_float, check_shape, result_dtype
from numnorm.backends.cpu.memory import address_of, empty, writable_alias
from numnorm.backends.cpu.storage import Storage

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
Order = tuple[int, ...] | None


def as_float_array(name: str, value: Any) -> Array:
    """Return an array of a supported float dtype; integers and bool become float64."""
    array = value if type(value) is np.ndarray else _plain(name, value)
    dtype = result_dtype(name, array.dtype)
    return array if array.dtype is dtype or array.dtype == dtype else array.astype(dtype)


def _plain(name: str, value: Any) -> Array:
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name} must not be a masked array: fill or compress it first")
    try:
        return np.asarray(value)
    except (TypeError, ValueError):
        raise TypeError(
            f"{name} must be an array or turn into one, got an object of type "
            f"{type(value).__name__}"
        ) from None


def as_kernel_array(array: Array, storage: Storage, order: Order, shape: Shape) -> Array:
    """Return the array C-contiguous in `order` and `shape`, copied only if it lies otherwise."""
    if order is not None:
        array = array.transpose(order)
    if not array.flags.carray:
        flags = array.flags
        in_place = flags.c_contiguous and flags.aligned
        array = writable_alias(array) if in_place else np.array(array, order="C")
    if array.dtype != storage.container:
        array = array.view(storage.container)
    return array if array.shape == shape else array.reshape(shape)


def as_parameter(
    name: str, value: Any, expected: Shape, meaning: str, working: type, shape: Shape
) -> Array | None:
    """Return gamma or beta, checked, in the working type and in the kernel's shape."""
    if value is None:
        return None
    array = value if type(value) is np.ndarray else _plain(name, value)
    check_shape(name, array.shape, expected, meaning)
    check_float(name, array.dtype)
    if array.dtype != working or not array.flags.carray:
        array = np.array(array, working, order="C")
    return array if array.shape == shape else array.reshape(shape)


def as_statistic(name: str, value: Any, expected: Shape, meaning: str) -> Array:
    """Return a saved statistic, checked, as a 1-D float64 array."""
    array = as_parameter(name, value, expected, meaning, np.float64, (math.prod(expected),))
    if array is None:
        raise TypeError(f"{name} must be an array of shape {expected}, got None")
    return array


def like_input(name: str, value: Any, x: Array) -> Array:
    """Return a gradient of the shape of x in the dtype of x."""
    array = as_float_array(name, value)
    check_shape(name, array.shape, x.shape, "the shape of the input")
    return array.astype(x.dtype, copy=False)


def gradient_dtype(name: str, parameter: Any, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of a parameter's gradient: the parameter's own, or that of x."""
    if parameter is None:
        return dtype
    return result_dtype(name, np.asarray(parameter).dtype)


class Output:
    """The result of a call, and the contiguous memory that a kernel writes it to."""

    def __init__(
        self, out: Any, shape: Shape, dtype: np.dtype[Any], order: Order, inputs: tuple[Any, ...]
    ) -> None:
        arrays = [a for a in inputs if isinstance(a, np.ndarray)]
        permuted = shape if order is None else tuple(shape[a] for a in order)
        self._order = order
        self._out = None
        if out is not None:
            _check_out(out, shape, dtype)
            self._memory = out if order is None else out.transpose(order)
            if self._memory.flags.carray and not any(_clashes(self._memory, a) for a in arrays):
                return
            self._out = out
        self._memory = empty(permuted, dtype, *arrays)

    def target(self, storage: Storage, shape: Shape) -> Array:
        """Return the memory as a kernel takes it."""
        return as_kernel_array(self._memory, storage, None, shape)

    def finish(self) -> Array:
        """Return the result, after the kernel has written the memory."""
        result = self._memory
        if self._order is not None:
            result = result.transpose(np.argsort(self._order))
        if self._out is None:
            return result
        self._out[...] = result
        return self._out


def _check_out(out: Any, shape: Shape, dtype: np.dtype[Any]) -> None:
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out must be a numpy.ndarray, got an object of type {type(out).__name__}")
    check_shape("out", out.shape, shape, "the shape of x")
    if out.dtype != dtype:
        raise TypeError(f"out must have dtype {dtype}, that of the result, got {out.dtype}")
    if not out.flags.writeable:
        raise ValueError("out must be writable, got a read-only array")


def _clashes(memory: Array, source: Array) -> bool:
    """Return whether writing here could change an input before it has been read.

    The kernels read each element before they write the same one, so an input with the very same
    elements in the same places is safe: that is ``out=x``.
    """
    if not np.may_share_memory(memory, source):
        return False
    return address_of(memory) != address_of(source) or memory.nbytes != source.nbytes
