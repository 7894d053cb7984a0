"""Outputs that appear complete, or not at all: files, and directories.

A directory is written in a temporary one. The folder of both may be one that other users can write
to. They can rename the temporary directory and put another one, or a link, in its place. So its
name cannot be known before, it is used by an address that no renaming changes, where the system has
one, and an earlier one is used only if this user made it for the same output.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from numnorm.backends.kernel_files.trust import is_link_of_another
from numnorm.commands.terminal import CommandError, one_line, signals_raise
from numnorm.files import (
    CHANGED,
    address,
    alone_in,
    identity,
    open_regular,
    replacing,
    temporary_name,
    temporary_of,
)
from numnorm.operating_system import WINDOWS, lock, open_folder, own_number, rename, sync

NEW = "new"
"""The name of the new output within the temporary directory."""

_OLD = "old"
_LOCK = "lock"
_PARTIAL = "*.partial"  # what a killed process leaves where it wrote a chunk

_SYNCING = 16  # threads, which wait for the disk
_LOGGER = logging.getLogger("numnorm")


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
            left = _claimed(path, stack)
            file = stack.enter_context(replacing(path, unchanged=True))
        _remove_leftovers(left)
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


@contextmanager
def appearing_directory(path: Path, resume: bool) -> Iterator[Path]:
    """Yield a temporary directory, whose `NEW` becomes `path` when the block ends without an error.

    It stands beside `path`. An existing directory or file at `path` is replaced.

    Parameters
    ----------
    path : Path
        The final name. A symbolic link is followed.
    resume : bool
        Whether to keep what is in it from an earlier call, and to keep it after an error.

    Yields
    ------
    Path
        The directory. What is in it but not in `NEW` is removed at the end.

    Raises
    ------
    CommandError
        If another process is writing to `path`.
    """
    target = Path(os.path.realpath(path))
    with signals_raise(), ExitStack() as stack:
        with alone_in(target.parent):
            left = _claimed(path, stack)
            before = identity(target)
            goes_on = resume and bool(left) and not left[0].has_ended
            work = left.pop(0) if goes_on else _made(target, stack)
        keep = resume
        try:
            _remove_leftovers(left)
            yield work.place
            _settle(work.place / NEW)
            if identity(target) != before:
                raise CommandError(f"the output {path} was {CHANGED}")
            if before is not None:
                shutil.copymode(target, work.place / NEW)
            if target.is_dir():  # which cannot be replaced in one step
                rename(target, work.place / _OLD)
            rename(work.place / NEW, target)
            keep = False
        except OSError as error:
            if str(error.filename).startswith(str(work.place)):
                error.filename = str(path)
            raise
        finally:
            work.put_back(target)
            if not keep:
                work.remove()


def is_begun(path: Path) -> bool:
    """Return whether a process that has ended left a temporary directory of an output.

    An old output that it had moved aside is put back.

    Parameters
    ----------
    path : Path
        The name of the output.

    Returns
    -------
    bool
        True even if there is nothing in it to go on from.

    Raises
    ------
    CommandError
        If another process is writing to `path`.
    """
    with alone_in(Path(os.path.realpath(path)).parent), ExitStack() as stack:
        return bool(_claimed(path, stack))


class Temporary:
    """An open temporary directory.

    Parameters
    ----------
    path : Path
        Its name, which another user may have given to something else by now.
    number : int, optional
        Its file descriptor, where the system has some for directories.

    Attributes
    ----------
    locked : BinaryIO, optional
        The open file in it that this process has locked.
    """

    def __init__(self, path: Path, number: int | None) -> None:
        self.path = path
        self.place = address(number, path)
        self.locked: BinaryIO | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the run came to its end, or did not begin to write."""
        return (self.place / _OLD).exists() or not (self.place / NEW).exists()

    def put_back(self, target: Path) -> None:
        """Put the old output back, if the new one did not take its place.

        Parameters
        ----------
        target : Path
            Its name.
        """
        if (self.place / _OLD).exists() and not target.exists():
            rename(self.place / _OLD, target)

    def remove(self) -> None:
        """Remove it: the lock last, so that it is known until then.

        Files go first: `--resume` looks for them, so that it never finds half of an output.
        """
        with contextlib.suppress(OSError):
            entries = [entry for entry in os.scandir(self.place) if entry.name != _LOCK]
            for entry in sorted(entries, key=lambda entry: entry.is_dir(follow_symlinks=False)):
                is_folder = entry.is_dir(follow_symlinks=False)
                shutil.rmtree(entry.path) if is_folder else os.unlink(entry.path)
            if WINDOWS and self.locked is not None:
                self.locked.close()
            (self.place / _LOCK).unlink()
            self.path.rmdir()  # which never removes anything but an empty one


