"""The stored statistics of batch and weight norm on a device: a number for each channel or row.

Kernels write them as float64, even if the array library has no float64. The array then has another
dtype, and only kernels read it.
"""

import dataclasses
import functools
import math
from typing import Any

from numnorm.arguments import check_shape
from numnorm.backends.contract.norms import SMALLEST_VARIANCE
from numnorm.backends.cuda.arrays.device_array import (
    DeviceArray,
    as_companion,
    as_float_array,
    as_parameter,
    sharing,
    with_array,
)
from numnorm.backends.cuda.arrays.launch import launch_threads, on_device_of
from numnorm.backends.cuda.compiler.element_type import ELEMENT_TYPES, FLOAT64, ElementType
from numnorm.backends.cuda.compiler.target import (
    Kernel,
    constant,
    cuda,
    device,
    make_load_one,
    make_sqrt,
    make_store_one,
)
from numnorm.backends.cuda.compiler.target import reciprocal as reciprocal_of
from numnorm.backends.formulas.norms import merge_moments, moved
from numnorm.layouts import ColumnLayout, RowLayout

# Kernels

_THREADS = 128
_ZERO, _ONE, _INFINITY, _NAN = (
    constant(FLOAT64, v) for v in (0.0, 1.0, float("inf"), float("nan"))
)
_SMALLEST_VARIANCE = constant(FLOAT64, SMALLEST_VARIANCE)


def make_reciprocal(of: ElementType) -> Kernel:
    """Return the kernel of the reciprocals of values, and 0 for 0.

    It takes the addresses of values and of the result, which is float64, and ``count``.
    """
    load = make_load_one(of)
    store = make_store_one(FLOAT64)
    kind = FLOAT64.compute_type
    inverse = reciprocal_of(FLOAT64)

    def kernel(values, result, count):
        i = cuda.blockIdx.x * _THREADS + cuda.threadIdx.x
        if i < count:
            value = kind(load(values, i))
            store(result, i, _ZERO if value == _ZERO else inverse(value))

    return Kernel(kernel, ("address",) * 2 + ("index",), _THREADS)


@functools.cache
def make_inverse_root() -> Any:
    """Return a device function ``inverse_root(variance, eps)``, in float64.

    It returns 1 / sqrt(variance + eps): 0 for a division by 0, and NaN outside the range of
    float64.
    """
    inverse, sqrt = reciprocal_of(FLOAT64), make_sqrt(FLOAT64)

    @device
    def inverse_root(variance, eps):
        total = variance + eps
        lost = total == _INFINITY or (variance > _ZERO and total < _SMALLEST_VARIANCE)
        rstd = _NAN if lost else inverse(sqrt(total))
        return _ZERO if total == _ZERO else rstd

    return inverse_root


def make_reciprocal_deviation(of: ElementType) -> Kernel:
    """Return the kernel of `make_inverse_root` of each variance.

    It takes the addresses of the variances and of the result, which is float64; ``count``; and the
    numbers ``factor``, by which it multiplies the variances first, and ``eps``.
    """
    load = make_load_one(of)
    store = make_store_one(FLOAT64)
    kind = FLOAT64.compute_type
    inverse_root = make_inverse_root()

    def kernel(variance, result, count, factor, eps):
        i = cuda.blockIdx.x * _THREADS + cuda.threadIdx.x
        if i < count:
            store(result, i, inverse_root(kind(load(variance, i)) * factor, eps))

    return Kernel(kernel, ("address",) * 2 + ("index",) + ("float64",) * 2, _THREADS)


def make_update_running(running: ElementType) -> Kernel:
    """Return the kernel that moves running statistics towards new ones.

    It is the formula `moved` of ``new * factor``, whose weight is ``momentum``. It takes the
    addresses of the running statistics and of the new ones, which are float64; ``count``; and
    ``factor`` and ``momentum``.
    """
    load, store = make_load_one(running), make_store_one(running)
    load_new = make_load_one(FLOAT64)
    kind = FLOAT64.compute_type
    rounded = running.compute_type
    move = device(moved)

    def kernel(running, new, count, factor, momentum):
        i = cuda.blockIdx.x * _THREADS + cuda.threadIdx.x
        if i < count:
            fresh = load_new(new, i) * factor
            store(running, i, rounded(move(kind(load(running, i)), fresh, momentum)))

    return Kernel(kernel, ("address",) * 2 + ("index",) + ("float64",) * 2, _THREADS)


