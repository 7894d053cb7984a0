"""The folders of the cache: what they hold, and what nobody can use any more."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

_HOUR = 3600.0
"""In seconds; whatever is being written is younger."""


class Build(NamedTuple):
    """The kernels that one build of numnorm has for one processor.

    Attributes
    ----------
    path : Path
        Their folder.
    origins : list of dict
        The installations that have used it.
    files : list of Path
        The kernels.
    stale : bool
        Whether none of these installations can use them any more.
    """

    path: Path
    origins: list[dict[str, Any]]
    files: list[Path]
    stale: bool


def builds(folder: Path) -> Iterator[Build]:
    """Yield the builds in a folder of the cache.

    Parameters
    ----------
    folder : Path
        The folder, which need not exist.

    Yields
    ------
    Build
        A build.
    """
    for path in sorted(folder.glob("*/")) if folder.is_dir() else ():
        if path.is_symlink():
            continue  # what it leads to may be anything
        files, records = sorted(path.glob("*.bin")), list(path.glob("origin-*.json"))
        if not (files or records):
            continue
        origins = [origin for origin in map(_read, records) if origin is not None]
        readable = len(origins) == len(records)
        stale = readable and all(map(_is_stale, origins)) and (bool(origins) or _is_old(path))
        yield Build(path, origins, files, stale)


def clean(folder: Path) -> tuple[int, int]:
    """Remove what no installation can use: builds, old files, and files that nobody completed.

    Parameters
    ----------
    folder : Path
        The folder, which need not exist.

    Returns
    -------
    tuple of int
        The number of files that were removed, and their size in bytes.
    """
    stale = [build.path for build in builds(folder) if build.stale]
    files = [file for path in stale for file in path.rglob("*") if file.is_file()]
    # Earlier versions had all kernels in the folder itself.
    files += folder.glob("*.bin")
    files += [path for path in folder.rglob("*.tmp") if path not in files and _is_old(path)]
    count = size = 0
    for file in files:
        # Another process may do the same, and a folder may be read-only.
        with contextlib.suppress(OSError):
            length = file.stat().st_size
            file.unlink()
            count, size = count + 1, size + length
    for path in stale:
        shutil.rmtree(path, ignore_errors=True)
    return count, size


def _read(record: Path) -> dict[str, Any] | None:
    """Return what an installation wrote down, or None if it cannot be read."""
    try:
        origin = json.loads(record.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return origin if isinstance(origin, dict) else None


def _is_stale(origin: dict[str, Any]) -> bool:
    from numnorm.backends.kernel_files.origin import is_stale

    # What cannot be read may be usable: by a newer version of numnorm, for example.
    with contextlib.suppress(OSError, LookupError, TypeError, AttributeError):
        return is_stale(origin)
    return False


def _is_old(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime > _HOUR
    except OSError:
        return False
