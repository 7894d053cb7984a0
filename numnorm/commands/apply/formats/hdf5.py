"""Datasets in HDF5 files, as ``FILE::/PATH``."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from numnorm.commands.apply.boxes import Box
from numnorm.commands.apply.formats.protocol import (
    Array,
    Layout,
    Scratch,
    check_dtype,
    check_unused,
    file_identity,
    given_chunks,
    without_packing,
)
from numnorm.commands.apply.journal import Journal
from numnorm.commands.outputs import appearing, check_writable
from numnorm.commands.terminal import CommandError, one_line

_COMPRESSIONS = ("gzip", "lzf", "none")

_ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError)
"""What h5py raises of a file that is not as it should be."""

_REFERENCES = {"DIMENSION_LIST", "REFERENCE_LIST"}
# Of dimension scales: they are made with them, or hold for the input alone.
_SCALES = {*_REFERENCES, "DIMENSION_LABELS", "CLASS", "NAME", "_Netcdf4Dimid"}
_SCALES |= {"_Netcdf4Coordinates", "_nc3_strict", "_NCProperties"}


@dataclass(frozen=True)
class Dataset:
    """A dataset in an open file.

    Parameters
    ----------
    data : h5py.Dataset
        The open dataset.
    path : str
        Its name for messages.
    stream : _Stream, optional
        The file, if it is written to.
    """

    data: Any
    path: str
    stream: _Stream | None = None
    scratch: Scratch = field(default_factory=Scratch)
    fortran = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return tuple(self.data.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Its dtype in the file."""
        dtype: np.dtype[Any] = np.dtype(self.data.dtype)
        return dtype

    @property
    def chunks(self) -> tuple[int, ...] | None:
        """The lengths of its chunks, if it has any."""
        chunks = self.data.chunks
        return None if chunks is None else tuple(chunks)

    def identity(self) -> list[Any]:
        """Return the size of the file and the time of its last change."""
        return file_identity(place(self.path).stat())

    def read(self, box: Box) -> Array:
        """Return the elements in `box`, in the machine's byte order.

        Parameters
        ----------
        box : Box
            What to read.

        Returns
        -------
        ndarray
            A copy, which is valid until the call after the next.
        """
        with _one_line(self.path):
            values = self.scratch.array(box, self.dtype.newbyteorder("="))
            if values.size:
                self.data.read_direct(values, box)
            return values

    def empty(self, box: Box) -> Array:
        """Return an array to be filled and given to `write`.

        Parameters
        ----------
        box : Box
            What to write.

        Returns
        -------
        ndarray
            An array of the shape of the box, which is valid until the call after the next.
        """
        return self.scratch.array(box, self.dtype)

    def write(self, box: Box, values: Array) -> None:
        """Write what `empty` gave and the caller filled.

        Parameters
        ----------
        box : Box
            What to write.
        values : ndarray
            Its elements.
        """
        if values.size:
            with _one_line(self.path):
                self.data.write_direct(values, dest_sel=box)
                assert self.stream is not None
                self.stream.check()


def place(path: str) -> Path:
    """Return the file of a dataset.

    Parameters
    ----------
    path : str
        The path.

    Returns
    -------
    Path
        The part before ``::``.
    """
    return Path(path.partition("::")[0])


def _name(path: str) -> str:
    """Return the path of a dataset in its file."""
    return path.partition("::")[2].strip("/")


@contextmanager
def opened(path: str) -> Iterator[Dataset]:
    """Open a dataset.

    Parameters
    ----------
    path : str
        The file, ``::`` and the path in it.

    Yields
    ------
    Dataset
        The dataset.

    Raises
    ------
    CommandError
        If it cannot be read as an array of numbers.
    """
    file = place(path)
    name = _name(path)
    if not file.exists():
        raise CommandError(f"the input {file} does not exist")
    with _open(file) as opened_file:
        with _one_line(path):
            found = opened_file.get(name or "/")
        if not isinstance(found, h5py.Dataset):
            group = found if isinstance(found, h5py.Group) else opened_file
            names = ", ".join(f"{file}::{dataset}" for dataset in _datasets(group))
            what = "is a group" if isinstance(found, h5py.Group) else "does not exist"
            raise CommandError(f"{path} {what}: {names or 'there are no datasets'}")
        check_dtype(found.dtype, path)
        if found.shape is None:
            raise CommandError(f"{path} is empty: it has no shape")
        yield Dataset(found, path)


