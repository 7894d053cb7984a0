"""Calls whose arrays have passed all checks before: what follows from their signatures is kept.

A call is known by its norm and options, which are the same objects as then, and by the signatures
of its arrays. What is left to look at are addresses: whether vectors are aligned, and whether the
output overlaps an input.
"""

from typing import Any, NamedTuple

from numnorm.backends.cuda.arrays.device_array import DeviceArray, Extent
from numnorm.backends.cuda.arrays.libraries import ArrayLibrary, library_of
from numnorm.backends.cuda.compiler.vector_access import BYTES

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
        if x.signature is None:
            return None, None
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


class Input(NamedTuple):
    """An array of a known call that a kernel reads.

    Attributes
    ----------
    dtype : str
        The name of its dtype.
    size : int
        Its bytes; 0 if a number stands for the array.
    in_vectors : bool
        Whether the kernel reads vectors, which may be aligned.
    """

    dtype: str
    size: int
    in_vectors: bool


Inputs = tuple[Input, ...]
"""The inputs of a known call; the first one is as large as the output, and of its dtype."""


def addresses_of(library: ArrayLibrary, *arrays: Any) -> list[int]:
    """Return the addresses of arrays, 0 for None."""
    return [0 if array is None else library.address(array) for array in arrays]


def changes_an_input(inputs: Inputs, addresses: list[int], target: int) -> bool:
    """Return whether a write to the output could change an input before it is read.

    A kernel reads each element before it writes the same one, so that the output may be an input.
    """
    dtype, size, _ = inputs[0]
    written = Extent(dtype, target, target + size)
    for (dtype, size, _), address in zip(inputs, addresses, strict=True):
        read = Extent(dtype, address, address + size)
        if read.meets(written) and read != written:
            return True
    return False


def are_aligned(inputs: Inputs, addresses: list[int], target: int) -> bool:
    """Return whether all vectors of the inputs and of the output are aligned."""
    for (_, _, in_vectors), address in zip(inputs, addresses, strict=True):
        if in_vectors and address % BYTES:
            return False
    return target % BYTES == 0
