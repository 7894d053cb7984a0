"""Opens regular files and folders alone, in folders that others may write to.

There a name can lead to a pipe, which waits for its other end, to a device, or, as a link, to what
somebody else has chosen; and in the next moment to something else.
"""

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, cast

_NO_WAITING = getattr(os, "O_NONBLOCK", 0)  # Windows has neither
_NO_LINKS = getattr(os, "O_NOFOLLOW", 0)


def open_regular(path: Path | str, mode: str = "rb", *, links: bool = False) -> BinaryIO:
    """Open a file as `open` does, if it is a regular one.

    Parameters
    ----------
    path : Path or str
        The file.
    mode : str, default "rb"
        As for `open`, of bytes.
    links : bool, default False
        Whether its last part may be a symbolic link.

    Returns
    -------
    BinaryIO
        The open file.

    Raises
    ------
    OSError
        If it is no regular file, or cannot be opened.
    """

    def opener(name: str, flags: int) -> int:
        number = os.open(name, flags | _NO_WAITING | (0 if links else _NO_LINKS))
        if not stat.S_ISREG(os.fstat(number).st_mode):
            os.close(number)
            raise OSError(errno.EINVAL, "Not a regular file", str(path))
        return number

    return cast(BinaryIO, open(path, mode, opener=opener))


def open_folder(path: Path | str) -> int | None:
    """Open a folder; links are not followed.

    Parameters
    ----------
    path : Path or str
        The folder.

    Returns
    -------
    int or None
        A file descriptor for the caller to close; None on systems that have none for folders.

    Raises
    ------
    OSError
        If it is no folder, or cannot be opened.
    """
    if hasattr(os, "O_DIRECTORY"):
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | _NO_LINKS)
    os.listdir(path)
    return None


def address(number: int | None, path: Path) -> Path:
    """Return a path to an open folder that leads to it whatever becomes of its name.

    Parameters
    ----------
    number : int or None
        What `open_folder` returned.
    path : Path
        Its name.

    Returns
    -------
    Path
        For this process alone; the name on systems without such paths.
    """
    if number is not None:
        found = Path(f"/proc/self/fd/{number}")
        with contextlib.suppress(OSError):
            if os.path.samestat(os.stat(found), os.fstat(number)):
                return found
    return path
