"""Gather rows of an array on a device, in another order, of another type, or both.

If dy has another dtype than x, the gradients are those of copies in a dtype that holds both.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.arguments import Shape
from numnorm.backends.cuda.arrays.device_array import DeviceArray, output_like, result, with_array
from numnorm.backends.cuda.arrays.launch import launch_threads
from numnorm.backends.cuda.compiler.element_type import FLOAT32, FLOAT64, ElementType
from numnorm.backends.cuda.compiler.target import (
    Kernel,
    constant,
    cuda,
    load_index,
    make_load_one,
    make_store_one,
)

_THREADS = 128


def make_gather_rows(of: ElementType, into: ElementType) -> Kernel:
    """Return the kernel that gathers rows of an array.

    ``kernel(source, indices, others, result, count, width)`` takes four addresses and the numbers
    of elements of the result and of a row. Row i of the result is row ``indices[i]`` of the
    source; the indices are int32. For a negative index it is row i of the others, or zeros without
    others. Without indices the rows keep their order.
    """
    load = make_load_one(of)
    store = make_store_one(into)
    kind = into.compute_type
    zero = constant(into, 0.0)

    def kernel(source, indices, others, result, count, width):
        i = cuda.blockIdx.x * _THREADS + cuda.threadIdx.x
        if i < count:
            at = i
            if indices != 0:
                row = i // width
                index = load_index(indices, row)
                at = index * width + (i - row * width) if index >= 0 else -1
            if at >= 0:
                store(result, i, kind(load(source, at)))
            elif others != 0:
                store(result, i, kind(load(others, i)))
            else:
                store(result, i, zero)

    return Kernel(kernel, ("address",) * 4 + ("index",) * 2, _THREADS)


_gather_rows = functools.cache(make_gather_rows)


def gather_rows(
    x: DeviceArray, into: ElementType, shape: Shape, indices: Any = None, others: Any = None
) -> Any:
    """Return a new array of rows of x, which is C-contiguous.

    Row i of the result is row ``indices[i]`` of x; for a negative index it is row i of `others`,
    an array of the dtype of x, or zeros without others. The indices are an array on the host;
    without them the rows keep their order.
    """
    result = x.lib.empty(x.array, shape, into.name)
    write_rows(x, into, shape, result, indices, others)
    return result


def write_rows(
    x: DeviceArray,
    into: ElementType,
    shape: Shape,
    result: Any,
    indices: Any = None,
    others: Any = None,
) -> None:
    """Write the result of `gather_rows` to the beginning of an array, which may be larger."""
    count = math.prod(shape)
    kernel = _gather_rows(x.element, into)
    if not count:
        return
    if indices is not None:
        # JAX has no int64 unless it is enabled.
        indices = x.lib.from_host(x.array, indices.astype(np.int32))
    arrays = x.array, indices, others, result
    launch_threads(kernel, count, x, arrays, (count, shape[-1]))


# Gradients in a wider dtype


def in_wider_dtype(
    dy: DeviceArray, x: DeviceArray, out: Any, backward: Callable[..., tuple[Any, ...]]
) -> tuple[Any, ...]:
    """Return the gradients ``backward(dy, x, out)`` of arrays of one dtype, with dx in that of x.

    dy and x have different dtypes. Each gradient is rounded once.
    """
    wide = FLOAT64 if FLOAT64 in (dy.element, x.element) else FLOAT32
    dy = in_dtype(dy, wide)
    if wide == x.element:
        return backward(dy, x, out)
    output = output_like(x, None, out, ())
    source = in_dtype(x, wide)
    dx, *gradients = backward(dy, source, None)
    source = with_array(source, x.lib.contiguous(dx))
    write_rows(source, x.element, x.shape, output.target)
    return result(output, x, None), *gradients


def in_dtype(x: DeviceArray, into: ElementType) -> DeviceArray:
    """Return x with elements of another type, in new memory unless it has them."""
    if x.element == into:
        return x
    source = with_array(x, x.lib.contiguous(x.array))
    return with_array(x, gather_rows(source, into, x.shape), element=into)
