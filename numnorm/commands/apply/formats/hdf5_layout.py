"""The layout of new datasets in HDF5 files: their chunks, filters and attributes."""

from __future__ import annotations

from typing import Any

import h5py

from numnorm.commands.apply.formats.protocol import Layout, given_chunks, without_packing
from numnorm.commands.errors import CommandError

_COMPRESSIONS = ("gzip", "lzf", "none")

# Of dimension scales: they point to other datasets.
_SCALES = {"DIMENSION_LIST", "REFERENCE_LIST", "CLASS", "NAME", "_Netcdf4Dimid"}
_SCALES |= {"_Netcdf4Coordinates", "_nc3_strict", "_NCProperties"}


def create(file: Any, name: str, layout: Layout, kept: Any) -> Any:
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
    if chunks is not None and 0 not in shape:
        options["chunks"] = tuple(min(pair) for pair in zip(chunks, shape, strict=True))
    else:
        options = {}
    data = file.create_dataset(name, shape, layout.dtype, track_times=False, **options)
    if kept is not None:
        names = without_packing(dict.fromkeys(kept.attrs)).keys() - _SCALES
        for key in sorted(names):
            if h5py.check_ref_dtype(kept.attrs.get_id(key).dtype) is None:
                data.attrs[key] = kept.attrs[key]
    return data


def _kept(data: Any) -> dict[str, Any]:
    """Return the filters of a dataset that a new one has as well."""
    options: dict[str, Any] = {"shuffle": data.shuffle, "fletcher32": data.fletcher32}
    created_with = data.id.get_create_plist()
    options["compression"] = data.compression
    if data.compression is not None:
        options["compression_opts"] = data.compression_opts
    else:
        for number in range(created_with.get_nfilters()):
            code, _, values, _ = created_with.get_filter(number)
            if code >= h5py.h5z.FILTER_RESERVED:  # a plugin
                options["compression"], options["compression_opts"] = code, tuple(values)
    return options
