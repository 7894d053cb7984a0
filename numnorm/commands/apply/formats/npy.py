"""Arrays in .npy files, read and written through memory maps of one box at a time.

A page of a map counts as resident memory from its first use until it is unmapped. So a map covers
at most a slab of the file, and is unmapped with its array.
"""

from __future__ import annotations

import math
import mmap
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np
from numpy.lib import format as npy

from numnorm.commands.apply.boxes import Box, box_lengths, boxes, shape_of, whole
from numnorm.commands.apply.formats.protocol import (
    Array,
    Layout,
    Source,
    check_dtype,
    check_unused,
    file_identity,
)
from numnorm.commands.apply.formats.protocol import is_same as is_same
from numnorm.commands.apply.formats.protocol import place as place
from numnorm.commands.apply.journal import Journal
from numnorm.commands.outputs import NEW, appearing, appearing_directory, check_file, reserve
from numnorm.commands.terminal import CommandError, one_line

SLAB = 64 << 20
"""The largest number of bytes that are mapped at a time."""


@dataclass(frozen=True)
class ArrayFile:
    """An array in an open .npy file.

    Parameters
    ----------
    file : BinaryIO
        The open file.
    shape : tuple of int
        The shape of the array.
    dtype : numpy.dtype
        Its dtype.
    fortran : bool
        Whether the first axis, not the last, is the fastest in the file.
    offset : int
        The position of the data in the file.
    writable : bool
        Whether its maps are writable.
    """

    file: BinaryIO
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    offset: int
    writable: bool = False
    chunks: ClassVar[None] = None

    def identity(self) -> list[Any]:
        """Return the size of the file and the time of its last change."""
        return file_identity(os.fstat(self.file.fileno()))

    @property
    def nbytes(self) -> int:
        """The size of the data in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def by_storage(self, axes: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Sort pairs (axis, value) from the slowest axis in the file to the fastest."""
        return sorted(axes, reverse=self.fortran)

    def read(self, box: Box) -> Array:
        """Return the elements in `box`, as a map of the file if they are close together in it.

        Parameters
        ----------
        box : Box
            What to read.

        Returns
        -------
        ndarray
            Read-only or a copy; aligned, in the machine's byte order.
        """
        slabs = self._slabs(box)
        view = self._map(box) if len(slabs) == 1 else self._gather(box, slabs)
        return np.require(view, dtype=self.dtype.newbyteorder("="), requirements="A")

    def empty(self, box: Box) -> Array:
        """Return an array to be filled and given to `write`.

        Parameters
        ----------
        box : Box
            What to write.

        Returns
        -------
        ndarray
            A map of the file if the box is close together in it, or a new array.
        """
        return self._map(box) if len(self._slabs(box)) == 1 else np.empty(shape_of(box), self.dtype)

    def write(self, box: Box, values: Array) -> None:
        """Write what `empty` gave and the caller filled.

        Parameters
        ----------
        box : Box
            What to write.
        values : ndarray
            Its elements, which are in the file already if they are a map of it.
        """
        slabs = self._slabs(box)
        for slab in slabs if len(slabs) > 1 else ():
            self._map(slab)[...] = values[_relative(slab, box)]

    def _gather(self, box: Box, slabs: list[Box]) -> Array:
        values: Array = np.empty(shape_of(box), self.dtype, order="F" if self.fortran else "C")
        for slab in slabs:
            values[_relative(slab, box)] = self._map(slab)
        return values

    def _slabs(self, box: Box) -> list[Box]:
        """Divide `box` into parts that can each be mapped at once."""
        first, last = self._ends(box)
        itemsize = self.dtype.itemsize
        if last + itemsize - first <= max(SLAB, math.prod(shape_of(box)) * itemsize):
            return [box]
        axes = self.by_storage([(axis, 1) for axis in range(len(self.shape))])
        return list(boxes(box, box_lengths(self.shape, axes, SLAB // itemsize)))

    def _ends(self, box: Box) -> tuple[int, int]:
        """Return the offsets in the data of the first and the last element of `box`."""
        strides = _strides(self.shape, self.dtype.itemsize, self.fortran)
        first = sum(part.start * stride for part, stride in zip(box, strides, strict=True))
        last = sum((part.stop - 1) * stride for part, stride in zip(box, strides, strict=True))
        return first, last

    def _map(self, box: Box) -> Array:
        """Map the file from the first element of `box` to its last."""
        if 0 in shape_of(box):
            return np.empty(shape_of(box), self.dtype)
        first, last = self._ends(box)
        start = (self.offset + first) // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        mapped = mmap.mmap(
            self.file.fileno(),
            self.offset + last + self.dtype.itemsize - start,
            access=mmap.ACCESS_WRITE if self.writable else mmap.ACCESS_READ,
            offset=start,
        )
        strides = _strides(self.shape, self.dtype.itemsize, self.fortran)
        return np.ndarray(shape_of(box), self.dtype, mapped, self.offset + first - start, strides)


@contextmanager
def opened(path: str) -> Iterator[ArrayFile]:
    """Open an .npy file, as `open_input`.

    Parameters
    ----------
    path : str
        The file.

    Yields
    ------
    ArrayFile
        The array in it.

    Raises
    ------
    CommandError
        If it cannot be read as an array of numbers.
    """
    source = place(path)
    if not source.exists():
        raise CommandError(f"the input {source} does not exist")
    if not source.is_file():
        raise CommandError(f"the input {source} is not a regular file")
    with open(source, "rb") as file:
        yield open_input(file, source)


def check_output(path: str, force: bool) -> None:
    """Raise if no file can be written to `path`.

    Parameters
    ----------
    path : str
        The output.
    force : bool
        Whether a file that exists may be replaced.

    Raises
    ------
    CommandError
        If it exists, has another suffix, or is in no directory that is writable.
    """
    check_file(Path(path), "output", (".npy", ".zarr", ".h5::/NAME"), force)


@contextmanager
def created(
    path: str, layout: Layout, request: Mapping[str, Any], resume: bool
) -> Iterator[tuple[ArrayFile, Journal]]:
    """Create an .npy file that appears when the block ends without an error.

    Parameters
    ----------
    path : str
        The file.
    layout : Layout
        What it is like.
    request : mapping
        The arguments and the input: only a run in which they were the same is continued.
    resume : bool
        Whether to go on where an earlier run stopped.

    Yields
    ------
    tuple of (ArrayFile, Journal)
        The array in it, and what has been done of it.
    """
    check_unused(path, chunks=layout.chunks, compression=layout.compression)
    check_unused(path, zarr_format=layout.zarr_format)
    final = Path(path)
    if not resume:
        with appearing(final) as file:
            yield create_output(file, final, layout.like, layout.dtype), Journal()
        return
    with appearing_directory(final, resume) as work:
        journal = Journal(work)
        goes_on = journal.go_on(request, path)
        with open(work / NEW, "r+b" if goes_on else "w+b") as file:
            if goes_on:
                array = replace(open_input(file, final), writable=True)
            else:
                array = create_output(file, final, layout.like, layout.dtype)
                journal.begin(request)
            yield array, journal


def open_input(file: BinaryIO, path: Path) -> ArrayFile:
    """Read the header of an .npy file and check that its data can be normalized.

    Nothing is ever unpickled: arrays of Python objects are rejected by their dtype.

    Parameters
    ----------
    file : BinaryIO
        The file, open for reading, at its start.
    path : Path
        Its name for messages.

    Returns
    -------
    ArrayFile
        The array in it.

    Raises
    ------
    CommandError
        If it is no .npy file, is shorter than its header says, or has a dtype without norms.
    """
    try:
        shape, fortran, dtype = _read_header(file)
        _check_shape(shape)
    except OSError:
        raise
    except Exception as error:
        # NumPy evaluates the header as Python. An invalid one raises more than ValueError: a
        # TypeError, a TokenError, a MemoryError or a RecursionError.
        reason = one_line(error) if isinstance(error, ValueError) else "its header is not valid"
        raise CommandError(f"{path} is not an .npy file that can be read: {reason}") from error
    _check_dtype(dtype, path)
    array = ArrayFile(file, shape, dtype, fortran, file.tell())
    available = os.fstat(file.fileno()).st_size - array.offset
    if available < array.nbytes:
        raise CommandError(
            f"{path} is truncated: its header promises {array.nbytes} bytes of data, "
            f"the file has {available}"
        )
    return array


def create_output(file: BinaryIO, path: Path, like: Source, dtype: np.dtype[Any]) -> ArrayFile:
    """Write the header of an .npy file and reserve the space for its data.

    Parameters
    ----------
    file : BinaryIO
        An empty file, open for reading and writing.
    path : Path
        Its name for messages.
    like : Source
        The array whose shape and order the new one has.
    dtype : numpy.dtype
        Its dtype.

    Returns
    -------
    ArrayFile
        The array in it.
    """
    header = {"descr": dtype.str, "fortran_order": like.fortran, "shape": like.shape}
    npy.write_array_header_1_0(file, header)
    file.flush()
    array = ArrayFile(file, like.shape, dtype, like.fortran, file.tell(), writable=True)
    reserve(file, array.offset + array.nbytes, path)
    return array


def read_array(path: Path) -> Array:
    """Read an .npy file into memory.

    Parameters
    ----------
    path : Path
        The file.

    Returns
    -------
    ndarray
        A writable copy of its array.
    """
    with open(path, "rb") as file:
        array = open_input(file, path)
        return np.array(array.read(whole(array.shape)))


def _read_header(file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return the shape, whether the order is Fortran's, and the dtype."""
    version = npy.read_magic(file)
    header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    if version not in header:
        raise ValueError(f"version {version[0]}.{version[1]} of the format is not known")
    with warnings.catch_warnings():
        # NumPy reads lengths such as 3L of Python 2, but warns about them.
        warnings.simplefilter("ignore")
        return header[version](file)


def _check_shape(shape: tuple[int, ...]) -> None:
    """Raise if no array can have the shape: the size of the file does not limit empty ones."""
    if min(shape, default=0) < 0:
        raise ValueError(f"its shape {shape} is negative")
    try:
        # A view with strides of 0 takes no memory. Results have up to 8 bytes an element.
        np.ndarray(shape, np.float64, bytes(8), strides=(0,) * len(shape))
    except (ValueError, OverflowError) as error:
        raise ValueError(f"no array can have its shape: {one_line(error)}") from error


def _check_dtype(dtype: np.dtype[Any], path: Path) -> None:
    if dtype.hasobject:
        raise CommandError(f"{path} holds pickled Python objects, which are never loaded")
    if dtype.kind == "V":
        raise CommandError(
            f"{path} has dtype {dtype.str}: records cannot be normalized, and .npy files do not "
            "tell bfloat16 from bytes; store it as float32"
        )
    check_dtype(dtype, path)


def _strides(shape: tuple[int, ...], itemsize: int, fortran: bool) -> tuple[int, ...]:
    """Return the strides in bytes of an array in the file."""
    faster = [shape[:axis] if fortran else shape[axis + 1 :] for axis in range(len(shape))]
    return tuple(itemsize * math.prod(axes) for axes in faster)


def _relative(slab: Box, box: Box) -> Box:
    """Return the box of `slab` in the array of `box`."""
    return tuple(
        slice(part.start - origin.start, part.stop - origin.start)
        for part, origin in zip(slab, box, strict=True)
    )