def make_converted(of: ElementType, into: ElementType) -> Kernel:
    """Return the kernel that converts statistics to another type.

    It takes the addresses of values and of the result; ``count``; and a ``factor`` for the values.
    """
    load = make_load_one(of)
    store = make_store_one(into)
    wide = FLOAT64.compute_type
    kind = into.compute_type

    def kernel(values, result, count, factor):
        i = cuda.blockIdx.x * _THREADS + cuda.threadIdx.x
        if i < count:
            store(result, i, kind(wide(load(values, i)) * factor))

    return Kernel(kernel, ("address",) * 2 + ("index", "float64"), _THREADS)


def make_root(of: ElementType) -> Kernel:
    """Return the kernel of the square roots of values.

    It takes the addresses of values and of the result, which is float64; ``count``; and a
    ``factor`` for the values.
    """
    load = make_load_one(of)
    store = make_store_one(FLOAT64)
    kind = FLOAT64.compute_type
    sqrt = make_sqrt(FLOAT64)

    def kernel(values, result, count, factor):
        i = cuda.blockIdx.x * _THREADS + cuda.threadIdx.x
        if i < count:
            store(result, i, sqrt(kind(load(values, i)) * factor))

    return Kernel(kernel, ("address",) * 2 + ("index", "float64"), _THREADS)


def make_two_moments() -> Kernel:
    """Return the kernel that merges the moments of two sets of values, neither of them empty.

    It takes the addresses ``mean, m2, mean_lo`` of one set, of the other and of the result, all of
    float64; ``channels``; and the numbers of values ``count, other_count``.
    """
    load, store = make_load_one(FLOAT64), make_store_one(FLOAT64)
    merge = device(merge_moments)

    def kernel(
        mean, m2, mean_lo, other_mean, other_m2, other_lo, merged_mean, merged_m2, merged_lo,
        channels, count, other_count,
    ):  # fmt: skip
        i = cuda.blockIdx.x * _THREADS + cuda.threadIdx.x
        if i < channels:
            moments = load(mean, i), load(mean_lo, i), load(m2, i)
            other = load(other_mean, i), load(other_lo, i), load(other_m2, i)
            centre, lost, squares = merge(count, moments, other_count, other, _ONE)
            store(merged_mean, i, centre)
            store(merged_lo, i, lost)
            store(merged_m2, i, squares)

    return Kernel(kernel, ("address",) * 9 + ("index",) + ("float64",) * 2, _THREADS)


# Arrays

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
    memory = float64_memory(x, channels)
    known = _has_float64(x)
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
    x = variance.x
    kernel = _reciprocal_deviation(variance.element)
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


def most_lost(saved: ElementType) -> float:
    """Return what the rounding of a saved mean may have lost, as a part of the mean."""
    return 2.0**-50 if saved == FLOAT64 else 2.0**-21


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
    if share_memory(*arrays):
        raise ValueError("running_var must not share memory with running_mean, got such an array")
    return arrays[0], arrays[1]


def step_statistics(name: str, value: Any, x: DeviceArray, update: bool) -> DeviceArray:
    """Return running statistics of any shape: the caller's own array if `update` is true."""
    array = as_companion(name, value, x)
    if update:
        check_updatable(name, value)
        return array
    with on_device_of(x):
        return with_array(array, x.lib.contiguous(array.array))


def share_memory(one: DeviceArray, other: DeviceArray) -> bool:
    """Return whether two arrays share memory."""
    return bool(sharing(one.lib, one.array, other.array))


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
        target = with_array(running, moved)
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
        launch_threads(kernel, count, x, (values.array, other), (count, *numbers))
