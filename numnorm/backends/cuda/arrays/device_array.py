"""Device arrays of all libraries: checks, memory order and outputs.

Nothing here needs a compiler or a driver.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np

from numnorm.arguments import FLOATS, Shape, check_shape
from numnorm.array_likes import sharing as sharing_on_host
from numnorm.backends.cuda.arrays.libraries import LIBRARIES, ArrayLibrary, library_of
from numnorm.backends.cuda.arrays.recording import CURRENT
from numnorm.backends.cuda.compiler.element_type import ELEMENT_TYPES, ElementType

Order = tuple[int, ...] | None


@dataclasses.dataclass(eq=False, slots=True)
class DeviceArray:
    """An array in the memory of a CUDA device.

    Parameters
    ----------
    name : str
        The name of the caller's argument, for messages.
    array : Any
        The array of the caller's library.
    lib : ArrayLibrary
        The library.
    element : ElementType
        The type of the elements.
    shape : tuple of int
        The shape.
    device : int
        The number of the device.
    signature : Any
        What the checks saw of the array; None if they must be repeated for another such array.
    """

    name: str
    array: Any
    lib: ArrayLibrary
    element: ElementType
    shape: Shape
    device: int
    signature: Any = dataclasses.field(default=None, kw_only=True)

    @property
    def dtype(self) -> ElementType:
        """The type of the elements, under NumPy's name."""
        return self.element


def with_array(x: DeviceArray, array: Any, **changes: Any) -> DeviceArray:
    """Return x with another array and other changes; checks have not seen that array."""
    return dataclasses.replace(x, array=array, signature=None, **changes)


def as_float_array(name: str, value: Any) -> DeviceArray:
    """Return a caller's array, checked to be on a device and of a float dtype."""
    library = library_of(type(value))  # type: ignore[arg-type]  # types are hashable
    if library is None:
        labels = dict.fromkeys(library.label for library in LIBRARIES)
        supported = ", ".join(["numpy.ndarray", *labels])
        raise TypeError(f"{name} must be one of {supported}, got {_kind(value)}")
    signature = library.signature(value)
    known = _CHECKED.get((library.package, signature))
    if known is not None:
        return DeviceArray(name, value, library, *known, signature=signature)
    library.check(name, value)
    dtype = library.dtype_name(value)
    element = ELEMENT_TYPES.get(dtype)
    if element is None:
        floats = f"{', '.join(FLOATS[:-1])} or {FLOATS[-1]}"
        raise TypeError(f"{name} must be converted to {floats} on the device, got {dtype}")
    facts = element, library.shape(value), library.device(value)
    if signature is not None and library.is_on_device(value):
        if len(_CHECKED) >= _MOST_CHECKED:
            _CHECKED.clear()
        _CHECKED[library.package, signature] = facts
    return DeviceArray(name, value, library, *facts, signature=signature)


# The element type, shape and device of arrays that passed the checks, by library and signature.
_CHECKED: dict[Any, tuple[ElementType, Shape, int]] = {}
_MOST_CHECKED = 4096


def as_companion(name: str, value: Any, x: DeviceArray) -> DeviceArray:
    """Return a caller's array, checked to be of the library and on the device of x."""
    library = library_of(type(value))  # type: ignore[arg-type]  # types are hashable
    if library is not x.lib or not library.is_on_device(value):
        where = " on the host" if library is x.lib else ""
        raise TypeError(
            f"{name} must be a {x.lib.label} on device {x.device}, as {x.name} is, "
            f"got {_kind(value)}{where}"
        )
    array = as_float_array(name, value)
    if array.device != x.device:
        raise ValueError(
            f"{name} must be on device {x.device}, as {x.name} is, got one on device {array.device}"
        )
    check_stream(name, value, x)
    return array


def check_stream(name: str, value: Any, x: DeviceArray) -> None:
    """Raise if an array of the library of x is bound to another stream than x."""
    if not x.lib.carries_stream:
        return
    # Work on it would go to its own stream, in no order with the kernels on the stream of x. Only
    # the default stream, 0, waits for other streams.
    own, of_x = x.lib.stream(value), x.lib.stream(x.array)
    if own != of_x and own and of_x:
        raise ValueError(f"{name} must be bound to the stream of {x.name}, got one of another")


def as_parameter(
    name: str, value: Any, expected: Shape, meaning: str, x: DeviceArray
) -> DeviceArray:
    """Return a caller's array, checked to have the expected shape, and C-contiguous."""
    array = as_companion(name, value, x)
    check_shape(name, array.shape, expected, meaning)
    array.array = array.lib.contiguous(array.array)
    return array


def in_order(x: DeviceArray, order: Order) -> Any:
    """Return the array of x with its axes in `order`, C-contiguous, copied only if it must be."""
    array = x.array if order is None else x.lib.permuted(x.array, order)
    return x.lib.contiguous(array)


