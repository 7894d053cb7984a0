"""Several channel axes as one: arrays are reshaped before a norm over channels, and after it."""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.arguments import Shape, check_eps, check_shape, result_dtype
from numnorm.array_likes import (
    as_plain_array,
    check_writable,
    is_on_device,
    results_like,
    statistics_like,
    writable_view,
)
from numnorm.backends import backend_for, backend_of, with_weighting
from numnorm.backends.contract.backend import RowBackend
from numnorm.backends.contract.gains import is_gain
from numnorm.backends.contract.moving import MovingBackend
from numnorm.backends.contract.norms import Scaling, scaling_by
from numnorm.backends.contract.weighting import WeightedInput
from numnorm.layouts import MovingLayout, RowLayout, moving_layout, normalized_axes, row_layout


def channel_axes(x: Any, channel_axis: Any) -> Any:
    """Return `ChannelAxes` of x if they are given as a sequence; on a device an object like it."""
    if not isinstance(channel_axis, tuple | list):
        return None
    given = x.x if isinstance(x, WeightedInput) else x
    if type(given) is np.ndarray or not is_on_device(given):
        return ChannelAxes(x, channel_axis)
    backend: Any
    backend, array = backend_for(given, "x")
    axes = normalized_axes(channel_axis, len(array.shape), "channel_axis")
    order, shape = _neighbours(axes, len(array.shape))[0], tuple(array.shape[a] for a in axes)
    on_device = backend.DeviceChannelAxes(array, order, *merged_shape(array.shape, axes), shape)
    if isinstance(x, WeightedInput):
        on_device.x = WeightedInput(on_device.x, on_device.folded_weighting(x.weighting))
    return on_device


def merged_shape(shape: Shape, channel_axis: Any) -> tuple[Shape, int]:
    """Return the shape of x with its channel axes as one, and the place of that axis."""
    axes = normalized_axes(channel_axis, len(shape), "channel_axis")
    order, at = _neighbours(axes, len(shape))
    moved = [shape[axis] for axis in order]
    merged = math.prod(moved[at : at + len(axes)])
    return (*moved[:at], merged, *moved[at + len(axes) :]), at


def _neighbours(axes: tuple[int, ...], ndim: int) -> tuple[tuple[int, ...], int]:
    """Return an order of all axes in which some are neighbours, and the place of their first."""
    if axes[-1] - axes[0] == len(axes) - 1:
        return tuple(range(ndim)), axes[0]
    others = tuple(axis for axis in range(ndim) if axis not in axes)
    return others + axes, len(others)


class ChannelAxes:
    """The channel axes of an array x that become one axis.

    Attributes
    ----------
    x : numpy.ndarray
        x with one axis of channels: a view if the channel axes are neighbours and x is
        C-contiguous, or else a copy.
    axis : int
        The axis of the channels in it.
    shape : tuple of int
        The shape of the channels in the caller's x, which statistics and parameters have.
    """

    def __init__(self, x: Any, channel_axis: Any) -> None:
        array: Any
        _, array = backend_for(x, "x")
        self._result = results_like(x) or _same
        axes = normalized_axes(channel_axis, array.ndim, "channel_axis")
        self._order = _neighbours(axes, array.ndim)[0]
        self._shape = array.shape
        self.shape: Shape = tuple(array.shape[a] for a in axes)
        self._merged, self.axis = merged_shape(array.shape, axes)
        self.x = self.fold("x", array)
        if isinstance(x, WeightedInput):
            self._result = results_like(x.x) or _same
            self.x = x.folded(self.x, self.fold)

    def fold(self, name: str, value: Any) -> Any:
        """Return an array of the shape of x with one axis of channels."""
        array = as_plain_array(name, value)
        check_shape(name, array.shape, self._shape, "the shape of x")
        return array.transpose(self._order).reshape(self._merged)

    def folded_out(self, out: Any) -> Any:
        """Return the same for an output: a copy where there is no such view."""
        view = writable_view("out", out)
        if not isinstance(view, np.ndarray):
            return out
        check_writable("out", view)
        return self.fold("out", view)

    def write(self, y: Any, folded: Any, out: Any) -> Any:
        """Return the result `y` in the shape of x: in `out`, if `folded` is its folded form."""
        view = writable_view("out", out)
        if out is not None and np.shares_memory(folded, view):
            return out
        moved = y.reshape([self._shape[a] for a in self._order]).transpose(np.argsort(self._order))
        if out is None:
            return self._result(moved)
        view[...] = moved
        return out

    def flat(self, name: str, value: Any) -> Any:
        """Return an array of the shape of the channels with one axis; None for None."""
        if value is None:
            return None
        array = as_plain_array(name, value)
        check_shape(name, array.shape, self.shape, "the channels of x")
        return array.reshape(-1)

    def flat_gain(self, name: str, value: Any) -> Any:
        """Return a gain or bias with one axis of channels, and with the others if it broadcasts."""
        if not self._broadcasts(name, value):
            return self.flat(name, value)
        moved = as_plain_array(name, value).transpose(self._order)
        full = self._with_channels(moved.shape)
        first, after = full[: self.axis], full[self.axis + len(self.shape) :]
        return np.broadcast_to(moved, full).reshape(*first, math.prod(self.shape), *after)

    def gain_gradient(self, gradient: Any, gamma: Any) -> Any:
        """Return the gradient of a gain or bias in the shape of the caller's gamma."""
        if not self._broadcasts("gamma", gamma):
            return self._result(gradient.reshape(self.shape))
        own = as_plain_array("gamma", gamma).transpose(self._order).shape
        full = gradient.reshape(self._with_channels(own))
        summed = tuple(axis for axis, n in enumerate(own) if n == 1 != full.shape[axis])
        with np.errstate(all="ignore"):  # a sum may leave the range of the dtype
            total = full.sum(summed, dtype=np.float64, keepdims=True).astype(gradient.dtype)
        return self._result(total.transpose(np.argsort(self._order)))

    def _broadcasts(self, name: str, value: Any) -> bool:
        """Return whether a gain has as many axes as x, without the usual shape."""
        if value is None:
            return False
        return is_gain(as_plain_array(name, value).shape, self._shape, self.shape)

    def _with_channels(self, shape: Shape) -> Shape:
        """Return the shape of an array in the order of `fold`, with all channels of x."""
        return *shape[: self.axis], *self.shape, *shape[self.axis + len(self.shape) :]

    def flat_running(self, running: tuple[Any, Any], update: bool) -> tuple[Any, Any]:
        """Return running statistics with one axis: as views if they will be updated."""
        mean, variance = running
        if update:
            mean = writable_view("running_mean", mean)
            variance = writable_view("running_var", variance)
            for name, array in (("running_mean", mean), ("running_var", variance)):
                if array is not None and not isinstance(array, np.ndarray):
                    raise TypeError(
                        f"{name} must be an array to be updated, got {type(array).__name__}"
                    )
                if array is not None and not array.flags.c_contiguous:
                    raise ValueError(f"{name} must be C-contiguous, got an array with gaps")
        return self.flat("running_mean", mean), self.flat("running_var", variance)

    def unflat(self, statistic: Any) -> Any:
        """Return a statistic in the shape of the channels, in the library of x."""
        return statistics_like(self._result)(statistic.reshape(self.shape))


