"""The samples of each label of a device array, with the array library's own functions."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from numnorm.arguments import Shape
from numnorm.array_likes import is_on_device
from numnorm.backends.cuda.arrays.device_array import (
    DeviceArray,
    as_companion,
    as_float_array,
    output_like,
)
from numnorm.backends.cuda.arrays.launch import on_device_of
from numnorm.backends.cuda.arrays.row_totals import write_row_totals


@dataclasses.dataclass(frozen=True, eq=False)
class DeviceLabelParts:
    """The samples of each label, along an axis of x.

    Parameters
    ----------
    x : DeviceArray
    axis : int
        The axis of the samples.
    labels : numpy.ndarray
        The labels, sorted.
    members : tuple of numpy.ndarray
        The indices of the samples of each label.
    """

    x: DeviceArray
    axis: int
    labels: Any
    members: tuple[Any, ...]

    @property
    def array(self) -> Any:
        """The array x of its library."""
        return self.x.array

    def taken(self, array: Any, samples: Any, axis: int) -> Any:
        """Return a copy of a part of an array."""
        if not is_on_device(array):
            return array.take(samples, axis)
        with on_device_of(self.x):
            return self.x.lib.taken(array, samples, axis)

    def reshaped(self, array: Any, shape: Shape) -> Any:
        """Return an array in another shape."""
        if not is_on_device(array):
            return array.reshape(shape)
        return self.x.lib.reshaped(self.x.lib.contiguous(array), shape)

    def own(self, name: str, value: Any) -> Any:
        """Return an argument, checked to be on the device of x."""
        return as_companion(name, value, self.x).array

    def place(self, x: Any) -> Any:
        """Return where a function may write the result of a part x."""
        return x if self.x.lib.writable else None

    def output(self, out: Any, arguments: dict[str, Any]) -> list[Any]:
        """Return where to write results: a list of the parts."""
        if out is not None:
            output_like(self.x, None, out, ())  # which checks it
        return []

    def write(self, whole: list[Any], samples: Any, part: Any) -> None:
        """Write the result of a part."""
        whole.append(part)

    def result_in(self, whole: list[Any], out: Any) -> Any:
        """Return the parts, in the order of the samples, as the caller gets them."""
        library, (first, order) = self.x.lib, self._order()
        with on_device_of(self.x):
            parts = [library.contiguous(library.permuted(part, first)) for part in whole]
            places = np.argsort(np.concatenate(self.members))
            joined = library.taken(library.concatenated(parts), places, 0)
            y = library.contiguous(library.permuted(joined, order))
            if out is not None:
                library.copy(out, y)
        return y if out is None else out

    def joined(self, parts: list[Any]) -> Any:
        """Return the parts in one array, in the order of the samples."""
        return self.result_in(parts, None)

    def _order(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the order of axes that begins with the samples, and its inverse."""
        axes = range(len(self.x.shape))
        first = self.axis, *(axis for axis in axes if axis != self.axis)
        return first, tuple(first.index(axis) for axis in axes)

    def stacked(self, arrays: Sequence[Any]) -> Any:
        """Return statistics of each label, of the shape of the channels, in one array."""
        library = self.x.lib
        with on_device_of(self.x):
            rows = [library.reshaped(self.on_device(array), (1, *array.shape)) for array in arrays]
            return library.concatenated(rows)

    def on_device(self, array: Any) -> Any:
        """Return a statistic on the device of x."""
        if is_on_device(array):
            return array
        name = self.x.lib.statistic_name("float64")
        with on_device_of(self.x):
            return self.x.lib.from_host(self.x.array, np.array(array, name, order="C"))

    def total(self, parts: list[Any]) -> Any:
        """Return the sum of a gradient over the labels."""
        matrix = self.stacked(parts)
        element, shape = as_float_array("gamma", matrix).element, tuple(parts[0].shape)
        with on_device_of(self.x):
            sums = self.x.lib.empty(matrix, shape, element.name)
            write_row_totals(self.x, element, matrix, sums, len(parts), math.prod(shape))
        return sums
