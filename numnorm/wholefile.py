"""Files that appear complete, or not at all."""

import contextlib
import errno
import logging
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # on Windows an open file cannot be removed anyway
    fcntl = None  # type: ignore[assignment]

_MARK = ".numnorm-"
_DIGITS = 12
_MIB = 2**20


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a new file that gets the name `path` when the block ends without an error.

    Until then it has a temporary name in the same directory; it is removed after any error, or by
    the next call for the directory after a kill. An existing file at `path` is replaced in one
    step.

    Parameters
    ----------
    path : Path
        The final name. A symbolic link is followed.

    Yields
    ------
    BinaryIO
        The file, open for reading and writing.

    Raises
    ------
    OSError
        If the file cannot be written, or `path` is no regular file.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    if path.exists() and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    target = Path(os.path.realpath(path))
    _remove_leftovers(target.parent)
    temporary = temporary_name(target, secrets.token_hex(_DIGITS))
    try:
        with open(temporary, "x+b") as file:
            # Some file systems have no locks: what is left on them stays.
            with contextlib.suppress(OSError):
                lock(file)
            yield file
            file.flush()
            os.fsync(file.fileno())
            if target.exists():
                shutil.copymode(target, temporary)
            # While it is locked: other calls remove temporary files that are not.
            if os.name != "nt":
                os.replace(temporary, target)
        if os.name == "nt":  # Windows renames no open file
            os.replace(temporary, target)
    except OSError as error:
        # An error of an open file does not name the file, and others name the temporary one.
        if error.filename is None or str(error.filename) == str(temporary):
            error.filename = str(path)
        raise
    finally:
        with contextlib.suppress(OSError):  # it may be gone, or its directory
            temporary.unlink()


def temporary_name(target: Path, digits: str) -> Path:
    """Return a name beside `target` by which a leftover is recognized.

    Parameters
    ----------
    target : Path
        The final name.
    digits : str
        Hexadecimal digits, of which the first are taken.

    Returns
    -------
    Path
        In the same directory.
    """
    # Part of the name, as no system allows more than 255 bytes.
    return target.with_name(f"{target.name[:50]}{_MARK}{digits[:_DIGITS]}.tmp")


def _remove_leftovers(directory: Path) -> None:
    """Remove what killed processes left in a directory, and log it."""
    for path in directory.glob(f"*{_MARK}{'[0-9a-f]' * _DIGITS}.tmp"):
        # It may be another user's, or one that is being written, which is locked.
        with contextlib.suppress(OSError):
            with open(path, "r+b") as file:
                lock(file)
                size = file.seek(0, os.SEEK_END)
            # An empty one may be so new that it is not locked yet.
            if size:
                path.unlink()
                logging.getLogger("numnorm").warning(
                    "removed %s (%.1f MiB), which a killed process left", path, size / _MIB
                )


def lock(file: BinaryIO) -> None:
    """Lock a file while it is open; raise OSError if it is locked.

    Parameters
    ----------
    file : BinaryIO
        The file.
    """
    if fcntl is not None:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
