"""The layout of new datasets in HDF5 files: their chunks, filters and attributes."""

from __future__ import annotations

import contextlib
from typing import Any

import h5py
import numpy as np

from numnorm.commands.apply.formats.protocol import Layout, given_chunks, without_packing
from numnorm.commands.errors import CommandError

_COMPRESSIONS = ("gzip", "lzf", "none")

_ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError)
"""What h5py raises of a file that is not as it should be."""

_REFERENCES = {"DIMENSION_LIST", "REFERENCE_LIST"}
# Of dimension scales: they are made with them, or hold for the input alone.
_SCALES = {*_REFERENCES, "DIMENSION_LABELS", "CLASS", "NAME", "_Netcdf4Dimid"}
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


def remove(file: Any, name: str) -> None:
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
                options["compression"], options["compression_opts"] = code, tuple(values)
    return options
