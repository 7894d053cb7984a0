"""The machine code of kernels: compile it, which needs no GPU, and keep it on disk.

One file holds one kernel for one compute capability. The files of one build of numnorm share a
folder, whose name is a hash of the sources and of the compiler's versions and settings. If anything
is wrong with a file, the kernel is compiled instead.
"""

import contextlib
import dataclasses
import functools
import hashlib
import re
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from cuda.core import Linker, LinkerOptions, ObjectCode

from numnorm.backends.cuda.compiler.chosen import compiler
from numnorm.backends.kernel_files import files
from numnorm.backends.kernel_files.folders import folder_to_write, folders
from numnorm.backends.sources import Sources

# The section of a kernel's arguments in machine code. Its name ends with that of the kernel, which
# Numba begins so; the kernels of CUDA's own library begin with another letter.
_ARGUMENTS = re.compile(rb"\.nv\.constant0\.(_Z[\w$]+)\0")


class MachineCode(NamedTuple):
    """The machine code of a kernel.

    Attributes
    ----------
    name : str
        The name of the kernel in the code.
    cubin : bytes
        The code, as an ELF file for one compute capability.
    """

    name: str
    cubin: bytes


def compiled(
    function: Callable[..., Any],
    signature: Any,
    threads: int,
    capability: tuple[int, int],
    *,
    grid_barriers: bool,
) -> MachineCode:
    """Return the machine code of a kernel whose blocks have `threads` threads.

    `grid_barriers` says whether the blocks wait for each other.
    """
    libraries = [device_runtime()] if grid_barriers else []
    code = compiler.compiled(function, signature, threads, capability, libraries)
    # Optimized once more at link time, kernels take fewer registers, and more of them run at once.
    parts = [ObjectCode.from_ltoir(code)]
    parts += [ObjectCode.from_library(library.read_bytes()) for library in libraries]
    architecture = f"sm_{capability[0]}{capability[1]}"
    options = LinkerOptions(arch=architecture, link_time_optimization=True)
    linker = Linker(*parts, options=options)
    try:
        cubin = bytes(linker.link("cubin").code)
    finally:
        linker.close()
    (name,) = set(_ARGUMENTS.findall(cubin))
    return MachineCode(name.decode(), cubin)


def device_runtime() -> Path:
    """Return the path of CUDA's library for grid barriers, which some installations lack."""
    return Path(compiler.libs.get_cudalib("cudadevrt", static=True))


# Files

_SOURCES = Sources(("backends/contract", "backends/cuda", "backends/formulas", "norms"))
_OF_CUDA_12 = "nvidia-cuda-nvcc-cu12", "nvidia-nvjitlink-cu12"
_LINKERS = ("cuda-core", "nvidia-nvvm", "nvidia-nvjitlink", *_OF_CUDA_12)
# The settings of both compilers that change machine code.
_SETTINGS = ("BOUNDSCHECK", "CUDA_DEBUGINFO_DEFAULT", "DEBUG_JIT", "DEBUG_NRT", "OPT")


class _Unknown(Exception):
    """A kernel depends on an object whose content is unknown."""


def load(name: str) -> MachineCode | None:
    """Return the machine code in the file of this name, or None."""
    for folder in folders(_build()):
        with contextlib.suppress(OSError):
            payload = files.read(folder / name)
            if payload is not None:
                _record_origin((folder / name).parent)
                entry, _, cubin = payload.partition(b"\0")
                return MachineCode(entry.decode(), cubin)
    return None


def save(name: str, code: MachineCode) -> None:
    """Write machine code to the file of this name; do nothing if that fails."""
    folder = folder_to_write(_build())
    if folder is None:
        return
    with contextlib.suppress(OSError):
        files.write(folder / name, code.name.encode() + b"\0" + code.cubin)
        _record_origin((folder / name).parent)


def _record_origin(folder: Path) -> None:
    files.record_origin(folder, "CUDA", _SOURCES, compiler.PACKAGES)


def file_name(kernel: Any, capability: tuple[int, int]) -> str | None:
    """Return the name of the file of a `Kernel`; None if the kernel must not be kept."""
    build = _build()
    if build is None:
        return None
    try:
        content = _content(kernel.function, {})
        parts = repr((content, str(kernel.signature), kernel.threads, capability))
    except _Unknown:
        return None
    key = hashlib.blake2b(parts.encode(), digest_size=20).hexdigest()
    return f"{build}/{kernel.function.__module__.rpartition('.')[2]}-{key}.bin"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:  # a toolkit of the system, not of pip
        return None


@functools.cache
def _build() -> str | None:
    token = _SOURCES.token()
    if token is None:
        return None
    versions = [_version(package) for package in (*compiler.PACKAGES, *_LINKERS)]
    settings = [repr(getattr(compiler.config, name)) for name in _SETTINGS]
    # Kernels with grid barriers are linked with it. It also tells toolkits of the system apart.
    with contextlib.suppress(OSError):
        versions.append(hashlib.blake2b(device_runtime().read_bytes()).hexdigest())
    parts = token, compiler.NAME, versions, sys.version, settings
    return f"cuda-{hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()}"


def _content(value: Any, seen: dict[int, int]) -> Any:
    """Return what distinguishes a value in a kernel's closure from others of the same sources.

    A function is its place in the sources and what it closes over. `seen` numbers the functions
    that were met, so that each is looked at once.
    """
    if isinstance(value, compiler.Dispatcher):
        value = value.py_func
    elif isinstance(value, compiler.Intrinsic):
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
