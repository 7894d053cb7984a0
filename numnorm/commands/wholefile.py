"""Output files that appear complete, or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from numnorm.backends.kernel_files.trust import is_link_of_another
from numnorm.commands.errors import CommandError, one_line
from numnorm.commands.signals import signals_raise
from numnorm.commands.wholedirectory import claimed, remove_leftovers
from numnorm.wholefile import alone_in, replacing


@contextmanager
def appearing(path: Path) -> Iterator[BinaryIO]:
    """Open a new file that gets the name `path` when the block ends without an error.

    As `replacing`, of what has not changed meanwhile; it is also removed after SIGINT, SIGTERM and
    SIGHUP.

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
    CommandError
        If another process is writing to `path`.
    """
    check_writable(path)
    with signals_raise(), ExitStack() as stack:
        with alone_in(writable_directory(path)):
            left = claimed(path, stack)
            file = stack.enter_context(replacing(path, unchanged=True))
        remove_leftovers(left)
        yield file


def writable_directory(path: Path) -> Path:
    """Return the directory of an output; raise if nothing can be written to it.

    Parameters
    ----------
    path : Path
        The output. A symbolic link is followed.

    Returns
    -------
    Path
        The directory.

    Raises
    ------
    CommandError
        If it does not exist or is not writable, or another user has made the link.
    """
    if is_link_of_another(path):
        raise CommandError(f"the output {path} is a symbolic link of another user")
    directory = Path(os.path.realpath(path)).parent
    if not directory.is_dir():
        raise CommandError(f"the output directory {directory} does not exist")
    if not os.access(directory, os.W_OK | os.X_OK):
        raise CommandError(f"the output directory {directory} is not writable")
    return directory


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
    writable_directory(path)
    if path.exists() and not path.is_file():
        raise CommandError(f"the output {path} is not a regular file")
    if path.exists() and not os.access(path, os.W_OK):
        raise CommandError(f"the output {path} is not writable")


def check_file(path: Path, name: str, suffixes: tuple[str, ...], force: bool) -> None:
    """Raise if a file cannot be written.

    Parameters
    ----------
    path : Path
        The file.
    name : str
        What it is, for the message.
    suffixes : tuple of str
        How it must end, and the ends of what else could be written.
    force : bool
        Whether a file that exists may be replaced.

    Raises
    ------
    CommandError
        If it exists, has another suffix, or is in no directory that is writable.
    """
    check_writable(path)
    if path.suffix.lower() != suffixes[0]:
        ends = " or ".join(suffixes)
        raise CommandError(f"the {name} {path} must end in {ends}: no other is written")
    if path.exists() and not force:
        raise CommandError(f"the {name} {path} exists: --force replaces it")


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
