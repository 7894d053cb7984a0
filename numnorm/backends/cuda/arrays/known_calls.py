"""Calls that were made before do the same on the device again, without the checks.

The first call with arrays of some signatures is recorded. A later one looks only at addresses:
which of them are equal or aligned, and whether memory that was apart still is. It then allocates
what the first one did, and launches the same kernels.
"""

import contextlib
import functools
import inspect
import operator
from collections.abc import Callable, Hashable, Iterator
from types import NoneType
from typing import Any, NamedTuple, TypeVar, cast

from numnorm.arguments import Shape
from numnorm.backends.contract.moving import ExponentialState
from numnorm.backends.contract.weighting import Weighting
from numnorm.backends.cuda.arrays.device_array import DeviceArray, bytes_of
from numnorm.backends.cuda.arrays.launch import (
    check_not_capturing,
    on_device_of,
    wait_if_hidden,
)
from numnorm.backends.cuda.arrays.libraries import ArrayLibrary, library_of
from numnorm.backends.cuda.arrays.recording import CURRENT, Apart, Launch, Recording
from numnorm.backends.cuda.compiler.element_type import FLOAT32, VECTOR_BYTES

_MOST_CALLS = 1024
# Arrays that only kernels see share memory, each from a multiple of these bytes on.
_ALIGNMENT = 256

_NO_ARRAYS = (NoneType, int, float)
_GROUPS = (Weighting, ExponentialState)

_Function = TypeVar("_Function", bound=Callable[..., Any])

_calls: dict[Any, dict[Any, "KnownCall | None"]] = {}


def forget() -> None:
    """Forget all calls."""
    _calls.clear()


def repeated(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    x: DeviceArray,
    arrays: tuple[Any, ...],
    options: Hashable,
) -> Any:
    """Return ``function(*arguments)``, or do what it did before with arrays of these signatures.

    Parameters
    ----------
    function : callable
        It returns arrays, numbers and None, in any tuples. All that it does on a device it does by
        `launch` and the methods of an `ArrayLibrary`, and none of it depends on numbers there.
    arguments : tuple
        Its arguments. They are `x`, the `arrays` and what follows from the `options`.
    x : DeviceArray
        The array whose stream the launches use.
    arrays : tuple
        All other arrays, as the caller gave them; some may be None or a number.
    options : hashable
        Equal where the other arguments are.
    """
    if x.signature is None or CURRENT.recording is not None:
        return function(*arguments)
    library, kind = x.lib, type(x.array)
    signatures: list[Any] = [function, options, library.package, x.signature]
    for array in arrays:
        if isinstance(array, _NO_ARRAYS):
            # As text NaN is equal to NaN, and 0 not to -0.
            signatures.append(repr(array) if isinstance(array, float) else array)
            continue
        is_own = type(array) is kind or library_of(type(array)) is library  # type: ignore[arg-type]
        signature = library.signature(array) if is_own else None
        if signature is None:
            return function(*arguments)
        signatures.append(signature)
    key, given = tuple(signatures), (x.array, *arrays)
    known = _calls.get(key)
    if known is None:
        return _recorded(function, arguments, x, given, key)
    addresses = _addresses(library, given)
    pattern = _pattern(addresses)
    if pattern not in known:
        return _recorded(function, arguments, x, given, key)
    found = known[pattern]
    if found is None or not found.holds(addresses):
        return function(*arguments)
    return found.run(x, given, addresses)


def repeats(*arrays: str, unless: str | None = None) -> Callable[[_Function], _Function]:
    """Return a decorator of functions whose calls are `repeated`, and take positions alone.

    Parameters
    ----------
    *arrays : str
        The arguments that are arrays, numbers or None, and a `weighting` or a `state`, which have
        some. The function has an x beside them, and its other arguments are options.
    unless : str
        The last argument, if calls that have it are not repeated.
    """

    def decorated(function: _Function) -> _Function:
        names = list(inspect.signature(function).parameters)
        most, of_x = len(names) - (unless is not None), names.index("x")
        arrays_of = _picker([names.index(name) for name in arrays])
        others = {*arrays, "x", unless}
        options_of = _picker([n for n, name in enumerate(names) if name not in others])
        in_groups = not {"weighting", "state"}.isdisjoint(arrays)

        @functools.wraps(function)
        def call(*arguments: Any) -> Any:
            if len(arguments) > most and arguments[most] is not None:
                return function(*arguments)
            read = arrays_of(arguments)
            if in_groups:
                read = tuple(_flat(read))
            return repeated(function, arguments, arguments[of_x], read, options_of(arguments))

        return cast(_Function, call)

    return decorated


