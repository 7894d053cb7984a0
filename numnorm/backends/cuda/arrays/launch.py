"""Launch a kernel on the stream of the library whose arrays it works on."""

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from numnorm.backends.cuda.arrays.device_array import DeviceArray
from numnorm.backends.cuda.arrays.libraries import ArrayLibrary
from numnorm.backends.cuda.compiler.target import Kernel, check_available, on_device, synchronize


class ArrayOffset(NamedTuple):
    """The memory of an array from an offset on, in bytes behind its first element."""

    array: Any
    offset: int


@contextlib.contextmanager
def on_device_of(x: DeviceArray) -> Iterator[None]:
    """Return a context in which allocations and launches use the device of an array."""
    check_available()
    with x.library.using(x.device), on_device(x.device):
        yield


def launch(kernel: Kernel, blocks: int, x: DeviceArray, arrays: Any, arguments: Any) -> None:
    """Launch a kernel on the stream of the library of x, and do not wait for it.

    The kernel takes the addresses of the `arrays` first, and the `arguments` behind them. Among
    the arrays, None becomes the address 0, numbers stay numbers, and NamedTuples become NamedTuples
    of addresses. The host waits only if the library hides the stream of its own work.
    """
    with _launching(x) as stream:
        kernel.launch(blocks, stream, *_addresses(x, arrays), *arguments)


def launch_cooperative(
    kernel: Kernel, blocks: int, memory: int, x: DeviceArray, arrays: Any, arguments: Any
) -> None:
    """Launch a kernel whose blocks wait for each other, each with `memory` bytes to share."""
    with _launching(x) as stream:
        kernel.launch_cooperative(blocks, stream, memory, *_addresses(x, arrays), *arguments)


@contextlib.contextmanager
def _launching(x: DeviceArray) -> Iterator[int]:
    stream = x.library.stream(x.array)
    yield stream
    if x.library.waits:
        synchronize(stream)


def _addresses(x: DeviceArray, arrays: Any) -> list[Any]:
    return [_address(x.library, array) for array in arrays]


def _address(library: ArrayLibrary, array: Any) -> Any:
    if array is None:
        return 0
    if isinstance(array, int | float):
        return array
    if isinstance(array, ArrayOffset):
        return library.address(array.array) + array.offset
    if isinstance(array, tuple):  # a group of a kernel's parameters
        return type(array)(*(_address(library, field) for field in array))
    return library.address(array)
