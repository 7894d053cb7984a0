"""The layout of new arrays of Zarr: their chunks, codecs and attributes."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numcodecs
import zarr
from zarr import codecs

from numnorm.commands.apply.formats.protocol import Layout, given_chunks, without_packing
from numnorm.commands.errors import CommandError, one_line

_V3 = {
    "gzip": lambda level: codecs.GzipCodec(**level),
    "zstd": lambda level: codecs.ZstdCodec(**level),
    "blosc": lambda level: codecs.BloscCodec(**{f"c{key}": n for key, n in level.items()}),
}
_V2 = {
    "gzip": lambda level: numcodecs.GZip(**level),
    "zstd": lambda level: numcodecs.Zstd(**level),
    "blosc": lambda level: numcodecs.Blosc(**{f"c{key}": n for key, n in level.items()}),
}

_LOSSLESS = {"blosc", "zstd", "gzip", "zlib", "bz2", "lz4", "lzma", "shuffle"}
_LOSSLESS |= {"crc32c", "crc32", "adler32", "fletcher32", "transpose"}
"""The codecs that are kept: others round, or are for integers."""


def create(directory: Path, path: str, layout: Layout, kept: Any) -> None:
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
    source, shape = layout.like, layout.like.shape
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
        known = _V3 if version == 3 else _V2
        if name not in {"none", *known}:
            raise CommandError(f"--compression of Zarr is none, {', '.join(known)}, got {name}")
        given = {} if level is None else {"level": level}
        try:
            options["compressors"] = None if name == "none" else known[name](given)
        except (ValueError, TypeError) as error:
            raise CommandError(f"--compression {name}:{level}: {one_line(error)}") from error
    if "shards" not in options:
        pairs = zip(options["chunks"], shape, strict=True)
        options["chunks"] = tuple(min(chunk, max(1, length)) for chunk, length in pairs)
    try:
        with without_warnings():
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
        options["chunks"], options["shards"] = array.chunks, array.shards
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
def without_warnings() -> Iterator[None]:
    """Keep what zarr says about extensions of the format from the user.

    Yields
    ------
    None
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
