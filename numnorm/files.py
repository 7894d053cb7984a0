"""Files that appear complete, or not at all.

The folder may be one that other users can write to. So temporary names cannot be known before, are
made anew and never through a link, and only what belongs to this user is removed.
"""

import contextlib
import errno
import hashlib
import logging
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from numnorm.operating_system import WINDOWS, lock, open_folder, rename

# Opens regular files alone, in folders that others may write to


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


_MARK = ".numnorm-"
_TEMPORARY = re.compile(re.escape(_MARK).join([r"(.*)", r"[0-9a-f]{12}\.tmp"]), re.DOTALL)
_MOST = 50
"""The most characters of a name in its temporary names, which then stay below 255 bytes."""
_DIGITS = 7
"""Hexadecimal digits of the hash that takes the place of the rest of a longer name."""
_MIB = 2**20
_RENAMED_WITHIN = 60.0
"""Seconds after its last change that a whole file has its final name, on Windows."""
_PATIENCE = 10.0
"""Seconds to wait for other processes that look into the same folder."""


@contextmanager
def replacing(path: Path, *, unchanged: bool = False) -> Iterator[BinaryIO]:
    """Open a new file that gets the name `path` when the block ends without an error.

    Until then it has a temporary name in the same directory; it is removed after any error, or by
    the next call for the directory after a kill. An existing file at `path` is replaced in one
    step.

    Parameters
    ----------
    path : Path
        The final name. A symbolic link is followed.
    unchanged : bool, default False
        Whether to raise an error, and to replace nothing, if what is at `path` at the end is not
        what was there at the beginning.

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
    before = identity(target)
    temporary = temporary_name(target)
    try:
        with open(temporary, "x+b", opener=_creator(target)) as file:
            # Some file systems have no locks: what is left on them stays.
            with contextlib.suppress(OSError):
                lock(file.fileno())
            _remove_leftovers(temporary, os.fstat(file.fileno()).st_uid)
            yield file
            file.flush()
            os.fsync(file.fileno())
            if unchanged and identity(target) != before:
                raise OSError(errno.EBUSY, CHANGED, str(path))
            if target.exists():
                # Of the open file: its name may lead elsewhere by now.
                place = file.fileno() if os.chmod in os.supports_fd else temporary
                os.chmod(place, stat.S_IMODE(target.stat().st_mode))
            # While it is locked: other calls remove temporary files that are not.
            if not WINDOWS:
                rename(temporary, target)
        if WINDOWS:
            rename(temporary, target)
    except OSError as error:
        # An error of an open file does not name the file, and others name the temporary one.
        if error.filename is None or str(error.filename) == str(temporary):
            error.filename = str(path)
        raise
    finally:
        with contextlib.suppress(OSError):  # it may be gone, or its directory
            temporary.unlink()


CHANGED = "changed by another process meanwhile, and not replaced"
"""What an error says of an output."""


def identity(path: Path) -> tuple[int, ...] | None:
    """Return what tells a file or a folder from another of the same name, or None without one.

    Parameters
    ----------
    path : Path
        Its name.

    Returns
    -------
    tuple of int, or None
        Its numbers in the file system, its size and the time of its last change.
    """
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def temporary_name(target: Path) -> Path:
    """Return a new name beside `target` by which a leftover is recognized.

    Parameters
    ----------
    target : Path
        The final name.

    Returns
    -------
    Path
        In the same directory; nobody could have known it.
    """
    return target.with_name(f"{_beginning(target)}{_MARK}{secrets.token_hex(6)}.tmp")


def temporary_of(target: Path) -> list[Path]:
    """Return what is beside `target` and has one of its temporary names.

    Parameters
    ----------
    target : Path
        The final name.

    Returns
    -------
    list of Path
        Files, folders, or what else another user has put there.
    """
    beginning = _beginning(target)
    return [path for of, path in _temporary_in(target.parent) if of == beginning]


def _beginning(target: Path) -> str:
    """Return the beginning of a file's temporary names, which no other file's names have."""
    name = target.name
    if len(name) <= _MOST:
        return name
    rest = hashlib.sha256(os.fsencode(name)).hexdigest()[:_DIGITS]
    return name[: _MOST - _DIGITS] + rest


def _temporary_in(folder: Path) -> list[tuple[str, Path]]:
    """Return what has a temporary name in a folder, each after the beginning of its name."""
    try:
        matches = map(_TEMPORARY.fullmatch, sorted(os.listdir(folder)))
    except OSError:  # a folder may be closed to those who write to it
        return []
    return [(match[1], folder / match[0]) for match in matches if match]


def _creator(target: Path) -> Callable[[str, int], int]:
    """Return how to open a new file that never has more readers than the one that it replaces."""
    mode = stat.S_IMODE(target.stat().st_mode) & 0o666 if target.exists() else 0o666
    return lambda path, flags: os.open(path, flags, mode)


def _remove_leftovers(own: Path, owner: int) -> None:
    """Remove the files that killed processes of a user left in a directory, and log it."""
    for _, path in _temporary_in(own.parent):
        if path == own:
            continue
        # It may be one that is being written, which is locked.
        with contextlib.suppress(OSError):
            with open_regular(path, "r+b") as file:
                lock(file.fileno())
                status = os.fstat(file.fileno())
            # An empty one may be so new that it is not locked yet, and on Windows a full one is
            # unlocked before it is renamed.
            is_new = WINDOWS and time.time() - status.st_mtime < _RENAMED_WITHIN
            if status.st_size and status.st_uid == owner and not is_new:
                path.unlink()
                logging.getLogger("numnorm").warning(
                    "removed %s (%.1f MiB), which a killed process left",
                    path,
                    status.st_size / _MIB,
                )


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Wait until no other process is in such a block for the same folder.

    On Windows, without locks, or after ten seconds, the block begins all the same: it is for things
    that last milliseconds, and another user could hold the lock for ever.

    Parameters
    ----------
    folder : Path
        The folder.

    Yields
    ------
    None
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            number = open_folder(folder, links=True)
            if number is not None:
                stack.callback(os.close, number)
                _wait_for_lock(number)
        yield


def _wait_for_lock(number: int) -> None:
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            lock(number)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                return
            time.sleep(0.005)
