"""The folders in which compiled kernels are looked for and kept.

The files of one build of numnorm for one backend and processor share a folder in each of them.
"""

import contextlib
import functools
from pathlib import Path

from numba.core import config
from numba.misc.appdirs import AppDirs

from numnorm.backends.kernel_files.trust import is_link_of_another, reason_against
from numnorm.backends.sources import PACKAGE
from numnorm.operating_system import check_new_files

_LONGEST = 128
"""At least the characters that a kernel being written adds to the path of such a folder."""


@functools.cache
def folders(build: str | None) -> tuple[Path, ...]:
    """Return the folders in which kernels are looked for, in this order.

    They are a folder beside the package and the user's cache. ``NUMBA_CACHE_DIR``, if it is set,
    comes first, and is the only one if kernels of the build can be kept in it.
    """
    usual = (
        Path(PACKAGE) / "__pycache__" / "kernels",
        Path(AppDirs("numnorm", False).user_cache_dir),
    )
    # A user without a home has "~/.cache", which would be a folder where the program is started.
    known = tuple(path for path in usual if path.is_absolute())
    if not config.CACHE_DIR:
        return known
    named = Path(config.CACHE_DIR) / "numnorm"
    return (named,) if _is_writable(named, build) else (named, *known)


@functools.cache
def folder_to_write(build: str | None) -> Path | None:
    """Return the first of the folders in which new kernels of a build can be kept; or None."""
    return next((path for path in folders(build) if _is_writable(path, build)), None)


@functools.cache
def _is_writable(folder: Path, build: str | None) -> bool:
    """Return whether kernels of this process can be written to a folder, and read again."""
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        # Another user may have made the folder of this build, or have linked it to some other one.
        place = folder / str(build)
        if is_link_of_another(folder) or is_link_of_another(place):
            return False
        place = place if place.exists() else folder
        check_new_files(place, _LONGEST)
        return place == folder or reason_against(place.stat()) is None
    return False
