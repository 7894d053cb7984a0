"""What other operating systems do differently, on Linux.

`pretend_windows` changes this process for a test; `BEFORE` has what a new process executes first,
so that numnorm is imported as there.
"""

import contextlib
import errno
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from numnorm import operating_system

with contextlib.suppress(ImportError):  # on Windows nothing is simulated
    import fcntl

# Libraries that know the real system are imported before it changes.
_LIBRARIES = """
import asyncio, builtins, io, multiprocessing, os, shutil, signal, subprocess, sys, tempfile
import numba, numpy, scipy.linalg
import h5py
from concurrent import futures

def hide(function):
    def checked(path, *arguments, **keywords):
        if isinstance(path, (str, os.PathLike)) and os.fspath(path).startswith(("/proc", "/sys/")):
            raise FileNotFoundError(2, "there is none", path)
        return function(path, *arguments, **keywords)
    return checked

for module, name in ((io, "open"), (builtins, "open"), (os, "open"), (os, "stat"), (os, "scandir")):
    setattr(module, name, hide(getattr(module, name)))
for name in ("sched_getaffinity", "posix_fallocate"):
    delattr(os, name)
import numnorm.operating_system
numnorm.operating_system.LINUX = False
"""
_WINDOWS = (
    f"SUPPORT = {str(Path(__file__).parent)!r}"
    + """
for name in ("fork", "geteuid", "getuid", "mkfifo", "register_at_fork", "O_DIRECTORY", "O_NOFOLLOW",
             "O_NONBLOCK", "statvfs", "uname"):
    delattr(os, name)
for name in ("SIGHUP", "SIGKILL", "pthread_kill"):
    delattr(signal, name)
sys.path.insert(0, SUPPORT)
from other_systems import MSVCRT
sys.modules.update(fcntl=None, grp=None, pwd=None, resource=None, msvcrt=MSVCRT)
numnorm.operating_system.WINDOWS = True
"""
)
BEFORE = {
    "macos": _LIBRARIES,
    "windows": _LIBRARIES + _WINDOWS,
}


def _open_files() -> set[str]:
    """Return the files that this process has open or mapped."""
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        try:
            found.add(os.readlink(link))
        except OSError:  # of the folder that is being listed
            continue
    lines = Path("/proc/self/maps").read_text("utf-8").splitlines()
    found |= {parts[5] for parts in (line.split(None, 5) for line in lines) if parts[5:]}
    return set(filter(os.path.isfile, found))


def _checked(function: Any) -> Any:
    """Refuse files that are open, and folders in which one is."""

    def call(*paths: Any, **keywords: Any) -> Any:
        for path in [path for path in paths if not isinstance(path, int) and not keywords]:
            real = os.path.realpath(path)
            if any(f"{name}/".startswith(f"{real}/") for name in _open_files()):
                raise PermissionError(errno.EACCES, "The file is open", str(path))
        return function(*paths, **keywords)

    return call


def _locking(number: int, mode: int, count: int) -> None:
    """Lock a byte at the position, as the function of that name in `msvcrt`."""
    assert (mode, count) == (MSVCRT.LK_NBLCK, 1)
    assert os.lseek(number, 0, os.SEEK_CUR) >= os.fstat(number).st_size
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES)) from None


MSVCRT = SimpleNamespace(locking=_locking, LK_NBLCK=2)


def pretend_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process meet the files of Windows until the end of a test.

    What is open or mapped in it is neither renamed nor removed nor replaced, folders cannot be
    opened, locks are those of `msvcrt`, and users have no numbers.
    """
    for name, module in list(sys.modules.items()):
        if name.startswith("numnorm.") and hasattr(module, "WINDOWS"):
            monkeypatch.setattr(module, "WINDOWS", True)
    monkeypatch.setattr(operating_system, "_PAUSES", (0.0,))
    monkeypatch.setitem(sys.modules, "msvcrt", MSVCRT)
    monkeypatch.delattr(os, "geteuid")
    for name in ("rename", "replace", "unlink", "remove", "rmdir"):
        monkeypatch.setattr(os, name, _checked(getattr(os, name)))
