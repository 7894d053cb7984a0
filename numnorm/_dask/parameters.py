"""Arguments of a lazy call: made lazy, checked at the call, and laid along the axes of x."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from numnorm._dask.blocks import Chunks
from numnorm.arguments import Shape, broadcasts, check_parameter_shape
from numnorm.array_likes import as_plain_array, is_on_device, library_of


class Parameter(NamedTuple):
    """A gain or a bias with as many axes as x.

    Attributes
    ----------
    name : str
        Its keyword.
    array : lazy array
        Of the lengths of x, or 1.
    usual : bool
        Whether the caller gave it in the usual shape; otherwise it broadcast against x.
    """

    name: str
    array: Any
    usual: bool

    @property
    def axes(self) -> tuple[int, ...]:
        """The axes along which the array does not broadcast."""
        return tuple(axis for axis, length in enumerate(self.array.shape) if length != 1)


def made_lazy(
    arrays: dict[str, Any], out: Any = None, optional: Iterable[str] = ("gamma", "beta")
) -> dict[str, Any]:
    """Return all arrays as arrays of one lazy library. An array in memory becomes one block.

    Those that are `optional` may be None.

    Empty blocks are left out, unless the whole array is empty.

    Raises
    ------
    TypeError, ValueError
        If `out` is given, if two libraries meet, or if an array has an unknown shape or is masked.
    """
    check_not_written("out", out)
    libraries = {name: library_of(array) for name, array in arrays.items()}
    library, *others = {found for found in libraries.values() if found is not None}
    if others:
        names = " and ".join(sorted(each.__name__ for each in (library, *others)))
        raise TypeError(f"{next(iter(arrays))} must be of the library of all arrays, got {names}")
    return {
        name: None
        if array is None and name in optional
        else _lazy(name, array, library, libraries[name] is not None)
        for name, array in arrays.items()
    }


def check_not_written(name: str, out: Any) -> None:
    """Raise if an argument for a result is given."""
    if out is not None:
        raise ValueError(f"{name} must be None for lazy arrays, got a {type(out).__name__}")


def _lazy(name: str, array: Any, library: Any, lazy: bool) -> Any:
    if not lazy:
        array = array if is_on_device(array) else as_plain_array(name, array)
        return library.from_array(array, chunks=-1)
    if any(map(math.isnan, array.shape)):
        known = "use .compute_chunk_sizes()"
        raise ValueError(f"{name} must have chunks of known lengths, got {array.shape}: {known}")
    meta = getattr(array, "_meta", None)
    if meta is not None and not is_on_device(meta):
        as_plain_array(name, meta)  # refuses masked and sparse blocks
    filled = tuple(tuple(filter(None, each)) or (0,) for each in array.chunks)
    return array if filled == array.chunks else array.rechunk(filled)


def check_assignable(running: Mapping[str, Any]) -> None:
    """Raise unless running statistics, by keyword, can be updated lazily."""
    for name, array in running.items():
        if library_of(array) is None:
            raise ValueError(
                f"{name} must be lazy to be updated by a lazy call, got {type(array).__name__}: "
                "use an array of Dask, or batch_moments"
            )
    first, second = running.values()
    if first is second:
        raise ValueError("running_var must not be the array of running_mean, got the same one")


def aligned_parameter(
    name: str, array: Any, x: Any, own: Sequence[int], shape: Shape, meaning: str
) -> Parameter:
    """Return a parameter that lies along the axes `own` of x, or broadcasts against x.

    Raises
    ------
    ValueError
        If it has neither its usual shape, `shape`, nor one that broadcasts.
    """
    usual = not broadcasts(array.shape, shape, x.shape)
    if usual:
        check_parameter_shape(name, array.shape, shape, meaning, x.shape)
        array = along(array, own, x.ndim)
    return Parameter(name, as_divided(array, x.chunks), usual)


def as_broadcast(name: str, array: Any, x: Any) -> Any:
    """Return an array that broadcasts against x with the shape of x; raise if it does not."""
    try:
        return library_of(x).broadcast_to(array, x.shape)
    except ValueError as error:
        text = f"{name} must broadcast against x of shape {x.shape}, got {array.shape}"
        raise ValueError(text) from error


def along(array: Any, own: Sequence[int], ndim: int) -> Any:
    """Return an array with `ndim` axes: its own ones, and new ones of length 1."""
    return array[tuple(slice(None) if axis in own else None for axis in range(ndim))]


def with_axes(array: Any, own: Sequence[int]) -> Any:
    """Return an array with only its axes `own`: the others have length 1."""
    return array[tuple(slice(None) if axis in own else 0 for axis in range(array.ndim))]


def as_divided(array: Any, chunks: Chunks) -> Any:
    """Return an array in these chunks, except along axes of length 1."""
    wanted = chunks_of(array.shape, chunks)
    return array if array.chunks == wanted else array.rechunk(wanted)


def chunks_of(shape: Shape, chunks: Chunks) -> Chunks:
    """Return these chunks, but one of length 1 along axes where the shape has length 1."""
    return tuple((1,) if n == 1 else given for n, given in zip(shape, chunks, strict=True))


# What a saved mean lost when it was rounded, which the sums over all blocks restore


# Rounding changes a saved mean by no more than this share of it.
_MOST_LOST = 2.0**-50


def lost_of(deviations: Any, count: int, mean: Any) -> Any:
    """Return the true mean less the saved one; 0 where the caller changed the saved one.

    Parameters
    ----------
    deviations : array
        The sums of x less the saved mean.
    count : int
        The number of elements of each sum.
    mean : array
        The saved mean.
    """
    with np.errstate(all="ignore"):
        lost = deviations / count
        return np.where(np.abs(lost) <= _MOST_LOST * np.abs(mean), lost, 0.0)
