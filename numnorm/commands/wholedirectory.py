"""Output directories that appear complete, or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from numnorm.commands.errors import CommandError
from numnorm.commands.signals import signals_raise
from numnorm.wholefile import lock, temporary_name

NEW = "new"
"""The name of the new directory within the temporary one."""

_OLD, _LOCK = "old", "lock"
_PARTIAL = "*.partial"  # what a killed process leaves where it wrote a chunk

_TRIES = 100
_SYNCING = 16  # threads, which wait for the disk
_LOGGER = logging.getLogger("numnorm")


@contextmanager
def appearing_directory(path: Path, resume: bool) -> Iterator[Path]:
    """Yield a temporary directory, whose `NEW` becomes `path` when the block ends without an error.

    It stands beside `path`. An existing directory at `path` is replaced.

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
    target, work = _places(path)
    with signals_raise(), _locked(work, path):
        keep = resume
        try:
            _put_back(work, target)
            # Without `NEW`, or with the old output still there, the run before had come to its end.
            ended = (work / _OLD).exists() or not (work / NEW).exists()
            if (ended or not resume) and _clear(work) and not ended:
                _LOGGER.warning("removed %s, which a killed process left", work)
            yield work
            _settle(work / NEW)
            if target.exists():
                shutil.copymode(target, work / NEW)
                os.rename(target, work / _OLD)
            os.rename(work / NEW, target)
            keep = False
        finally:
            _put_back(work, target)
            if not keep:
                _remove(work)


def put_back_old(path: Path) -> None:
    """Put an old output back that a killed process had moved aside.

    Parameters
    ----------
    path : Path
        Its name.

    Raises
    ------
    CommandError
        If another process is writing to `path`.
    """
    target, work = _places(path)
    if (work / _OLD).exists():
        with _locked(work, path):
            _put_back(work, target)


def _places(path: Path) -> tuple[Path, Path]:
    """Return where the output comes to stand, and the temporary directory."""
    target = Path(os.path.realpath(path))
    digest = hashlib.sha256(os.fsencode(target)).hexdigest()
    return target, temporary_name(target, digest)


def _put_back(work: Path, target: Path) -> None:
    """Put the old output back, if the new one did not take its place."""
    if (work / _OLD).exists() and not target.exists():
        os.rename(work / _OLD, target)


@contextmanager
def _locked(work: Path, path: Path) -> Iterator[None]:
    """Make a directory and lock it against other processes."""
    for _ in range(_TRIES):
        # mkdir's exist_ok fails if another process removes the directory meanwhile.
        with contextlib.suppress(FileExistsError):
            work.mkdir()
        try:
            file = open(work / _LOCK, "ab")  # noqa: SIM115
        except FileNotFoundError:  # the process before removed the directory
            continue
        with file:
            try:
                lock(file)
            except BlockingIOError as error:
                raise CommandError(f"another process is writing {path}") from error
            except OSError:  # some file systems have no locks
                pass
            if not _is_file(file, work / _LOCK):
                continue
            if os.name == "nt":  # Windows removes no open file
                file.close()
            yield
            return
    raise CommandError(f"another process is writing {path}")


def _is_file(file: BinaryIO, path: Path) -> bool:
    """Return whether a path still leads to an open file."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


def _clear(work: Path) -> bool:
    """Remove all but the lock, and tell whether there was something.

    Files go first: `--resume` looks for them, so that it never finds half of an output.
    """
    entries = [entry for entry in work.iterdir() if entry.name != _LOCK]
    for entry in sorted(entries, key=Path.is_dir):
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    return bool(entries)


def _remove(work: Path) -> None:
    """Remove a locked directory: the lock last, so that no other process begins in it before."""
    with contextlib.suppress(OSError):
        _clear(work)
        (work / _LOCK).unlink()
        work.rmdir()


def _settle(directory: Path) -> None:
    """Remove what killed writers left, and let everything reach the disk."""
    for leftover in directory.rglob(_PARTIAL):
        leftover.unlink(missing_ok=True)
    with ThreadPoolExecutor(_SYNCING) as pool:
        list(pool.map(_sync, directory.rglob("*")))


def _sync(path: Path) -> None:
    # A directory cannot be opened on Windows, and not every file system syncs one.
    with contextlib.suppress(OSError):
        number = os.open(path, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
