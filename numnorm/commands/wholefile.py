"""Output files that appear complete, or not at all."""

from __future__ import annotations

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

from numnorm.commands.errors import CommandError, one_line
from numnorm.commands.signals import signals_raise

_MARK = ".numnorm-"
_MIB = 2**20


@contextmanager
def appearing(path: Path) -> Iterator[BinaryIO]:
    """Open a new file that gets the name `path` when the block ends without an error.

    Until then it has a temporary name in the same directory; it is removed after any error and
    after SIGINT, SIGTERM and SIGHUP, or by the next call for the directory after a SIGKILL. An
    existing file at `path` is replaced in one step.

    Parameters
    ----------
    path : Path
        The final name. A symbolic link is followed.

    Yields
    ------
    BinaryIO
        The file, open for reading and writing.
    """
    check_writable(path)
    target = Path(os.path.realpath(path))
    _remove_leftovers(target.parent)
    # Part of the name, as no system allows more than 255 bytes.
    temporary = target.with_name(f"{target.name[:50]}{_MARK}{secrets.token_hex(6)}.tmp")
    with signals_raise():
        try:
            with open(temporary, "x+b") as file:
                # Some file systems have no locks: what is left on them stays.
                with contextlib.suppress(OSError):
                    _lock(file)
                yield file
                file.flush()
                os.fsync(file.fileno())
            if target.exists():
                shutil.copymode(target, temporary)
            os.replace(temporary, target)
        except OSError as error:
            # An error of an open file does not name the file.
            error.filename = str(path) if error.filename is None else error.filename
            raise
        finally:
            temporary.unlink(missing_ok=True)


def _remove_leftovers(directory: Path) -> None:
    """Remove what killed processes left in a directory, and log it."""
    for path in directory.glob(f"*{_MARK}*.tmp"):
        # It may be another user's, or one that is being written, which is locked.
        with contextlib.suppress(OSError):
            with open(path, "r+b") as file:
                _lock(file)
                size = file.seek(0, os.SEEK_END)
            # An empty one may be so new that it is not locked yet.
            if size:
                path.unlink()
                logging.getLogger("numnorm").warning(
                    "removed %s (%.1f MiB), which a killed process left", path, size / _MIB
                )


def _lock(file: BinaryIO) -> None:
    """Lock a file while it is open; raise OSError if it is locked."""
    if fcntl is not None:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)


def check_writable(path: Path) -> None:
    """Raise if no file can be written to `path`, before any work is done.

    Parameters
    ----------
    path : Path
        The name of the new file.

    Raises
    ------
    CommandError
        If the directory does not exist or is not writable, or `path` cannot be replaced.
    """
    directory = Path(os.path.realpath(path)).parent
    if not directory.is_dir():
        raise CommandError(f"the output directory {directory} does not exist")
    if not os.access(directory, os.W_OK | os.X_OK):
        raise CommandError(f"the output directory {directory} is not writable")
    if path.exists() and not path.is_file():
        raise CommandError(f"the output {path} is not a regular file")
    if path.exists() and not os.access(path, os.W_OK):
        raise CommandError(f"the output {path} is not writable")


def reserve(file: BinaryIO, size: int, path: Path) -> None:
    """Allocate the full size of `file` now, so that a full disk raises an error here.

    Otherwise a store through a memory map into a hole of the file would end the process with
    SIGBUS.

    Parameters
    ----------
    file : BinaryIO
        The file, open for writing, at its end.
    size : int
        Its size in bytes.
    path : Path
        The name for the message.

    Raises
    ------
    CommandError
        If the disk is full.
    """
    try:
        if not _allocate(file, size):
            _fill(file, size)
    except OSError as error:
        raise CommandError(f"no {size} bytes can be had for {path}: {one_line(error)}") from error


def _allocate(file: BinaryIO, size: int) -> bool:
    """Allocate space on the disk; return whether the file system supports that."""
    if not hasattr(os, "posix_fallocate"):
        return False
    try:
        os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
        return False
    return True


def _fill(file: BinaryIO, size: int) -> None:
    """Write zeros up to `size`."""
    zeros = memoryview(bytes(1 << 20))
    for start in range(file.tell(), size, len(zeros)):
        file.write(zeros[: size - start])
    file.flush()
