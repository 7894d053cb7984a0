"""What a call does on the device, noted while it runs: its new arrays and its launches.

A thread records one call at a time. The caller's arrays and new ones are known by their identity.
A call that hands a kernel any other array, such as a copy, cannot be recorded.
"""

import threading
from collections.abc import Iterable
from typing import Any, NamedTuple


class Launch(NamedTuple):
    """A launch of a kernel.

    Attributes
    ----------
    kernel, blocks
        As for `Kernel.launch_numbers`.
    numbers : list
        All numbers of the kernel. Addresses of arrays have no meaning.
    places : tuple of (int, int, int)
        For each address its place among the numbers, the number of its array, and an offset.
    """

    kernel: Any
    blocks: int
    numbers: list[Any]
    places: tuple[tuple[int, int, int], ...]


class Apart(NamedTuple):
    """Two of the caller's arrays that share no memory: their numbers and bytes."""

    one: int
    bytes_of_one: int
    other: int
    bytes_of_other: int


class Recording:
    """What a call has done so far.

    Parameters
    ----------
    arrays : tuple
        The caller's arrays, which have the first numbers; some may be None.
    stream : int
        The stream of the launches.

    Attributes
    ----------
    new : list of (array, shape, dtype name)
        The new arrays, which have the next numbers.
    launches : list of Launch
    apart : list of Apart
        The pairs of the caller's arrays that were found to share no memory.
    complete : bool
        Whether nothing else was done.
    overlap : bool
        Whether two of the caller's arrays shared memory, which the next ones may not.
    """

    def __init__(self, arrays: tuple[Any, ...], stream: int) -> None:
        self.callers, self._stream = len(arrays), stream
        # Arrays are kept, so that no other has their ids.
        self._numbers = {id(array): (array, number) for number, array in enumerate(arrays)}
        self.new: list[tuple[Any, tuple[int, ...], str]] = []
        self.launches: list[Launch] = []
        self.apart: list[Apart] = []
        self.complete, self.overlap = True, False

    def number_of(self, array: Any) -> int | None:
        """Return the number of an array; None if it is neither the caller's nor noted as new."""
        _, number = self._numbers.get(id(array), (None, None))
        return number

    def allocated(self, array: Any, shape: tuple[int, ...], name: str) -> None:
        """Note a new array of a shape and dtype."""
        self._numbers[id(array)] = array, self.callers + len(self.new)
        self.new.append((array, tuple(shape), name))

    def viewed(self, view: Any, array: Any) -> None:
        """Note an array with the elements of another one, in another shape."""
        number = self.number_of(array)
        if number is not None:
            self._numbers[id(view)] = view, number

    def launched(
        self,
        kernel: Any,
        blocks: int,
        stream: int,
        numbers: list[Any],
        arrays: Iterable[tuple[int, Any, int]],
    ) -> None:
        """Note a launch with numbers: some are addresses of arrays, behind which is an offset."""
        places = []
        for place, array, offset in arrays:
            number = self.number_of(array)
            if number is None:
                self.complete = False
            else:
                places.append((place, number, offset))
        self.complete &= stream == self._stream
        self.launches.append(Launch(kernel, blocks, numbers, tuple(places)))

    def compared(self, one: Any, other: Any, extents: Any) -> None:
        """Note a comparison of the extents of two arrays.

        Where they begin at one address is part of what a known call is found by.
        """
        first, second = self.number_of(one), self.number_of(other)
        of_one, of_other = extents
        if first is None or second is None or of_one.start == of_other.start:
            return
        if of_one.meets(of_other):
            self.overlap = True
        elif max(first, second) < self.callers:
            sizes = of_one.stop - of_one.start, of_other.stop - of_other.start
            self.apart.append(Apart(first, sizes[0], second, sizes[1]))


class _Current(threading.local):
    recording: Recording | None = None


CURRENT = _Current()
"""The recording of the call that this thread makes."""
