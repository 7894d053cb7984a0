"""A kernel on the stream of the library whose arrays it works on."""

import contextlib
from collections.abc import Iterator
from typing import Any

from numnorm.backends.cuda.arrays import DeviceArray
from numnorm.backends.cuda.target import Kernel, check_available, on_device, synchronize


@contextlib.contextmanager
def on_device_of(x: DeviceArray) -> Iterator[None]:
    """Allocate and launch on the device of an array, for as long as this lasts."""
    check_available()
    with x.owner.using(x.device), on_device(x.device):
        yield


def queue(kernel: Kernel, blocks: int, x: DeviceArray, arrays: Any, arguments: Any) -> None:
    """Queue a kernel behind what the library of x has queued for it, and do not wait.

    Its first arguments are the addresses of the arrays, 0 for None, and then come the others.
    Only for a library whose own queue is out of sight does the host wait.
    """
    owner, stream = x.owner, x.owner.stream(x.array)
    addresses = [0 if array is None else owner.address(array) for array in arrays]
    kernel.launch(blocks, stream, *addresses, *arguments)
    if owner.waits:
        synchronize(stream)
