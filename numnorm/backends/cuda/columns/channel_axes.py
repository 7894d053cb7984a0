"""Several channel axes of a device array as one, before a norm over channels and after it."""

import dataclasses
import math
from typing import Any

import numpy as np

from numnorm.arguments import Shape, check_shape
from numnorm.array_likes import is_on_device
from numnorm.backends.contract.gains import is_gain
from numnorm.backends.contract.weighting import Weighting
from numnorm.backends.cuda.arrays.device_array import DeviceArray, as_companion
from numnorm.backends.cuda.arrays.launch import on_device_of
from numnorm.backends.cuda.arrays.row_totals import write_row_totals


@dataclasses.dataclass(eq=False)
class DeviceChannelAxes:
    """The channel axes of a device array that become one axis, as `norms.axes.ChannelAxes`.

    Parameters
    ----------
    whole : DeviceArray
        The caller's x.
    order : tuple of int
        An order of its axes in which the channel axes are neighbours.
    merged : tuple of int
        Its shape in this order, with one axis of channels.
    axis : int
        The place of that axis.
    shape : tuple of int
        The shape of the channels in the caller's x, which statistics and parameters have.
    """

    whole: DeviceArray
    order: tuple[int, ...]
    merged: Shape
    axis: int
    shape: Shape

    def __post_init__(self) -> None:
        self.x: Any = self.fold("x", self.whole.array)

    def fold(self, name: str, value: Any) -> Any:
        """Return an array of the shape of x with one axis of channels."""
        array = as_companion(name, value, self.whole)
        check_shape(name, array.shape, self.whole.shape, "the shape of x")
        return self._folded(value)

    def _folded(self, array: Any) -> Any:
        library, order = self.whole.lib, self.order
        if order != tuple(range(len(order))):
            array = library.permuted(array, order)
        return library.reshaped(library.contiguous(array), self.merged)

    def folded_weighting(self, weighting: Weighting) -> Weighting:
        """Return a weighting of x for the x with one axis of channels."""
        shape = self.whole.shape
        values: list[Any] = []
        for value in weighting[:2]:
            if value is None:
                values.append(None)
            elif is_on_device(value):
                values.append(self._folded(self.whole.lib.broadcast(value, shape)))
            else:
                moved = np.broadcast_to(value, shape).transpose(self.order)
                values.append(moved.reshape(self.merged))
        return weighting._replace(keep=values[0], weights=values[1])

    def folded_out(self, out: Any) -> Any:
        """Return an output with one axis of channels; None for None."""
        return None if out is None else self.fold("out", out)

    def write(self, y: Any, folded: Any, out: Any) -> Any:
        """Return the result `y` in the shape of x: in `out`, if `folded` is its folded form."""
        library, order = self.whole.lib, self.order
        if out is not None and library.address(folded) == library.address(out):
            return out
        moved = library.reshaped(y, tuple(self.whole.shape[axis] for axis in order))
        if order != tuple(range(len(order))):
            back = tuple(order.index(axis) for axis in range(len(order)))
            moved = library.contiguous(library.permuted(moved, back))
        if out is None:
            return moved
        library.copy(out, moved)
        return out

    def flat(self, name: str, value: Any) -> Any:
        """Return an array of the shape of the channels with one axis; None for None."""
        if value is None:
            return None
        array = as_companion(name, value, self.whole)
        check_shape(name, array.shape, self.shape, "the channels of x")
        library = self.whole.lib
        return library.reshaped(library.contiguous(value), (math.prod(self.shape),))

    def flat_gain(self, name: str, value: Any) -> Any:
        """Return a gain or bias with one axis of channels, and with the others if it broadcasts."""
        if value is None or not is_gain(value.shape, self.whole.shape, self.shape):
            return self.flat(name, value)
        library = as_companion(name, value, self.whole).lib
        moved = library.permuted(value, self.order)
        full = self._with_channels(library.shape(moved))
        after = full[self.axis + len(self.shape) :]
        merged = *full[: self.axis], math.prod(self.shape), *after
        with on_device_of(self.whole):
            return library.reshaped(library.broadcast(moved, full), merged)

    def gain_gradient(self, gradient: Any, gamma: Any) -> Any:
        """Return the gradient of a gain or bias in the shape of the caller's gamma."""
        if gamma is None or not is_gain(gamma.shape, self.whole.shape, self.shape):
            return self.unflat(gradient)
        library, own = self.whole.lib, tuple(gamma.shape[axis] for axis in self.order)
        full, axes = self._with_channels(own), range(len(own))
        summed = [axis for axis in axes if own[axis] == 1 != full[axis]]
        first = *summed, *(axis for axis in axes if axis not in summed)
        terms = math.prod(full[axis] for axis in summed)
        with on_device_of(self.whole):
            matrix = library.contiguous(library.permuted(library.reshaped(gradient, full), first))
            element = as_companion("gamma", gamma, self.whole).element
            moved = [own[axis] for axis in first]
            total = library.empty(matrix, tuple(moved), element.name)
            columns = math.prod(moved)
            write_row_totals(self.whole, element, matrix, total, terms, columns)
            places = [self.order[axis] for axis in first]
            back = tuple(places.index(axis) for axis in axes)
            return library.contiguous(library.permuted(total, back))

    def _with_channels(self, shape: Shape) -> Shape:
        """Return the shape of an array in the order of `fold`, with all channels of x."""
        return *shape[: self.axis], *self.shape, *shape[self.axis + len(self.shape) :]

    def flat_running(self, running: tuple[Any, Any], update: bool) -> tuple[Any, Any]:
        """Return running statistics with one axis: as views if they will be updated."""
        names = "running_mean", "running_var"
        for name, array in zip(names, running, strict=True):
            if update and array is not None:
                as_companion(name, array, self.whole)
                if not self.whole.lib.is_contiguous(array):
                    raise ValueError(f"{name} must be C-contiguous, got an array with gaps")
        mean, variance = map(self.flat, names, running)
        return mean, variance

    def unflat(self, statistic: Any) -> Any:
        """Return a statistic in the shape of the channels."""
        return self.whole.lib.reshaped(statistic, self.shape)
