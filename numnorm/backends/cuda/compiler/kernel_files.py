"""The machine code of kernels on disk.

One file holds one kernel for one compute capability. The files of one build of numnorm share a
folder, whose name is a hash of the sources and of the versions of the compiler. A file starts with
a digest of its content. If anything is wrong with a file, the kernel is compiled instead.
"""

import contextlib
import dataclasses
import functools
import hashlib
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numba.cuda import config
from numba.cuda.dispatcher import CUDADispatcher
from numba.cuda.extending import _Intrinsic

from numnorm.backends.cuda.compiler.machine_code import MachineCode
from numnorm.backends.kernel_folders import folder_to_write, folders, write_whole
from numnorm.backends.sources import Sources

_SOURCES = Sources(("backends/contract", "backends/cuda", "backends/formulas", "norms"))
_DIGEST_SIZE = 32


class _Unknown(Exception):
    """A kernel depends on an object whose content is unknown."""


def load(name: str) -> MachineCode | None:
    """Return the machine code in the file of this name, or None."""
    for folder in folders():
        with contextlib.suppress(OSError):
            content = (folder / name).read_bytes()
            digest, payload = content[:_DIGEST_SIZE], content[_DIGEST_SIZE:]
            if _digest(name, payload) == digest:
                entry, _, cubin = payload.partition(b"\0")
                return MachineCode(entry.decode(), cubin)
    return None


def save(name: str, code: MachineCode) -> None:
    """Write machine code to the file of this name; do nothing if that fails."""
    folder = folder_to_write()
    if folder is None:
        return
    payload = code.name.encode() + b"\0" + code.cubin
    with contextlib.suppress(OSError):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        write_whole(path, _digest(name, payload) + payload)


def file_name(
    function: Callable[..., Any], signature: Any, threads: int, capability: tuple[int, int]
) -> str | None:
    """Return the name of a kernel's file; None if the kernel must not be kept."""
    build = _build()
    if build is None:
        return None
    try:
        parts = repr((_content(function, {}), str(signature), threads, capability))
    except _Unknown:
        return None
    key = hashlib.blake2b(parts.encode(), digest_size=20).hexdigest()
    return str(Path(build) / f"{function.__module__.rpartition('.')[2]}-{key}.cubin")


@functools.cache
def _build() -> str | None:
    token = _SOURCES.token()
    if token is None:
        return None
    versions = [version(package) for package in ("numba", "numba-cuda", "llvmlite", "numpy")]
    settings = config.OPT, config.CUDA_DEBUGINFO_DEFAULT
    parts = token, versions, sys.version, str(settings)
    return f"cuda-{hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()}"


def _digest(name: str, payload: bytes) -> bytes:
    return hashlib.sha256(Path(name).as_posix().encode() + b"\0" + payload).digest()


def _content(value: Any, seen: dict[int, int]) -> Any:
    """Return what distinguishes a value in a kernel's closure from others of the same sources.

    A function is its place in the sources and what it closes over. `seen` numbers the functions
    that were met, so that each is looked at once.
    """
    if isinstance(value, CUDADispatcher):
        value = value.py_func
    elif isinstance(value, _Intrinsic):
        value = value._defn
    code = getattr(value, "__code__", None)
    if code is not None:
        if id(value) in seen:
            return seen[id(value)]
        seen[id(value)] = len(seen)
        cells = [_content(cell.cell_contents, seen) for cell in value.__closure__ or ()]
        place = value.__module__, value.__qualname__, code.co_firstlineno, code.co_code
        return (*place, _content(value.__defaults__, seen), cells)
    if isinstance(value, tuple | list):
        return type(value).__qualname__, [_content(part, seen) for part in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [getattr(value, field.name) for field in dataclasses.fields(value)]
        return type(value).__qualname__, [_content(part, seen) for part in fields]
    if isinstance(value, type):
        return value.__module__, value.__qualname__
    if value is None or isinstance(value, bool | int | float | str | np.generic):
        return type(value).__name__, repr(value)
    raise _Unknown(value)
