"""The folders on disk in which compiled kernels are kept."""

import contextlib
import functools
import os
import tempfile
from pathlib import Path

from numba.core import config
from numba.misc.appdirs import AppDirs

from numnorm.backends.sources import PACKAGE


@functools.cache
def folders() -> tuple[Path, ...]:
    """Return the folders in which kernels are looked for, in this order.

    ``NUMBA_CACHE_DIR`` alone if it is set; else a folder beside the package and the user's cache.
    """
    if config.CACHE_DIR:
        return (Path(config.CACHE_DIR) / "numnorm",)
    return (
        Path(PACKAGE) / "__pycache__" / "kernels",
        Path(AppDirs("numnorm", False).user_cache_dir),
    )


@functools.cache
def folder_to_write() -> Path | None:
    """Return the first of the folders that is writable: new kernels are kept there; or None."""
    for path in folders():
        with contextlib.suppress(OSError):
            path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=path):
                return path
    return None


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that it appears whole or not at all."""
    # Not by `tempfile`, whose files only their owner can read: others may share the folder.
    temporary = path.with_name(f"{path.stem}-{os.urandom(6).hex()}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
