"""The formats of arrays that ``apply`` reads and writes, a module each, and which one a path is.

A module has `place`, `opened`, `check_output`, `is_same` and `created`. It is imported when its
format is used: its library may not be installed, and importing takes time.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from numnorm.commands.terminal import require

_HDF5 = {".h5", ".hdf5", ".hdf", ".he5", ".nc"}
_LIBRARIES = {"hdf5": "h5py", "zarr": "zarr"}
_ZARR = ("zarr.json", ".zarray", ".zgroup")


def name_of(path: str) -> str:
    """Return the name of the format that a path looks like.

    Parameters
    ----------
    path : str
        The path of an array.

    Returns
    -------
    str
        ``"hdf5"``, ``"zarr"``, or else ``"npy"``.
    """
    if ("::" in path and not Path(path).exists()) or Path(path).suffix.lower() in _HDF5:
        return "hdf5"
    if Path(path).suffix.lower() == ".npy":
        return "npy"
    here = Path(path)
    inside = any(parent.suffix.lower() == ".zarr" for parent in (here, *here.parents))
    known = any((folder / name).is_file() for folder in (here, here.parent) for name in _ZARR)
    return "zarr" if inside or known else "npy"


def format_of(path: str) -> Any:
    """Return the module of the format that a path looks like.

    Parameters
    ----------
    path : str
        The path of an array.

    Returns
    -------
    module
        One of this package.

    Raises
    ------
    CommandError
        If its library is not installed.
    """
    name = name_of(path)
    if name in _LIBRARIES:
        require(_LIBRARIES[name], "storage")
    return importlib.import_module(f"{__name__}.{name}")
