"""The cache of compiled kernels on disk.

Numba's own cache returns stale code when only an imported helper has changed, can return another
signature's code when two processes write at once, and raises on a damaged file. Here one file
holds one kernel for one signature. Its name is a hash of everything that the machine code depends
on, including the package's sources. It is written to a temporary name and renamed, and starts with
a digest of its content. If anything is wrong with a file, the kernel is compiled instead.
"""

import contextlib
import functools
import hashlib
import os
import pickle
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import numba
from numba.core import config
from numba.core.caching import CompileResultCacheImpl, _Cache
from numba.core.runtime import rtsys
from numba.core.serialize import dumps
from numba.misc.appdirs import AppDirs

from numnorm.backends.sources import PACKAGE, source_token

_DIGEST_SIZE = 32

# Numba names the body of a parallel loop after an address in the compiling process. Two kernels
# from different processes can have the same name, and the loader would run one for the other.
_LOOP_BODY = re.compile(rb"__numba_parfor_gufunc_\w+")
_loop_bodies: dict[bytes, str] = {}


def _candidates() -> list[Path]:
    if config.CACHE_DIR:
        return [Path(config.CACHE_DIR) / "numnorm"]
    return [
        Path(PACKAGE) / "__pycache__" / "kernels",
        Path(AppDirs("numnorm", False).user_cache_dir),
    ]


@functools.cache
def directory() -> Path | None:
    """Return the folder of compiled kernels, or None if no candidate is writable.

    ``NUMBA_CACHE_DIR`` if it is set; else a folder beside the package; else the user's cache.
    """
    for path in _candidates():
        with contextlib.suppress(OSError):
            path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=path):
                return path
    return None


class KernelCache(_Cache):
    """The cache of one kernel, with the interface of a Numba dispatcher's cache."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._enabled = True

    @property
    def cache_path(self) -> str | None:
        """The folder of the files, or None."""
        return None if directory() is None else str(directory())

    def enable(self) -> None:
        """Read and write files from now on."""
        self._enabled = True

    def disable(self) -> None:
        """Neither read nor write files from now on."""
        self._enabled = False

    def flush(self) -> None:
        """Do nothing: a file never changes once it is written."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the compiled kernel for a signature, or None."""
        # The only part of `target_context.refresh()` that loading needs: the rest imports a lot.
        rtsys.initialize(target_context)
        path = self._path(sig, target_context.codegen())
        if path is None:
            return None
        # After any failure the kernel is compiled. Unpickling a file of another build of Python
        # or LLVM may raise anything.
        with contextlib.suppress(Exception):
            content = path.read_bytes()
            digest, payload = content[:_DIGEST_SIZE], content[_DIGEST_SIZE:]
            if _digest(path, payload) == digest and _own_loop_bodies(payload, path.name):
                return CompileResultCacheImpl.rebuild(None, target_context, pickle.loads(payload))
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Write a compiled kernel; do nothing if that fails."""
        path = self._path(sig, data.codegen)
        if path is None:
            return
        with contextlib.suppress(Exception):
            payload = dumps(CompileResultCacheImpl.reduce(None, data))
            _own_loop_bodies(payload, path.name)
            _write_whole(path, _digest(path, payload) + payload)

    def _path(self, sig: Any, codegen: Any) -> Path | None:
        if not self._enabled or directory() is None or source_token() is None:
            return None
        parts = (
            self._name,
            str(sig),
            codegen.magic_tuple(),
            numba.__version__,
            sys.version,
            source_token(),
        )
        key = hashlib.blake2b(repr(parts).encode(), digest_size=20).hexdigest()
        return directory() / f"{self._name}-{key}.bin"  # type: ignore[operator]


def _digest(path: Path, payload: bytes) -> bytes:
    """Return a digest of a file's name and content."""
    return hashlib.sha256(path.name.encode() + b"\0" + payload).digest()


def _own_loop_bodies(code: bytes, owner: str) -> bool:
    """Return whether no other kernel of this process has a loop body of the same name."""
    names = set(_LOOP_BODY.findall(code))
    return all(_loop_bodies.setdefault(name, owner) == owner for name in names)


def _write_whole(path: Path, content: bytes) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
