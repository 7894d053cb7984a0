"""Gather rows of an array on a device, in another order, of another type, or both."""

import functools
import math
from typing import Any

import numpy as np

from numnorm.arguments import Shape
from numnorm.backends.cuda.arrays.device_array import DeviceArray
from numnorm.backends.cuda.arrays.gather_rows_kernel import make_gather_rows
from numnorm.backends.cuda.arrays.launch import launch
from numnorm.backends.cuda.compiler.element_type import ElementType

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
    count, kernel = math.prod(shape), _gather_rows(x.element, into)
    if not count:
        return
    if indices is not None:
        # JAX has no int64 unless it is enabled.
        indices = x.lib.from_host(x.array, indices.astype(np.int32))
    arrays = x.array, indices, others, result
    launch(kernel, -(-count // kernel.threads), x, arrays, (count, shape[-1]))
