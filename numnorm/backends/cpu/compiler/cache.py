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
import pickle
import re
import sys
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

from numnorm.backends.cpu.compiler import waiting
from numnorm.backends.kernel_files import files
from numnorm.backends.kernel_files import folders as kernel_folders
from numnorm.backends.sources import CPU as SOURCES

_LIBRARIES = ("numba", "llvmlite")

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


def folders() -> tuple[Path, ...]:
    """Return the folders in which kernels for this processor are looked for, in this order."""
    return kernel_folders.folders(_own_build())


def directory() -> Path | None:
    """Return the first of the folders in which new kernels can be kept; or None."""
    return kernel_folders.folder_to_write(_own_build())


def _own_build() -> str | None:
    return build(cpu_target.target_context.codegen().magic_tuple())


def is_kept() -> bool:
    """Return whether a kernel that is compiled now is kept."""
    return directory() is not None and SOURCES.token() is not None


def _fate() -> str:
    """Return what becomes of a kernel that is compiled now, for a message."""
    if is_kept():
        return f"kept in {directory()}"
    if directory() is None:
        return "not kept, as no folder of the cache is writable"
    return "not kept, as their sources are not here"


def build(processor: tuple[str, ...]) -> str | None:
    """Return the name of the folder with this build's kernels for a processor.

    It is None if the sources have changed since they were imported.
    """
    return _build(processor, tuple(repr(getattr(config, name, None)) for name in _SETTINGS))


@functools.cache
def _build(processor: tuple[str, ...], settings: tuple[str, ...]) -> str | None:
    token = SOURCES.token()
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
                    _record_origin(path.parent, processor)
                    return loaded
        if _only_load:
            raise NotCached(self._name)
        waiting.begin(self._name, _fate())
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
            files.write(path, payload)
            _record_origin(path.parent, processor)

    def _file_name(self, sig: Any, processor: tuple[str, ...]) -> str | None:
        """Return the name of the file, with its build's folder; None if nothing is to be kept."""
        own_build = build(processor)
        if not self._enabled or own_build is None:
            return None
        key = hashlib.blake2b(repr((self._name, str(sig))).encode(), digest_size=20).hexdigest()
        return f"{own_build}/{self._name}-{key}.bin"


def _record_origin(folder: Path, processor: tuple[str, ...]) -> None:
    files.record_origin(folder, " ".join(processor[:2]), SOURCES, _LIBRARIES)


def _read(path: Path) -> Any:
    """Return what is in a file; None if it is untrusted, damaged or not to be loaded now."""
    payload = files.read(path)
    if payload is None or not _own_loop_bodies(payload, path.name):
        return None
    return pickle.loads(payload)


def _own_loop_bodies(code: bytes, owner: str) -> bool:
    """Return whether no other kernel of this process has a loop body of the same name."""
    names = set(_LOOP_BODY.findall(code))
    return all(_loop_bodies.setdefault(name, owner) == owner for name in names)