def _picker(places: list[int]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """Return a function of the values of a tuple in these places."""
    if len(places) > 1:
        return operator.itemgetter(*places)
    return lambda values: tuple(values[place] for place in places)


def _flat(values: tuple[Any, ...]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, _GROUPS):
            yield from value
        else:
            yield value


def _addresses(library: ArrayLibrary, arrays: tuple[Any, ...]) -> list[int]:
    return [0 if isinstance(array, _NO_ARRAYS) else library.address(array) for array in arrays]


def _pattern(addresses: list[int]) -> Any:
    """Return which addresses are equal, and which are aligned; None if all are."""
    equal = tuple(map(addresses.index, addresses))
    all_aligned = functools.reduce(operator.or_, addresses) % VECTOR_BYTES == 0
    return equal, None if all_aligned else tuple(a % VECTOR_BYTES == 0 for a in addresses)


def _recorded(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    x: DeviceArray,
    given: tuple[Any, ...],
    key: Any,
) -> Any:
    """Return ``function(*arguments)``, and keep what it did."""
    check_not_capturing(x.lib)
    recording = Recording(given, x.lib.stream(x.array))
    CURRENT.recording = recording
    try:
        result = function(*arguments)
    finally:
        CURRENT.recording = None
    if recording.overlap:
        return result
    if len(_calls) >= _MOST_CALLS:
        # Another thread may add or forget a call meanwhile.
        with contextlib.suppress(RuntimeError, StopIteration):
            _calls.pop(next(iter(_calls)), None)  # the oldest
    pattern = _pattern(_addresses(x.lib, given))  # valid, as the function has checked the arrays
    known = _known_call(recording, given, result, x.lib) if recording.complete else None
    _calls.setdefault(key, {})[pattern] = known
    return result


class _Numbered(NamedTuple):
    """The place of an array in a result: its number."""

    number: int


class KnownCall(NamedTuple):
    """What a call does.

    Attributes
    ----------
    new : tuple of (shape, dtype name)
        The new arrays, numbered after the caller's arrays.
    launches : tuple of Launch
        Its launches, in order.
    apart : tuple of Apart
        The pairs of the caller's arrays that must share no memory.
    result : Any
        What it returns, with numbers of arrays.
    """

    new: tuple[tuple[tuple[int, ...], str], ...]
    launches: tuple[Launch, ...]
    apart: tuple[Apart, ...]
    result: Any

    def holds(self, addresses: list[int]) -> bool:
        """Return whether the call does the same with the caller's arrays at these addresses."""
        for one, bytes_of_one, other, bytes_of_other in self.apart:
            start, other_start = addresses[one], addresses[other]
            if start < other_start + bytes_of_other and other_start < start + bytes_of_one:
                return False
        return True

    def run(self, x: DeviceArray, given: tuple[Any, ...], addresses: list[int]) -> Any:
        """Return the result for the caller's arrays, the first of which is that of x."""
        library, array = x.lib, x.array
        with on_device_of(x):
            new = [library.new(array, shape, name) for shape, name in self.new]
            addresses += map(library.address, new)
            stream = library.stream(array)
            for kernel, blocks, numbers, places in self.launches:
                filled = numbers.copy()
                for place, number, offset in places:
                    filled[place] = addresses[number] + offset
                kernel.launch_numbers(blocks, stream, filled)
            wait_if_hidden(x, stream)
        return _with_arrays(self.result, (*given, *new))


def _with_arrays(result: Any, arrays: tuple[Any, ...]) -> Any:
    """Return a result with arrays in the places of their numbers."""
    kind = type(result)
    if kind is _Numbered:
        return arrays[result[0]]
    if not isinstance(result, tuple):
        return result
    values = [_with_arrays(value, arrays) for value in result]
    return tuple(values) if kind is tuple else kind(*values)


def _known_call(
    recording: Recording, given: tuple[Any, ...], result: Any, library: ArrayLibrary
) -> KnownCall | None:
    """Return what a call did that returned this result; None if it returned any other array.

    New arrays that it did not return become parts of one.
    """
    new: list[tuple[Shape, str]] = []
    places: dict[int, tuple[int, int]] = {number: (number, 0) for number in range(len(given))}

    def numbered(value: Any) -> Any:
        if isinstance(value, tuple):
            values = map(numbered, value)
            return tuple(values) if type(value) is tuple else type(value)(*values)
        if value is None or isinstance(value, int | float):
            return value
        number = recording.number_of(value)
        if number is None or (number < len(given) and value is not given[number]):
            raise LookupError
        if number not in places:
            places[number] = len(given) + len(new), 0
            _, _, name = recording.new[number - len(given)]
            new.append((library.shape(value), name))  # its shape may be that of a view
        place, _ = places[number]
        if number >= len(given) and library.shape(value) != new[place - len(given)][0]:
            raise LookupError
        return _Numbered(place)

    try:
        template = numbered(result)
    except LookupError:
        return None
    number, size = len(given) + len(new), 0
    for own, (_, shape, name) in enumerate(recording.new, len(given)):
        if own not in places:
            places[own] = number, size
            size += max(1, -(-bytes_of(shape, name) // _ALIGNMENT)) * _ALIGNMENT
    if size:
        new.append(((size // FLOAT32.itemsize,), FLOAT32.name))
    launches = tuple(
        launch._replace(
            places=tuple(
                (place, places[own][0], places[own][1] + offset)
                for place, own, offset in launch.places
            )
        )
        for launch in recording.launches
    )
    return KnownCall(tuple(new), launches, tuple(recording.apart), template)
