"""Gamma and beta that broadcast against x, such as one gain for each sample.

They are applied outside the kernels, which take a parameter for each channel or each element of a
row. Such a parameter has as many axes as x: with fewer, a shape that is a mistake (the shape of
other axes, or a number meant for another argument) would often broadcast, too.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from numnorm.arguments import Shape, broadcasts, check_float, check_parameter_shape
from numnorm.array_likes import as_plain_array
from numnorm.backends.cpu.memory.host_arrays import Array
from numnorm.backends.cpu.statistics.saved import MOST_LOST


class Parameter(NamedTuple):
    """A parameter as the caller gave it, the shape that kernels take, and what that shape is."""

    name: str
    value: Any
    usual: Shape
    meaning: str


class View(NamedTuple):
    """How a kernel sees an array of shape `shape`: as ``(-1, channels, segment)``.

    `order` is the order of the array's axes in the kernel; None if no axis moves.
    """

    shape: Shape
    order: tuple[int, ...] | None
    channels: int
    segment: int

    def spread(self, values: Array) -> Array:
        """Return values that broadcast against the kernel's array so that they do against x."""
        order = self.order or tuple(range(len(self.shape)))
        count, each = math.prod(self.shape), self.channels * self.segment
        if not count:
            return np.empty(self.shape, values.dtype)
        full = np.broadcast_to(values, (count // each, self.channels, self.segment))
        moved = full.reshape([self.shape[axis] for axis in order])
        return moved.transpose(np.argsort(order))

    def averages(self, values: Array, *, of_channels: bool) -> Array:
        """Return the average of values of x's shape: of each channel, or of each row.

        It broadcasts as `spread` does. A row is the kernel's first axis.
        """
        order = self.order or tuple(range(len(self.shape)))
        seen = values.transpose(order).reshape(-1, self.channels, self.segment)
        return self.spread(seen.mean((0, 2) if of_channels else (1, 2), keepdims=True))

    def parameter(self, parameter: Parameter, dtype: np.dtype[Any]) -> Array | None:
        """Return a copy of a parameter that broadcasts against x; None for None."""
        name, value, usual, meaning = parameter
        if value is None:
            return None
        array = as_plain_array(name, value)
        check_float(name, array.dtype)
        with np.errstate(over="ignore"):  # a float64 beyond float32 becomes infinite
            converted = np.array(array, dtype)
        if is_broadcast(parameter, self.shape):
            return converted
        check_parameter_shape(name, array.shape, usual, meaning, self.shape)
        size = array.size // max(self.channels, 1)
        return self.spread(converted.reshape(self.channels, size))


def is_broadcast(parameter: Parameter, shape: Shape) -> bool:
    """Return whether a parameter broadcasts against x of a given shape, without the usual shape."""
    if parameter.value is None:
        return False
    given = as_plain_array(parameter.name, parameter.value).shape
    return broadcasts(given, parameter.usual, shape)


def check_any(parameters: list[Parameter], shape: Shape, error: ValueError) -> None:
    """Raise the error of a kernel's caller unless a parameter broadcasts against x."""
    if not any(is_broadcast(parameter, shape) for parameter in parameters):
        for name, value, usual, meaning in parameters:
            if value is not None:
                of_value = as_plain_array(name, value).shape
                check_parameter_shape(name, of_value, usual, meaning, shape)
        raise error


def scale_and_shift(y: Array, gamma: Array | None, beta: Array | None) -> None:
    """Replace y by ``y * gamma + beta``."""
    with np.errstate(all="ignore"):
        if gamma is not None:
            np.multiply(y, gamma, out=y)
        if beta is not None:
            np.add(y, beta, out=y)


def parameter_gradients(
    dy: Array,
    x: Array,
    mean: Array | None,
    rstd: Array,
    gamma: Array,
    dtype: np.dtype[Any],
    average: Callable[[Array], Array],
) -> tuple[Array, Array]:
    """Return the sums of dy * xhat and of dy over the axes in which gamma has size 1.

    `mean` (None if the norm is not centred) and `rstd` are float64 and broadcast against x;
    `average` returns the averages over the same elements.
    """
    axes = tuple(axis for axis, n in enumerate(gamma.shape) if n == 1)
    with np.errstate(all="ignore"):
        dy, x = dy.astype(np.float64), x.astype(np.float64)
        xhat = x if mean is None else x - mean
        if mean is not None and xhat.size:
            # What rounding the saved mean lost. A mean that the caller changed stays as it is.
            lost = average(xhat)
            xhat = xhat - np.where(np.abs(lost) <= MOST_LOST * np.abs(mean), lost, 0.0)
        xhat = xhat * rstd
        dgamma, dbeta = ((dy * xhat).sum(axes, keepdims=True), dy.sum(axes, keepdims=True))
        return dgamma.astype(dtype), dbeta.astype(dtype)