def check_output(path: str, force: bool) -> None:
    """Raise if no dataset can be written to `path`.

    Parameters
    ----------
    path : str
        The output.
    force : bool
        Whether a dataset that exists may be replaced.

    Raises
    ------
    CommandError
        If it exists, or the file cannot be replaced.
    """
    file = place(path)
    name = _name(path)
    check_writable(file)
    if not name:
        raise CommandError(f"the output {path} must name a dataset: {file}::/NAME")
    if not file.exists():
        return
    with _open(file) as opened_file, _one_line(path):
        parts = name.split("/")
        for number in range(1, len(parts)):
            above = "/".join(parts[:number])
            if above in opened_file and not isinstance(opened_file[above], h5py.Group):
                raise CommandError(f"the output {path} is inside the dataset /{above}")
        if opened_file.get(name, getlink=True) is None:
            return
        if not isinstance(opened_file.get(name), h5py.Dataset):
            raise CommandError(f"the output {path} is no dataset, and is not replaced")
        if not force:
            raise CommandError(f"the output {path} exists: --force replaces it")


def is_same(path: str, other: str) -> bool:
    """Return whether two paths in a file lead to one dataset.

    Parameters
    ----------
    path, other : str
        The paths of datasets; they name the same file.

    Returns
    -------
    bool
        Also True for links.
    """
    first, second = map(_name, (path, other))
    with _open(place(path)) as file, _one_line(other):
        found = file.get(second) if second else None
        return found is not None and bool(file.get(first or "/") == found)


@contextmanager
def created(
    path: str, layout: Layout, request: Mapping[str, Any], resume: bool
) -> Iterator[tuple[Dataset, Journal]]:
    """Create a dataset in a copy of the file, which replaces it when the block ends.

    Parameters
    ----------
    path : str
        The file, ``::`` and the path in it.
    layout : Layout
        What it is like.
    request : mapping
        Not used: HDF5 keeps what is written in memory, so that no run can go on after a kill.
    resume : bool
        Must be False.

    Yields
    ------
    tuple of (Dataset, Journal)
        The dataset, and a journal that nothing keeps.
    """
    check_unused(path, zarr_format=layout.zarr_format, resume=resume or None)
    file = place(path)
    name = _name(path)
    with appearing(file) as temporary, _unchanged(file):
        mode = "w"
        if file.exists():
            with open(file, "rb") as old:
                shutil.copyfileobj(old, temporary, 1 << 24)
            temporary.flush()
            mode = "r+"
        stream = _Stream(temporary.fileno())
        new = h5py.File(stream, mode)
        try:
            with _one_line(path):
                if name in new:
                    _remove_dataset(new, name)
                kept = layout.like.data if isinstance(layout.like, Dataset) else None
                data = _create_dataset(new, name, layout, kept)
            yield Dataset(data, path, stream), Journal()
        except BaseException:
            with contextlib.suppress(Exception):
                new.close()
            raise
        with _one_line(path):
            new.close()
            stream.check()


class _Stream(io.FileIO):
    """An open file that HDF5 writes to; after an error it drops what is written.

    HDF5 writes again at its end what it could not write, and crashes if it cannot.
    """

    error: BaseException | None = None

    def __init__(self, number: int) -> None:
        super().__init__(number, "r+", closefd=False)

    def write(self, data: Any) -> int:
        left = memoryview(data)
        try:
            while left and self.error is None:
                left = left[super().write(left) :]
        except BaseException as error:  # a signal as well
            self.error = error
        return len(memoryview(data))

    def truncate(self, size: int | None = None) -> int:
        try:
            return super().truncate(size) if self.error is None else 0
        except BaseException as error:
            self.error = error
            return 0

    def check(self) -> None:
        """Raise the error, if there was one."""
        if self.error is not None:
            raise self.error


@contextmanager
def _unchanged(file: Path) -> Iterator[None]:
    """Keep other programs from writing to a file, if it exists, while the block runs."""
    if not file.exists():
        yield
        return
    with _open(file):
        yield


def _open(file: Path) -> Any:
    if file.exists() and not file.is_file():  # a pipe would wait for its other end
        raise CommandError(f"{file} cannot be opened as HDF5: Not a regular file")
    try:
        return h5py.File(file, "r")
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else one_line(error)
        raise CommandError(f"{file} cannot be opened as HDF5: {reason}") from error


def _datasets(group: Any) -> list[str]:
    """Return the paths of the datasets in a group."""
    found: list[str] = []
    group.visititems(
        lambda _, member: found.append(member.name) if isinstance(member, h5py.Dataset) else None
    )
    return found


@contextmanager
def _one_line(path: str) -> Iterator[None]:
    """Raise h5py's errors with the name of the dataset, in one line."""
    try:
        yield
    except MemoryError:
        raise
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
        reason = getattr(error, "strerror", None) or one_line(error).strip("'")
        raise CommandError(f"{path}: {reason}") from error


