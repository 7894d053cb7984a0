"""The stored statistics of batch and weight norm on a device: a number for each channel or row.

Kernels write them as float64, even if the array library has no float64. The array then has another
dtype, and only kernels read it.
"""

import dataclasses
import functools
import math
from typing import Any

from numnorm.arguments import check_shape
from numnorm.backends.cuda.arrays.device_array import (
    DeviceArray,
    as_companion,
    as_float_array,
    as_parameter,
    overlap,
)
from numnorm.backends.cuda.arrays.launch import launch, on_device_of
from numnorm.backends.cuda.compiler.element_type import ELEMENT_TYPES, FLOAT64, ElementType
from numnorm.backends.cuda.compiler.target import Kernel
from numnorm.backends.cuda.statistics.stored_kernels import (
    make_converted,
    make_reciprocal,
    make_reciprocal_deviation,
    make_root,
    make_update_running,
)
from numnorm.layouts import ColumnLayout, RowLayout

_MEANING = "the channels of x"

_converted = functools.cache(make_converted)
_reciprocal = functools.cache(make_reciprocal)
_reciprocal_deviation = functools.cache(make_reciprocal_deviation)
_root = functools.cache(make_root)
_update_running = functools.cache(make_update_running)


@dataclasses.dataclass(eq=False, slots=True)
class Statistic(DeviceArray):
    """A statistic of each channel or row, in C-contiguous memory.

    Parameters
    ----------
    name, array, lib, element, shape, device
        As for a `DeviceArray`. `array` may have another dtype and shape than `element` and `shape`.
    x : DeviceArray
        The array that the statistic belongs to; kernels use its stream.
    factor : float
        The next kernel multiplies the numbers in memory by this factor.
    shareable : bool
        Whether the array can be returned to the caller: it is new, and has this dtype and shape.
    """

    x: DeviceArray
    factor: float = 1.0
    shareable: bool = False

    def __truediv__(self, divisor: float) -> "Statistic":
        """Return the statistic divided by a number, as a factor for the next kernel."""
        return dataclasses.replace(self, factor=self.factor / divisor, shareable=False)


def float64_memory(x: DeviceArray, count: int) -> Any:
    """Return new memory for float64 numbers, even if the library of x has no float64."""
    if _has_float64(x):
        return x.lib.empty(x.array, (count,), "float64")
    return x.lib.empty(x.array, (2 * count,), "float32")


def new_statistic(name: str, x: DeviceArray, channels: int) -> Statistic:
    """Return a new statistic of float64 for a kernel to write, on the device of x."""
    memory, known = float64_memory(x, channels), _has_float64(x)
    return Statistic(name, memory, x.lib, FLOAT64, (channels,), x.device, x, shareable=known)


def zero_statistic(name: str, x: DeviceArray, channels: int) -> Statistic:
    """Return a new statistic of zeros, on the device of x."""
    # Two zeros of float32 have the bits of one zero of float64.
    memory = x.lib.full(x.array, (2 * channels,), "float32", 0.0)
    return Statistic(name, memory, x.lib, FLOAT64, (channels,), x.device, x)


def given_statistic(name: str, value: Any, x: DeviceArray, channels: int) -> Statistic:
    """Return a caller's statistic of the channels of x, of any float dtype."""
    given = as_parameter(name, value, (channels,), _MEANING, x)
    return Statistic(name, given.array, x.lib, given.element, given.shape, x.device, x)


def in_float64(statistic: Statistic) -> Statistic:
    """Return a statistic of any float dtype in float64."""
    if statistic.element == FLOAT64 and statistic.factor == 1.0:
        return statistic
    x, element = statistic.x, statistic.element
    result = new_statistic(statistic.name, x, statistic.shape[0])
    _launch_each(_converted(element, FLOAT64), x, statistic, result.array, statistic.factor)
    return result


def saved(statistic: Statistic, x: DeviceArray) -> Any:
    """Return a new array for the caller, of the dtype of saved statistics of x."""
    with on_device_of(x):
        return _as_array(statistic, ELEMENT_TYPES[x.lib.statistic_name(x.element.name)])


def handed_out(statistic: Statistic) -> Any:
    """Return a new array for the caller, of float64 or, if the library lacks it, of float32."""
    return _as_array(statistic, ELEMENT_TYPES[statistic.lib.statistic_name("float64")])


