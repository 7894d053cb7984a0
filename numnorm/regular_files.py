"""Opens regular files alone.

In a folder that others may write to, a name can lead to a pipe, which waits for its other end, to a
device, or, as a link, to a file of somebody's choice.
"""

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
