"""Launch a kernel on the stream of the library whose arrays it works on."""

from typing import Any, NamedTuple

from numnorm.backends.cuda.arrays.device_array import DeviceArray
from numnorm.backends.cuda.arrays.libraries import ArrayLibrary
from numnorm.backends.cuda.compiler.target import Kernel, check_available, on_device, synchronize


class ArrayOffset(NamedTuple):
    """The memory of an array from an offset on, in bytes behind its first element."""

    array: Any
    offset: int


class _OnDevice:
    """The device of an array as the current device, of its library and of the compiler."""

    __slots__ = ("_contexts",)

    def __init__(self, x: DeviceArray) -> None:
        self._contexts = x.lib.using(x.device), on_device(x.device)

    def __enter__(self) -> None:
        for context in self._contexts:
            context.__enter__()

    def __exit__(self, *error: Any) -> None:
        for context in reversed(self._contexts):
            context.__exit__(*error)


def on_device_of(x: DeviceArray) -> _OnDevice:
    """Return a context in which allocations and launches use the device of an array."""
    check_available()
    return _OnDevice(x)


def launch(kernel: Kernel, blocks: int, x: DeviceArray, arrays: Any, arguments: Any) -> None:
    """Launch a kernel on the stream of the library of x, and do not wait for it.

    The kernel takes the addresses of the `arrays` first, and the `arguments` behind them. Among
    the arrays, None becomes the address 0, numbers stay numbers, and NamedTuples become NamedTuples
    of addresses. The host waits only if the library hides the stream of its own work.
    """
    stream = x.lib.stream(x.array)
    kernel.launch(blocks, stream, *_addresses(x.lib, arrays), *arguments)
    _wait_if_hidden(x, stream)


class PreparedLaunch:
    """A launch whose arguments are known but for the addresses of arrays.

    Parameters
    ----------
    kernel, blocks, arguments
        As for `launch`.
    arrays : tuple
        As for `launch`, with the numbers -1, -2 and so on in the place of arrays.
    """

    def __init__(self, kernel: Kernel, blocks: int, arrays: Any, arguments: Any) -> None:
        self._kernel, self._blocks = kernel, blocks
        self._numbers = kernel.numbers((*arrays, *arguments))
        marks = [number for number in self._numbers if type(number) is int and number < 0]
        self._places = [self._numbers.index(-number) for number in range(1, len(marks) + 1)]

    def run(self, x: DeviceArray, *arrays: Any) -> None:
        """Launch the kernel on the stream of the library of x.

        The arrays are those of -1, -2 and so on, or their addresses; None becomes the address 0.
        """
        numbers = self._numbers.copy()
        for place, array in zip(self._places, arrays, strict=True):
            numbers[place] = array if type(array) is int else _address(x.lib, array)
        stream = x.lib.stream(x.array)
        self._kernel.launch_numbers(self._blocks, stream, numbers)
        _wait_if_hidden(x, stream)


def launch_cooperative(
    kernel: Kernel, blocks: int, memory: int, x: DeviceArray, arrays: Any, arguments: Any
) -> None:
    """Launch a kernel whose blocks wait for each other, each with `memory` bytes to share."""
    stream, addresses = x.lib.stream(x.array), _addresses(x.lib, arrays)
    kernel.launch_cooperative(blocks, stream, memory, *addresses, *arguments)
    _wait_if_hidden(x, stream)


def _wait_if_hidden(x: DeviceArray, stream: int) -> None:
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
