"""The cache of compiled kernels on disk.

Numba's own cache returns stale code when only an imported helper has changed, can return another
signature's code when two processes write at once, and raises on a damaged file. Here one file
holds one kernel for one signature. The files of one build of numnorm share a folder, whose name is
a hash of the sources, the versions and settings of the compiler, and the processor. A file is
written to a temporary name and renamed, and starts with a digest of its content. If anything is
wrong with a file, or if another user could have written it, the kernel is compiled instead.
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
from numba.core.registry import cpu_target
from numba.core.runtime import rtsys
from numba.core.serialize import dumps
from numba.misc.appdirs import AppDirs

from numnorm.backends.cpu.compiler import waiting
from numnorm.backends.cpu.compiler.trust import read, reason_against
from numnorm.backends.sources import PACKAGE, source_token

_DIGEST_SIZE = 32

# As the umask allows, but nobody else may write, even where it would allow that: see `trust`.
_FILE_MODE, _FOLDER_MODE = 0o644, 0o755

# The settings of Numba that change machine code. `ENABLE_AVX` is part of the processor's features.
_SETTINGS = (
    "BOUNDSCHECK",
    "DEBUGINFO_DEFAULT",
    "DEBUG_ARRAY_OPT_RUNTIME",
    "DEBUG_JIT",
    "DEBUG_NRT",
    "DIFF_IR",
    "ENABLE_PROFILING",
    "EXTEND_VARIABLE_LIFETIMES",
    "LLVM_REFPRUNE_FLAGS",
    "LLVM_REFPRUNE_PASS",
    "LOOP_VECTORIZE",
    "OPT",
    "SLP_VECTORIZE",
    "USING_SVML",
)

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

    They are a folder beside the package and the user's cache. ``NUMBA_CACHE_DIR``, if it is set,
    comes first, and is the only one if kernels can be kept in it.
    """
    usual = (
        Path(PACKAGE) / "__pycache__" / "kernels",
        Path(AppDirs("numnorm", False).user_cache_dir),
    )
    # A user without a home has "~/.cache", which would be a folder where the program is started.
    known = tuple(path for path in usual if path.is_absolute())
    if not config.CACHE_DIR:
        return known
    named = Path(config.CACHE_DIR) / "numnorm"
    return (named,) if _is_writable(named) else (named, *known)


@functools.cache
def directory() -> Path | None:
    """Return the first of the folders in which new kernels can be kept; or None."""
    return next(filter(_is_writable, folders()), None)


@functools.cache
def _is_writable(folder: Path) -> bool:
    """Return whether kernels of this process can be written to a folder, and read again."""
    own_build = build(cpu_target.target_context.codegen().magic_tuple())
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        # Another user may have made the folder of this build.
        place = folder / str(own_build)
        place = place if place.exists() else folder
        with tempfile.TemporaryFile(dir=place):
            return place == folder or reason_against(place.stat()) is None
    return False


def is_kept() -> bool:
    """Return whether a kernel that is compiled now is kept."""
    return directory() is not None and source_token() is not None


def build(processor: tuple[str, ...]) -> str | None:
    """Return the name of the folder with this build's kernels for a processor.

    It is None if the sources have changed since they were imported.
    """
    return _build(processor, tuple(repr(getattr(config, name, None)) for name in _SETTINGS))


@functools.cache
def _build(processor: tuple[str, ...], settings: tuple[str, ...]) -> str | None:
    token = source_token()
    if token is None:
        return None
    parts = token, numba.__version__, llvmlite.__version__, sys.version, processor, settings
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
            path.parent.mkdir(_FOLDER_MODE, exist_ok=True)
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
    """Return what is in a file; None if it is untrusted, damaged or not to be loaded now."""
    content = read(path)
    if content is None:
        return None
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
        with open(temporary, "xb", opener=_create) as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _create(path: str, flags: int) -> int:
    return os.open(path, flags, _FILE_MODE)
