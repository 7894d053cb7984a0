"""What differs between Linux, macOS and Windows, each under a plain name.

Other modules do not ask which system they run on. Windows neither renames nor removes a file that
is open or mapped, has no numbers of users, cannot open folders, and forks no processes.
"""

import contextlib
import errno
import importlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

WINDOWS = os.name == "nt"
LINUX = sys.platform == "linux"

_LOCKED_BYTE = 2**31 - 2
"""The byte that a lock takes on Windows, where others cannot read it: beyond what is in a file."""
_PAUSES = (0.01, 0.03, 0.1, 0.3, 0.6)
"""Seconds between attempts to rename on Windows."""
_MOST_PROCESSES = 61
"""As many as `ProcessPoolExecutor` can wait for on Windows."""


# Processors and processes


def usable_processors() -> int:
    """Return how many processors the affinity of the calling thread allows, or else all."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def most_processes(wanted: int) -> int:
    """Return how many of the wanted processes a pool can have."""
    return min(wanted, _MOST_PROCESSES) if WINDOWS else wanted


def at_fork(
    *,
    before: Callable[[], None] | None = None,
    after_in_parent: Callable[[], None] | None = None,
    after_in_child: Callable[[], None] | None = None,
) -> None:
    """Call functions at each fork, where the system has forks, as `os.register_at_fork` does."""
    given = {"before": before, "after_in_parent": after_in_parent, "after_in_child": after_in_child}
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(**{name: call for name, call in given.items() if call is not None})


# Users


def own_number() -> int | None:
    """Return the number of this user, or None on Windows, where users have none.

    There a folder is closed to others by its access control list, as that of a user's own profile
    is from the beginning.
    """
    return os.geteuid() if hasattr(os, "geteuid") else None


# Files


def lock(number: int) -> None:
    """Lock an open file, or a folder where these can be opened, until it is closed.

    Parameters
    ----------
    number : int
        The file descriptor.

    Raises
    ------
    BlockingIOError
        If it is locked.
    OSError
        If the file system has no locks.
    """
    if not WINDOWS:
        fcntl = importlib.import_module("fcntl")
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    msvcrt = importlib.import_module("msvcrt")
    before = os.lseek(number, 0, os.SEEK_CUR)
    try:
        os.lseek(number, _LOCKED_BYTE, os.SEEK_SET)
        msvcrt.locking(number, msvcrt.LK_NBLCK, 1)
    except PermissionError as error:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from error
    finally:
        os.lseek(number, before, os.SEEK_SET)


def check_new_files(folder: Path, length: int) -> None:
    """Raise OSError if no files can be made in a folder.

    Parameters
    ----------
    folder : Path
        The folder.
    length : int
        The most characters of a name in it: on Windows a whole path may have 259.
    """
    if not WINDOWS:
        import tempfile  # here, to keep `import numnorm` fast

        with tempfile.TemporaryFile(dir=folder):
            return
    # Not by `tempfile`: in a closed folder of Windows, Python 3.11 and 3.12 try all names.
    path = folder / os.urandom(length // 2).hex()
    path.open("xb").close()
    path.unlink()


def rename(source: Path, target: Path) -> None:
    """Rename a file or folder, also over a file, in one step.

    On Windows it waits up to a second for programs that look into new files.

    Parameters
    ----------
    source : Path
        The old name.
    target : Path
        The new name.
    """
    for pause in _PAUSES if WINDOWS else ():
        with contextlib.suppress(PermissionError):
            os.replace(source, target)
            return
        time.sleep(pause)
    os.replace(source, target)


def sync(path: Path) -> None:
    """Let a file or folder reach the disk, if the file system can.

    Parameters
    ----------
    path : Path
        The file or folder; Windows syncs files alone.
    """
    with contextlib.suppress(OSError):
        number = os.open(path, os.O_RDWR if WINDOWS else os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def open_folder(path: Path | str, links: bool = False) -> int | None:
    """Open a folder.

    Parameters
    ----------
    path : Path or str
        The folder.
    links : bool, default False
        Whether its last part may be a symbolic link.

    Returns
    -------
    int or None
        A file descriptor for the caller to close; None on Windows.

    Raises
    ------
    OSError
        If it is no folder, or cannot be opened.
    """
    if WINDOWS:
        os.listdir(path)
        return None
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | (0 if links else os.O_NOFOLLOW))
