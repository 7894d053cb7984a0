"""A kernel on the stream of the library whose arrays it works on."""

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from numnorm.backends.cuda.arrays.device_array import DeviceArray
from numnorm.backends.cuda.arrays.libraries import Owner
from numnorm.backends.cuda.compiler.target import Kernel, check_available, on_device, synchronize


class Behind(NamedTuple):
    """A part of an array's memory: what lies so many bytes behind its first element."""

    array: Any
    offset: int


@contextlib.contextmanager
def on_device_of(x: DeviceArray) -> Iterator[None]:
    """Allocate and launch on the device of an array, for as long as this lasts."""
    check_available()
    with x.owner.using(x.device), on_device(x.device):
        yield


def queue(kernel: Kernel, blocks: int, x: DeviceArray, arrays: Any, arguments: Any) -> None:
    """Queue a kernel behind what the library of x has queued for it, and do not wait.

    Its first arguments are the addresses of the arrays or parts of them, 0 for None, or numbers
    that are addresses already, in NamedTuples as the kernel groups them, and then come the others.
    Only for a library whose own queue is out of sight does the host wait.
    """
    with _launching(x) as stream:
        kernel.launch(blocks, stream, *_addresses(x, arrays), *arguments)


def queue_together(
    kernel: Kernel, blocks: int, memory: int, x: DeviceArray, arrays: Any, arguments: Any
) -> None:
    """Queue a kernel whose blocks wait for each other, and share so many bytes each."""
    with _launching(x) as stream:
        kernel.launch_together(blocks, stream, memory, *_addresses(x, arrays), *arguments)


@contextlib.contextmanager
def _launching(x: DeviceArray) -> Iterator[int]:
    stream = x.owner.stream(x.array)
    yield stream
    if x.owner.waits:
        synchronize(stream)


def _addresses(x: DeviceArray, arrays: Any) -> list[Any]:
    return [_address(x.owner, array) for array in arrays]


def _address(owner: Owner, array: Any) -> Any:
    if array is None:
        return 0
    if isinstance(array, int):
        return array
    if isinstance(array, Behind):
        return owner.address(array.array) + array.offset
    if isinstance(array, tuple):  # a group of a kernel's parameters
        return type(array)(*(_address(owner, field) for field in array))
    return owner.address(array)
