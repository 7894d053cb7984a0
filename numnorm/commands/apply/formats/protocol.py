"""What an array in a file offers to be read and to be written, in every format."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from numnorm.commands.apply.boxes import Box, shape_of
from numnorm.commands.terminal import CommandError

Array = np.ndarray[Any, np.dtype[Any]]

# With these attributes of the CF conventions readers would scale or mask normalized numbers.
_PACKING = {"scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned"}
_PACKING |= {"valid_min", "valid_max", "valid_range", "actual_range"}


class Source(Protocol):
    """An array to read.

    `chunks` are the lengths of its chunks, or None; `fortran` tells whether the first axis, not
    the last, is the fastest in the file.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Its dtype in the file."""

    @property
    def chunks(self) -> tuple[int, ...] | None:
        """The lengths that are best read together."""

    @property
    def fortran(self) -> bool:
        """Whether the first axis, not the last, is the fastest."""

    def read(self, box: Box) -> Array:
        """Return the elements in `box`, in the machine's byte order.

        They are valid until the call after the next.
        """

    def identity(self) -> list[Any]:
        """Return what changes when the array is written again, for JSON."""


class Target(Protocol):
    """An array to write."""

    @property
    def chunks(self) -> tuple[int, ...] | None:
        """The lengths that are written together; boxes begin at their multiples."""

    def empty(self, box: Box) -> Array:
        """Return an array to be filled and given to `write`.

        It is valid until the call after the next.
        """

    def write(self, box: Box, values: Array) -> None:
        """Write what `empty` gave and the caller filled."""


@dataclass(frozen=True)
class Layout:
    """What an output is to be like.

    Parameters
    ----------
    like : Source
        The array whose shape, chunks and compression it has if nothing else is given.
    dtype : numpy.dtype
        Its dtype.
    default_chunks : tuple of int
        The chunks of a format that must have some, if `like` has none.
    chunks : tuple of int, optional
        The chunks that the user gave.
    compression : tuple of (str, int or None), optional
        The name and the level that the user gave; the name ``"none"`` is no compression.
    zarr_format : int, optional
        The version of Zarr's format that the user gave.
    """

    like: Source
    dtype: np.dtype[Any]
    default_chunks: tuple[int, ...]
    chunks: tuple[int, ...] | None = None
    compression: tuple[str, int | None] | None = None
    zarr_format: int | None = None


class Scratch:
    """Memory for two boxes in turn: new memory takes as long as writing to it."""

    def __init__(self) -> None:
        self.memory = [np.empty(0, np.uint8)] * 2

    def array(self, box: Box, dtype: np.dtype[Any]) -> Array:
        """Return an array without values, which is valid until the call after the next.

        Parameters
        ----------
        box : Box
            The box, whose shape it has.
        dtype : numpy.dtype
            Its dtype.

        Returns
        -------
        ndarray
            C-contiguous.
        """
        size = math.prod(shape_of(box)) * dtype.itemsize
        memory = self.memory.pop(0)
        if size > memory.size:
            memory = np.empty(size, np.uint8)
        self.memory.append(memory)
        return memory[:size].view(dtype).reshape(shape_of(box))


def given_chunks(layout: Layout) -> tuple[int, ...] | None:
    """Return the chunks that the user gave.

    Parameters
    ----------
    layout : Layout
        What an output is to be like.

    Returns
    -------
    tuple of int, or None
        Their lengths.

    Raises
    ------
    CommandError
        If they have another number of axes.
    """
    shape = layout.like.shape
    if layout.chunks is not None and len(layout.chunks) != len(shape):
        raise CommandError(f"--chunks must be {len(shape)} lengths, one for each axis of {shape}")
    return layout.chunks


def file_identity(status: os.stat_result) -> list[Any]:
    """Return what changes when a file is written again, for JSON.

    Parameters
    ----------
    status : os.stat_result
        The status of the file.

    Returns
    -------
    list of int
        Its size and the time of its last change.
    """
    return [status.st_size, status.st_mtime_ns]


def check_dtype(dtype: np.dtype[Any], path: object) -> None:
    """Raise if arrays of a dtype cannot be normalized.

    Parameters
    ----------
    dtype : numpy.dtype
        The dtype.
    path : object
        The name of the array for the message.

    Raises
    ------
    CommandError
        Unless it is a real number of at most 8 bytes.
    """
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise CommandError(
            f"{path} has dtype {dtype}, expected float16, float32, float64, integers or bool"
        )


def without_packing(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes without those that describe the numbers of the input.

    Parameters
    ----------
    attributes : mapping
        The attributes.

    Returns
    -------
    dict
        Those that hold for normalized numbers as well.
    """
    return {name: value for name, value in attributes.items() if name not in _PACKING}


def check_unused(path: str, **options: object) -> None:
    """Raise if an option is given that the format of an output does not have.

    Parameters
    ----------
    path : str
        The output.
    **options
        The options, None where they are not given.

    Raises
    ------
    CommandError
        With the name of the first one.
    """
    for name, value in options.items():
        if value is not None:
            raise CommandError(f"--{name.replace('_', '-')} is not for {path}")


def place(path: str) -> Path:
    """Return the file or the directory of an array.

    Parameters
    ----------
    path : str
        The path.

    Returns
    -------
    Path
        The same.
    """
    return Path(path)


def is_same(path: str, other: str) -> bool:
    """Return True: there is one array at a path.

    Parameters
    ----------
    path, other : str
        The paths of arrays; both name the same file or directory.

    Returns
    -------
    bool
        True.
    """
    return True
