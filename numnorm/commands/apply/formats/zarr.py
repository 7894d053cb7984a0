"""Arrays in directories of Zarr, version 2 and 3 of the format."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import zarr
from zarr import codecs
from zarr.buffer.cpu import NDBuffer
from zarr.core.sync import sync

from numnorm.commands.apply.boxes import Box
from numnorm.commands.apply.formats.protocol import (
    Array,
    Layout,
    Scratch,
    check_dtype,
    given_chunks,
    without_packing,
)
from numnorm.commands.apply.formats.protocol import is_same as is_same
from numnorm.commands.apply.formats.protocol import place as place
from numnorm.commands.apply.journal import Journal
from numnorm.commands.outputs import NEW, appearing_directory, is_begun, writable_directory
from numnorm.commands.terminal import CommandError, one_line

_METADATA = ("zarr.json", ".zarray", ".zattrs")


_V3_CODECS = {
    "gzip": lambda level: codecs.GzipCodec(**level),
    "zstd": lambda level: codecs.ZstdCodec(**level),
    "blosc": lambda level: codecs.BloscCodec(**{f"c{key}": n for key, n in level.items()}),
}
_V2_CODECS = {
    "gzip": lambda level: numcodecs.GZip(**level),
    "zstd": lambda level: numcodecs.Zstd(**level),
    "blosc": lambda level: numcodecs.Blosc(**{f"c{key}": n for key, n in level.items()}),
}

_LOSSLESS = {"blosc", "zstd", "gzip", "zlib", "bz2", "lz4", "lzma", "shuffle"}
_LOSSLESS |= {"crc32c", "crc32", "adler32", "fletcher32", "transpose"}
"""The codecs that are kept: others round, or are for integers."""

# The calls of `_others`, in zarr's own thread.
_WAITING: set[asyncio.Task[Any]] = set()


@dataclass(frozen=True)
class ZarrArray:
    """An array in a directory.

    Parameters
    ----------
    array : zarr.Array
        The open array.
    path : str
        Its name for messages.
    """

    array: Any
    path: str
    scratch: Scratch = field(default_factory=Scratch)
    fortran = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return tuple(self.array.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Its dtype in the file."""
        dtype: np.dtype[Any] = np.dtype(self.array.dtype)
        return dtype

    @property
    def chunks(self) -> tuple[int, ...]:
        """The lengths of its chunks, or of its shards if it has any."""
        return tuple(self.array.shards or self.array.chunks)

    def identity(self) -> list[Any]:
        """Return a digest of the metadata, and the time of its last change."""
        root = place(self.path)
        files = [root / name for name in _METADATA if (root / name).is_file()]
        digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
        return [digest, [file.stat().st_mtime_ns for file in files]]

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

        Raises
        ------
        CommandError
            If a chunk cannot be decoded.
        """
        try:
            with _undisturbed():
                values = self.scratch.array(box, self.dtype)
                self.array.get_basic_selection(box, out=NDBuffer.from_ndarray_like(values))
        except (OSError, MemoryError):
            raise
        except Exception as error:  # each codec raises its own
            raise CommandError(
                f"{self.path} has a chunk that cannot be read: {one_line(error)}"
            ) from error
        return np.require(values, dtype=self.dtype.newbyteorder("="))

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
        try:
            with _undisturbed():
                self.array[box] = values
        except OSError as error:
            error.filename = self.path
            raise


@contextmanager
def opened(path: str) -> Iterator[ZarrArray]:
    """Open an array.

    Parameters
    ----------
    path : str
        Its directory.

    Yields
    ------
    ZarrArray
        The array.

    Raises
    ------
    CommandError
        If it cannot be read as an array of numbers.
    """
    if not place(path).exists():
        raise CommandError(f"the input {path} does not exist")
    found = _open(path, "r")
    if isinstance(found, zarr.Group):
        names = ", ".join(f"{path.rstrip('/')}/{name}" for name in sorted(_arrays(found)))
        raise CommandError(f"{path} is a group, not an array: {names or 'it has no arrays'}")
    check_dtype(np.dtype(found.dtype), path)
    yield ZarrArray(found, path)


def check_output(path: str, force: bool) -> None:
    """Raise if no array can be written to `path`.

    Parameters
    ----------
    path : str
        The output.
    force : bool
        Whether an array that exists may be replaced.

    Raises
    ------
    CommandError
        If it exists, or is in no directory that is writable, or in an array.
    """
    target = place(path)
    above = writable_directory(target)
    if _holds_array(above):
        raise CommandError(f"the output {path} is inside the array {above}")
    is_begun(target)  # what it puts back exists
    if not target.exists():
        return
    if not _holds_array(target):
        raise CommandError(f"the output {path} is no array of Zarr, and is not replaced")
    if not force:
        raise CommandError(f"the output {path} exists: --force replaces it")


@contextmanager
def created(
    path: str, layout: Layout, request: Mapping[str, Any], resume: bool
) -> Iterator[tuple[ZarrArray, Journal]]:
    """Create an array that appears when the block ends without an error.

    Parameters
    ----------
    path : str
        Its directory.
    layout : Layout
        What it is like.
    request : mapping
        The arguments and the input: only a run in which they were the same is continued.
    resume : bool
        Whether to go on where an earlier run stopped.

    Yields
    ------
    tuple of (ZarrArray, Journal)
        The array, and what has been done of it.
    """
    with appearing_directory(place(path), resume) as work:
        journal = Journal(work)
        if not (resume and journal.go_on(request, path)):
            shutil.rmtree(work / NEW, ignore_errors=True)
            kept = layout.like.array if isinstance(layout.like, ZarrArray) else None
            _create_array(work / NEW, path, layout, kept)
            journal.begin(request)
        yield writable(work / NEW, path), journal


def writable(directory: Path, path: str) -> ZarrArray:
    """Open an array to write to it.

    Parameters
    ----------
    directory : Path
        Where it is.
    path : str
        Its name for messages.

    Returns
    -------
    ZarrArray
        The array.
    """
    # Comparing every chunk with the fill value takes as long as copying it.
    return ZarrArray(_open(str(directory), "r+").with_config({"write_empty_chunks": True}), path)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """After an error of one chunk, or a signal, wait for the other chunks that zarr works on."""
    try:
        yield
    except BaseException:
        sync(_others())
        raise


async def _others() -> None:
    own = asyncio.current_task()
    assert own is not None
    _WAITING.add(own)
    try:
        # Two that waited for each other would never end.
        await asyncio.gather(*(asyncio.all_tasks() - _WAITING), return_exceptions=True)
    finally:
        _WAITING.discard(own)


def _open(path: str, mode: str) -> Any:
    try:
        with _without_warnings():
            return zarr.open(path, mode=mode)
    except FileNotFoundError as error:
        raise CommandError(f"{path} is no array of Zarr") from error
    except (OSError, MemoryError):
        raise
    except Exception as error:  # metadata that is not valid raises more than ValueError
        raise CommandError(
            f"{path} is no array of Zarr that can be read: {one_line(error)}"
        ) from error


def _arrays(group: Any) -> list[str]:
    with _without_warnings():
        members = group.members(max_depth=None)
    return [name for name, member in members if isinstance(member, zarr.Array)]


def _holds_array(directory: Path) -> bool:
    return (directory / ".zarray").is_file() or (
        (directory / "zarr.json").is_file() and isinstance(_open(str(directory), "r"), zarr.Array)
    )


def _create_array(directory: Path, path: str, layout: Layout, kept: Any) -> None:
    """Create an array.

    Parameters
    ----------
    directory : Path
        Where it is.
    path : str
        Where it will be.
    layout : Layout
        What it is like.
    kept : zarr.Array, optional
        The array that is read, if it is one of Zarr.

    Raises
    ------
    CommandError
        If there can be no such array.
    """
    source = layout.like
    shape = source.shape
    around = _group_format(Path(os.path.realpath(path)).parent)
    own = kept.metadata.zarr_format if kept is not None else None
    version = layout.zarr_format or around or own or 3
    options: dict[str, Any] = {
        "chunks": given_chunks(layout) or source.chunks or layout.default_chunks
    }
    if kept is not None:
        options["attributes"] = without_packing(dict(kept.attrs))
        if layout.dtype == source.dtype.newbyteorder("="):
            options["fill_value"] = kept.fill_value
    if kept is not None and version == own:
        options.update(_kept(kept, layout))
    if layout.compression is not None:
        name, level = layout.compression
        known = _V3_CODECS if version == 3 else _V2_CODECS
        if name not in {"none", *known}:
            raise CommandError(f"--compression of Zarr is none, {', '.join(known)}, got {name}")
        level_option = {} if level is None else {"level": level}
        try:
            options["compressors"] = None if name == "none" else known[name](level_option)
        except (ValueError, TypeError) as error:
            raise CommandError(f"--compression {name}:{level}: {one_line(error)}") from error
    if "shards" not in options:
        pairs = zip(options["chunks"], shape, strict=True)
        options["chunks"] = tuple(min(chunk, max(1, length)) for chunk, length in pairs)
    try:
        with _without_warnings():
            zarr.create_array(
                directory, shape=shape, dtype=layout.dtype, zarr_format=version, **options
            )
    except (ValueError, TypeError) as error:
        raise CommandError(f"{path} cannot be created: {one_line(error)}") from error


def _kept(array: Any, layout: Layout) -> dict[str, Any]:
    """Return the options of an array of the same version that a new one has as well."""
    metadata = array.metadata
    options: dict[str, Any] = {}
    if metadata.zarr_format == 3:
        options["chunk_key_encoding"] = metadata.chunk_key_encoding
        options["dimension_names"] = metadata.dimension_names
    else:
        options["order"] = metadata.order
        separator = {"name": "v2", "separator": metadata.dimension_separator}
        options["chunk_key_encoding"] = separator
    if layout.chunks is None:
        options["chunks"] = array.chunks
        options["shards"] = array.shards
    if all(map(_is_lossless, array.compressors)):
        options["compressors"] = array.compressors or None
    options["filters"] = [codec for codec in array.filters or () if _is_lossless(codec)] or None
    return options


def _is_lossless(codec: Any) -> bool:
    name = codec.codec_id if hasattr(codec, "codec_id") else codec.to_dict()["name"]
    return name.removeprefix("numcodecs.") in _LOSSLESS


def _group_format(directory: Path) -> int | None:
    """Return the version of the group in a directory, if there is one."""
    if (directory / "zarr.json").is_file():
        return 3
    return 2 if (directory / ".zgroup").is_file() else None


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Keep what zarr says about extensions of the format from the user.

    Yields
    ------
    None
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