def _same(array: Any) -> Any:
    return array


# The first step of norms along an axis: choose the backend, the layout and the options of x


_NDARRAY = np.ndarray  # looked up at every call


def resolve_axis(
    x: Any, axis: Any, eps: Any, name: str = "x"
) -> tuple[RowBackend, Any, RowLayout, Scaling]:
    """Return the backend of x, x in a float dtype, its rows over `axis`, and their scaling.

    `name` is the name of x in messages.
    """
    # One cached lookup: a small call would spend much of its time on the separate checks.
    if type(x) is _NDARRAY and type(axis) is int and type(eps) is float:
        try:
            backend, layout, scaling = _known(x.shape, x.dtype, axis, eps, name)
            return backend, x, layout, scaling
        except (TypeError, ValueError):
            pass  # the code below converts x or raises the right error
    elif type(x) is WeightedInput and type(axis) is int and type(eps) is float:
        array, weighting = x
        if type(array) is _NDARRAY:
            try:
                backend, layout, scaling = _known(array.shape, array.dtype, axis, eps, name)
                return with_weighting(backend, weighting), array, layout, scaling
            except (TypeError, ValueError):
                pass
    backend, x = backend_for(x, name)
    return backend, x, row_layout(x.shape, axis, name), scaling_by(check_eps(eps))


@functools.lru_cache(maxsize=1024)
def _known(
    shape: Any, dtype: np.dtype[Any], axis: int, eps: float, name: str
) -> tuple[Any, RowLayout, Scaling]:
    """Return backend, rows and scaling for a NumPy array that needs no conversion."""
    if result_dtype(name, dtype) != dtype:
        raise TypeError("converted")
    return backend_of(np.ndarray), row_layout(shape, axis, name), scaling_by(check_eps(eps))


def resolve_moving(
    x: Any, axis: Any, checked: Callable[..., Any], options: tuple[Any, ...]
) -> tuple[MovingBackend, Any, MovingLayout, Any]:
    """Return the backend of x, x in a float dtype, its sequences, and ``checked(*options)``."""
    if type(x) is _NDARRAY:
        try:
            backend, layout, result = _known_moving(x.shape, x.dtype, axis, checked, *options)
            return backend, x, layout, result
        except (TypeError, ValueError):
            pass  # the code below converts x or raises the right error
    backend, x = backend_for(x, "x")
    return backend, x, moving_layout(x.shape, axis), checked(*options)


@functools.lru_cache(maxsize=1024, typed=True)
def _known_moving(
    shape: Any, dtype: np.dtype[Any], axis: Any, checked: Callable[..., Any], *options: Any
) -> tuple[Any, MovingLayout, Any]:
    """Return backend, sequences and options for a NumPy array that needs no conversion."""
    if result_dtype("x", dtype) != dtype:
        raise TypeError("converted")
    return backend_of(np.ndarray), moving_layout(shape, axis), checked(*options)
