"""Launch a kernel on the stream of the library whose arrays it works on."""

import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from numnorm.backends.cuda.arrays.device_array import DeviceArray
from numnorm.backends.cuda.arrays.libraries import ArrayLibrary
from numnorm.backends.cuda.arrays.recording import CURRENT
from numnorm.backends.cuda.compiler.target import Kernel, check_available, on_device, synchronize


class ArrayOffset(NamedTuple):
    """The memory of an array from an offset on, in bytes behind its first element."""

    array: Any
    offset: int


class _Both:
    """Two contexts, the second of them inside of the first."""

    __slots__ = ("_first", "_second")

    def __init__(self, first: Any, second: Any) -> None:
        self._first, self._second = first, second

    def __enter__(self) -> None:
        self._first.__enter__()
        try:
            self._second.__enter__()
        except BaseException:
            self._first.__exit__(*sys.exc_info())
            raise

    def __exit__(self, *error: Any) -> None:
        try:
            self._second.__exit__(*error)
        finally:
            self._first.__exit__(*error)


def on_device_of(x: DeviceArray) -> Any:
    """Return a context in which allocations and launches use the device of an array."""
    check_available()
    of_library, of_compiler = x.lib.using(x.device), on_device(x.device)
    return of_compiler if of_library is None else _Both(of_library, of_compiler)


def launch(kernel: Kernel, blocks: int, x: DeviceArray, arrays: Any, arguments: Any) -> None:
    """Launch a kernel on the stream of the library of x, and do not wait for it.

    The kernel takes the addresses of the `arrays` first, and the `arguments` behind them. Among
    the arrays, None becomes the address 0, numbers stay numbers, and NamedTuples become NamedTuples
    of addresses. The host waits only if the library hides the stream of its own work.
    """
    check_loaded(kernel, x)
    stream = x.lib.stream(x.array)
    numbers = kernel.numbers((*_addresses(x.lib, arrays), *arguments))
    kernel.launch_numbers(blocks, stream, numbers)
    wait_if_hidden(x, stream)
    if CURRENT.recording is not None:
        CURRENT.recording.launched(kernel, blocks, stream, numbers, _located(arrays))


def launch_threads(kernel: Kernel, count: int, x: DeviceArray, arrays: Any, arguments: Any) -> None:
    """Launch a kernel as `launch` does, with at least `count` threads."""
    launch(kernel, -(-count // kernel.threads), x, arrays, arguments)


def launch_cooperative(
    kernel: Kernel, blocks: int, memory: int, x: DeviceArray, arrays: Any, arguments: Any
) -> None:
    """Launch a kernel whose blocks wait for each other, each with `memory` bytes to share."""
    check_loaded(kernel, x)
    stream, addresses = x.lib.stream(x.array), _addresses(x.lib, arrays)
    kernel.launch_cooperative(blocks, stream, memory, *addresses, *arguments)
    wait_if_hidden(x, stream)
    if CURRENT.recording is not None:
        CURRENT.recording.complete = False


def check_loaded(kernel: Kernel, x: DeviceArray) -> None:
    """Raise if a kernel would be loaded while a graph is captured."""
    if not kernel.is_loaded(x.device):
        check_not_capturing(x.lib)


def check_not_capturing(library: ArrayLibrary) -> None:
    """Raise while a graph is captured: a kernel that is loaded would end the capture."""
    if library.is_capturing():
        raise RuntimeError(
            "a call must have been made before a graph of it is captured, with arrays of the same "
            "dtypes, shapes and alignment: the first call loads kernels"
        )


def wait_if_hidden(x: DeviceArray, stream: int) -> None:
    """Wait for a stream if the library of x hides the stream of its own work."""
    if x.lib.waits:
        synchronize(stream)


def _addresses(library: ArrayLibrary, arrays: Any) -> list[Any]:
    return [_address(library, array) for array in arrays]


def _address(library: ArrayLibrary, array: Any) -> Any:
    if isinstance(array, ArrayOffset):
        return library.address(array.array) + array.offset
    if isinstance(array, tuple):  # a group of a kernel's parameters
        return type(array)(*_addresses(library, array))
    if array is None:
        return 0
    return array if type(array) in (int, float) else library.address(array)


def _located(arrays: Any) -> Iterator[tuple[int, Any, int]]:
    """Yield arrays in any groups: the place of each, the array, and the offset of the address."""
    for place, entry in enumerate(_flat(arrays)):
        array, offset = entry if isinstance(entry, ArrayOffset) else (entry, 0)
        if array is not None and type(array) not in (int, float):
            yield place, array, offset


def _flat(arrays: Any) -> Iterator[Any]:
    for array in arrays:
        if isinstance(array, tuple) and not isinstance(array, ArrayOffset):
            yield from _flat(array)
        else:
            yield array