def _claimed(path: Path, stack: ExitStack) -> list[Temporary]:
    """Open and lock the temporary directories of an output that processes have left.

    An old output that they had moved aside is put back.

    Parameters
    ----------
    path : Path
        The name of the output.
    stack : ExitStack
        It closes them.

    Returns
    -------
    list of Temporary
        Usually none or one. Nothing of other users is among them.

    Raises
    ------
    CommandError
        If another process is writing to `path`.
    """
    target = Path(os.path.realpath(path))
    found = []
    for candidate in temporary_of(target):
        work = _opened(candidate, stack)
        if work is not None:
            try:
                file = stack.enter_context(open_regular(work.place / _LOCK, "r+b"))
                if _is_own(file.fileno(), target.parent) and json.load(file) == _mark(target):
                    _take(file, path)
                    work.locked = file
                    found.append(work)
            except FileNotFoundError:  # of a process that had just begun
                with contextlib.suppress(OSError):
                    candidate.rmdir()
            except (OSError, ValueError):
                continue
        else:
            with contextlib.suppress(OSError), open_regular(candidate, "r+b") as file:
                _take(file, path)
    for work in found:
        work.put_back(target)
    return found


def _remove_leftovers(left: list[Temporary]) -> None:
    """Remove what `_claimed` found, and log it.

    Parameters
    ----------
    left : list of Temporary
        Which of them.
    """
    for work in left:
        if not work.has_ended:
            _LOGGER.warning("removed %s, which a killed process left", work.path)
        work.remove()


def _take(file: BinaryIO, path: Path) -> None:
    """Lock the file of a run; raise if the run is not over."""
    try:
        lock(file.fileno())
    except BlockingIOError as error:
        raise CommandError(f"another process is writing {path}") from error
    except OSError:  # some file systems have no locks
        pass


def _made(target: Path, stack: ExitStack) -> Temporary:
    """Make a temporary directory, and lock it against other processes."""
    path = temporary_name(target)
    path.mkdir(0o700)
    work = _opened(path, stack)
    # In the place of the new one there may be another by now. An empty one of this user is as good.
    if work is None or os.listdir(work.place):
        raise CommandError(f"another user has taken {path}")
    work.locked = file = open(work.place / _LOCK, "x+b")  # noqa: SIM115
    stack.callback(file.close)
    with contextlib.suppress(OSError):
        lock(file.fileno())
    file.write(json.dumps(_mark(target)).encode())
    file.flush()
    return work


def _mark(target: Path) -> dict[str, str]:
    """Return what a temporary directory holds from the beginning, for JSON.

    Without it a directory of this user may be anything, renamed by another user.
    """
    return {"output": target.name}


def _opened(path: Path, stack: ExitStack) -> Temporary | None:
    """Open a directory; None if it is none, a link, or not of this user."""
    try:
        number = open_folder(path)
    except OSError:
        return None
    if number is not None:
        stack.callback(os.close, number)
        if not _is_own(number, path.parent):
            return None
    return Temporary(path, number)


def _is_own(number: int, folder: Path) -> bool:
    """Return whether something in a folder belongs to who a new file in it would belong to.

    On some file systems of networks that is not the user of this process.
    """
    owner = os.fstat(number).st_uid
    if own_number() in (owner, None):
        return True
    with tempfile.TemporaryFile(dir=folder) as file:
        return owner == os.fstat(file.fileno()).st_uid


def _settle(output: Path) -> None:
    """Remove what killed writers left, and let everything reach the disk."""
    for leftover in output.rglob(_PARTIAL):
        leftover.unlink(missing_ok=True)
    with ThreadPoolExecutor(_SYNCING) as pool:
        list(pool.map(sync, [output, *output.rglob("*")]))
