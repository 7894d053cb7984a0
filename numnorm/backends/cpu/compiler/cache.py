"""The cache of compiled kernels on disk.

Numba's own cache returns stale code when only an imported helper has changed, can return another
signature's code when two processes write at once, and raises on a damaged file. Here one file
holds one kernel for one signature. The files of one build of numnorm share a folder, whose name is
a hash of the sources, the versions of the compiler and the processor. A file is written to a
temporary name and renamed, and starts with a digest of its content. If anything is wrong with a
file, the kernel is compiled instead.
"""

import contextlib
import functools
import hashlib
import os
import pickle
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llvmlite
import numba
from numba.core import config
from numba.core.caching import CompileResultCacheImpl, _Cache
from numba.core.runtime import rtsys
from numba.core.serialize import dumps
from numba.misc.appdirs import AppDirs

from numnorm.backends.cpu.compiler import waiting
from numnorm.backends.sources import PACKAGE, source_token

_DIGEST_SIZE = 32

# Numba names the body of a parallel loop after an address in the compiling process. Two kernels
# from different processes can have the same name, and the loader would run one for the other.
_LOOP_BODY = re.compile(rb"__numba_parfor_gufunc_\w+")
_loop_bodies: dict[bytes, str] = {}


_only_load = False


class NotCached(Exception):
    """A kernel is not in the cache, and `only_load` forbids to compile it."""


@contextlib.contextmanager
def only_load() -> Iterator[None]:
    """Raise `NotCached` in the block where a kernel would be compiled."""
    global _only_load
    _only_load = True
    try:
        yield
    finally:
        _only_load = False


@functools.cache
def folders() -> tuple[Path, ...]:
    """Return the folders in which kernels are looked for, in this order.

    ``NUMBA_CACHE_DIR`` alone if it is set; else a folder beside the package and the user's cache.
    """
    if config.CACHE_DIR:
        return (Path(config.CACHE_DIR) / "numnorm",)
    return (
        Path(PACKAGE) / "__pycache__" / "kernels",
        Path(AppDirs("numnorm", False).user_cache_dir),
    )


@functools.cache
def directory() -> Path | None:
    """Return the first of the folders that is writable: new kernels are kept there; or None."""
    for path in folders():
        with contextlib.suppress(OSError):
            path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=path):
                return path
    return None


def is_kept() -> bool:
    """Return whether a kernel that is compiled now is kept."""
    return directory() is not None and source_token() is not None


@functools.cache
def build(processor: tuple[str, ...]) -> str | None:
    """Return the name of the folder with this build's kernels for a processor.

    It is None if the sources have changed since they were imported.
    """
    token = source_token()
    if token is None:
        return None
    parts = token, numba.__version__, llvmlite.__version__, sys.version, processor
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()


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
        processor = target_context.codegen().magic_tuple()
        name = self._file_name(sig, processor)
        for path in [folder / name for folder in folders()] if name is not None else []:
            # After any failure the kernel is compiled. Unpickling a file of another build of
            # Python or LLVM may raise anything.
            with contextlib.suppress(Exception):
                data = _read(path)
                if data is not None:
                    loaded = CompileResultCacheImpl.rebuild(None, target_context, data)
                    _sign(path.parent, processor)
                    return loaded
        if _only_load:
            raise NotCached(self._name)
        waiting.begin(self._name, directory())
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Write a compiled kernel; do nothing if that fails."""
        waiting.end(self._name)
        processor = data.codegen.magic_tuple()
        name, folder = self._file_name(sig, processor), directory()
        if name is None or folder is None:
            return
        with contextlib.suppress(Exception):
            path = folder / name
            payload = dumps(CompileResultCacheImpl.reduce(None, data))
            _own_loop_bodies(payload, path.name)
            path.parent.mkdir(exist_ok=True)
            _sign(path.parent, processor)
            _write_whole(path, _digest(path, payload) + payload)

    def _file_name(self, sig: Any, processor: tuple[str, ...]) -> str | None:
        """Return the name of the file, with its build's folder; None if nothing is to be kept."""
        own_build = build(processor)
        if not self._enabled or own_build is None:
            return None
        key = hashlib.blake2b(repr((self._name, str(sig))).encode(), digest_size=20).hexdigest()
        return f"{own_build}/{self._name}-{key}.bin"


def _sign(folder: Path, processor: tuple[str, ...]) -> None:
    """Write down, once, that this installation uses the folder of a build, if it is writable."""
    place = f"{PACKAGE}\0{sys.executable}"
    name = f"origin-{hashlib.blake2b(place.encode(), digest_size=8).hexdigest()}.json"
    path = folder / name
    if path.exists() or not os.access(folder, os.W_OK):
        return
    from numnorm.backends.cpu.compiler import origin  # late: it imports what loading does not need

    with contextlib.suppress(Exception):
        _write_whole(path, origin.content(processor))


def _read(path: Path) -> Any:
    """Return the content of a file; None if it is damaged or cannot be loaded beside another."""
    content = path.read_bytes()
    digest, payload = content[:_DIGEST_SIZE], content[_DIGEST_SIZE:]
    if _digest(path, payload) != digest or not _own_loop_bodies(payload, path.name):
        return None
    return pickle.loads(payload)


def _digest(path: Path, payload: bytes) -> bytes:
    """Return a digest of a file's content, its name and the name of its folder."""
    name = f"{path.parent.name}/{path.name}"
    return hashlib.sha256(name.encode() + b"\0" + payload).digest()


def _own_loop_bodies(code: bytes, owner: str) -> bool:
    """Return whether no other kernel of this process has a loop body of the same name."""
    names = set(_LOOP_BODY.findall(code))
    return all(_loop_bodies.setdefault(name, owner) == owner for name in names)


def _write_whole(path: Path, content: bytes) -> None:
    # Not by `tempfile`, whose files only their owner can read: others may share the folder.
    temporary = path.with_name(f"{path.stem}-{os.urandom(6).hex()}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
