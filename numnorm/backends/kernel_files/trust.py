"""Whether a file may be unpickled: that runs the code of whoever wrote the file."""

import os
import stat
from pathlib import Path

from numnorm.files import open_regular
from numnorm.operating_system import own_number

_WRITABLE_BY_OTHERS = 0o022
_said = False


def reason_against(status: os.stat_result) -> str | None:
    """Return why others than this user and root could have written a file or folder; or None.

    Where users have no numbers, as on Windows, it is always None.
    """
    if own_number() is None:
        return None
    if not _is_of_trusted(status):
        return f"belongs to user {status.st_uid}"
    if status.st_mode & _WRITABLE_BY_OTHERS:
        return "can be written by other users"
    return None


def is_link_of_another(path: Path) -> bool:
    """Return whether a path is a symbolic link that neither this user nor root has made."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISLNK(status.st_mode) and not _is_of_trusted(status)


def _is_of_trusted(status: os.stat_result) -> bool:
    """Return whether something belongs to this user or root; True where users have no numbers."""
    own = own_number()
    return own is None or status.st_uid in (0, own)


def read_trusted(path: Path) -> bytes | None:
    """Return the content of a file; None if it is not trusted, which is logged once.

    Raises
    ------
    OSError
        If there is no such file.
    """
    reason = reason_against(os.stat(path.parent))
    if reason is not None:
        _warn_once(path.parent, f"it {reason}")
        return None
    try:
        with open_regular(path, links=True) as file:
            # Of the open file, as its name could be given to another one meanwhile.
            reason = reason_against(os.fstat(file.fileno()))
            if reason is None:
                return file.read()
    except PermissionError:
        reason = "cannot be read by this user"
    _warn_once(path.parent, f"{path.name} {reason}")
    return None


def _warn_once(folder: Path, reason: str) -> None:
    global _said
    if _said:
        return
    import logging  # here, as most processes trust what they find

    _said = True
    logging.getLogger("numnorm").warning(
        "numnorm does not load compiled kernels from %s: %s; files and folder must belong to this "
        "user or root, and nobody else may be able to write to them",
        folder,
        reason,
    )