def _create_dataset(file: Any, name: str, layout: Layout, kept: Any) -> Any:
    """Create a dataset.

    Parameters
    ----------
    file : h5py.File
        The file.
    name : str
        Its path in the file.
    layout : Layout
        What it is like.
    kept : h5py.Dataset, optional
        The dataset that is read, if it is one.

    Returns
    -------
    h5py.Dataset
        The dataset.

    Raises
    ------
    CommandError
        If there can be no such dataset.
    """
    source = layout.like
    shape = source.shape
    options: dict[str, Any] = {}
    if kept is not None:
        options = _kept(kept)
    chunks = given_chunks(layout) or source.chunks
    if layout.compression is not None:
        method, level = layout.compression
        if method not in _COMPRESSIONS:
            known = ", ".join(_COMPRESSIONS)
            raise CommandError(f"--compression of HDF5 is one of {known}, got {method}")
        options.pop("compression_opts", None)
        options["compression"] = None if method == "none" else method
        if level is not None:
            options["compression_opts"] = level
    if options.get("compression"):
        chunks = chunks or layout.default_chunks
    if chunks is not None:
        most = options.get("maxshape", shape)
        pairs = zip(chunks, most, strict=True)
        options["chunks"] = tuple(c if length is None else min(c, length) for c, length in pairs)
    if chunks is None or 0 in options["chunks"]:
        options = {}
    data = file.create_dataset(name, shape, layout.dtype, track_times=False, **options)
    if kept is not None:
        _keep_dimensions(file, data, kept)
        names = without_packing(dict.fromkeys(kept.attrs)).keys() - _SCALES
        for key in sorted(names):
            if h5py.check_ref_dtype(kept.attrs.get_id(key).dtype) is None:
                data.attrs[key] = kept.attrs[key]
    return data


def _remove_dataset(file: Any, name: str) -> None:
    """Remove a dataset, also from what its dimension scales know of it.

    Parameters
    ----------
    file : h5py.File
        The file.
    name : str
        The path of the dataset, or of a link.
    """
    if isinstance(file.get(name, getlink=True), h5py.HardLink):
        for dimension in file[name].dims:
            for scale in _scales(dimension):
                dimension.detach_scale(scale)
    del file[name]


def _keep_dimensions(file: Any, data: Any, kept: Any) -> None:
    """Give a new dataset the dimension scales of the one that is read, or at least their names.

    A scale is taken from the file, if it has the same one by the same path, or copied into it.
    """
    for old, new in zip(kept.dims, data.dims, strict=True):
        if old.label:
            new.label = old.label
        for scale in _scales(old):
            own = _same_scale(file, scale)
            if own is not None:
                new.attach_scale(own)
            elif not new.label:
                new.label = scale.name.rpartition("/")[2]


def _scales(dimension: Any) -> list[Any]:
    """Return the scales of a dimension that are still there and have a name."""
    with contextlib.suppress(*_ERRORS):
        return [scale for scale in dimension.values() if scale.name]
    return []


def _same_scale(file: Any, scale: Any) -> Any:
    """Return a scale of a file that is like one of another file; None if there can be none."""
    with contextlib.suppress(*_ERRORS):
        if scale.name not in file:
            scale.file.copy(scale, file, scale.name)
            for attribute in _REFERENCES & file[scale.name].attrs.keys():
                del file[scale.name].attrs[attribute]
        return file[scale.name] if _is_copy(file[scale.name], scale) else None
    return None


def _is_copy(found: Any, scale: Any) -> bool:
    """Return whether something is a dimension scale like another one."""
    if not (isinstance(found, h5py.Dataset) and found.is_scale and found.dtype == scale.dtype):
        return False
    first, second = found[()], scale[()]
    return np.array_equal(first, second) or first.tobytes() == second.tobytes()


def _kept(data: Any) -> dict[str, Any]:
    """Return the largest shape and the filters of a dataset that a new one has as well."""
    options: dict[str, Any] = {"shuffle": data.shuffle, "fletcher32": data.fletcher32}
    options["maxshape"] = data.maxshape
    created_with = data.id.get_create_plist()
    options["compression"] = data.compression
    if data.compression is not None:
        options["compression_opts"] = data.compression_opts
    else:
        for number in range(created_with.get_nfilters()):
            code, _, values, _ = created_with.get_filter(number)
            if code >= h5py.h5z.FILTER_RESERVED:  # a plugin
                options["compression"] = code
                options["compression_opts"] = tuple(values)
    return options