def _as_array(statistic: Statistic, into: ElementType) -> Any:
    if statistic.shareable and statistic.element == into:
        return statistic.array
    x = statistic.x
    array = x.lib.empty(x.array, statistic.shape, into.name)
    _launch_each(_converted(statistic.element, into), x, statistic, array, statistic.factor)
    return array


def reciprocal(name: str, value: Any, x: DeviceArray, layout: RowLayout) -> Statistic:
    """Return the reciprocals of a saved statistic of each row of x, and 0 for 0."""
    with on_device_of(x):
        given = as_parameter(name, value, layout.statistic_shape, "one for each row", x)
        result = new_statistic(name, x, layout.rows)
        _launch_each(_reciprocal(given.element), x, given, result.array)
    return result


def reciprocal_deviation(variance: Statistic, eps: float) -> Statistic:
    """Return 1 / sqrt(variance + eps): 0 for a division by 0, NaN outside the range of float64."""
    x, kernel = variance.x, _reciprocal_deviation(variance.element)
    with on_device_of(x):
        rstd = new_statistic("rstd", x, variance.shape[0])
        _launch_each(kernel, x, variance, rstd.array, variance.factor, eps)
    return rstd


def root(statistic: Statistic) -> Statistic:
    """Return the square roots of a statistic."""
    x = statistic.x
    result = new_statistic(statistic.name, x, statistic.shape[0])
    _launch_each(_root(statistic.element), x, statistic, result.array, statistic.factor)
    return result


def check_updatable(name: str, array: Any) -> None:
    """Raise an error unless an array of running statistics can be updated in place."""
    library = as_float_array(name, array).lib
    if not library.writable:
        raise TypeError(
            f"{name} must be an array to be updated: a {library.label} cannot be written"
        )


def running_statistics(
    mean: Any, variance: Any, x: DeviceArray, layout: ColumnLayout, update: bool
) -> tuple[DeviceArray, DeviceArray]:
    """Return the running statistics for x, checked: the caller's own arrays if `update` is true."""
    given = {"running_mean": mean, "running_var": variance}
    if not update:
        with on_device_of(x):
            of_mean, of_variance = (
                given_statistic(name, value, x, layout.channels) for name, value in given.items()
            )
            return of_mean, of_variance
    arrays = []
    for name, value in given.items():
        array = as_companion(name, value, x)
        check_updatable(name, value)
        check_shape(name, array.shape, (layout.channels,), _MEANING)
        arrays.append(array)
    if layout.channels and overlap(x.lib, mean, variance):
        raise ValueError("running_var must not share memory with running_mean, got such an array")
    return arrays[0], arrays[1]


def step_statistics(name: str, value: Any, x: DeviceArray, update: bool) -> DeviceArray:
    """Return running statistics of any shape: the caller's own array if `update` is true."""
    array = as_companion(name, value, x)
    if update:
        check_updatable(name, value)
        return array
    with on_device_of(x):
        return dataclasses.replace(array, array=x.lib.contiguous(array.array))


def share_memory(one: DeviceArray, other: DeviceArray) -> bool:
    """Return whether two arrays share memory."""
    return overlap(one.lib, one.array, other.array)


def update_running(
    running: tuple[DeviceArray, DeviceArray],
    mean: Statistic,
    m2: Statistic,
    divisor: float,
    momentum: float,
) -> None:
    """Move a running mean and variance towards the mean and m2 / divisor of a new batch."""
    move_running(running[0], mean, momentum)
    move_running(running[1], m2 / divisor, momentum)


def move_running(running: DeviceArray, new: Statistic, momentum: float) -> None:
    """Move running statistics in place towards new ones, whose weight is `momentum`."""
    library = running.lib
    with on_device_of(running):
        moved = library.contiguous(running.array)
        target = dataclasses.replace(running, array=moved)
        kernel = _update_running(running.element)
        _launch_each(kernel, new.x, target, new.array, new.factor, momentum)
        if moved is not running.array:
            library.copy(running.array, moved)


def _has_float64(x: DeviceArray) -> bool:
    return x.lib.statistic_name("float64") == "float64"


def _launch_each(
    kernel: Kernel, x: DeviceArray, values: DeviceArray, other: Any, *numbers: float
) -> None:
    """Launch a kernel with one thread for each value."""
    count = math.prod(values.shape)
    if count:
        blocks = -(-count // kernel.threads)
        launch(kernel, blocks, x, (values.array, other), (count, *numbers))