class Output(NamedTuple):
    """The array that a kernel writes, and the array that the caller gets.

    Attributes
    ----------
    target : Any
        The array that a kernel writes: C-contiguous, its axes in the kernel's order.
    destination : Any
        A view of `out` with its axes in that order, to which `target` is copied afterwards; None
        without a copy.
    out : Any
        The caller's `out`, or None.
    """

    target: Any
    destination: Any
    out: Any


def output_like(
    x: DeviceArray,
    order: Order,
    out: Any,
    inputs: tuple[Any, ...],
    *,
    in_place: bool = True,
    name: str = "out",
) -> Output:
    """Return the output for a result of the shape and dtype of x; `name` is that of `out`.

    The kernel writes to `out` itself if that is C-contiguous and does not overlap an input; if it
    works `in_place`, `out` may be an input. The `inputs` are the arrays that the kernel reads; some
    may be None.
    """
    destination = None
    if out is not None:
        check_out(name, out, x)
        destination = out if order is None else x.lib.permuted(out, order)
        if x.lib.is_contiguous(destination) and not any(
            _clash(x.lib, destination, a, in_place=in_place) for a in inputs
        ):
            return Output(destination, None, out)
    shape = x.shape if order is None else tuple(x.shape[a] for a in order)
    return Output(x.lib.empty(x.array, shape, x.element.name), destination, out)


def result(output: Output, x: DeviceArray, order: Order) -> Any:
    """Return the caller's result, after the kernel has written the output."""
    if output.destination is not None:
        x.lib.copy(output.destination, output.target)
    if output.out is not None:
        return output.out
    if order is None:
        return output.target
    return x.lib.permuted(output.target, tuple(order.index(a) for a in range(len(order))))


def check_out(name: str, out: Any, x: DeviceArray) -> None:
    """Raise unless an array, an argument of a call, can take a result like x."""
    if not x.lib.writable:
        raise TypeError(f"{name} must be None: a {x.lib.label} cannot be written")
    array = as_companion(name, out, x)
    check_shape(name, array.shape, x.shape, f"the shape of {x.name}")
    if array.element != x.element:
        wanted, got = x.element.name, array.element.name
        raise TypeError(f"{name} must have dtype {wanted}, that of the result, got {got}")


def _clash(library: ArrayLibrary, memory: Any, source: Any, *, in_place: bool) -> bool:
    """Return whether a write to this memory could change an input before it is read.

    A kernel that works in place reads each element before it writes the same element, so ``out=x``
    is safe: the same elements at the same addresses.
    """
    if source is None or not overlap(library, memory, source):
        return False
    return not in_place or _extent(library, memory) != _extent(library, source)


def overlap(library: ArrayLibrary, one: Any, other: Any) -> bool:
    """Return whether arrays share memory; for strided arrays, whether they begin at one address."""
    if not (library.is_contiguous(one) and library.is_contiguous(other)):
        return library.address(one) == library.address(other)
    extents = _extent(library, one), _extent(library, other)
    if CURRENT.recording is not None:
        CURRENT.recording.compared(one, other, extents)
    return extents[0].meets(extents[1])


def sharing(library: ArrayLibrary, one: Any, other: Any) -> str:
    """Return what `array_likes.sharing` does; strided arrays may lie in each other's gaps."""
    if library.is_contiguous(one) and library.is_contiguous(other):
        return "do" if overlap(library, one, other) else ""
    # Calls with strided arrays are not repeated without this check.
    return sharing_on_host(_shadow(library, one), _shadow(library, other))


def _shadow(library: ArrayLibrary, array: Any) -> np.ndarray[Any, Any]:
    """Return an array of NumPy that is where an array of a device is; nobody may read it."""
    itemsize = ELEMENT_TYPES[library.dtype_name(array)].itemsize
    memory = _Memory()
    memory.__array_interface__ = {
        "version": 3,
        "typestr": f"|V{itemsize}",
        "shape": library.shape(array),
        "strides": library.strides(array),
        "data": (library.address(array), True),
    }
    return np.asarray(memory)


class _Memory:
    """What NumPy takes for an array."""

    __array_interface__: dict[str, Any]


class Extent(NamedTuple):
    """The name of the dtype of a C-contiguous array, and the addresses of its start and end."""

    dtype: str
    start: int
    stop: int

    def meets(self, other: "Extent") -> bool:
        """Return whether two arrays share memory."""
        return self.start < other.stop and other.start < self.stop


def _extent(library: ArrayLibrary, array: Any) -> Extent:
    name, start = library.dtype_name(array), library.address(array)
    return Extent(name, start, start + bytes_of(library.shape(array), name))


def bytes_of(shape: Shape, name: str) -> int:
    """Return the bytes of a C-contiguous array of this shape and dtype."""
    return math.prod(shape) * (1 if name == "bool" else ELEMENT_TYPES[name].itemsize)


def _kind(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
