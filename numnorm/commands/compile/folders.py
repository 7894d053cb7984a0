"""The folders of the cache: what they hold, and what nobody can use any more.

Other users may write to them. So no link is followed, nothing but regular files is opened, and what
is removed is reached through an open folder, which nobody can put another one in the place of.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from numnorm.files import address, open_regular
from numnorm.operating_system import open_folder

_HOUR = 3600.0
"""In seconds; whatever is being written is younger."""

_RECORD = re.compile(r"origin-.*\.json", re.DOTALL)
_UNFINISHED = re.compile(r".*-[0-9a-f]{12}\.tmp", re.DOTALL)
_LARGEST_RECORD = 1 << 20
"""In bytes, a hundred times what one has."""


class Build(NamedTuple):
    """The kernels that one build of numnorm has for one processor.

    Attributes
    ----------
    name : str
        The name of their folder.
    origins : list of dict
        The installations that have used it.
    kernels : int
        Their number.
    size : int
        Their size in bytes.
    stale : bool
        Whether none of these installations can use them any more.
    """

    name: str
    origins: list[dict[str, Any]]
    kernels: int
    size: int
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
    with _opened_cache(folder) as cache:
        for name in _entries(cache, stat.S_ISDIR):
            with _opened(cache / name) as place:
                build = _build(name, place)
            if build is not None:
                yield build


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
    stale = [build.name for build in builds(folder) if build.stale]
    removed: list[int] = []
    with _opened_cache(folder) as cache:
        for name in stale:
            sizes = _sizes(cache / name)
            shutil.rmtree(cache / name, ignore_errors=True)
            if not (cache / name).exists():
                removed += sizes
        for name in _entries(cache, stat.S_ISDIR):
            with _opened(cache / name) as place:
                parts = filter(_UNFINISHED.fullmatch, _entries(place, stat.S_ISREG))
                removed += _remove(place, [file for file in parts if _is_old(place / file)])
    return len(removed), sum(removed)


def _build(name: str, place: Path) -> Build | None:
    """Return the build in an open folder, if there is one."""
    from numnorm.backends.kernel_files.trust import reason_against

    files = _entries(place, stat.S_ISREG)
    sizes = [(place / file).lstat().st_size for file in files if file.endswith(".bin")]
    records = [file for file in _entries(place) if _RECORD.fullmatch(file)]
    if not (sizes or records):
        return None
    origins = [origin for origin in (_read(place / file) for file in records) if origin is not None]
    readable = len(origins) == len(records)
    trusted = reason_against(place.stat()) is None
    stale = all(_is_stale(origin, trusted) for origin in origins)
    return Build(
        name,
        origins,
        len(sizes),
        sum(sizes),
        readable and stale and (bool(origins) or _is_old(place)),
    )


@contextmanager
def _opened_cache(folder: Path) -> Iterator[Path]:
    """Open a folder of the cache, also through a link that this user or root has made."""
    from numnorm.backends.kernel_files.trust import is_link_of_another

    own = folder if is_link_of_another(folder) else Path(os.path.realpath(folder))
    with _opened(own) as place:
        yield place


@contextmanager
def _opened(folder: Path) -> Iterator[Path]:
    """Yield a path that leads to a folder as long as it is open; to nothing if it is none."""
    number = None
    try:
        try:
            number = open_folder(folder)
        except OSError:
            folder = folder / "nothing"
        yield address(number, folder)
    finally:
        if number is not None:
            os.close(number)


def _entries(folder: Path, kind: Callable[[int], bool] | None = None) -> list[str]:
    """Return the names in a folder of what is of a kind, sorted."""
    found = []
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(folder)):
            with contextlib.suppress(OSError):
                if kind is None or kind((folder / name).lstat().st_mode):
                    found.append(name)
    return found


def _sizes(folder: Path) -> list[int]:
    """Return the sizes of all files in a folder and those below it."""
    found = []
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                found.append(os.lstat(os.path.join(place, name)).st_size)
    return found


def _remove(folder: Path, names: list[str]) -> list[int]:
    """Remove files of an open folder; return the sizes of those that are gone."""
    sizes = []
    for name in names:
        # Another process may do the same, and a folder may be read-only.
        with contextlib.suppress(OSError):
            size = (folder / name).lstat().st_size
            (folder / name).unlink()
            sizes.append(size)
    return sizes


def _read(record: Path) -> dict[str, Any] | None:
    """Return what an installation wrote down, or None if it cannot be read."""
    try:
        with open_regular(record) as file:
            content = file.read(_LARGEST_RECORD + 1)
        origin = json.loads(content) if len(content) <= _LARGEST_RECORD else None
    except (OSError, ValueError, RecursionError):
        return None
    return origin if isinstance(origin, dict) else None


def _is_stale(origin: dict[str, Any], trusted: bool) -> bool:
    from numnorm.backends.kernel_files.origin import is_stale

    # What cannot be read may be usable: by a newer version of numnorm, for example.
    with contextlib.suppress(OSError, LookupError, TypeError, AttributeError, ValueError):
        return is_stale(origin, trusted)
    return False


def _is_old(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime > _HOUR
    except OSError:
        return False
