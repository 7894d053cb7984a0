"""Conversion of the caller's arrays for kernels and of results for the caller."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.arguments import Shape, check_float, check_shape, result_dtype, wider_float
from numnorm.array_likes import as_plain_array, check_out
from numnorm.backends.cpu.memory.placement import address_of, empty_like, writable_alias
from numnorm.backends.cpu.simd.element_type import ElementType

Array = np.ndarray[Any, Any]
Order = tuple[int, ...] | None

_FLOAT64 = np.dtype(np.float64)
_FLOAT32 = np.dtype(np.float32)


def as_float_array(name: str, value: Any) -> Array:
    """Return an array of a supported float dtype; integers and bool become float64."""
    # Fast check: NumPy has a single object for each of these dtypes.
    if type(value) is np.ndarray and (value.dtype is _FLOAT32 or value.dtype is _FLOAT64):
        return value
    array = as_plain_array(name, value)
    return array.astype(result_dtype(name, array.dtype), copy=False)


def as_kernel_array(array: Array, element_type: ElementType, order: Order, shape: Shape) -> Array:
    """Return the array transposed by `order`, C-contiguous, in `shape`; copied only if needed."""
    if order is not None:
        array = array.transpose(order)
    if not array.flags.carray:
        flags = array.flags
        in_place = flags.c_contiguous and flags.aligned
        array = writable_alias(array) if in_place else np.array(array, order="C")
    if array.dtype is not element_type.storage_dtype:
        array = array.view(element_type.storage_dtype)
    return array if array.shape == shape else array.reshape(shape)


def as_parameter(
    name: str, value: Any, expected: Shape, meaning: str, compute_type: np.dtype[Any], shape: Shape
) -> Array:
    """Return gamma or beta, checked, in the compute dtype and in the kernel's shape."""
    array = value if type(value) is np.ndarray else as_plain_array(name, value)
    if array.shape != expected:
        check_shape(name, array.shape, expected, meaning)
    if array.dtype is not compute_type or not array.flags.carray:
        check_float(name, array.dtype)
        with np.errstate(all="ignore"):  # a float64 beyond float32 becomes infinite
            array = np.array(array, compute_type, order="C")
    return array if array.shape == shape else array.reshape(shape)


def both_or_neither(gamma: Array | None, beta: Array | None) -> tuple[Any, Any]:
    """Return gamma and beta; if one of them is None, it is filled with ones or zeros.

    This saves the compilation of two more kernels.
    """
    if gamma is None and beta is not None:
        gamma = np.ones_like(beta)
    elif beta is None and gamma is not None:
        beta = np.zeros_like(gamma)
    return gamma, beta


def as_statistic(name: str, value: Any, expected: Shape, meaning: str) -> Array:
    """Return a saved statistic, checked, as a 1-D float64 array."""
    if type(value) is np.ndarray and value.dtype is _FLOAT64 and value.shape == expected:
        if value.flags.carray:
            return value if value.ndim == 1 else value.reshape(-1)
    elif value is None:
        raise TypeError(f"{name} must be an array of shape {expected}, got None")
    return as_parameter(name, value, expected, meaning, _FLOAT64, (math.prod(expected),))


def like_input(name: str, value: Any, x: Array, of: str = "x") -> Array:
    """Return a gradient of the shape and dtype of x, which messages call `of`."""
    if type(value) is np.ndarray and value.dtype is x.dtype and value.shape == x.shape:
        return value
    array = as_float_array(name, value)
    if array.shape != x.shape:
        check_shape(name, array.shape, x.shape, f"the shape of {of}")
    return rounded(array, x.dtype)


def wider_dtype(name: str, value: Any, x: Array) -> np.dtype[Any] | None:
    """Return the dtype that holds all digits of x and of a gradient; None if x has it already."""
    if type(value) is np.ndarray and value.dtype is x.dtype:
        return None
    wide = wider_float(x.dtype, as_float_array(name, value).dtype)
    return None if wide == x.dtype else wide


def in_wider_dtype(
    wide: np.dtype[Any],
    x: Array,
    name: str,
    gamma: Any,
    shape: Shape,
    out: Any,
    backward: Callable[[Array, Any], tuple[Any, ...]],
) -> tuple[Array, Any, Any]:
    """Return the gradients ``backward(x, gamma)`` of x converted to `wide`, each rounded once.

    The conversion of x is exact. `name` is the name of x in messages, and `shape` that of gamma.
    """
    if out is not None:
        check_out(out, x, name)
    # Gradients get the dtype of gamma: ones of float64 keep them unrounded.
    dx, *gradients = backward(x.astype(wide), np.ones(shape) if gamma is None else gamma)
    if gamma is None:
        gradients = [None if a is None else rounded(a, x.dtype) for a in gradients]
    return rounded(dx, x.dtype, out), gradients[0], gradients[1]


def rounded(array: Array, dtype: np.dtype[Any], out: Any = None) -> Any:
    """Return a result in a dtype: in `out`, an array of that dtype, if that is given."""
    with np.errstate(all="ignore"):  # it may leave the range of the dtype
        result = array.astype(dtype, copy=False)
    if out is None:
        return result
    out[...] = result
    return out


def gradient_dtype(name: str, parameter: Any, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of a parameter's gradient: the parameter's, or `dtype` if it is None."""
    if parameter is None or getattr(parameter, "dtype", None) is dtype:
        return dtype
    return result_dtype(name, as_plain_array(name, parameter).dtype)


def output_like(
    source: Array,
    x: Array,
    name: str,
    out: Any,
    element_type: ElementType,
    order: Order,
    inputs: tuple[Any, ...],
) -> Array:
    """Return an output array like `source` for a kernel, in the memory of `out` if possible.

    `source` is x as the kernel reads it, `name` is the name of x in messages, and `inputs` are the
    other arrays that the kernel reads.
    """
    plain = type(out) is np.ndarray and out.dtype is x.dtype and out.shape == x.shape
    if not (plain and out.flags.carray):
        check_out(out, x, name)
    memory = out if order is None else out.transpose(order)
    if not memory.flags.carray or _clashes(memory, (source, *inputs)):
        return empty_like(source)
    if memory.dtype is element_type.storage_dtype and memory.shape == source.shape:
        return memory
    return as_kernel_array(memory, element_type, None, source.shape)


def result(target: Array, x: Array, out: Any, order: Order) -> Array:
    """Return the result `target` of a kernel as the caller gets it, in `out` if that is given."""
    if target is out or (out is not None and address_of(out) == address_of(target)):
        return out
    y = target if target.dtype is x.dtype else target.view(x.dtype)
    if order is not None:
        y = y.reshape([x.shape[a] for a in order]).transpose(np.argsort(order))
    elif y.shape != x.shape:
        y = y.reshape(x.shape)
    if out is None:
        return y
    out[...] = y
    return out


def _clashes(memory: Array, inputs: tuple[Any, ...]) -> bool:
    """Return whether writing to `memory` could change an input before the kernel reads it.

    Kernels read each element before they write the same element, so ``out=x`` is safe.
    """
    owned = memory.base is None
    for array in inputs:
        if array is memory or not isinstance(array, np.ndarray):
            continue
        owner = array if array.base is None else array.base
        if owned and owner is not memory and type(owner) is np.ndarray and owner.base is None:
            continue  # each owns its memory
        if np.may_share_memory(memory, array) and not _has_same_elements(memory, array):
            return True
    return False


def _has_same_elements(memory: Array, array: Array) -> bool:
    same_bytes = address_of(memory) == address_of(array) and memory.nbytes == array.nbytes
    return same_bytes and memory.itemsize == array.itemsize
