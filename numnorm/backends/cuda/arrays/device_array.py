"""From the caller's device arrays to what the kernels take, and back.

What a device array is, in whatever library: its elements, its shape, its device. Nothing here
needs a compiler or a driver.
"""

import dataclasses
import math
from typing import Any, NamedTuple

from numnorm.arguments import FLOATS, Shape, check_shape
from numnorm.backends.cuda.arrays.libraries import OWNERS, Owner, owner_of
from numnorm.backends.cuda.compiler.element_type import ELEMENTS, Element

Order = tuple[int, ...] | None


@dataclasses.dataclass(frozen=True, eq=False)
class DeviceArray:
    """An array in the memory of a CUDA device.

    Parameters
    ----------
    name : str
        What the caller calls it, for messages.
    array : Any
        The array itself, of its own library.
    owner : Owner
        That library.
    element : Element
        The type of its elements.
    shape : tuple of int
        Its shape.
    device : int
        The number of its device.
    """

    name: str
    array: Any
    owner: Owner
    element: Element
    shape: Shape
    device: int

    @property
    def dtype(self) -> Element:
        """The type of its elements, for those who know arrays by it."""
        return self.element


def as_float_array(name: str, value: Any) -> DeviceArray:
    """Return what is known of a device array of a float dtype."""
    owner = owner_of(type(value))  # type: ignore[arg-type]  # types are hashable
    if owner is None:
        supported = ", ".join(["numpy.ndarray", *(owner.label for owner in OWNERS)])
        raise TypeError(f"{name} must be one of {supported}, got {_kind(value)}")
    owner.check(name, value)
    dtype = owner.dtype_name(value)
    element = ELEMENTS.get(dtype)
    if element is None:
        floats = f"{', '.join(FLOATS[:-1])} or {FLOATS[-1]}"
        raise TypeError(f"{name} must be converted to {floats} on the device, got {dtype}")
    return DeviceArray(name, value, owner, element, owner.shape(value), owner.device(value))


def as_companion(name: str, value: Any, x: DeviceArray) -> DeviceArray:
    """Return the like of an array that must be of the library and on the device of x."""
    owner = owner_of(type(value))  # type: ignore[arg-type]  # types are hashable
    if owner is not x.owner or not owner.is_on_device(value):
        where = " on the host" if owner is x.owner else ""
        raise TypeError(
            f"{name} must be a {x.owner.label} on device {x.device}, as {x.name} is, "
            f"got {_kind(value)}{where}"
        )
    array = as_float_array(name, value)
    if array.device != x.device:
        raise ValueError(
            f"{name} must be on device {x.device}, as {x.name} is, got one on device {array.device}"
        )
    # A copy of it would go to its own stream, in no order with the kernels on that of x. The
    # default stream, 0, waits for the others by itself.
    own, of_x = owner.stream(value), owner.stream(x.array)
    if own != of_x and own and of_x:
        raise ValueError(f"{name} must be bound to the stream of {x.name}, got one of another")
    return array


def as_parameter(
    name: str, value: Any, expected: Shape, meaning: str, x: DeviceArray
) -> DeviceArray:
    """Return gamma, beta, a gradient or a statistic, checked, and C-contiguous."""
    array = as_companion(name, value, x)
    check_shape(name, array.shape, expected, meaning)
    return dataclasses.replace(array, array=array.owner.contiguous(array.array))


def in_order(x: DeviceArray, order: Order) -> Any:
    """Return an array of x's library C-contiguous in `order`, copied only if it lies otherwise."""
    array = x.array if order is None else x.owner.permuted(x.array, order)
    return x.owner.contiguous(array)


class Output(NamedTuple):
    """Where a kernel writes, and what becomes of it.

    Attributes
    ----------
    target : Any
        What a kernel writes: C-contiguous, its axes in the kernel's order.
    place : Any
        The part of the caller's `out` to which it is to be copied; None if it need not be.
    out : Any
        The caller's array, if there is one.
    """

    target: Any
    place: Any
    out: Any


def output_like(x: DeviceArray, order: Order, out: Any, inputs: tuple[Any, ...]) -> Output:
    """Return where the result, of the shape and dtype of x, is written.

    That is the memory of `out` where it can be. The `inputs`, of which some may be None, are the
    arrays that the kernel reads, as it reads them.
    """
    place = None
    if out is not None:
        _check_out(out, x)
        place = out if order is None else x.owner.permuted(out, order)
        if x.owner.is_contiguous(place) and not any(_clash(x.owner, place, a) for a in inputs):
            return Output(place, None, out)
    shape = x.shape if order is None else tuple(x.shape[a] for a in order)
    return Output(x.owner.empty(x.array, shape, x.element.name), place, out)


def result(output: Output, x: DeviceArray, order: Order) -> Any:
    """Return what a kernel has written as the caller gets it."""
    if output.place is not None:
        x.owner.copy(output.place, output.target)
    if output.out is not None:
        return output.out
    if order is None:
        return output.target
    return x.owner.permuted(output.target, tuple(order.index(a) for a in range(len(order))))


def _check_out(out: Any, x: DeviceArray) -> None:
    if not x.owner.writable:
        raise TypeError(f"out must be None: a {x.owner.label} cannot be written")
    array = as_companion("out", out, x)
    check_shape("out", array.shape, x.shape, f"the shape of {x.name}")
    if array.element != x.element:
        wanted, got = x.element.name, array.element.name
        raise TypeError(f"out must have dtype {wanted}, that of the result, got {got}")


def _clash(owner: Owner, memory: Any, source: Any) -> bool:
    """Return whether writing here could change an input before it has been read.

    The kernels read each element before they write the same one, so an input with the very same
    elements in the same places is safe: that is ``out=x``.
    """
    if source is None:
        return False
    return overlap(owner, memory, source) and _extent(owner, memory) != _extent(owner, source)


def overlap(owner: Owner, one: Any, other: Any) -> bool:
    """Return whether arrays share memory: of strided ones, whether they begin at one place."""
    if not (owner.is_contiguous(one) and owner.is_contiguous(other)):
        return owner.address(one) == owner.address(other)
    (_, start, stop), (_, first, last) = _extent(owner, one), _extent(owner, other)
    return start < last and first < stop


def _extent(owner: Owner, array: Any) -> tuple[str, int, int]:
    """Return the dtype of a C-contiguous array, and from where to where it lies."""
    name, start = owner.dtype_name(array), owner.address(array)
    return name, start, start + math.prod(owner.shape(array)) * ELEMENTS[name].itemsize


def _kind(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
