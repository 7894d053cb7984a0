"""Calls whose arrays have passed all checks before: what follows from their signatures is kept.

A call is known by its norm and options, which are the same objects as then, and by the signatures
of its arrays. What is left to look at are addresses: whether vectors are aligned, and whether the
output overlaps an input.
"""

from typing import Any, NamedTuple

from numnorm.backends.cuda.arrays.device_array import DeviceArray
from numnorm.backends.cuda.arrays.libraries import library_of
from numnorm.backends.cuda.compiler.element_type import ElementType

_MOST_CALLS = 1024


class KnownCalls:
    """What a backend keeps of calls of one function."""

    def __init__(self) -> None:
        self._calls: dict[Any, tuple[Any, Any]] = {}

    def find(
        self, x: DeviceArray, options: tuple[Any, ...], flags: Any, arrays: tuple[Any, ...]
    ) -> Any:
        """Return the key of a call and what is kept of it; None for what is not known.

        Parameters
        ----------
        x : DeviceArray
            The input.
        options : tuple
            Objects that are the same ones in the same call.
        flags : hashable
            Options that are equal in the same call.
        arrays : tuple
            The other arrays of the caller; some may be None.
        """
        signatures: list[Any] = [x.lib.package, x.signature]
        for array in arrays:
            if array is None:
                signatures.append(None)
                continue
            own = library_of(type(array))  # type: ignore[arg-type]  # types are hashable
            signature = x.lib.signature(array) if own is x.lib else None
            if signature is None:
                return None, None
            signatures.append(signature)
        if x.signature is None:
            return None, None
        key = (*map(id, options), flags, *signatures)
        _, call = self._calls.get(key, (None, None))
        return key, call

    def clear(self) -> None:
        """Forget all calls."""
        self._calls.clear()

    def keep(self, key: Any, options: tuple[Any, ...], call: Any) -> None:
        """Keep a call under its key, and its options alive, so that no other has their ids."""
        if len(self._calls) >= _MOST_CALLS:
            self.clear()
        self._calls[key] = options, call


class Extent(NamedTuple):
    """The type of the elements of an array without gaps, and its size in bytes."""

    element: ElementType | None
    size: int


def clashes(target: int, written: Extent, source: int, read: Extent) -> bool:
    """Return whether a write to memory could change an input before it is read.

    A kernel reads each element before it writes the same one, so that the same memory of the same
    type does not clash. An input without elements has no address.
    """
    if target == source and written == read:
        return False
    return target < source + read.size and source < target + written.size
