"""Rows of an array of a device, in another order, of another type, or both."""

import functools
import math
from typing import Any

import numpy as np

from numnorm.arguments import Shape
from numnorm.backends.cuda.arrays.device_array import DeviceArray
from numnorm.backends.cuda.arrays.gather_rows_kernel import make_taken_rows
from numnorm.backends.cuda.arrays.launch import queue
from numnorm.backends.cuda.compiler.element_type import Element

_taken_rows = functools.cache(make_taken_rows)


def taken_rows(
    x: DeviceArray, into: Element, shape: Shape, places: Any = None, others: Any = None
) -> Any:
    """Return a new array of rows of x, which is C-contiguous, each from its place.

    The `places` are an array of the host; a negative one stands for the same row of the `others`,
    which are of the element of x, and of zeros if there are none. Without places all rows are
    taken in turn.
    """
    result = x.owner.empty(x.array, shape, into.name)
    write_rows(x, into, shape, result, places, others)
    return result


def write_rows(
    x: DeviceArray, into: Element, shape: Shape, result: Any, places: Any = None, others: Any = None
) -> None:
    """Write what `taken_rows` returns to the beginning of an array that may be larger."""
    count, kernel = math.prod(shape), _taken_rows(x.element, into)
    if not count:
        return
    if places is not None:
        # Not every library has int64 at any time.
        places = x.owner.from_host(x.array, places.astype(np.int32))
    arrays = x.array, places, others, result
    queue(kernel, -(-count // kernel.threads), x, arrays, (count, shape[-1]))
