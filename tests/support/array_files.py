"""Arrays in files of every format that ``apply`` knows, and the command in this process."""

import shutil
from pathlib import Path

import numpy as np

from numnorm.__main__ import main

FORMATS = ("npy", "zarr", "hdf5")
NAMES = {"npy": "{}.npy", "zarr": "{}.zarr", "hdf5": "{}.h5::/group/values"}


def path_in(format, stem):
    return NAMES[format].format(stem)


def save(path, x, **options):
    """Write an array to a path of any format, with the options of its library."""
    if path.endswith(".npy"):
        np.save(path, x)
    elif "::" in path:
        import h5py

        file, name = path.split("::")
        with h5py.File(file, "a") as opened:
            opened.create_dataset(name, data=x, **options)
    else:
        import zarr

        shutil.rmtree(path, ignore_errors=True)
        options = {"chunks": tuple(max(1, min(4, n)) for n in x.shape), **options}
        zarr.create_array(path, data=x, **options)


def load(path):
    """Read the array at a path of any format."""
    if path.endswith(".npy"):
        return np.load(path)
    if "::" in path:
        import h5py

        file, name = path.split("::")
        with h5py.File(file, "r") as opened:
            return opened[name][()]
    import zarr

    return zarr.open_array(path, mode="r")[...]


def apply(capsys, *arguments):
    """Run the command; return its status and what it said on stderr."""
    try:
        status = main(["apply", *map(str, arguments)])
    except SystemExit as leaving:
        status = leaving.code
    captured = capsys.readouterr()
    assert captured.out == ""
    return status, captured.err


def draw(shape, dtype=np.float32, order="C"):
    x = 5 + 3 * np.random.default_rng(0).normal(size=shape)
    return np.asarray(x.astype(dtype), order=order)


def bits(array):
    return array.shape, array.dtype, array.tobytes()


def snapshot(folder="."):
    """Every file below a folder and its content."""
    return {p: p.read_bytes() if p.is_file() else None for p in sorted(Path(folder).rglob("*"))}
